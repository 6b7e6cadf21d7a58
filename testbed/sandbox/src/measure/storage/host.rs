//! How long Harvester itself takes for a disk: what no driver can be quicker than.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use anyhow::{Context, Result};
use controller_kit::{Cache, ObjectKey};
use csi_driver::attach::hotplug::{Disk, disk};
use harvester_api::{VirtualMachine, VirtualMachineInstance};
use kube::{Api, Client, runtime::watcher};
use program::TaskGroup;
use tokio::{sync::watch, time::Instant};

/// Whatever takes longer does not happen.
const PATIENCE: Duration = Duration::from_secs(30);

/// One disk on its way into a VM, or out of it.
#[derive(Clone, Debug)]
struct Way {
    vm: String,
    volume: String,
    is_in: bool,
    /// The VM was seen to be asked for it.
    begun: Option<Instant>,
    ended: Option<Instant>,
}

/// What watches of VMs and their instances tell.
pub(super) struct Host {
    way: Arc<Mutex<Option<Way>>>,
    moved: watch::Receiver<()>,
    vms: Cache<VirtualMachine>,
    instances: Cache<VirtualMachineInstance>,
    tasks: TaskGroup,
}

impl Drop for Host {
    fn drop(&mut self) {
        self.tasks.stop.cancel();
    }
}

impl Host {
    pub(super) async fn watch(harvester: &Client) -> Self {
        let (tasks, config) = (TaskGroup::new(), watcher::Config::default);
        let vms: Cache<VirtualMachine> =
            Cache::start(&tasks, Api::namespaced(harvester.clone(), crate::VM_NAMESPACE), config());
        let instances: Cache<VirtualMachineInstance> =
            Cache::start(&tasks, Api::namespaced(harvester.clone(), crate::VM_NAMESPACE), config());
        let (way, (tell, moved)) = (Arc::new(Mutex::new(None)), watch::channel(()));
        let look = {
            let (way, vms, instances) = (way.clone(), vms.clone(), instances.clone());
            move || {
                if let Some(way) = &mut *lock(&way) {
                    note(way, &state(&vms, &instances, &way.vm, &way.volume));
                }
                tell.send_replace(());
            }
        };
        let again = look.clone();
        vms.on_change(move |_| look());
        instances.on_change(move |_| again());
        vms.ready().await;
        instances.ready().await;
        Self { way, moved, vms, instances, tasks }
    }

    /// The state of a disk now.
    pub(super) fn disk(&self, vm: &str, volume: &str) -> Disk {
        state(&self.vms, &self.instances, vm, volume)
    }

    /// VMs of which it is known now that they have the disk.
    pub(super) fn with(&self, volume: &str) -> Vec<String> {
        let vms = self.vms.list();
        let names = vms.iter().filter_map(|vm| vm.metadata.name.clone());
        names.filter(|vm| self.disk(vm, volume) != Disk::Absent).collect()
    }

    /// A VM as it is known now.
    pub(super) fn vm(&self, name: &str) -> Result<Arc<VirtualMachine>> {
        self.vms.get(&ObjectKey::new(crate::VM_NAMESPACE, name)).context("there is no such VM")
    }

    /// Waits until something has changed, for no longer than `give_up`.
    pub(super) async fn moves(&mut self, give_up: Instant) -> Result<()> {
        tokio::time::timeout_at(give_up, self.moved.changed()).await.context("nothing changes")??;
        Ok(())
    }

    /// Follows this disk from now on.
    pub(super) fn follow(&self, vm: &str, volume: &str, is_in: bool) {
        let (vm, volume) = (vm.to_owned(), volume.to_owned());
        *lock(&self.way) = Some(Way { vm, volume, is_in, begun: None, ended: None });
    }

    /// From when the VM was asked until the disk was where it should be.
    pub(super) async fn took(&mut self) -> Result<Duration> {
        let give_up = Instant::now() + PATIENCE;
        loop {
            self.moved.borrow_and_update();
            let times = lock(&self.way).as_ref().and_then(|way| Some((way.begun?, way.ended?)));
            if let Some((begun, ended)) = times {
                return Ok(ended - begun);
            }
            self.moves(give_up).await.context("the disk is not seen where it should be")?;
        }
    }
}

fn lock(way: &Mutex<Option<Way>>) -> std::sync::MutexGuard<'_, Option<Way>> {
    way.lock().expect("no panic while noting")
}

fn state(
    vms: &Cache<VirtualMachine>,
    instances: &Cache<VirtualMachineInstance>,
    vm: &str,
    volume: &str,
) -> Disk {
    let key = ObjectKey::new(crate::VM_NAMESPACE, vm);
    disk(vms.get(&key).as_deref(), instances.get(&key).as_deref(), volume)
}

fn note(way: &mut Way, disk: &Disk) {
    let (begins, ends) = match disk {
        Disk::Absent => (!way.is_in, !way.is_in),
        Disk::Ready => (way.is_in, way.is_in),
        Disk::Removing(_) => (!way.is_in, false),
        _ => (way.is_in, false),
    };
    if begins {
        way.begun.get_or_insert_with(Instant::now);
    }
    if ends {
        way.ended.get_or_insert_with(Instant::now);
    }
}

#[cfg(test)]
mod tests {
    use csi_driver::attach::hotplug::Progress;

    use super::*;

    fn way(is_in: bool) -> Way {
        Way { vm: "demo-1".to_owned(), volume: "pvc-1".to_owned(), is_in, begun: None, ended: None }
    }

    #[test]
    fn the_hosts_own_time_begins_when_the_vm_is_asked_and_ends_when_the_disk_is_there() {
        let mut way = way(true);
        note(&mut way, &Disk::Absent);
        assert_eq!((way.begun, way.ended), (None, None));
        note(&mut way, &Disk::Adding(Progress::default()));
        assert!(way.begun.is_some() && way.ended.is_none());
        note(&mut way, &Disk::Ready);
        assert!(way.ended >= way.begun && way.ended.is_some());
    }

    #[test]
    fn of_a_disk_that_leaves_it_ends_when_nobody_has_it() {
        let mut way = way(false);
        note(&mut way, &Disk::Ready);
        assert_eq!((way.begun, way.ended), (None, None));
        note(&mut way, &Disk::Removing(Progress::default()));
        assert!(way.begun.is_some() && way.ended.is_none());
        note(&mut way, &Disk::Absent);
        assert!(way.ended.is_some());
    }
}
