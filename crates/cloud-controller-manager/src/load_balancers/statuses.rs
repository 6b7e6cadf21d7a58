//! What the statuses of Services were before. On the host datapath no annotation says whose address a status shows.

use std::{
    collections::{HashMap, HashSet},
    sync::{Mutex, MutexGuard},
};

use super::decide::EmptyStatus;

/// By Service UID.
#[derive(Debug, Default)]
pub(super) struct StatusNotes {
    /// The status was empty, and got nothing of this program since.
    emptied: Mutex<HashSet<String>>,
    /// What the status of a Service that shared an address once showed when its own object had all of that.
    own: Mutex<HashMap<String, Vec<String>>>,
}

impl StatusNotes {
    pub(super) fn note(&self, service_uid: &str, status: EmptyStatus) {
        match status {
            EmptyStatus::Noted => drop(self.emptied().insert(service_uid.to_owned())),
            EmptyStatus::AsBefore => {}
            EmptyStatus::Forgotten => drop(self.emptied().remove(service_uid)),
        }
    }

    /// What the status shows now, somebody else wrote.
    pub(super) fn is_of_others(&self, service_uid: &str) -> bool {
        self.emptied().contains(service_uid)
    }

    /// The Service's own object has all that its status shows.
    pub(super) fn note_own(&self, service_uid: &str, shown: &[&str]) {
        let shown = shown.iter().map(|ip| (*ip).to_owned()).collect();
        self.own().insert(service_uid.to_owned(), shown);
    }

    /// Whether the Service's own object had all that its status shows still.
    pub(super) fn was_own(&self, service_uid: &str, shown: &[&str]) -> bool {
        self.own().get(service_uid).is_some_and(|own| own == shown)
    }

    /// The Service shares an address.
    pub(super) fn forget_own(&self, service_uid: &str) {
        self.own().remove(service_uid);
    }

    pub(super) fn forget(&self, service_uid: &str) {
        self.emptied().remove(service_uid);
        self.forget_own(service_uid);
    }

    fn emptied(&self) -> MutexGuard<'_, HashSet<String>> {
        self.emptied.lock().expect("no panic while remembering")
    }

    fn own(&self) -> MutexGuard<'_, HashMap<String, Vec<String>>> {
        self.own.lock().expect("no panic while remembering")
    }
}

#[cfg(test)]
mod tests {
    use cloud_provider::LoadBalancers as _;
    use controller_kit::{Cache, ObjectKey};
    use k8s_openapi::api::core::v1::Service;
    use serde_json::json;

    use super::*;
    use crate::load_balancers::tests::denied;

    /// One without finalizer is not cleaned up.
    #[tokio::test]
    async fn the_status_of_a_service_is_remembered_until_that_is_gone() {
        let service: Service = serde_json::from_value(json!({
            "metadata": {"name": "web", "namespace": "shop", "uid": "u"},
            "spec": {"type": "LoadBalancer", "ports": [{"port": 80, "nodePort": 30080}]}}))
        .unwrap();
        let services = Cache::of([service.clone()]);
        let (cloud, nodes) = denied(&services);
        assert!(cloud.decide(&service, &nodes).write.is_some());
        assert!(cloud.statuses.is_of_others("u"), "it was empty");
        services.gone(&ObjectKey::new("shop", "web"), "u");
        assert!(!cloud.statuses.is_of_others("u"));
    }

    #[test]
    fn another_address_than_the_own_object_gave_is_not_its_own() {
        let notes = StatusNotes::default();
        assert!(!notes.was_own("u", &[]));
        notes.note_own("u", &["10.0.0.7"]);
        assert!(notes.was_own("u", &["10.0.0.7"]) && !notes.was_own("u", &["10.0.0.9"]));
        assert!(!notes.was_own("v", &["10.0.0.7"]));
        notes.forget("u");
        assert!(!notes.was_own("u", &["10.0.0.7"]));
    }
}
