//! What a machine would be made of, as YAML. Nobody is asked: what only Harvester or the dice know is a word that says so.

use std::collections::BTreeMap;

use crate::{
    cloud_init::{CloudInit, Ours},
    config::Config,
    machine::Machine,
    objects::{self, Circumstances, GpuPlace, InputHash},
    options::Options,
};

/// Random name parts of claims are this.
const SUFFIX: &str = "xxxxx";
/// Stands for a key that is made with the machine.
const KEY: &str = "ssh-rsa (the key that is made with the machine)";

/// The objects as YAML documents.
///
/// # Errors
/// Everything that is wrong with the flags.
pub fn render(machine: &str, options: &Options) -> Result<String, Vec<String>> {
    let mut config = Config { machine_name: machine.to_owned(), ..Config::default() };
    config.take(options)?;
    let machine = Machine::check(&config)?;
    let last = match &machine.cloud_config {
        None => String::new(),
        Some(path) => std::fs::read_to_string(path)
            .map_err(|error| vec![format!("read {}: {error}", path.display())])?,
    };
    let keys = [KEY.to_owned()];
    let ours = Ours {
        ssh_user: &machine.ssh_user,
        password: &machine.ssh_password.0,
        public_keys: &keys,
        docker_group: machine.docker_group,
    };
    let cloud_init = CloudInit::build(&ours, &machine.user_data.0, &last, &machine.network_data.0)
        .map_err(|fault| vec![fault])?;
    let by = Circumstances {
        classes: BTreeMap::new(),
        gpus: GpuPlace::of(&config.server_version),
        suffixes: machine.disks.iter().map(|_| SUFFIX.to_owned()).collect(),
        inputs: InputHash::of(&machine, &last, KEY),
        attempt: SUFFIX.to_owned(),
    };
    let mut documents = vec![objects::virtual_machine(&machine, &cloud_init, &by)];
    if cloud_init.needs_secret() {
        documents.push(objects::secret(&machine, &cloud_init, "(the UID of the VM)"));
    }
    let yaml = documents
        .iter()
        .map(|object| serde_saphyr::to_string(object).map_err(|error| vec![error.to_string()]));
    Ok(yaml.collect::<Result<Vec<_>, _>>()?.join("---\n"))
}
