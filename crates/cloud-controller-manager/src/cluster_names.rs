//! A cluster name that two guest clusters have, and one that nobody chose.
//!
//! LoadBalancer objects carry the cluster's name and, from us, the UID of the cluster's `default/kubernetes` Service. An
//! object with our name and another UID is another cluster's: Harvester cannot tell the two apart when one of them is
//! removed (docs/contract/cloud-controller-manager.md#L33).

use std::{
    collections::{BTreeSet, HashSet},
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use controller_kit::{Cache, ObjectKey, PendingEvent, RawObject};
use guest_vms::{Backends, GuestVms, is_uid};
use harvester_api::{LoadBalancer, annotations, labels, names::DEFAULT_CLUSTER_NAME};
use k8s_openapi::api::core::v1::{Node, Service};
use kube::ResourceExt;
use program::TaskGroup;
use tokio::time::Instant;

use crate::{
    load_balancers::{ServiceSettings, labelled_service},
    notices::Notices,
};

/// Other clusters that are told at once. All Events about the program share one budget, and the warning that the credential
/// expires must not find it spent.
const TOLD_AT_ONCE: usize = 3;
/// After these, one more is told each time that this has passed: objects that somebody forged silence nothing for ever.
const TOLD_NEXT: Duration = Duration::from_secs(3600);

/// The other clusters that were told.
#[derive(Debug, Default)]
struct Told {
    uids: HashSet<String>,
    last: Option<Instant>,
}

impl Told {
    /// Whether to tell of this cluster.
    fn is_news(&self, other: &str) -> bool {
        let has_room = self.uids.len() < TOLD_AT_ONCE || self.last.is_none_or(|at| at.elapsed() >= TOLD_NEXT);
        has_room && !self.uids.contains(other)
    }

    fn add(&mut self, other: &str) {
        self.uids.insert(other.to_owned());
        self.last = Some(Instant::now());
    }
}

/// The UID of the other guest cluster that the object with our cluster's name belongs to, if `is_news` holds for it.
/// `uid_of` knows our Services: a cluster that was restored may have another UID than before.
fn other_cluster<'a>(
    object: &'a LoadBalancer,
    label: &str,
    cluster_uid: &str,
    is_news: impl Fn(&str) -> bool,
    uid_of: impl Fn(&ObjectKey) -> Option<String>,
) -> Option<&'a str> {
    let annotation = |key: &str| object.annotations().get(key).map(String::as_str);
    let is_named = object.labels().get(labels::CLUSTER).is_some_and(|name| name == label);
    let uid = annotation(annotations::CLUSTER_UID).filter(|uid| is_uid(uid) && *uid != cluster_uid)?;
    let goes = object.metadata.deletion_timestamp.is_some();
    let is_looked_at = is_named && !goes && is_news(uid);
    let is_ours = || {
        let service = labelled_service(object).and_then(|service| uid_of(&service));
        service.is_some_and(|uid| annotation(annotations::SERVICE_UID) == Some(&*uid))
    };
    (is_looked_at && !is_ours()).then_some(uid)
}

/// Tells once of each other cluster whose objects have our cluster's name: of the first few at once, of others seldom.
pub(crate) fn follow_objects(
    tasks: &TaskGroup,
    rules: &ServiceSettings,
    objects: &Cache<RawObject<LoadBalancer>>,
    services: &Cache<Service>,
    notices: &Notices,
) {
    let (name, label) = (rules.cluster.name().to_owned(), rules.cluster.label_value());
    let (services, notices, told) = (services.clone(), notices.clone(), Mutex::<Told>::default());
    let known = services.clone();
    let look = move |object: &LoadBalancer| {
        let kubernetes = services.get(&ObjectKey::new("default", "kubernetes"));
        let Some(ours) = kubernetes.and_then(|service| service.uid()) else { return };
        let uid_of = |service: &ObjectKey| services.get(service)?.uid();
        let mut told = told.lock().expect("no panic while remembering");
        let is_news = |uid: &str| told.is_news(uid);
        let Some(other) = other_cluster(object, &label, &ours, is_news, uid_of) else { return };
        told.add(other);
        drop(told);
        let key = ObjectKey::of(object);
        let what = format!(
            "another guest cluster has the name {name:?} too: LoadBalancer {key} in Harvester has it and belongs to the \
             cluster whose Service default/kubernetes has UID {other}, this cluster's has {ours}; the removal of one \
             cluster would take the other's addresses along: give each a name of its own with --cluster-name (chart: \
             global.cattle.clusterName), or delete the object if that cluster is gone"
        );
        notices.tell(&PendingEvent::warning("ClusterNameTaken", what));
    };
    let all = objects.clone();
    tasks.spawn_until_stop(async move {
        known.ready().await;
        all.ready().await;
        all.on_change(move |change| {
            if let Some(object) = &change.new {
                look(object);
            }
        });
    });
}

/// The name that the VMs of our Nodes carry, where all that carry one agree.
fn name_of_vms(backends: &Backends) -> Option<String> {
    let ours = backends.all.iter().filter(|backend| backends.eligible.contains(&backend.vm));
    let names: BTreeSet<_> = ours.filter_map(|backend| backend.cluster.clone()).collect();
    let only = names.first().filter(|_| names.len() == 1)?;
    (only != DEFAULT_CLUSTER_NAME && !only.is_empty()).then(|| only.clone())
}

/// Suggests a name once where nobody chose one. It is never taken: the objects that stand have names with the old one.
pub(crate) fn suggest(rules: &ServiceSettings, vms: &GuestVms, nodes: &Cache<Node>, notices: &Notices) {
    if !rules.cluster.is_anonymous() {
        return;
    }
    let (read, nodes, notices) = (vms.clone(), nodes.clone(), notices.clone());
    let (told, flag) = (AtomicBool::new(false), rules.cluster.name().to_owned());
    let look = move || {
        if told.load(Ordering::Relaxed) {
            return;
        }
        let Some(name) = read.backends(&nodes.list()).as_ref().and_then(name_of_vms) else { return };
        if !told.swap(true, Ordering::Relaxed) {
            let what = format!(
                "--cluster-name is {flag:?}, a name that every guest cluster has that was given none; the VMs of this \
                 cluster's nodes are labelled {}={name}: set --cluster-name={name} (chart: global.cattle.clusterName), \
                 the LoadBalancer objects that are there are taken over",
                labels::GUEST_CLUSTER
            );
            notices.tell(&PendingEvent::warning("ClusterNameNotSet", what));
        }
    };
    look();
    vms.on_change(look);
}

#[cfg(test)]
mod tests {
    use guest_vms::Backend;
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    const OURS: &str = "00000000-0000-4000-8000-000000000001";
    const OTHER: &str = "00000000-0000-4000-8000-000000000002";

    // docs/contract/cloud-controller-manager.md#L33
    #[rstest]
    #[case::another_clusters("blue", json!({annotations::CLUSTER_UID: OTHER, annotations::SERVICE_UID: "s9"}), Some(OTHER))]
    #[case::ours("blue", json!({annotations::CLUSTER_UID: OURS}), None)]
    #[case::of_another_name("green", json!({annotations::CLUSTER_UID: OTHER}), None)]
    // anybody who may write an object may write anything there
    #[case::no_uid("blue", json!({annotations::CLUSTER_UID: "x".repeat(10_000)}), None)]
    // which of two clusters made it nobody can say
    #[case::of_the_go_program("blue", json!({}), None)]
    #[case::of_our_service_before_a_restore("blue", json!({annotations::CLUSTER_UID: OTHER, annotations::SERVICE_UID: "s1"}), None)]
    fn an_object_with_our_name_and_another_uid_is_another_clusters(
        #[case] name: &str,
        #[case] annotations: Value,
        #[case] other: Option<&str>,
    ) {
        let mut object: LoadBalancer = serde_json::from_value(json!({"spec": {}, "metadata": {"name": "x",
            "labels": {labels::CLUSTER: name, labels::SERVICE_NAMESPACE: "shop", labels::SERVICE_NAME: "web"},
            "annotations": annotations}}))
        .unwrap();
        let found = |object: &LoadBalancer| {
            let uid_of = |service: &ObjectKey| (service.to_string() == "shop/web").then(|| "s1".to_owned());
            other_cluster(object, "blue", OURS, |_| true, uid_of).map(str::to_owned)
        };
        assert_eq!(found(&object).as_deref(), other);
        let nothing_new =
            other_cluster(&object, "blue", OURS, |_| false, |_| panic!("nothing new to look at"));
        assert_eq!(nothing_new, None);
        object.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        assert_eq!(found(&object), None, "it goes already");
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_few_other_clusters_are_told_once_each_and_one_more_each_hour() {
        let mut told = Told::default();
        let mut count = |uids: std::ops::Range<u32>| {
            let all = uids.flat_map(|uid| [uid.to_string(), uid.to_string()]);
            all.filter(|uid| {
                let is_news = told.is_news(uid);
                if is_news {
                    told.add(uid);
                }
                is_news
            })
            .count()
        };
        assert_eq!(count(0..100), TOLD_AT_ONCE);
        tokio::time::advance(TOLD_NEXT).await;
        assert_eq!((count(0..3), count(3..100), count(3..100)), (0, 1, 0));
        tokio::time::advance(24 * TOLD_NEXT).await;
        assert_eq!((count(0..4), count(4..100)), (0, 1));
    }

    #[rstest]
    #[case::all_agree(&[("a", Some("prod")), ("b", Some("prod"))], Some("prod"))]
    #[case::some_say_nothing(&[("a", Some("prod")), ("b", None)], Some("prod"))]
    #[case::they_differ(&[("a", Some("prod")), ("b", Some("test"))], None)]
    #[case::vms_that_are_no_nodes_do_not_count(&[("a", Some("prod")), ("x", Some("test"))], Some("prod"))]
    #[case::nobody_says(&[("a", None)], None)]
    #[case::the_name_that_everybody_has(&[("a", Some("kubernetes"))], None)]
    fn a_name_is_suggested_where_the_vms_of_our_nodes_agree(
        #[case] vms: &[(&str, Option<&str>)],
        #[case] name: Option<&str>,
    ) {
        let all = vms.iter().map(|(vm, cluster)| Backend {
            vm: (*vm).to_owned(),
            cluster: cluster.map(str::to_owned),
            name: None,
        });
        let eligible = ["a".to_owned(), "b".to_owned()].into();
        let backends = Backends { eligible, all: all.collect(), ..Backends::default() };
        assert_eq!(name_of_vms(&backends).as_deref(), name);
    }
}
