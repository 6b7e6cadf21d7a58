//! ClusterRoles that gather the rules of others by label, as kube-controller-manager's aggregation controller has it.

use serde_json::Value;

use crate::json::{elements, text};
use crate::selector::LabelSelector;

/// The gathering ClusterRoles among these whose rules are not those that they should have: name and rules to write.
///
/// A role gathers the rules that stand in others now; where those gather too, ask again after the write.
pub fn gather<'a>(roles: impl IntoIterator<Item = &'a Value>) -> Vec<(String, Value)> {
    let mut roles: Vec<&Value> = roles.into_iter().collect();
    roles.sort_by_key(|role| name(role));
    let gathered = |role: &&&Value| {
        let selectors = elements(&role["aggregationRule"]["clusterRoleSelectors"]);
        let mut rules: Vec<Value> = Vec::new();
        for selector in selectors.iter().map(LabelSelector::of_object) {
            for other in roles.iter().filter(|other| name(other) != name(role) && selector.matches(other)) {
                let new: Vec<Value> =
                    elements(&other["rules"]).iter().filter(|rule| !rules.contains(rule)).cloned().collect();
                rules.extend(new);
            }
        }
        rules
    };
    roles
        .iter()
        .filter(|role| !elements(&role["aggregationRule"]["clusterRoleSelectors"]).is_empty())
        .map(|role| (role, gathered(&role)))
        .filter(|(role, rules)| elements(&role["rules"]) != rules)
        .map(|(role, rules)| (name(role).to_owned(), rules.into()))
        .collect()
}

fn name(role: &Value) -> &str {
    text(&role["metadata"]["name"])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_role_gathers_the_rules_of_those_that_its_selectors_name() {
        let role = |name: &str, label: &str, rules: &[&str]| {
            let rules: Vec<Value> = rules.iter().map(|verb| json!({"verbs": [verb]})).collect();
            json!({"metadata": {"name": name, "labels": {"to": label}}, "rules": rules})
        };
        let mut all = role("all", "all", &[]);
        all["aggregationRule"] = json!({"clusterRoleSelectors":
            [{"matchLabels": {"to": "all"}}, {"matchLabels": {"to": "more"}}]});
        let mut roles = vec![
            role("b", "all", &["y", "x"]),
            role("a", "all", &["x"]),
            role("c", "", &["z"]),
            role("d", "more", &["w"]),
            all,
        ];
        let rules = json!([{"verbs": ["x"]}, {"verbs": ["y"]}, {"verbs": ["w"]}]);
        assert_eq!(gather(&roles), [("all".to_owned(), rules.clone())]);
        roles[4]["rules"] = rules;
        assert_eq!(gather(&roles), []);
        roles.remove(0);
        assert_eq!(gather(&roles), [("all".to_owned(), json!([{"verbs": ["x"]}, {"verbs": ["w"]}]))]);
    }
}
