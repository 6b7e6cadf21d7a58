//! Watch caches of everything that the controllers read, all namespaces. Without managedFields: where those matter, the
//! object is read afresh.

mod trim;

use controller_kit::{Cache, RawObject};
use harvester_api::{IPPool, LoadBalancer, VirtualMachine, VirtualMachineInstance, labels};
use k8s_openapi::api::{core::v1::Service, discovery::v1::EndpointSlice};
use kube::{Api, Client, Resource, ResourceExt as _, core::PartialObjectMeta, runtime::watcher};
use program::{TaskGroup, capabilities::Right, health::Check};
use tokio::sync::watch;

pub(crate) use trim::{is_trimmed, trimmed};
use trim::{tell_of_lost_labels, trim_service, trim_slice, trim_vm, trim_vmi};

const HARVESTER: &str = "loadbalancer.harvesterhci.io";

/// The rights to list on which every address depends, in the order of [`Caches::watch_errors`].
const LISTS: [Right; 4] = [
    Right::new("list", HARVESTER, "ippools"),
    Right::new("list", HARVESTER, "loadbalancers"),
    Right::new("list", "", "services"),
    Right::new("list", "discovery.k8s.io", "endpointslices"),
];

/// Objects in one page of a list: what a page takes while it is read stays with the process.
const AT_ONCE: u32 = 100;
/// Of what tenants write without the webhook's limits: an object may have more than a million bytes, and a page is there twice while
/// it is read.
const OF_TENANTS_AT_ONCE: u32 = 25;

/// A VM without `spec` and `status`: the API server leaves them out of its answers.
pub(crate) type VmMetadata = PartialObjectMeta<VirtualMachine>;

/// Kubernetes' own writers of EndpointSlices, in the label [`labels::SLICE_MANAGED_BY`]. They copy all labels of a Service, and of
/// Endpoints, to the slices that they make for it: a tenant's Service with our label, and a million bytes of others, has such
/// slices. The Go load balancer does not set this label (docs/contract/load-balancer.md#6.2).
const KUBERNETES_WRITERS: [&str; 2] =
    ["endpointslice-controller.k8s.io", "endpointslicemirroring-controller.k8s.io"];

/// Whether the slice is one of those that Kubernetes makes, of which the watch does not tell.
pub(crate) fn is_of_kubernetes(slice: &impl Resource) -> bool {
    slice
        .labels()
        .get(labels::SLICE_MANAGED_BY)
        .is_some_and(|writer| KUBERNETES_WRITERS.contains(&writer.as_str()))
}

/// The caches. Clones share them.
#[derive(Clone)]
pub(crate) struct Caches {
    pub(crate) load_balancers: Cache<RawObject<LoadBalancer>>,
    pub(crate) pools: Cache<RawObject<IPPool>>,
    /// Only those with label [`labels::SERVICE_LB`]. Of large ones only what [`is_trimmed`] says is here.
    pub(crate) services: Cache<RawObject<Service>>,
    /// Only those with label [`labels::SERVICE_LB`] that none of [`KUBERNETES_WRITERS`] writes. Of large ones only what
    /// [`is_trimmed`] says is here.
    pub(crate) slices: Cache<RawObject<EndpointSlice>>,
    /// Pruned to labels, deletion, the Go program's finalizer, networks and interfaces. Of one with more labels than
    /// any real one no label is here, and [`is_trimmed`] says so.
    pub(crate) vmis: Cache<VirtualMachineInstance>,
    /// Pruned to what says that it is going, and which guest cluster goes with it. Whether there is none of a name only the
    /// server tells: KubeVirt may not be there, the VMs may not be listed, and a watch may be late.
    pub(crate) vms: Cache<VmMetadata>,
}

impl Caches {
    /// Begins to list and watch. VMs come last: no address waits for their list, and an API server that reads thousands of them
    /// is slow to answer with the others.
    pub(crate) fn watch(tasks: &TaskGroup, client: &Client) -> Self {
        let any = || watcher::Config::default().page_size(AT_ONCE);
        let of_tenants = || watcher::Config::default().page_size(OF_TENANTS_AT_ONCE);
        let labelled = format!("{}=true", labels::SERVICE_LB);
        let by_others =
            KUBERNETES_WRITERS.map(|writer| format!(",{}!={writer}", labels::SLICE_MANAGED_BY)).concat();
        let all = || client.clone();
        let first = Self {
            load_balancers: Cache::start(tasks, Api::all(all()), any()),
            pools: Cache::start(tasks, Api::all(all()), any()),
            services: Cache::start_trimmed(
                tasks,
                Api::all(all()),
                of_tenants().labels(&labelled),
                trim_service,
            ),
            slices: Cache::start_trimmed(
                tasks,
                Api::all(all()),
                of_tenants().labels(&format!("{labelled}{by_others}")),
                trim_slice,
            ),
            vmis: Cache::start_trimmed(tasks, Api::all(all()), of_tenants(), trim_vmi),
            vms: Cache::empty(),
        };
        first.vmis.on_change(tell_of_lost_labels);
        let others = first.clone();
        let others = async move { others.ready().await };
        Self { vms: Cache::start_after(others, tasks, Api::all(all()), of_tenants(), trim_vm), ..first }
    }

    /// Waits until everything is listed that an address depends on. The VMs do not count: KubeVirt may not be there.
    pub(crate) async fn ready(&self) {
        let Self { load_balancers, pools, services, slices, vmis: _, vms: _ } = self;
        tokio::join!(load_balancers.ready(), pools.ready(), services.ready(), slices.ready());
    }

    /// The list on which addresses depend that is not kept up to date now, and why; nothing while all are.
    pub(crate) fn unlisted(&self) -> Option<String> {
        let mut lists = LISTS.into_iter().zip(self.watch_errors());
        lists.find_map(|(right, error)| Some(format!("{right}: {}", error.borrow().as_ref()?)))
    }

    /// Fails `lists` while a list is missing or not kept up to date. `at_work` says that all were complete once.
    pub(crate) async fn report(self, lists: Check, mut at_work: watch::Receiver<bool>) {
        let [mut pools, mut load_balancers, mut services, mut slices] = self.watch_errors();
        loop {
            match self.unlisted() {
                Some(why) => lists.fail(why),
                None if *at_work.borrow() => lists.pass(),
                None => lists.fail("not complete yet"),
            }
            // the senders outlive us, but for the last one, which has said all by then
            tokio::select! {
                _ = pools.changed() => {}
                _ = load_balancers.changed() => {}
                _ = services.changed() => {}
                _ = slices.changed() => {}
                Ok(()) = at_work.changed() => {}
            }
        }
    }

    fn watch_errors(&self) -> [watch::Receiver<Option<String>>; 4] {
        let Self { load_balancers, pools, services, slices, vmis: _, vms: _ } = self;
        let (pools, load_balancers) = (pools.watch_errors(), load_balancers.watch_errors());
        [pools, load_balancers, services.watch_errors(), slices.watch_errors()]
    }

    /// Caches of an empty cluster; for tests.
    #[cfg(test)]
    pub(crate) fn empty() -> Self {
        Self {
            load_balancers: Cache::empty(),
            pools: Cache::empty(),
            services: Cache::empty(),
            slices: Cache::empty(),
            vmis: Cache::empty(),
            vms: Cache::empty(),
        }
    }
}

/// A client whose every request fails; for tests of what reads caches.
#[cfg(test)]
pub(crate) fn no_server() -> Client {
    let server = tower::service_fn(|_: http::Request<kube::client::Body>| async {
        Err::<http::Response<kube::client::Body>, tower::BoxError>("there is no server".into())
    });
    Client::new(server, "default")
}
