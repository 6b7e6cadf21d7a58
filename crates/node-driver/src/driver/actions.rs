//! Calls on a machine that exists: state, address, start, stop, kill, restart.

use harvester_api::{VirtualMachine, VirtualMachineInstance};
use kube::ResourceExt as _;

use super::{Driver, Error, retried};
use crate::{
    address,
    harvester::{self, Harvester, VmAction, follow::Start},
    machine::TIMEOUT,
    wait::Goal,
};

/// rancher-machine's states, by their numbers on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    None = 0,
    Running = 1,
    Stopped = 4,
    Stopping = 5,
    Starting = 6,
    Error = 7,
}

/// rancher-machine shows an empty column for exactly this text.
const NOT_RUNNING: &str = "Host is not running";

impl Driver {
    /// `GetState`.
    ///
    /// # Errors
    /// The VM cannot be read, or is absent. Only for an absent VM the text says `not found`, which rancher-machine takes
    /// for that.
    pub async fn state(&self) -> Result<State, Error> {
        let (harvester, vm_ref) = self.harvester()?;
        let (vm, instance) = futures::join!(harvester.vm(&vm_ref.name), harvester.instance(&vm_ref.name));
        let Some(vm) = vm? else {
            return Err(Error(format!("VM {vm_ref} not found")));
        };
        let status = vm.status.map(|status| status.printable_status).unwrap_or_default();
        Ok(state_of(&status, instance?.as_ref()))
    }

    /// `GetIP` and `GetSSHHostname`.
    ///
    /// # Errors
    /// The machine does not run, or it has no IPv4 address.
    pub async fn ip(&self) -> Result<String, Error> {
        let (harvester, vm_ref) = self.harvester()?;
        let (vm, instance) = futures::join!(harvester.vm(&vm_ref.name), harvester.instance(&vm_ref.name));
        let Some(vm) = vm? else {
            return Err(Error(format!("VM {vm_ref} not found")));
        };
        let status = vm.status.map(|status| status.printable_status).unwrap_or_default();
        let instance = instance?;
        let running =
            instance.as_ref().filter(|instance| state_of(&status, Some(instance)) == State::Running);
        let instance = running.ok_or_else(|| Error(NOT_RUNNING.to_owned()))?;
        let address = address::of(instance);
        address
            .map(|address| address.to_string())
            .ok_or_else(|| Error(format!("VM {vm_ref} has no IPv4 address yet")))
    }

    /// `GetURL`.
    ///
    /// # Errors
    /// As [`Driver::ip`].
    pub async fn url(&self) -> Result<String, Error> {
        Ok(format!("tcp://{}:2376", self.ip().await?))
    }

    /// `Start`.
    ///
    /// # Errors
    /// Why the machine is not up.
    pub async fn start(&self) -> Result<(), Error> {
        self.change(VmAction::Start, Goal::Up { not: None }).await
    }

    /// `Stop`: asks the guest to shut down.
    ///
    /// # Errors
    /// Why the machine still runs.
    pub async fn stop(&self) -> Result<(), Error> {
        self.change(VmAction::Stop, Goal::Stopped).await
    }

    /// `Kill`: stops the VM without a grace period.
    ///
    /// # Errors
    /// Why the machine still runs.
    pub async fn kill(&self) -> Result<(), Error> {
        self.change(VmAction::Kill, Goal::Stopped).await
    }

    /// `Restart`.
    ///
    /// # Errors
    /// No instance runs, or why the machine is not up again.
    pub async fn restart(&self) -> Result<(), Error> {
        let (harvester, vm_ref) = self.harvester()?;
        let running = harvester.instance(&vm_ref.name).await?;
        let old = running.and_then(|instance| instance.uid());
        let old = old.ok_or_else(|| Error(format!("VM {vm_ref} does not run: start it")))?;
        self.change(VmAction::Restart, Goal::Up { not: Some(old) }).await
    }

    /// Requests an action and waits for its effect.
    async fn change(&self, action: VmAction, goal: Goal) -> Result<(), Error> {
        let (harvester, vm_ref) = self.harvester()?;
        if action == VmAction::Restart {
            harvester.act(&vm_ref.name, action).await?;
        } else {
            retried(|| act_unless_late(&harvester, &vm_ref.name, action, &goal)).await?;
        }
        let reached = self.wait(&harvester, &vm_ref, goal, TIMEOUT, Start::Read).await;
        if let Some(address) = reached.map_err(|cause| Error::mask_not_found(&cause))? {
            self.locked().ip_address = address.to_string();
        }
        Ok(())
    }
}

/// Requests an action. KubeVirt answers 409 where the VM is in the wanted state or on its way to it, which is no failure
/// (docs/contract/node-driver.md#B23). It answers 409 also where another writer was quicker, which passes, and where the VM's
/// state forbids the action, which does not.
async fn act_unless_late(
    harvester: &Harvester,
    machine: &str,
    action: VmAction,
    goal: &Goal,
) -> Result<(), harvester::Error> {
    let Err(refusal) = harvester.act(machine, action).await else { return Ok(()) };
    if !refusal.is_taken() {
        return Err(refusal);
    }
    let (vm, instance) = futures::try_join!(harvester.vm(machine), harvester.instance(machine))?;
    if heads_for(goal, vm.as_ref(), instance.as_ref()) { Ok(()) } else { Err(refusal) }
}

/// Whether a VM has reached the goal or reaches it without another request.
fn heads_for(goal: &Goal, vm: Option<&VirtualMachine>, instance: Option<&VirtualMachineInstance>) -> bool {
    let status = vm.and_then(|vm| vm.status.as_ref());
    let requests = status.and_then(|status| status.rest.get("stateChangeRequests")?.as_array());
    let asked_to = |action: &str| requests.into_iter().flatten().any(|request| request["action"] == action);
    let strategy = vm.map_or("", |vm| vm.spec.run_strategy.as_str());
    let phase = |instance: &VirtualMachineInstance| instance.status.clone().unwrap_or_default().phase;
    let runs = instance.is_some_and(|instance| !matches!(phase(instance).as_str(), "Succeeded" | "Failed"));
    let ends = instance.is_some_and(|instance| instance.metadata.deletion_timestamp.is_some())
        || asked_to("Stop")
        || strategy == "Halted";
    match goal {
        Goal::Up { .. } => strategy == "Always" || asked_to("Start") || (runs && !ends),
        Goal::Stopped | Goal::Gone { .. } => !runs || (ends && !asked_to("Start")),
    }
}

/// The phase of the instance decides. Where an ended instance lingers, the VM's `printableStatus` does
/// (docs/contract/node-driver.md#B27).
fn state_of(printable: &str, instance: Option<&VirtualMachineInstance>) -> State {
    let phase = instance.map(|instance| instance.status.as_ref().map_or("", |status| status.phase.as_str()));
    match phase {
        None => State::Stopped,
        Some("Pending" | "Scheduling" | "Scheduled") => State::Starting,
        Some("Running") => State::Running,
        Some("Succeeded") if printable == "Stopped" => State::Stopped,
        Some("Succeeded") => State::Stopping,
        Some("Failed") => State::Error,
        Some(_) => State::None,
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case::no_instance("Stopped", None, State::Stopped)]
    #[case::pending("Starting", Some("Pending"), State::Starting)]
    #[case::scheduled("Starting", Some("Scheduled"), State::Starting)]
    #[case::running("Running", Some("Running"), State::Running)]
    #[case::succeeded("Stopping", Some("Succeeded"), State::Stopping)]
    #[case::lingers("Stopped", Some("Succeeded"), State::Stopped)]
    #[case::failed("Starting", Some("Failed"), State::Error)]
    #[case::unknown("", Some("Unknown"), State::None)]
    #[case::no_phase("", Some(""), State::None)]
    fn the_phase_is_the_state(#[case] printable: &str, #[case] phase: Option<&str>, #[case] expected: State) {
        let instance = phase.map(|phase| {
            serde_json::from_value(
                json!({"metadata": {"name": "demo-1"}, "spec": {}, "status": {"phase": phase}}),
            )
            .unwrap()
        });
        assert_eq!(state_of(printable, instance.as_ref()), expected);
    }

    fn vm(strategy: &str, action: &str) -> VirtualMachine {
        serde_json::from_value(json!({"metadata": {"name": "demo-1"}, "spec": {"runStrategy": strategy},
            "status": {"stateChangeRequests": [{"action": action}]}}))
        .unwrap()
    }

    fn instance(phase: &str, deleted: Option<&str>) -> Option<VirtualMachineInstance> {
        let instance = json!({"metadata": {"name": "demo-1", "deletionTimestamp": deleted}, "spec": {},
            "status": {"phase": phase}});
        Some(serde_json::from_value(instance).unwrap())
    }

    // a refused start, and a refused stop, of the same VM
    #[rstest]
    #[case::runs(vm("RerunOnFailure", ""), instance("Running", None), true, false)]
    #[case::starts(vm("RerunOnFailure", ""), instance("Pending", None), true, false)]
    #[case::asked_to_start(vm("RerunOnFailure", "Start"), None, true, true)]
    #[case::stopped(vm("Halted", ""), None, false, true)]
    #[case::ended(vm("RerunOnFailure", ""), instance("Succeeded", None), false, true)]
    // KubeVirt: "RerunOnFailure does not support starting VM from failed state"
    #[case::failed(vm("RerunOnFailure", ""), instance("Failed", None), false, true)]
    #[case::asked_to_stop(vm("RerunOnFailure", "Stop"), instance("Running", None), false, true)]
    #[case::is_going(
        vm("RerunOnFailure", ""),
        instance("Running", Some("2026-11-21T12:00:00Z")),
        false,
        true
    )]
    #[case::halted_while_it_runs(vm("Halted", ""), instance("Running", None), false, true)]
    // KubeVirt: "Always does not support manual start requests"
    #[case::always_comes_back(vm("Always", ""), None, true, true)]
    fn a_refused_order_is_too_late_where_the_vm_gets_there_by_itself(
        #[case] vm: VirtualMachine,
        #[case] instance: Option<VirtualMachineInstance>,
        #[case] up: bool,
        #[case] stopped: bool,
    ) {
        let heads_for = |goal: Goal| heads_for(&goal, Some(&vm), instance.as_ref());
        assert_eq!((heads_for(Goal::Up { not: None }), heads_for(Goal::Stopped)), (up, stopped));
    }
}
