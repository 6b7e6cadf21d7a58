//! Which machines have which volumes, by the machines' own templates. Pure but for the list.

use std::collections::BTreeMap;

use harvester_api::VirtualMachine;
use kube::ResourceExt;
use serde_json::Value;

use crate::{
    host::{self, Host},
    refusal::Refusal,
};

/// Machines, and their claims.
#[derive(Clone, Debug, Default)]
pub(super) struct Machines {
    names_by_uid: BTreeMap<String, String>,
    by_claim: BTreeMap<String, Vec<String>>,
    /// The machine of a disk that its template brings along, as the one that it starts from.
    by_own_disk: BTreeMap<String, String>,
}

impl Machines {
    /// All machines of the namespace, of one state.
    pub(super) async fn list(host: &Host) -> Result<Self, Refusal> {
        Ok(Self::of(&virtual_machines(host).await?))
    }

    pub(super) fn of(machines: &[VirtualMachine]) -> Self {
        let mut found = Self::default();
        for machine in machines {
            let name = machine.name_any();
            for claim in claims_of(machine) {
                let with = found.by_claim.entry(claim.to_owned()).or_default();
                if with.last() != Some(&name) {
                    with.push(name.clone());
                }
            }
            let disks = own_disks_of(machine).map(|claim| (claim.to_owned(), name.clone()));
            found.by_own_disk.extend(disks);
            found.names_by_uid.insert(machine.uid().unwrap_or_default(), name);
        }
        found
    }

    /// The machines whose templates list a claim. A machine's name is its node ID.
    pub(super) fn with(&self, claim: &str) -> &[String] {
        self.by_claim.get(claim).map_or(&[], Vec::as_slice)
    }

    /// The machine whose own disk a claim is: one that was not plugged into it.
    pub(super) fn with_own_disk(&self, claim: &str) -> Option<&str> {
        self.by_own_disk.get(claim).map(String::as_str)
    }

    pub(super) fn name_of(&self, uid: &str) -> Option<&str> {
        self.names_by_uid.get(uid).map(String::as_str)
    }
}

pub(super) async fn virtual_machines(host: &Host) -> Result<Vec<VirtualMachine>, Refusal> {
    host::list(&host.machines()).await.map_err(|error| {
        let doing = format!("list the VirtualMachines of namespace {} on the host", host.namespace());
        Refusal::of_host(&doing, &error)
    })
}

/// The claims that a machine's template lists.
fn claims_of(machine: &VirtualMachine) -> impl Iterator<Item = &str> {
    volumes_of(machine).filter_map(|volume| volume.pointer("/persistentVolumeClaim/claimName")?.as_str())
}

/// The claims of the disks that nobody plugged in. The claim of a DataVolume has its name.
fn own_disks_of(machine: &VirtualMachine) -> impl Iterator<Item = &str> {
    let sources = volumes_of(machine).flat_map(|volume| {
        [("persistentVolumeClaim", "claimName"), ("dataVolume", "name")].map(|it| (volume, it))
    });
    sources.filter_map(|(volume, (kind, name))| {
        let source = volume.get(kind)?;
        (source.get("hotpluggable") != Some(&Value::Bool(true))).then(|| source.get(name)?.as_str()).flatten()
    })
}

fn volumes_of(machine: &VirtualMachine) -> impl Iterator<Item = &Value> {
    let template = machine.spec.rest.get("template");
    let volumes = template.and_then(|template| template.pointer("/spec/volumes")?.as_array());
    volumes.into_iter().flatten()
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::{Value, json};

    use super::*;

    pub(in super::super) fn machine(name: &str, volumes: &Value) -> VirtualMachine {
        let json = json!({"metadata": {"name": name, "uid": format!("uid-{name}")},
            "spec": {"template": {"spec": {"volumes": volumes}}}});
        serde_json::from_value(json).unwrap()
    }

    fn claim(name: &str) -> Value {
        json!({"name": name, "persistentVolumeClaim": {"claimName": name, "hotpluggable": true}})
    }

    #[test]
    fn a_volume_is_where_the_templates_list_it() {
        let machines = Machines::of(&[
            machine(
                "a",
                &json!([{"name": "cloudinit", "cloudInitNoCloud": {}}, claim("pvc-1"), claim("pvc-2")]),
            ),
            machine("b", &json!([claim("pvc-2"), claim("pvc-2"), {"persistentVolumeClaim": 5}])),
            machine("c", &json!("none")),
        ]);
        assert_eq!(machines.with("pvc-1"), ["a"]);
        assert_eq!(machines.with("pvc-2"), ["a", "b"]);
        assert!(machines.with("pvc-3").is_empty());
        assert_eq!(machines.name_of("uid-c"), Some("c"));
    }

    #[test]
    fn a_disk_that_was_not_plugged_in_is_its_machines_own() {
        let machines = Machines::of(&[machine(
            "a",
            &json!([claim("pvc-1"), {"persistentVolumeClaim": {"claimName": "root"}},
                {"dataVolume": {"name": "imported"}}, {"dataVolume": {"name": "plugged", "hotpluggable": true}}]),
        )]);
        for (claim, expected) in
            [("root", Some("a")), ("imported", Some("a")), ("pvc-1", None), ("plugged", None)]
        {
            assert_eq!(machines.with_own_disk(claim), expected, "{claim}");
        }
    }
}
