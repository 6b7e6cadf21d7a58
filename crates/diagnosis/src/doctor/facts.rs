//! What was read, before anybody judges it.

use std::collections::BTreeMap;

use cloud_config::expiry::Expiry;
use jiff::Timestamp;
use serde_json::Value;

/// Why a request has no answer of use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// Nobody answers at that address.
    NoAnswer,
    /// The certificate of the server is not signed by the CA of the kubeconfig, or not for its name.
    Certificate,
    /// The server does not know the credential.
    Unauthorized,
    Forbidden,
    NotFound,
    /// The server answered with another error.
    Refused,
}

/// A request that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failed {
    pub trouble: Trouble,
    /// The server's words.
    pub why: String,
}

pub type Answer = Result<Value, Failed>;

/// The answers of one cluster, by path.
#[derive(Clone, Debug, Default)]
pub struct Cluster {
    pub answers: BTreeMap<String, Answer>,
}

/// The cloud-config.
#[derive(Clone, Debug)]
pub struct Config {
    pub file: String,
    pub server: String,
    /// The namespace of the guest cluster in Harvester.
    pub namespace: String,
    pub expiry: Expiry,
}

/// One action that a part needs on Harvester.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The check that asks for it.
    pub check: &'static str,
    pub verb: &'static str,
    pub group: &'static str,
    pub resource: &'static str,
    pub subresource: &'static str,
}

/// Everything that the checks look at.
#[derive(Clone, Debug)]
pub struct Facts {
    pub now: Timestamp,
    pub guest: Cluster,
    /// Or why there is none.
    pub config: Result<Config, String>,
    pub harvester: Cluster,
    /// The clock of Harvester's API server. `None`: it did not say.
    pub harvester_time: Option<Timestamp>,
    /// Whether each of [`super::read::GRANTS`] is given. `None`: it could not be asked.
    pub grants: Vec<(Grant, Option<bool>)>,
    /// The answer to a LoadBalancer that is made for a trial (`dryRun`), and by that to the webhook.
    pub trial: Result<(), Failed>,
}
