//! Which Events the tests provoked, held against `docs/reference/events.md`: a reason that no test saw is no better than a
//! promise, and one that the document lacks is a riddle to whoever meets it.
//!
//! The simulated API server writes a line for each kind of Event into the file; it is empty at the start of every run, and
//! only a run of all tests compares.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result};

use crate::workspace;

/// Component, reason, type or kind: each pair of the document's row is to be seen.
type Fact = (String, String, String);

pub(super) struct Events {
    pub(super) file: PathBuf,
}

impl Events {
    /// `sim-apiserver` writes to the file that this names: `component<TAB>reason<TAB>type<TAB>kind`.
    pub(super) const VARIABLE: &str = "EVENT_REASONS";

    pub(super) fn new() -> Result<Self> {
        let folder = workspace::target().join("xtask");
        fs::create_dir_all(&folder)?;
        let file = folder.join("event-reasons");
        fs::write(&file, "")?;
        Ok(Self { file })
    }

    /// What is wrong, a sentence each.
    pub(super) fn faults(&self) -> Result<Vec<String>> {
        let document = workspace::root().join("docs/reference/events.md");
        let document = fs::read_to_string(&document).context("read docs/reference/events.md")?;
        Ok(faults(&document, &fs::read_to_string(&self.file).unwrap_or_default()))
    }
}

fn faults(document: &str, seen: &str) -> Vec<String> {
    let documented = documented(document);
    let components: BTreeSet<_> = documented.iter().map(|(component, ..)| component.as_str()).collect();
    let seen: BTreeSet<Fact> = seen
        .lines()
        .filter_map(|line| match line.split('\t').collect::<Vec<_>>()[..] {
            // others write Events too
            [component, reason, event_type, kind] if components.contains(component) => {
                Some([event_type, kind].map(|fact| (component.into(), reason.into(), fact.into())))
            }
            _ => None,
        })
        .flatten()
        .collect();
    let sentence = |(component, reason, fact): &Fact, what: &str| {
        format!("Event {reason} of {component}, {fact}: {what}")
    };
    let unseen = documented
        .difference(&seen)
        .map(|fact| sentence(fact, "is in docs/reference/events.md, and no component test provoked it"));
    let unknown = seen
        .difference(&documented)
        .map(|fact| sentence(fact, "was seen by a test, and is not in docs/reference/events.md"));
    unseen.chain(unknown).collect()
}

fn documented(document: &str) -> BTreeSet<Fact> {
    let (mut facts, mut component) = (BTreeSet::new(), "");
    for line in document.lines() {
        if let Some(name) = line.strip_prefix("## `") {
            component = name.trim_end_matches('`');
        }
        let Some(row) = line.strip_prefix("| `") else { continue };
        let mut cells = row.split(" | ");
        let reason = cells.next().unwrap_or_default().trim_end_matches('`');
        for fact in cells.take(2).flat_map(|cell| cell.split(", ")) {
            facts.insert((component.to_owned(), reason.to_owned(), fact.to_owned()));
        }
    }
    facts
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCUMENT: &str = "## `service-controller`\n\n| Reason | Type | On |\n|---|---|---|\n\
                            | `Ensured` | Normal | Service | it has an address | |\n\
                            | `Families` | Normal, Warning | Service | what it gets | |\n";

    #[test]
    fn a_run_that_saw_each_documented_event_has_no_fault() {
        let seen = "service-controller\tEnsured\tNormal\tService\n\
                    service-controller\tFamilies\tNormal\tService\n\
                    service-controller\tFamilies\tWarning\tService\n\
                    kubelet\tPulled\tNormal\tPod\n";
        assert_eq!(faults(DOCUMENT, seen), [""; 0]);
    }

    #[test]
    fn a_documented_event_that_no_test_saw_is_a_fault() {
        let seen =
            "service-controller\tEnsured\tNormal\tService\nservice-controller\tFamilies\tNormal\tService\n";
        let sentence = "Event Families of service-controller, Warning: is in docs/reference/events.md, and no component \
                        test provoked it";
        assert_eq!(faults(DOCUMENT, seen), [sentence]);
        assert_eq!(faults(DOCUMENT, "").len(), 5);
    }

    #[test]
    fn an_event_that_is_not_documented_is_a_fault() {
        let seen = "service-controller\tEnsured\tNormal\tService\n\
                    service-controller\tFamilies\tNormal\tService\n\
                    service-controller\tFamilies\tWarning\tService\n\
                    service-controller\tBroken\tWarning\tService\n";
        let found = faults(DOCUMENT, seen);
        assert!(
            found.len() == 2 && found[0].starts_with("Event Broken of service-controller, Service: was seen")
        );
    }
}
