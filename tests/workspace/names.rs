//! The names by which programs understand each other have one home, `harvester-api`: a name that is spelt twice is one
//! day spelt in two ways, and no compiler notices.

use super::{product, root};

/// The domains of Harvester's and kube-vip's labels, annotations, finalizers and groups.
const DOMAINS: [&str; 3] = ["harvesterhci.io", "kube-vip.io", "cattle.io"];

/// The texts between quotation marks in a line of code.
pub(crate) fn literals(line: &str) -> Vec<&str> {
    line.split('"').skip(1).step_by(2).collect()
}

/// Whether a text is one name, or the beginning of one. A sentence for people may contain a name.
fn is_name(text: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || ".-/_".contains(c);
    let (domain, rest) = text.split_once('/').unwrap_or((text, ""));
    let ours = DOMAINS.iter().any(|ours| domain == *ours || domain.ends_with(&format!(".{ours}")));
    ours && text.contains('/') && text.chars().all(is_part) && !rest.contains('/')
}

#[test]
fn names_of_harvester_and_kube_vip_are_spelt_in_harvester_api_alone() {
    let mut elsewhere = Vec::new();
    for line in product::lines() {
        let is_home = line.place.starts_with("crates/harvester-api/");
        for name in literals(&line.text).into_iter().filter(|text| !is_home && is_name(text)) {
            elsewhere.push(format!("{}: {name}", line.place));
        }
    }
    assert!(elsewhere.is_empty(), "use the constants of harvester-api, or add one: {elsewhere:#?}");
}

/// Names that are no annotation, label or finalizer.
const OTHERS: [&str; 1] = ["harvesterhci.io/load-balancer"];

#[test]
fn every_name_of_harvester_api_is_in_the_reference() {
    let reference = std::fs::read_to_string(root().join("docs/reference/annotations.md")).unwrap();
    let mut missing = Vec::new();
    for line in product::lines().iter().filter(|line| line.place.starts_with("crates/harvester-api/src/")) {
        // versions of kinds begin with v
        let is_key = |name: &&str| {
            let end = name.rsplit('/').next().unwrap();
            is_name(name) && !end.is_empty() && !(end.starts_with('v') && end.contains(char::is_numeric))
        };
        for name in literals(&line.text).into_iter().filter(is_key) {
            if !OTHERS.contains(&name) && !reference.contains(&format!("| `{name}` |")) {
                missing.push(format!("{}: {name}", line.place));
            }
        }
    }
    assert!(missing.is_empty(), "UPDATE_DOCS=1 cargo test --test reference: {missing:#?}");
}

#[test]
fn a_name_is_told_from_a_sentence() {
    assert!(is_name("kube-vip.io/ignore") && is_name("cloudprovider.harvesterhci.io/"));
    assert!(is_name("node-driver.harvesterhci.io/inputs"));
    assert!(!is_name("remove kube-vip.io/ignore") && !is_name("harvesterhci.io") && !is_name("harvester://"));
    assert_eq!(literals(r#"f("a", "b/c");"#), ["a", "b/c"]);
}
