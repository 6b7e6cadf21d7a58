//! What holds of volumes, at any time and at rest.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError},
};

use csi_driver::{attach::hotplug, volume::record::VolumeRecord};
use harvester_api::{VirtualMachine, VirtualMachineInstance, annotations::CSI_ATTACH};
use http::{Method, Request};
use k8s_openapi::api::{
    core::v1::{PersistentVolume, PersistentVolumeClaim, Pod},
    storage::v1::VolumeAttachment,
};
use kube::{Client, ResourceExt, client::Body};
use serde_json::Value;
use test_cluster::TestCluster;

/// Looks at the machines after each write of ours, and keeps what it saw. Clones are the same.
#[derive(Clone)]
pub(super) struct Watch {
    cluster: Arc<TestCluster>,
    broken: Arc<Mutex<Vec<String>>>,
}

impl Watch {
    pub(super) fn new(cluster: &Arc<TestCluster>) -> Self {
        Self { cluster: cluster.clone(), broken: Arc::default() }
    }

    /// A client of the host: whatever it writes is looked at when the host has it, whether its answer arrives or not.
    pub(super) fn client(&self, client: Client) -> Client {
        let (watch, namespace) = (self.clone(), client.default_namespace().to_owned());
        let service = tower::service_fn(move |request: Request<Body>| {
            let (watch, client) = (watch.clone(), client.clone());
            async move {
                let what = format!("{} {}", request.method(), request.uri().path());
                let is_read = request.method() == Method::GET;
                let answer = client.send(request).await;
                if !is_read {
                    watch.look(&what).await;
                }
                answer
            }
        });
        Client::new(service, namespace)
    }

    /// No volume is in two machines. All volumes of these schedules are for one.
    pub(super) async fn look(&self, when: &str) {
        for (volume, machines) in machines(&self.cluster).await {
            if machines.len() > 1 {
                let what = format!("{when}: volume {volume} is in {machines:?}");
                self.broken.lock().unwrap_or_else(PoisonError::into_inner).push(what);
            }
        }
    }

    /// # Panics
    /// When a volume was in two machines.
    pub(super) fn must_hold(&self) {
        let broken = self.broken.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(broken.is_empty(), "a volume was in two machines: {broken:#?}");
    }
}

/// The machines of each volume: by the template, by the instance, or by the instance's status.
async fn machines(cluster: &TestCluster) -> BTreeMap<String, BTreeSet<String>> {
    let mut all: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut note = |claims: Vec<&str>, machine: String| {
        for claim in claims {
            all.entry(claim.to_owned()).or_default().insert(machine.clone());
        }
    };
    for vm in &cluster.harvester.list::<VirtualMachine>().await {
        note(hotplug::claims(Some(vm), None).collect(), vm.name_any());
    }
    for instance in &cluster.harvester.list::<VirtualMachineInstance>().await {
        if hotplug::runs(instance) {
            note(hotplug::claims(None, Some(instance)).collect(), instance.name_any());
        }
    }
    all
}

/// Whether the disk of this volume is in the instance.
pub(super) fn is_ready(instance: &VirtualMachineInstance, volume: &str) -> bool {
    let statuses = instance.status.as_ref().and_then(|status| status.rest.get("volumeStatus"));
    let mut statuses = statuses.and_then(Value::as_array).into_iter().flatten();
    statuses.any(|status| status["name"] == volume && status["phase"] == "Ready")
}

/// Every Pod of `pods` has its volume, and nothing else is anywhere but claims of the host that were made too late, each
/// with the mark by which people find it, and the annotations that were written too late.
///
/// # Panics
/// Where that does not hold.
pub(super) async fn at_rest(
    cluster: &TestCluster,
    pods: Vec<String>,
    late: &BTreeSet<String>,
    annotated_late: &BTreeSet<String>,
) {
    let (guest, harvester) = (&cluster.guest, &cluster.harvester);
    let volumes = guest.list::<PersistentVolume>().await;
    let claims = guest.list::<PersistentVolumeClaim>().await;
    let attachments = guest.list::<VolumeAttachment>().await;
    let mut needed = BTreeMap::new();
    for key in pods {
        let pod = guest.get::<Pod>(&key).await.unwrap_or_else(|| panic!("Pod {key} is gone"));
        let spec = pod.spec.clone().unwrap_or_default();
        let node = spec.node_name.unwrap_or_else(|| panic!("Pod {key} has no node"));
        let claim = spec.volumes.into_iter().flatten().find_map(|volume| volume.persistent_volume_claim);
        let claim = claim.expect("each Pod has a claim").claim_name;
        let claim = claims.iter().find(|one| one.name_any() == claim).expect("each Pod's claim is there");
        let name = claim.spec.as_ref().and_then(|spec| spec.volume_name.clone());
        let name = name.unwrap_or_else(|| panic!("the claim of Pod {key} is not bound"));
        let volume =
            volumes.iter().find(|volume| volume.name_any() == name).expect("a bound volume is there");
        needed.insert(handle(volume), (node, name, key, pod));
    }
    let wanted: BTreeMap<_, _> =
        needed.iter().map(|(volume, (node, ..))| (volume.clone(), BTreeSet::from([node.clone()]))).collect();
    assert_eq!(
        machines(cluster).await,
        wanted,
        "volumes in machines (left), and where Pods need them (right)"
    );

    let attached: BTreeSet<_> = attachments
        .iter()
        .map(|one| {
            let is_attached = one.status.as_ref().is_some_and(|status| status.attached);
            let source = one.spec.source.persistent_volume_name.clone().unwrap_or_default();
            (source, one.spec.node_name.clone(), is_attached)
        })
        .collect();
    let expected: BTreeSet<_> =
        needed.values().map(|(node, name, ..)| (name.clone(), node.clone(), true)).collect();
    assert_eq!(attached, expected, "VolumeAttachments (left), and what Pods need (right)");
    let namespace = &cluster.guest_cluster().vm_namespace;
    for (volume, (node, _, key, pod)) in &needed {
        let instance = harvester.get::<VirtualMachineInstance>(&format!("{namespace}/{node}")).await;
        let instance = instance.unwrap_or_else(|| panic!("the machine {node} of Pod {key} runs"));
        assert!(is_ready(&instance, volume), "the disk of Pod {key} is in its machine");
        assert!(pod.annotations().contains_key(sim_sidecars::MOUNTED), "Pod {key} has mounted its volume");
    }

    let on_host = harvester.list::<PersistentVolumeClaim>().await;
    let handles: BTreeSet<_> = volumes.iter().map(handle).collect();
    let (of_volumes, left): (Vec<_>, Vec<_>) =
        on_host.iter().partition(|claim| handles.contains(&claim.name_any()));
    assert_eq!(of_volumes.len(), handles.len(), "claims of the host (left), volumes of the guest (right)");
    for claim in left {
        let name = claim.name_any();
        assert!(late.contains(&name), "claim {name} of the host has no volume of the guest");
        let record = VolumeRecord::of(claim);
        assert!(record.is_some_and(|record| record.name == name), "claim {name} does not say whose it is");
    }
    let bound: BTreeSet<_> =
        claims.iter().filter_map(|claim| claim.spec.as_ref()?.volume_name.clone()).collect();
    let known: BTreeSet<_> = volumes.iter().map(ResourceExt::name_any).collect();
    assert_eq!(known, bound, "volumes of the guest (left), and those that a claim has (right)");
    assert_eq!(bound.len(), claims.len(), "every claim has a volume");
    for claim in &on_host {
        if let Some(text) = claim.annotations().get(CSI_ATTACH) {
            let name = claim.name_any();
            assert!(needed.contains_key(&name) || annotated_late.contains(&name), "{name}, detached: {text}");
        }
    }
}

fn handle(volume: &PersistentVolume) -> String {
    let csi = volume.spec.as_ref().and_then(|spec| spec.csi.as_ref());
    csi.map(|csi| csi.volume_handle.clone()).unwrap_or_default()
}
