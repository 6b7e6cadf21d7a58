//! The CSI driver in the guest cluster, and what it relies on.

use std::collections::BTreeSet;

use harvester_api::names;
use serde_json::Value;

use super::{
    super::{Outcome, facts::Facts, read},
    asked_of_harvester, items, some, unserved,
    workloads::{is_of_csi, leader, trusted, why_not_ready},
};
use crate::{
    json::{key, name, text},
    screen::cut,
};

fn is_registered(facts: &Facts) -> Result<bool, Outcome> {
    Ok(items(&facts.guest, read::CSI_DRIVERS)?.iter().any(|driver| name(driver) == names::CSI_DRIVER))
}

/// Whether the guest cluster has the driver, or volumes that need it; an outcome where it has neither.
pub(super) fn uses_storage(facts: &Facts) -> Result<(), Outcome> {
    let is_its = |volume: &Value| text(volume, "/spec/csi/driver") == names::CSI_DRIVER;
    let is_there = is_registered(facts)?
        || trusted(facts, read::DAEMON_SETS)?.any(is_of_csi)
        || items(&facts.guest, read::VOLUMES)?.iter().any(is_its);
    if is_there { Ok(()) } else { Err(Outcome::green("the CSI driver is not installed")) }
}

pub(super) fn csi_driver(facts: &Facts) -> Result<Outcome, Outcome> {
    uses_storage(facts)?;
    if !is_registered(facts)? {
        return Ok(Outcome::red(
            format!("there is no CSIDriver {}", names::CSI_DRIVER),
            "install the chart harvester-csi-driver anew: kubelet mounts nothing without it",
        ));
    }
    let has_driver = |node: &&Value| {
        let drivers = node["spec"]["drivers"].as_array().into_iter().flatten();
        drivers.clone().any(|driver| driver["name"] == names::CSI_DRIVER)
    };
    let nodes = items(&facts.guest, read::CSI_NODES)?;
    let registered = nodes.iter().filter(has_driver).count();
    let pods = |set: &Value, which: &str| set["status"][which].as_u64().unwrap_or_default();
    let sets = trusted(facts, read::DAEMON_SETS)?.filter(|set| is_of_csi(set));
    let set = sets.max_by_key(|set| pods(set, "desiredNumberScheduled"));
    let counts = set.map(|set| (set, pods(set, "desiredNumberScheduled"), pods(set, "numberReady")));
    Ok(match counts {
        Some((_, wanted, _)) if (registered as u64) < wanted => {
            let without: Vec<_> = nodes.iter().filter(|node| !has_driver(node)).map(name).collect();
            Outcome::red(
                format!("registered on {registered} of {wanted} Nodes; not on {}", some(&without)),
                "the log of the Pod of harvester-csi-driver there, and of its node-driver-registrar, says why",
            )
        }
        None => Outcome::red(
            "no DaemonSet runs the driver",
            "install the chart harvester-csi-driver; `kubectl get daemonsets --all-namespaces` shows what runs",
        ),
        Some((_, 0, _)) => Outcome::not_asked("no Node is to run it"),
        // kubelet keeps the registration of a driver that has died
        Some((set, wanted, ready)) if ready < wanted => {
            let found = format!("{ready} of the {wanted} Pods of {} are ready", key(set));
            let mend = why_not_ready("daemonset", set);
            if ready == 0 { Outcome::red(found, mend) } else { Outcome::amber(found, mend) }
        }
        Some(_) => Outcome::green(format!("registered on {registered} Nodes")),
    })
}

pub(super) fn csi_leader(facts: &Facts) -> Result<Outcome, Outcome> {
    uses_storage(facts)?;
    leader(facts, read::CSI_LEASE, "the CSI driver")
}

/// The kinds without which the sidecar csi-snapshotter ends, as the server's list of its resources names them.
const SNAPSHOT_KINDS: [&str; 3] = ["volumesnapshots", "volumesnapshotcontents", "volumesnapshotclasses"];

pub(super) fn snapshot_crds(facts: &Facts) -> Result<Outcome, Outcome> {
    uses_storage(facts)?;
    let missing = unserved(&facts.guest, read::SNAPSHOTS, &SNAPSHOT_KINDS)?;
    Ok(if missing.is_empty() {
        Outcome::green("snapshot.storage.k8s.io/v1 is served")
    } else {
        Outcome::amber(
            format!(
                "{} of snapshot.storage.k8s.io/v1 are not served: no snapshot is made until they are",
                missing.join(", ")
            ),
            "install the CRDs and the controller of kubernetes-csi/external-snapshotter",
        )
    })
}

pub(super) fn storage_classes(facts: &Facts) -> Result<Outcome, Outcome> {
    asked_of_harvester(facts)?;
    uses_storage(facts)?;
    let there: BTreeSet<_> = items(&facts.harvester, read::STORAGE_CLASSES)?.iter().map(name).collect();
    let missing: Vec<_> = items(&facts.guest, read::STORAGE_CLASSES)?
        .iter()
        .filter(|class| text(class, "/provisioner") == names::CSI_DRIVER)
        .filter_map(|class| Some((name(class), class["parameters"]["hostStorageClass"].as_str()?)))
        .filter(|(_, host)| !there.contains(host))
        .map(|(class, host)| format!("{class} names {}", cut(host)))
        .collect();
    Ok(if missing.is_empty() {
        Outcome::green("each names one that is there, or none")
    } else {
        Outcome::red(
            format!("not in Harvester: {}", some(&missing)),
            "make the class in Harvester, or a StorageClass in the guest cluster that names another one",
        )
    })
}
