//! One machine, as rancher-machine asks for it: the calls of the plugin protocol, without the protocol.
//!
//! ```text
//! SetConfigRaw, SetConfigFromFlags ──► Config ──Machine::check──► Machine
//! PreCreateCheck ── looks, writes nothing ──► Prepared (classes of images, keys, inputs)
//! Create ── key files ─► VM ─► Secret ─► wait ──► address       on failure: takes back what this process made
//! ```
//! State is what rancher-machine stores and Harvester keeps: a process that was cut off anywhere is followed by one that
//! goes on from there.

mod actions;
mod create;
mod prepare;
mod remove;

use std::{
    net::Ipv4Addr,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use cloud_config::expiry::Expiry;
use futures::future::BoxFuture;
use jiff::Timestamp;
use kube::Client;

use crate::{
    config::{Config, Secret},
    host::{Host, calm, follow::Start},
    machine::Machine,
    options::Options,
    say::Say,
    ssh_key::KeyPair,
    wait::{self, Goal, Wait},
};
pub use actions::State;
use prepare::Prepared;

/// Access to a Harvester cluster.
pub struct Access {
    pub client: Client,
    /// Address of its API, for messages.
    pub server: String,
    /// Asks how long the credential lasts; at most one request, and only if this is awaited.
    pub expiry: BoxFuture<'static, Expiry>,
}

/// Connects with a kubeconfig's content; empty means the surroundings of the process.
pub type Connect = Arc<dyn Fn(&str) -> Result<Access, String> + Send + Sync>;

/// What a driver needs from the world.
#[derive(Clone)]
pub struct Parts {
    pub connect: Connect,
    /// Makes a machine's SSH key; it runs beside everything else.
    pub make_key: fn() -> KeyPair,
    pub say: Say,
    /// The time of day.
    pub now: fn() -> Timestamp,
    /// For random name parts.
    pub seed: u64,
    /// The kubeconfig that was passed to this process, which wins over the stored one.
    pub kubeconfig: Option<String>,
}

/// Why a call failed, as its caller reads it. The cause comes last.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Error(String);

impl Error {
    /// For `PreCreateCheck`, whose text rancher-machine shows in quotes: one line without quotes of its own.
    fn in_quotes(text: &str) -> Self {
        let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
        Self(line.replace('"', "'"))
    }

    /// For calls whose error may not have the words that mean an absent machine.
    fn calm(text: &str) -> Self {
        Self(calm(text))
    }
}

impl From<crate::host::Error> for Error {
    fn from(error: crate::host::Error) -> Self {
        Self::calm(&error.to_string())
    }
}

/// A connection, and the kubeconfig that it was opened with.
struct Open {
    content: Secret,
    client: Client,
    server: String,
    expiry: Option<BoxFuture<'static, Expiry>>,
}

/// The driver of one machine.
pub struct Driver {
    parts: Parts,
    random: Mutex<fastrand::Rng>,
    config: Mutex<Config>,
    /// The connection that is open.
    open: Mutex<Option<Open>>,
    prepared: Mutex<Option<Prepared>>,
}

impl Driver {
    pub fn new(parts: Parts) -> Self {
        Self {
            random: Mutex::new(fastrand::Rng::with_seed(parts.seed)),
            parts,
            config: Mutex::new(Config::fresh()),
            open: Mutex::default(),
            prepared: Mutex::default(),
        }
    }

    fn locked(&self) -> MutexGuard<'_, Config> {
        self.config.lock().expect("no panic while the configuration changes")
    }

    /// The configuration as it is now.
    pub fn config(&self) -> Config {
        self.locked().clone()
    }

    /// `SetConfigRaw`: merges the stored configuration in. A kubeconfig passed to this process wins over the stored one.
    ///
    /// # Errors
    /// Where the JSON is none, or a value has another type.
    pub fn set_config_raw(&self, json: &[u8]) -> Result<(), Error> {
        let mut config = self.locked();
        config.merge(json).map_err(Error)?;
        if let Some(kubeconfig) = &self.parts.kubeconfig {
            config.kube_config_content = Secret(kubeconfig.clone());
        }
        Ok(())
    }

    /// `SetConfigFromFlags`: takes over and checks all flags.
    ///
    /// # Errors
    /// Everything that is wrong with them, in one line.
    pub fn set_config_from_flags(&self, options: &Options) -> Result<(), Error> {
        let mut config = self.locked();
        let faults = |faults: Vec<String>| Error::in_quotes(&faults.join("; "));
        for note in config.take(options).map_err(faults)? {
            self.parts.say.line(&note);
        }
        Machine::check(&config).map(drop).map_err(faults)
    }

    /// Names the machine, where no stored configuration does.
    pub fn name_machine(&self, name: &str) {
        self.locked().machine_name = name.to_owned();
    }

    /// `GetMachineName`.
    pub fn machine_name(&self) -> String {
        self.locked().machine_name.clone()
    }

    /// `GetSSHKeyPath`: where the key is, or will be.
    pub fn ssh_key_path(&self) -> String {
        let config = self.locked();
        if config.ssh_key_path.is_empty() {
            return crate::ssh_key::path(&config.machine_folder()).display().to_string();
        }
        config.ssh_key_path.clone()
    }

    /// `GetSSHPort`.
    pub fn ssh_port(&self) -> i64 {
        Some(self.locked().ssh_port).filter(|port| *port != 0).unwrap_or(22)
    }

    /// `GetSSHUsername`.
    pub fn ssh_user(&self) -> String {
        Some(self.locked().ssh_user.clone())
            .filter(|user| !user.is_empty())
            .unwrap_or_else(|| "root".to_owned())
    }

    /// `GetIPv6`: nothing fills it, on purpose.
    ///
    /// # Errors
    /// While there is none.
    pub fn ipv6(&self) -> Result<String, Error> {
        let address = self.locked().ipv6_address.clone();
        if address.is_empty() { Err(Error("IPv6 address is not set".to_owned())) } else { Ok(address) }
    }

    fn opened(&self) -> MutexGuard<'_, Option<Open>> {
        self.open.lock().expect("no panic while a connection is opened")
    }

    /// Harvester, and the machine's name there. The connection is opened once for each kubeconfig.
    fn host(&self) -> Result<(Host, Place), Error> {
        let (content, place) = {
            let config = self.locked();
            let namespace = if config.vm_namespace.is_empty() { "default" } else { &config.vm_namespace };
            let place = Place { namespace: namespace.to_owned(), machine: config.machine_name.clone() };
            (config.kube_config_content.clone(), place)
        };
        let mut open = self.opened();
        let (client, server) = match &*open {
            Some(open) if open.content == content => (open.client.clone(), open.server.clone()),
            _ => {
                let Access { client, server, expiry } =
                    (self.parts.connect)(&content.0).map_err(|text| Error::calm(&text))?;
                let opened =
                    Open { content, client: client.clone(), server: server.clone(), expiry: Some(expiry) };
                *open = Some(opened);
                (client, server)
            }
        };
        Ok((Host::new(client, &server, &place.namespace), place))
    }

    /// Waits for the machine from now on; the answer is the address of one that is up.
    async fn wait(
        &self,
        host: &Host,
        place: &Place,
        goal: Goal,
        limit: Duration,
        start: Start,
    ) -> Result<Option<Ipv4Addr>, String> {
        let (machine, name) = (place.machine.clone(), place.to_string());
        let wait = Wait { machine, name, goal, limit, start, since: (self.parts.now)() };
        wait::until(host, &wait, &self.parts.say).await
    }
}

/// Where a machine's VM is.
#[derive(Clone, Debug)]
struct Place {
    namespace: String,
    machine: String,
}

impl std::fmt::Display for Place {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{}/{}", self.namespace, self.machine)
    }
}

/// Repeats what may do better in a moment: three times, a second and two apart.
async fn again<T, F>(mut request: impl FnMut() -> F) -> Result<T, crate::host::Error>
where
    F: Future<Output = Result<T, crate::host::Error>>,
{
    for pause in [1, 2] {
        match request().await {
            Err(error) if error.is_passing() => {
                tokio::time::sleep(Duration::from_secs(pause)).await;
            }
            outcome => return outcome,
        }
    }
    request().await
}
