//! ARCHITECTURE.md lists everything that happens by time, so that nobody finds a pause by accident.

use std::fs;

use super::{product, root};

/// Constants that are no period and no limit of a running program, and why.
const ELSEWHERE: [(&str, &str, &str); 2] = [
    (
        "crates/load-balancer/src/cli.rs",
        "DEV_",
        "the times of a Lease with --dev, as a flag of the Go program sets them",
    ),
    ("crates/dhcp-client/src/", "", "the RFC says them; the caller keeps the time"),
];

/// The name of a constant that this line declares, of type `Duration`, `SignedDuration` or a list of these.
fn duration(line: &str) -> Option<&str> {
    let (_, declared) = line.split_once("const ")?;
    let (name, rest) = declared.split_once(": ")?;
    rest.split('=').next()?.contains("Duration").then_some(name)
}

#[test]
fn every_period_and_limit_of_the_product_is_in_the_tables_of_the_architecture() {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let rows: Vec<_> = text.lines().filter(|line| line.starts_with("| ")).collect();
    let lists = |of: &str, name: &str| {
        let (dashes, underscores) = (format!("`{of}"), format!("`{}", of.replace('-', "_")));
        rows.iter().any(|row| {
            (row.contains(&dashes) || row.contains(&underscores)) && row.contains(&format!("`{name}`"))
        })
    };
    let (mut found, mut missing) = (0, Vec::new());
    for line in product::lines() {
        let Some(name) = duration(&line.text) else { continue };
        let (place, Some(of)) = (&line.place, line.place.split('/').nth(1)) else { continue };
        let elsewhere =
            |(file, prefix, _): &(&str, &str, &str)| place.starts_with(file) && name.starts_with(prefix);
        if ELSEWHERE.iter().any(elsewhere) {
            continue;
        }
        found += 1;
        if !lists(of, name) {
            missing.push(format!("{place}: {name}"));
        }
    }
    assert!(found > 50, "the declarations are found: {found}");
    assert!(missing.is_empty(), "add these to a row of their crate: {missing:#?}");
}
