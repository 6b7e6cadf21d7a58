//! The list of VMs, on which backends depend.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use controller_kit::{Cache, ObjectKey, Queue};
use harvester_api::{VirtualMachineInstance, WorkloadType};
use program::TaskGroup;

use crate::caches::Caches;

/// Whether the VMs are listed. Where KubeVirt is not there, they never are. Clones share the answer.
#[derive(Clone)]
pub(crate) struct VmWatch {
    vmis: Cache<VirtualMachineInstance>,
    is_listed: Arc<AtomicBool>,
}

impl VmWatch {
    /// Wakes the load balancers of VMs in `queue` when the list is complete, and when the reason changes for which
    /// there is none.
    pub(crate) fn start(tasks: &TaskGroup, caches: &Caches, queue: &Queue<ObjectKey>) -> Self {
        let watch = Self { vmis: caches.vmis.clone(), is_listed: Arc::default() };
        let (load_balancers, queue) = (caches.load_balancers.clone(), queue.clone());
        let (vmis, is_listed) = (watch.vmis.clone(), watch.is_listed.clone());
        tasks.spawn_until_stop(async move {
            let wake = || {
                let all = load_balancers.list();
                let of_vms = all.iter().filter(|lb| lb.spec.workload() == WorkloadType::Vm);
                of_vms.for_each(|lb| queue.add(ObjectKey::of(&**lb)));
            };
            let (mut errors, mut told) = (vmis.watch_errors(), None);
            loop {
                tokio::select! {
                    () = vmis.ready() => break,
                    error = errors.wait_for(|error| *error != told) => {
                        told = error.expect("the cache holds the sender").clone();
                    }
                }
                wake();
            }
            is_listed.store(true, Ordering::Release);
            wake();
        });
        watch
    }

    /// Whether backends can be chosen.
    pub(crate) fn is_listed(&self) -> bool {
        self.is_listed.load(Ordering::Acquire)
    }

    /// Why the watch does not work now.
    pub(crate) fn error(&self) -> Option<String> {
        self.vmis.watch_error()
    }
}
