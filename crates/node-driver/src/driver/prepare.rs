//! `PreCreateCheck` asks Harvester everything that can be known before the VM is created, all at once, and reports all
//! faults together. It writes nothing, neither to Harvester nor to disk: after its failure rancher-machine removes nothing.

use std::{collections::BTreeMap, path::Path};

use cloud_config::expiry::{self, Expiry};
use futures::future::{BoxFuture, FutureExt as _, join_all};
use program::capabilities::{Right, denied};
use tokio::task::JoinHandle;

use super::{Driver, Error, addresses};
use crate::{
    cloud_init::{CloudInit, Login},
    harvester::{Harvester, ServerVersion},
    machine::{Machine, Source},
    objects::{self, InputHash},
    ownership,
    reference::Reference,
    ssh_key::{self, KeyPair},
};

mod inventory;

/// Harvester 0.1 had other objects.
const TOO_OLD: &str = "v0.1.0";

/// Rights that the driver cannot do without. It works better with others (watches, pods, quotas, Events).
const NEEDED: [Right; 3] = [
    Right::new("create", "kubevirt.io", "virtualmachines"),
    Right::new("delete", "kubevirt.io", "virtualmachines"),
    Right::new("create", "", "secrets"),
];

/// Findings of `PreCreateCheck` that `Create` uses.
pub(super) struct Prepared {
    pub(super) server_version: ServerVersion,
    /// Address of Harvester's API.
    pub(super) server: String,
    /// Storage class of each image.
    pub(super) classes: BTreeMap<String, String>,
    /// Public key of the KeyPair that may log in too.
    pub(super) key_pair: Option<String>,
    /// rancher-machine's user data.
    pub(super) last: String,
    /// Random ends of the names of the volumes.
    pub(super) suffixes: Vec<String>,
    /// The key that is being generated, where none is stored.
    pub(super) key: Option<JoinHandle<KeyPair>>,
}

/// Result of one question to Harvester.
#[derive(Default)]
pub(super) struct Finding {
    pub(super) faults: Vec<String>,
    notes: Vec<String>,
    class: Option<(String, String)>,
    key_pair: Option<String>,
}

impl Finding {
    fn fault(text: String) -> Self {
        Self { faults: vec![text], ..Self::default() }
    }
}

impl Driver {
    /// `PreCreateCheck`.
    ///
    /// # Errors
    /// All reasons why the machine cannot be created, in one line.
    pub async fn pre_create_check(&self) -> Result<(), Error> {
        let faults = |faults: Vec<String>| Error::in_quotes(&faults.join("; "));
        let config = self.config();
        let machine = Machine::check(&config).map_err(faults)?;
        let prepared = self.prepare(&machine).await.map_err(faults)?;
        self.store_findings(&prepared);
        *self.prepared.lock().expect("no panic while it is handed over") = Some(prepared);
        Ok(())
    }

    /// Puts into the configuration what rancher-machine is to store of the findings.
    pub(super) fn store_findings(&self, prepared: &Prepared) {
        let mut config = self.locked();
        config.server_version.clone_from(&prepared.server_version.value);
        config.harvester_uid.clone_from(&prepared.server_version.uid);
        config.harvester_server.clone_from(&prepared.server);
        config.volume_suffixes = prepared.suffixes.join(",");
        if let Some(key) = &prepared.key_pair {
            config.ssh_public_key.clone_from(key);
        }
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
        let login = Login { ssh_user: &machine.ssh_user, public_keys: &placeholder, ..Login::default() };
        CloudInit::build(&login, &machine.user_data.0, &last, &machine.network_data.0)
            .map_err(|fault| vec![fault])?;

        let one = |error: Error| vec![error.to_string()];
        let (harvester, vm_ref) = self.harvester().map_err(one)?;
        let expiry = self.opened().as_mut().and_then(|open| open.expiry.take());
        let make_key = self.dependencies.make_key;
        let key = (machine.private_key.is_none() && inputs.is_none())
            .then(|| tokio::task::spawn_blocking(make_key));
        // alone and first: if this fails, everything would
        let server_version = harvester.server_version().await.map_err(|error| vec![error.to_string()])?;
        if server_version.value.starts_with(TOO_OLD) {
            let version = &server_version.value;
            return Err(vec![format!("Harvester {version} is too old for this driver")]);
        }
        let (mut found, mut classes) = (Finding::default(), BTreeMap::new());
        for answer in join_all(self.questions(&harvester, &vm_ref, machine, inputs, expiry)).await {
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
            self.dependencies.output.line(&note);
        }
        let server = harvester.server().to_owned();
        let suffixes = {
            let mut random = self.random.lock().expect("no panic while drawing");
            machine.disks.iter().map(|_| objects::suffix(&mut random)).collect()
        };
        Ok(Prepared { server_version, server, classes, key_pair: found.key_pair, last, suffixes, key })
    }

    /// All questions to Harvester, for the caller to send at once.
    fn questions<'a>(
        &self,
        harvester: &'a Harvester,
        vm_ref: &'a Reference,
        machine: &'a Machine,
        inputs: Option<InputHash>,
        expiry: Option<BoxFuture<'static, Expiry>>,
    ) -> Vec<BoxFuture<'a, Finding>> {
        let now = (self.dependencies.now)();
        let mut questions = vec![
            namespace_is_there(harvester, vm_ref).boxed(),
            name_is_free(harvester, vm_ref, inputs).boxed(),
            rights(harvester, vm_ref).boxed(),
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
        questions.extend(images.into_iter().map(|at| inventory::image(harvester, machine, at).boxed()));
        questions.extend(classes.into_iter().map(|name| inventory::storage_class(harvester, name).boxed()));
        let mut networks: Vec<&Reference> = vec![];
        for nic in &machine.nics {
            if !networks.contains(&&nic.network) {
                networks.push(&nic.network);
            }
        }
        questions.extend(networks.into_iter().map(|at| inventory::network(harvester, at).boxed()));
        if !machine.pools().is_empty() {
            questions.push(addresses::question(harvester, vm_ref, machine, now.as_second()).boxed());
        }
        questions.extend(machine.key_pair.iter().map(|(at, _)| inventory::key_pair(harvester, at).boxed()));
        if !(machine.gpus.is_empty() && machine.host_devices.is_empty()) {
            questions.push(inventory::devices(harvester, machine).boxed());
        }
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

async fn namespace_is_there(harvester: &Harvester, vm_ref: &Reference) -> Finding {
    if harvester.has_namespace().await {
        return Finding::default();
    }
    let namespace = &vm_ref.namespace;
    Finding::fault(format!(
        "namespace {namespace} does not exist in Harvester: make it, or set harvester-vm-namespace"
    ))
}

async fn name_is_free(harvester: &Harvester, vm_ref: &Reference, inputs: Option<InputHash>) -> Finding {
    match harvester.vm(&vm_ref.name).await {
        Ok(None) => Finding::default(),
        Ok(Some(vm)) => {
            let refusal = ownership::refusal(&ownership::of(&vm, inputs.as_ref(), None), &vm_ref.to_string());
            refusal.map_or_else(Finding::default, Finding::fault)
        }
        // docs/contract/node-driver.md#B4: upstream takes every error for a free name
        Err(error) => Finding::fault(error.to_string()),
    }
}

async fn rights(harvester: &Harvester, vm_ref: &Reference) -> Finding {
    let missing = denied(&harvester.client(), &vm_ref.namespace, &NEEDED).await;
    let faults = missing.iter().map(|Right { verb, group, resource, .. }| {
        let kind = if group.is_empty() { (*resource).to_owned() } else { format!("{resource}.{group}") };
        let namespace = &vm_ref.namespace;
        format!("the credential may not {verb} {kind} in namespace {namespace}: give its user the right, or use another namespace")
    });
    Finding { faults: faults.collect(), ..Finding::default() }
}

/// Refuses an expired credential, and warns of one that expires soon.
fn lasts(expiry: &Expiry, now: jiff::Timestamp) -> Finding {
    match expiry.remaining(now) {
        Some(left) if left.is_negative() || left.is_zero() => Finding::fault(
            "the credential of the Harvester cluster has expired: renew the cloud credential in Rancher"
                .to_owned(),
        ),
        Some(left) if left < expiry::WARN_BEFORE => Finding {
            notes: vec![format!(
                "the credential of the Harvester cluster expires in {} hours: renew the cloud credential in Rancher",
                left.as_hours()
            )],
            ..Finding::default()
        },
        _ => Finding::default(),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

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
