//! Carries out what kube-vip decides: leases, and writes `vipHost` before the status.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr},
    sync::{Arc, Mutex},
};

use k8s_openapi::api::{
    core::v1::{Node, Service},
    discovery::v1::EndpointSlice,
};
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};

use controller_kit::{Action, Cache, ObjectKey, Queue};
use harvester_api::{
    annotations::{KUBE_VIP_HWADDR, KUBE_VIP_REQUESTED_IP, KUBE_VIP_VIP_HOST},
    labels::SLICE_SERVICE_NAME,
};
use program::TaskGroup;

use super::{AnnounceStep, Release, Wanted, announce};
use crate::{
    data_path::Picture,
    dhcp::{self, Lan, Leasing, Mac},
    difference,
    host::is_ready,
};

/// Hosts with this label run kube-vip; all do where none has it.
const CONTROL_PLANE: &str = "node-role.kubernetes.io/control-plane";

/// A write was refused.
#[derive(Debug, thiserror::Error)]
#[error("{what} of Service {service}")]
pub(crate) struct Error {
    what: &'static str,
    service: ObjectKey,
    source: kube::Error,
}

/// What is announced for one Service.
#[derive(Debug)]
struct Announced {
    wanted: Wanted,
    /// Empty while a lease is waited for.
    addresses: BTreeSet<IpAddr>,
    node: String,
    /// Whether the Service says all this.
    told: bool,
    lease: Option<(Mac, Leasing)>,
}

/// One cluster's kube-vip. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Announcer {
    client: Client,
    release: Arc<Mutex<Release>>,
    lan: Lan,
    tasks: TaskGroup,
    /// Ends with this kube-vip: leases that nobody gives back.
    leases: Arc<Mutex<TaskGroup>>,
    pub(crate) services: Cache<Service>,
    pub(crate) slices: Cache<EndpointSlice>,
    nodes: Cache<Node>,
    announced: Arc<Mutex<BTreeMap<ObjectKey, Announced>>>,
    random: Arc<Mutex<fastrand::Rng>>,
    queue: Queue<ObjectKey>,
    /// Hears whenever something else is announced.
    picture: Picture,
}

impl Announcer {
    pub(crate) fn start(
        tasks: &TaskGroup,
        client: &Client,
        release: Release,
        nodes: &Cache<Node>,
        lan: &Lan,
        seed: u64,
        picture: &Picture,
    ) -> Self {
        let announcer = Self {
            client: client.clone(),
            release: Arc::new(Mutex::new(release)),
            lan: lan.clone(),
            tasks: tasks.clone(),
            leases: Arc::new(Mutex::new(until_restart(tasks))),
            services: Cache::start(tasks, Api::all(client.clone()), Default::default()),
            slices: Cache::start(tasks, Api::all(client.clone()), Default::default()),
            nodes: nodes.clone(),
            announced: Arc::default(),
            random: Arc::new(Mutex::new(fastrand::Rng::with_seed(seed))),
            queue: Queue::new(),
            picture: picture.clone(),
        };
        announcer.subscribe();
        let (worker, in_life) = (announcer.clone(), tasks.clone());
        tasks.spawn_until_stop(async move {
            worker.services.ready().await;
            worker.slices.ready().await;
            worker.nodes.ready().await;
            worker.queue.clone().run(&in_life, 1, move |key| {
                let worker = worker.clone();
                async move { worker.reconcile(&key).await.map(|()| Action::AwaitChange) }
            });
        });
        announcer
    }

    /// The addresses announced for each Service, and the node that does.
    pub(crate) fn announced(&self) -> BTreeMap<ObjectKey, (BTreeSet<IpAddr>, String)> {
        let announced = self.state();
        let told = announced.iter().filter(|(_, announced)| !announced.addresses.is_empty());
        told.map(|(key, of)| (key.clone(), (of.addresses.clone(), of.node.clone()))).collect()
    }

    /// Forgets everything, gives nothing back, and looks at every Service afresh.
    pub(crate) fn restart(&self) {
        // first: a lease that is dropped while its task lives is given back
        let next = until_restart(&self.tasks);
        std::mem::replace(&mut *self.leases(), next).stop.cancel();
        self.state().clear();
        self.picture.changed();
        self.services.list().iter().for_each(|service| self.queue.add(ObjectKey::of(&**service)));
    }

    /// Another release takes over, unless it is that already.
    pub(crate) fn upgrade(&self, release: Release) {
        if std::mem::replace(&mut *self.release(), release) != release {
            self.restart();
        }
    }

    fn release(&self) -> std::sync::MutexGuard<'_, Release> {
        self.release.lock().expect("no panic while upgrading")
    }

    fn leases(&self) -> std::sync::MutexGuard<'_, TaskGroup> {
        self.leases.lock().expect("no panic while leasing")
    }

    fn subscribe(&self) {
        let add = self.queue.clone();
        self.services.on_change(move |change| add.add(change.key.clone()));
        let add = self.queue.clone();
        self.slices.on_change(move |change| {
            for slice in change.old.iter().chain(&change.new) {
                if let Some(service) = slice.labels().get(SLICE_SERVICE_NAME) {
                    add.add(ObjectKey::new(&change.key.namespace, service));
                }
            }
        });
        let (add, services) = (self.queue.clone(), self.services.clone());
        self.nodes.on_change(move |_| {
            services.list().iter().for_each(|service| add.add(ObjectKey::of(&**service)));
        });
    }

    async fn reconcile(&self, key: &ObjectKey) -> Result<(), Error> {
        let service = self.services.get(key);
        let slices: Vec<_> = self.slices.list();
        let of_service = |slice: &&EndpointSlice| {
            slice.namespace().as_deref() == Some(&key.namespace)
                && slice.labels().get(SLICE_SERVICE_NAME) == Some(&key.name)
        };
        let slices: Vec<_> = slices.iter().map(|slice| &**slice).filter(of_service).collect();
        let previous = self.state().get(key).map(|announced| announced.wanted.clone());
        // nobody leads: what is announced stays, and nothing new is
        let Some(leader) = leader(&self.nodes.list()) else {
            self.withdraw_if_gone(key, service.is_none());
            return Ok(());
        };
        let release = *self.release();
        match announce(service.as_deref(), &slices, release, &leader, previous.as_ref()) {
            AnnounceStep::Keep => {}
            AnnounceStep::Ignore => return Ok(()),
            AnnounceStep::Withdraw => self.withdraw_if_gone(key, true),
            AnnounceStep::Announce(wanted) => {
                let service =
                    service.as_deref().expect("nothing is announced for a Service that is not there");
                self.announce(key, service, wanted, &leader);
            }
        }
        {
            let mut state = self.state();
            if let Some(announced) = state.get_mut(key).filter(|announced| announced.node != leader) {
                announced.node = leader;
                announced.told = false;
                self.picture.changed();
            }
        }
        match service {
            Some(service) => self.tell(key, &service).await,
            None => Ok(()),
        }
    }

    fn withdraw_if_gone(&self, key: &ObjectKey, gone: bool) {
        if gone && self.state().remove(key).is_some() {
            tracing::debug!(service = %key, "withdrawn");
            self.picture.changed();
        }
    }

    fn announce(&self, key: &ObjectKey, service: &Service, wanted: Wanted, node: &str) {
        // held while the lease is begun: its address may be there before we are done
        let mut state = self.state();
        let (addresses, lease) = match &wanted {
            Wanted::Addresses(addresses) => (addresses.clone(), None),
            Wanted::Dhcp => (BTreeSet::new(), Some(self.lease(key, service))),
        };
        tracing::debug!(service = %key, ?wanted, "announced");
        let announced = Announced { wanted, addresses, node: node.to_owned(), told: false, lease };
        // what was announced before goes with its lease
        let former = state.insert(key.clone(), announced);
        drop(state);
        drop(former);
        self.picture.changed();
    }

    /// Leases with the hardware address and the address that the Service remembers.
    fn lease(&self, key: &ObjectKey, service: &Service) -> (Mac, Leasing) {
        let annotation = |name: &str| service.annotations().get(name).map(|text| text.trim());
        let (mac, seed) = {
            let mut random = self.random.lock().expect("no panic while choosing");
            (
                annotation(KUBE_VIP_HWADDR).and_then(Mac::parse).unwrap_or_else(|| Mac::random(&mut random)),
                random.u64(..),
            )
        };
        let wish = annotation(KUBE_VIP_REQUESTED_IP).and_then(|text| text.parse().ok());
        let (this, of) = (self.clone(), key.clone());
        let tasks = self.leases().clone();
        let leasing = dhcp::lease(&tasks, &self.lan, mac, wish, seed, move |address: Option<Ipv4Addr>| {
            let is_own = |announced: &&mut Announced| {
                announced.lease.as_ref().is_some_and(|(leased, _)| *leased == mac)
            };
            // a former Service of this name may give its address back only now
            if let Some(announced) = this.state().get_mut(&of).filter(is_own) {
                announced.addresses = address.map(IpAddr::V4).into_iter().collect();
                announced.told = false;
            }
            this.picture.changed();
            this.queue.add(of.clone());
        });
        (mac, leasing)
    }

    /// Writes what the Service does not say yet. Once it has been told, whatever others write there stays.
    async fn tell(&self, key: &ObjectKey, service: &Service) -> Result<(), Error> {
        let (annotations, addresses) = match self.state().get(key) {
            Some(announced) if !announced.told && !announced.addresses.is_empty() => {
                (annotations(announced), announced.addresses.clone())
            }
            _ => return Ok(()),
        };
        let api: Api<Service> = Api::namespaced(self.client.clone(), &key.namespace);
        let error = |what| move |source| Error { what, service: key.clone(), source };
        let mut service = service.clone();
        let json = serde_json::to_value(&service).expect("a Service is JSON");
        if let Some(patch) = difference::needed(&json, json!({"metadata": {"annotations": annotations}})) {
            match api.patch(&key.name, &PatchParams::default(), &Patch::Merge(patch)).await {
                Ok(answer) => service = (*self.services.wrote(answer)).clone(),
                Err(kube::Error::Api(status)) if status.is_not_found() => return Ok(()),
                Err(source) => return Err(error("write annotations")(source)),
            }
        }
        if !says(&service, &addresses) {
            // one that carries the version that we read: a status that somebody wrote meanwhile is not overwritten unseen
            let mut json = json!({"metadata": {"resourceVersion": service.resource_version()}});
            json["status"] = json!({"loadBalancer": {"ingress": ingress(&service, &addresses)}});
            match api.patch_status(&key.name, &PatchParams::default(), &Patch::Merge(json)).await {
                Ok(answer) => drop(self.services.wrote(answer)),
                Err(kube::Error::Api(status)) if status.is_not_found() => return Ok(()),
                Err(source) => return Err(error("write status")(source)),
            }
        }
        if let Some(announced) =
            self.state().get_mut(key).filter(|announced| announced.addresses == addresses)
        {
            announced.told = true;
        }
        Ok(())
    }

    fn state(&self) -> std::sync::MutexGuard<'_, BTreeMap<ObjectKey, Announced>> {
        self.announced.lock().expect("no panic while announcing")
    }
}

/// Ends earlier than `tasks`, or with it, which waits for its tasks.
fn until_restart(tasks: &TaskGroup) -> TaskGroup {
    TaskGroup { stop: tasks.stop.child_token(), tasks: tasks.tasks.clone() }
}

/// The node whose kube-vip holds the Lease: the first by name that is ready and may.
fn leader(nodes: &[Arc<Node>]) -> Option<String> {
    let may = |node: &&Arc<Node>| node.labels().contains_key(CONTROL_PLANE);
    let ready = |node: &&Arc<Node>| is_ready(node);
    let candidates: Vec<_> = nodes.iter().filter(may).collect();
    let candidates = if candidates.is_empty() { nodes.iter().collect() } else { candidates };
    candidates.into_iter().filter(ready).map(|node| node.name_any()).min()
}

fn annotations(announced: &Announced) -> Value {
    let mut annotations = json!({KUBE_VIP_VIP_HOST: announced.node});
    if let Some((mac, _)) = &announced.lease {
        annotations[KUBE_VIP_HWADDR] = mac.to_string().into();
        annotations[KUBE_VIP_REQUESTED_IP] = announced.addresses.first().map(IpAddr::to_string).into();
    }
    annotations
}

fn ingress(service: &Service, addresses: &BTreeSet<IpAddr>) -> Value {
    let ports = service.spec.iter().flat_map(|spec| spec.ports.iter().flatten());
    let ports: Vec<_> = ports
        .map(|port| json!({"port": port.port, "protocol": port.protocol.as_deref().unwrap_or("TCP")}))
        .collect();
    addresses.iter().map(|address| json!({"ip": address, "ports": ports})).collect()
}

/// Whether the status names exactly these addresses.
fn says(service: &Service, addresses: &BTreeSet<IpAddr>) -> bool {
    let status = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    let ingress = status.and_then(|status| status.ingress.as_ref()).into_iter().flatten();
    let said: Vec<_> = ingress.map(|ingress| ingress.ip.as_deref().unwrap_or_default().to_owned()).collect();
    said == addresses.iter().map(IpAddr::to_string).collect::<Vec<_>>()
}
