//! `PreCreateCheck`: everything that can be known before a VM is made, asked at once and answered with everything that
//! is wrong. It writes nothing, neither to Harvester nor to disk: after a failure nobody would clean up.

use std::{collections::BTreeMap, path::Path};

use cloud_config::{
    expiry::{self, Expiry},
    permissions::{self, Permission},
};
use futures::future::{BoxFuture, FutureExt as _, join_all};
use kube::api::DynamicObject;
use tokio::task::JoinHandle;

use super::{Driver, Error, Place};
use crate::{
    cloud_init::{CloudInit, Ours},
    host::Host,
    machine::{Machine, Source},
    objects::InputHash,
    ownership,
    reference::Reference,
    ssh_key::{self, KeyPair},
};

/// The first releases had other objects.
const TOO_OLD: &str = "v0.1.0";

/// What `PreCreateCheck` found out, for `Create`.
pub(super) struct Prepared {
    /// Setting `server-version`.
    pub(super) server_version: String,
    /// Storage class of each image.
    pub(super) classes: BTreeMap<String, String>,
    /// Public key of the KeyPair that may log in too.
    pub(super) key_pair: Option<String>,
    /// rancher-machine's user data.
    pub(super) last: String,
    /// A key in the making, where none is there.
    pub(super) key: Option<JoinHandle<KeyPair>>,
}

/// What one question came to.
#[derive(Default)]
struct Answer {
    faults: Vec<String>,
    notes: Vec<String>,
    class: Option<(String, String)>,
    key_pair: Option<String>,
}

impl Answer {
    fn fault(text: String) -> Self {
        Self { faults: vec![text], ..Self::default() }
    }
}

impl Driver {
    /// `PreCreateCheck`.
    ///
    /// # Errors
    /// Everything that stands against making the machine, in one line.
    pub async fn pre_create_check(&self) -> Result<(), Error> {
        let faults = |faults: Vec<String>| Error::in_quotes(&faults.join("; "));
        let config = self.config();
        let machine = Machine::check(&config).map_err(faults)?;
        let prepared = self.prepare(&machine).await.map_err(faults)?;
        {
            let mut config = self.locked();
            config.server_version.clone_from(&prepared.server_version);
            if let Some(key) = &prepared.key_pair {
                config.ssh_public_key.clone_from(key);
            }
        }
        *self.prepared.lock().expect("no panic while it is handed over") = Some(prepared);
        Ok(())
    }

    pub(super) async fn prepare(&self, machine: &Machine) -> Result<Prepared, Vec<String>> {
        let config = self.config();
        let folder = config.machine_folder();
        // local files first: they cost nothing
        let last = match &machine.cloud_config {
            None => String::new(),
            Some(path) => std::fs::read_to_string(path).map_err(|error| {
                vec![format!("read the user data of rancher-machine, {}: {error}", path.display())]
            })?,
        };
        let inputs = stored_key(machine, &folder)?.map(|key| InputHash::of(machine, &last, &key));
        let placeholder = ["ssh-rsa AAAA".to_owned()];
        let ours = Ours { ssh_user: &machine.ssh_user, public_keys: &placeholder, ..Ours::default() };
        CloudInit::build(&ours, &machine.user_data.0, &last, &machine.network_data.0)
            .map_err(|fault| vec![fault])?;

        let one = |error: Error| vec![error.to_string()];
        let (host, place) = self.host().map_err(one)?;
        let expiry = self.opened().as_mut().and_then(|open| open.expiry.take());
        let make_key = self.parts.make_key;
        let key = (machine.private_key.is_none() && inputs.is_none())
            .then(|| tokio::task::spawn_blocking(make_key));
        // alone and first: if this fails, everything would
        let server_version = host.setting("server-version").await.map_err(|error| vec![error.to_string()])?;
        if server_version.starts_with(TOO_OLD) {
            return Err(vec![format!("Harvester {server_version} is too old for this driver")]);
        }
        let (mut found, mut classes) = (Answer::default(), BTreeMap::new());
        for answer in join_all(self.questions(&host, &place, machine, inputs, expiry)).await {
            found.faults.extend(answer.faults);
            found.notes.extend(answer.notes);
            found.key_pair = found.key_pair.or(answer.key_pair);
            if let Some((image, class)) = answer.class {
                classes.insert(image, class);
            }
        }
        if !found.faults.is_empty() {
            return Err(found.faults);
        }
        for note in found.notes {
            self.parts.say.line(&note);
        }
        Ok(Prepared { server_version, classes, key_pair: found.key_pair, last, key })
    }

    /// Everything that is asked of Harvester, to be asked at once.
    fn questions<'a>(
        &self,
        host: &'a Host,
        place: &'a Place,
        machine: &'a Machine,
        inputs: Option<InputHash>,
        expiry: Option<BoxFuture<'static, Expiry>>,
    ) -> Vec<BoxFuture<'a, Answer>> {
        let now = self.parts.clock.now();
        let mut questions = vec![
            namespace_is_there(host, place).boxed(),
            name_is_free(host, place, inputs).boxed(),
            rights(host, place).boxed(),
        ];
        if let Some(expiry) = expiry {
            questions.push(async move { lasts(&expiry.await, now) }.boxed());
        }
        let mut images: Vec<&Reference> = vec![];
        let mut classes: Vec<&str> = vec![];
        for disk in &machine.disks {
            match &disk.source {
                Source::Image(at) if !images.contains(&at) => images.push(at),
                Source::Class(name) if !classes.contains(&name.as_str()) => classes.push(name),
                _ => {}
            }
        }
        questions.extend(images.into_iter().map(|at| image(host, machine, at).boxed()));
        questions.extend(classes.into_iter().map(|name| storage_class(host, name).boxed()));
        let mut networks: Vec<&Reference> = vec![];
        for nic in &machine.nics {
            if !networks.contains(&&nic.network) {
                networks.push(&nic.network);
            }
        }
        questions.extend(networks.into_iter().map(|at| network(host, at).boxed()));
        questions.extend(machine.key_pair.iter().map(|(at, _)| key_pair(host, at).boxed()));
        questions
    }
}

/// The private key by which an earlier attempt of this machine is recognised: the user's, or the one that it stored.
pub(super) fn stored_key(machine: &Machine, folder: &Path) -> Result<Option<String>, Vec<String>> {
    let own = machine.private_key.clone();
    let path = own.clone().unwrap_or_else(|| ssh_key::path(folder));
    match std::fs::read_to_string(&path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if own.is_none() && error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(vec![format!("read the private SSH key {}: {error}", path.display())]),
    }
}

async fn namespace_is_there(host: &Host, place: &Place) -> Answer {
    if host.has_namespace().await {
        return Answer::default();
    }
    let namespace = &place.namespace;
    Answer::fault(format!(
        "namespace {namespace} does not exist in Harvester: make it, or set harvester-vm-namespace"
    ))
}

async fn name_is_free(host: &Host, place: &Place, inputs: Option<InputHash>) -> Answer {
    match host.vm(&place.machine).await {
        Ok(None) => Answer::default(),
        Ok(Some(vm)) => {
            let refusal = ownership::refusal(&ownership::of(&vm, inputs.as_ref(), None), &place.to_string());
            refusal.map_or_else(Answer::default, Answer::fault)
        }
        // pitfalls-node-driver.md B4: upstream takes every error for a free name
        Err(error) => Answer::fault(error.to_string()),
    }
}

async fn rights(host: &Host, place: &Place) -> Answer {
    let missing = permissions::missing(&host.client(), &place.namespace, &permissions::NODE_DRIVER).await;
    let faults = missing.iter().map(|Permission { verb, group, resource, .. }| {
        let kind = if group.is_empty() { (*resource).to_owned() } else { format!("{resource}.{group}") };
        let namespace = &place.namespace;
        format!("the credential may not {verb} {kind} in namespace {namespace}: give its user the right, or use another namespace")
    });
    Answer { faults: faults.collect(), ..Answer::default() }
}

/// What a credential's remaining life is worth saying.
fn lasts(expiry: &Expiry, now: jiff::Timestamp) -> Answer {
    match expiry.remaining(now) {
        Some(left) if left.is_negative() || left.is_zero() => Answer::fault(
            "the credential of the Harvester cluster has expired: renew the cloud credential in Rancher"
                .to_owned(),
        ),
        Some(left) if left < expiry::WARN_BEFORE => Answer {
            notes: vec![format!(
                "the credential of the Harvester cluster expires in {} hours: renew the cloud credential in Rancher",
                left.as_hours()
            )],
            ..Answer::default()
        },
        _ => Answer::default(),
    }
}

async fn image(host: &Host, machine: &Machine, at: &Reference) -> Answer {
    match host.image(at).await {
        Err(error) => Answer::fault(error.to_string()),
        Ok(found) => judge_image(machine, at, &found),
    }
}

/// Whether an image can be booted from now, and its storage class.
fn judge_image(machine: &Machine, at: &Reference, image: &DynamicObject) -> Answer {
    let status = &image.data["status"];
    let mut answer = Answer::default();
    let boots = machine.boot_disk().is_some_and(|disk| disk.source == Source::Image(at.clone()));
    if boots && is_iso(image) {
        answer.faults.push(format!(
            "image {at} is an ISO, and a machine cannot install itself from one: use a cloud image (an ISO may be a disk of \
             type cd-rom that is not booted from)"
        ));
    }
    let imported = status["conditions"].as_array().into_iter().flatten().find(|it| it["type"] == "Imported");
    let failed =
        imported.is_some_and(|it| it["status"] == "False" && it["reason"].as_str().unwrap_or_default() != "");
    let progress = status["progress"].as_i64();
    if failed || progress.is_some_and(|progress| progress < 100) {
        let done =
            progress.map_or_else(|| "its import failed".to_owned(), |progress| format!("{progress} %"));
        answer
            .faults
            .push(format!("image {at} is not ready ({done}): wait for its import or use another one"));
    }
    let bytes = status["virtualSize"].as_i64().unwrap_or_default();
    let small =
        machine.disks.iter().find(|disk| disk.source == Source::Image(at.clone()) && disk.gib << 30 < bytes);
    if let Some(disk) = small {
        let (name, gib, needed) = (&disk.name, disk.gib, (bytes + (1 << 30) - 1) >> 30);
        answer.faults.push(format!(
            "{name} of {gib} GiB is smaller than its image {at}: at least {needed} GiB are needed"
        ));
    }
    match status["storageClassName"].as_str().filter(|class| !class.is_empty()) {
        Some(class) => answer.class = Some((at.to_string(), class.to_owned())),
        None if answer.faults.is_empty() => {
            answer.faults.push(format!("image {at} has no storage class yet: wait for its import"));
        }
        None => {}
    }
    answer
}

fn is_iso(image: &DynamicObject) -> bool {
    let labelled = image.metadata.labels.as_ref().and_then(|labels| labels.get("harvesterhci.io/image-type"));
    let spec = &image.data["spec"];
    let ends = |text: &str| text.to_ascii_lowercase().ends_with(".iso");
    let path = spec["url"].as_str().unwrap_or_default();
    let path = path.split(['?', '#']).next().unwrap_or_default();
    labelled.is_some_and(|kind| kind == "iso")
        || ends(spec["displayName"].as_str().unwrap_or_default())
        || ends(path)
}

async fn storage_class(host: &Host, name: &str) -> Answer {
    host.storage_class(name)
        .await
        .map_or_else(|error| Answer::fault(error.to_string()), |_| Answer::default())
}

async fn network(host: &Host, at: &Reference) -> Answer {
    host.network(at).await.map_or_else(|error| Answer::fault(error.to_string()), |_| Answer::default())
}

async fn key_pair(host: &Host, at: &Reference) -> Answer {
    match host.key_pair(at).await {
        Err(error) => Answer::fault(error.to_string()),
        Ok(found) => {
            let conditions = found.data["status"]["conditions"].as_array();
            let validated = conditions
                .into_iter()
                .flatten()
                .any(|it| it["type"] == "validated" && it["status"] == "True");
            match found.data["spec"]["publicKey"].as_str() {
                Some(key) if validated => Answer { key_pair: Some(key.to_owned()), ..Answer::default() },
                _ => Answer::fault(format!("KeyPair {at} is not validated: its public key cannot be used")),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;
    use crate::config::{self, Config};

    fn machine() -> Machine {
        let disks = vec![
            config::Disk {
                image_name: "default/leap".into(),
                size: 10,
                boot_order: 1,
                ..config::Disk::default()
            },
            config::Disk {
                image_name: "default/tools".into(),
                size: 10,
                r#type: "cd-rom".into(),
                ..config::Disk::default()
            },
        ];
        let config = Config {
            machine_name: "demo-1".into(),
            vm_namespace: "default".into(),
            cpu: 1,
            memory_size: "1Gi".into(),
            disk_info: Some(config::DiskInfo { disks }),
            network_info: Some(config::NetworkInfo::default()),
            ..Config::default()
        };
        Machine::check(&config).unwrap()
    }

    fn judged(name: &str, spec: &Value, status: &Value, labels: &Value) -> Answer {
        let mut full = json!({"progress": 100, "storageClassName": "longhorn-x"});
        for (key, value) in status.as_object().unwrap() {
            full[key] = value.clone();
        }
        let image = json!({"metadata": {"name": name, "labels": labels}, "spec": spec, "status": full});
        let at = Reference { namespace: "default".into(), name: name.into() };
        judge_image(&machine(), &at, &serde_json::from_value(image).unwrap())
    }

    #[rstest]
    #[case::good("leap", json!({"displayName": "leap.qcow2"}), json!({}), json!({}), None)]
    #[case::iso_by_label("leap", json!({}), json!({}), json!({"harvesterhci.io/image-type": "iso"}), Some("is an ISO"))]
    #[case::iso_by_name("leap", json!({"displayName": "Leap.ISO"}), json!({}), json!({}), Some("is an ISO"))]
    #[case::iso_by_url("leap", json!({"url": "https://x/leap.iso?sig=1"}), json!({}), json!({}), Some("is an ISO"))]
    #[case::iso_as_cd_rom("tools", json!({"displayName": "tools.iso"}), json!({}), json!({}), None)]
    #[case::importing("leap", json!({}), json!({"progress": 40}), json!({}), Some("is not ready (40 %)"))]
    #[case::too_large("leap", json!({}), json!({"virtualSize": 11_000_000_000_i64}), json!({}), Some("at least 11 GiB"))]
    #[case::no_class("leap", json!({}), json!({"storageClassName": ""}), json!({}), Some("no storage class yet"))]
    fn an_image_must_be_bootable_ready_and_small_enough(
        #[case] name: &str,
        #[case] spec: Value,
        #[case] status: Value,
        #[case] labels: Value,
        #[case] fault: Option<&str>,
    ) {
        let answer = judged(name, &spec, &status, &labels);
        match fault {
            None => assert_eq!((answer.faults.len(), answer.class.unwrap().1.as_str()), (0, "longhorn-x")),
            Some(part) => {
                assert!(answer.faults.len() == 1 && answer.faults[0].contains(part), "{:?}", answer.faults);
            }
        }
    }

    #[rstest]
    #[case::unknown(Expiry::Unknown, 0, 0)]
    #[case::never(Expiry::Never, 0, 0)]
    #[case::long("2027-01-01T00:00:00Z".parse().map(Expiry::At).unwrap(), 0, 0)]
    #[case::soon("2026-11-22T00:00:00Z".parse().map(Expiry::At).unwrap(), 0, 1)]
    #[case::over("2026-11-20T00:00:00Z".parse().map(Expiry::At).unwrap(), 1, 0)]
    fn an_expiry_is_warned_about_and_then_refused(
        #[case] expiry: Expiry,
        #[case] faults: usize,
        #[case] notes: usize,
    ) {
        let answer = lasts(&expiry, "2026-11-21T00:00:00Z".parse().unwrap());
        assert_eq!((answer.faults.len(), answer.notes.len()), (faults, notes));
    }
}
