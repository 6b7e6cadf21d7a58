//! `Create`: key files, VM, Secret, and then waiting until the machine has an address.
//!
//! Each object carries what an attempt needs that comes after a cut-off one: the VM the hash of its inputs, the Secret
//! its VM. What fails after something was made is taken back before the call is answered, since the process ends then.

use std::{net::Ipv4Addr, path::Path, time::Duration};

use harvester_api::VirtualMachine;
use kube::ResourceExt as _;

use super::{Driver, Error, Place, again};
use crate::{
    cloud_init::{CloudInit, Ours},
    host::{Host, follow::Start},
    machine::Machine,
    objects::{self, Circumstances, GpuPlace, InputHash},
    ownership::{self, Ownership},
    ssh_key,
    wait::{self, Goal},
};

/// How long taking back may take: Rancher's pod has more to do.
const UNDO_LIMIT: Duration = Duration::from_secs(120);
/// A VM of an earlier attempt may need the whole time again; this only guards the loop of making one.
const ATTEMPTS: usize = 3;

/// The VM that the machine is made of, and whether this attempt made it.
struct Found {
    vm: VirtualMachine,
    made_here: bool,
}

/// What this attempt has made so far, in its order.
#[derive(Default)]
struct Made {
    /// UID and claims of the VM.
    vm: Option<(String, Vec<String>)>,
    /// UID of the Secret.
    secret: Option<String>,
}

impl Driver {
    /// `Create`.
    ///
    /// # Errors
    /// Why the machine is not up; the cause stands at the end. What this attempt had made is gone again then, or the text
    /// says what is left.
    pub async fn create(&self) -> Result<(), Error> {
        let config = self.config();
        let machine = Machine::check(&config).map_err(|faults| Error(faults.join("; ")))?;
        let prepared = self.prepared.lock().expect("no panic while it is handed over").take();
        let prepared = match prepared {
            Some(prepared) => prepared,
            None => self.prepare(&machine).await.map_err(|faults| Error(faults.join("; ")))?,
        };
        self.store_findings(&prepared);
        let (host, place) = self.host()?;
        let keys = Keys::put(&machine, prepared.key, &config.machine_folder(), prepared.key_pair.as_ref())
            .await
            .map_err(Error)?;
        {
            let mut config = self.locked();
            config.ssh_key_path = ssh_key::path(&config.machine_folder()).display().to_string();
            config.ssh_public_key.clone_from(&keys.stored_public);
        }
        let ours = Ours {
            ssh_user: &machine.ssh_user,
            password: &machine.ssh_password.0,
            public_keys: &keys.public,
            docker_group: machine.docker_group,
        };
        let cloud_init =
            CloudInit::build(&ours, &machine.user_data.0, &prepared.last, &machine.network_data.0)
                .map_err(Error)?;
        for note in &cloud_init.notes {
            self.parts.say.line(note);
        }
        let by = self.circumstances(
            &machine,
            &prepared.server_version.value,
            prepared.classes,
            InputHash::of(&machine, &prepared.last, &keys.private),
        );
        let mut made = Made::default();
        match self.bring_up(&host, &place, &machine, &cloud_init, &by, &mut made).await {
            Ok(address) => {
                self.locked().ip_address = address.to_string();
                Ok(())
            }
            Err(cause) => {
                let left = self.take_back(&host, &place, &machine, made).await;
                Err(Error(
                    left.map_or(cause.clone(), |left| format!("{left}; and the reason for all: {cause}")),
                ))
            }
        }
    }

    fn circumstances(
        &self,
        machine: &Machine,
        server_version: &str,
        classes: std::collections::BTreeMap<String, String>,
        inputs: InputHash,
    ) -> Circumstances {
        let mut random = self.random.lock().expect("no panic while drawing");
        Circumstances {
            classes,
            gpus: GpuPlace::of(server_version),
            suffixes: machine.disks.iter().map(|_| objects::suffix(&mut random)).collect(),
            inputs,
            attempt: format!("{:016x}", random.u64(..)),
        }
    }

    async fn bring_up(
        &self,
        host: &Host,
        place: &Place,
        machine: &Machine,
        cloud_init: &CloudInit,
        by: &Circumstances,
        made: &mut Made,
    ) -> Result<Ipv4Addr, String> {
        let wanted = objects::virtual_machine(machine, cloud_init, by);
        let Found { vm, made_here } = make_vm(host, place, &wanted, by).await?;
        let uid = vm.uid().unwrap_or_default();
        self.locked().vm_uid.clone_from(&uid);
        if made_here {
            made.vm = Some((uid.clone(), wait::claim_names(&vm, |_| true)));
        } else {
            self.parts.say.line(&format!("going on with VM {place}, which an earlier attempt has made"));
        }
        if cloud_init.needs_secret() {
            let wanted = objects::secret(machine, cloud_init, &uid);
            made.secret = make_secret(host, place, &machine.secret_name(), &wanted, &uid).await?;
        }
        let start = if made_here { Start::Watch } else { Start::Read };
        let goal = Goal::Up { not: None };
        let address = self.wait(host, place, goal, machine.timeout, start).await?;
        address.ok_or_else(|| "the machine is up without an address".to_owned())
    }

    /// Takes back what this attempt made; says what could not be taken back.
    async fn take_back(&self, host: &Host, place: &Place, machine: &Machine, made: Made) -> Option<String> {
        let Made { vm, secret } = made;
        let mut left = vec![];
        if let Some((uid, claims)) = vm {
            self.parts.say.line(&format!("taking VM {place} back"));
            let ended = self.end(host, place, &uid, &claims, UNDO_LIMIT).await;
            left.extend(
                ended.err().map(|why| format!("remove the machine to end what is left of it ({why})")),
            );
        }
        if let Some(uid) = secret {
            let name = machine.secret_name();
            let deleted = again(|| host.delete_secret(&name, &uid)).await;
            left.extend(deleted.err().map(|error| format!("Secret {name} is left ({error})")));
        }
        (!left.is_empty()).then(|| left.join("; "))
    }
}

/// The keys of a machine, as they are in its folder.
struct Keys {
    private: String,
    /// What may log in.
    public: Vec<String>,
    /// What is stored as the machine's public key.
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

/// Makes the VM, or finds one to go on with. An answer that was lost, and a name that is taken, are decided by looking.
async fn make_vm(
    host: &Host,
    place: &Place,
    wanted: &serde_json::Value,
    by: &Circumstances,
) -> Result<Found, String> {
    let mut last = String::new();
    for attempt in 0..ATTEMPTS {
        if attempt > 0 {
            tokio::time::sleep(Duration::from_secs(2)).await;
        }
        let error = match host.create_vm(wanted).await {
            Ok(vm) => return Ok(Found { vm, made_here: true }),
            Err(error) if error.is_taken() || error.is_passing() => error,
            Err(error) => return Err(error.to_string()),
        };
        last = error.to_string();
        let there = again(|| host.vm(&place.machine)).await.map_err(|error| error.to_string())?;
        let Some(vm) = there else { continue };
        let ownership = ownership::of(&vm, Some(&by.inputs), Some(&by.attempt));
        return match ownership::refusal(&ownership, &place.to_string()) {
            Some(refusal) => Err(refusal),
            None => Ok(Found { vm, made_here: ownership == Ownership::Made }),
        };
    }
    Err(last)
}

/// Makes the Secret of a VM; the answer is its UID, if this attempt made it. One of an earlier VM of this name gives
/// way.
async fn make_secret(
    host: &Host,
    place: &Place,
    name: &str,
    wanted: &serde_json::Value,
    vm: &str,
) -> Result<Option<String>, String> {
    let mut last = String::new();
    for attempt in 0..ATTEMPTS {
        if attempt > 0 {
            tokio::time::sleep(Duration::from_secs(2)).await;
        }
        let error = match host.create_secret(wanted).await {
            Ok(made) => return Ok(made.uid()),
            Err(error) if error.is_taken() || error.is_passing() => error,
            Err(error) => return Err(error.to_string()),
        };
        last = error.to_string();
        let text = |error: crate::host::Error| error.to_string();
        let Some(there) = again(|| host.secret(name)).await.map_err(text)? else { continue };
        if there.owner_references().iter().any(|owner| owner.uid == vm) {
            return Ok(None);
        }
        if !ownership::is_secret_of(&there, &place.machine) {
            return Err(format!("{last}: delete it or choose another name for the machine"));
        }
        let uid = there.uid().unwrap_or_default();
        again(|| host.delete_secret(name, &uid)).await.map_err(text)?;
    }
    Err(last)
}
