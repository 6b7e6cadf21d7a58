//! Which Service asks for the address of which, by annotation; which uses it, by label; and which shows it, by status.

use std::{
    collections::{BTreeSet, HashMap},
    hash::Hash,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard},
};

use controller_kit::ObjectKey;
use harvester_api::{annotations, labels};
use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;

use crate::{
    load_balancers::{decide::ingress, object::secondary_prefix},
    service_config::primary,
};

/// Longest label value.
const LABEL_MAX: usize = 63;

/// Secondaries by their primary.
#[derive(Debug, Default)]
pub(crate) struct Index(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    entries: HashMap<ObjectKey, Entry>,
    by_request: HashMap<ObjectKey, BTreeSet<ObjectKey>>,
    by_label: HashMap<String, BTreeSet<ObjectKey>>,
    /// By the prefix of their listeners.
    by_prefix: HashMap<String, ObjectKey>,
    /// By an address that the status of the Service shows. Only Services that have the label, if an empty one: they use
    /// an address or may still be leaving one.
    by_shown: HashMap<String, BTreeSet<ObjectKey>>,
    /// Services whose label value does not say their name.
    digested: HashMap<String, ObjectKey>,
    by_uid: HashMap<String, ObjectKey>,
}

#[derive(Debug)]
struct Entry {
    /// By annotation.
    request: Option<ObjectKey>,
    label: Option<String>,
    shown: Vec<String>,
    uid: Option<String>,
}

impl Index {
    /// `newest`: the newest version of the Service, if it is there. It is read while nobody else can update the index: of
    /// two threads the later one would else write what it read first.
    pub(crate) fn refresh(&self, key: &ObjectKey, newest: impl FnOnce() -> Option<Arc<Service>>) {
        let mut state = self.state();
        state.update(key, newest().as_deref());
    }

    /// The Services that have the label, if an empty one, and whose status shows one of these addresses.
    pub(crate) fn showing(&self, addresses: &[&str]) -> BTreeSet<ObjectKey> {
        let state = self.state();
        let showing = addresses.iter().filter_map(|ip| state.by_shown.get(&normal(ip)));
        showing.flatten().cloned().collect()
    }

    /// The Services that use the address of this one ([`used`]).
    pub(crate) fn users(&self, primary: &ObjectKey) -> BTreeSet<ObjectKey> {
        let mut users = self.state().by_label.get(&label_value(primary)).cloned().unwrap_or_default();
        users.remove(primary);
        users
    }

    /// The Services that ask for the address of this one, or of one that does.
    pub(crate) fn askers(&self, primary: &ObjectKey) -> BTreeSet<ObjectKey> {
        let state = self.state();
        let (mut found, mut next) = (BTreeSet::new(), vec![primary.clone()]);
        while let Some(key) = next.pop() {
            for asker in state.by_request.get(&key).into_iter().flatten() {
                if asker != primary && found.insert(asker.clone()) {
                    next.push(asker.clone());
                }
            }
        }
        found
    }

    /// The Service whose listeners have this prefix, if it shares, asks to, or did so before.
    pub(crate) fn secondary(&self, prefix: &str) -> Option<ObjectKey> {
        self.state().by_prefix.get(prefix).cloned()
    }

    /// The Services that use each other's addresses in a ring with this one, itself apart.
    pub(crate) fn ring(&self, service: &ObjectKey) -> BTreeSet<ObjectKey> {
        let used_by = |key: &ObjectKey| {
            let label = self.state().entries.get(key)?.label.clone()?;
            self.labelled(&label)
        };
        let (mut ring, mut next) = (BTreeSet::new(), used_by(service));
        while let Some(key) = next {
            if key == *service {
                return ring;
            }
            next = used_by(&key).filter(|_| ring.insert(key));
        }
        BTreeSet::new()
    }

    /// The Service that a label value names.
    pub(crate) fn labelled(&self, value: &str) -> Option<ObjectKey> {
        if let Some(key) = self.state().digested.get(value) {
            return Some(key.clone());
        }
        // a namespace has no dots
        let (namespace, name) = value.split_once('.')?;
        (!namespace.is_empty() && !name.is_empty()).then(|| ObjectKey::new(namespace, name))
    }

    pub(crate) fn of_uid(&self, uid: &str) -> Option<ObjectKey> {
        self.state().by_uid.get(uid).cloned()
    }

    /// Those that use the address of this Service or ask for it.
    pub(crate) fn group(&self, primary: &ObjectKey) -> BTreeSet<ObjectKey> {
        let mut group = self.users(primary);
        group.extend(self.askers(primary));
        group
    }

    /// Other Services whose decision reads this one: those before and after it in its chain, those that share or ask for
    /// the address with it, also for the one that it uses without asking any more.
    pub(crate) fn related(&self, service: &Service) -> BTreeSet<ObjectKey> {
        let key = ObjectKey::of(service);
        let mut related = self.group(&key);
        let (mut last, mut next) = (None, primary(service).ok().flatten());
        while let Some(primary) = next.filter(|primary| *primary != key && related.insert(primary.clone())) {
            next = self.state().entries.get(&primary).and_then(|entry| entry.request.clone());
            last = Some(primary);
        }
        let used = used(service).and_then(|label| self.labelled(&label));
        related.extend(last.iter().chain(&used).flat_map(|primary| self.group(primary)));
        related.extend(used);
        // one that leaves an address keeps its owner until its status shows another, and its owner carries it so long
        related.extend(self.showing(&ingress(service)));
        related.remove(&key);
        related
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no panic while indexing")
    }
}

impl State {
    /// `service`: the newest version of the Service, if it is there.
    fn update(&mut self, key: &ObjectKey, service: Option<&Service>) {
        let Self { entries, by_request, by_label, by_prefix, by_shown, digested, by_uid } = self;
        if let Some(old) = entries.remove(key) {
            remove(by_request, old.request.as_ref(), key);
            remove(by_label, old.label.as_ref(), key);
            by_prefix.remove(&secondary_prefix(key));
            old.uid.iter().for_each(|uid| drop(by_uid.remove(uid)));
            old.shown.iter().for_each(|ip| remove(by_shown, Some(ip), key));
        }
        let own = label_value(key);
        if service.is_some() && own != plain_label_value(key) {
            digested.insert(own, key.clone());
        } else {
            digested.remove(&own);
        }
        let Some(service) = service else { return };
        let shown = ingress(service).into_iter().filter(|_| is_marked(service)).map(normal).collect();
        let entry = Entry {
            request: primary(service).ok().flatten(),
            label: used(service),
            shown,
            uid: service.uid(),
        };
        if let Some(request) = &entry.request {
            by_request.entry(request.clone()).or_default().insert(key.clone());
        }
        if let Some(label) = &entry.label {
            by_label.entry(label.clone()).or_default().insert(key.clone());
        }
        // one whose label is empty may be leaving an object yet
        if entry.request.is_some() || is_marked(service) {
            by_prefix.insert(secondary_prefix(key), key.clone());
        }
        if let Some(uid) = &entry.uid {
            by_uid.insert(uid.clone(), key.clone());
        }
        for ip in &entry.shown {
            by_shown.entry(ip.clone()).or_default().insert(key.clone());
        }
        entries.insert(key.clone(), entry);
    }
}

/// An address as it is written shortest.
pub(crate) fn normal(ip: &str) -> String {
    ip.parse::<IpAddr>().map_or_else(|_| ip.to_owned(), |ip| ip.to_string())
}

fn remove<K: Eq + Hash>(keys_of: &mut HashMap<K, BTreeSet<ObjectKey>>, of: Option<&K>, key: &ObjectKey) {
    let Some(of) = of else { return };
    if let Some(keys) = keys_of.get_mut(of) {
        keys.remove(key);
        if keys.is_empty() {
            keys_of.remove(of);
        }
    }
}

/// The label of a Service that was given the address of another one, unless it is empty
/// (docs/contract/cloud-controller-manager.md#12.4).
pub(crate) fn label(service: &Service) -> Option<&str> {
    service.labels().get(labels::PRIMARY_SERVICE).map(String::as_str).filter(|value| !value.is_empty())
}

/// Whether the Service has the label, if an empty one: it uses the address of another one, or did so.
pub(crate) fn is_marked(service: &Service) -> bool {
    service.labels().contains_key(labels::PRIMARY_SERVICE)
}

/// The label of a Service while it uses the address of another one. The annotation is only the user's request, which
/// anybody may make of any Service; the label comes in the write that hands the address over, and it stays when the
/// Service gets another type. Such a Service uses the address while kube-vip in the guest may announce it: kube-vip
/// passes over the change of the type. A Service that is being deleted is announced until it is gone.
fn used(service: &Service) -> Option<String> {
    let is_load_balancer = service.spec.as_ref()?.type_.as_deref() == Some("LoadBalancer");
    let announcer = service.annotations().get(annotations::KUBE_VIP_VIP_HOST);
    let may_be_announced = announcer.is_some_and(|node| !node.is_empty()) || !ingress(service).is_empty();
    (is_load_balancer || may_be_announced).then(|| label(service).map(str::to_owned))?
}

/// The value of the label on the secondaries of this Service: `namespace.name`, cut and with a digest where that is too
/// long for a label (docs/contract/cloud-controller-manager.md#L23).
pub(crate) fn label_value(primary: &ObjectKey) -> String {
    let plain = plain_label_value(primary);
    if plain.len() <= LABEL_MAX {
        return plain;
    }
    let digest = crc32fast::hash(plain.as_bytes());
    format!("{}-{digest:08x}", &plain[..plain.floor_char_boundary(LABEL_MAX - 9)])
}

fn plain_label_value(primary: &ObjectKey) -> String {
    format!("{}.{}", primary.namespace, primary.name)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    const KEY: &str = "cloudprovider.harvesterhci.io/primary-service";

    fn service(spec_type: &str, annotation: Option<&str>, label: Option<&str>) -> Service {
        named("api", spec_type, annotation, label)
    }

    fn named(name: &str, spec_type: &str, annotation: Option<&str>, label: Option<&str>) -> Service {
        let map = |value: Option<&str>| value.map_or(Value::Null, |value| json!({KEY: value}));
        let metadata = json!({"namespace": "shop", "name": name, "resourceVersion": "1", "uid": "2",
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
        assert_eq!(used(&service).is_some(), expected);
    }

    #[test]
    fn a_service_is_read_while_nobody_else_updates_the_index() {
        let index = Index::default();
        index.refresh(&ObjectKey::new("shop", "api"), || {
            assert!(index.0.try_lock().is_err());
            None
        });
    }

    fn keys(names: &[&str]) -> BTreeSet<ObjectKey> {
        names.iter().map(|name| ObjectKey::new("shop", *name)).collect()
    }

    #[test]
    fn secondaries_are_found_by_their_primary_until_they_go() {
        let index = Index::default();
        let (web, api) = (ObjectKey::new("shop", "web"), ObjectKey::new("shop", "api"));
        let mut sharing = service("LoadBalancer", Some("web"), Some("shop.web"));
        let status = json!({"loadBalancer": {"ingress": [{"ip": "fd00::0:9"}]}});
        sharing.status = serde_json::from_value(status).unwrap();
        index.state().update(&api, Some(&sharing));
        assert_eq!((index.users(&web), index.askers(&web)), (keys(&["api"]), keys(&["api"])));
        assert_eq!(index.showing(&["10.0.0.9", "fd00::9"]), keys(&["api"]));
        index.state().update(&api, None);
        assert_eq!((index.users(&web), index.askers(&web)), (keys(&[]), keys(&[])));
        let state = index.state();
        assert!(state.entries.is_empty() && state.by_request.is_empty());
        assert!(state.by_label.is_empty() && state.by_prefix.is_empty() && state.by_shown.is_empty());
        assert!(state.by_uid.is_empty());
    }

    // one that waits for its port would never hear that it is free
    #[test]
    fn a_secondary_that_asks_no_more_is_related_to_those_that_ask_for_the_address_that_it_uses() {
        let index = Index::default();
        let leaving = named("api", "LoadBalancer", None, Some("shop.web"));
        for service in [&leaving, &named("docs", "LoadBalancer", Some("web"), None)] {
            index.state().update(&ObjectKey::of(service), Some(service));
        }
        assert_eq!(index.related(&leaving), keys(&["docs", "web"]));
        assert_eq!(index.related(&named("web", "LoadBalancer", None, None)), keys(&["api", "docs"]));
    }

    #[rstest]
    #[case::two(&[("web", "shop.api"), ("api", "shop.web")], &["api"])]
    #[case::three(&[("web", "shop.api"), ("api", "shop.docs"), ("docs", "shop.web")], &["api", "docs"])]
    #[case::no_ring(&[("api", "shop.web"), ("docs", "shop.web")], &[])]
    #[case::behind_a_ring(&[("web", "shop.api"), ("api", "shop.docs"), ("docs", "shop.api")], &[])]
    #[case::itself(&[("web", "shop.web")], &[])]
    fn a_ring_of_services_that_use_each_others_address_is_found(
        #[case] labels: &[(&str, &str)],
        #[case] expected: &[&str],
    ) {
        let index = Index::default();
        for (name, label) in labels {
            let service = named(name, "LoadBalancer", None, Some(label));
            index.state().update(&ObjectKey::of(&service), Some(&service));
        }
        assert_eq!(index.ring(&ObjectKey::new("shop", "web")), keys(expected));
    }

    #[test]
    fn all_of_a_chain_and_of_a_ring_are_related() {
        let index = Index::default();
        let lb = |name, of| named(name, "LoadBalancer", of, None);
        let all =
            [lb("web", None), lb("api", Some("web")), lb("admin", Some("api")), lb("docs", Some("web"))];
        for service in &all {
            index.state().update(&ObjectKey::of(service), Some(service));
        }
        let related = |service: &Service| index.related(service);
        assert_eq!(related(&all[0]), keys(&["api", "admin", "docs"]));
        assert_eq!(related(&all[2]), keys(&["web", "api", "docs"]));
        let ring = lb("web", Some("admin"));
        index.state().update(&ObjectKey::of(&ring), Some(&ring));
        assert_eq!(index.related(&ring), keys(&["api", "admin", "docs"]));
    }

    // docs/contract/cloud-controller-manager.md#L23
    #[rstest]
    #[case::short("shop", "web", "shop.web")]
    #[case::just_fits("n".repeat(31), "s".repeat(31), format!("{}.{}", "n".repeat(31), "s".repeat(31)))]
    #[case::longest("n".repeat(63), "s".repeat(63), format!("{}-{:08x}", "n".repeat(54),
        crc32fast::hash(format!("{}.{}", "n".repeat(63), "s".repeat(63)).as_bytes())))]
    fn a_label_names_a_primary_whose_name_is_longer_than_a_label(
        #[case] namespace: impl Into<String>,
        #[case] name: impl Into<String>,
        #[case] expected: impl Into<String>,
    ) {
        let key = ObjectKey::new(namespace.into(), name.into());
        let value = label_value(&key);
        assert_eq!(value, expected.into());
        assert!(value.len() <= LABEL_MAX);
        let index = Index::default();
        index.state().update(&key, Some(&Service::default()));
        assert_eq!(index.labelled(&value), Some(key));
    }
}
