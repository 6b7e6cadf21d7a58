//! The whole simulation on two in-process API servers, on a clock that stands still.

use std::{collections::BTreeSet, net::IpAddr, time::Duration};

use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Event, Node, Pod, Service},
};
use kube::{
    Api, ResourceExt,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams},
};
use serde_json::json;

use crate::fixtures::{Clusters, create, ingress};
use controller_kit::ObjectKey;
use harvester_api::VirtualMachineInstance;
use program::TaskGroup;
use sim_apiserver::faults::{Answer, Rule};
use sim_harvester::{
    Backend, Refused, Release, SimHarvester,
    guest::{UNINITIALIZED, pod_is_ready},
    settings::MIGRATION,
    vm::VirtualMachineInstanceMigration,
};

const VIP: &str = "127.79.0.1";

/// Until only timers are left: the clock stands still, so a second passes only when nobody has anything to do.
pub(crate) async fn settle() {
    tokio::time::sleep(Duration::from_secs(1)).await;
}

fn vip() -> IpAddr {
    VIP.parse().unwrap()
}

/// The VMs that answer in so many connections, and the failures.
fn reached(sim: &SimHarvester, connections: usize) -> (BTreeSet<String>, Vec<Refused>) {
    let (mut names, mut failures) = (BTreeSet::new(), Vec::new());
    for _ in 0..connections {
        match sim.carry(vip(), 80) {
            Ok(name) => drop(names.insert(name.vm)),
            Err(why) => failures.push(why),
        }
    }
    (names, failures)
}

fn taints(node: &Node) -> Vec<String> {
    let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    taints.map(|taint| taint.key.clone()).collect()
}

fn names(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[tokio::test(start_paused = true)]
async fn vms_start_and_their_kubelets_register_and_run_the_examples_pods() {
    let (clusters, tasks) = (Clusters::new().await, TaskGroup::new());
    clusters.start(Release::From12, &tasks);
    settle().await;
    let instances: Api<VirtualMachineInstance> = Api::namespaced(clusters.harvester(), "shop");
    let instances = instances.list(&ListParams::default()).await.unwrap().items;
    let addresses: Vec<_> = instances
        .iter()
        .map(|instance| instance.status.as_ref().unwrap().interfaces[0].ip_address.clone())
        .collect();
    assert_eq!(addresses, ["198.18.250.10", "198.18.250.11", "198.18.250.12"]);
    let hosts: BTreeSet<_> =
        instances.iter().map(|instance| instance.status.as_ref().unwrap().node_name.clone()).collect();
    assert_eq!(hosts, names(&["host-1", "host-2"]));
    let status = clusters.vm("guest-1").await.status.unwrap();
    assert_eq!((status.ready, status.printable_status.as_str()), (true, "Running"));
    let nodes = Api::<Node>::all(clusters.guest()).list(&ListParams::default()).await.unwrap().items;
    assert_eq!(nodes.len(), 3);
    for node in &nodes {
        assert_eq!(taints(node), [UNINITIALIZED], "{}", node.name_any());
    }
    let pods = Api::<Pod>::all(clusters.guest()).list(&ListParams::default()).await.unwrap().items;
    assert_eq!(pods.len(), 3);
    assert!(pods.iter().all(pod_is_ready));
    tasks.end().await;
}

/// A Node must not take them for its own.
#[tokio::test(start_paused = true)]
async fn guest_agents_report_the_vips_of_both_families_while_kube_vip_has_them_on_the_interface() {
    let (clusters, tasks) = (Clusters::new().await, TaskGroup::new());
    clusters.start(Release::From12, &tasks);
    let both = json!({"kube-vip.io/loadbalancerIPs": format!("{VIP},fd00::9")});
    clusters.guest_service("web", both).await;
    settle().await;
    let status = clusters.service("web").await.status.unwrap().load_balancer.unwrap();
    let shown: Vec<_> = status.ingress.unwrap().into_iter().filter_map(|entry| entry.ip).collect();
    assert_eq!(shown, [VIP, "fd00::9"]);
    let reported = async || {
        tokio::time::sleep(Duration::from_secs(10)).await;
        let instances: Api<VirtualMachineInstance> = Api::namespaced(clusters.harvester(), "shop");
        let status = instances.get("guest-1").await.unwrap().status.unwrap();
        status.interfaces.into_iter().next().unwrap().ip_addresses
    };
    assert_eq!(reported().await, ["198.18.250.10", VIP, "fd00::9"]);
    let services: Api<Service> = Api::namespaced(clusters.guest(), "default");
    services.delete("web", &DeleteParams::default()).await.unwrap();
    assert_eq!(reported().await, ["198.18.250.10"]);
    tasks.end().await;
}

#[tokio::test(start_paused = true)]
async fn when_nothing_happens_nothing_is_written() {
    let (clusters, tasks) = (Clusters::new().await, TaskGroup::new());
    clusters.start(Release::From12, &tasks);
    clusters.guest_service("web", json!({"kube-vip.io/loadbalancerIPs": VIP})).await;
    // until the guest agents have been asked
    tokio::time::sleep(Duration::from_secs(11)).await;
    let before = (clusters.guest.revision(), clusters.harvester.revision());
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!((clusters.guest.revision(), clusters.harvester.revision()), before);
    tasks.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_guest_service_is_announced_and_its_vip_reaches_every_vm() {
    let (clusters, tasks) = (Clusters::new().await, TaskGroup::new());
    let sim = clusters.start(Release::From12, &tasks);
    clusters.guest_service("web", json!({"kube-vip.io/loadbalancerIPs": VIP})).await;
    settle().await;
    let service = clusters.service("web").await;
    assert_eq!(ingress(&service), [VIP]);
    assert_eq!(service.annotations()["kube-vip.io/vipHost"], "guest-1");
    assert_eq!(reached(&sim, 40), (names(&["guest-1", "guest-2", "guest-3"]), vec![]));
    sim.set_backend(&ObjectKey::new("shop", "guest-2"), Backend::Stopped).await.unwrap();
    settle().await;
    assert_eq!(reached(&sim, 40), (names(&["guest-1", "guest-3"]), vec![]));
    let api: Api<Service> = Api::namespaced(clusters.guest(), "default");
    api.delete("web", &DeleteParams::default()).await.unwrap();
    settle().await;
    assert_eq!(sim.carry(vip(), 80), Err(Refused::NotAnnounced(vip())));
    tasks.end().await;
}

/// kube-vip issue 1700: up to 1.2.3 nothing but an event of the Service as a LoadBalancer takes the address away.
#[tokio::test(start_paused = true)]
async fn an_address_stays_announced_after_a_change_of_type_over_the_deletion_and_over_a_service_of_the_name()
{
    for release in [Release::UpTo06, Release::From07, Release::From09] {
        for change in [
            json!({"spec": {"type": "ClusterIP"}}),
            json!({"metadata": {"annotations": {"kube-vip.io/ignore": "true"}}}),
        ] {
            let (clusters, tasks) = (Clusters::new().await, TaskGroup::new());
            let sim = clusters.start(release, &tasks);
            let uid = clusters.guest_service("web", json!({"kube-vip.io/loadbalancerIPs": VIP})).await.uid();
            settle().await;
            let vips = || sim.announced().into_iter().map(|(_, vip)| vip).collect::<Vec<_>>();
            assert!(matches!(&*vips(), [vip] if !vip.passed_over));
            let api: Api<Service> = Api::namespaced(clusters.guest(), "default");
            api.patch("web", &PatchParams::default(), &Patch::Merge(change)).await.unwrap();
            settle().await;
            api.delete("web", &DeleteParams::default()).await.unwrap();
            settle().await;
            clusters.guest_service("web", json!({"kube-vip.io/loadbalancerIPs": "127.79.0.2"})).await;
            settle().await;
            let stale: Vec<_> = vips().into_iter().filter(|vip| vip.passed_over).collect();
            let [stale] = &*stale else { panic!("{release:?}: {:?}", vips()) };
            assert_eq!(
                (Some(&stale.service_uid), &stale.addresses),
                (uid.as_ref(), &BTreeSet::from([vip()]))
            );
            assert_eq!(sim.carry(vip(), 80), Err(Refused::NoSuchPort(vip(), 80)));
            assert_eq!(vips().len(), 2, "and the new Service has its own");
            api.delete("web", &DeleteParams::default()).await.unwrap();
            settle().await;
            assert_eq!(vips().len(), 1, "a LoadBalancer that is deleted is withdrawn");
            tasks.end().await;
        }
    }
}

/// Nor does it write an address that nobody asks for any more.
#[tokio::test(start_paused = true)]
async fn a_kube_vip_that_begins_to_lead_announces_only_what_services_ask_for_then() {
    let (clusters, tasks) = (Clusters::new().await, TaskGroup::new());
    let sim = clusters.start(Release::From09, &tasks);
    for name in ["web", "api", "docs"] {
        clusters.guest_service(name, json!({"kube-vip.io/loadbalancerIPs": VIP})).await;
    }
    settle().await;
    let api: Api<Service> = Api::namespaced(clusters.guest(), "default");
    let unasked = json!({"spec": {"type": "ClusterIP"},
        "metadata": {"annotations": {"kube-vip.io/loadbalancerIPs": null}}});
    for name in ["api", "docs"] {
        api.patch(name, &PatchParams::default(), &Patch::Merge(&unasked)).await.unwrap();
        settle().await;
    }
    let again = json!({"spec": {"type": "LoadBalancer"}});
    api.patch("docs", &PatchParams::default(), &Patch::Merge(again)).await.unwrap();
    settle().await;
    assert_eq!(sim.announced().len(), 3);
    clusters.patch_vm("guest-1", json!({"spec": {"runStrategy": "Halted"}})).await;
    tokio::time::sleep(Duration::from_secs(120)).await;
    let [(_, left)] = &*sim.announced() else { panic!("{:?}", sim.announced()) };
    assert_eq!((left.service.name.as_str(), left.node.as_str()), ("web", "guest-2"));
    let service = clusters.service("web").await;
    assert_eq!(
        (&service.annotations()["kube-vip.io/vipHost"], ingress(&service)),
        (&"guest-2".to_owned(), vec![VIP.to_owned()])
    );
    assert_eq!(ingress(&clusters.service("docs").await), Vec::<String>::new());
    tasks.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_service_that_is_a_load_balancer_again_loses_its_stale_address_for_another() {
    let (clusters, tasks) = (Clusters::new().await, TaskGroup::new());
    let sim = clusters.start(Release::From09, &tasks);
    clusters.guest_service("web", json!({"kube-vip.io/loadbalancerIPs": VIP})).await;
    settle().await;
    let api: Api<Service> = Api::namespaced(clusters.guest(), "default");
    for patch in [
        json!({"spec": {"type": "ClusterIP"}}),
        json!({"spec": {"type": "LoadBalancer"},
            "metadata": {"annotations": {"kube-vip.io/loadbalancerIPs": "127.79.0.2"}}}),
    ] {
        api.patch("web", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
        settle().await;
    }
    let [(_, announced)] = &*sim.announced() else { panic!("{:?}", sim.announced()) };
    assert_eq!(announced.addresses, BTreeSet::from(["127.79.0.2".parse().unwrap()]));
    assert!(!announced.passed_over && !announced.was_passed_over);
    tasks.end().await;
}

/// An event without a wish withdraws nothing, and one that is passed over neither.
#[tokio::test(start_paused = true)]
async fn an_address_is_left_on_its_node_until_a_service_asks_for_it_again() {
    let (clusters, tasks) = (Clusters::new().await, TaskGroup::new());
    let sim = clusters.start(Release::From09, &tasks);
    clusters.guest_service("web", json!({"kube-vip.io/loadbalancerIPs": VIP})).await;
    settle().await;
    let api: Api<Service> = Api::namespaced(clusters.guest(), "default");
    let annotated = |vip| json!({"metadata": {"annotations": {"kube-vip.io/loadbalancerIPs": vip}}});
    let left = || sim.left_on("guest-1");
    assert_eq!(left(), BTreeSet::new());
    for (patch, expected) in [
        (json!({"spec": {"type": "ClusterIP"}}), BTreeSet::from([vip()])),
        (annotated(None), BTreeSet::from([vip()])),
        (json!({"spec": {"type": "LoadBalancer"}}), BTreeSet::from([vip()])),
        (annotated(Some(VIP)), BTreeSet::new()),
    ] {
        api.patch("web", &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap();
        settle().await;
        assert_eq!(left(), expected, "{patch}");
    }
    tasks.end().await;
}

#[tokio::test(start_paused = true)]
async fn from_1_2_on_a_stale_address_goes_with_the_endpoints_and_comes_back_with_them() {
    let (clusters, tasks) = (Clusters::new().await, TaskGroup::new());
    let sim = clusters.start(Release::From12, &tasks);
    clusters.guest_service("web", json!({"kube-vip.io/loadbalancerIPs": VIP})).await;
    settle().await;
    let api: Api<Service> = Api::namespaced(clusters.guest(), "default");
    let mut stale = Vec::new();
    for patch in [
        json!({"spec": {"type": "ClusterIP"}}),
        json!({"spec": {"selector": {"app": "nobody"}}}),
        json!({"spec": {"selector": {"app": "web"}}}),
    ] {
        api.patch("web", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
        settle().await;
        stale.push(sim.announced().len());
    }
    assert_eq!(stale, [1, 0, 1]);
    tasks.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_host_service_leads_through_the_node_ports_of_the_vms_that_its_slice_calls_ready() {
    let (clusters, tasks) = (Clusters::new().await, TaskGroup::new());
    let sim = clusters.start(Release::From12, &tasks);
    let guest = clusters.guest_service("web", json!({"kube-vip.io/ignore": "true"})).await;
    let node_port = guest.spec.unwrap().ports.unwrap()[0].node_port.unwrap();
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "lb", "namespace": "shop"},
        "spec": {"type": "LoadBalancer", "loadBalancerIP": VIP, "ports": [{"name": "http", "port": 80}]}});
    create::<Service>(Api::namespaced(clusters.harvester(), "shop"), service).await;
    settle().await;
    assert_eq!(sim.carry(vip(), 80), Err(Refused::NotAnnounced(vip())), "1.2 wants endpoints");
    let slices: Api<k8s_openapi::api::discovery::v1::EndpointSlice> =
        Api::namespaced(clusters.harvester(), "shop");
    let endpoint = |last: u8, ready| json!({"addresses": [format!("198.18.250.{last}")], "conditions": {"ready": ready}});
    let slice = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": "lb", "namespace": "shop", "labels": {"kubernetes.io/service-name": "lb"}},
        "addressType": "IPv4", "endpoints": [endpoint(10, true), endpoint(11, false), endpoint(12, true)],
        "ports": [{"name": "http", "port": node_port, "protocol": "TCP"}]});
    create(slices.clone(), slice).await;
    settle().await;
    assert_eq!(reached(&sim, 40), (names(&["guest-1", "guest-3"]), vec![]));
    // a VM that stops is not reached, and what is sent to it fails until its endpoint is not ready
    sim.set_backend(&ObjectKey::new("shop", "guest-1"), Backend::Refusing).await.unwrap();
    settle().await;
    let (names_, failures) = reached(&sim, 40);
    assert_eq!(names_, names(&["guest-3"]));
    assert!(!failures.is_empty());
    let refused = sim.dial(format!("198.18.250.10:{node_port}").parse().unwrap()).await.unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    sim.dial(format!("198.18.250.12:{node_port}").parse().unwrap()).await.unwrap();
    let probed = json!({"endpoints": [endpoint(10, false), endpoint(11, false), endpoint(12, true)]});
    slices.patch("lb", &PatchParams::default(), &Patch::Merge(probed)).await.unwrap();
    settle().await;
    assert_eq!(reached(&sim, 40), (names(&["guest-3"]), vec![]));
    assert_eq!(sim.answered().values().sum::<u64>(), 120 - failures.len() as u64);
    tasks.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_vm_migrates_and_its_topology_follows() {
    let (clusters, tasks) = (Clusters::new().await, TaskGroup::new());
    clusters.start(Release::From12, &tasks);
    settle().await;
    let instances: Api<VirtualMachineInstance> = Api::namespaced(clusters.harvester(), "shop");
    let before = instances.get("guest-1").await.unwrap();
    let migrations: Api<VirtualMachineInstanceMigration> = Api::namespaced(clusters.harvester(), "shop");
    let migration = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstanceMigration",
        "metadata": {"name": "move"}, "spec": {"vmiName": "guest-1"}});
    create(migrations.clone(), migration).await;
    settle().await;
    let after = instances.get("guest-1").await.unwrap();
    let zone =
        |instance: &VirtualMachineInstance| instance.annotations()["topology.kubernetes.io/zone"].clone();
    assert_eq!((zone(&before).as_str(), zone(&after).as_str()), ("east", "west"));
    assert_eq!(before.uid(), after.uid(), "it is the same instance");
    assert!(after.status.unwrap().migration_state.unwrap().completed);
    assert_eq!(migrations.get("move").await.unwrap().status.unwrap().phase, "Succeeded");
    tasks.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_migration_goes_on_when_the_one_before_it_is_over() {
    let (clusters, tasks) = (Clusters::new().await, TaskGroup::new());
    clusters.start(Release::From12, &tasks);
    settle().await;
    let migrations: Api<VirtualMachineInstanceMigration> = Api::namespaced(clusters.harvester(), "shop");
    for (name, how) in [("first", "stuck"), ("second", "ok")] {
        let migration = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstanceMigration",
            "metadata": {"name": name, "annotations": {MIGRATION: how}}, "spec": {"vmiName": "guest-1"}});
        create(migrations.clone(), migration).await;
        settle().await;
    }
    let phases = async || {
        let all = migrations.list(&ListParams::default()).await.unwrap().items;
        Vec::from_iter(all.into_iter().map(|migration| migration.status.unwrap().phase))
    };
    assert_eq!(phases().await, ["Running", "Pending"]);
    let goes_on = json!({"metadata": {"annotations": {MIGRATION: "ok"}}});
    migrations.patch("first", &PatchParams::default(), &Patch::Merge(goes_on)).await.unwrap();
    settle().await;
    assert_eq!(phases().await, ["Succeeded", "Succeeded"]);
    tasks.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_vm_that_is_halted_leaves_its_node_unready_and_comes_back_with_its_address() {
    let (clusters, tasks) = (Clusters::new().await, TaskGroup::new());
    clusters.start(Release::From12, &tasks);
    settle().await;
    clusters.patch_vm("guest-1", json!({"spec": {"runStrategy": "Halted"}})).await;
    settle().await;
    let instances: Api<VirtualMachineInstance> = Api::namespaced(clusters.harvester(), "shop");
    assert!(instances.get_opt("guest-1").await.unwrap().is_none());
    assert_eq!(clusters.vm("guest-1").await.status.unwrap().printable_status, "Stopped");
    let ready = |node: &Node| {
        let conditions = node.status.clone().unwrap().conditions.unwrap();
        conditions.into_iter().find(|condition| condition.type_ == "Ready").unwrap().status
    };
    let nodes: Api<Node> = Api::all(clusters.guest());
    let node = nodes.get("guest-1").await.unwrap();
    assert_eq!(ready(&node), "Unknown");
    let unreachable = "node.kubernetes.io/unreachable";
    assert_eq!(taints(&node), [UNINITIALIZED, unreachable, unreachable]);
    clusters.patch_vm("guest-1", json!({"spec": {"runStrategy": "Always"}})).await;
    settle().await;
    let instance = instances.get("guest-1").await.unwrap();
    assert_eq!(instance.status.unwrap().interfaces[0].ip_address, "198.18.250.10");
    let node = nodes.get("guest-1").await.unwrap();
    assert_eq!((ready(&node), taints(&node)), ("True".to_owned(), vec![UNINITIALIZED.to_owned()]));
    // deleted for good: the instance and the pods go, the Node waits for whoever removes lost nodes
    Api::<harvester_api::VirtualMachine>::namespaced(clusters.harvester(), "shop")
        .delete("guest-1", &DeleteParams::default())
        .await
        .unwrap();
    settle().await;
    assert!(instances.get_opt("guest-1").await.unwrap().is_none());
    let pods = Api::<Pod>::all(clusters.guest()).list(&ListParams::default()).await.unwrap().items;
    assert_eq!(pods.len(), 2);
    assert_eq!(ready(&nodes.get("guest-1").await.unwrap()), "Unknown");
    tasks.end().await;
}

#[tokio::test(start_paused = true)]
async fn the_setting_server_version_brings_the_kube_vip_of_that_release() {
    let (clusters, tasks) = (Clusters::new().await, TaskGroup::new());
    let sim = clusters.start(Release::From12, &tasks);
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "lb", "namespace": "shop"},
        "spec": {"type": "LoadBalancer", "loadBalancerIP": VIP, "ports": [{"name": "http", "port": 80}]}});
    create::<Service>(Api::namespaced(clusters.harvester(), "shop"), service).await;
    settle().await;
    assert_eq!(sim.carry(vip(), 80), Err(Refused::NotAnnounced(vip())), "1.2 wants endpoints");
    let kind = GroupVersionKind::gvk("harvesterhci.io", "v1beta1", "Setting");
    let api: Api<DynamicObject> = Api::all_with(clusters.harvester(), &ApiResource::from_gvk(&kind));
    let setting = json!({"apiVersion": "harvesterhci.io/v1beta1", "kind": "Setting",
        "metadata": {"name": "server-version"}, "value": "v1.8.0"});
    create(api, setting).await;
    settle().await;
    assert!(matches!(sim.carry(vip(), 80), Err(Refused::NoEndpoints(_))), "1.1 does not");
    tasks.end().await;
}

#[tokio::test(start_paused = true)]
async fn an_annotation_that_says_nothing_and_one_that_is_misspelt_get_one_event_each_on_their_vm() {
    let (clusters, tasks) = (Clusters::new().await, TaskGroup::new());
    clusters.start(Release::From12, &tasks);
    settle().await;
    let annotations = json!({"sim.harvesterhci.io/backend": "tired", "sim.harvesterhci.io/redy": "false"});
    clusters.patch_vm("guest-1", json!({"metadata": {"annotations": annotations}})).await;
    settle().await;
    clusters.patch_vm("guest-1", json!({"metadata": {"annotations": {"note": "again"}}})).await;
    settle().await;
    let events: Api<Event> = Api::namespaced(clusters.harvester(), "shop");
    let events = events.list(&ListParams::default()).await.unwrap().items;
    let mut told: Vec<_> = events
        .iter()
        .map(|event| (event.reason.as_deref().unwrap(), event.count, event.message.as_deref().unwrap()))
        .collect();
    told.sort_unstable();
    let [("UnknownKey", Some(1), key), ("UnknownValue", Some(1), value)] = *told else { panic!("{told:?}") };
    assert!(
        key.contains("sim.harvesterhci.io/redy is ignored") && key.contains("sim.harvesterhci.io/ready"),
        "{key}"
    );
    assert!(value.contains("slow=2s"), "{value}");
    tasks.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_somebody_deletes_comes_back() {
    let (clusters, tasks) = (Clusters::new().await, TaskGroup::new());
    clusters.start(Release::From12, &tasks);
    settle().await;
    let pods: Api<Pod> = Api::namespaced(clusters.guest(), "default");
    let before = pods.get("web-guest-1").await.unwrap();
    pods.delete("web-guest-1", &DeleteParams::default()).await.unwrap();
    settle().await;
    let after = pods.get("web-guest-1").await.unwrap();
    assert_ne!(before.uid(), after.uid());
    assert!(pod_is_ready(&after));
    tasks.end().await;
}

#[tokio::test(start_paused = true)]
async fn the_subresources_start_stop_and_restart_a_vm_and_tell_its_host_name() {
    let (clusters, tasks) = (Clusters::new().await, TaskGroup::new());
    clusters.start(Release::From12, &tasks);
    settle().await;
    let instances: Api<VirtualMachineInstance> = Api::namespaced(clusters.harvester(), "shop");
    let first = instances.get("guest-1").await.unwrap().uid();
    let router = sim_harvester::subresources::router(clusters.harvester());
    clusters.harvester.aggregate("subresources.kubevirt.io", router);
    let ask = async |method: &str, path: &str| {
        let request = http::Request::builder()
            .method(method)
            .uri(format!("/apis/subresources.kubevirt.io/v1/namespaces/shop/{path}"))
            .body(kube::client::Body::empty())
            .unwrap();
        let answer = clusters.harvester().send(request).await.unwrap();
        let code = answer.status().as_u16();
        let body = answer.into_body().collect_bytes().await.unwrap();
        settle().await;
        (code, String::from_utf8(body.to_vec()).unwrap())
    };
    let (code, info) = ask("GET", "virtualmachineinstances/guest-1/guestosinfo").await;
    assert_eq!((code, info.contains(r#""hostname":"guest-1""#)), (200, true), "{info}");
    assert_eq!(ask("PUT", "virtualmachines/guest-1/restart").await.0, 202);
    let second = instances.get("guest-1").await.unwrap().uid();
    assert_ne!(first, second);
    assert_eq!(ask("PUT", "virtualmachines/guest-1/stop").await.0, 202);
    assert!(instances.get_opt("guest-1").await.unwrap().is_none());
    assert_eq!(ask("PUT", "virtualmachines/guest-1/stop").await.0, 409);
    assert_eq!(ask("GET", "virtualmachineinstances/guest-1/guestosinfo").await.0, 404);
    assert_eq!(ask("PUT", "virtualmachines/guest-1/start").await.0, 202);
    assert!(instances.get_opt("guest-1").await.unwrap().is_some());
    clusters
        .patch_vm("guest-1", json!({"metadata": {"annotations": {"sim.harvesterhci.io/agent": "silent"}}}))
        .await;
    settle().await;
    assert_eq!(ask("GET", "virtualmachineinstances/guest-1/guestosinfo").await.0, 409);
    tasks.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_deployment_that_somebody_creates_runs_scales_and_is_reached_through_its_service() {
    let (clusters, tasks) = (Clusters::new().await, TaskGroup::new());
    let sim = clusters.start(Release::From12, &tasks);
    settle().await;
    let api: Api<Deployment> = Api::namespaced(clusters.guest(), "default");
    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "shop"},
        "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "shop"}}, "template": {
            "metadata": {"labels": {"app": "shop"}}, "spec": {"containers": [{"name": "nginx", "image": "nginx"}]}}}});
    create(api.clone(), deployment).await;
    clusters.guest_service("web", json!({"kube-vip.io/loadbalancerIPs": VIP})).await;
    let services: Api<Service> = Api::namespaced(clusters.guest(), "default");
    let selector = json!({"spec": {"selector": {"app": "shop"}}});
    services.patch("web", &PatchParams::default(), &Patch::Merge(selector)).await.unwrap();
    settle().await;
    assert_eq!(api.get("shop").await.unwrap().status.unwrap().ready_replicas, Some(2));
    assert_eq!(reached(&sim, 40), (names(&["guest-1", "guest-2"]), vec![]));
    let more = json!({"spec": {"replicas": 3}});
    api.patch("shop", &PatchParams::default(), &Patch::Merge(more)).await.unwrap();
    settle().await;
    assert_eq!(reached(&sim, 40), (names(&["guest-1", "guest-2", "guest-3"]), vec![]));
    api.delete("shop", &DeleteParams::default()).await.unwrap();
    settle().await;
    let pods =
        Api::<Pod>::all(clusters.guest()).list(&ListParams::default().labels("app=shop")).await.unwrap();
    assert_eq!(pods.items.len(), 0, "garbage collection");
    assert!(matches!(sim.carry(vip(), 80), Err(Refused::NotAnnounced(_))), "1.2 withdraws without endpoints");
    tasks.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_slice_is_not_made_again_for_a_service_whose_end_was_not_seen_yet() {
    let (clusters, tasks) = (Clusters::new().await, TaskGroup::new());
    clusters.start(Release::From12, &tasks);
    clusters.guest_service("web", json!({})).await;
    settle().await;
    let slow = Rule {
        user: Some("sim-harvester".to_owned()),
        verb: Some("watch".to_owned()),
        resource: Some("services".to_owned()),
        ..Rule::new(Answer::Delay(Duration::from_secs(30)))
    };
    clusters.guest.faults().add(slow);
    clusters.guest.faults().close_watches();
    tokio::time::sleep(Duration::from_secs(5)).await;
    let services: Api<Service> = Api::namespaced(clusters.guest(), "default");
    services.delete("web", &DeleteParams::default()).await.unwrap();
    let before = clusters.guest.revision();
    tokio::time::sleep(Duration::from_secs(5)).await;
    let changes = clusters.guest.revision() - before;
    assert!(changes < 10, "{changes} changes");
    tasks.end().await;
}
