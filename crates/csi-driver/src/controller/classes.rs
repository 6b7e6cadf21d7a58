//! StorageClasses of the host.

use k8s_openapi::api::storage::v1::StorageClass;
use kube::ResourceExt;
use tonic::Code;

use crate::{
    host::{self, Host},
    refusal::Refusal,
    volume::name::HostName,
};

/// The one provisioner whose volumes Harvester exports over NFS.
pub(super) const LONGHORN: &str = "driver.longhorn.io";
const DEFAULT: [&str; 2] =
    ["storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class"];

/// The class of a name; `None` where the host does not let us read classes: the name is then used as it is.
pub(super) async fn named(host: &Host, name: &str) -> Result<Option<StorageClass>, Refusal> {
    if HostName::from_handle(name).is_none() {
        return Err(Refusal::invalid(format!(
            "{name:?} is no name of a StorageClass on the host: correct hostStorageClass of the guest's StorageClass"
        )));
    }
    match host.classes().get(name).await {
        Ok(class) => Ok(Some(class)),
        Err(error) if host::is_not_found(&error) => Err(Refusal::not_found(format!(
            "StorageClass {name} does not exist on the host: create it there, or name another one by hostStorageClass of \
             the guest's StorageClass"
        ))),
        Err(error) if host::is_absent(&error) => Ok(None),
        Err(error) => Err(Refusal::of_host(&format!("read StorageClass {name} on the host"), &error)),
    }
}

/// Whether the refusal says that there is no class of the name, or that no class can have it.
pub(super) fn is_gone(refusal: &Refusal) -> bool {
    matches!(refusal.code, Code::NotFound | Code::InvalidArgument)
}

/// The class of a claim or a snapshot, which may have none.
pub(super) async fn of(host: &Host, name: Option<&str>) -> Result<Option<StorageClass>, Refusal> {
    match name {
        Some(name) => named(host, name).await,
        None => Ok(None),
    }
}

/// The class that the host gives to a claim without one; `None` where there is none or it cannot be known.
pub(super) async fn default(host: &Host) -> Result<Option<StorageClass>, Refusal> {
    match host::list(&host.classes()).await {
        Ok(classes) => Ok(newest_default(classes)),
        Err(error) if host::is_absent(&error) => Ok(None),
        Err(error) => Err(Refusal::of_host("list the StorageClasses on the host", &error)),
    }
}

/// Kubernetes takes the newest of several.
fn newest_default(classes: Vec<StorageClass>) -> Option<StorageClass> {
    let is_default = |class: &StorageClass| {
        DEFAULT.iter().any(|key| class.annotations().get(*key).is_some_and(|value| value == "true"))
    };
    classes.into_iter().filter(is_default).max_by_key(ResourceExt::creation_timestamp)
}

/// Whether claims of the class are bound when a pod that uses them is scheduled, and not before.
pub(super) fn waits_for_consumer(class: &StorageClass) -> bool {
    class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn class(name: &str, key: &str, day: u8) -> StorageClass {
        let metadata = json!({"name": name, "annotations": {key: "true"}, "creationTimestamp": format!("2026-01-0{day}T00:00:00Z")});
        serde_json::from_value(json!({"metadata": metadata, "provisioner": LONGHORN})).unwrap()
    }

    #[test]
    fn of_several_default_classes_the_newest_counts() {
        let classes = vec![class("a", DEFAULT[0], 1), class("b", DEFAULT[1], 3), class("c", "other", 4)];
        assert_eq!(newest_default(classes).unwrap().name_any(), "b");
    }
}
