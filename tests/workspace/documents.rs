//! The documents are complete, lead where they say, and name tests that there are.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::PathBuf,
};

use super::{files, root, short};

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap()
}

/// Targets of the links in a page, without what is in code blocks.
fn links(text: &str) -> Vec<&str> {
    let (mut found, mut is_code) = (Vec::new(), false);
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        }
        if is_code || line.starts_with("    ") {
            continue;
        }
        let targets = line.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
        found.extend(targets.map(|(target, _)| target));
    }
    found
}

/// The anchor that a heading gets: letters in lower case, blanks as dashes.
fn anchor_of(heading: &str) -> String {
    let letters = heading.trim_start_matches('#').trim().chars();
    let kept = letters.filter(|c| c.is_alphanumeric() || *c == ' ' || *c == '-' || *c == '_');
    kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect()
}

fn has_anchor(page: &str, anchor: &str) -> bool {
    page.lines().any(|line| line.starts_with('#') && anchor_of(line) == anchor)
        || page.contains(&format!("<a id=\"{anchor}\"></a>"))
}

fn pages() -> Vec<PathBuf> {
    let mut pages = files(&root().join("docs"), &[".md"]);
    let names = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"];
    pages.extend(names.iter().map(|name| root().join(name)));
    pages
}

#[test]
fn every_relative_link_of_a_page_leads_somewhere() {
    let mut astray = Vec::new();
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        for link in links(&text).into_iter().filter(|link| !link.contains("://")) {
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { page.clone() } else { page.parent().unwrap().join(file) };
            let leads = target.exists()
                && (anchor.is_empty() || has_anchor(&fs::read_to_string(&target).unwrap(), anchor));
            if !leads {
                astray.push(format!("{}: {link}", short(&page)));
            }
        }
    }
    assert!(astray.is_empty(), "{astray:#?}");
}

#[test]
fn the_book_has_every_page_once() {
    let summary = read("docs/SUMMARY.md");
    let mut named = links(&summary);
    named.sort_unstable();
    let docs = root().join("docs");
    let all = files(&docs, &[".md"]);
    let all = all.iter().map(|page| page.strip_prefix(&docs).unwrap().to_str().unwrap());
    let mut all: Vec<_> = all.filter(|page| *page != "SUMMARY.md").collect();
    all.sort_unstable();
    assert_eq!(named, all, "left what docs/SUMMARY.md names, right the pages of docs/");
}

/// Known issues of Harvester that its own pages tell readers to expect, and the places where its pages are wrong.
const KNOWN_ISSUES: [&str; 13] = [
    "5827", "53642", "8072", "9767", "10188", "11345", "6849", "5348", "8950", "7449", "3272", "1992",
    "11158",
];

#[test]
fn every_known_issue_and_every_trap_is_in_the_page_of_troubles() {
    let page = read("docs/troubleshooting.md");
    let missing: Vec<_> = KNOWN_ISSUES.iter().filter(|issue| !page.contains(*issue)).collect();
    assert!(missing.is_empty(), "{missing:?}");
    let lists: BTreeSet<_> = page
        .split("(trap")
        .skip(1)
        .filter_map(|rest| rest.split_once(')'))
        .flat_map(|(list, _)| list.trim_start_matches('s').split(','))
        .map(|letter| letter.trim().to_owned())
        .collect();
    let all: BTreeSet<_> = ('a'..='w').map(|letter| letter.to_string()).collect();
    assert_eq!(all.difference(&lists).collect::<Vec<_>>(), [""; 0], "of a to w");
}

/// Ids of checks in the page are those of `doctor`, and reasons are those of Events.
#[test]
fn the_page_of_troubles_names_what_there_is() {
    let (page, doctor) = (read("docs/troubleshooting.md"), read("docs/doctor.md"));
    let events = read("docs/reference/events.md") + &read("docs/messages.md");
    let words = page
        .lines()
        .filter(|line| line.starts_with("| "))
        .flat_map(|line| line.split('`').skip(1).step_by(2));
    let mut unknown = Vec::new();
    for word in words.filter(|word| word.chars().all(|c| c.is_ascii_alphabetic())) {
        let is_reason = word.starts_with(|c: char| c.is_ascii_uppercase())
            && word.chars().skip(2).any(|c| c.is_ascii_uppercase());
        let of_others = ["ContainerCreating", "ImagePullBackOff", "ProvisioningFailed"];
        if is_reason && !of_others.contains(&word) && !events.contains(&format!("`{word}`")) {
            unknown.push(word);
        }
    }
    for id in [
        "ccm",
        "nodes",
        "guest-agents",
        "tunnel-address",
        "dhcp",
        "one-provider",
        "leftovers",
        "harvester-version",
        "rights-volumes",
        "storage-classes",
        "snapshot-crds",
        "credential-life",
        "harvester-login",
    ] {
        assert!(page.contains(&format!("`{id}`")), "{id} helps nobody");
        if !doctor.contains(&format!("| `{id}` |")) {
            unknown.push(id);
        }
    }
    assert!(unknown.is_empty(), "{unknown:?}");
}

#[test]
fn the_oldest_releases_in_the_page_are_those_of_the_code() {
    let (page, code) = (read("docs/migration.md"), read("crates/diagnosis/src/doctor/checks.rs"));
    for (name, row) in
        [("OLDEST_KUBERNETES", "Kubernetes of a guest cluster"), ("OLDEST_HARVESTER", "Harvester")]
    {
        let (_, rest) = code.split_once(&format!("const {name}: (u32, u32) = (")).unwrap();
        let release = rest.split_once(')').unwrap().0.replace(", ", ".");
        assert!(page.contains(&format!("| {row} | {release} | `{name}`")), "{name} is {release}");
    }
}

/// Without the flag the Go driver is missed a Lease that it does not have.
#[test]
fn the_page_of_the_migration_asks_doctor_for_what_is_replaced() {
    let page = read("docs/migration.md");
    for flag in ["--before-upgrade", "--before-rollback"] {
        assert!(page.contains(&format!("    harvester-cloud-provider doctor {flag} ")), "{flag}");
    }
}

#[test]
fn each_promise_of_the_published_documents_has_tests_that_there_are() {
    let document = read("docs/contract/user-docs.md");
    let (_, table) = document.split_once("| Box | What a reader does | Tests |\n|---|---|---|\n").unwrap();
    let boxes: BTreeMap<_, Vec<_>> = table
        .lines()
        .map_while(|line| line.strip_prefix("| ")?.split_once(" | "))
        .map(|(number, row)| {
            let (_, tests) = row.split_once(" | ").unwrap();
            (number, tests.split('`').skip(1).step_by(2).filter(|it| !it.contains(' ')).collect())
        })
        .collect();
    let all: Vec<_> = (1..=16).map(|number| number.to_string()).collect();
    assert!(boxes.len() == 16 && all.iter().all(|number| boxes.contains_key(number.as_str())), "{boxes:?}");
    let sources: String =
        files(root(), &[".rs"]).iter().map(|file| fs::read_to_string(file).unwrap()).collect();
    for (number, tests) in boxes {
        assert!(!tests.is_empty(), "box {number} names no test");
        for test in tests {
            assert!(sources.contains(&format!("fn {test}(")), "box {number}: there is no test {test}");
        }
    }
}

#[test]
fn links_and_anchors_are_read_as_they_are_written() {
    let text = "a [b](c.md#d) and ![e](f.png)\n```text\n[no](no.md)\n```\n    [no](no.md)\n";
    assert_eq!(links(text), ["c.md#d", "f.png"]);
    assert_eq!(anchor_of("## From the Go charts to ours, and back"), "from-the-go-charts-to-ours-and-back");
    assert!(has_anchor("# A b\n", "a-b") && !has_anchor("A b\n", "a-b"));
}
