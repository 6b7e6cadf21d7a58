//! Prints the objects of a machine as YAML without a request to Harvester. Placeholders stand for values that come from
//! Harvester or at random.

use std::collections::BTreeMap;

use crate::{
    cloud_init::{CloudInit, Login},
    config::Config,
    machine::Machine,
    objects::{self, GpuPlace, InputHash, Resolved},
    options::Options,
    pools::Lease,
};

/// Placeholder for random parts of names.
const SUFFIX: &str = "xxxxx";
/// Placeholder for the key that `Create` generates.
const KEY: &str = "ssh-rsa (the key that is made with the machine)";

/// The objects as YAML documents.
///
/// # Errors
/// All faults of the flags.
pub(crate) fn render(machine: &str, options: &Options) -> Result<String, Vec<String>> {
    let mut config = Config { machine_name: machine.to_owned(), ..Config::default() };
    config.take(options)?;
    let machine = Machine::check(&config)?;
    let inputs = machine.clone();
    let lease = |pool| Lease { address: format!("(an address of IPPool {pool})"), gateway: None };
    let leases: Vec<Lease> = machine.pools().into_iter().map(lease).collect();
    let machine = machine.at(&leases, SUFFIX);
    let last = match &machine.cloud_config {
        None => String::new(),
        Some(path) => std::fs::read_to_string(path)
            .map_err(|error| vec![format!("read {}: {error}", path.display())])?,
    };
    let keys = [KEY.to_owned()];
    let login = Login {
        ssh_user: &machine.ssh_user,
        password: &machine.ssh_password.0,
        public_keys: &keys,
        docker_group: machine.docker_group,
    };
    let cloud_init = CloudInit::build(&login, &machine.user_data.0, &last, &machine.network_data.0)
        .map_err(|fault| vec![fault])?;
    let resolved = Resolved {
        classes: BTreeMap::new(),
        gpus: GpuPlace::of(&config.server_version),
        suffixes: machine.disks.iter().map(|_| SUFFIX.to_owned()).collect(),
        inputs: InputHash::of(&inputs, &last, KEY),
        attempt: SUFFIX.to_owned(),
    };
    let mut documents = vec![objects::virtual_machine(&machine, &cloud_init, &resolved)];
    if cloud_init.needs_secret() {
        documents.push(objects::secret(&machine, &cloud_init, "(the UID of the VM)"));
    }
    let yaml = documents
        .iter()
        .map(|object| serde_saphyr::to_string(object).map_err(|error| vec![error.to_string()]));
    Ok(yaml.collect::<Result<Vec<_>, _>>()?.join("---\n"))
}
