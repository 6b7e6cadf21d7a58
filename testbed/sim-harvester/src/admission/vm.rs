//! The rules for a VM.

use serde_json::Value;

use super::{Cluster, LONGHORN, Refusal};
use crate::volumes::{claim, disks, name, volumes};

/// KubeVirt's limit for each of the two lists.
const MOST: usize = 256;
/// Path of a VM's template, in messages.
const TEMPLATE: &str = "spec.template.spec";

/// Why KubeVirt refuses a template with these volumes and disks.
pub(super) fn faults(spec: &Value) -> Option<String> {
    let (of_volumes, of_disks) = (format!("{TEMPLATE}.volumes"), format!("{TEMPLATE}.domain.devices.disks"));
    let (volumes, disks) = (volumes(spec), disks(spec));
    let filesystems = spec["domain"]["devices"]["filesystems"].as_array().map_or(&[][..], Vec::as_slice);
    let lists = [(&of_volumes, volumes), (&of_disks, disks)];
    let too_long = lists
        .iter()
        .find(|(_, list)| list.len() > MOST)
        .map(|(path, _)| format!("{path} list exceeds the {MOST} element limit in length"));
    let twice = || {
        lists.iter().find_map(|(path, list)| {
            let earlier =
                |index: usize| list[..index].iter().position(|entry| name(entry) == name(&list[index]));
            let (second, first) = (0..list.len()).find_map(|index| Some((index, earlier(index)?)))?;
            Some(format!("{path}[{second}] and {path}[{first}] must not have the same Name."))
        })
    };
    let lacks = |list: &[Value], entry: &Value| list.iter().all(|other| name(other) != name(entry));
    let alone = |path: &str, list: &[Value], others: &[&[Value]]| {
        let index = list.iter().position(|entry| others.iter().all(|other| lacks(other, entry)))?;
        Some(format!("{path}[{index}].name '{}' not found.", name(&list[index])))
    };
    too_long
        .or_else(twice)
        .or_else(|| alone(&of_disks, disks, &[volumes]))
        .or_else(|| alone(&of_volumes, volumes, &[disks, filesystems]))
}

/// Harvester refuses a VM that has a volume of another one, whatever it is that changes.
pub(super) fn occupied(vm: &Value, cluster: &Cluster) -> Option<Refusal> {
    let own = name(&vm["metadata"]);
    volumes(&vm["spec"]["template"]["spec"]).iter().filter_map(claim).find_map(|wanted| {
        let pvc = cluster.claims.get(wanted)?;
        let modes = pvc.spec.as_ref().and_then(|spec| spec.access_modes.clone()).unwrap_or_default();
        if cluster.driver(pvc) != LONGHORN && !modes.iter().any(|mode| mode == "ReadWriteOnce") {
            return None;
        }
        let other =
            cluster.vms.iter().find(|other| name(&other["metadata"]) != own && lists(other, wanted))?;
        let (namespace, other) = (other["metadata"]["namespace"].as_str()?, name(&other["metadata"]));
        Some(Refusal::invalid(format!("the volume {wanted} is already used by VM {namespace}/{other}")))
    })
}

/// Whether the template of a VM has the claim.
pub(super) fn lists(vm: &Value, wanted: &str) -> bool {
    volumes(&vm["spec"]["template"]["spec"]).iter().any(|volume| claim(volume) == Some(wanted))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn spec(volumes: &[&str], disks: &[&str]) -> Value {
        let named = |names: &[&str]| names.iter().map(|name| json!({"name": name})).collect::<Vec<_>>();
        json!({"volumes": named(volumes), "domain": {"devices": {"disks": named(disks)}}})
    }

    #[rstest]
    #[case::none(&[], &[], None)]
    #[case::matched(&["a", "b"], &["b", "a"], None)]
    #[case::no_disk(&["a", "b"], &["a"], Some("volumes[1].name 'b' not found"))]
    #[case::no_volume(&["a"], &["a", "b"], Some("disks[1].name 'b' not found"))]
    #[case::volume_twice(&["a", "b", "a"], &["a", "b"], Some("volumes[2] and spec.template.spec.volumes[0] must not"))]
    #[case::disk_twice(&["a"], &["a", "a"], Some("disks[1] and spec.template.spec.domain.devices.disks[0] must not"))]
    fn volumes_and_disks_belong_together_by_name(
        #[case] volumes: &[&str],
        #[case] disks: &[&str],
        #[case] expected: Option<&str>,
    ) {
        let faults = faults(&spec(volumes, disks));
        assert_eq!(faults.is_some(), expected.is_some(), "{faults:?}");
        assert!(faults.unwrap_or_default().contains(expected.unwrap_or_default()));
    }

    #[rstest]
    #[case(256, false)]
    #[case(257, true)]
    fn a_vm_has_256_disks_at_most(#[case] count: usize, #[case] refused: bool) {
        let names: Vec<_> = (0..count).map(|number| format!("disk-{number}")).collect();
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        assert_eq!(
            faults(&spec(&names, &names)).is_some_and(|why| why.contains("256 element limit")),
            refused
        );
    }

    #[test]
    fn a_volume_of_a_shared_filesystem_needs_no_disk() {
        let mut spec = spec(&["a"], &[]);
        spec["domain"]["devices"]["filesystems"] = json!([{"name": "a"}]);
        assert_eq!(faults(&spec), None);
    }

    fn vm(name: &str, claims: &[&str]) -> Value {
        let volumes: Vec<_> = claims
            .iter()
            .map(|claim| json!({"name": claim, "persistentVolumeClaim": {"claimName": claim}}))
            .collect();
        json!({"metadata": {"name": name, "namespace": "shop"}, "spec": {"template": {"spec": {"volumes": volumes}}}})
    }

    #[rstest]
    #[case::longhorn("longhorn", "ReadWriteMany", &["a"], true)]
    #[case::one_writer("lvm", "ReadWriteOnce", &["a"], true)]
    #[case::shared("nfs", "ReadWriteMany", &["a"], false)]
    #[case::removed("longhorn", "ReadWriteMany", &[], false)]
    fn a_vm_with_a_volume_of_another_one_is_refused_until_it_gives_it_up(
        #[case] class: &str,
        #[case] mode: &str,
        #[case] claims: &[&str],
        #[case] refused: bool,
    ) {
        let pvc =
            json!({"metadata": {"name": "a"}, "spec": {"storageClassName": class, "accessModes": [mode]}});
        let cluster = Cluster {
            vms: vec![vm("one", &["a"]), vm("two", &["a"])],
            claims: [("a".to_owned(), serde_json::from_value(pvc).unwrap())].into(),
            drivers: [("longhorn".to_owned(), LONGHORN.to_owned())].into(),
            ..Cluster::default()
        };
        let refusal = occupied(&vm("two", claims), &cluster);
        let expected = Refusal::invalid("the volume a is already used by VM shop/one");
        assert_eq!(refusal, refused.then_some(expected));
    }
}
