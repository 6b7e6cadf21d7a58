//! Volumes and their disks in the spec of a VM's template or of an instance: two lists that belong together by name.

use serde_json::{Value, json};

pub(crate) fn volumes(spec: &Value) -> &[Value] {
    spec["volumes"].as_array().map_or(&[], Vec::as_slice)
}

pub(crate) fn disks(spec: &Value) -> &[Value] {
    spec["domain"]["devices"]["disks"].as_array().map_or(&[], Vec::as_slice)
}

/// The name of a volume, a disk or the status of a volume.
pub(crate) fn name(entry: &Value) -> &str {
    entry["name"].as_str().unwrap_or_default()
}

/// The PersistentVolumeClaim of a volume.
pub(crate) fn claim(volume: &Value) -> Option<&str> {
    volume["persistentVolumeClaim"]["claimName"].as_str()
}

/// The claims that an instance has or lets go only now.
pub(crate) fn claims_in_use(instance: &Value) -> impl Iterator<Item = &str> {
    let statuses = instance["status"]["volumeStatus"].as_array().into_iter().flatten();
    let leaving = statuses.filter_map(|status| status["persistentVolumeClaimInfo"]["claimName"].as_str());
    volumes(&instance["spec"]).iter().filter_map(claim).chain(leaving)
}

/// Whether a volume may come and go while the VM runs.
pub(crate) fn is_hot(volume: &Value) -> bool {
    volume["persistentVolumeClaim"]["hotpluggable"] == true
}

/// Whether KubeVirt takes `text` for this volume: it is its name or that of its claim.
pub(crate) fn is_called(volume: &Value, text: &str) -> bool {
    name(volume) == text || claim(volume) == Some(text)
}

/// The merge patch of a spec that adds volumes, with their disks.
pub(crate) fn with(spec: &Value, more: &[Value], more_disks: &[Value]) -> Value {
    patch(&[volumes(spec), more].concat(), &[disks(spec), more_disks].concat())
}

/// The merge patch of a spec that takes away the volumes of these names, with their disks.
pub(crate) fn without(spec: &Value, names: &[&str]) -> Value {
    let left = |entries: &[Value]| -> Vec<Value> {
        entries.iter().filter(|entry| !names.contains(&name(entry))).cloned().collect()
    };
    patch(&left(volumes(spec)), &left(disks(spec)))
}

fn patch(volumes: &[Value], disks: &[Value]) -> Value {
    json!({"volumes": volumes, "domain": {"devices": {"disks": disks}}})
}

/// Volume and disk that a request to add one asks for (KubeVirt's `AddVolumeOptions`).
pub(crate) fn asked(options: &Value) -> (Value, Value) {
    let (mut volume, mut disk) = (options["volumeSource"].clone(), options["disk"].clone());
    volume["name"] = options["name"].clone();
    for source in ["persistentVolumeClaim", "dataVolume"] {
        if volume[source].is_object() {
            volume[source]["hotpluggable"] = true.into();
        }
    }
    disk["name"] = options["name"].clone();
    (volume, disk)
}
