//! What the caches keep of objects that tenants write, or that their guest agents report: as much as somebody reads, and no more
//! than real ones have. A tenant may make a thousand objects of a million bytes, and one process keeps those of all tenants.

use std::{collections::BTreeMap, mem};

use controller_kit::{Change, RawObject};
use harvester_api::{
    VirtualMachineInstance, annotations, finalizers,
    kubevirt::{VirtualMachineInstanceStatus, VmInterface, VmNetwork},
    labels,
};
use k8s_openapi::api::{
    core::v1::{Service, ServiceSpec},
    discovery::v1::{Endpoint, EndpointSlice},
};
use kube::{Resource, ResourceExt as _};
use serde_json::{Map, Value, json};

use super::VmMetadata;
use crate::reuse;

/// Bytes of a Service that is kept whole. One of ours with 100 listeners and 500 source ranges has some 40,000; anybody may give a
/// Service our label, and a million bytes of others.
const SERVICE: usize = 64 * 1024;
/// Entries of the lists and maps of a Service that is kept whole, and of a slice beside its endpoints: in memory a short one takes ten
/// times its text. A Service of ours has at most some 650.
const ENTRIES: usize = 1_000;
/// Bytes of the addresses that a larger one asks for.
const ASKED: usize = 4096;
/// Addresses that a larger one shows.
const SHOWN: usize = 64;
/// Owner references of such a Service, and of such a slice.
const OWNERS: usize = 16;
/// Bytes of a slice that is kept whole, beside its endpoints, and of each of these on average. Ports, labels and annotations of one of
/// ours have some 20,000, and an endpoint, which has one address, at most 500.
const SLICE: usize = 64 * 1024;
const ENDPOINT: usize = 512;
/// Networks and interfaces of a VMI, and addresses of all of them beside the first of each. The guest agent reports interfaces: a
/// tenant who reports tens of thousands would have every load balancer keep them, and each address is in an index.
const INTERFACES: usize = 32;
const ADDRESSES: usize = 128;
/// Bytes of an address of an interface.
const ADDRESS: usize = 64;
/// Bytes of any other text that is kept on its own, such as the name of an owner. Those of real ones are shorter.
const TEXT: usize = 256;
/// Labels of a VMI that are kept, and bytes of them: those of real ones are tens. With more it has none, and no load balancer
/// selects it.
const LABELS: usize = 1_000;
const LABEL_BYTES: usize = 64 * 1024;

/// In the annotations of a trimmed object. The value is the object's version: a tenant does not know the one that its write will get,
/// and so cannot have an object read for each look.
const TRIMMED: &str = "load-balancer/trimmed";

/// Whether this is not the whole object: of a Service only that is here which says whose it is and which addresses it names, of a
/// slice only the former, and of a VMI all but its labels. Whoever is to write it reads it from the server.
pub(crate) fn is_trimmed(object: &impl Resource) -> bool {
    object.annotations().get(TRIMMED) == Some(&object.resource_version().unwrap_or_default())
}

/// As the cache keeps it.
pub(crate) fn trimmed(service: &RawObject<Service>) -> RawObject<Service> {
    let mut trimmed = service.clone();
    trim_service(&mut trimmed);
    trimmed
}

pub(super) fn trim_service(service: &mut RawObject<Service>) {
    if service.size() <= SERVICE && entries_of_service(service) <= ENTRIES {
        return;
    }
    let asked = service.annotations().get(annotations::KUBE_VIP_LOADBALANCER_IPS).map_or("", String::as_str);
    // whole addresses
    let asked = if asked.len() <= ASKED {
        asked
    } else {
        let cut = asked.as_bytes().iter().take(ASKED).rposition(|byte| *byte == b',').unwrap_or_default();
        asked.get(..cut).unwrap_or_default()
    };
    let mut metadata = trimmed_metadata(service);
    metadata["annotations"][annotations::KUBE_VIP_LOADBALANCER_IPS] = asked.into();
    let spec = service.spec.as_ref();
    let own = |field: fn(&ServiceSpec) -> Option<&String>| spec.and_then(field).map(|text| short(text));
    let families = spec.and_then(|spec| spec.ip_families.as_ref());
    let shown: Vec<_> = reuse::shown(service).take(SHOWN).map(|ip| json!({"ip": ip})).collect();
    let trimmed = RawObject::from_json(json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": metadata,
        "spec": {"type": own(|spec| spec.type_.as_ref()), "loadBalancerIP": own(|spec| spec.load_balancer_ip.as_ref()),
            "ipFamilies": families.map(|families| families.iter().take(2).map(|family| short(family)).collect::<Vec<_>>())},
        "status": {"loadBalancer": {"ingress": shown}},
    }));
    if let Ok(trimmed) = trimmed {
        *service = trimmed;
    }
}

/// The entries that a tenant can make short and many.
fn entries_of_service(service: &RawObject<Service>) -> usize {
    let spec = service.spec.as_ref().map_or(0, |spec| {
        let ServiceSpec { external_ips, load_balancer_source_ranges, ports, selector, .. } = spec;
        let texts = [external_ips, load_balancer_source_ranges];
        let texts: usize = texts.into_iter().flatten().map(Vec::len).sum();
        texts + ports.as_ref().map_or(0, Vec::len) + selector.as_ref().map_or(0, BTreeMap::len)
    });
    let status = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    let shown = status.and_then(|status| status.ingress.as_ref()).map_or(0, Vec::len);
    entries_of_metadata(service) + spec + shown
}

fn entries_of_metadata(object: &impl Resource) -> usize {
    let maps = object.labels().len() + object.annotations().len();
    maps + object.finalizers().len() + object.owner_references().len()
}

/// Whether a slice takes more memory than one of ours may.
fn is_large(slice: &RawObject<EndpointSlice>) -> bool {
    let endpoints = &slice.endpoints;
    let texts = |endpoint: &Endpoint| {
        endpoint.addresses.len() + endpoint.deprecated_topology.as_ref().map_or(0, BTreeMap::len)
    };
    if entries_of_metadata(slice) + slice.ports.as_ref().map_or(0, Vec::len) > ENTRIES
        || endpoints.iter().map(texts).sum::<usize>() > endpoints.len().max(ENTRIES)
    {
        return true;
    }
    let bytes = || serde_json::to_string(endpoints).map_or(0, |text| text.len());
    let is_long =
        |bytes: usize| bytes > ENDPOINT * endpoints.len() || slice.size().saturating_sub(bytes) > SLICE;
    slice.size() > SLICE && is_long(bytes())
}

pub(super) fn trim_slice(slice: &mut RawObject<EndpointSlice>) {
    if !is_large(slice) {
        return;
    }
    let trimmed = RawObject::from_json(json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": trimmed_metadata(slice),
        "addressType": slice.address_type, "endpoints": [],
    }));
    if let Ok(trimmed) = trimmed {
        *slice = trimmed;
    }
}

/// What says whose a trimmed object is.
fn trimmed_metadata(object: &impl Resource) -> Value {
    let meta = object.meta();
    let owners: Vec<_> = object
        .owner_references()
        .iter()
        .take(OWNERS)
        .map(|owner| {
            let [version, kind, name, uid] =
                [&owner.api_version, &owner.kind, &owner.name, &owner.uid].map(|text| short(text));
            json!({"apiVersion": version, "kind": kind, "name": name, "uid": uid})
        })
        .collect();
    let label = object.labels().get(labels::SERVICE_LB).map(|value| short(value));
    json!({"namespace": meta.namespace, "name": meta.name, "uid": meta.uid,
        "resourceVersion": meta.resource_version, "deletionTimestamp": meta.deletion_timestamp,
        "ownerReferences": owners, "labels": label.map(|value| json!({labels::SERVICE_LB: value})),
        "annotations": {TRIMMED: object.resource_version().unwrap_or_default()}})
}

/// The text, and nothing in place of a longer one than real ones are.
fn short(text: &str) -> String {
    if text.len() <= TEXT { text.to_owned() } else { String::new() }
}

pub(super) fn trim_vmi(vmi: &mut VirtualMachineInstance) {
    vmi.metadata.annotations = None;
    vmi.metadata.owner_references = None;
    keep_finalizer(&mut vmi.metadata.finalizers, finalizers::LEGACY_VMI);
    let bytes: usize = vmi.labels().iter().map(|(key, value)| key.len() + value.len()).sum();
    if vmi.labels().len() > LABELS || bytes > LABEL_BYTES {
        vmi.metadata.labels = None;
        let version = vmi.resource_version().unwrap_or_default();
        vmi.metadata.annotations = Some([(TRIMMED.to_owned(), version)].into());
    }
    vmi.spec.rest = Map::new();
    // whatever else the specification says of one with such names, no load balancer is to reach its VM there
    vmi.spec.networks.retain(VmNetwork::has_real_names);
    vmi.spec.networks.truncate(INTERFACES);
    vmi.spec.networks.shrink_to_fit();
    for network in &mut vmi.spec.networks {
        network.pod.iter_mut().for_each(|pod| *pod = Map::new());
    }
    if let Some(status) = &mut vmi.status {
        trim_status(status);
    }
}

/// The server keeps what a user who creates a VMI writes into its status.
fn trim_status(status: &mut VirtualMachineInstanceStatus) {
    let mut interfaces = mem::take(&mut status.interfaces);
    interfaces.truncate(INTERFACES);
    interfaces.shrink_to_fit();
    let mut room = ADDRESSES;
    for interface in &mut interfaces {
        interface.rest = Map::new();
        let VmInterface { name, interface_name, ip_address, ip_addresses, mac, rest: _ } = interface;
        // the first one stands in both fields
        ip_addresses.retain(|address| address.len() <= ADDRESS && address != ip_address);
        ip_addresses.truncate(room);
        room -= ip_addresses.len();
        ip_addresses.shrink_to_fit();
        for (text, longest) in [(ip_address, ADDRESS), (name, TEXT), (interface_name, TEXT), (mac, TEXT)] {
            if text.len() > longest {
                *text = String::new();
            }
        }
    }
    *status = VirtualMachineInstanceStatus { interfaces, ..Default::default() };
}

pub(super) fn trim_vm(vm: &mut VmMetadata) {
    vm.types = None;
    vm.metadata.owner_references = None;
    keep_finalizer(&mut vm.metadata.finalizers, finalizers::LEGACY_VM);
    keep_only(&mut vm.metadata.annotations, &[annotations::REMOVE_ALL_PVCS]);
    // whoever reads it asks whether it says so
    vm.metadata.annotations.take_if(|all| all.values().any(|value| value != "true"));
    keep_only(&mut vm.metadata.labels, &[labels::CREATOR, labels::GUEST_CLUSTER]);
}

/// Tells that nothing selects a VMI although it has the labels that a selector names; once, unless they come and go.
pub(super) fn tell_of_lost_labels(change: &Change<VirtualMachineInstance>) {
    if loses_labels(change) {
        tracing::info!(vmi = %change.key, "no load balancer selects it: it has more labels, or longer ones, than any real one");
    }
}

/// Whether the labels of a VMI count no more from this change on.
fn loses_labels(change: &Change<VirtualMachineInstance>) -> bool {
    let [was, is] = [&change.old, &change.new].map(|vmi| vmi.as_ref().is_some_and(|vmi| is_trimmed(&**vmi)));
    is && !was
}

/// Keeps `ours` alone: the API server limits neither the number nor the text of finalizers.
fn keep_finalizer(finalizers: &mut Option<Vec<String>>, ours: &str) {
    let is_there = finalizers.as_ref().is_some_and(|all| all.iter().any(|finalizer| finalizer == ours));
    *finalizers = is_there.then(|| vec![ours.to_owned()]);
}

/// `None` in place of an empty map.
fn keep_only(map: &mut Option<BTreeMap<String, String>>, keys: &[&str]) {
    if let Some(all) = map {
        all.retain(|key, _| keys.contains(&key.as_str()));
    }
    map.take_if(|map| map.is_empty());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ownership::{Owner, Ownership};

    fn service(metadata: &Value, ranges: &[String]) -> RawObject<Service> {
        let mut service = json!({"metadata": {"namespace": "shop", "name": "web", "uid": "s", "resourceVersion": "7",
                "annotations": {annotations::KUBE_VIP_LOADBALANCER_IPS: "10.0.0.7,10.0.0.8"},
                "ownerReferences": [{"apiVersion": "x/v1", "kind": "LoadBalancer", "name": "web", "uid": "u1"}],
                "labels": {labels::SERVICE_LB: "true"}},
            "spec": {"type": "LoadBalancer", "loadBalancerIP": "10.0.0.9", "loadBalancerSourceRanges": ranges,
                "ports": [{"port": 80}]},
            "status": {"loadBalancer": {"ingress": [{"ip": "10.0.0.6"}]}}});
        for field in ["labels", "annotations"] {
            let more = metadata.get(field).and_then(Value::as_object).into_iter().flatten();
            more.for_each(|(key, value)| service["metadata"][field][key] = value.clone());
        }
        RawObject::from_json(service).unwrap()
    }

    fn slice(endpoints: usize) -> Value {
        let (namespace, name) = ("n".repeat(63), "m".repeat(253));
        let endpoint = |n: usize| {
            json!({"addresses": [format!("2001:db8:1234:5678:9abc:def0:1234:{:x}", 0x1000 + n)], "conditions": {"ready": false},
                "targetRef": {"namespace": namespace, "name": name, "uid": "9b2f3a52-7c5e-4d0e-9a7b-0d8b5c0e1f2a"}})
        };
        let port = |n: usize| json!({"name": format!("{n:0>63}"), "protocol": "TCP", "port": 10_000 + n});
        json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {"namespace": "shop", "name": "web", "uid": "s", "resourceVersion": "7",
                "ownerReferences": [{"apiVersion": "x/v1", "kind": "LoadBalancer", "name": "web", "uid": "u1"}],
                "labels": {labels::SERVICE_LB: "true", labels::SLICE_SERVICE_NAME: "web",
                    labels::SLICE_MANAGED_BY: labels::SLICE_MANAGED_BY_US}},
            "addressType": "IPv6", "endpoints": (0..endpoints).map(endpoint).collect::<Vec<_>>(),
            "ports": (0..100).map(port).collect::<Vec<_>>()})
    }

    /// Labels or annotations that take little text.
    fn short_texts(count: usize) -> Value {
        (0..count).map(|n| (format!("a{n}"), json!(""))).collect()
    }

    fn many(text: &str) -> Value {
        (0..15_000).map(|n| (format!("{text}-{n}"), json!("x".repeat(60)))).collect()
    }

    #[test]
    fn a_service_that_a_tenant_fills_fills_no_memory_and_says_whose_it_is_and_which_addresses_it_names() {
        let ranges: Vec<_> = (0..50_000).map(|n| format!("10.{}.{}.0/24", n / 250, n % 250)).collect();
        let owner = Owner { key: controller_kit::ObjectKey::new("shop", "web"), uid: "u1".to_owned() };
        let long: Vec<_> = (0..20_000).map(|n| format!("10.9.{}.{}", n / 250, n % 250)).collect();
        for mut filled in [
            service(&json!({"labels": many("label")}), &[]),
            service(&json!({}), &ranges),
            service(&json!({"annotations": many("annotation")}), &[]),
            // of less than 64 KiB
            service(&json!({"labels": short_texts(5_000)}), &[]),
            service(&json!({"annotations": short_texts(5_000)}), &[]),
            service(&json!({}), &ranges[..2_000]),
        ] {
            let whole = filled.clone();
            trim_service(&mut filled);
            assert!(is_trimmed(&*filled) && filled.size() < 2_000, "{}", filled.size());
            assert_eq!(reuse::named(&filled).collect::<Vec<_>>(), reuse::named(&whole).collect::<Vec<_>>());
            assert_eq!(owner.ownership(&filled.metadata), Ownership::Ours);
            assert_eq!((filled.uid(), filled.resource_version()), (whole.uid(), whole.resource_version()));
        }
        let mut asking =
            service(&json!({"annotations": {annotations::KUBE_VIP_LOADBALANCER_IPS: long.join(",")}}), &[]);
        trim_service(&mut asking);
        assert!(asking.size() < 6_000 && reuse::named(&asking).count() > 300, "{}", asking.size());
        let mut of_annotation = reuse::named(&asking).skip(1).take(300);
        assert!(
            of_annotation.all(|address| long.contains(&address.to_string())),
            "none is cut off in the middle"
        );
    }

    #[test]
    fn a_slice_that_a_tenant_fills_fills_no_memory_and_says_whose_it_is() {
        let owner = Owner { key: controller_kit::ObjectKey::new("shop", "web"), uid: "u1".to_owned() };
        for (field, endpoints, more) in [
            ("labels", 0, many("label")),
            ("annotations", 3, many("annotation")),
            // of less than 64 KiB
            ("labels", 0, short_texts(2_000)),
        ] {
            let mut json = slice(endpoints);
            let more = more.as_object().unwrap().iter();
            more.for_each(|(key, value)| json["metadata"][field][key.as_str()] = value.clone());
            let mut filled: RawObject<EndpointSlice> = RawObject::from_json(json).unwrap();
            let whole = filled.clone();
            trim_slice(&mut filled);
            assert!(is_trimmed(&*filled) && filled.size() < 2_000, "{}", filled.size());
            assert_eq!(owner.ownership(&filled.metadata), Ownership::Ours);
            assert_eq!((filled.uid(), filled.resource_version()), (whole.uid(), whole.resource_version()));
        }
    }

    #[test]
    fn a_thousand_endpoints_allow_a_slice_neither_long_texts_nor_many_short_ones() {
        for (addresses, labels, annotations, is_kept) in [
            (1, json!({}), json!({}), true),
            (1, json!({}), json!({"note": "x".repeat(200_000)}), false),
            (1, short_texts(5_000), json!({}), false),
            (40, json!({}), json!({}), false),
        ] {
            let mut json = slice(0);
            json["metadata"]["labels"] = labels;
            json["metadata"]["annotations"] = annotations;
            json["endpoints"] = vec![json!({"addresses": vec!["10.0.0.1"; addresses]}); 1_000].into();
            let mut slice: RawObject<EndpointSlice> = RawObject::from_json(json).unwrap();
            trim_slice(&mut slice);
            assert_eq!(is_trimmed(&*slice), !is_kept, "{}", slice.size());
            assert_eq!(slice.endpoints.len(), if is_kept { 1_000 } else { 0 });
        }
    }

    #[test]
    fn a_slice_of_ours_with_all_that_one_may_have_is_kept_whole() {
        for endpoints in [0, 1000] {
            let mut slice: RawObject<EndpointSlice> = RawObject::from_json(slice(endpoints)).unwrap();
            let size = slice.size();
            trim_slice(&mut slice);
            assert_eq!((slice.size(), slice.endpoints.len()), (size, endpoints));
            assert!(!is_trimmed(&*slice));
        }
    }

    #[test]
    fn a_service_whose_writer_says_that_it_is_trimmed_is_not_read_for_each_look() {
        for says in ["", "6", "8"] {
            let mut service = service(&json!({"annotations": {TRIMMED: says}}), &[]);
            trim_service(&mut service);
            assert!(!is_trimmed(&*service), "{says:?}");
            assert_eq!(service.annotations()[TRIMMED], says, "a write of ours leaves it alone");
        }
    }

    #[test]
    fn a_service_of_ours_with_all_that_one_may_have_is_kept_whole() {
        let ranges: Vec<_> =
            (0..500).map(|n| format!("2001:db8:1234:5678:9abc:def0:1234:{n:x}/128")).collect();
        let mut json = service(&json!({"annotations": {"ranges": ranges.join(",")}}), &ranges).json();
        let port = |n: u16| json!({"name": "p".repeat(63), "protocol": "TCP", "port": n, "targetPort": 65_000, "nodePort": 32_000});
        json["spec"]["ports"] = (0..100).map(port).collect();
        let mut service: RawObject<Service> = RawObject::from_json(json).unwrap();
        let size = service.size();
        trim_service(&mut service);
        assert_eq!(service.size(), size);
    }

    #[test]
    fn a_guest_agent_that_reports_thousands_of_addresses_fills_no_memory() {
        let addresses: Vec<_> = (0..80_000).map(|n| format!("10.{}.{}.1", n / 250, n % 250)).collect();
        let interface = json!({"name": "vlan", "ipAddress": "10.0.0.1", "ipAddresses": addresses});
        let mut vmi: VirtualMachineInstance = serde_json::from_value(
            json!({"metadata": {"name": "web-1"}, "spec": {}, "status": {"interfaces": vec![interface; 100]}}),
        )
        .unwrap();
        // an empty one has two bytes in the server, and 140 here
        vmi.status.as_mut().unwrap().interfaces.resize(100_000, VmInterface::default());
        trim_vmi(&mut vmi);
        let interfaces = vmi.status.unwrap().interfaces;
        assert!(interfaces.len() == INTERFACES && interfaces.capacity() < 2 * INTERFACES);
        let kept: usize = interfaces.iter().map(|interface| interface.ip_addresses.len()).sum();
        assert_eq!(kept, ADDRESSES);
    }

    #[test]
    fn of_a_vm_nothing_is_kept_but_what_says_whether_its_guest_cluster_goes() {
        let vm = json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata",
            "metadata": {"name": "gc1-1", "namespace": "team", "uid": "u", "finalizers": ["a/b", finalizers::LEGACY_VM],
                "labels": {labels::CREATOR: "me", labels::GUEST_CLUSTER: "gc1", "tier": "web"},
                "annotations": {"large": "x"}}});
        let mut vm: VmMetadata = serde_json::from_value(vm).unwrap();
        trim_vm(&mut vm);
        let kept = json!({"metadata": {"name": "gc1-1", "namespace": "team", "uid": "u",
            "finalizers": [finalizers::LEGACY_VM], "labels": {labels::CREATOR: "me", labels::GUEST_CLUSTER: "gc1"}}});
        assert_eq!(serde_json::to_value(&vm).unwrap(), kept);
    }

    /// As the cache keeps one with these finalizers and so many labels.
    fn vmi(finalizers: &[&str], labels: usize) -> VirtualMachineInstance {
        let metadata = json!({"namespace": "team", "name": "web-1", "resourceVersion": "7", "finalizers": finalizers,
            "labels": short_texts(labels), "annotations": {"large": "x"}});
        let mut vmi = serde_json::from_value(json!({"metadata": metadata, "spec": {}})).unwrap();
        trim_vmi(&mut vmi);
        vmi
    }

    // KubeVirt takes a network name of any length, and such a VMI stays pending, which costs its tenant nothing
    #[test]
    fn a_vmi_with_long_texts_in_its_networks_status_and_labels_fills_no_memory() {
        let long = "n".repeat(1_000_000);
        let network = |name: &str| json!({"name": "nic-0", "multus": {"networkName": name}});
        let networks = json!([network("default/vlan1"), network(&long), {"name": long, "pod": {}},
            {"name": "pods", "pod": {"vmNetworkCIDR": long}}]);
        let labels: BTreeMap<_, _> = (0..900).map(|n| (format!("{n:0>3}{}", "x".repeat(200)), "y")).collect();
        let mut vmi: VirtualMachineInstance = serde_json::from_value(json!({
            "metadata": {"name": "web-1", "namespace": "shop", "resourceVersion": "7", "labels": labels},
            "spec": {"networks": networks}, "status": {"nodeName": long, "phase": long, "other": long}}))
        .unwrap();
        trim_vmi(&mut vmi);
        let kept = serde_json::to_value(&vmi.spec.networks).unwrap();
        assert_eq!(kept, json!([network("default/vlan1"), {"name": "pods", "pod": {}}]));
        assert!(vmi.labels().is_empty() && is_trimmed(&vmi), "180,000 bytes of labels");
        assert_eq!(vmi.status, Some(VirtualMachineInstanceStatus::default()));
        vmi.spec.networks = vec![VmNetwork::default(); 1_000];
        trim_vmi(&mut vmi);
        assert!(vmi.spec.networks.len() == INTERFACES && vmi.spec.networks.capacity() < 2 * INTERFACES);
    }

    #[test]
    fn the_mark_of_a_vm_that_goes_with_its_claims_is_kept_and_no_text_in_its_place() {
        for (value, kept) in [("true".to_owned(), true), ("t".repeat(200_000), false)] {
            let mut vm: VmMetadata = serde_json::from_value(json!({
                "metadata": {"name": "web-1", "annotations": {annotations::REMOVE_ALL_PVCS: value}}}))
            .unwrap();
            trim_vm(&mut vm);
            assert_eq!(vm.annotations().contains_key(annotations::REMOVE_ALL_PVCS), kept);
        }
    }

    #[test]
    fn of_the_finalizers_of_a_vmi_that_of_the_go_program_alone_is_kept() {
        let ours = finalizers::LEGACY_VMI;
        for (has, kept) in [(vec!["a/b", ours, ours], Some(ours)), (vec!["a/b"], None), (vec![], None)] {
            assert_eq!(vmi(&has, 3).finalizers(), Vec::from_iter(kept), "{has:?}");
        }
    }

    #[test]
    fn of_a_vmi_with_more_labels_than_any_real_one_none_is_kept_and_that_is_told_once() {
        let [whole, filled] = [LABELS, LABELS + 1].map(|labels| vmi(&[], labels));
        assert_eq!([&whole, &filled].map(|vmi| vmi.labels().len()), [LABELS, 0]);
        let [whole, filled] = [whole, filled].map(|vmi| Some(std::sync::Arc::new(vmi)));
        let key = controller_kit::ObjectKey::new("team", "web-1");
        let told = [(&None, &filled, true), (&whole, &filled, true)];
        for (old, new, is_told) in
            told.into_iter().chain([(&filled, &filled, false), (&filled, &whole, false)])
        {
            let change = Change { key: key.clone(), old: old.clone(), new: new.clone() };
            assert_eq!(loses_labels(&change), is_told, "{change:?}");
        }
    }

    #[test]
    fn a_guest_agent_that_reports_long_texts_fills_no_memory() {
        let long = "1".repeat(1_000_000);
        let interface = json!({"name": long, "interfaceName": long, "mac": long, "ipAddress": long,
            "ipAddresses": [long, "10.0.0.1"]});
        let mut vmi: VirtualMachineInstance = serde_json::from_value(
            json!({"metadata": {"name": "web-1"}, "spec": {}, "status": {"interfaces": [interface]}}),
        )
        .unwrap();
        trim_vmi(&mut vmi);
        let [interface] = &vmi.status.unwrap().interfaces[..] else { panic!("one interface") };
        assert_eq!(interface.ip_addresses, ["10.0.0.1"], "an address behind it stays");
        let VmInterface { name, interface_name, ip_address, mac, .. } = interface;
        assert_eq!([name, interface_name, ip_address, mac].map(String::len), [0; 4]);
    }
}
