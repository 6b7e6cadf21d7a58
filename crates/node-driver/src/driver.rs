//! The driver of one machine: it carries out the calls of the plugin protocol and knows nothing of the protocol itself.
//!
//! ```text
//! SetConfigRaw, SetConfigFromFlags ──► Config ──Machine::check──► Machine
//! PreCreateCheck ── looks, writes nothing ──► Prepared (classes of images, keys, inputs)
//! Create ── key files ─► VM ─► Secret ─► wait ──► address       on failure: deletes what this process created
//! ```
//! All state is in rancher-machine's store and in Harvester's objects, so a new process continues where a killed one
//! stopped.

mod actions;
mod addresses;
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
    harvester::{Harvester, follow::Start, mask_not_found},
    machine::Machine,
    options::Options,
    output::Output,
    reference::Reference,
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
    /// Asks how long the credential lasts: one request at most, sent when this is awaited.
    pub expiry: BoxFuture<'static, Expiry>,
}

/// Connects with the content of a kubeconfig; an empty one stands for `KUBECONFIG` or the pod's account.
pub type Connect = Arc<dyn Fn(&str) -> Result<Access, String> + Send + Sync>;

/// The functions and values that a driver gets from its process, and that tests replace.
#[derive(Clone)]
pub struct Dependencies {
    pub connect: Connect,
    /// Generates the machine's SSH key, on a thread of its own.
    pub make_key: fn() -> KeyPair,
    pub output: Output,
    /// Reads the wall clock.
    pub now: fn() -> Timestamp,
    /// For random name parts.
    pub seed: u64,
    /// The kubeconfig that rancher-machine passed to this process; it replaces the stored one.
    pub kubeconfig: Option<String>,
}

/// The text with which rancher-machine fails a call. It ends with the cause.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Error(String);

impl Error {
    /// For `PreCreateCheck`: rancher-machine prints the text in quotes, so it is one line without quotes.
    fn in_quotes(text: &str) -> Self {
        let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
        Self(line.replace('"', "'"))
    }

    /// For calls after which rancher-machine takes the words `not found` for an absent machine.
    fn mask_not_found(text: &str) -> Self {
        Self(mask_not_found(text))
    }
}

impl From<crate::harvester::Error> for Error {
    fn from(error: crate::harvester::Error) -> Self {
        Self::mask_not_found(&error.to_string())
    }
}

/// A connection, and the kubeconfig that it was opened with.
struct OpenConnection {
    content: Secret,
    client: Client,
    server: String,
    expiry: Option<BoxFuture<'static, Expiry>>,
}

/// The driver of one machine.
pub struct Driver {
    dependencies: Dependencies,
    random: Mutex<fastrand::Rng>,
    config: Mutex<Config>,
    /// The connection that is open.
    open: Mutex<Option<OpenConnection>>,
    prepared: Mutex<Option<Prepared>>,
}

impl Driver {
    pub fn new(dependencies: Dependencies) -> Self {
        Self {
            random: Mutex::new(fastrand::Rng::with_seed(dependencies.seed)),
            dependencies,
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

    /// `SetConfigRaw`: merges the stored configuration in. The kubeconfig that was passed to this process replaces the
    /// stored one.
    ///
    /// # Errors
    /// The text is no JSON object, or a value has another type.
    pub fn set_config_raw(&self, json: &[u8]) -> Result<(), Error> {
        let mut config = self.locked();
        config.merge(json).map_err(Error)?;
        if let Some(kubeconfig) = &self.dependencies.kubeconfig {
            config.kube_config_content = Secret(kubeconfig.clone());
        }
        Ok(())
    }

    /// `SetConfigFromFlags`: reads and checks all flags.
    ///
    /// # Errors
    /// Everything that is wrong with them, in one line.
    pub fn set_config_from_flags(&self, options: &Options) -> Result<(), Error> {
        let mut config = self.locked();
        let faults = |faults: Vec<String>| Error::in_quotes(&faults.join("; "));
        for note in config.take(options).map_err(faults)? {
            self.dependencies.output.line(&note);
        }
        Machine::check(&config).map(drop).map_err(faults)
    }

    /// Sets the machine's name, for commands that get no stored configuration.
    pub fn name_machine(&self, name: &str) {
        self.locked().machine_name = name.to_owned();
    }

    /// `GetMachineName`.
    pub fn machine_name(&self) -> String {
        self.locked().machine_name.clone()
    }

    /// `GetSSHKeyPath`: the path of the key, which `Create` writes.
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

    /// `GetIPv6`. The driver never sets it: Rancher would build `node-ip` from it alone.
    ///
    /// # Errors
    /// No address is stored.
    pub fn ipv6(&self) -> Result<String, Error> {
        let address = self.locked().ipv6_address.clone();
        if address.is_empty() { Err(Error("IPv6 address is not set".to_owned())) } else { Ok(address) }
    }

    fn opened(&self) -> MutexGuard<'_, Option<OpenConnection>> {
        self.open.lock().expect("no panic while a connection is opened")
    }

    /// Opens a connection once for each kubeconfig. The answer is Harvester's API, and the name of the machine's VM.
    fn harvester(&self) -> Result<(Harvester, Reference), Error> {
        let (content, vm_ref) = {
            let config = self.locked();
            let namespace = if config.vm_namespace.is_empty() { "default" } else { &config.vm_namespace };
            let vm_ref = Reference { namespace: namespace.to_owned(), name: config.machine_name.clone() };
            (config.kube_config_content.clone(), vm_ref)
        };
        let mut open = self.opened();
        let (client, server) = match &*open {
            Some(open) if open.content == content => (open.client.clone(), open.server.clone()),
            _ => {
                let Access { client, server, expiry } =
                    (self.dependencies.connect)(&content.0).map_err(|text| Error::mask_not_found(&text))?;
                let opened = OpenConnection {
                    content,
                    client: client.clone(),
                    server: server.clone(),
                    expiry: Some(expiry),
                };
                *open = Some(opened);
                (client, server)
            }
        };
        Ok((Harvester::new(client, &server, &vm_ref.namespace), vm_ref))
    }

    /// Waits until the VM has reached the goal. The answer is the address of a VM that is up.
    async fn wait(
        &self,
        harvester: &Harvester,
        vm_ref: &Reference,
        goal: Goal,
        limit: Duration,
        start: Start,
    ) -> Result<Option<Ipv4Addr>, String> {
        let wait = Wait { vm_ref: vm_ref.clone(), goal, limit, start, since: (self.dependencies.now)() };
        wait::until(harvester, &wait, &self.dependencies.output).await
    }
}

/// Sends a request up to three times, one and two seconds apart, while its error may pass.
async fn retried<T, F>(mut request: impl FnMut() -> F) -> Result<T, crate::harvester::Error>
where
    F: Future<Output = Result<T, crate::harvester::Error>>,
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
