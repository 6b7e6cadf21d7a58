//! The calls on a machine that exists: state, address, start, stop, kill, restart.

use harvester_api::VirtualMachineInstance;
use kube::ResourceExt as _;

use super::{Driver, Error};
use crate::{
    address,
    host::{Order, follow::Start},
    machine::TIMEOUT,
    wait::{self, Goal},
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

    /// Orders a change and waits for it. An order that comes to late, because the VM is there already, is no failure
    /// (pitfalls-node-driver.md B23): KubeVirt answers 409, and the wait shows whether it is so.
    async fn change(&self, order: Order, goal: Goal) -> Result<(), Error> {
        let (host, place) = self.host()?;
        match host.order(&place.machine, order).await {
            Err(error) if !error.is_taken() || order == Order::Restart => return Err(error.into()),
            _ => {}
        }
        let name = place.to_string();
        let reached =
            wait::until(&host, &place.machine, &name, &goal, TIMEOUT, Start::Read, &self.parts.say).await;
        if let Some(address) = reached.map_err(|cause| Error::calm(&cause))? {
            self.locked().ip_address = address.to_string();
        }
        Ok(())
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
}
