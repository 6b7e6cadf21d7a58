//! What somebody changes in the ConfigMap after it was imported.

use std::collections::BTreeMap;

use harvester_api::annotations;
use ipam::legacy::pool_entry;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

/// Entries whose changes are told, at most: with the longest keys they fit into annotations, which may have 256 KiB.
const ENTRIES: usize = 500;
/// Bytes of each SHA-256 that are kept.
const DIGEST_BYTES: usize = 8;
/// So many changed entries are named.
const NAMED: usize = 5;

/// The entries of pools, by key, each with the beginning of the SHA-256 of its text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Entries(BTreeMap<String, String>);

impl Entries {
    pub(super) fn of(data: &BTreeMap<String, String>) -> Self {
        let entries = data.iter().filter(|(key, _)| pool_entry(key).is_some()).take(ENTRIES);
        Self(entries.map(|(key, text)| (key.clone(), digest(text))).collect())
    }

    /// Reads the annotation; none where it was edited beyond reading.
    pub(super) fn read(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    pub(super) fn annotate(&self, object: &mut Value) {
        let text = serde_json::to_string(self).expect("text to text");
        object["metadata"]["annotations"][annotations::IMPORTED_ENTRIES] = json!(text);
    }

    /// The keys that were added, removed or have another text, in their order.
    pub(super) fn changed_since<'a>(&'a self, before: &'a Self) -> Vec<&'a str> {
        let others = |one: &'a Self, other: &'a Self| {
            one.0.iter().filter(|(key, digest)| other.0.get(*key) != Some(*digest)).map(|(key, _)| &**key)
        };
        let mut keys: Vec<_> = others(self, before).chain(others(before, self)).collect();
        keys.sort_unstable();
        keys.dedup();
        keys
    }
}

fn digest(text: &str) -> String {
    let bytes = Sha256::digest(text);
    bytes.iter().take(DIGEST_BYTES).map(|byte| format!("{byte:02x}")).collect()
}

/// Says what to do instead; none without a changed entry.
pub(super) fn sentence(changed: &[&str], has_pool: impl Fn(&str) -> bool) -> Option<String> {
    let instead = changed.iter().take(NAMED).filter_map(|key| {
        let (_, pool) = pool_entry(key)?;
        let verb = if has_pool(pool) { "edit" } else { "create" };
        Some(format!("{verb} IPPool {pool} instead of {key}"))
    });
    let instead = instead.collect::<Vec<_>>().join(", ");
    let more = changed.len().saturating_sub(NAMED);
    let more = if more == 0 { String::new() } else { format!(", and {more} more") };
    let why = "the pools of this ConfigMap were imported, and it is not read any more";
    (!instead.is_empty()).then(|| format!("{why}: {instead}{more}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(data: &[(&str, &str)]) -> Entries {
        Entries::of(&data.iter().map(|(key, text)| ((*key).to_owned(), (*text).to_owned())).collect())
    }

    #[test]
    fn entries_that_were_added_removed_or_changed_are_told() {
        let before = entries(&[("cidr-a", "192.0.2.0/28"), ("cidr-b", "x"), ("range-d", "y")]);
        let now = entries(&[("cidr-a", "192.0.2.0/27"), ("cidr-c", "x"), ("range-d", "y")]);
        assert_eq!(now.changed_since(&before), ["cidr-a", "cidr-b", "cidr-c"]);
        let told = sentence(&now.changed_since(&before), |pool| pool == "a").unwrap();
        assert!(
            told.contains("edit IPPool a instead of cidr-a, create IPPool b instead of cidr-b"),
            "{told}"
        );
    }

    #[test]
    fn an_entry_of_no_pool_is_not_told() {
        let before = entries(&[("kubevip-services", "{}"), ("nodash", "x")]);
        let now = entries(&[("kubevip-services", "{\"services\":[]}"), ("nodash", "y")]);
        assert_eq!(now.changed_since(&before), [""; 0]);
        assert_eq!(sentence(&[], |_| true), None);
    }

    #[test]
    fn a_map_of_many_long_entries_fits_into_an_annotation() {
        let data = (0..2_000).map(|number| (format!("cidr-{number:0>248}"), String::new())).collect();
        let mut object = json!({});
        Entries::of(&data).annotate(&mut object);
        let text = object["metadata"]["annotations"][annotations::IMPORTED_ENTRIES].as_str().unwrap();
        assert!(text.len() < 256 << 10, "{} bytes", text.len());
        assert_eq!(Entries::read(text), Some(Entries::of(&data)));
    }

    #[test]
    fn of_many_changed_entries_the_first_are_named() {
        let keys: Vec<_> = (0..9).map(|number| format!("cidr-{number}")).collect();
        let told = sentence(&keys.iter().map(|key| &**key).collect::<Vec<_>>(), |_| true).unwrap();
        assert!(told.ends_with("instead of cidr-4, and 4 more"), "{told}");
    }
}
