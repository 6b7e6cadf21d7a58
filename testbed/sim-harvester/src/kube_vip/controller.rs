//! Carries out what [`decide`](super::decide) chooses: leases addresses, and writes `vipHost` before the status.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr},
    sync::{Arc, Mutex, MutexGuard},
};

use k8s_openapi::api::{
    core::v1::{Node, Service},
    discovery::v1::EndpointSlice,
};
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::json;

use controller_kit::{Action, Cache, ObjectKey, Queue};
use dhcp_client::Mac;
use harvester_api::{
    annotations::{KUBE_VIP_HWADDR, KUBE_VIP_REQUESTED_IP, KUBE_VIP_SERVICE_INTERFACE},
    labels::SLICE_SERVICE_NAME,
};
use program::{Subscribers, TaskGroup};

use super::{
    Release, Seen, Step, Wanted, decide,
    publish::{annotations, has_ingress, ingress},
};
use crate::{
    datapath::{Vip, WorldCache},
    dhcp::{self, Lan, Leasing},
    host::is_ready,
    merge_patch,
};

/// kube-vip runs on the nodes with this label, or on all nodes where no node carries it.
const CONTROL_PLANE: &str = "node-role.kubernetes.io/control-plane";

/// The API server refused a write.
#[derive(Debug, thiserror::Error)]
#[error("{what} of Service {service}")]
pub(crate) struct Error {
    what: &'static str,
    service: ObjectKey,
    source: kube::Error,
}

/// The addresses that kube-vip announces for one Service.
#[derive(Debug)]
struct Announced {
    service: ObjectKey,
    wanted: Wanted,
    /// In the order of the status; empty while kube-vip waits for a lease.
    addresses: Vec<IpAddr>,
    node: String,
    /// The interface that the Service asks for.
    interface: Option<String>,
    /// The Service carries the annotations and the status that belong to this.
    written: bool,
    lease: Option<(Mac, Leasing)>,
    /// The last version of the Service, once it is deleted.
    deleted: Option<Arc<Service>>,
    /// kube-vip passes over the Service now.
    passed_over: bool,
    /// kube-vip has passed over the Service since it began to announce.
    was_passed_over: bool,
    /// kube-vip answers for no address, because the Service that it passes over has no endpoints.
    silent: bool,
}

/// One cluster's kube-vip. Cheap to clone.
#[derive(Clone)]
pub(crate) struct KubeVip {
    client: Client,
    release: Arc<Mutex<Release>>,
    lan: Lan,
    tasks: TaskGroup,
    /// Ends with this process of kube-vip: nobody gives these leases back.
    leases: Arc<Mutex<TaskGroup>>,
    pub(crate) services: Cache<Service>,
    pub(crate) slices: Cache<EndpointSlice>,
    nodes: Cache<Node>,
    /// The node whose kube-vip led last.
    leader: Arc<Mutex<String>>,
    /// By UID of the Service, as kube-vip tells Services apart.
    announced: Arc<Mutex<BTreeMap<String, Announced>>>,
    /// Deletions that the worker has not seen yet.
    deletions: Arc<Mutex<Vec<Arc<Service>>>>,
    random: Arc<Mutex<fastrand::Rng>>,
    queue: Queue<ObjectKey>,
    /// Hears of every change of the announced addresses.
    world_cache: WorldCache,
    /// As above. They are told while the addresses are locked.
    subscribers: Arc<Subscribers>,
}

impl KubeVip {
    pub(crate) fn start(
        tasks: &TaskGroup,
        client: &Client,
        release: Release,
        nodes: &Cache<Node>,
        lan: &Lan,
        seed: u64,
        world_cache: &WorldCache,
    ) -> Self {
        let kube_vip = Self {
            client: client.clone(),
            release: Arc::new(Mutex::new(release)),
            lan: lan.clone(),
            tasks: tasks.clone(),
            leases: Arc::new(Mutex::new(until_restart(tasks))),
            services: Cache::start(tasks, Api::all(client.clone()), Default::default()),
            slices: Cache::start(tasks, Api::all(client.clone()), Default::default()),
            nodes: nodes.clone(),
            leader: Arc::default(),
            announced: Arc::default(),
            deletions: Arc::default(),
            random: Arc::new(Mutex::new(fastrand::Rng::with_seed(seed))),
            queue: Queue::new(),
            world_cache: world_cache.clone(),
            subscribers: Arc::default(),
        };
        kube_vip.subscribe();
        let (worker, group) = (kube_vip.clone(), tasks.clone());
        tasks.spawn_until_stop(async move {
            worker.services.ready().await;
            worker.slices.ready().await;
            worker.nodes.ready().await;
            worker.queue.clone().run(&group, 1, move |key| {
                let worker = worker.clone();
                async move { worker.reconcile(&key).await.map(|()| Action::AwaitChange) }
            });
        });
        kube_vip
    }

    /// Calls `hear` whenever the announced addresses may have changed; it must not ask for them at once.
    pub(crate) fn on_change(&self, hear: impl Fn() + Send + Sync + 'static) {
        self.subscribers.add(move |()| hear());
    }

    fn changed(&self) {
        self.world_cache.changed();
        self.subscribers.tell(&());
    }

    /// The addresses that kube-vip has put on the interfaces of a node, each with the interface that the Service asks for.
    pub(crate) fn on_node(&self, node: &str) -> Vec<(Option<String>, IpAddr)> {
        let state = self.state();
        let here = state.values().filter(|of| of.node == node);
        let mut bound: Vec<_> =
            here.flat_map(|of| of.addresses.iter().map(|ip| (of.interface.clone(), *ip))).collect();
        bound.sort();
        // Services that share an address have it on the interface once
        bound.dedup();
        bound
    }

    /// Those of them that no Service asks for.
    pub(crate) fn left_on(&self, node: &str) -> BTreeSet<IpAddr> {
        let release = *self.release();
        let services = self.services.list();
        let asks = |uid: &str, asked: &Wanted| {
            let of = |service: &&Arc<Service>| service.metadata.uid.as_deref() == Some(uid);
            let service = services.iter().find(of).filter(|service| !super::is_passed_over(service));
            service.and_then(|service| super::wanted(service, release)).as_ref() == Some(asked)
        };
        let state = self.state();
        let here = state.iter().filter(|(_, of)| of.node == node);
        let (asked_for, left): (Vec<_>, Vec<_>) = here.partition(|(uid, of)| asks(uid, &of.wanted));
        let addresses = |of: Vec<(&String, &Announced)>| -> BTreeSet<IpAddr> {
            of.into_iter().flat_map(|(_, of)| of.addresses.iter().copied()).collect()
        };
        &addresses(left) - &addresses(asked_for)
    }

    /// The announced addresses of each Service, stale ones included.
    pub(crate) fn announced(&self) -> Vec<Vip> {
        let state = self.state();
        let answered = state.iter().filter(|(_, of)| !of.addresses.is_empty() && !of.silent);
        answered
            .map(|(uid, of)| Vip {
                service: of.service.clone(),
                service_uid: uid.clone(),
                addresses: of.addresses.iter().copied().collect(),
                node: of.node.clone(),
                passed_over: of.passed_over,
                was_passed_over: of.was_passed_over,
            })
            .collect()
    }

    /// Forgets everything, gives nothing back, and looks at every Service afresh.
    pub(crate) fn restart(&self) {
        // first: a lease that is dropped while its task lives is given back
        let next = until_restart(&self.tasks);
        std::mem::replace(&mut *self.leases(), next).stop.cancel();
        self.state().clear();
        self.deletions().clear();
        self.changed();
        self.services.list().iter().for_each(|service| self.queue.add(ObjectKey::of(&**service)));
    }

    /// Another release takes over, unless it runs already.
    pub(crate) fn upgrade(&self, release: Release) {
        if std::mem::replace(&mut *self.release(), release) != release {
            self.restart();
        }
    }

    fn release(&self) -> MutexGuard<'_, Release> {
        self.release.lock().expect("no panic while upgrading")
    }

    fn leases(&self) -> MutexGuard<'_, TaskGroup> {
        self.leases.lock().expect("no panic while leasing")
    }

    fn deletions(&self) -> MutexGuard<'_, Vec<Arc<Service>>> {
        self.deletions.lock().expect("no panic while a deletion is noted")
    }

    fn subscribe(&self) {
        let (add, deletions, announced) =
            (self.queue.clone(), self.deletions.clone(), self.announced.clone());
        self.services.on_change(move |change| {
            let uid = |service: &Option<Arc<Service>>| service.as_ref().and_then(|service| service.uid());
            // each event counts, also where the next one is there before a look at the Service
            if let Some(service) = change.new.as_ref().filter(|service| super::is_passed_over(service))
                && let Some(of) = announced
                    .lock()
                    .expect("no panic while announcing")
                    .get_mut(&service.uid().unwrap_or_default())
            {
                of.was_passed_over = true;
            }
            if let Some(old) = change.old.as_ref().filter(|_| uid(&change.old) != uid(&change.new)) {
                deletions.lock().expect("no panic while a deletion is noted").push(old.clone());
            }
            add.add(change.key.clone());
        });
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
        self.note_deletions(key);
        let service = self.services.get(key);
        let slices: Vec<_> = self.slices.list();
        let of_service = |slice: &&EndpointSlice| {
            slice.namespace().as_deref() == Some(&key.namespace)
                && slice.labels().get(SLICE_SERVICE_NAME) == Some(&key.name)
        };
        let slices: Vec<_> = slices.iter().map(|slice| &**slice).filter(of_service).collect();
        let leader = leader(&self.nodes.list());
        if let Some(leader) = &leader {
            self.follow_leader(leader);
        }
        self.follow_deleted(key, &slices, leader.as_deref().unwrap_or_default());
        // while no kube-vip leads, the announced addresses stay and no other is announced
        let (Some(leader), Some(service)) = (leader, service) else { return Ok(()) };
        let uid = service.uid().unwrap_or_default();
        let previous = self.state().get(&uid).map(|announced| announced.wanted.clone());
        let seen = Seen {
            service: &service,
            deleted: false,
            slices: &slices,
            node: &leader,
            previous: previous.as_ref(),
        };
        let release = *self.release();
        match decide(&seen, release) {
            Step::Keep => self.look_again(&uid),
            Step::PassOver { silent } => {
                self.pass_over(&uid, silent);
                return Ok(());
            }
            Step::Withdraw => self.withdraw(&uid),
            Step::Announce(wanted) => self.announce(key, &service, wanted, &leader),
        }
        self.write(key, &service).await
    }

    /// A kube-vip that begins to lead knows nothing of what another announced, and one that leads no more withdraws
    /// everything and ends (`manager_arp.go`).
    fn follow_leader(&self, leader: &str) {
        let mut last = self.leader.lock().expect("no panic while a leader is noted");
        let former = std::mem::replace(&mut *last, leader.to_owned());
        drop(last);
        if !former.is_empty() && former != leader {
            self.restart();
        }
    }

    /// Keeps the last version of each deleted Service that has addresses announced.
    fn note_deletions(&self, key: &ObjectKey) {
        let mut deletions = self.deletions();
        let mut state = self.state();
        deletions.retain(|service| {
            let is_here = ObjectKey::of(&**service) == *key;
            if let Some(announced) = service.uid().filter(|_| is_here).and_then(|uid| state.get_mut(&uid)) {
                announced.deleted = Some(service.clone());
            }
            !is_here
        });
    }

    /// Withdraws the addresses of deleted Services of this name, but for those whose deletion kube-vip passes over.
    fn follow_deleted(&self, key: &ObjectKey, slices: &[&EndpointSlice], node: &str) {
        let release = *self.release();
        let deleted: Vec<_> = {
            let state = self.state();
            let of_key = state.iter().filter(|(_, announced)| announced.service == *key);
            of_key
                .filter_map(|(uid, of)| Some((uid.clone(), of.wanted.clone(), of.deleted.clone()?)))
                .collect()
        };
        for (uid, wanted, service) in deleted {
            let seen = Seen { service: &service, deleted: true, slices, node, previous: Some(&wanted) };
            match decide(&seen, release) {
                Step::PassOver { silent } => self.pass_over(&uid, silent),
                Step::Keep | Step::Withdraw | Step::Announce(_) => self.withdraw(&uid),
            }
        }
    }

    fn pass_over(&self, uid: &str, silent: bool) {
        if let Some(announced) = self.state().get_mut(uid)
            && (!announced.passed_over || announced.silent != silent)
        {
            tracing::debug!(service = %announced.service, uid, silent, "passed over, and still announced");
            (announced.passed_over, announced.was_passed_over, announced.silent) = (true, true, silent);
            self.changed();
        }
    }

    /// The Service is no longer passed over.
    fn look_again(&self, uid: &str) {
        if let Some(announced) = self.state().get_mut(uid).filter(|announced| announced.passed_over) {
            (announced.passed_over, announced.silent) = (false, false);
            self.changed();
        }
    }

    fn withdraw(&self, uid: &str) {
        // dropped after the lock: the end of a lease takes it
        let former = self.state().remove(uid);
        if let Some(announced) = former {
            tracing::debug!(service = %announced.service, uid, "withdrawn");
            self.changed();
        }
    }

    fn announce(&self, key: &ObjectKey, service: &Service, wanted: Wanted, node: &str) {
        let uid = service.uid().unwrap_or_default();
        // locked until the lease has begun: its address may be there before this function ends
        let mut state = self.state();
        let (addresses, lease) = match &wanted {
            Wanted::Addresses(addresses) => (addresses.clone(), None),
            Wanted::Dhcp => (Vec::new(), Some(self.lease(key, &uid, service))),
        };
        tracing::debug!(service = %key, ?wanted, "announced");
        let announced = Announced {
            service: key.clone(),
            wanted,
            addresses,
            node: node.to_owned(),
            interface: service.annotations().get(KUBE_VIP_SERVICE_INTERFACE).cloned(),
            written: false,
            lease,
            deleted: None,
            passed_over: false,
            was_passed_over: false,
            silent: false,
        };
        // the former addresses go with their lease
        let former = state.insert(uid, announced);
        drop(state);
        drop(former);
        self.changed();
    }

    /// Leases with the hardware address and the address that the Service's annotations name.
    fn lease(&self, key: &ObjectKey, uid: &str, service: &Service) -> (Mac, Leasing) {
        let annotation = |name: &str| service.annotations().get(name).map(|text| text.trim());
        let (mac, seed) = {
            let mut random = self.random.lock().expect("no panic while choosing");
            (
                annotation(KUBE_VIP_HWADDR).and_then(Mac::parse).unwrap_or_else(|| random_mac(&mut random)),
                random.u64(..),
            )
        };
        let wish = annotation(KUBE_VIP_REQUESTED_IP).and_then(|text| text.parse().ok());
        let (this, of, uid) = (self.clone(), key.clone(), uid.to_owned());
        let tasks = self.leases().clone();
        let leasing = dhcp::lease(&tasks, &self.lan, mac, wish, seed, move |address: Option<Ipv4Addr>| {
            let is_own = |announced: &&mut Announced| {
                announced.lease.as_ref().is_some_and(|(leased, _)| *leased == mac)
            };
            // a former lease of this Service may give its address back only now
            if let Some(announced) = this.state().get_mut(&uid).filter(is_own) {
                announced.addresses = address.map(IpAddr::V4).into_iter().collect();
                announced.written = false;
            }
            this.changed();
            this.queue.add(of.clone());
        });
        (mac, leasing)
    }

    /// Writes the announced addresses to the Service, once: kube-vip leaves alone what others write there later.
    async fn write(&self, key: &ObjectKey, service: &Service) -> Result<(), Error> {
        let uid = service.uid().unwrap_or_default();
        let (annotations, addresses) = match self.state().get(&uid) {
            Some(of) if !of.written && !of.addresses.is_empty() => {
                let mac = of.lease.as_ref().map(|(mac, _)| *mac);
                (annotations(&of.node, mac, &of.addresses), of.addresses.clone())
            }
            _ => return Ok(()),
        };
        let api: Api<Service> = Api::namespaced(self.client.clone(), &key.namespace);
        let error = |what| move |source| Error { what, service: key.clone(), source };
        let mut service = service.clone();
        let json = serde_json::to_value(&service).expect("a Service is JSON");
        if let Some(patch) = merge_patch::needed(&json, json!({"metadata": {"annotations": annotations}})) {
            match api.patch(&key.name, &PatchParams::default(), &Patch::Merge(patch)).await {
                Ok(answer) => service = (*self.services.wrote(answer)).clone(),
                Err(kube::Error::Api(status)) if status.is_not_found() => return Ok(()),
                Err(source) => return Err(error("write annotations")(source)),
            }
        }
        if !has_ingress(&service, &addresses) {
            // the patch names the version that was read: it does not overwrite a status that another wrote meanwhile
            let mut json = json!({"metadata": {"resourceVersion": service.resource_version()}});
            json["status"] = json!({"loadBalancer": {"ingress": ingress(&service, &addresses)}});
            match api.patch_status(&key.name, &PatchParams::default(), &Patch::Merge(json)).await {
                Ok(answer) => drop(self.services.wrote(answer)),
                Err(kube::Error::Api(status)) if status.is_not_found() => return Ok(()),
                Err(source) => return Err(error("write status")(source)),
            }
        }
        if let Some(of) = self.state().get_mut(&uid).filter(|of| of.addresses == addresses) {
            of.written = true;
        }
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, BTreeMap<String, Announced>> {
        self.announced.lock().expect("no panic while announcing")
    }
}

/// A hardware address as kube-vip makes them: a fixed prefix and three random bytes.
fn random_mac(random: &mut fastrand::Rng) -> Mac {
    Mac([0x00, 0x00, 0x6c, random.u8(..), random.u8(..), random.u8(..)])
}

/// Ends earlier than `tasks`, or with it, which waits for its tasks.
fn until_restart(tasks: &TaskGroup) -> TaskGroup {
    TaskGroup { stop: tasks.stop.child_token(), tasks: tasks.tasks.clone() }
}

/// The node whose kube-vip holds the Lease: by name the first ready one on which kube-vip runs.
fn leader(nodes: &[Arc<Node>]) -> Option<String> {
    let runs = |node: &&Arc<Node>| node.labels().contains_key(CONTROL_PLANE);
    let ready = |node: &&Arc<Node>| is_ready(node);
    let candidates: Vec<_> = nodes.iter().filter(runs).collect();
    let candidates = if candidates.is_empty() { nodes.iter().collect() } else { candidates };
    candidates.into_iter().filter(ready).map(|node| node.name_any()).min()
}
