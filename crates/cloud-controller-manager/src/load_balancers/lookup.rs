//! The LoadBalancer object of a Service: by annotation, then by labels, then by the computed name
//! (docs/contract/addresses.md#4).
//!
//! The Go program's objects carry labels and a name that was computed from cluster, namespace, name and UID of the
//! Service; it made them under the name `kubernetes` until somebody gave the cluster a name of its own.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Mutex, MutexGuard},
};

use controller_kit::ObjectKey;
use harvester_api::{LoadBalancer, annotations, labels};
use kube::ResourceExt;

use super::object::Identity;
use crate::cluster::GuestCluster;

/// Names of objects by the Service that they say they are for.
#[derive(Debug, Default)]
pub(super) struct Index(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// By the name of an object.
    entries: HashMap<String, Entry>,
    by_uid: HashMap<String, BTreeSet<String>>,
    by_service: HashMap<ObjectKey, BTreeSet<String>>,
}

/// The Service of an object, by annotation and by labels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Entry {
    uid: Option<String>,
    service: Option<ObjectKey>,
}

impl Entry {
    pub(super) fn of(object: &LoadBalancer) -> Self {
        let uid = object.annotations().get(annotations::SERVICE_UID).cloned();
        Self { uid, service: labelled_service(object) }
    }
}

/// The Service that an object is for, by its labels.
pub(super) fn labelled_service(object: &LoadBalancer) -> Option<ObjectKey> {
    let label = |key: &str| object.labels().get(key).filter(|text| !text.is_empty()).cloned();
    Some(ObjectKey::new(label(labels::SERVICE_NAMESPACE)?, label(labels::SERVICE_NAME)?))
}

impl Index {
    /// The object `name` is there with this entry; `None`: it is gone.
    pub(super) fn set(&self, name: &str, entry: Option<Entry>) {
        let mut state = self.state();
        let State { entries, by_uid, by_service } = &mut *state;
        if let Some(old) = entries.remove(name) {
            remove(by_uid, old.uid.as_ref(), name);
            remove(by_service, old.service.as_ref(), name);
        }
        if let Some(entry) = entry {
            if let Some(uid) = &entry.uid {
                by_uid.entry(uid.clone()).or_default().insert(name.to_owned());
            }
            if let Some(service) = &entry.service {
                by_service.entry(service.clone()).or_default().insert(name.to_owned());
            }
            entries.insert(name.to_owned(), entry);
        }
    }

    /// The object with this UID in its annotation; of several the first by name.
    pub(super) fn by_uid(&self, uid: &str) -> Option<String> {
        self.state().by_uid.get(uid).and_then(|names| names.first().cloned())
    }

    /// The objects whose labels name this Service.
    pub(super) fn by_service(&self, service: &ObjectKey) -> Vec<String> {
        self.state().by_service.get(service).into_iter().flatten().cloned().collect()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no panic while indexing")
    }
}

fn remove<K: Eq + std::hash::Hash>(names_of: &mut HashMap<K, BTreeSet<String>>, key: Option<&K>, name: &str) {
    let Some(key) = key else { return };
    if let Some(names) = names_of.get_mut(key) {
        names.remove(name);
        if names.is_empty() {
            names_of.remove(key);
        }
    }
}

/// A live Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LiveService {
    pub(super) key: ObjectKey,
    pub(super) uid: String,
}

/// Whether `object`, whose labels name `service`, is the object of that Service although its annotation does not say
/// so. `is_of_another`: the object was made for another live Service.
pub(super) fn belongs(
    object: &LoadBalancer,
    service: &LiveService,
    ours: &Identity,
    is_of_another: impl Fn(&LoadBalancer) -> bool,
) -> bool {
    let notes = object.annotations();
    if was_made_for(object, service) {
        return true;
    }
    // one that goes frees its address: nothing to adopt
    if object.metadata.deletion_timestamp.is_some() {
        return false;
    }
    match notes.get(annotations::CLUSTER_UID) {
        Some(uid) => ours.cluster_uid.as_ref() == Some(uid) && !is_of_another(object),
        None => {
            let cluster = object.labels().get(labels::CLUSTER);
            !ours.cluster.is_anonymous()
                && cluster == Some(&ours.cluster.label_value())
                && !is_of_another(object)
        }
    }
}

/// Whether the object's name was computed for this Service, whatever name the cluster had: the digest holds the UID and
/// cannot be met by chance.
pub(super) fn was_made_for(object: &LoadBalancer, service: &LiveService) -> bool {
    let annotated = object.annotations().get(annotations::LB_CLUSTER);
    let labelled = object.labels().get(labels::CLUSTER);
    let former = annotated.into_iter().chain(labelled).map(|name| GuestCluster::new(name));
    let name = object.name_any();
    former.chain([GuestCluster::default_name()]).any(|cluster| computed(&cluster, service) == name)
}

/// The name that the object of a Service has in this cluster.
pub(super) fn computed(cluster: &GuestCluster, service: &LiveService) -> String {
    let LiveService { key, uid } = service;
    cluster.load_balancer_name(&key.namespace, &key.name, uid)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    fn entry(uid: &str, service: &str) -> Option<Entry> {
        Some(Entry { uid: Some(uid.into()), service: Some(ObjectKey::new("shop", service)) })
    }

    #[test]
    fn an_object_is_found_by_its_service_until_it_is_gone() {
        let (index, web) = (Index::default(), ObjectKey::new("shop", "web"));
        index.set("b", entry("1", "web"));
        index.set("a", entry("1", "web"));
        assert_eq!(index.by_uid("1").as_deref(), Some("a"));
        assert_eq!(index.by_service(&web), ["a", "b"]);
        index.set("a", None);
        assert_eq!(index.by_uid("1").as_deref(), Some("b"));
        index.set("b", entry("2", "api"));
        assert_eq!((index.by_uid("1"), index.by_uid("2").as_deref()), (None, Some("b")));
        assert_eq!(index.by_service(&web), Vec::<String>::new());
        index.set("b", None);
        assert!(index.state().by_uid.is_empty() && index.state().by_service.is_empty());
    }

    fn service() -> LiveService {
        LiveService { key: ObjectKey::new("shop", "web"), uid: "s1".into() }
    }

    fn made_under(cluster: &str) -> String {
        computed(&GuestCluster::new(cluster), &service())
    }

    // docs/contract/addresses.md#4; every object's labels name the Service
    #[rstest]
    // the Go program, before the cluster had a name
    #[case::made_under_kubernetes(made_under("kubernetes"), json!({}), "kubernetes", "blue", true)]
    #[case::made_under_a_former_name(made_under("green"), json!({}), "green", "blue", true)]
    #[case::made_under_a_former_name_while_nameless(made_under("green"), json!({}), "green", "kubernetes", true)]
    // a Service that was made again, or restored from a backup, has a new UID
    #[case::labelled_by_this_cluster("blue-shop-web-0".into(), json!({}), "blue", "blue", true)]
    #[case::labelled_by_another_cluster("green-shop-web-0".into(), json!({}), "green", "blue", false)]
    #[case::labelled_by_nobody_in_particular("kubernetes-shop-web-0".into(), json!({}), "kubernetes", "kubernetes", false)]
    #[case::labelled_by_nobody_in_particular_before("kubernetes-shop-web-0".into(), json!({}), "kubernetes", "blue", false)]
    #[case::of_another_live_service("of-another".into(), json!({}), "blue", "blue", false)]
    #[case::of_this_cluster_by_uid("x".into(), json!({"cluster-uid": "c1", "service-uid": "gone"}), "green", "blue", true)]
    #[case::of_another_cluster_by_uid("x".into(), json!({"cluster-uid": "c2", "service-uid": "s9"}), "blue", "blue", false)]
    fn an_object_without_our_annotation_belongs_to_a_service_by_name_or_labels(
        #[case] name: String,
        #[case] notes: Value,
        #[case] label: &str,
        #[case] cluster: &str,
        #[case] expected: bool,
    ) {
        let notes = notes.as_object().unwrap().iter();
        let notes: serde_json::Map<_, _> = notes
            .map(|(key, value)| (format!("cloudprovider.harvesterhci.io/{key}"), value.clone()))
            .collect();
        let mut object: LoadBalancer = serde_json::from_value(json!({"spec": {}, "metadata": {"name": name,
            "annotations": notes, "labels": {labels::CLUSTER: label, labels::SERVICE_NAMESPACE: "shop",
                labels::SERVICE_NAME: "web"}}}))
        .unwrap();
        let ours = Identity {
            cluster: GuestCluster::new(cluster),
            cluster_uid: Some("c1".to_owned()),
            management_network: None,
        };
        let adopted =
            |object: &LoadBalancer| belongs(object, &service(), &ours, |it| it.name_any() == "of-another");
        assert_eq!(adopted(&object), expected);
        object.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        assert!(!adopted(&object) || was_made_for(&object, &service()), "what goes is not adopted");
    }
}
