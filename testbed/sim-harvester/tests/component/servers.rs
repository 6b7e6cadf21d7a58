//! The same on simulated and on real servers: what we write is what a real API server takes.

use std::{collections::BTreeSet, net::IpAddr};

use k8s_openapi::api::{
    core::v1::{Node, Pod, Service},
    discovery::v1::EndpointSlice,
};
use kube::{
    Api, Client, ResourceExt,
    runtime::wait::{await_condition, conditions::is_deleted},
};

use harvester_api::{VirtualMachine, VirtualMachineInstance};
use program::{Clock, TaskGroup};
use sim_harvester::{
    Carrier, Options, Release, SimHarvester,
    guest::{UNINITIALIZED, pod_is_ready},
    vm::VirtualMachineInstanceMigration,
};
use test_cluster::{TestCluster, User};

use crate::fixtures::{ingress, options};

const VIP: &str = "127.79.0.1";
/// On a simulated server the clock stands still, and this passes only when nobody has anything to do.
pub(crate) const PATIENCE: std::time::Duration = std::time::Duration::from_secs(60);

const MACHINES: &str = "
{apiVersion: v1, kind: Node, metadata: {name: host-1, labels: {topology.kubernetes.io/zone: east}}}
---
{apiVersion: v1, kind: Node, metadata: {name: host-2, labels: {topology.kubernetes.io/zone: west}}}
---
apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata:
  name: guest-1
  namespace: default
  labels: &labels
    guestcluster.harvesterhci.io/name: demo
    harvesterhci.io/creator: docker-machine-driver-harvester
spec:
  runStrategy: RerunOnFailure
  template:
    metadata: {labels: *labels}
    spec: {networks: [{name: nic-0, multus: {networkName: default/mgmt}}]}
";

const SERVICE: &str = "
apiVersion: v1
kind: Service
metadata: {name: web, namespace: default, annotations: {kube-vip.io/loadbalancerIPs: 127.79.0.1}}
spec: {type: LoadBalancer, selector: {app: web}, ports: [{name: http, port: 80}]}
";

pub(crate) fn start(cluster: &TestCluster, tasks: &TaskGroup) -> SimHarvester {
    let (guest, harvester) = (cluster.guest.client(User::Driver), cluster.harvester.client(User::Driver));
    let options = options(guest, harvester, Release::From12, Carrier::Memory);
    let writes_slices = cluster.guest.simulated().is_some();
    SimHarvester::start(
        Options { writes_slices, clock: Clock::starting_at(cluster.start()), ..options },
        tasks,
    )
}

pub(crate) async fn until<K>(client: &Client, name: &str, holds: impl Fn(&K) -> bool) -> K
where
    K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
        + serde::de::DeserializeOwned
        + Clone
        + std::fmt::Debug
        + Send
        + 'static,
{
    let api: Api<K> = Api::namespaced(client.clone(), "default");
    let seen = await_condition(api.clone(), name, |object: Option<&K>| object.is_some_and(&holds));
    match tokio::time::timeout(PATIENCE, seen).await {
        Ok(seen) => seen.unwrap().expect("it is there"),
        Err(_) => panic!("{} {name} is not as it should be: {:#?}", K::kind(&()), api.get_opt(name).await),
    }
}

fn zone(instance: &VirtualMachineInstance) -> Option<&str> {
    instance.annotations().get("topology.kubernetes.io/zone").map(String::as_str)
}

test_cluster::component_tests! {
    /// From a VM to a pod that a VIP leads to, through a migration, and to the end of all of it.
    async fn a_vm_from_its_start_to_its_end(cluster: TestCluster) {
        let (guest, harvester) = (cluster.guest.client(User::Driver), cluster.harvester.client(User::Driver));
        sim_harvester::crds::apply(&harvester).await.unwrap();
        let tasks = TaskGroup::new();
        let sim = start(&cluster, &tasks);
        cluster.harvester.apply(MACHINES).await;
        cluster.guest.apply(SERVICE).await;

        until::<VirtualMachine>(&harvester, "guest-1", |vm| vm.status.as_ref().is_some_and(|status| status.ready)).await;
        until::<Pod>(&guest, "web-guest-1", pod_is_ready).await;
        await_condition(Api::<Node>::all(guest.clone()), "guest-1", |node: Option<&Node>| {
            let taints = node.and_then(|node| node.spec.as_ref()?.taints.as_ref()).into_iter().flatten();
            taints.map(|taint| &*taint.key).eq([UNINITIALIZED])
        })
        .await
        .unwrap();
        let service = until::<Service>(&guest, "web", |service| !ingress(service).is_empty()).await;
        assert_eq!(ingress(&service), [VIP]);
        assert_eq!(service.annotations()["kube-vip.io/vipHost"], "guest-1");
        let slices: Api<EndpointSlice> = Api::namespaced(guest.clone(), "default");
        let of_web = kube::api::ListParams::default().labels("kubernetes.io/service-name=web");
        let name = slices.list(&of_web).await.unwrap().items[0].name_any();
        let ready = |slice: &EndpointSlice| {
            let conditions = |endpoint: &k8s_openapi::api::discovery::v1::Endpoint| endpoint.conditions.clone();
            slice.endpoints.iter().filter_map(conditions).any(|conditions| conditions.ready == Some(true))
        };
        until::<EndpointSlice>(&guest, &name, ready).await;
        cluster.settle().await;
        let vip: IpAddr = VIP.parse().unwrap();
        let reached: BTreeSet<_> = (0..5).filter_map(|_| sim.carry(vip, 80).ok()).map(|name| name.vm).collect();
        assert_eq!(reached, BTreeSet::from(["guest-1".to_owned()]));

        let before = until::<VirtualMachineInstance>(&harvester, "guest-1", |of| zone(of).is_some()).await;
        assert_eq!(zone(&before), Some("east"));
        cluster.harvester.apply("{apiVersion: kubevirt.io/v1, kind: VirtualMachineInstanceMigration,
            metadata: {name: move, namespace: default}, spec: {vmiName: guest-1}}").await;
        let succeeded = |of: &VirtualMachineInstanceMigration| {
            of.status.as_ref().is_some_and(|status| status.phase == "Succeeded")
        };
        until(&harvester, "move", succeeded).await;
        let after = until::<VirtualMachineInstance>(&harvester, "guest-1", |_| true).await;
        assert_eq!((zone(&after), after.uid()), (Some("west"), before.uid()));

        let vms: Api<VirtualMachine> = Api::namespaced(harvester.clone(), "default");
        vms.delete("guest-1", &Default::default()).await.unwrap();
        let instances: Api<VirtualMachineInstance> = Api::namespaced(harvester, "default");
        let uid = after.uid().unwrap_or_default();
        await_condition(instances, "guest-1", is_deleted(&uid)).await.unwrap();
        tasks.end().await;
    }
}
