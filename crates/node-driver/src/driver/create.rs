//! `Create` writes the key files, creates the VM and its Secret, and waits until the machine has an address.
//!
//! A later attempt recognises the objects of one that was killed: the VM carries the hash of its inputs, the Secret its
//! owner. A failed attempt deletes the objects that it created before it answers, because the process ends then.

use std::{net::Ipv4Addr, path::Path, time::Duration};

use harvester_api::VirtualMachine;
use kube::ResourceExt as _;

use super::{Driver, Error, retried};
use crate::{
    cloud_init::{CloudInit, Login},
    harvester::{Harvester, follow::Start},
    machine::Machine,
    objects::{self, GpuPlace, InputHash, Resolved},
    ownership::{self, Ownership},
    reference::Reference,
    ssh_key,
    wait::{self, Goal},
};

/// Limit for the deletion after a failure. The job of Rancher waits for it.
const UNDO_LIMIT: Duration = Duration::from_secs(120);
/// How often one object is posted.
const ATTEMPTS: usize = 3;

/// The VM that the machine is made of, and whether this attempt made it.
struct EnsuredVm {
    vm: VirtualMachine,
    made_here: bool,
}

/// The objects that this attempt has created so far.
#[derive(Default)]
struct Created {
    /// UID and claims of the VM.
    vm: Option<(String, Vec<String>)>,
    /// UID of the Secret.
    secret: Option<String>,
    /// Pools that record an address for the machine since this attempt.
    pools: Vec<String>,
}

impl Driver {
    /// `Create`.
    ///
    /// # Errors
    /// Why the machine is not up; the text ends with the cause. This attempt has deleted the objects that it created, or
    /// the text names those that are left.
    pub async fn create(&self) -> Result<(), Error> {
        let config = self.config();
        let machine = Machine::check(&config).map_err(|faults| Error(faults.join("; ")))?;
        let prepared = self.prepared.lock().expect("no panic while it is handed over").take();
        let prepared = match prepared {
            Some(prepared) => prepared,
            None => self.prepare(&machine).await.map_err(|faults| Error(faults.join("; ")))?,
        };
        self.store_findings(&prepared);
        let (harvester, vm_ref) = self.harvester()?;
        let keys = Keys::put(&machine, prepared.key, &config.machine_folder(), prepared.key_pair.as_ref())
            .await
            .map_err(Error)?;
        {
            let mut config = self.locked();
            config.ssh_key_path = ssh_key::path(&config.machine_folder()).display().to_string();
            config.ssh_public_key.clone_from(&keys.stored_public);
        }
        let resolved = self.resolved(
            &prepared.server_version.value,
            prepared.classes,
            prepared.suffixes,
            InputHash::of(&machine, &prepared.last, &keys.private),
        );
        let mut made = Created::default();
        let brought_up = async {
            let leases = self.claim_addresses(&harvester, &vm_ref, &machine, &mut made.pools).await?;
            let machine = machine.at(&leases, &prepared.server_version.uid);
            let cloud_init = self.cloud_init(&machine, &keys.public, &prepared.last)?;
            self.bring_up(&harvester, &vm_ref, &machine, &cloud_init, &resolved, &mut made).await
        };
        match brought_up.await {
            Ok(address) => {
                self.locked().ip_address = address.to_string();
                Ok(())
            }
            Err(cause) => {
                let left = self.take_back(&harvester, &vm_ref, &machine, made).await;
                // while something is left, the UID is the proof with which `Remove` may delete it
                if left.is_none() {
                    self.locked().vm_uid.clear();
                }
                Err(Error(
                    left.map_or(cause.clone(), |left| format!("{left}; and the reason for all: {cause}")),
                ))
            }
        }
    }

    fn cloud_init(&self, machine: &Machine, keys: &[String], last: &str) -> Result<CloudInit, String> {
        let login = Login {
            ssh_user: &machine.ssh_user,
            password: &machine.ssh_password.0,
            public_keys: keys,
            docker_group: machine.docker_group,
        };
        let built = CloudInit::build(&login, &machine.user_data.0, last, &machine.network_data.0)?;
        for note in &built.notes {
            self.dependencies.output.line(note);
        }
        Ok(built)
    }

    fn resolved(
        &self,
        server_version: &str,
        classes: std::collections::BTreeMap<String, String>,
        suffixes: Vec<String>,
        inputs: InputHash,
    ) -> Resolved {
        let mut random = self.random.lock().expect("no panic while drawing");
        Resolved {
            classes,
            gpus: GpuPlace::of(server_version),
            suffixes,
            inputs,
            attempt: format!("{:016x}", random.u64(..)),
        }
    }

    async fn bring_up(
        &self,
        harvester: &Harvester,
        vm_ref: &Reference,
        machine: &Machine,
        cloud_init: &CloudInit,
        resolved: &Resolved,
        made: &mut Created,
    ) -> Result<Ipv4Addr, String> {
        let wanted = objects::virtual_machine(machine, cloud_init, resolved);
        let EnsuredVm { vm, made_here } = make_vm(harvester, vm_ref, &wanted, resolved).await?;
        let uid = vm.uid().unwrap_or_default();
        self.locked().vm_uid.clone_from(&uid);
        if made_here {
            made.vm = Some((uid.clone(), wait::claim_names(&vm, |_| true)));
        } else {
            self.check_addresses(harvester, vm_ref, &vm, machine, &mut made.pools).await?;
            self.dependencies
                .output
                .line(&format!("going on with VM {vm_ref}, which an earlier attempt has made"));
        }
        if cloud_init.needs_secret() {
            let wanted = objects::secret(machine, cloud_init, &uid);
            made.secret = make_secret(harvester, vm_ref, &machine.secret_name(), &wanted, &uid).await?;
        }
        let start = if made_here { Start::Watch } else { Start::Read };
        let goal = Goal::Up { not: None };
        let address = self.wait(harvester, vm_ref, goal, machine.timeout, start).await?;
        address.ok_or_else(|| "the machine is up without an address".to_owned())
    }

    /// Deletes the objects that this attempt created. The answer names those that are left.
    async fn take_back(
        &self,
        harvester: &Harvester,
        vm_ref: &Reference,
        machine: &Machine,
        made: Created,
    ) -> Option<String> {
        let Created { vm, secret, pools } = made;
        let mut left = vec![];
        if let Some((uid, claims)) = vm {
            self.dependencies.output.line(&format!("taking VM {vm_ref} back"));
            let ended = self.delete_vm_with_claims(harvester, vm_ref, &uid, &claims, UNDO_LIMIT).await;
            left.extend(
                ended.err().map(|why| format!("remove the machine to end what is left of it ({why})")),
            );
        }
        if let Some(uid) = secret {
            let name = machine.secret_name();
            let deleted = retried(|| harvester.delete_secret(&name, &uid)).await;
            left.extend(deleted.err().map(|error| format!("Secret {name} is left ({error})")));
        }
        left.extend(self.release_addresses(harvester, vm_ref, &pools).await.err());
        (!left.is_empty()).then(|| left.join("; "))
    }
}

/// The keys of a machine, as they are in its folder.
struct Keys {
    private: String,
    /// Public keys that may log in.
    public: Vec<String>,
    /// The key that rancher-machine stores as the machine's.
    stored_public: String,
}

impl Keys {
    async fn put(
        machine: &Machine,
        making: Option<tokio::task::JoinHandle<ssh_key::KeyPair>>,
        folder: &Path,
        key_pair: Option<&String>,
    ) -> Result<Self, String> {
        let fault = |error: ssh_key::Error| error.to_string();
        let own = match (&machine.private_key, making) {
            (Some(path), _) => ssh_key::copy(path, folder, key_pair.is_none()).map_err(fault)?,
            (None, Some(making)) => {
                let key = making.await.map_err(|error| format!("make the SSH key: {error}"))?;
                Some(ssh_key::store(folder, &key).map_err(fault)?)
            }
            (None, None) => ssh_key::stored(folder).map_err(fault)?,
        };
        let path = ssh_key::path(folder);
        let private =
            std::fs::read_to_string(&path).map_err(|error| format!("read {}: {error}", path.display()))?;
        let public: Vec<String> = own.iter().chain(key_pair).cloned().collect();
        let stored_public = public.first().cloned().unwrap_or_default();
        Ok(Self { private, public, stored_public })
    }
}

/// Creates the VM, or finds the one of an earlier attempt. It reads the VM where an answer was lost, and where the name is
/// taken.
async fn make_vm(
    harvester: &Harvester,
    vm_ref: &Reference,
    wanted: &serde_json::Value,
    resolved: &Resolved,
) -> Result<EnsuredVm, String> {
    let mut last = String::new();
    for attempt in 0..ATTEMPTS {
        if attempt > 0 {
            tokio::time::sleep(Duration::from_secs(2)).await;
        }
        let error = match harvester.create_vm(wanted).await {
            Ok(vm) => return Ok(EnsuredVm { vm, made_here: true }),
            Err(error) if error.is_taken() || error.is_passing() => error,
            Err(error) => return Err(error.to_string()),
        };
        last = error.to_string();
        let there = retried(|| harvester.vm(&vm_ref.name)).await.map_err(|error| error.to_string())?;
        let Some(vm) = there else { continue };
        let ownership = ownership::of(&vm, Some(&resolved.inputs), Some(&resolved.attempt));
        return match ownership::refusal(&ownership, &vm_ref.to_string()) {
            Some(refusal) => Err(refusal),
            None => Ok(EnsuredVm { vm, made_here: ownership == Ownership::ThisAttempt }),
        };
    }
    Err(last)
}

/// Creates the Secret of a VM and replaces the one of an earlier VM of this name. The answer is its UID, if this attempt
/// created it.
async fn make_secret(
    harvester: &Harvester,
    vm_ref: &Reference,
    name: &str,
    wanted: &serde_json::Value,
    vm: &str,
) -> Result<Option<String>, String> {
    let mut last = String::new();
    for attempt in 0..ATTEMPTS {
        if attempt > 0 {
            tokio::time::sleep(Duration::from_secs(2)).await;
        }
        let error = match harvester.create_secret(wanted).await {
            Ok(made) => return Ok(made.uid()),
            Err(error) if error.is_taken() || error.is_passing() => error,
            Err(error) => return Err(error.to_string()),
        };
        last = error.to_string();
        let text = |error: crate::harvester::Error| error.to_string();
        let Some(there) = retried(|| harvester.secret(name)).await.map_err(text)? else { continue };
        if there.owner_references().iter().any(|owner| owner.uid == vm) {
            return Ok(None);
        }
        if !ownership::is_secret_of(&there, &vm_ref.name) {
            return Err(format!("{last}: delete it or choose another name for the machine"));
        }
        let uid = there.uid().unwrap_or_default();
        retried(|| harvester.delete_secret(name, &uid)).await.map_err(text)?;
    }
    Err(last)
}
