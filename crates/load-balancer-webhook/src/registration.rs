//! The objects that tell the API server where the webhook is and which certificates to trust.
//!
//! A [`Registration`] names one object and the webhook's part of it. The webhook registers itself in two webhook
//! configurations and in the conversion stanza of LoadBalancer's definition.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ApiResource, DynamicObject};
use serde_json::{Value, json};

/// Name of both configurations, and of the webhook's Service.
pub(crate) const NAME: &str = "harvester-load-balancer-webhook";
/// How long an API server waits for an answer.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(10);

/// The address by which the API server calls the webhook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// The chart's Service in this namespace.
    Service,
    /// An address of its own, such as `https://127.0.0.1:8443`: for API servers outside of the cluster network.
    Url(String),
}

/// Makes the webhook's part of an object true for a CA bundle, and leaves the other parts as they are.
pub type Set = Arc<dyn Fn(&mut Value, &str) + Send + Sync>;

/// Where the webhook's part of an object says whom to call and trust; null where it says nothing.
pub type Client = Arc<dyn Fn(&Value) -> Value + Send + Sync>;

/// A cluster-scoped object that must name the webhook and trust its certificates.
#[derive(Clone)]
pub struct Registration {
    pub resource: ApiResource,
    pub name: String,
    pub missing: Missing,
    pub set: Set,
    pub client: Client,
}

/// The step to take when the object is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    Create,
    /// Another program creates it, a chart for instance.
    Wait,
}

/// A write that makes a registration true.
#[derive(Clone, Debug, PartialEq)]
pub enum Write {
    Create(Box<DynamicObject>),
    Replace(Box<DynamicObject>),
}

impl fmt::Debug for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.resource.kind, self.name)
    }
}

impl Registration {
    /// The write that makes the object true, or nothing where it is or where another program creates it.
    pub fn write(&self, found: Option<&DynamicObject>, bundle: &str) -> Option<Write> {
        let Some(found) = found else {
            let mut object = DynamicObject::new(&self.name, &self.resource);
            object.data = json!({});
            (self.set)(&mut object.data, bundle);
            return (self.missing == Missing::Create).then(|| Write::Create(Box::new(object)));
        };
        let mut data = found.data.clone();
        (self.set)(&mut data, bundle);
        (data != found.data).then(|| Write::Replace(Box::new(DynamicObject { data, ..found.clone() })))
    }
}

/// Everything that names the webhook.
pub fn all(namespace: &str, address: &Address) -> Vec<Registration> {
    webhooks(namespace, address).into_iter().chain([conversion(namespace, address)]).collect()
}

/// The definition of LoadBalancer, which a chart installs: the Go program wrote the same stanza, so either takes over from
/// the other.
fn conversion(namespace: &str, address: &Address) -> Registration {
    let client = client(namespace, address, "/v1/webhook/conversion");
    let set = move |data: &mut Value, bundle: &str| {
        let mut client = client.clone();
        client["caBundle"] = base64(bundle);
        data["spec"]["conversion"] = json!({"strategy": "Webhook",
            "webhook": {"clientConfig": client, "conversionReviewVersions": ["v1"]}});
    };
    Registration {
        resource: ApiResource::erase::<CustomResourceDefinition>(&()),
        name: "loadbalancers.loadbalancer.harvesterhci.io".to_owned(),
        missing: Missing::Wait,
        set: Arc::new(set),
        client: Arc::new(|data| data["spec"]["conversion"]["webhook"]["clientConfig"].clone()),
    }
}

fn client(namespace: &str, address: &Address, path: &str) -> Value {
    match address {
        Address::Service => {
            json!({"service": {"namespace": namespace, "name": NAME, "path": path, "port": 443}})
        }
        Address::Url(url) => json!({"url": format!("{}{path}", url.trim_end_matches('/'))}),
    }
}

fn base64(bundle: &str) -> Value {
    let bundle = k8s_openapi::ByteString(bundle.as_bytes().to_vec());
    serde_json::to_value(bundle).expect("bytes always become text")
}

/// Both webhook configurations.
pub fn webhooks(namespace: &str, address: &Address) -> Vec<Registration> {
    [WebhookType::Validating, WebhookType::Mutating]
        .map(|webhook| {
            let (namespace, address) = (namespace.to_owned(), address.clone());
            let name = webhook.name(&namespace);
            let client = move |data: &Value| {
                let entries = data["webhooks"].as_array().into_iter().flatten();
                let entry = entries.into_iter().find(|entry| entry["name"] == name);
                entry.map_or(Value::Null, |entry| entry["clientConfig"].clone())
            };
            let set =
                move |data: &mut Value, bundle: &str| webhook.set_entry(data, &namespace, &address, bundle);
            let resource = match webhook {
                WebhookType::Validating => ApiResource::erase::<ValidatingWebhookConfiguration>(&()),
                WebhookType::Mutating => ApiResource::erase::<MutatingWebhookConfiguration>(&()),
            };
            Registration {
                resource,
                name: NAME.to_owned(),
                missing: Missing::Create,
                set: Arc::new(set),
                client: Arc::new(client),
            }
        })
        .into()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WebhookType {
    Validating,
    Mutating,
}

impl WebhookType {
    fn path(self) -> &'static str {
        match self {
            Self::Validating => "/v1/webhook/validation",
            Self::Mutating => "/v1/webhook/mutation",
        }
    }

    /// Name of the webhook's entry.
    fn name(self, namespace: &str) -> String {
        let role = match self {
            Self::Validating => "validator",
            Self::Mutating => "mutator",
        };
        format!("{role}.{namespace}.{NAME}")
    }

    /// The webhook's entry, with every default written out, so that the object compares equal once it is stored.
    fn entry(self, namespace: &str, address: &Address, bundle: &str) -> Value {
        let rule = |resource: &str, scope: &str, operations: &[&str]| {
            json!({
                "apiGroups": ["loadbalancer.harvesterhci.io"], "apiVersions": ["v1beta1"],
                "resources": [resource], "scope": scope, "operations": operations,
            })
        };
        let (policy, pool_operations): (_, &[&str]) = match self {
            Self::Validating => ("Fail", &["CREATE", "UPDATE", "DELETE"]),
            Self::Mutating => ("Ignore", &["CREATE", "UPDATE"]),
        };
        let mut entry = json!({
            "name": self.name(namespace),
            "clientConfig": client(namespace, address, self.path()),
            "rules": [
                rule("loadbalancers", "Namespaced", &["CREATE", "UPDATE"]),
                rule("ippools", "Cluster", pool_operations),
            ],
            "failurePolicy": policy,
            "matchPolicy": "Equivalent",
            "namespaceSelector": {},
            "objectSelector": {},
            "sideEffects": "None",
            "timeoutSeconds": TIMEOUT.as_secs(),
            "admissionReviewVersions": ["v1", "v1beta1"],
        });
        entry["clientConfig"]["caBundle"] = base64(bundle);
        if self == Self::Mutating {
            entry["reinvocationPolicy"] = "Never".into();
        }
        entry
    }

    /// Sets the webhook's entry in a configuration. Entries of other names stay.
    fn set_entry(self, configuration: &mut Value, namespace: &str, address: &Address, bundle: &str) {
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
        let mut configuration = json!({});
        WebhookType::Validating.set_entry(&mut configuration, "harvester-system", &address, "CA");
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
    fn entries_of_other_names_stay_and_the_webhooks_is_replaced() {
        let mut configuration = json!({});
        configuration["webhooks"] =
            json!([{"name": "other"}, {"name": "mutator.harvester-system.harvester-load-balancer-webhook"}]);
        WebhookType::Mutating.set_entry(&mut configuration, "harvester-system", &Address::Service, "CA");
        let webhooks = configuration["webhooks"].as_array().unwrap();
        assert_eq!((webhooks.len(), &webhooks[0]), (2, &json!({"name": "other"})));
        assert_eq!(
            (&webhooks[1]["failurePolicy"], &webhooks[1]["reinvocationPolicy"]),
            (&json!("Ignore"), &json!("Never"))
        );
        let before = configuration.clone();
        WebhookType::Mutating.set_entry(&mut configuration, "harvester-system", &Address::Service, "CA");
        assert_eq!(configuration, before);
    }

    fn stored(resource: &ApiResource, name: &str, data: Value) -> DynamicObject {
        DynamicObject { data, ..DynamicObject::new(name, resource) }
    }

    #[test]
    fn a_configuration_is_created_then_left_alone_and_corrected_when_it_differs() {
        for registration in webhooks("harvester-system", &Address::Service) {
            let Some(Write::Create(created)) = registration.write(None, "CA") else { panic!("not created") };
            assert_eq!(created.types.as_ref().unwrap().kind, registration.resource.kind);
            assert_eq!(created.metadata.name.as_deref(), Some(NAME));
            assert_eq!(registration.write(Some(&created), "CA"), None);
            let Some(Write::Replace(renewed)) = registration.write(Some(&created), "CB") else {
                panic!("not replaced")
            };
            assert_eq!(renewed.data["webhooks"][0]["clientConfig"]["caBundle"], "Q0I=");
            let mut emptied = created.clone();
            emptied.data = json!({"webhooks": []});
            assert_eq!(registration.write(Some(&emptied), "CA"), Some(Write::Replace(created)));
        }
    }

    // docs/contract/load-balancer.md#9.5
    #[test]
    fn the_definition_that_a_chart_made_names_the_webhook_for_conversion_and_keeps_the_rest() {
        let registration = conversion("harvester-system", &Address::Service);
        assert_eq!(registration.write(None, "CA"), None, "a chart makes it");
        let spec = json!({"group": "loadbalancer.harvesterhci.io", "conversion": {"strategy": "None"}});
        let found = stored(&registration.resource, &registration.name, json!({"spec": spec}));
        let Some(Write::Replace(object)) = registration.write(Some(&found), "CA") else {
            panic!("not replaced")
        };
        let service = json!({"namespace": "harvester-system", "name": NAME, "path": "/v1/webhook/conversion", "port": 443});
        assert_eq!(
            object.data["spec"],
            json!({"group": "loadbalancer.harvesterhci.io", "conversion": {"strategy": "Webhook", "webhook": {
                "clientConfig": {"service": service, "caBundle": "Q0E="}, "conversionReviewVersions": ["v1"]}}})
        );
        assert_eq!(registration.write(Some(&object), "CA"), None);
    }
}
