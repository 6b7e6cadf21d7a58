//! `subresources.kubevirt.io`: what cannot be an object. An aggregated API of the simulated server, or a TLS server
//! beside a real one, hands its requests to this router; who may ask is decided before they get here.

mod hotplug;

use axum::{
    Json, Router,
    extract::{Path, State},
    response::{IntoResponse, Response},
    routing::{get, put},
};
use http::StatusCode;
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};

use controller_kit::RawObject;
use harvester_api::{VirtualMachine, VirtualMachineInstance};

use crate::vm::{Instance, Vm, guest_os, hostname};

/// Path of the API in both versions that clients ask for.
const VERSIONS: [&str; 2] = ["v1", "v1alpha3"];

/// The write that follows from a request to change a VM's state: a merge patch of the VM, or of its status.
#[derive(Clone, Debug, PartialEq)]
enum Change {
    Spec(Value),
    Status(Value),
    /// Refused with 409 and this sentence.
    Conflict(String),
}

/// The API group as a router: `/apis/subresources.kubevirt.io/…`, discovery included.
pub fn router(harvester: Client) -> Router {
    let mut router = Router::new().route("/apis/subresources.kubevirt.io", get(group));
    for version in VERSIONS {
        let root = format!("/apis/subresources.kubevirt.io/{version}");
        let vm = format!("{root}/namespaces/{{namespace}}/virtualmachines/{{name}}");
        let instance = format!("{root}/namespaces/{{namespace}}/virtualmachineinstances/{{name}}");
        router = router
            .route(&root, get(move || async move { Json(resources(version)) }))
            .route(&format!("{vm}/start"), put(|at, state| change(at, state, start)))
            .route(&format!("{vm}/stop"), put(|at, state| change(at, state, stop)))
            .route(&format!("{vm}/restart"), put(|at, state| change(at, state, restart)))
            .route(&format!("{instance}/guestosinfo"), get(guest_os_info))
            .route(&format!("{vm}/addvolume"), put(hotplug::add_to_vm))
            .route(&format!("{vm}/removevolume"), put(hotplug::remove_from_vm))
            .route(&format!("{instance}/addvolume"), put(hotplug::add_to_instance))
            .route(&format!("{instance}/removevolume"), put(hotplug::remove_from_instance));
    }
    router.with_state(harvester)
}

async fn group() -> Json<Value> {
    let versions = VERSIONS.map(
        |version| json!({"groupVersion": format!("subresources.kubevirt.io/{version}"), "version": version}),
    );
    Json(json!({"kind": "APIGroup", "apiVersion": "v1", "name": "subresources.kubevirt.io",
        "versions": versions, "preferredVersion": versions[0]}))
}

fn resources(version: &str) -> Value {
    let resource = |name: &str, kind: &str, verb: &str| json!({"name": name, "singularName": "", "namespaced": true, "kind": kind, "verbs": [verb]});
    json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": format!("subresources.kubevirt.io/{version}"),
    "resources": [
        resource("virtualmachines/start", "VirtualMachine", "update"),
        resource("virtualmachines/stop", "VirtualMachine", "update"),
        resource("virtualmachines/restart", "VirtualMachine", "update"),
        resource("virtualmachines/addvolume", "VirtualMachine", "update"),
        resource("virtualmachines/removevolume", "VirtualMachine", "update"),
        resource("virtualmachineinstances/guestosinfo", "VirtualMachineInstanceGuestAgentInfo", "get"),
        resource("virtualmachineinstances/addvolume", "VirtualMachineInstance", "update"),
        resource("virtualmachineinstances/removevolume", "VirtualMachineInstance", "update"),
    ]})
}

async fn change(
    Path((namespace, name)): Path<(String, String)>,
    State(harvester): State<Client>,
    decide: fn(&Vm, Option<&Instance>) -> Change,
) -> Response {
    let vms: Api<RawObject<VirtualMachine>> = Api::namespaced(harvester.clone(), &namespace);
    let instances: Api<RawObject<VirtualMachineInstance>> = Api::namespaced(harvester, &namespace);
    let seen = async { Ok((vms.get(&name).await?, instances.get_opt(&name).await?)) };
    let (vm, instance) = match seen.await {
        Ok(seen) => seen,
        Err(error) => return failed(&error),
    };
    let params = PatchParams::default();
    let written = match decide(&vm, instance.as_ref()) {
        Change::Spec(patch) => vms.patch(&name, &params, &Patch::Merge(patch)).await,
        Change::Status(patch) => vms.patch_status(&name, &params, &Patch::Merge(patch)).await,
        Change::Conflict(why) => return status(StatusCode::CONFLICT, "Conflict", &why),
    };
    match written {
        Ok(_) => StatusCode::ACCEPTED.into_response(),
        Err(error) => failed(&error),
    }
}

fn start(vm: &Vm, instance: Option<&Instance>) -> Change {
    match vm.spec.run_strategy.as_str() {
        _ if instance.is_some() => Change::Conflict("VM is already running".to_owned()),
        "Always" => Change::Conflict("Always does not support manual start requests".to_owned()),
        "Manual" | "RerunOnFailure" | "Once" => requests(&json!([{"action": "Start"}])),
        _ => Change::Spec(json!({"spec": {"runStrategy": "Always", "running": null}})),
    }
}

fn stop(vm: &Vm, instance: Option<&Instance>) -> Change {
    let Some(instance) = instance else { return Change::Conflict("VM is not running".to_owned()) };
    match vm.spec.run_strategy.as_str() {
        "Manual" | "RerunOnFailure" | "Once" => requests(&json!([{"action": "Stop", "uid": instance.uid()}])),
        _ => Change::Spec(json!({"spec": {"runStrategy": "Halted", "running": null}})),
    }
}

fn restart(vm: &Vm, instance: Option<&Instance>) -> Change {
    match (instance, vm.spec.run_strategy.as_str()) {
        (_, "Halted") => Change::Conflict("Halted does not support manual restart requests".to_owned()),
        (None, _) => Change::Conflict("VM is not running".to_owned()),
        (Some(instance), _) => {
            requests(&json!([{"action": "Stop", "uid": instance.uid()}, {"action": "Start"}]))
        }
    }
}

fn requests(requests: &Value) -> Change {
    Change::Status(json!({"status": {"stateChangeRequests": requests}}))
}

async fn guest_os_info(
    Path((namespace, name)): Path<(String, String)>,
    State(harvester): State<Client>,
) -> Response {
    let vms: Api<RawObject<VirtualMachine>> = Api::namespaced(harvester.clone(), &namespace);
    let instances: Api<RawObject<VirtualMachineInstance>> = Api::namespaced(harvester, &namespace);
    let seen = async { Ok((instances.get(&name).await?, vms.get_opt(&name).await?)) };
    match seen.await {
        Err(error) => failed(&error),
        Ok((instance, vm)) => match info(&instance, vm.as_ref()) {
            Some(info) => Json(info).into_response(),
            None => {
                let why = "VMI does not have guest agent connected";
                status(StatusCode::CONFLICT, "Conflict", why)
            }
        },
    }
}

/// The answer of the guest agent, when it is connected.
fn info(instance: &Instance, vm: Option<&Vm>) -> Option<Value> {
    let conditions = instance.status.iter().flat_map(|status| &status.conditions);
    let mut connected = conditions.filter(|condition| condition.r#type == "AgentConnected");
    connected.find(|condition| condition.status == "True")?;
    let hostname = vm.map_or_else(|| instance.name_any(), |vm| hostname(vm, Some(instance)));
    Some(json!({"apiVersion": "subresources.kubevirt.io/v1", "kind": "VirtualMachineInstanceGuestAgentInfo",
        "guestAgentVersion": "8.2.0", "hostname": hostname, "os": guest_os(), "timezone": "UTC, 0",
        "fsInfo": {"disks": []}}))
}

fn failed(error: &kube::Error) -> Response {
    match error {
        kube::Error::Api(failure) => {
            let code = StatusCode::from_u16(failure.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            status(code, &failure.reason, &failure.message)
        }
        error => status(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", &error.to_string()),
    }
}

fn status(code: StatusCode, reason: &str, message: &str) -> Response {
    let body = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "code": code.as_u16()});
    (code, Json(body)).into_response()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn vm(strategy: &str) -> Vm {
        RawObject::from_json(json!({"metadata": {"name": "guest-1"}, "spec": {"runStrategy": strategy}}))
            .unwrap()
    }

    fn instance(conditions: &Value) -> Instance {
        RawObject::from_json(
            json!({"metadata": {"name": "guest-1", "uid": "u"}, "spec": {"hostname": "node-a"},
            "status": {"conditions": conditions}}),
        )
        .unwrap()
    }

    #[rstest]
    #[case::start_halted(start, "Halted", false, "spec Always")]
    #[case::start_rerun(start, "RerunOnFailure", false, "status Start")]
    #[case::start_running(start, "RerunOnFailure", true, "VM is already running")]
    #[case::stop_always(stop, "Always", true, "spec Halted")]
    #[case::stop_rerun(stop, "RerunOnFailure", true, "status Stop")]
    #[case::stop_stopped(stop, "Halted", false, "VM is not running")]
    #[case::restart_rerun(restart, "RerunOnFailure", true, "status Stop Start")]
    #[case::restart_always(restart, "Always", true, "status Stop Start")]
    #[case::restart_stopped(restart, "RerunOnFailure", false, "VM is not running")]
    fn a_vm_is_started_stopped_and_restarted_as_its_strategy_allows(
        #[case] decide: fn(&Vm, Option<&Instance>) -> Change,
        #[case] strategy: &str,
        #[case] running: bool,
        #[case] expected: &str,
    ) {
        let instance = running.then(|| instance(&json!([])));
        let text = match decide(&vm(strategy), instance.as_ref()) {
            Change::Conflict(why) => why,
            Change::Spec(patch) => format!("spec {}", patch["spec"]["runStrategy"].as_str().unwrap()),
            Change::Status(patch) => {
                let requests = patch["status"]["stateChangeRequests"].as_array().unwrap().iter();
                let actions: Vec<_> = requests.map(|request| request["action"].as_str().unwrap()).collect();
                format!("status {}", actions.join(" "))
            }
        };
        assert_eq!(text, expected);
    }

    #[test]
    fn the_guest_tells_its_host_name_while_its_agent_is_connected() {
        let connected = instance(&json!([{"type": "AgentConnected", "status": "True"}]));
        assert_eq!(info(&connected, Some(&vm("Always"))).unwrap()["hostname"], "node-a");
        assert_eq!(info(&instance(&json!([])), Some(&vm("Always"))), None);
    }
}
