//! Inconsistent states, each made through the API, and how long it takes until the VolumeAttachment is true and its VM alone
//! has the disk. One volume is in one state; all of them at once, with the real program and a stand-in for the external
//! attacher.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context, Result, ensure};
use controller_kit::{Cache, ObjectKey};
use csi_driver::attach::hotplug::{self, Disk};
use harvester_api::{VirtualMachine, annotations::CSI_ATTACH, names::CSI_DRIVER};
use k8s_openapi::api::{
    coordination::v1::Lease, core::v1::PersistentVolumeClaim, storage::v1::VolumeAttachment,
};
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams},
    runtime::watcher,
};
use program::{Clock, TaskGroup};
use serde_json::json;
use sim_sidecars::{Options, Pace, Plugin, Sidecars};
use tokio::time::Instant;

use super::{calls, host::Host, settled};
use crate::{
    environment::{Environment, GuestVm},
    manifests::{apply_one, plain},
    measure::{Told, percentile},
};

/// Nothing of it takes longer: four times what counts as left behind.
const PATIENCE: Duration = Duration::from_secs(240);
const GLANCE: Duration = Duration::from_millis(10);
/// Of whoever reconciles.
const LEASE: &str = csi_driver::lease::HEALING;

/// Where the disk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Nowhere,
    /// In the VM that the VolumeAttachment names.
    Here,
    /// In another VM, which no VolumeAttachment names.
    Elsewhere,
}

/// What the annotation on the host's claim says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Recorded {
    Nothing,
    Here(&'static str),
    Elsewhere(&'static str),
    /// A VM of this name that is no more.
    Former,
    Nonsense,
}

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct State {
    /// What the VolumeAttachment says.
    is_attached: bool,
    place: Place,
    recorded: Recorded,
}

const PLACES: [Place; 3] = [Place::Nowhere, Place::Here, Place::Elsewhere];
const RECORDED: [Recorded; 7] = [
    Recorded::Nothing,
    Recorded::Here("attach"),
    Recorded::Here("detach"),
    Recorded::Elsewhere("attach"),
    Recorded::Elsewhere("detach"),
    Recorded::Former,
    Recorded::Nonsense,
];

impl State {
    /// All but the one that is as it should be.
    fn all() -> Vec<Self> {
        let whole = Self { is_attached: true, place: Place::Here, recorded: Recorded::Here("attach") };
        let mut all = Vec::new();
        for is_attached in [true, false] {
            for place in PLACES {
                all.extend(RECORDED.map(|recorded| Self { is_attached, place, recorded }));
            }
        }
        all.retain(|state| *state != whole);
        all
    }

    /// The annotation is another process's, whose write may still be on its way: it counts as left behind after a minute.
    fn waits_for_others(self) -> bool {
        !matches!(self.recorded, Recorded::Nothing | Recorded::Here("attach") | Recorded::Former)
    }
}

/// The VMs: the one that is wanted, and another.
struct Vms<'a> {
    here: &'a GuestVm,
    elsewhere: &'a GuestVm,
}

pub(super) async fn all(environment: &mut Environment, told: &Told<'_>) -> Result<()> {
    let vms = environment.vms.clone();
    let [here, elsewhere, ..] = &vms[..] else {
        told.left_out(&["csi-heal-p99-s"], "there is one VM: give --guest-nodes 2");
        return Ok(());
    };
    let vms = Vms { here, elsewhere };
    let plugin = environment.storage()?.0.controller().plugin();
    let (guest, harvester) = (environment.guest.clone(), environment.harvester.clone());
    for vm in [here, elsewhere] {
        registered(&guest, vm).await?;
    }
    let mut host = Host::watch(&harvester).await;
    let mut states = BTreeMap::new();
    for (number, state) in State::all().into_iter().enumerate() {
        let volume = calls::create(&plugin, &format!("pvc-bench-heal-{number}")).await?;
        states.insert(volume, state);
    }
    calls::greet(&plugin).await?;
    leads(&guest).await?;
    place(&harvester, &mut host, &vms, &states).await?;
    settled(environment).await?;
    for (volume, state) in &states {
        record(&harvester, &host, &vms, volume, *state).await?;
        want(&guest, &vms, volume, *state).await?;
    }
    let begun = Instant::now();
    let tasks = TaskGroup::new();
    let options = Options {
        guest: guest.clone(),
        controller: plugin.clone(),
        pace: Pace::default(),
        clock: Clock::system(),
    };
    Sidecars::attacher(options, &tasks);
    let healed = follow(&guest, &host, &vms, &states, begun).await;
    let mut all: Vec<_> = healed.values().map(Duration::as_secs_f64).collect();
    let mut plain: Vec<_> = healed
        .iter()
        .filter(|(volume, _)| !states[*volume].waits_for_others())
        .map(|(_, time)| time.as_secs_f64())
        .collect();
    for (volume, time) in &healed {
        told.remark(&format!("healed after {:.1} s: {:?}", time.as_secs_f64(), states[volume]));
    }
    let missing: Vec<_> = states.iter().filter(|(volume, _)| !healed.contains_key(*volume)).collect();
    ensure!(missing.is_empty(), "not healed after {} s: {missing:?}", PATIENCE.as_secs());
    told.figure("csi-heal-p99-s", percentile(&mut all, 0.99));
    told.remark(&format!(
        "csi-heal-p99-s: {} states; {} of them without another's fresh annotation: {:.1} s",
        all.len(),
        plain.len(),
        percentile(&mut plain, 0.99)
    ));
    tasks.end().await;
    leave(&guest, &plugin, &vms, &states).await
}

/// What kubelet notes of the driver on a Node.
async fn registered(guest: &Client, vm: &GuestVm) -> Result<()> {
    let node = json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": {"name": vm.node},
        "spec": {"drivers": [{"name": CSI_DRIVER, "nodeID": vm.name, "topologyKeys": null}]}});
    apply_one(guest, &node).await.context("register the driver on a Node")
}

/// Waits until a process reconciles.
async fn leads(guest: &Client) -> Result<()> {
    let leases = Api::<Lease>::namespaced(guest.clone(), csi_driver::lease::NAMESPACE);
    let give_up = Instant::now() + PATIENCE;
    loop {
        let lease = leases.get_opt(LEASE).await.map_err(plain)?.and_then(|lease| lease.spec);
        if lease.and_then(|spec| spec.holder_identity).is_some_and(|holder| !holder.is_empty()) {
            return Ok(());
        }
        ensure!(Instant::now() < give_up, "nobody holds the Lease {LEASE}");
        tokio::time::sleep(GLANCE).await;
    }
}

/// Brings the disks into the VMs, as a driver does that writes no annotations, and waits until they are there.
async fn place(
    harvester: &Client,
    host: &mut Host,
    vms: &Vms<'_>,
    states: &BTreeMap<String, State>,
) -> Result<()> {
    let api = Api::<VirtualMachine>::namespaced(harvester.clone(), crate::VM_NAMESPACE);
    let places: Vec<_> = states
        .iter()
        .filter_map(|(volume, state)| match state.place {
            Place::Nowhere => None,
            Place::Here => Some((volume, vms.here)),
            Place::Elsewhere => Some((volume, vms.elsewhere)),
        })
        .collect();
    let give_up = Instant::now() + PATIENCE;
    for (volume, vm) in &places {
        loop {
            let object = api.get(&vm.name).await.map_err(plain)?;
            let patch = hotplug::add(&object, volume).context("the VM has the disk already")?;
            let patch = Patch::<()>::Json(serde_json::from_value(patch).context("read a patch")?);
            match api.patch(&vm.name, &PatchParams::default(), &patch).await {
                // somebody has written the VM meanwhile, and the patch tests its version
                Err(kube::Error::Api(status)) if status.code == 422 && Instant::now() < give_up => {}
                answer => {
                    answer.map_err(plain).with_context(|| format!("bring {volume} into {}", vm.name))?;
                    break;
                }
            }
        }
    }
    for (volume, vm) in places {
        while host.disk(&vm.name, volume) != Disk::Ready {
            host.moves(give_up).await.with_context(|| format!("{volume} does not come into {}", vm.name))?;
        }
    }
    Ok(())
}

/// Writes the annotation of the host's claim.
async fn record(harvester: &Client, host: &Host, vms: &Vms<'_>, volume: &str, state: State) -> Result<()> {
    let uid = |vm: &GuestVm| -> Result<String> {
        host.vm(&vm.name)?.metadata.uid.clone().context("a VM has a UID")
    };
    let text = |vm: &GuestVm, uid: String, operation: &str| {
        json!({"vm": vm.name, "vmUid": uid, "op": operation, "holder": "gone"}).to_string()
    };
    let text = match state.recorded {
        Recorded::Nothing => return Ok(()),
        Recorded::Here(operation) => text(vms.here, uid(vms.here)?, operation),
        Recorded::Elsewhere(operation) => text(vms.elsewhere, uid(vms.elsewhere)?, operation),
        Recorded::Former => text(vms.here, "of-a-former-one".to_owned(), "attach"),
        Recorded::Nonsense => "nonsense".to_owned(),
    };
    let claims = Api::<PersistentVolumeClaim>::namespaced(harvester.clone(), crate::VM_NAMESPACE);
    let patch = Patch::Merge(json!({"metadata": {"annotations": {CSI_ATTACH: text}}}));
    let patched = claims.patch(volume, &PatchParams::default(), &patch).await.map_err(plain);
    patched.map(drop).with_context(|| format!("annotate {volume}"))
}

/// Makes the volume of the guest, and the VolumeAttachment.
async fn want(guest: &Client, vms: &Vms<'_>, volume: &str, state: State) -> Result<()> {
    let persistent = json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": volume},
        "spec": {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": calls::SIZE.to_string()},
            "csi": {"driver": CSI_DRIVER, "volumeHandle": volume, "fsType": "ext4"}}});
    apply_one(guest, &persistent).await.context("make a PersistentVolume")?;
    let attachment = json!({"apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment",
        "metadata": {"name": attachment(volume)}, "spec": {"attacher": CSI_DRIVER, "nodeName": vms.here.node,
            "source": {"persistentVolumeName": volume}}});
    apply_one(guest, &attachment).await.context("make a VolumeAttachment")?;
    if !state.is_attached {
        return Ok(());
    }
    let status = Patch::Merge(json!({"status": {"attached": true}}));
    let api = Api::<VolumeAttachment>::all(guest.clone());
    let patched = api.patch_status(&self::attachment(volume), &PatchParams::default(), &status).await;
    patched.map(drop).map_err(plain)
}

fn attachment(volume: &str) -> String {
    format!("bench-{volume}")
}

/// How long each volume took until all was well, for those that it is with.
async fn follow(
    guest: &Client,
    host: &Host,
    vms: &Vms<'_>,
    states: &BTreeMap<String, State>,
    begun: Instant,
) -> BTreeMap<String, Duration> {
    let tasks = TaskGroup::new();
    let attachments: Cache<VolumeAttachment> =
        Cache::start(&tasks, Api::all(guest.clone()), watcher::Config::default());
    attachments.ready().await;
    let is_true = |volume: &str| {
        let one = attachments.get(&ObjectKey::new("", attachment(volume)));
        one.and_then(|one| one.status.as_ref().map(|status| status.attached)) == Some(true)
    };
    let mut healed = BTreeMap::new();
    while healed.len() < states.len() && begun.elapsed() < PATIENCE {
        for volume in
            states.keys().filter(|volume| !healed.contains_key(*volume)).cloned().collect::<Vec<_>>()
        {
            let is_whole = host.disk(&vms.here.name, &volume) == Disk::Ready
                && host.with(&volume) == [vms.here.name.as_str()]
                && is_true(&volume);
            if is_whole {
                healed.insert(volume, begun.elapsed());
            }
        }
        tokio::time::sleep(GLANCE).await;
    }
    tasks.stop.cancel();
    healed
}

/// Deletes the VolumeAttachments, and takes the disks out of the VM. The attacher has ended.
async fn leave(
    guest: &Client,
    plugin: &Plugin,
    vms: &Vms<'_>,
    states: &BTreeMap<String, State>,
) -> Result<()> {
    let attachments = Api::<VolumeAttachment>::all(guest.clone());
    let free = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    for volume in states.keys() {
        let name = attachment(volume);
        attachments.patch(&name, &PatchParams::default(), &free).await.map_err(plain)?;
        attachments.delete(&name, &DeleteParams::default()).await.map_err(plain)?;
    }
    for volume in states.keys() {
        calls::detach(plugin, volume, &vms.here.name).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_is_another_one_and_none_is_as_it_should_be() {
        let states = State::all();
        let distinct = states.iter().enumerate().all(|(at, one)| !states[..at].contains(one));
        assert!(distinct && states.len() == 41, "{states:?}");
    }
}
