//! The fields of this project in the CRDs of Harvester. An API server drops them from each object where a CRD lacks them, before
//! anybody sees the object: who sets one in vain can be told nowhere but here and by `doctor`.

use std::sync::{Arc, Mutex};

use program::capabilities::{Capabilities, Field};

use crate::controller::{ADDRESSES_FIELD, BACKENDS_FIELD, SECOND_ADDRESS_FIELD};

const POOLS: &str = "ippools.loadbalancer.harvesterhci.io";

const fn of_balancers(path: &'static [&'static str]) -> Field {
    Field { path, ..BACKENDS_FIELD }
}

const fn of_pools(path: &'static [&'static str]) -> Field {
    Field { crd: POOLS, version: "v1beta1", path }
}

/// All of them.
pub const OPTIONAL_FIELDS: [Field; 10] = [
    of_pools(&["spec", "ranges", "drain"]),
    of_pools(&["spec", "quota"]),
    of_pools(&["spec", "quarantineSeconds"]),
    of_balancers(&["spec", "healthCheck", "path"]),
    of_balancers(&["spec", "healthCheck", "scheme"]),
    of_balancers(&["spec", "ipFamilyPolicy"]),
    of_balancers(&["spec", "ipv6Pool"]),
    SECOND_ADDRESS_FIELD,
    ADDRESSES_FIELD,
    BACKENDS_FIELD,
];

/// The kinds that have them.
pub const KINDS: [&str; 2] = ["IPPool", "LoadBalancer"];

/// The kind whose field it is.
pub fn kind_of(field: &Field) -> &'static str {
    let [pool, balancer] = KINDS;
    if field.crd == POOLS { pool } else { balancer }
}

/// Those that are not there, as people write them: `spec.quota of IPPool`.
pub fn missing(has: impl Fn(&Field) -> bool) -> Vec<String> {
    let missing = OPTIONAL_FIELDS.iter().filter(|field| !has(field));
    missing.map(|field| format!("{} of {}", field.path.join("."), kind_of(field))).collect()
}

/// Has `tell` say which fields are missing, in one line, now and each time that one more is.
pub(crate) fn tell_missing(capabilities: &Capabilities, tell: impl Fn(String) + Send + Sync + 'static) {
    let (asked, told) = (capabilities.clone(), Mutex::new(Vec::new()));
    let look = Arc::new(move || {
        let missing = missing(|field| asked.has_field(field.crd, field.version, field.path));
        let line = news(&mut told.lock().expect("no panic while a line is made"), missing);
        line.into_iter().for_each(&tell);
    });
    let looks = look.clone();
    capabilities.on_change(move || looks());
    // what was so before
    look();
}

/// The line; nothing where none of it is new.
fn news(told: &mut Vec<String>, missing: Vec<String>) -> Option<String> {
    let is_news = missing.iter().any(|field| !told.contains(field));
    *told = missing;
    is_news.then(|| {
        format!(
            "the CRDs have no {}, or may not be read: what these fields are for is off, and whoever sets one is not told; install \
             the CRDs of this project",
            told.join(", ")
        )
    })
}

#[cfg(test)]
mod tests {
    use serde_json::Value;
    use test_cluster::{Side, manifests};

    use super::*;

    // docs/contract/addresses.md#7
    #[test]
    fn the_crds_of_this_project_have_every_field() {
        let schema_of = |field: &Field| -> Value {
            let mut kinds = manifests::kinds(Side::Harvester).iter();
            let crd = kinds.find(|crd| crd["metadata"]["name"] == field.crd).unwrap();
            let mut versions = crd["spec"]["versions"].as_array().unwrap().iter();
            let version = versions.find(|version| version["name"] == field.version).unwrap();
            version["schema"]["openAPIV3Schema"].clone()
        };
        let lacks = missing(|field| {
            let mut at = schema_of(field);
            for name in field.path {
                let of = if at["items"].is_object() { &at["items"] } else { &at };
                at = of["properties"][name].clone();
            }
            at.is_object()
        });
        assert_eq!(lacks, [""; 0]);
    }

    #[tokio::test]
    async fn the_fields_that_a_crd_lacks_are_told_in_one_line_each_time_that_one_more_is() {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let into = lines.clone();
        let some = Capabilities::assumed(
            OPTIONAL_FIELDS.into_iter().filter(|field| field.path != ["spec", "quota"]),
        );
        tell_missing(&some, move |line| into.lock().unwrap().push(line));
        let told = lines.lock().unwrap().clone();
        assert!(told.len() == 1 && told[0].contains("have no spec.quota of IPPool, or "), "{told:?}");

        let mut before = Vec::new();
        let mut say =
            |missing: &[&str]| news(&mut before, missing.iter().map(|it| (*it).to_owned()).collect());
        assert_eq!(say(&[]), None);
        assert!(say(&["a", "b"]).is_some_and(|line| line.contains("have no a, b, or")));
        assert_eq!(say(&["a", "b"]), None);
        assert_eq!(say(&["a"]), None, "one came");
        assert_eq!(say(&[]), None);
        assert!(say(&["a"]).is_some(), "somebody put the former definition back");
    }
}
