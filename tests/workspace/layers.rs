//! A crate uses only crates of lower layers, as the table in `ARCHITECTURE.md` has them.

use std::collections::BTreeMap;
use std::fs;

use super::{packages, root, short};

/// The layers of the table: crate and number.
fn layers() -> BTreeMap<String, u32> {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let rows = text.lines().filter_map(|line| {
        let mut cells = line.strip_prefix("| ")?.split(" | ");
        let layer = cells.next()?.parse().ok()?;
        let name = cells.next()?.strip_prefix('`')?.split_once('`')?.0;
        Some((name.to_owned(), layer))
    });
    rows.collect()
}

#[test]
fn a_crate_uses_only_crates_of_lower_layers() {
    let layers = layers();
    let layer = |name: &str| {
        *layers.get(name).unwrap_or_else(|| panic!("{name} is not in the table of layers of ARCHITECTURE.md"))
    };
    let mut wrong = Vec::new();
    for package in packages() {
        let own = layer(&package.name);
        // tests may look at anything
        let used =
            package.dependencies.iter().filter(|it| it.path.is_some() && it.kind.as_deref() != Some("dev"));
        for used in used {
            if layer(&used.name) >= own {
                wrong.push(format!(
                    "{} (layer {own}) uses {} (layer {})",
                    package.name,
                    used.name,
                    layer(&used.name)
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn the_product_does_not_use_the_testbed() {
    let mut wrong = Vec::new();
    for package in packages() {
        if !short(&package.manifest_path).starts_with("crates/") {
            continue;
        }
        for used in package.dependencies.iter().filter(|it| it.kind.as_deref() != Some("dev")) {
            if used.path.as_ref().is_some_and(|path| short(path).starts_with("testbed/")) {
                wrong.push(format!("{} uses {}", package.name, used.name));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn the_table_of_layers_names_crates_that_are_there() {
    let there: Vec<String> = packages().into_iter().map(|package| package.name).collect();
    let gone: Vec<_> = layers().into_keys().filter(|name| !there.contains(name)).collect();
    assert_eq!(gone, [""; 0]);
}
