//! The LoadBalancer object of a Service: by annotations, by the computed name, by labels (docs/contract/addresses.md#4).
//!
//! Other tenants may write objects in the same namespace of Harvester, with any annotation: the order of [`Evidence`]
//! keeps a Service on the object that it has.
//!
//! The Go program's objects carry labels and a name that was computed from cluster, namespace, name and UID of the
//! Service; it made them under the name `kubernetes` until somebody gave the cluster a name of its own.

use std::{
    collections::{BTreeSet, HashMap},
    fmt,
    sync::{Mutex, MutexGuard},
};

use controller_kit::ObjectKey;
use guest_vms::is_uid;
use harvester_api::{LoadBalancer, annotations, labels};
use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;

use super::{
    decide::{allocated, ingress, is_leased, status_address},
    object::{ClusterIdentity, secondaries_in},
    sharing::normal,
};
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
    /// By the prefix of a secondary's listeners.
    by_secondary: HashMap<String, BTreeSet<String>>,
    by_address: HashMap<String, BTreeSet<String>>,
}

/// The Service of an object, by annotation and by labels, the secondaries in its listeners, and its addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Entry {
    uid: Option<String>,
    service: Option<ObjectKey>,
    secondaries: BTreeSet<String>,
    addresses: BTreeSet<String>,
}

impl Entry {
    pub(super) fn of(object: &LoadBalancer) -> Self {
        // anybody may write anything there, as long as a quarter of a megabyte
        let uid = object.annotations().get(annotations::SERVICE_UID).filter(|uid| is_uid(uid)).cloned();
        let addresses = allocated(object).into_iter().chain(status_address(object)).map(normal).collect();
        Self { uid, service: labelled_service(object), secondaries: secondaries_in(object), addresses }
    }
}

/// The Service that an object is for, by its labels.
pub(crate) fn labelled_service(object: &LoadBalancer) -> Option<ObjectKey> {
    let label = |key: &str| object.labels().get(key).filter(|text| !text.is_empty()).cloned();
    Some(ObjectKey::new(label(labels::SERVICE_NAMESPACE)?, label(labels::SERVICE_NAME)?))
}

impl Index {
    /// The object `name` has this entry; `None`: it is gone. It is read while nobody else can set one: of two threads the
    /// later one would else set what it read first.
    pub(super) fn set(&self, name: &str, newest: impl FnOnce() -> Option<Entry>) {
        let mut state = self.state();
        let entry = newest();
        let State { entries, by_uid, by_service, by_secondary, by_address } = &mut *state;
        if let Some(old) = entries.remove(name) {
            remove(by_uid, old.uid.as_ref(), name);
            remove(by_service, old.service.as_ref(), name);
            old.secondaries.iter().for_each(|prefix| remove(by_secondary, Some(prefix), name));
            old.addresses.iter().for_each(|ip| remove(by_address, Some(ip), name));
        }
        if let Some(entry) = entry {
            if let Some(uid) = &entry.uid {
                by_uid.entry(uid.clone()).or_default().insert(name.to_owned());
            }
            if let Some(service) = &entry.service {
                by_service.entry(service.clone()).or_default().insert(name.to_owned());
            }
            for prefix in &entry.secondaries {
                by_secondary.entry(prefix.clone()).or_default().insert(name.to_owned());
            }
            for ip in &entry.addresses {
                by_address.entry(ip.clone()).or_default().insert(name.to_owned());
            }
            entries.insert(name.to_owned(), entry);
        }
    }

    /// The objects that say by annotation or by labels that they are for this Service.
    pub(super) fn objects_of(&self, service: &LiveService) -> BTreeSet<String> {
        let state = self.state();
        let by_annotation = state.by_uid.get(&service.uid).into_iter().flatten();
        by_annotation.chain(state.by_service.get(&service.key).into_iter().flatten()).cloned().collect()
    }

    /// Whether those are several, with the objects of these names.
    pub(super) fn has_several(&self, service: &LiveService, named: &[String]) -> bool {
        let state = self.state();
        let by_annotation = state.by_uid.get(&service.uid).into_iter().flatten();
        let by_labels = state.by_service.get(&service.key).into_iter().flatten();
        let mut all = by_annotation.chain(by_labels).chain(named);
        all.next().is_some_and(|first| all.any(|other| other != first))
    }

    /// The objects with listeners of this prefix.
    pub(super) fn carriers(&self, prefix: &str) -> BTreeSet<String> {
        self.state().by_secondary.get(prefix).cloned().unwrap_or_default()
    }

    /// The Services of the objects that have one of these addresses, by their labels and by their annotation. `of_uid`
    /// finds a Service.
    pub(super) fn owners(
        &self,
        addresses: &[&str],
        of_uid: impl Fn(&str) -> Option<ObjectKey>,
    ) -> BTreeSet<ObjectKey> {
        let state = self.state();
        let objects = addresses.iter().filter_map(|ip| state.by_address.get(&normal(ip))).flatten();
        let entries = objects.filter_map(|name| state.entries.get(name));
        let services = |entry: &Entry| [entry.service.clone(), entry.uid.as_deref().and_then(&of_uid)];
        entries.flat_map(services).flatten().collect()
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

/// The sign by which an object is the one of a Service; of several objects the first sign in this order counts, after
/// the Service's address ([`AddressInUse`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Evidence {
    /// Its annotations name this cluster and the Service.
    Annotated,
    /// Its name was computed for the Service under this cluster's name.
    Named,
    /// The same, under the name `kubernetes`.
    NamedInNamelessCluster,
    /// Its annotation names the Service, and no annotation names a cluster.
    AnnotatedWithoutCluster,
    /// Its labels, or a name computed under a former name of the cluster ([`belongs`]).
    Labelled,
    /// Its annotations name the Service and another cluster. This cluster's UID may have changed, with a Service
    /// `default/kubernetes` that was made again; or another tenant wrote the annotation. Such an object is not deleted.
    AnnotatedForAnotherCluster,
}

impl Evidence {
    /// How far the UIDs in the annotations say so, the best first. The Go program writes none: among objects without
    /// UIDs the Service's address says more than a name that was computed when the cluster had that name.
    fn by_uids(self) -> u8 {
        match self {
            Self::Annotated => 0,
            Self::Named | Self::NamedInNamelessCluster | Self::AnnotatedWithoutCluster | Self::Labelled => 1,
            Self::AnnotatedForAnotherCluster => 2,
        }
    }
}

/// Whether an object holds the address that the Service uses: to adopt another object would move the Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum AddressInUse {
    /// kube-vip in the guest is asked for it.
    Asked,
    /// The status of the Service shows it.
    Shown,
    Not,
}

impl AddressInUse {
    pub(super) fn of(object: &LoadBalancer, service: &Service) -> Self {
        let asked = service.annotations().get(annotations::KUBE_VIP_LOADBALANCER_IPS);
        let asked: Vec<_> = asked.into_iter().flat_map(|ips| ips.split(',')).map(str::trim).collect();
        let shown = ingress(service);
        // every lease is allocated as the same word: only the address that was announced tells them apart
        let held =
            if is_leased(object) { status_address(object).into_iter().collect() } else { allocated(object) };
        if held.iter().any(|ip| asked.contains(ip)) {
            Self::Asked
        } else if held.iter().any(|ip| shown.contains(ip)) {
            Self::Shown
        } else {
            Self::Not
        }
    }
}

#[cfg(test)]
thread_local! {
    /// Calls of [`find`] in this thread: each goes through all objects that say they are for a Service.
    pub(super) static FINDS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// The object of the Service among `objects`: the one with the best UIDs, then the Service's address, then the best
/// evidence; of several the oldest.
pub(super) fn find<'a>(
    objects: impl IntoIterator<Item = &'a LoadBalancer>,
    service: &LiveService,
    wanted: bool,
    ours: &ClusterIdentity,
    is_of_another: impl Fn(&LoadBalancer) -> bool,
    address_in_use: impl Fn(&LoadBalancer) -> AddressInUse,
) -> Option<(String, Evidence)> {
    #[cfg(test)]
    FINDS.set(FINDS.get() + 1);
    let rank = |object: &'a LoadBalancer| {
        let evidence = evidence(object, service, wanted, ours, &is_of_another)?;
        let age = object.metadata.creation_timestamp.clone();
        Some((evidence.by_uids(), address_in_use(object), evidence, age, object.name_any()))
    };
    objects.into_iter().filter_map(rank).min().map(|(_, _, evidence, _, name)| (name, evidence))
}

/// `wanted`: the Service wants a load balancer; one that wants none adopts none, which would be deleted with it.
fn evidence(
    object: &LoadBalancer,
    service: &LiveService,
    wanted: bool,
    ours: &ClusterIdentity,
    is_of_another: impl Fn(&LoadBalancer) -> bool,
) -> Option<Evidence> {
    let (annotations, name) = (object.annotations(), object.name_any());
    let annotated = annotations.get(annotations::SERVICE_UID) == Some(&service.uid);
    let cluster = annotations.get(annotations::CLUSTER_UID);
    let labelled = || labelled_service(object).as_ref() == Some(&service.key);
    if annotated && cluster.is_some() && cluster == ours.cluster_uid.as_ref() {
        Some(Evidence::Annotated)
    } else if name == computed(&ours.cluster, service) {
        Some(Evidence::Named)
    } else if name == computed(&GuestCluster::default_name(), service) {
        Some(Evidence::NamedInNamelessCluster)
    } else if annotated && (cluster.is_none() || ours.cluster_uid.is_none()) {
        Some(Evidence::AnnotatedWithoutCluster)
    } else if labelled()
        && if wanted { belongs(object, service, ours, is_of_another) } else { was_made_for(object, service) }
    {
        Some(Evidence::Labelled)
    } else {
        (annotated && wanted).then_some(Evidence::AnnotatedForAnotherCluster)
    }
}

impl fmt::Display for Evidence {
    /// Completes the sentence "it is the object of the Service, because …".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Annotated => "its annotations name this cluster and the Service's UID",
            Self::Named => "its name is the one computed for the Service",
            Self::NamedInNamelessCluster => {
                "its name is the one computed for the Service while the cluster's name was kubernetes"
            }
            Self::AnnotatedWithoutCluster => {
                "its annotation names the Service's UID, and no annotation names a cluster"
            }
            Self::Labelled => "its labels name the Service, and it is no other Service's",
            Self::AnnotatedForAnotherCluster => {
                "its annotation names the Service's UID; another annotation names another cluster's UID"
            }
        })
    }
}

impl LiveService {
    pub(super) fn of(service: &Service) -> Self {
        Self { key: ObjectKey::of(service), uid: service.uid().unwrap_or_default() }
    }
}

/// Whether `object`, whose labels name `service`, is the object of that Service although its annotation does not say
/// so. `is_of_another`: the object was made for another live Service.
pub(super) fn belongs(
    object: &LoadBalancer,
    service: &LiveService,
    ours: &ClusterIdentity,
    is_of_another: impl Fn(&LoadBalancer) -> bool,
) -> bool {
    let annotations = object.annotations();
    if was_made_for(object, service) {
        return true;
    }
    // one that goes frees its address: nothing to adopt
    if object.metadata.deletion_timestamp.is_some() {
        return false;
    }
    match annotations.get(annotations::CLUSTER_UID) {
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
        let secondaries = BTreeSet::from([format!("{uid}-")]);
        let (service, addresses) =
            (Some(ObjectKey::new("shop", service)), BTreeSet::from([normal("fd00::0:9")]));
        Some(Entry { uid: Some(uid.into()), service, secondaries, addresses })
    }

    #[test]
    fn an_object_is_found_by_its_service_until_it_is_gone() {
        let (index, web) = (Index::default(), ObjectKey::new("shop", "web"));
        index.set("b", || entry("1", "web"));
        index.set("a", || entry("1", "web"));
        let objects_of = |uid: &str, service: &ObjectKey| {
            let found = index.objects_of(&LiveService { key: service.clone(), uid: uid.into() });
            found.into_iter().collect::<Vec<_>>()
        };
        let api = ObjectKey::new("shop", "api");
        assert_eq!([objects_of("1", &api), objects_of("9", &web)], [["a", "b"], ["a", "b"]]);
        index.set("a", || None);
        assert_eq!(objects_of("1", &web), ["b"]);
        index.set("b", || entry("2", "api"));
        assert_eq!((objects_of("1", &web), objects_of("2", &web)), (vec![], vec!["b".to_owned()]));
        assert_eq!(objects_of("9", &api), ["b"]);
        assert_eq!((index.carriers("1-").len(), index.carriers("2-").len()), (0, 1));
        // its labels may be taken off
        let docs = ObjectKey::new("shop", "docs");
        let owners = |ip: &str| {
            let of_uid = |uid: &str| (uid == "2").then(|| docs.clone());
            index.owners(&["10.0.0.9", ip], of_uid)
        };
        assert_eq!(owners("fd00:0::9"), BTreeSet::from([api, docs.clone()]));
        index.set("b", || None);
        let state = index.state();
        assert!(state.by_uid.is_empty() && state.by_service.is_empty() && state.by_secondary.is_empty());
        assert!(state.by_address.is_empty());
    }

    #[test]
    fn what_is_set_is_read_while_nobody_else_sets_anything() {
        let index = Index::default();
        index.set("a", || {
            assert!(index.0.try_lock().is_err());
            None
        });
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
        #[case] annotations: Value,
        #[case] label: &str,
        #[case] cluster: &str,
        #[case] expected: bool,
    ) {
        let annotations = annotations.as_object().unwrap().iter();
        let annotations: serde_json::Map<_, _> = annotations
            .map(|(key, value)| (format!("cloudprovider.harvesterhci.io/{key}"), value.clone()))
            .collect();
        let mut object: LoadBalancer = serde_json::from_value(json!({"spec": {}, "metadata": {"name": name,
            "annotations": annotations, "labels": {labels::CLUSTER: label, labels::SERVICE_NAMESPACE: "shop",
                labels::SERVICE_NAME: "web"}}}))
        .unwrap();
        let ours = cluster_named(cluster);
        let adopted =
            |object: &LoadBalancer| belongs(object, &service(), &ours, |it| it.name_any() == "of-another");
        assert_eq!(adopted(&object), expected);
        object.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        assert!(!adopted(&object) || was_made_for(&object, &service()), "what goes is not adopted");
    }

    /// An object: its name, the cluster and the Service that its annotations name, and the second of its creation.
    type Object<'a> = (&'a str, Option<&'a str>, Option<&'a str>, u8);

    const NAMED: &str = "<computed>";
    const NAMED_UNDER_KUBERNETES: &str = "<under kubernetes>";
    const FORGED: &str = "a-forged";

    // docs/contract/addresses.md#4: the cluster is `c1`, the Service `s1`; all labels name Service and cluster
    #[rstest]
    #[case::none(&[], true, None)]
    #[case::annotated(&[("x", Some("c1"), Some("s1"), 1)], true, Some("x"))]
    #[case::of_the_go_program(&[(NAMED, None, None, 1)], true, Some(NAMED))]
    #[case::renamed(&[(NAMED, None, None, 2), (NAMED_UNDER_KUBERNETES, None, None, 1)], true, Some(NAMED))]
    #[case::adopted_before_named(&[(NAMED, None, None, 1), ("x", Some("c1"), Some("s1"), 2)], true, Some("x"))]
    // another tenant writes into the same namespace
    #[case::forged_for_another_cluster(&[(FORGED, Some("c2"), Some("s1"), 1), (NAMED, None, None, 2)], true, Some(NAMED))]
    #[case::forged_without_cluster(&[(FORGED, None, Some("s1"), 1), (NAMED, Some("c2"), None, 2)], true, Some(NAMED))]
    #[case::forged_beside_an_annotated(&[(FORGED, None, Some("s1"), 1), ("x", Some("c1"), Some("s1"), 2)], true, Some("x"))]
    #[case::forged_in_all(&[(FORGED, Some("c1"), Some("s1"), 2), (NAMED, Some("c1"), Some("s1"), 1)], true, Some(NAMED))]
    #[case::forged_name(&[(NAMED, Some("c1"), Some("s1"), 2), ("x", Some("c1"), Some("s1"), 1)], true, Some("x"))]
    #[case::forged_beside_a_labelled(&[(FORGED, Some("c2"), Some("s1"), 1), ("x", None, None, 2)], true, Some("x"))]
    // somebody made the Service default/kubernetes again
    #[case::of_a_former_cluster_uid(&[("x", Some("c0"), Some("s1"), 1)], true, Some("x"))]
    #[case::not_deleted_for_a_former_cluster_uid(&[("x", Some("c0"), Some("s1"), 1)], false, None)]
    #[case::deleted_where_it_is_annotated(&[("x", Some("c1"), Some("s1"), 1)], false, Some("x"))]
    #[case::deleted_by_name(&[(NAMED, None, None, 1)], false, Some(NAMED))]
    #[case::not_deleted_by_labels(&[("x", None, None, 1)], false, None)]
    fn the_object_of_a_service_is_the_one_with_the_best_evidence(
        #[case] objects: &[Object<'_>],
        #[case] wanted: bool,
        #[case] expected: Option<&str>,
    ) {
        let ours = cluster_named("blue");
        let objects: Vec<_> = objects.iter().map(object).collect();
        let found = find(&objects, &service(), wanted, &ours, |_| false, |_| AddressInUse::Not);
        assert_eq!(found.map(|(name, _)| name), expected.map(name));
    }

    fn with_address(ipam: &str, allocated: &str, announced: &str) -> LoadBalancer {
        serde_json::from_value(json!({"metadata": {"name": "x"}, "spec": {"ipam": ipam},
            "status": {"allocatedAddress": {"ip": allocated}, "address": announced}}))
        .unwrap()
    }

    #[rstest]
    #[case::asked_for(with_address("pool", "10.0.0.8", ""), AddressInUse::Asked)]
    #[case::shown(with_address("pool", "10.0.0.7", ""), AddressInUse::Shown)]
    #[case::of_nobody(with_address("pool", "10.0.0.9", "10.0.0.8"), AddressInUse::Not)]
    #[case::none(with_address("pool", "", ""), AddressInUse::Not)]
    #[case::leased(with_address("dhcp", "0.0.0.0", "10.0.0.7"), AddressInUse::Shown)]
    #[case::leased_for_another(with_address("dhcp", "0.0.0.0", "10.0.0.9"), AddressInUse::Not)]
    fn an_object_holds_the_address_that_its_service_asks_for_or_shows(
        #[case] object: LoadBalancer,
        #[case] expected: AddressInUse,
    ) {
        let service = serde_json::from_value(json!({
            "metadata": {"annotations": {annotations::KUBE_VIP_LOADBALANCER_IPS: "10.0.0.8,0.0.0.0"}},
            "status": {"loadBalancer": {"ingress": [{"ip": "10.0.0.7"}]}}}))
        .unwrap();
        assert_eq!(AddressInUse::of(&object, &service), expected);
    }

    // the Go program made one object under each name that the cluster had, and left the former ones
    #[rstest]
    #[case::of_the_go_program((NAMED, None, None, 1), (NAMED_UNDER_KUBERNETES, None, None, 2), NAMED_UNDER_KUBERNETES)]
    #[case::labelled((NAMED, None, None, 1), ("x", None, None, 2), "x")]
    #[case::both_ours(("y", Some("c1"), Some("s1"), 1), ("x", Some("c1"), Some("s1"), 2), "x")]
    #[case::of_another_cluster((NAMED, None, None, 1), ("x", Some("c2"), Some("s1"), 2), NAMED)]
    #[case::beside_ours(("y", Some("c1"), Some("s1"), 2), (NAMED, None, None, 1), "y")]
    fn the_address_in_use_wins_unless_the_uids_are_worse(
        #[case] other: Object<'_>,
        #[case] in_use: Object<'_>,
        #[case] expected: &str,
    ) {
        let ours = cluster_named("blue");
        let [other, in_use] = [other, in_use].map(|it| object(&it));
        let address = |object: &LoadBalancer| {
            if object.name_any() == in_use.name_any() { AddressInUse::Asked } else { AddressInUse::Not }
        };
        let found = find([&other, &in_use], &service(), true, &ours, |_| false, address);
        assert_eq!(found.map(|(name, _)| name), Some(name(expected)));
    }

    fn cluster_named(name: &str) -> ClusterIdentity {
        ClusterIdentity {
            cluster: GuestCluster::new(name),
            cluster_uid: Some("c1".to_owned()),
            management_network: None,
        }
    }

    fn name(name: &str) -> String {
        match name {
            NAMED => made_under("blue"),
            NAMED_UNDER_KUBERNETES => made_under("kubernetes"),
            name => name.to_owned(),
        }
    }

    fn object((of, cluster, service, second): &Object<'_>) -> LoadBalancer {
        let annotations = [(annotations::CLUSTER_UID, cluster), (annotations::SERVICE_UID, service)];
        let annotations: HashMap<_, _> =
            annotations.into_iter().filter_map(|(key, text)| Some((key, (*text)?))).collect();
        serde_json::from_value(json!({"spec": {}, "metadata": {"name": name(of), "annotations": annotations,
            "creationTimestamp": format!("2026-01-01T00:00:{second:02}Z"), "labels": {labels::CLUSTER: "blue",
                labels::SERVICE_NAMESPACE: "shop", labels::SERVICE_NAME: "web"}}}))
        .unwrap()
    }
}
