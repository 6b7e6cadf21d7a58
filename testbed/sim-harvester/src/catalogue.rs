//! The images and key pairs of VMs: the simulation imports an image at once, and checks a key pair.
//!
//! An object that brings a status keeps it: so a test or a user has an image that is half imported, or one that failed.

use k8s_openapi::api::storage::v1::StorageClass;
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams},
    core::GroupVersionKind,
};
use serde_json::{Value, json};

use controller_kit::{Action, ObjectKey, Queue};
use futures::StreamExt;
use kube::runtime::{WatchStreamExt, watcher};
use program::TaskGroup;

use crate::refused::{Error, unless_gone, unless_there};

/// Bytes of an image whose size nobody gave.
const SIZE: u64 = 512 << 20;

/// Keeps images and key pairs until `tasks` ends.
pub(crate) fn start(tasks: &TaskGroup, harvester: &Client) {
    follow(tasks, harvester, "VirtualMachineImage", "virtualmachineimages", image);
    follow(tasks, harvester, "KeyPair", "keypairs", key_pair);
}

/// The writes for an object: its own merge patch, and the storage class of an image.
#[derive(Debug, PartialEq)]
struct Needed {
    class: Option<Value>,
    patch: Value,
}

fn follow(
    tasks: &TaskGroup,
    harvester: &Client,
    kind: &str,
    plural: &str,
    decide: fn(&DynamicObject) -> Option<Needed>,
) {
    let gvk = GroupVersionKind::gvk("harvesterhci.io", "v1beta1", kind);
    let resource = ApiResource::from_gvk_with_plural(&gvk, plural);
    let all: Api<DynamicObject> = Api::all_with(harvester.clone(), &resource);
    let queue: Queue<ObjectKey> = Queue::new();
    let (client, add) = (harvester.clone(), queue.clone());
    let namespaced = move |namespace: &str| -> Api<DynamicObject> {
        Api::namespaced_with(client.clone(), namespace, &resource)
    };
    let classes: Api<StorageClass> = Api::all(harvester.clone());
    queue.run(tasks, 1, move |key| {
        let (api, classes) = (namespaced(&key.namespace), classes.clone());
        async move { furnish(&api, &classes, &key, decide).await.map(|()| Action::AwaitChange) }
    });
    tasks.spawn_until_stop(async move {
        let objects = watcher(all, watcher::Config::default()).default_backoff().applied_objects();
        let mut objects = std::pin::pin!(objects);
        while let Some(object) = objects.next().await {
            if let Ok(object) = object {
                add.add(ObjectKey::new(object.namespace().unwrap_or_default(), object.name_any()));
            }
        }
    });
}

async fn furnish(
    api: &Api<DynamicObject>,
    classes: &Api<StorageClass>,
    key: &ObjectKey,
    decide: fn(&DynamicObject) -> Option<Needed>,
) -> Result<(), Error> {
    let error = |what| Error::of(what, key);
    let object = api.get_opt(&key.name).await.map_err(error("read"))?;
    let Some(Needed { class, patch }) = object.as_ref().and_then(decide) else { return Ok(()) };
    if let Some(class) = class {
        let class = serde_json::from_value(class).expect("what we made is a storage class");
        let answer = classes.create(&PostParams::default(), &class).await;
        unless_there(answer).map_err(error("make the storage class of image"))?;
    }
    let answer = api.patch(&key.name, &PatchParams::default(), &Patch::Merge(patch)).await;
    unless_gone(answer).map(drop).map_err(error("write status of"))
}

fn image(image: &DynamicObject) -> Option<Needed> {
    if image.metadata.deletion_timestamp.is_some() || !image.data["status"].is_null() {
        return None;
    }
    let class = format!("longhorn-{}", image.name_any());
    let backing = format!("{}-{}", image.namespace().unwrap_or_default(), image.name_any());
    let holds = |kind: &str| json!({"type": kind, "status": "True", "reason": "", "message": ""});
    Some(Needed {
        class: Some(
            json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": class},
            "provisioner": "driver.longhorn.io", "reclaimPolicy": "Delete", "volumeBindingMode": "Immediate",
            "allowVolumeExpansion": true, "parameters": {"backingImage": backing, "numberOfReplicas": "3"}}),
        ),
        patch: json!({"status": {"progress": 100, "size": SIZE, "virtualSize": SIZE, "storageClassName": class,
            "conditions": [holds("Initialized"), holds("Imported")]}}),
    })
}

fn key_pair(pair: &DynamicObject) -> Option<Needed> {
    if pair.metadata.deletion_timestamp.is_some() || !pair.data["status"].is_null() {
        return None;
    }
    let key = pair.data["spec"]["publicKey"].as_str().unwrap_or_default();
    let mut words = key.split_whitespace();
    let algorithm = words.next().unwrap_or_default();
    let known = ["ssh-", "ecdsa-", "sk-"].iter().any(|prefix| algorithm.starts_with(prefix));
    let valid = known && words.next().is_some();
    let why = if valid { "" } else { "failed to parse the public key: ssh: no key found" };
    Some(Needed {
        class: None,
        patch: json!({"status": {"conditions": [{"type": "validated", "status": if valid { "True" } else { "False" },
            "reason": "", "message": why}]}}),
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn object(spec: &Value, status: &Value) -> DynamicObject {
        let mut json = json!({"apiVersion": "harvesterhci.io/v1beta1", "kind": "Any",
            "metadata": {"name": "leap", "namespace": "shop"}, "spec": spec});
        json_patch::merge(&mut json, &json!({"status": status}));
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn an_image_is_imported_and_has_a_storage_class_of_its_own() {
        let Needed { class, patch } = image(&object(&json!({"displayName": "Leap"}), &Value::Null)).unwrap();
        assert_eq!(class.unwrap()["metadata"]["name"], patch["status"]["storageClassName"]);
        assert_eq!(patch["status"]["progress"], 100);
    }

    #[test]
    fn a_status_that_somebody_wrote_stays() {
        assert_eq!(image(&object(&json!({}), &json!({"progress": 40}))), None);
        assert_eq!(key_pair(&object(&json!({}), &json!({"conditions": []}))), None);
    }

    #[rstest]
    #[case::rsa("ssh-rsa AAAA user@host", "True")]
    #[case::ed25519("ssh-ed25519 AAAA", "True")]
    #[case::no_key("ssh-rsa", "False")]
    #[case::something("hello world", "False")]
    fn only_a_public_key_is_valid(#[case] key: &str, #[case] expected: &str) {
        let needed = key_pair(&object(&json!({"publicKey": key}), &Value::Null)).unwrap();
        assert_eq!(needed.patch["status"]["conditions"][0]["status"], expected);
    }
}
