//! Which webhooks a write concerns.

use serde_json::Value;
use sim_apimachinery::selector::LabelSelector;

use super::Write;
use crate::kind::Behaviour;
use crate::server::{ApiServer, Ask};
use crate::store::Key;

/// A webhook is to be asked, about the object in this version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Matched {
    pub(super) version: usize,
}

/// Whether a webhook wants to know of a write.
pub(super) fn matches(server: &ApiServer, ask: &Ask, webhook: &Value, write: Write<'_>) -> Option<Matched> {
    let exact = webhook["matchPolicy"] == "Exact";
    let rules = webhook["rules"].as_array()?;
    let version = rules.iter().find_map(|rule| rule_matches(ask, rule, write, exact))?;
    let selector = LabelSelector::of_object(&webhook["objectSelector"]);
    let wanted = selector.is_everything()
        || [write.old, write.new].into_iter().flatten().any(|object| selector.matches(object));
    (wanted && namespace_matches(server, ask, webhook, write)).then_some(Matched { version })
}

fn contains(list: &Value, text: &str) -> bool {
    list.as_array().into_iter().flatten().any(|entry| entry == "*" || entry == text)
}

fn rule_matches(ask: &Ask, rule: &Value, write: Write<'_>, exact: bool) -> Option<usize> {
    let scope = match rule["scope"].as_str() {
        Some("Cluster") => !ask.kind.namespaced,
        Some("Namespaced") => ask.kind.namespaced,
        _ => true,
    };
    let fits = scope
        && contains(&rule["operations"], write.operation.as_str())
        && contains(&rule["apiGroups"], &ask.kind.group)
        && resource_matches(&rule["resources"], &ask.kind.plural, ask.subresource());
    if !fits {
        return None;
    }
    let served = |version: usize| contains(&rule["apiVersions"], &ask.kind.api(version).version);
    // the same object in another version is the same object
    let others = (0..ask.kind.versions.len()).filter(|_| !exact);
    std::iter::once(ask.version).chain(others).find(|version| served(*version))
}

fn resource_matches(resources: &Value, plural: &str, subresource: &str) -> bool {
    resources.as_array().into_iter().flatten().filter_map(Value::as_str).any(|entry| {
        let (resource, sub) = entry.split_once('/').unwrap_or((entry, ""));
        (resource == "*" || resource == plural) && (sub == subresource || (sub == "*" && !entry.is_empty()))
    })
}

fn namespace_matches(server: &ApiServer, ask: &Ask, webhook: &Value, write: Write<'_>) -> bool {
    let selector = LabelSelector::of_object(&webhook["namespaceSelector"]);
    if selector.is_everything() {
        return true;
    }
    if ask.kind.behaviour == Behaviour::Namespace {
        return write.new.or(write.old).is_some_and(|namespace| selector.matches(namespace));
    }
    if !ask.kind.namespaced {
        return true;
    }
    let namespace = server.0.store.get("namespaces", &Key::new("", ask.namespace()));
    namespace.is_some_and(|namespace| selector.matches(&namespace.value))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case(&["pods"], "pods", "", true)]
    #[case(&["pods"], "pods", "status", false)]
    #[case(&["pods/status"], "pods", "status", true)]
    #[case(&["pods/*"], "pods", "status", true)]
    #[case(&["*"], "pods", "", true)]
    #[case(&["*"], "pods", "status", false)]
    #[case(&["*/*"], "pods", "status", true)]
    #[case(&["services", "pods"], "pods", "", true)]
    fn a_rule_names_resources_and_subresources(
        #[case] resources: &[&str],
        #[case] plural: &str,
        #[case] subresource: &str,
        #[case] expected: bool,
    ) {
        assert_eq!(resource_matches(&json!(resources), plural, subresource), expected);
    }
}
