//! The decision about one Service from lists that were read once: for a program that explains it and writes nothing.
//!
//! The lists fill the same caches that the running program watches, and the same functions decide.

use std::{sync::Arc, time::Duration};

use cloud_provider::{LoadBalancers as _, is_eligible};
use controller_kit::{Cache, ObjectKey, RawObject};
use guest_vms::{Backends, GuestVms};
use harvester_api::LoadBalancer;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Service};
use kube::Client;
use program::health::Health;
use tokio::time::Instant;

use super::{
    Found, HarvesterLoadBalancers, Phase, ServiceSettings,
    decide::{settled_datapath, sharing::Sharing as Decided},
};
use crate::{
    datapath::{Choice, choose},
    networks::Networks,
    outage::{Checks, Outage},
    service_config::primary,
};

/// One list of each kind. A kind that could not be listed has an empty cache
/// ([`Cache::empty`]), and the decision waits for it.
pub struct Lists {
    /// Of the guest cluster: at least the Service, those that it shares an address with, and `default/kubernetes`.
    pub services: Cache<Service>,
    pub nodes: Vec<Arc<Node>>,
    /// Of the namespace of the cloud-config.
    pub load_balancers: Cache<RawObject<LoadBalancer>>,
    pub vms: GuestVms,
    /// [`NETWORKS_CONFIG_MAP`](harvester_api::names::NETWORKS_CONFIG_MAP), where the Service asks for a network.
    pub networks: Option<RawObject<ConfigMap>>,
    /// Whether the interfaces of networks come from the VMs too: without `--disable-vmi-controller`.
    pub follows_vms: bool,
}

/// The LoadBalancer object of the Service.
#[derive(Clone, Debug)]
pub enum Object {
    /// The objects could not be listed.
    Unlisted,
    Absent,
    Present {
        object: Arc<RawObject<LoadBalancer>>,
        /// Completes the sentence "it is the Service's object: …".
        because: String,
    },
    /// The sentence says why.
    Unreadable(String),
}

/// The part of a Service in sharing an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// It asks for no address of another Service.
    Own,
    /// The primary serves it.
    With { primary: ObjectKey, address: Option<String> },
    /// The sentence says what is missing.
    Waits { asked: Option<ObjectKey>, why: String },
    /// The reason and the sentence; where there is none, the Events name the fault.
    Refused { asked: Option<ObjectKey>, why: Option<String> },
}

/// What is decided about a Service, and from what.
#[derive(Clone, Debug)]
pub struct DryRun {
    /// The object, or the one that will be made.
    pub key: ObjectKey,
    pub object: Object,
    pub choice: Choice,
    pub sharing: Sharing,
    /// The Services that use the address of this one.
    pub secondaries: Vec<ObjectKey>,
    /// The VMs of the Nodes; `None` where the VMs could not be listed.
    pub backends: Option<Backends>,
    /// Completes the sentence "it waits until …".
    pub waits_until: Option<String>,
    /// The decision of the service controller.
    pub decision: cloud_provider::DryRun,
}

/// Decides about `service`. `client` is never asked. `waited` answers how long the Service has been as it is, with its
/// object, where it has one.
pub fn dry_run(
    client: Client,
    rules: ServiceSettings,
    lists: Lists,
    service: &Service,
    waited: impl FnOnce(Option<&LoadBalancer>) -> Duration,
) -> DryRun {
    let Lists { services, nodes, load_balancers, vms, networks, follows_vms } = lists;
    let outage = Outage::new(&rules.namespace, &Health::default(), Checks::default());
    let networks = Networks::of(client.clone(), follows_vms.then(|| vms.clone()), &nodes, networks);
    let cloud = HarvesterLoadBalancers::new(rules, client, load_balancers, services, vms, networks, outage);
    let eligible: Vec<_> = nodes.into_iter().filter(|node| is_eligible(node)).collect();
    let first = cloud.see(service, &eligible);
    if let Some(phase) = first.phase() {
        cloud.assume_waited(service, phase, waited(first.load_balancer.object().map(|object| &**object)));
    }
    let seen = cloud.see(service, &eligible);
    let asked = primary(service).ok().flatten();
    let sharing = match &seen.sharing {
        Decided::Own => Sharing::Own,
        Decided::With(primary) => {
            Sharing::With { primary: primary.service.clone(), address: primary.address.clone() }
        }
        Decided::Waits(why) => Sharing::Waits { asked, why: why.clone() },
        Decided::Refused { fault, .. } => {
            Sharing::Refused { asked, why: fault.as_ref().map(|fault| fault.message.clone()) }
        }
    };
    let object = match &seen.load_balancer {
        Found::Unlisted => Object::Unlisted,
        Found::Absent => Object::Absent,
        Found::Unreadable(why) => Object::Unreadable(why.clone()),
        Found::Present(object) => Object::Present {
            object: object.clone(),
            because: cloud.find(service).1.map(|evidence| evidence.to_string()).unwrap_or_default(),
        },
    };
    let decision = cloud.decide(service, &eligible);
    DryRun {
        key: seen.key.clone(),
        object,
        choice: choose(seen.policy, seen.allowed, &seen.config, settled_datapath(&seen)),
        sharing,
        secondaries: seen.secondaries.all.clone(),
        waits_until: seen.phase().map(|phase| phase.to_string()),
        backends: seen.backends.clone(),
        decision: cloud_provider::dry_run(service, cloud.class(), decision),
    }
}

impl HarvesterLoadBalancers {
    /// As if the Service had come into this phase so long ago.
    fn assume_waited(&self, service: &Service, phase: Phase, waited: Duration) {
        let now = Instant::now();
        let since = now.checked_sub(waited).unwrap_or(now);
        let uid = service.metadata.uid.clone().unwrap_or_default();
        self.waiting.lock().expect("no panic while counting").insert(uid, (phase, since));
    }
}
