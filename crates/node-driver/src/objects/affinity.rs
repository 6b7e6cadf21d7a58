//! The affinity of a VM: the user's, or one that spreads VMs over the hosts.

use harvester_api::labels::CREATOR;
use serde_json::{Map, Value, json};

use harvester_api::labels::MACHINE_SET;

const HOST: &str = "kubernetes.io/hostname";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

/// The affinity of a VM of this machine set. Each pod affinity (or anti-affinity) of the user gets one more preferred term
/// of weight 1 for (or against) VMs of the same set. Without a user's affinity, VMs of the driver repel each other.
pub(super) fn of(given: Option<&Map<String, Value>>, machine_set: &str) -> Value {
    let Some(given) = given else {
        return json!({"podAntiAffinity": {PREFERRED: [{
            "weight": 100,
            "podAffinityTerm": {
                "labelSelector": {"matchExpressions": [{"key": CREATOR, "operator": "Exists"}]},
                "topologyKey": HOST,
            },
        }]}});
    };
    let same_set = json!({
        "weight": 1,
        "podAffinityTerm": {
            "labelSelector": {"matchLabels": {MACHINE_SET: machine_set}},
            "topologyKey": HOST,
        },
    });
    let mut affinity = given.clone();
    affinity.retain(|_, value| !value.is_null());
    for kind in ["podAffinity", "podAntiAffinity"] {
        let Some(Value::Object(rules)) = affinity.get_mut(kind) else { continue };
        match rules.get_mut(PREFERRED) {
            Some(Value::Array(terms)) => terms.push(same_set.clone()),
            _ => drop(rules.insert(PREFERRED.to_owned(), json!([same_set]))),
        }
    }
    Value::Object(affinity)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn affinity(given: &Value) -> Value {
        of(given.as_object(), "default-demo-pool1")
    }

    #[test]
    fn machines_keep_apart_where_nothing_is_asked() {
        let rules = of(None, "x");
        assert_eq!(rules["podAntiAffinity"][PREFERRED][0]["weight"], 100);
        assert_eq!(rules["podAntiAffinity"][PREFERRED][0]["podAffinityTerm"]["topologyKey"], HOST);
    }

    #[test]
    fn rules_about_pods_get_the_machine_set_and_rules_about_hosts_stay() {
        let node = json!({"nodeAffinity": {"x": 1}});
        assert_eq!(affinity(&node), node);
        let rules = affinity(&json!({"podAffinity": {}, "podAntiAffinity": {PREFERRED: [{"weight": 7}]}}));
        let set = &rules["podAffinity"][PREFERRED][0]["podAffinityTerm"]["labelSelector"]["matchLabels"];
        assert_eq!(set[MACHINE_SET], "default-demo-pool1");
        let terms = rules["podAntiAffinity"][PREFERRED].as_array().unwrap();
        assert_eq!((terms.len(), &terms[0]["weight"], &terms[1]["weight"]), (2, &json!(7), &json!(1)));
    }

    #[test]
    fn null_is_as_good_as_absent() {
        assert_eq!(affinity(&json!({"podAffinity": null})), json!({}));
    }
}
