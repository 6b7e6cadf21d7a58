//! Asks Harvester for the images, networks, storage classes, keys and devices that the VM uses.

use std::collections::BTreeMap;

use kube::{ResourceExt as _, api::DynamicObject};

use super::Finding;
use crate::{
    harvester::Harvester,
    machine::{Machine, Source},
    reference::Reference,
};

/// Harvester sets it on the network that it keeps for its storage.
const STORAGE_NETWORK: &str = "storage-network.settings.harvesterhci.io";

pub(super) async fn image(harvester: &Harvester, machine: &Machine, at: &Reference) -> Finding {
    match harvester.image(at).await {
        Err(error) => Finding::fault(error.to_string()),
        Ok(found) => check_image(machine, at, &found),
    }
}

/// Finds the image's storage class, and refuses an image from which the VM cannot boot.
fn check_image(machine: &Machine, at: &Reference, image: &DynamicObject) -> Finding {
    let status = &image.data["status"];
    let mut answer = Finding::default();
    let boots = machine.boot_disk().is_some_and(|disk| disk.source == Source::Image(at.clone()));
    if boots && is_iso(image) {
        answer.faults.push(format!(
            "image {at} is an ISO, and a machine cannot install itself from one: use a cloud image (an ISO may be a disk of \
             type cd-rom that is not booted from)"
        ));
    }
    let imported = status["conditions"].as_array().into_iter().flatten().find(|it| it["type"] == "Imported");
    let text = |key: &str| imported.and_then(|it| it[key].as_str()).unwrap_or_default();
    let failed = text("status") == "False" && !text("reason").is_empty();
    let progress = status["progress"].as_i64().filter(|progress| *progress < 100);
    match (failed, progress) {
        (true, _) => {
            let why = Some(text("message")).filter(|message| !message.is_empty()).unwrap_or(text("reason"));
            answer.faults.push(format!(
                "the import of image {at} has failed: {why}: import it anew or use another one"
            ));
        }
        (false, Some(progress)) => answer
            .faults
            .push(format!("image {at} is not ready ({progress} %): wait for its import or use another one")),
        (false, None) => {}
    }
    let bytes = status["virtualSize"].as_i64().unwrap_or_default();
    let small =
        machine.disks.iter().find(|disk| disk.source == Source::Image(at.clone()) && disk.gib << 30 < bytes);
    if let Some(disk) = small {
        let (name, gib, needed) = (&disk.name, disk.gib, (bytes + (1 << 30) - 1) >> 30);
        answer.faults.push(format!(
            "{name} of {gib} GiB is smaller than its image {at}: at least {needed} GiB are needed"
        ));
    }
    match status["storageClassName"].as_str().filter(|class| !class.is_empty()) {
        Some(class) => answer.class = Some((at.to_string(), class.to_owned())),
        None if answer.faults.is_empty() => {
            answer.faults.push(format!("image {at} has no storage class yet: wait for its import"));
        }
        None => {}
    }
    answer
}

fn is_iso(image: &DynamicObject) -> bool {
    let labelled =
        image.metadata.labels.as_ref().and_then(|labels| labels.get(harvester_api::labels::IMAGE_TYPE));
    let spec = &image.data["spec"];
    let ends = |text: &str| text.to_ascii_lowercase().ends_with(".iso");
    let path = spec["url"].as_str().unwrap_or_default();
    let path = path.split(['?', '#']).next().unwrap_or_default();
    labelled.is_some_and(|kind| kind == "iso")
        || ends(spec["displayName"].as_str().unwrap_or_default())
        || ends(path)
}

pub(super) async fn storage_class(harvester: &Harvester, name: &str) -> Finding {
    harvester
        .storage_class(name)
        .await
        .map_or_else(|error| Finding::fault(error.to_string()), |_| Finding::default())
}

pub(super) async fn network(harvester: &Harvester, at: &Reference) -> Finding {
    harvester
        .network(at)
        .await
        .map_or_else(|error| Finding::fault(error.to_string()), |found| check_network(at, &found))
}

fn check_network(at: &Reference, network: &DynamicObject) -> Finding {
    if network.annotations().get(STORAGE_NETWORK).is_some_and(|value| value == "true") {
        return Finding::fault(format!(
            "VM network {at} is the one that Harvester keeps for its storage: choose another one"
        ));
    }
    Finding::default()
}

/// Refuses devices that no single host offers. Upstream does not list hosts: if the credential may not, the scheduler
/// decides later.
pub(super) async fn devices(harvester: &Harvester, machine: &Machine) -> Finding {
    match harvester.nodes().await {
        Ok(nodes) => check_devices(machine, &nodes),
        Err(_) => Finding::default(),
    }
}

fn check_devices(machine: &Machine, nodes: &[DynamicObject]) -> Finding {
    let mut wanted = BTreeMap::<&str, i64>::new();
    for device in machine.gpus.iter().chain(&machine.host_devices) {
        *wanted.entry(&device.device).or_default() += 1;
    }
    let offers = |node: &DynamicObject, device: &str| {
        let quantity = node.data["status"]["allocatable"][device].as_str();
        quantity.map_or(0, |quantity| quantity.parse().unwrap_or(i64::MAX))
    };
    if nodes.iter().any(|node| wanted.iter().all(|(device, count)| offers(node, device) >= *count)) {
        return Finding::default();
    }
    let wanted: Vec<String> = wanted.iter().map(|(device, count)| format!("{count} x {device}")).collect();
    Finding::fault(format!(
        "no host of Harvester offers {}: enable the devices on a host, or ask for others",
        wanted.join(" and ")
    ))
}

pub(super) async fn key_pair(harvester: &Harvester, at: &Reference) -> Finding {
    match harvester.key_pair(at).await {
        Err(error) => Finding::fault(error.to_string()),
        Ok(found) => {
            let conditions = found.data["status"]["conditions"].as_array();
            let validated = conditions
                .into_iter()
                .flatten()
                .any(|it| it["type"] == "validated" && it["status"] == "True");
            match found.data["spec"]["publicKey"].as_str() {
                Some(key) if validated => Finding { key_pair: Some(key.to_owned()), ..Finding::default() },
                _ => Finding::fault(format!("KeyPair {at} is not validated: its public key cannot be used")),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;
    use crate::{
        config::{self, Config},
        machine::Device,
    };

    fn machine() -> Machine {
        let disks = vec![
            config::Disk {
                image_name: "default/leap".into(),
                size: 10,
                boot_order: 1,
                ..config::Disk::default()
            },
            config::Disk {
                image_name: "default/tools".into(),
                size: 10,
                r#type: "cd-rom".into(),
                ..config::Disk::default()
            },
        ];
        let config = Config {
            machine_name: "demo-1".into(),
            vm_namespace: "default".into(),
            cpu: 1,
            memory_size: "1Gi".into(),
            disk_info: Some(config::DiskInfo { disks }),
            network_info: Some(config::NetworkInfo::default()),
            ..Config::default()
        };
        Machine::check(&config).unwrap()
    }

    fn checked(name: &str, spec: &Value, status: &Value, labels: &Value) -> Finding {
        let mut full = json!({"progress": 100, "storageClassName": "longhorn-x"});
        for (key, value) in status.as_object().unwrap() {
            full[key] = value.clone();
        }
        let image = json!({"metadata": {"name": name, "labels": labels}, "spec": spec, "status": full});
        let at = Reference { namespace: "default".into(), name: name.into() };
        check_image(&machine(), &at, &serde_json::from_value(image).unwrap())
    }

    #[rstest]
    #[case::good("leap", json!({"displayName": "leap.qcow2"}), json!({}), json!({}), None)]
    #[case::iso_by_label("leap", json!({}), json!({}), json!({"harvesterhci.io/image-type": "iso"}), Some("is an ISO"))]
    #[case::iso_by_name("leap", json!({"displayName": "Leap.ISO"}), json!({}), json!({}), Some("is an ISO"))]
    #[case::iso_by_url("leap", json!({"url": "https://x/leap.iso?sig=1"}), json!({}), json!({}), Some("is an ISO"))]
    #[case::iso_as_cd_rom("tools", json!({"displayName": "tools.iso"}), json!({}), json!({}), None)]
    #[case::importing("leap", json!({}), json!({"progress": 40}), json!({}), Some("is not ready (40 %)"))]
    #[case::failed("leap", json!({}), json!({"progress": 0, "conditions": [{"type": "Imported", "status": "False",
        "reason": "ImportFailed", "message": "no route to mirror"}]}), json!({}), Some("image default/leap has failed: no route to mirror: import"))]
    #[case::failed_without_a_word("leap", json!({}), json!({"conditions": [{"type": "Imported", "status": "False",
        "reason": "ImportFailed"}]}), json!({}), Some("has failed: ImportFailed: import"))]
    #[case::importing_says_nothing_yet("leap", json!({}), json!({"progress": 7, "conditions": [{"type": "Imported", "status": "Unknown",
        "reason": "Importing"}]}), json!({}), Some("is not ready (7 %)"))]
    #[case::too_large("leap", json!({}), json!({"virtualSize": 11_000_000_000_i64}), json!({}), Some("at least 11 GiB"))]
    #[case::no_class("leap", json!({}), json!({"storageClassName": ""}), json!({}), Some("no storage class yet"))]
    fn an_image_must_be_bootable_ready_and_small_enough(
        #[case] name: &str,
        #[case] spec: Value,
        #[case] status: Value,
        #[case] labels: Value,
        #[case] fault: Option<&str>,
    ) {
        let answer = checked(name, &spec, &status, &labels);
        match fault {
            None => assert_eq!((answer.faults.len(), answer.class.unwrap().1.as_str()), (0, "longhorn-x")),
            Some(part) => {
                assert!(answer.faults.len() == 1 && answer.faults[0].contains(part), "{:?}", answer.faults);
            }
        }
    }

    #[rstest]
    #[case::usual(json!({"network.harvesterhci.io/ready": "true"}), 0)]
    #[case::storage(json!({"storage-network.settings.harvesterhci.io": "true"}), 1)]
    fn the_storage_network_is_for_storage(#[case] annotations: Value, #[case] faults: usize) {
        let network = json!({"metadata": {"name": "vlan1", "annotations": annotations}});
        let at = Reference { namespace: "default".into(), name: "vlan1".into() };
        let answer = check_network(&at, &serde_json::from_value(network).unwrap());
        assert_eq!(answer.faults.len(), faults, "{:?}", answer.faults);
    }

    #[rstest]
    #[case::one_host_has_all(&["gpu", "gpu", "nic"], None)]
    #[case::none(&[], None)]
    #[case::on_different_hosts(&["gpu", "disk"], Some("offers 1 x disk and 1 x gpu:"))]
    #[case::too_many(&["gpu", "gpu", "gpu"], Some("offers 3 x gpu:"))]
    #[case::unknown(&["tape"], Some("offers 1 x tape:"))]
    fn one_host_must_offer_all_devices(#[case] wanted: &[&str], #[case] fault: Option<&str>) {
        let nodes = [json!({"gpu": "2", "nic": "1", "cpu": "3900m"}), json!({"disk": "1"})];
        let node =
            |allocatable| serde_json::from_value(json!({"status": {"allocatable": allocatable}})).unwrap();
        let device = |name: &&str| Device { name: format!("{name}-1"), device: (*name).to_owned() };
        let (gpus, others): (Vec<_>, Vec<_>) =
            wanted.iter().map(device).partition(|device| device.device == "gpu");
        let machine = Machine { gpus, host_devices: others, ..machine() };
        let answer = check_devices(&machine, &nodes.map(node));
        match fault {
            None => assert!(answer.faults.is_empty(), "{:?}", answer.faults),
            Some(part) => {
                assert!(answer.faults.len() == 1 && answer.faults[0].contains(part), "{:?}", answer.faults);
            }
        }
    }
}
