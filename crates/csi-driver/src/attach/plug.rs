//! The writes that bring a disk into a machine and out of it: a patch of the VirtualMachine (Harvester from 1.8 on), or
//! its subresources `addvolume` and `removevolume` (before).
//!
//! The way is found out by the answers of the host, and again when they change: a driver may run while its host is
//! upgraded (docs/contract/csi-driver.md#ways).

use std::sync::atomic::{AtomicBool, Ordering};

use harvester_api::VirtualMachine;
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
    core::{ApiResource, DynamicObject, GroupVersionKind, Request},
};
use serde_json::{Value, json};

use super::hotplug;
use crate::{host::Host, refusal::Refusal};

/// On a machine: changed so that a write that was decided on an older version of it fails.
const FENCE: &str = harvester_api::annotations::CSI_FENCE;

/// What came of a write.
#[derive(Clone, Debug)]
pub enum Written {
    /// The machine as it is now, where the host has told; a subresource does not.
    Done(Option<Box<VirtualMachine>>),
    /// The host refused the write for the version that it was for, or for another reason: if the machine has that
    /// version still, this is the reason.
    Refused { version: String, why: Refusal },
    /// The write was not begun: the right is missing, or the way is switched off. Another way is chosen next time.
    OtherWay(Refusal),
}

/// Writes to machines.
pub struct Plug {
    host: Host,
    by_subresources: AtomicBool,
}

impl Plug {
    pub fn new(host: Host) -> Self {
        Self { host, by_subresources: AtomicBool::new(false) }
    }

    /// Whether machines are written through their subresources, so that no write can be made to depend on a version.
    pub fn is_by_subresources(&self) -> bool {
        self.by_subresources.load(Ordering::Relaxed)
    }

    /// Adds all these volumes, or none. By subresources they are added one by one.
    pub async fn add(&self, vm: &VirtualMachine, claims: &[String]) -> Result<Written, Refusal> {
        if let ([claim], true) = (claims, self.is_by_subresources()) {
            let body = json!({"name": claim, "disk": {"name": claim, "disk": {"bus": "scsi"}},
                "volumeSource": {"persistentVolumeClaim": {"claimName": claim}}});
            return self.put("virtualmachines", "addvolume", vm, &body).await;
        }
        match hotplug::add_all(vm, claims) {
            Some(patch) => self.patch(vm, patch, "add a volume to").await,
            None => Ok(Written::Done(None)),
        }
    }

    pub async fn remove(&self, vm: &VirtualMachine, claim: &str) -> Result<Written, Refusal> {
        if self.is_by_subresources() {
            return self.put("virtualmachines", "removevolume", vm, &json!({"name": claim})).await;
        }
        match hotplug::remove(vm, claim) {
            Some(patch) => self.patch(vm, patch, "remove a volume from").await,
            None => Ok(Written::Done(None)),
        }
    }

    /// Removes a volume from the template of a machine whose instance never took it from there.
    pub async fn remove_from_template(&self, vm: &VirtualMachine, claim: &str) -> Result<Written, Refusal> {
        match hotplug::remove(vm, claim) {
            Some(patch) => self.patch(vm, patch, "remove a volume from").await,
            None => Ok(Written::Done(None)),
        }
    }

    /// Removes a volume that the instance alone has, where virt-controller does not do it by itself.
    pub async fn remove_from_instance(&self, vm: &VirtualMachine, claim: &str) -> Result<Written, Refusal> {
        self.put("virtualmachineinstances", "removevolume", vm, &json!({"name": claim})).await
    }

    /// Changes the version of the machine, by a text that it has never had: an API server gives no new version to an
    /// object that a write leaves as it is. By subresources this cannot be done: [`Written::OtherWay`].
    pub async fn fence(&self, vm: &VirtualMachine, unique: &str) -> Result<Written, Refusal> {
        let patch = hotplug::fence(vm, FENCE, unique);
        self.patch(vm, patch, "mark").await
    }

    /// Whether the host's version is one before the declarative way; the next writes go the way that it has. `None`
    /// where the version cannot be read.
    pub async fn ask_version(&self) -> Option<bool> {
        let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("harvesterhci.io", "v1beta1", "Setting"));
        let settings: Api<DynamicObject> = Api::all_with(self.host.client(), &kind);
        let setting = settings.get_opt("server-version").await.ok()??;
        let text = |key: &str| setting.data.get(key).and_then(Value::as_str).filter(|text| !text.is_empty());
        let is_old = text("value").or_else(|| text("default")).is_some_and(is_before_1_8);
        if is_old {
            self.by_subresources.store(true, Ordering::Relaxed);
        }
        Some(is_old)
    }

    /// From now on by patches, as a host does it that knows no subresource of instances any more.
    fn by_patch(&self) {
        self.by_subresources.store(false, Ordering::Relaxed);
    }

    async fn patch(&self, vm: &VirtualMachine, patch: Value, doing: &str) -> Result<Written, Refusal> {
        let name = vm.metadata.name.as_deref().unwrap_or_default();
        let patch = serde_json::from_value(patch).expect("these are operations of a JSON patch");
        let patch = Patch::<VirtualMachine>::Json(patch);
        let doing = format!("{doing} {}", self.host.machine_name(name));
        match self.host.machines().patch(name, &PatchParams::default(), &patch).await {
            Ok(vm) => Ok(Written::Done(Some(Box::new(vm)))),
            Err(error) => {
                let why = Refusal::of_host(&doing, &error);
                match code(&error) {
                    // an admission webhook that says no answers 403 too
                    403 if why.message.contains("cannot patch resource") => {
                        self.by_subresources.store(true, Ordering::Relaxed);
                        Ok(Written::OtherWay(why))
                    }
                    // the test of a version that is no more answers 422 (docs/contract/csi-driver.md#conflicts)
                    403 | 404 | 409 | 422 => Ok(Written::Refused { version: version(vm), why }),
                    _ => Err(why),
                }
            }
        }
    }

    async fn put(
        &self,
        kind: &str,
        verb: &str,
        vm: &VirtualMachine,
        body: &Value,
    ) -> Result<Written, Refusal> {
        let name = vm.metadata.name.as_deref().unwrap_or_default();
        let namespace = self.host.namespace();
        let path = format!("/apis/subresources.kubevirt.io/v1/namespaces/{namespace}/{kind}");
        let doing = format!("{verb} of {}", self.host.machine_name(name));
        let request = Request::new(path)
            .replace_subresource(verb, name, &PostParams::default(), body.to_string().into_bytes())
            .map_err(|error| Refusal::new(tonic::Code::Internal, format!("{doing}: {error}")))?;
        match self.host.client().request_text(request).await {
            Ok(_) => Ok(Written::Done(None)),
            Err(error) => {
                let why = Refusal::of_host(&doing, &error);
                match code(&error) {
                    // "feature gate": the host has been upgraded under this process
                    400 | 403 => {
                        self.by_patch();
                        Ok(Written::OtherWay(why))
                    }
                    // 500 is a conflict inside of virt-api
                    404 | 409 | 422 | 500 => Ok(Written::Refused { version: version(vm), why }),
                    _ => Err(why),
                }
            }
        }
    }
}

pub(super) fn version(vm: &VirtualMachine) -> String {
    vm.metadata.resource_version.clone().unwrap_or_default()
}

fn code(error: &kube::Error) -> u16 {
    match error {
        kube::Error::Api(status) => status.code,
        _ => 0,
    }
}

/// Whether this is surely a version before 1.8: a plain one, as releases have.
fn is_before_1_8(version: &str) -> bool {
    let plain = version.trim().trim_start_matches('v').split(['-', '+']).next().unwrap_or_default();
    let mut numbers = plain.split('.').map(str::parse::<u32>);
    matches!((numbers.next(), numbers.next()), (Some(Ok(major)), Some(Ok(minor))) if (major, minor) < (1, 8))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    // docs/contract/csi-driver.md#ways
    #[rstest]
    #[case("v1.7.2", true)]
    #[case("v1.7-head", true)]
    #[case("1.3.1", true)]
    #[case("v1.8.0-rc1", false)]
    #[case("v1.9.0", false)]
    #[case("v2.0.0", false)]
    #[case("master-head", false)]
    #[case("dev", false)]
    #[case("", false)]
    #[case("v1", false)]
    #[case("v99999999999.1", false)]
    fn a_strange_version_of_the_host_says_nothing(#[case] version: &str, #[case] is_old: bool) {
        assert_eq!(is_before_1_8(version), is_old);
    }
}
