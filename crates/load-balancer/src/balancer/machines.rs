//! Whether the backends of an object can be chosen: decided from half a list of machines, they would take traffic from
//! the other half.

use harvester_api::WorkloadType;

use super::host::Waiting;

/// What is known of the virtual machines, as far as an object needs them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Machines {
    /// All of them, or none are needed.
    Known,
    /// The list is on its way, and its end brings the object back.
    Awaited,
    /// There is no list to be had now: what the object says meanwhile.
    Unlisted(Waiting),
}

/// Decides. `listed`: the first list was complete; `trouble`: why the watch does not work now.
pub fn decide(workload: WorkloadType, listed: bool, trouble: Option<&str>) -> Machines {
    match (workload, listed, trouble) {
        (WorkloadType::Cluster, ..) | (WorkloadType::Vm, true, _) => Machines::Known,
        (WorkloadType::Vm, false, None) => Machines::Awaited,
        (WorkloadType::Vm, false, Some(why)) => {
            let message = format!(
                "the VirtualMachineInstances cannot be listed: {why}; backends stay as they are until that is mended"
            );
            Machines::Unlisted(Waiting { reason: "WaitingForMachines", message })
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::needs_none(WorkloadType::Cluster, false, Some("forbidden"), "known")]
    #[case::at_the_start(WorkloadType::Vm, false, None, "awaited")]
    #[case::without_kubevirt(WorkloadType::Vm, false, Some("404 page not found"), "WaitingForMachines")]
    #[case::listed(WorkloadType::Vm, true, None, "known")]
    // what the last list said is as good as the last word of a watch that broke
    #[case::broke_later(WorkloadType::Vm, true, Some("connection refused"), "known")]
    fn backends_are_chosen_from_a_whole_list(
        #[case] workload: WorkloadType,
        #[case] listed: bool,
        #[case] trouble: Option<&str>,
        #[case] expected: &str,
    ) {
        let machines = match decide(workload, listed, trouble) {
            Machines::Known => "known",
            Machines::Awaited => "awaited",
            Machines::Unlisted(waiting) => {
                assert!(waiting.message.contains(trouble.unwrap()), "{}", waiting.message);
                waiting.reason
            }
        };
        assert_eq!(machines, expected);
    }
}
