//! What was read, before anybody judges it.

use std::collections::BTreeMap;

use cloud_config::expiry::Expiry;
use credential_rotation::{Renewal, token::Claims};
use jiff::Timestamp;
use program::capabilities::Right;
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

/// The cloud-config, with the token that the parts use.
#[derive(Clone, Debug)]
pub struct Config {
    pub file: String,
    pub server: String,
    /// The namespace of the guest cluster in Harvester.
    pub namespace: String,
    pub expiry: Expiry,
    /// When each certificate of its authority ends; none where those of the system count.
    pub authorities: Vec<Expiry>,
    /// `insecure-skip-tls-verify`: whoever answers counts as Harvester.
    pub trusts_everybody: bool,
    /// What the token says of itself, where it is a service account's.
    pub claims: Option<Claims>,
    /// Which token it is, where the parts may have renewed it.
    pub note: Option<String>,
    pub renewal: Option<Renewal>,
}

/// Rancher's cloud credential.
#[derive(Clone, Debug)]
pub struct Rancher {
    pub server: String,
    pub expiry: Expiry,
    /// What its server says to who asks for its version with it.
    pub answer: Answer,
}

/// A right that a part needs on Harvester, and whether the credential has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The check that asks for it.
    pub check: &'static str,
    pub right: Right,
    /// The ClusterRole that grants it.
    pub role: &'static str,
    /// The first release of Harvester whose roles have it; empty for all.
    pub since: &'static str,
    /// What is off without it.
    pub off: &'static str,
    /// The part does not work without it.
    pub is_vital: bool,
    /// `None`: the server did not say.
    pub allowed: Option<bool>,
}

/// Everything that the checks look at.
#[derive(Clone, Debug)]
pub struct Facts {
    pub now: Timestamp,
    pub guest: Cluster,
    /// Or why there is none.
    pub config: Result<Config, String>,
    /// Or why it cannot be used. `None`: it was not given.
    pub rancher: Option<Result<Rancher, String>>,
    pub harvester: Cluster,
    /// The clock of the guest cluster's API server. `None`: it did not say.
    pub guest_time: Option<Timestamp>,
    /// The clock of Harvester's API server. `None`: it did not say.
    pub harvester_time: Option<Timestamp>,
    pub rights: Vec<Asked>,
    /// The answer to a LoadBalancer (`dryRun`) that the definition of the kind allows and the webhook refuses.
    pub trial: Result<(), Failed>,
}

impl Facts {
    /// Now, by the clock that wrote the times of the guest cluster's objects, or by this machine's.
    pub fn now_in_guest(&self) -> Timestamp {
        self.guest_time.unwrap_or(self.now)
    }

    /// Now, by the clock that judges the credentials, or by this machine's.
    pub fn now_in_harvester(&self) -> Timestamp {
        self.harvester_time.unwrap_or(self.now)
    }
}
