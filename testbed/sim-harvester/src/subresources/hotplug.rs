//! `addvolume` and `removevolume`: a disk that comes into a VM, or leaves it, by a request.
//!
//! ```text
//! of a VM:       up to 1.7: a request in its status, for the controller     from 1.8: its template is changed here
//! of an instance: its spec is changed here, and the VM's template is not     from 1.8: refused, where a VM has the instance
//! ```

use axum::{
    body::Bytes,
    extract::{Path, State},
    response::{IntoResponse, Response},
};
use http::StatusCode;
use kube::{
    Api, Client, Resource,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};

use controller_kit::RawObject;
use harvester_api::{VirtualMachine, VirtualMachineInstance};

use super::{failed, status};
use crate::{
    HotPlug, harvester_version,
    volumes::{asked, claim, is_called, is_hot, name, volumes, with, without},
};

type At = Path<(String, String)>;

pub(super) async fn add_to_vm(at: At, State(harvester): State<Client>, body: Bytes) -> Response {
    answer(of_vm(&harvester, at, read(&body, Verb::Add)).await)
}

pub(super) async fn remove_from_vm(at: At, State(harvester): State<Client>, body: Bytes) -> Response {
    answer(of_vm(&harvester, at, read(&body, Verb::Remove)).await)
}

pub(super) async fn add_to_instance(at: At, State(harvester): State<Client>, body: Bytes) -> Response {
    answer(of_instance(&harvester, at, read(&body, Verb::Add)).await)
}

pub(super) async fn remove_from_instance(at: At, State(harvester): State<Client>, body: Bytes) -> Response {
    answer(of_instance(&harvester, at, read(&body, Verb::Remove)).await)
}

/// The refusal of a request.
#[derive(Debug)]
enum Refused {
    BadRequest(String),
    /// 409, with the kind and the name of the object.
    Conflict(&'static str, String, String),
    ByServer(kube::Error),
}

impl From<kube::Error> for Refused {
    fn from(error: kube::Error) -> Self {
        Self::ByServer(error)
    }
}

fn answer(done: Result<(), Refused>) -> Response {
    match done {
        Ok(()) => StatusCode::ACCEPTED.into_response(),
        Err(Refused::BadRequest(why)) => status(StatusCode::BAD_REQUEST, "BadRequest", &why),
        Err(Refused::Conflict(kind, name, why)) => {
            let why = format!("Operation cannot be fulfilled on {kind}.kubevirt.io \"{name}\": {why}");
            status(StatusCode::CONFLICT, "Conflict", &why)
        }
        // KubeVirt tests what it has read, and calls a newer version an error of its own
        Err(Refused::ByServer(kube::Error::Api(refused))) if refused.code == 409 => {
            let why = format!("Internal error occurred: unable to patch vm: {}", refused.message);
            status(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", &why)
        }
        Err(Refused::ByServer(error)) => failed(&error),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verb {
    Add,
    Remove,
}

/// What a client asks for.
#[derive(Clone, Debug, PartialEq)]
struct Request {
    verb: Verb,
    options: Value,
}

fn read(body: &[u8], verb: Verb) -> Result<Request, Refused> {
    let refuse = |why: &str| Err(Refused::BadRequest(why.to_owned()));
    if body.is_empty() {
        return refuse("Request with no body, a new name is expected as the request body");
    }
    let options: Value = serde_json::from_slice(body)
        .map_err(|error| Refused::BadRequest(format!("Unable to unmarshal request: {error}")))?;
    let kind = if verb == Verb::Add { "AddVolumeOptions" } else { "RemoveVolumeOptions" };
    if name(&options).is_empty() {
        return refuse(&format!("{kind} requires name to be set"));
    }
    if verb == Verb::Add && !options["disk"].is_object() {
        return refuse("AddVolumeOptions requires disk to not be nil");
    }
    if verb == Verb::Add && !options["volumeSource"].is_object() {
        return refuse("AddVolumeOptions requires VolumeSource to not be nil");
    }
    Ok(Request { verb, options })
}

impl Request {
    fn params(&self) -> PatchParams {
        PatchParams { dry_run: self.options["dryRun"][0] == "All", ..PatchParams::default() }
    }

    /// The merge patch of a spec that does what is asked, or why it cannot be done.
    fn applied(&self, spec: &Value) -> Result<Value, String> {
        let known = volumes(spec);
        match self.verb {
            Verb::Add => {
                let (volume, disk) = asked(&self.options);
                if known.iter().any(|known| name(known) == name(&volume)) {
                    let name = name(&volume);
                    return Err(format!(
                        "Unable to add volume [{name}] because volume with that name already exists"
                    ));
                }
                let taken =
                    claim(&volume).filter(|_| known.iter().any(|known| claim(known) == claim(&volume)));
                if let Some(taken) = taken {
                    return Err(format!("Unable to add volume source [{taken}] because it already exists"));
                }
                Ok(with(spec, &[volume], &[disk]))
            }
            Verb::Remove => {
                let called = name(&self.options);
                match known.iter().find(|known| is_called(known, called)) {
                    None => Err(format!("Unable to remove volume [{called}] because it does not exist")),
                    Some(volume) if !is_hot(volume) => {
                        Err(format!("Unable to remove volume [{called}] because it is not hotpluggable"))
                    }
                    Some(volume) => Ok(without(spec, &[name(volume)])),
                }
            }
        }
    }

    /// The requests of a VM's status after this one, or why it cannot be among them.
    fn queued(&self, before: &Value) -> Result<Value, String> {
        let before = before.as_array().cloned().unwrap_or_default();
        let called = name(&self.options);
        let is_about = |request: &Value, field: &str| name(&request[field]) == called;
        for (field, verb) in [("addVolumeOptions", "add"), ("removeVolumeOptions", "remove")] {
            if before.iter().any(|request| is_about(request, field)) {
                return Err(format!(
                    "{verb} volume request for volume [{called}] already exists and is still being processed"
                ));
            }
        }
        let mut options = self.options.clone();
        let field = match self.verb {
            Verb::Remove => "removeVolumeOptions",
            Verb::Add => {
                let (volume, disk) = asked(&options);
                options["disk"] = disk;
                options["volumeSource"] = volume;
                drop(options["volumeSource"].as_object_mut().map(|source| source.remove("name")));
                "addVolumeOptions"
            }
        };
        Ok(json!([before, vec![json!({field: options})]].concat()))
    }
}

/// On the version that was read.
fn on_version(object: &Value, mut patch: Value) -> Patch<Value> {
    patch["metadata"] = json!({"resourceVersion": object["metadata"]["resourceVersion"]});
    Patch::Merge(patch)
}

async fn of_vm(
    harvester: &Client,
    Path((namespace, vm)): At,
    request: Result<Request, Refused>,
) -> Result<(), Refused> {
    let request = request?;
    let vms: Api<RawObject<VirtualMachine>> = Api::namespaced(harvester.clone(), &namespace);
    let json = vms.get(&vm).await?.json();
    let conflict = |why| Refused::Conflict("virtualmachine", vm.clone(), why);
    let spec = request.applied(&json["spec"]["template"]["spec"]).map_err(conflict)?;
    match way(harvester).await? {
        HotPlug::Declarative => {
            let patch = on_version(&json, json!({"spec": {"template": {"spec": spec}}}));
            vms.patch(&vm, &request.params(), &patch).await?;
        }
        HotPlug::Requests => {
            let requests = request.queued(&json["status"]["volumeRequests"]).map_err(conflict)?;
            let patch = on_version(&json, json!({"status": {"volumeRequests": requests}}));
            vms.patch_status(&vm, &request.params(), &patch).await?;
        }
    }
    Ok(())
}

async fn of_instance(
    harvester: &Client,
    Path((namespace, instance)): At,
    request: Result<Request, Refused>,
) -> Result<(), Refused> {
    let request = request?;
    let instances: Api<RawObject<VirtualMachineInstance>> = Api::namespaced(harvester.clone(), &namespace);
    let json = instances.get(&instance).await?.json();
    let owned = json["metadata"]["ownerReferences"].as_array().into_iter().flatten();
    if way(harvester).await? == HotPlug::Declarative
        && owned.clone().any(|owner| owner["kind"] == VirtualMachine::kind(&()).as_ref())
    {
        let why = format!(
            "VirtualMachineInstance {instance} is owned by a VirtualMachine: its volumes follow that"
        );
        return Err(Refused::BadRequest(why));
    }
    let conflict = |why| Refused::Conflict("virtualmachineinstance", instance.clone(), why);
    if json["status"]["phase"] != "Running" {
        return Err(conflict("VMI is not running".to_owned()));
    }
    let spec = request.applied(&json["spec"]).map_err(conflict)?;
    instances.patch(&instance, &request.params(), &on_version(&json, json!({"spec": spec}))).await?;
    Ok(())
}

/// How disks come into VMs of this Harvester.
async fn way(harvester: &Client) -> kube::Result<HotPlug> {
    let version = harvester_version::current(harvester).await?;
    Ok(HotPlug::of_harvester(&version).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn add(name: &str, claim: &str) -> Value {
        json!({"name": name, "disk": {"name": "other", "disk": {"bus": "scsi"}},
            "volumeSource": {"persistentVolumeClaim": {"claimName": claim}}})
    }

    fn spec() -> Value {
        json!({"volumes": [{"name": "root", "persistentVolumeClaim": {"claimName": "root"}},
                {"name": "disk-1", "persistentVolumeClaim": {"claimName": "a", "hotpluggable": true}}],
            "domain": {"devices": {"disks": [{"name": "root", "disk": {}}, {"name": "disk-1", "disk": {}}]}}})
    }

    fn request(verb: Verb, body: &Value) -> Result<Request, String> {
        read(body.to_string().as_bytes(), verb).map_err(|refused| format!("{refused:?}"))
    }

    #[rstest]
    #[case::no_name(Verb::Add, json!({"disk": {}, "volumeSource": {}}), "requires name")]
    #[case::no_name_to_remove(Verb::Remove, json!({}), "RemoveVolumeOptions requires name")]
    #[case::no_disk(Verb::Add, json!({"name": "a", "volumeSource": {}}), "requires disk")]
    #[case::no_source(Verb::Add, json!({"name": "a", "disk": {}}), "requires VolumeSource")]
    #[case::no_object(Verb::Add, json!([]), "requires name")]
    fn a_request_that_lacks_something_is_a_bad_request(
        #[case] verb: Verb,
        #[case] body: Value,
        #[case] expected: &str,
    ) {
        let refused = request(verb, &body).unwrap_err();
        assert!(refused.starts_with("BadRequest") && refused.contains(expected), "{refused}");
        assert!(matches!(read(b"", verb), Err(Refused::BadRequest(_))));
        assert!(matches!(read(b"{", verb), Err(Refused::BadRequest(_))));
    }

    #[rstest]
    #[case::name(Verb::Add, add("disk-1", "b"), "volume with that name already exists")]
    #[case::claim(Verb::Add, add("b", "a"), "volume source [a] because it already exists")]
    #[case::unknown(Verb::Remove, json!({"name": "b"}), "does not exist")]
    #[case::cold(Verb::Remove, json!({"name": "root"}), "not hotpluggable")]
    fn what_is_there_is_not_added_and_what_cannot_leave_is_not_removed(
        #[case] verb: Verb,
        #[case] body: Value,
        #[case] expected: &str,
    ) {
        let refused = request(verb, &body).unwrap().applied(&spec()).unwrap_err();
        assert!(refused.contains(expected), "{refused}");
    }

    #[test]
    fn volume_and_disk_come_and_go_together_and_have_the_name_that_was_asked_for() {
        let mut spec = spec();
        let patch = request(Verb::Add, &add("b", "b")).unwrap().applied(&spec).unwrap();
        json_patch::merge(&mut spec, &patch);
        let volume = json!({"name": "b", "persistentVolumeClaim": {"claimName": "b", "hotpluggable": true}});
        assert_eq!((spec["volumes"].as_array().unwrap().len(), &spec["volumes"][2]), (3, &volume));
        assert_eq!(spec["domain"]["devices"]["disks"][2], json!({"name": "b", "disk": {"bus": "scsi"}}));
        // by its claim as well
        let patch = request(Verb::Remove, &json!({"name": "a"})).unwrap().applied(&spec).unwrap();
        json_patch::merge(&mut spec, &patch);
        let names: Vec<_> = crate::volumes::disks(&spec).iter().map(name).collect();
        assert_eq!(names, ["root", "b"]);
    }

    #[test]
    fn one_request_for_a_volume_waits_in_the_status_at_a_time() {
        let add = request(Verb::Add, &add("b", "b")).unwrap();
        let queued = add.queued(&Value::Null).unwrap();
        assert_eq!(
            queued[0]["addVolumeOptions"]["volumeSource"]["persistentVolumeClaim"]["hotpluggable"],
            true
        );
        assert!(add.queued(&queued).unwrap_err().contains("add volume request"));
        let remove = request(Verb::Remove, &json!({"name": "b"})).unwrap();
        assert!(remove.queued(&queued).unwrap_err().contains("still being processed"));
        let other = request(Verb::Remove, &json!({"name": "disk-1"})).unwrap();
        assert_eq!(other.queued(&queued).unwrap().as_array().unwrap().len(), 2);
    }
}
