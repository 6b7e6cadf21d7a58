//! The Services that share the address of another one.
//!
//! The Go program gives a secondary the address of its primary, and says so in a label. This program makes no secondary
//! yet, and it keeps the object of a primary while one is there (docs/contract/cloud-controller-manager.md#12.5).

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Mutex, MutexGuard},
};

use controller_kit::{Cache, ObjectKey};
use harvester_api::annotations;
use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;

use super::decide::ingress;
use crate::service_config::labelled_primary;

/// Secondaries by their primary.
#[derive(Debug, Default)]
pub(super) struct Secondaries(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    primary_of: HashMap<ObjectKey, ObjectKey>,
    secondaries_of: HashMap<ObjectKey, BTreeSet<ObjectKey>>,
}

impl Secondaries {
    /// Looks at the newest version of a Service.
    pub(super) fn update(&self, key: &ObjectKey, services: &Cache<Service>) {
        let primary = services.get(key).and_then(|service| primary_of(&service)).filter(|it| it != key);
        let mut state = self.state();
        if let Some(old) = state.primary_of.remove(key)
            && let Some(all) = state.secondaries_of.get_mut(&old)
        {
            all.remove(key);
            if all.is_empty() {
                state.secondaries_of.remove(&old);
            }
        }
        if let Some(primary) = primary {
            state.secondaries_of.entry(primary.clone()).or_default().insert(key.clone());
            state.primary_of.insert(key.clone(), primary);
        }
    }

    pub(super) fn of(&self, primary: &ObjectKey) -> Vec<ObjectKey> {
        self.state().secondaries_of.get(primary).into_iter().flatten().cloned().collect()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no panic while indexing")
    }
}

/// The Service whose address `service` was given. The annotation is only the user's request, which anybody may make of
/// any Service; the label is the Go program's answer to it, and it stays when the Service gets another type. Such a
/// Service uses the address while kube-vip in the guest may announce it: kube-vip passes over the change of the type. A
/// Service that is being deleted is announced until it is gone.
pub(super) fn primary_of(service: &Service) -> Option<ObjectKey> {
    let is_load_balancer = service.spec.as_ref()?.type_.as_deref() == Some("LoadBalancer");
    let announcer = service.annotations().get(annotations::KUBE_VIP_VIP_HOST);
    let may_be_announced = announcer.is_some_and(|node| !node.is_empty()) || !ingress(service).is_empty();
    (is_load_balancer || may_be_announced).then(|| labelled_primary(service))?
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    const KEY: &str = "cloudprovider.harvesterhci.io/primary-service";

    fn service(spec_type: &str, annotation: Option<&str>, label: Option<&str>) -> Service {
        let map = |value: Option<&str>| value.map_or(Value::Null, |value| json!({KEY: value}));
        let metadata = json!({"namespace": "shop", "name": "api", "resourceVersion": "1", "uid": "2",
            "annotations": map(annotation), "labels": map(label)});
        serde_json::from_value(json!({"metadata": metadata, "spec": {"type": spec_type}})).unwrap()
    }

    fn leaving(mut service: Service) -> Service {
        service.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        service
    }

    fn announced(mut service: Service) -> Service {
        service.annotations_mut().insert(annotations::KUBE_VIP_VIP_HOST.into(), "worker-1".into());
        service
    }

    #[rstest]
    #[case::by_annotation(service("LoadBalancer", Some("shop/web"), None), false)]
    #[case::by_label(service("LoadBalancer", None, Some("shop.web")), true)]
    #[case::by_both(service("LoadBalancer", Some("shop/web"), Some("shop.web")), true)]
    // its kube-vip announces the address until it is gone
    #[case::being_deleted(leaving(service("LoadBalancer", None, Some("shop.web"))), true)]
    // docs/contract/cloud-controller-manager.md#L15: in Go the label stays, and the primary can never be deleted
    #[case::of_another_type(service("ClusterIP", Some("shop/web"), Some("shop.web")), false)]
    #[case::of_another_type_and_announced(announced(service("ClusterIP", None, Some("shop.web"))), true)]
    #[case::announced_without_label(announced(service("ClusterIP", Some("shop/web"), None)), false)]
    #[case::primary_again(service("LoadBalancer", None, Some("")), false)]
    #[case::by_nothing(service("LoadBalancer", None, None), false)]
    fn a_service_is_a_secondary_while_kube_vip_may_announce_its_address(
        #[case] service: Service,
        #[case] expected: bool,
    ) {
        assert_eq!(primary_of(&service).is_some(), expected);
    }

    #[test]
    fn secondaries_are_found_by_their_primary_until_they_go() {
        let (services, secondaries) = (Cache::empty(), Secondaries::default());
        let (web, api) = (ObjectKey::new("shop", "web"), ObjectKey::new("shop", "api"));
        services.wrote(service("LoadBalancer", None, Some("shop.web")));
        secondaries.update(&api, &services);
        assert_eq!(secondaries.of(&web), std::slice::from_ref(&api));
        services.gone(&api, "2");
        secondaries.update(&api, &services);
        assert_eq!(secondaries.of(&web), []);
        assert!(secondaries.state().secondaries_of.is_empty());
    }
}
