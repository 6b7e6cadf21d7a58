//! The calls on a machine that exists: state, address, start, stop, kill, restart.

use harvester_api::{VirtualMachine, VirtualMachineInstance};
use kube::ResourceExt as _;

use super::{Driver, Error, again};
use crate::{
    address,
    host::{self, Host, Order, follow::Start},
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

/// The words that rancher-machine shows as an empty column.
const NOT_RUNNING: &str = "Host is not running";

impl Driver {
    /// `GetState`.
    ///
    /// # Errors
    /// Also where the VM is absent: the text says `not found` then and only then, which rancher-machine looks for.
    pub async fn state(&self) -> Result<State, Error> {
        let (host, place) = self.host()?;
        let (vm, instance) = futures::join!(host.vm(&place.machine), host.instance(&place.machine));
        let Some(vm) = vm? else {
            return Err(Error(format!("VM {place} not found")));
        };
        let status = vm.status.map(|status| status.printable_status).unwrap_or_default();
        Ok(state_of(&status, instance?.as_ref()))
    }

    /// `GetIP` and `GetSSHHostname`.
    ///
    /// # Errors
    /// Where the machine does not run or has no IPv4 address.
    pub async fn ip(&self) -> Result<String, Error> {
        let (host, place) = self.host()?;
        let (vm, instance) = futures::join!(host.vm(&place.machine), host.instance(&place.machine));
        let Some(vm) = vm? else {
            return Err(Error(format!("VM {place} not found")));
        };
        let status = vm.status.map(|status| status.printable_status).unwrap_or_default();
        let instance = instance?;
        let running =
            instance.as_ref().filter(|instance| state_of(&status, Some(instance)) == State::Running);
        let instance = running.ok_or_else(|| Error(NOT_RUNNING.to_owned()))?;
        let address = address::of(instance);
        address
            .map(|address| address.to_string())
            .ok_or_else(|| Error(format!("VM {place} has no IPv4 address yet")))
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
        self.change(Order::Start, Goal::Up { not: None }).await
    }

    /// `Stop`: the guest shuts down.
    ///
    /// # Errors
    /// Why the machine still runs.
    pub async fn stop(&self) -> Result<(), Error> {
        self.change(Order::Stop, Goal::Stopped).await
    }

    /// `Kill`: the guest gets no time.
    ///
    /// # Errors
    /// Why the machine still runs.
    pub async fn kill(&self) -> Result<(), Error> {
        self.change(Order::Kill, Goal::Stopped).await
    }

    /// `Restart`.
    ///
    /// # Errors
    /// Where nothing runs, or why the machine is not up again.
    pub async fn restart(&self) -> Result<(), Error> {
        let (host, place) = self.host()?;
        let running = host.instance(&place.machine).await?;
        let old = running.and_then(|instance| instance.uid());
        let old = old.ok_or_else(|| Error(format!("VM {place} does not run: start it")))?;
        self.change(Order::Restart, Goal::Up { not: Some(old) }).await
    }

    /// Orders a change and waits for it.
    async fn change(&self, order: Order, goal: Goal) -> Result<(), Error> {
        let (host, place) = self.host()?;
        if order == Order::Restart {
            host.order(&place.machine, order).await?;
        } else {
            again(|| order_unless_late(&host, &place.machine, order, &goal)).await?;
        }
        let reached = self.wait(&host, &place, goal, TIMEOUT, Start::Read).await;
        if let Some(address) = reached.map_err(|cause| Error::calm(&cause))? {
            self.locked().ip_address = address.to_string();
        }
        Ok(())
    }
}

/// Gives an order. One that comes too late, because the VM is there already or on its way, is no failure
/// (pitfalls-node-driver.md B23). KubeVirt answers it with 409, but also one that lost a race with another writer, and one
/// that the VM's state forbids: those are failures, and the first of them passes.
async fn order_unless_late(host: &Host, machine: &str, order: Order, goal: &Goal) -> Result<(), host::Error> {
    let Err(refusal) = host.order(machine, order).await else { return Ok(()) };
    if !refusal.is_taken() {
        return Err(refusal);
    }
    let (vm, instance) = futures::try_join!(host.vm(machine), host.instance(machine))?;
    if heads_for(goal, vm.as_ref(), instance.as_ref()) { Ok(()) } else { Err(refusal) }
}

/// Whether a VM has reached the goal or gets there by itself.
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

/// The state by the phase of the instance, and by KubeVirt's own word for the VM where an ended instance lingers
/// (pitfalls-node-driver.md B27).
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
