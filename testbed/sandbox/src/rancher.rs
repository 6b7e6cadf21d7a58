//! Rancher's side of the node driver: what rancher-machine does with the driver's process, over its real protocol, and
//! what a Harvester has for machines to be made of.
//!
//! ```text
//! Rancher ──flags──► Plugin (child under its production name) ──► Harvester: VM ──► guest: Node
//!         ◄─stored configuration─┘                                                  ▲ initialised by the CCM
//! ```

pub(crate) mod fixtures;
mod options;
pub(crate) mod plugin;

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use plugin::Plugin;

/// Production name of the driver.
pub(crate) const DRIVER: &str = "docker-machine-driver-harvester";

/// A Rancher with one driver.
pub(crate) struct Rancher {
    /// Where machines' files and the link to the driver are.
    folder: PathBuf,
    program: PathBuf,
    /// Of the Harvester cluster, as a cloud credential holds it.
    kubeconfig: String,
    /// Guest cluster that its machines belong to.
    cluster: &'static str,
}

/// The record that Rancher keeps of a machine.
pub(crate) struct Stored {
    pub(crate) name: String,
    pub(crate) configuration: Vec<u8>,
}

impl Rancher {
    /// With the driver in the file of its name beside `program`, or in `program`, or in this binary.
    ///
    /// # Errors
    /// When the program is not there, or cannot be linked.
    pub(crate) fn new(folder: &Path, program: Option<&Path>, kubeconfig: String) -> Result<Self> {
        fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
        let binary = match program {
            Some(program) => {
                let beside = program.with_file_name(DRIVER);
                let program = if beside.exists() { &beside } else { program };
                program.canonicalize().with_context(|| format!("find {}", program.display()))?
            }
            None => std::env::current_exe().context("find this program")?,
        };
        let program = folder.join(DRIVER);
        if !program.exists() {
            symlink(binary, &program).with_context(|| format!("link {}", program.display()))?;
        }
        Ok(Self { folder: folder.to_owned(), program, kubeconfig, cluster: crate::GUEST_CLUSTER })
    }

    /// For machines of another cluster than the sandbox's: they become nodes of nothing.
    pub(crate) fn of_cluster(self, cluster: &'static str) -> Self {
        Self { cluster, ..self }
    }

    /// Starts the driver's process, as for any command.
    ///
    /// # Errors
    /// When it does not say where it listens.
    pub(crate) async fn start(&self) -> Result<Plugin> {
        Plugin::start(&self.program, &self.kubeconfig).await
    }

    /// The calls of `rancher-machine create` before the machine is made.
    ///
    /// # Errors
    /// The driver's error.
    pub(crate) async fn greet(&self, plugin: &Plugin, name: &str) -> Result<()> {
        let version: i64 = plugin.ask("GetVersion").await?;
        anyhow::ensure!(version == 1, "the driver speaks version {version} of the protocol");
        let base = json!({"MachineName": name, "StorePath": self.folder});
        plugin.tell("SetConfigRaw", &base.to_string().into_bytes()).await?;
        let driver: String = plugin.ask("DriverName").await?;
        anyhow::ensure!(driver == "harvester", "the driver calls itself {driver}");
        let given = self.form(name)?;
        let options = options::of_flags(&plugin.flags().await?, &given)?;
        plugin.call_typed("SetConfigFromFlags", options).await
    }

    /// Returns the values of a machine pool's form.
    fn form(&self, name: &str) -> Result<Vec<(&'static str, Value)>> {
        // rancher-machine's own part of the user data, as long as an install script makes it
        let cloud_config = self.folder.join(format!("{name}.cloud-config"));
        let script = format!(
            "#cloud-config\nhostname: {name}\nwrite_files:\n- path: /usr/local/custom_script/install.sh\n  content: |\n    # {}\n",
            "x".repeat(2100)
        );
        fs::write(&cloud_config, script).context("write rancher-machine's user data")?;
        let text = |value: &str| Value::from(value);
        Ok(vec![
            ("harvester-kubeconfig-content", text(&self.kubeconfig)),
            ("harvester-cluster-name", text(self.cluster)),
            ("harvester-vm-namespace", text(crate::VM_NAMESPACE)),
            (
                "harvester-disk-info",
                text(
                    &json!({"disks": [{"imageName": fixtures::image(), "bootOrder": 1, "size": 10}]})
                        .to_string(),
                ),
            ),
            (
                "harvester-network-info",
                text(&json!({"interfaces": [{"networkName": fixtures::network()}]}).to_string()),
            ),
            ("harvester-user-data", text("#cloud-config\npackages: [qemu-guest-agent]\n")),
            ("harvester-cloud-config", text(&cloud_config.display().to_string())),
        ])
    }

    /// `rancher-machine create`: the answer is what Rancher stores, and the machine's address.
    ///
    /// # Errors
    /// The driver's error.
    pub(crate) async fn create(&self, name: &str) -> Result<(Stored, String)> {
        let plugin = self.start().await?;
        self.greet(&plugin, name).await?;
        plugin.act("PreCreateCheck").await?;
        plugin.act("Create").await?;
        let state: i64 = plugin.ask("GetState").await?;
        anyhow::ensure!(state == 1, "machine {name} is in state {state}, not Running");
        let address = plugin.ask("GetIP").await?;
        let configuration = plugin.ask("GetConfigRaw").await?;
        plugin.close().await?;
        Ok((Stored { name: name.to_owned(), configuration }, address))
    }

    /// `rancher-machine rm`.
    ///
    /// # Errors
    /// The driver's error.
    pub(crate) async fn remove(&self, machine: &Stored) -> Result<()> {
        let plugin = self.start().await?;
        plugin.tell("SetConfigRaw", &machine.configuration).await?;
        plugin.act("Remove").await?;
        plugin.close().await
    }
}
