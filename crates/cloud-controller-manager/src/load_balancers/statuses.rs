//! What the statuses of Services were before. On the host datapath no annotation says whose address a status shows.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard},
};

use cloud_provider::{IngressAddress, Publish};

use super::decide::StatusOwner;

/// By Service UID, where there is anything to remember.
#[derive(Debug, Default)]
pub(super) struct StatusNotes(Mutex<HashMap<String, Note>>);

#[derive(Debug, Default, PartialEq, Eq)]
struct Note {
    /// The status is that of [`StatusOwner::Others`].
    is_of_others: bool,
    /// The addresses that this program last gave, until it takes them out of the status. The answer to that write may be lost
    /// and the watch be behind: then the status shows them after it was noted as empty.
    given: Vec<IngressAddress>,
    /// The addresses in the status of a Service that shared one once, where they came of its own object.
    of_own_object: Option<Vec<String>>,
}

impl StatusNotes {
    pub(super) fn note_owner(&self, service_uid: &str, owner: StatusOwner) {
        match owner {
            StatusOwner::Others => self.change(service_uid, |note| note.is_of_others = true),
            StatusOwner::AsBefore => {}
            StatusOwner::Ours => self.change(service_uid, |note| note.is_of_others = false),
        }
    }

    /// What this program does with the status, which shows this now.
    pub(super) fn note_publish(&self, service_uid: &str, publish: &Publish, shown: &[&str]) {
        match publish {
            Publish::Addresses(given) => self.change(service_uid, |note| note.given.clone_from(given)),
            // it is ours until it is seen empty; what comes then is another controller's, also if it is the same address
            Publish::Withdrawn if !shown.is_empty() => self.change(service_uid, |note| {
                note.is_of_others = false;
                note.given.clear();
            }),
            Publish::Withdrawn | Publish::NotOurs | Publish::Unchanged => {}
        }
    }

    /// Whether another controller wrote what the status shows.
    pub(super) fn is_of_others(&self, service_uid: &str, shown: &[&str]) -> bool {
        self.notes().get(service_uid).is_some_and(|note| {
            let is_given = |shown: &&str| note.given.contains(&IngressAddress::parse(shown));
            note.is_of_others && !shown.iter().any(is_given)
        })
    }

    /// The addresses in the status came of the Service's own object.
    pub(super) fn note_of_own_object(&self, service_uid: &str, shown: &[&str]) {
        let shown = shown.iter().map(|ip| (*ip).to_owned()).collect();
        self.change(service_uid, |note| note.of_own_object = Some(shown));
    }

    /// Whether the status shows still what came of the Service's own object.
    pub(super) fn is_of_own_object(&self, service_uid: &str, shown: &[&str]) -> bool {
        let notes = self.notes();
        let own = notes.get(service_uid).and_then(|note| note.of_own_object.as_ref());
        own.is_some_and(|own| own == shown)
    }

    /// The Service shares an address.
    pub(super) fn forget_own_object(&self, service_uid: &str) {
        self.change(service_uid, |note| note.of_own_object = None);
    }

    pub(super) fn forget(&self, service_uid: &str) {
        self.notes().remove(service_uid);
    }

    /// Every Service comes here with each decision, and of many there is nothing to remember: no note is kept of these.
    fn change(&self, service_uid: &str, change: impl FnOnce(&mut Note)) {
        let mut notes = self.notes();
        let mut note = notes.remove(service_uid).unwrap_or_default();
        change(&mut note);
        if note != Note::default() {
            notes.insert(service_uid.to_owned(), note);
        }
    }

    fn notes(&self) -> MutexGuard<'_, HashMap<String, Note>> {
        self.0.lock().expect("no panic while remembering")
    }
}

#[cfg(test)]
mod tests {
    use cloud_provider::{FINALIZER, LoadBalancers as _};
    use controller_kit::{Cache, ObjectKey, RawObject};
    use harvester_api::annotations;
    use k8s_openapi::api::core::v1::Service;
    use serde_json::{Value, json};

    use super::*;
    use crate::load_balancers::{Write, tests::denied};

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
        assert!(cloud.statuses.is_of_others("u", &[]), "it was empty");
        services.gone(&ObjectKey::new("shop", "web"), "u");
        assert!(!cloud.statuses.is_of_others("u", &[]));
    }

    /// A list named it in place of the one that was there.
    #[tokio::test]
    async fn the_status_of_a_service_is_forgotten_that_another_of_its_name_replaces() {
        let version = |uid: &str, version: &str| -> Service {
            serde_json::from_value(json!({
                "metadata": {"name": "web", "namespace": "shop", "uid": uid, "resourceVersion": version},
                "spec": {"type": "LoadBalancer", "ports": [{"port": 80, "nodePort": 30080}]}}))
            .unwrap()
        };
        let services = Cache::of([version("u", "1")]);
        let (cloud, nodes) = denied(&services);
        cloud.decide(&version("u", "1"), &nodes);
        services.wrote(version("u", "2"));
        assert!(cloud.statuses.is_of_others("u", &[]), "it is the same");
        services.wrote(version("v", "3"));
        assert!(!cloud.statuses.is_of_others("u", &[]));
    }

    /// The API server took the write, its answer was lost, and the watch is behind.
    #[tokio::test]
    async fn an_address_of_ours_goes_though_the_status_was_seen_empty_after_it_was_given() {
        let service = |shown: &Value| -> Service {
            serde_json::from_value(json!({
                "metadata": {"name": "web", "namespace": "shop", "uid": "u", "finalizers": [FINALIZER],
                    "annotations": {annotations::RECORDED_DATA_PATH: "host"}},
                "spec": {"type": "LoadBalancer", "ports": [{"port": 80, "nodePort": 30080}]},
                "status": {"loadBalancer": {"ingress": shown}}}))
            .unwrap()
        };
        let (empty, shows) = (service(&json!([])), service(&json!([{"ip": "10.0.0.9"}])));
        let services = Cache::of([empty.clone()]);
        let (cloud, nodes) = denied(&services);
        let Some(Write::Create { json: made, .. }) = cloud.decide(&empty, &nodes).write else {
            panic!("an object is made")
        };
        let harvester_says = |version: &str, status: &Value| {
            let mut json = made.clone();
            json["metadata"]["uid"] = "o".into();
            json["metadata"]["resourceVersion"] = version.into();
            json["status"] = status.clone();
            cloud.objects.wrote(RawObject::from_json(json).unwrap());
        };
        let published = |service: &Service| cloud.decide(service, &nodes).view.publish;

        harvester_says(
            "5",
            &json!({"allocatedAddress": {"ipPool": "lab", "ip": "10.0.0.9"}, "address": "10.0.0.9"}),
        );
        assert_eq!(published(&empty), Publish::Addresses(vec![IngressAddress::parse("10.0.0.9")]));
        harvester_says("6", &json!({"conditions": [{"type": "Ready", "status": "False"}]}));
        published(&empty);
        assert_eq!(published(&shows), Publish::Withdrawn);
        assert_eq!(published(&shows), Publish::Withdrawn, "the write failed");
        published(&empty);
        assert_eq!(published(&shows), Publish::Unchanged, "by now it is another controller's");
    }

    #[test]
    fn another_address_than_the_own_object_gave_is_not_its_own() {
        let notes = StatusNotes::default();
        assert!(!notes.is_of_own_object("u", &[]));
        notes.note_of_own_object("u", &["10.0.0.7"]);
        assert!(notes.is_of_own_object("u", &["10.0.0.7"]) && !notes.is_of_own_object("u", &["10.0.0.9"]));
        assert!(!notes.is_of_own_object("v", &["10.0.0.7"]));
        notes.forget("u");
        assert!(!notes.is_of_own_object("u", &["10.0.0.7"]));
    }

    #[test]
    fn a_fact_goes_alone_and_the_last_one_takes_the_note_along() {
        let notes = StatusNotes::default();
        let count = || notes.notes().len();
        let given = Publish::Addresses(vec![IngressAddress::parse("10.0.0.9")]);

        notes.note_owner("u", StatusOwner::Ours);
        notes.note_owner("u", StatusOwner::AsBefore);
        notes.note_publish("u", &Publish::Withdrawn, &["10.0.0.9"]);
        notes.forget_own_object("u");
        assert_eq!(count(), 0, "there was nothing to remember");

        notes.note_owner("u", StatusOwner::Others);
        notes.note_publish("u", &given, &[]);
        notes.note_of_own_object("u", &["10.0.0.7"]);
        assert!(notes.is_of_others("u", &["10.0.0.7"]) && !notes.is_of_others("u", &["10.0.0.9"]));
        notes.note_owner("u", StatusOwner::Ours);
        assert!(!notes.is_of_others("u", &["10.0.0.7"]) && notes.is_of_own_object("u", &["10.0.0.7"]));
        notes.forget_own_object("u");
        notes.note_owner("u", StatusOwner::Others);
        assert!(!notes.is_of_others("u", &["10.0.0.9"]), "it is remembered as given");
        notes.note_publish("u", &Publish::Withdrawn, &["10.0.0.9"]);
        assert_eq!(count(), 0);
    }
}
