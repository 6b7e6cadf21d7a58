//! The two webhook configurations, which tell the API server to ask us.

use serde_json::{Value, json};

/// Name of both configurations, and of our Service.
pub(super) const NAME: &str = "harvester-load-balancer-webhook";

/// Where the API server finds us.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// The chart's Service in this namespace.
    Service,
    /// An address of our own, such as `https://127.0.0.1:8443`: for API servers outside of the cluster network.
    Url(String),
}

/// Which of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Validating,
    Mutating,
}

impl Kind {
    fn path(self) -> &'static str {
        match self {
            Self::Validating => "/v1/webhook/validation",
            Self::Mutating => "/v1/webhook/mutation",
        }
    }

    /// A new, empty configuration.
    pub(super) fn blank(self) -> Value {
        let kind = match self {
            Self::Validating => "ValidatingWebhookConfiguration",
            Self::Mutating => "MutatingWebhookConfiguration",
        };
        json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": NAME}})
    }

    /// Our entry, with every default written out, so that what the server stores compares equal.
    fn entry(self, namespace: &str, address: &Address, bundle: &str) -> Value {
        let client = match address {
            Address::Service => {
                json!({"service": {"namespace": namespace, "name": NAME, "path": self.path(), "port": 443}})
            }
            Address::Url(url) => json!({"url": format!("{}{}", url.trim_end_matches('/'), self.path())}),
        };
        let rule = |resource: &str, scope: &str, operations: &[&str]| {
            json!({
                "apiGroups": ["loadbalancer.harvesterhci.io"], "apiVersions": ["v1beta1"],
                "resources": [resource], "scope": scope, "operations": operations,
            })
        };
        let (role, policy, pool_operations): (_, _, &[&str]) = match self {
            Self::Validating => ("validator", "Fail", &["CREATE", "UPDATE", "DELETE"]),
            Self::Mutating => ("mutator", "Ignore", &["CREATE", "UPDATE"]),
        };
        let mut entry = json!({
            "name": format!("{role}.{namespace}.{NAME}"),
            "clientConfig": client,
            "rules": [
                rule("loadbalancers", "Namespaced", &["CREATE", "UPDATE"]),
                rule("ippools", "Cluster", pool_operations),
            ],
            "failurePolicy": policy,
            "matchPolicy": "Equivalent",
            "namespaceSelector": {},
            "objectSelector": {},
            "sideEffects": "None",
            "timeoutSeconds": 10,
            "admissionReviewVersions": ["v1", "v1beta1"],
        });
        let bundle = k8s_openapi::ByteString(bundle.as_bytes().to_vec());
        entry["clientConfig"]["caBundle"] = serde_json::to_value(bundle).expect("bytes always become text");
        if self == Self::Mutating {
            entry["reinvocationPolicy"] = "Never".into();
        }
        entry
    }

    /// Makes our entry in `configuration` what it should be. Entries of other names stay.
    pub(super) fn set_entry(
        self,
        configuration: &mut Value,
        namespace: &str,
        address: &Address,
        bundle: &str,
    ) {
        let entry = self.entry(namespace, address, bundle);
        let entries = &mut configuration["webhooks"];
        match entries.as_array_mut() {
            Some(entries) => match entries.iter_mut().find(|found| found["name"] == entry["name"]) {
                Some(found) => *found = entry,
                None => entries.push(entry),
            },
            None => *entries = json!([entry]),
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::service(
        Address::Service,
        json!({"service": {"namespace": "harvester-system", "name": NAME, "path": "/v1/webhook/validation", "port": 443}, "caBundle": "Q0E="}))]
    #[case::url(
        Address::Url("https://127.0.0.1:8443/".to_owned()),
        json!({"url": "https://127.0.0.1:8443/v1/webhook/validation", "caBundle": "Q0E="}))]
    fn the_validator_is_registered_as_the_contract_says(#[case] address: Address, #[case] client: Value) {
        let mut configuration = Kind::Validating.blank();
        Kind::Validating.set_entry(&mut configuration, "harvester-system", &address, "CA");
        let rule = |resource: &str, scope: &str, operations: &[&str]| {
            json!({
            "apiGroups": ["loadbalancer.harvesterhci.io"], "apiVersions": ["v1beta1"], "resources": [resource], "scope": scope, "operations": operations})
        };
        assert_eq!(
            configuration["webhooks"],
            json!([{
                "name": "validator.harvester-system.harvester-load-balancer-webhook",
                "clientConfig": client,
                "rules": [rule("loadbalancers", "Namespaced", &["CREATE", "UPDATE"]), rule("ippools", "Cluster", &["CREATE", "UPDATE", "DELETE"])],
                "failurePolicy": "Fail", "matchPolicy": "Equivalent", "namespaceSelector": {}, "objectSelector": {},
                "sideEffects": "None", "timeoutSeconds": 10, "admissionReviewVersions": ["v1", "v1beta1"],
            }])
        );
    }

    #[test]
    fn foreign_entries_stay_and_ours_is_replaced() {
        let mut configuration = Kind::Mutating.blank();
        configuration["webhooks"] =
            json!([{"name": "other"}, {"name": "mutator.harvester-system.harvester-load-balancer-webhook"}]);
        Kind::Mutating.set_entry(&mut configuration, "harvester-system", &Address::Service, "CA");
        let webhooks = configuration["webhooks"].as_array().unwrap();
        assert_eq!((webhooks.len(), &webhooks[0]), (2, &json!({"name": "other"})));
        assert_eq!(
            (&webhooks[1]["failurePolicy"], &webhooks[1]["reinvocationPolicy"]),
            (&json!("Ignore"), &json!("Never"))
        );
        let before = configuration.clone();
        Kind::Mutating.set_entry(&mut configuration, "harvester-system", &Address::Service, "CA");
        assert_eq!(configuration, before);
    }
}
