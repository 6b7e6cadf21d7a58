//! A disk that was left in its machine: somebody removed its VolumeAttachment by force, or restored an old backup of the
//! guest cluster. Nobody asks for its detachment any more, and healing looks at volumes that a VolumeAttachment names, so
//! the deletion of the volume takes it out. Whatever leaves a doubt that the disk is unused keeps it where it is.

use super::Machines;
use crate::{
    attach::{Attacher, ownership::Ownership},
    guest::User,
    healing::in_use,
    refusal::Refusal,
    volume::name::HostName,
};

/// The machine, where it alone has the volume, and the annotation names it and none that the disk is leaving.
pub(super) fn in_machine<'a>(
    with: &'a [String],
    ownership: Option<&Ownership>,
    machines: &Machines,
) -> Option<&'a str> {
    let ([machine], Some(ownership)) = (with, ownership) else { return None };
    let is_alone = ownership.from.is_none() && ownership.leaving.is_none();
    (is_alone && machines.name_of(&ownership.vm_uid) == Some(machine.as_str())).then_some(machine.as_str())
}

/// # Errors
/// FAILED_PRECONDITION where a VolumeAttachment names the volume, or kubelet may have it mounted; as the server answers where
/// neither can be known.
pub(super) async fn refuse_if_attached_or_mounted(
    attacher: &Attacher,
    name: &HostName,
    machine: &str,
) -> Result<(), Refusal> {
    let is_in = format!("volume {name} is in {}", attacher.host().machine_name(machine));
    let users = attacher.users();
    let users = users(name.as_str()).await.map_err(|why| {
        Refusal::unavailable(format!("{is_in}, and whether a VolumeAttachment names it is not known: {why}"))
    })?;
    if let Some(User { attachment, node, .. }) = users.into_iter().next() {
        return Err(Refusal::precondition(format!(
            "{is_in} for VolumeAttachment {attachment} of Node {node}: end the Pods that use it there first"
        )));
    }
    let Some(guest) = attacher.guest() else {
        return Err(Refusal::precondition(format!(
            "{is_in}, and this process does not ask whether kubelet has it mounted: remove the disk from the machine on the \
             host"
        )));
    };
    in_use::refuse_unless_unmounted(&guest.client(), machine, name.as_str()).await?;
    tracing::info!("{is_in}, where no VolumeAttachment and no kubelet has it: it is taken out to be deleted");
    Ok(())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::super::super::published::tests::machine;
    use super::*;

    #[rstest]
    #[case::left(&["a"], "uid-a", json!({}), Some("a"))]
    #[case::whose_detachment_was_begun(&["a"], "uid-a", json!({"op": "detach"}), Some("a"))]
    #[case::in_another_one(&["b"], "uid-a", json!({}), None)]
    #[case::in_two(&["a", "b"], "uid-a", json!({}), None)]
    #[case::of_a_machine_that_was_made_anew(&["a"], "uid-former", json!({}), None)]
    #[case::on_its_way_from_another(&["a"], "uid-a", json!({"from": "b"}), None)]
    #[case::leaving_another(&["a"], "uid-a", json!({"leaving": "b"}), None)]
    fn a_disk_was_left_where_it_alone_is_by_template_instance_and_annotation(
        #[case] with: &[&str],
        #[case] uid: &str,
        #[case] more: serde_json::Value,
        #[case] expected: Option<&str>,
    ) {
        let mut text = json!({"vm": "a", "vmUid": uid, "op": "attach", "holder": "pod"});
        text.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let ownership = Ownership::parse(&text.to_string());
        assert!(ownership.is_some());
        let machines = Machines::of(&[machine("a", &json!([])), machine("b", &json!([]))]);
        let with: Vec<_> = with.iter().map(|name| (*name).to_owned()).collect();
        assert_eq!(in_machine(&with, ownership.as_ref(), &machines), expected);
        assert_eq!(in_machine(&with, None, &machines), None);
    }
}
