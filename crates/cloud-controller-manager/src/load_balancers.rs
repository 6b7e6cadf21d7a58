//! The LoadBalancer object of each Service: Harvester's side of [`cloud_provider::LoadBalancers`].
//!
//! `see` reads the watch caches of the namespace of the cloud-config, `decide` answers with a [`Write`], and the writes
//! are POST, PUT of the JSON that was read with our fields changed, and DELETE by name and UID. A conflict is no
//! error: the watch brings the newer version, and everything is decided afresh from it.
//!
//! An object is found by the Service that it is for (`lookup`), so objects of the Go program and of former cluster
//! names are taken over.

mod decide;
pub mod dry_run;
mod lookup;
mod object;
mod refused;
mod requests;
pub mod selector;
mod sharing;
mod statuses;
mod without_service;
mod writes;

use std::{
    cell::OnceCell,
    collections::{HashMap, HashSet},
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Arc, Mutex},
    time::Duration,
};

use cloud_provider::{Decision, Failure, LoadBalancers, Requeue, RequeueFn, wants_load_balancer};
use controller_kit::{Cache, Change, ObjectKey, RawObject, error_message};
use guest_vms::GuestVms;
use harvester_api::{LoadBalancer, annotations, names};
use k8s_openapi::api::core::v1::{Node, Service};
use kube::{Api, Client, ResourceExt, api::PostParams};
use serde_json::Value;
use tokio::time::Instant;

pub(crate) use self::decide::{allocated, ingress};
pub(crate) use self::lookup::labelled_service;
pub use self::{decide::Write, object::ClusterIdentity};
use self::{
    decide::{
        Found, Phase, Seen, decide,
        sharing::Sharing,
        source_ranges::{GivenUp, RETRY},
        status_owner,
    },
    lookup::{AddressInUse, Entry, Evidence, Index, LiveService, computed, find},
    refused::RefusedCreations,
    sharing::{is_marked, let_go, related, showing},
    statuses::StatusNotes,
};
use crate::{
    cluster::GuestCluster,
    datapath::{AllowedDatapaths, Datapath, Policy},
    networks::{Interface, Networks},
    outage::{Outage, who_grants},
    requested::Aliases,
    service_config::ServiceConfig,
};

/// What the API server says of an object that a webhook refuses. Harvester 1.2 and 1.3 refuse one without VMs.
const DENIED: &str = "denied the request";

/// The settings that hold for every Service.
#[derive(Clone, Debug, PartialEq)]
pub struct ServiceSettings {
    pub cluster: GuestCluster,
    /// Namespace in Harvester.
    pub namespace: String,
    /// `--management-network`, with namespace.
    pub management_network: Option<String>,
    pub policy: Policy,
    pub allowed: AllowedDatapaths,
    /// `--restrict-shared-address`.
    pub restrict_sharing: bool,
    /// `--annotation-aliases`.
    pub aliases: Aliases,
}

/// Source ranges that Harvester did not enforce.
struct Attempt {
    ranges: String,
    at: Instant,
    refusal: Option<Refusal>,
}

/// Harvester's answer to an object without VMs. It may be about anything else in the Service.
struct Refusal {
    answer: String,
    /// Of the Service that the object was made for, as it was.
    fingerprint: u64,
}

/// Harvester's load balancers.
pub struct HarvesterLoadBalancers {
    rules: ServiceSettings,
    client: Client,
    objects: Cache<RawObject<LoadBalancer>>,
    services: Cache<Service>,
    vms: GuestVms,
    networks: Arc<Networks>,
    outage: Outage,
    index: Index,
    shared: Arc<sharing::Index>,
    groups: sharing::Groups,
    /// By Service UID: the phase of its object, and since when.
    waiting: Mutex<HashMap<String, (Phase, Instant)>>,
    /// By Service UID.
    given_up: Mutex<HashMap<String, Attempt>>,
    refused: RefusedCreations,
    statuses: StatusNotes,
}

impl HarvesterLoadBalancers {
    /// `objects` and `services` are watch caches; `services` should be ready. While `objects` is not, no Service is
    /// decided.
    pub(crate) fn new(
        rules: ServiceSettings,
        client: Client,
        objects: Cache<RawObject<LoadBalancer>>,
        services: Cache<Service>,
        vms: GuestVms,
        networks: Arc<Networks>,
        outage: Outage,
    ) -> Arc<Self> {
        let this = Arc::new(Self {
            rules,
            client,
            objects,
            services,
            vms,
            networks,
            outage,
            index: Index::default(),
            shared: Arc::default(),
            groups: sharing::Groups::default(),
            waiting: Mutex::default(),
            given_up: Mutex::default(),
            refused: RefusedCreations::default(),
            statuses: StatusNotes::default(),
        });
        let into = Arc::downgrade(&this);
        this.objects.on_change(move |change| {
            let Some(this) = into.upgrade() else { return };
            let newest = || this.objects.get(&change.key).map(|object| Entry::of(&object));
            this.index.set(&change.key.name, newest);
            this.groups.changed();
        });
        let into = Arc::downgrade(&this);
        this.services.on_change(move |change| {
            let Some(this) = into.upgrade() else { return };
            this.shared.refresh(&change.key, || this.services.get(&change.key));
            this.groups.changed();
            let [old, new] =
                [&change.old, &change.new].map(|version| version.as_ref().and_then(|service| service.uid()));
            // one without finalizer is not cleaned up, and a list may have another of the name in its place
            if let Some(old) = old.filter(|old| new.as_ref() != Some(old)) {
                this.statuses.forget(&old);
            }
        });
        let into = Arc::downgrade(&this);
        this.outage.on_move(move || {
            let Some(this) = into.upgrade() else { return };
            this.refused.forget_all();
            this.given_up.lock().expect("no panic while remembering").clear();
        });
        this
    }

    fn identity(&self) -> ClusterIdentity {
        let kubernetes = self.services.get(&ObjectKey::new("default", "kubernetes"));
        ClusterIdentity {
            cluster: self.rules.cluster.clone(),
            cluster_uid: kubernetes.and_then(|service| service.uid()),
            management_network: self.rules.management_network.clone(),
        }
    }

    /// The key of the Service's object, or the one that it will have.
    fn key(&self, service: &Service) -> ObjectKey {
        self.find(service).0
    }

    /// The same, and the sign by which an object that is there was found.
    fn find(&self, service: &Service) -> (ObjectKey, Option<Evidence>) {
        let live = LiveService::of(service);
        let ours = self.identity();
        let name = computed(&ours.cluster, &live);
        let mut names = self.index.objects_of(&live);
        names.extend([name.clone(), computed(&GuestCluster::default_name(), &live)]);
        let objects = names.iter().filter_map(|name| self.objects.get(&self.key_of(name)));
        let objects: Vec<_> = objects.collect();
        // a neighbour in the namespace may label any number of objects: the Services are gone through once
        let others = OnceCell::new();
        let is_of_another = |object: &LoadBalancer| {
            let (uids, names) = others.get_or_init(|| {
                let all = self.services.list().into_iter().map(|other| LiveService::of(&other));
                let others = all.filter(|other| other.key != live.key);
                others
                    .map(|other| (other.uid.clone(), computed(&ours.cluster, &other)))
                    .unzip::<_, _, HashSet<_>, HashSet<_>>()
            });
            let made_for = object.annotations().get(annotations::SERVICE_UID);
            made_for.is_some_and(|uid| uids.contains(uid)) || names.contains(&object.name_any())
        };
        let objects = objects.iter().map(|object| &***object);
        let in_use = |object: &LoadBalancer| AddressInUse::of(object, service);
        let found = find(objects, &live, self.is_wanted(service), &ours, is_of_another, in_use);
        match found {
            Some((name, evidence)) => (self.key_of(&name), Some(evidence)),
            None => (self.key_of(&name), None),
        }
    }

    fn key_of(&self, object: &str) -> ObjectKey {
        ObjectKey::new(&self.rules.namespace, object)
    }

    fn is_wanted(&self, service: &Service) -> bool {
        wants_load_balancer(service, self.class())
    }

    /// Reads the caches.
    fn see<'a>(&self, service: &'a Service, nodes: &[Arc<Node>]) -> Seen<'a> {
        let key = self.key(service);
        let wanted = self.is_wanted(service);
        let load_balancer = self.load_balancer(&key);
        // the answers came before the object that is there
        let creation_refused =
            load_balancer.object().is_none() && self.refused.has(&service.uid().unwrap_or_default());
        let secondaries = self.secondaries_of(service, &load_balancer);
        let config = ServiceConfig::with_aliases(service, self.rules.aliases);
        let interface =
            if wanted { self.interface(load_balancer.object(), &config) } else { Interface::NotAsked };
        let mut seen = Seen {
            identity: self.identity(),
            policy: self.rules.policy,
            allowed: self.rules.allowed,
            load_balancer,
            key,
            service,
            given_up: self.given_up(service, &config),
            creation_refused,
            shown_by_others: self
                .statuses
                .is_of_others(&service.uid().unwrap_or_default(), &ingress(service)),
            config,
            interface,
            wanted,
            // an object that stays for others goes on leading to the VMs
            backends: if wanted || !secondaries.carried.is_empty() { self.vms.backends(nodes) } else { None },
            load_balancers_out_of_reach: self.outage.of_load_balancers(),
            vms_out_of_reach: self.outage.of_vms(),
            sharing: if wanted { self.sharing_of(service) } else { Sharing::Own },
            held: self.held_by(service),
            is_carried: self.is_carried(service),
            secondaries,
            waited: Duration::ZERO,
        };
        seen.waited = seen.phase().map_or(Duration::ZERO, |phase| self.waited(service, &phase));
        seen
    }

    /// The interface of the network that was settled when the object was made.
    fn interface(&self, object: Option<&RawObject<LoadBalancer>>, config: &ServiceConfig) -> Interface {
        if object.is_some_and(|object| Datapath::of_object(&object.spec) == Datapath::Host) {
            return Interface::NotAsked;
        }
        let settled = object.and_then(|object| object.annotations().get(annotations::LB_NETWORK_REQUEST));
        let network = settled.unwrap_or(&config.network).trim();
        self.networks.interface(network, self.outage.of_vms().is_some())
    }

    fn load_balancer(&self, key: &ObjectKey) -> Found {
        if !self.objects.is_ready() {
            return Found::Unlisted;
        }
        if let Some(object) = self.objects.get(key) {
            return Found::Present(object);
        }
        match self.objects.malformed().into_iter().find(|(other, _)| other == key) {
            Some((key, why)) => {
                Found::Unreadable(format!("LoadBalancer {key} in Harvester cannot be read: {why}"))
            }
            None => Found::Absent,
        }
    }

    /// How long the Service has been in this phase.
    fn waited(&self, service: &Service, phase: &Phase) -> Duration {
        let waiting = self.waiting.lock().expect("no panic while counting");
        let since = waiting.get(&service.uid().unwrap_or_default()).filter(|(before, _)| before == phase);
        since.map_or(Duration::ZERO, |(_, since)| since.elapsed())
    }

    /// Remembers when the Service came into this phase.
    fn remember(&self, service: &Service, phase: Option<Phase>) {
        let uid = service.uid().unwrap_or_default();
        let mut waiting = self.waiting.lock().expect("no panic while counting");
        match phase {
            None => drop(waiting.remove(&uid)),
            Some(phase) if waiting.get(&uid).is_some_and(|(before, _)| *before == phase) => {}
            Some(phase) => drop(waiting.insert(uid, (phase, Instant::now()))),
        }
    }

    /// Harvester does not enforce these source ranges now.
    fn give_up(&self, service_uid: &str, ranges: &str, refusal: Option<Refusal>) {
        let mut given_up = self.given_up.lock().expect("no panic while remembering");
        let attempt = Attempt { ranges: ranges.to_owned(), at: Instant::now(), refusal };
        given_up.insert(service_uid.to_owned(), attempt);
    }

    fn given_up(&self, service: &Service, config: &ServiceConfig) -> Option<GivenUp> {
        let Some(Ok(ranges)) = &config.source_ranges else { return None };
        let given_up = self.given_up.lock().expect("no panic while remembering");
        let attempt = given_up.get(&service.uid()?)?;
        let again = RETRY.checked_sub(attempt.at.elapsed()).filter(|rest| !rest.is_zero())?;
        let refusal = attempt.refusal.as_ref();
        let has_changed = refusal.is_some_and(|refusal| refusal.fingerprint != fingerprint(service));
        let holds = attempt.ranges == ranges.to_string() && !has_changed;
        holds.then(|| GivenUp { again, refusal: refusal.map(|refusal| refusal.answer.clone()) })
    }

    fn api(&self) -> Api<RawObject<LoadBalancer>> {
        Api::namespaced(self.client.clone(), &self.rules.namespace)
    }

    /// `fingerprint` of the Service that was decided about: the cache may show a newer one by now.
    async fn create(&self, json: Value, fingerprint: u64) -> Result<(), Failure> {
        let body = RawObject::<LoadBalancer>::from_json(json).expect("made from the type's own fields");
        let service = body.annotations().get(annotations::SERVICE_UID);
        let answers = self.objects.answers();
        match self.api().create(&PostParams::default(), &body).await {
            Ok(made) => {
                answers.wrote(made);
                Ok(())
            }
            Err(kube::Error::Api(status)) if status.is_already_exists() || status.is_conflict() => {
                // it may be this one, and was not refused
                service.inspect(|uid| self.refused.forget(uid));
                Err(Failure::Outdated)
            }
            Err(error) => {
                let service = service.filter(|_| answers.are_of_this_server());
                match (service, &error) {
                    (Some(uid), kube::Error::Api(answer)) => self.refused.note_if_lasting(uid, answer),
                    (Some(uid), _) => self.refused.forget(uid),
                    (None, _) => {}
                }
                if let kube::Error::Api(status) = &error
                    && status.message.contains(DENIED)
                    && body.spec.backend_server_selector.is_empty()
                    && let Some(ranges) = body.annotations().get(annotations::SOURCE_RANGES)
                    && let Some(service) = service
                {
                    let refusal = Refusal { answer: status.message.clone(), fingerprint };
                    self.give_up(service, ranges, Some(refusal));
                }
                Err(failed("create", &ObjectKey::of(&body), error))
            }
        }
    }
}

impl LoadBalancers for HarvesterLoadBalancers {
    type Write = Write;

    fn class(&self) -> Option<&str> {
        Some(names::LOAD_BALANCER_CLASS)
    }

    fn decide(&self, service: &Service, nodes: &[Arc<Node>]) -> Decision<Write> {
        let uid = service.uid().unwrap_or_default();
        let seen = self.see(service, nodes);
        self.remember(service, seen.phase());
        self.remember_own_object(service, &seen.load_balancer);
        let decision = decide(&seen);
        self.statuses.note_owner(&uid, status_owner(&seen, &decision.view.publish));
        self.statuses.note_publish(&uid, &decision.view.publish, &ingress(service));
        // nothing is tried now, so the next answer is the first; VMs that are not known for a moment end no row of answers
        let is_for_a_moment = seen.wanted && seen.backends.is_none();
        if !matches!(decision.write, Some(Write::Create { .. })) && !is_for_a_moment {
            self.refused.forget(&uid);
        }
        decision
    }

    async fn apply(&self, write: Write) -> Result<(), Failure> {
        match write {
            Write::Create { json, fingerprint } => self.create(json, fingerprint).await,
            Write::Update(json) => self.update(&json).await,
            Write::Delete(key) => self.remove(&key).await,
            Write::GiveUp { key, service_uid, ranges } => {
                self.remove(&key).await?;
                self.give_up(&service_uid, &ranges, None);
                Ok(())
            }
        }
    }

    async fn delete(&self, service: &Service) -> Result<(), Failure> {
        self.remove(&self.key(service)).await?;
        let uid = service.uid().unwrap_or_default();
        self.waiting.lock().expect("no panic while counting").remove(&uid);
        self.given_up.lock().expect("no panic while remembering").remove(&uid);
        self.refused.forget(&uid);
        self.statuses.forget(&uid);
        Ok(())
    }

    /// Those that share an address with it, or ask for it.
    fn dependents(&self, service: &Service) -> Vec<ObjectKey> {
        let mut others = self.shared.related(service);
        // one that leaves an address keeps its owner, and its port from the others, until its status shows another
        if is_marked(service) {
            for owner in self.owners(service) {
                others.extend(self.shared.group(&owner));
                others.extend(self.services.get(&owner).map(|_| owner));
            }
            others.remove(&ObjectKey::of(service));
        }
        others.into_iter().collect()
    }

    fn subscribe(&self, requeue: RequeueFn) {
        let (woken, services, shared) = (requeue.clone(), self.services.clone(), self.shared.clone());
        self.objects.on_change(move |change| {
            for key in services_of(change) {
                // first, as labels that it puts back are how the others find it
                woken(Requeue::One(key.clone()));
                for other in related(&shared, &key, services.get(&key)) {
                    woken(Requeue::One(other));
                }
            }
            for secondary in let_go(&shared, change).into_iter().chain(showing(&shared, change)) {
                woken(Requeue::One(secondary));
            }
        });
        let woken = requeue.clone();
        self.vms.on_change(move || woken(Requeue::All));
        let woken = requeue.clone();
        self.networks.on_change(move || woken(Requeue::All));
        let services = self.services.clone();
        self.outage.on_change(move || {
            for service in services.list() {
                requeue(Requeue::One(ObjectKey::of(&*service)));
            }
        });
    }
}

/// The Service that an object is for, by its labels, and the one that it was for before: when somebody takes the labels
/// away, that Service puts them back.
fn services_of(change: &Change<RawObject<LoadBalancer>>) -> impl Iterator<Item = ObjectKey> + use<> {
    let [new, old] = [&change.new, &change.old]
        .map(|version| version.as_ref().and_then(|object| labelled_service(object)));
    let former = old.filter(|old| new.as_ref() != Some(old));
    new.into_iter().chain(former)
}

/// Of what a Service asks for: its spec and annotations, but for those that this program writes.
fn fingerprint(service: &Service) -> u64 {
    let own = decide::on_host();
    let annotations = service.annotations().iter().filter(|(key, _)| !own.contains_key(*key));
    let mut hasher = DefaultHasher::new();
    annotations.for_each(|annotation| annotation.hash(&mut hasher));
    serde_json::to_string(&service.spec).unwrap_or_default().hash(&mut hasher);
    hasher.finish()
}

fn failed(verb: &str, key: &ObjectKey, error: kube::Error) -> Failure {
    let why = error_message(&error);
    let grants = who_grants(&why, &key.namespace).map(|who| format!("; {who}")).unwrap_or_default();
    let why = format!("{verb} LoadBalancer {key} in Harvester: {why}{grants}");
    Failure::Failed { why, source: Some(error) }
}

#[cfg(test)]
mod tests {
    use guest_vms::VmSettings;
    use harvester_api::labels;
    use http::{Request, Response};
    use kube::client::Body;
    use program::health::Health;
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::outage::Checks;

    fn object(service: Option<&str>) -> Arc<RawObject<LoadBalancer>> {
        let labels =
            service.map(|name| json!({labels::SERVICE_NAMESPACE: "shop", labels::SERVICE_NAME: name}));
        let metadata = json!({"name": "blue", "namespace": "team-a", "labels": labels});
        Arc::new(RawObject::from_json(json!({"metadata": metadata, "spec": {}})).unwrap())
    }

    #[rstest]
    #[case::made(None, Some(Some("web")), &["shop/web"])]
    #[case::changed(Some(Some("web")), Some(Some("web")), &["shop/web"])]
    #[case::gone(Some(Some("web")), None, &["shop/web"])]
    #[case::labels_taken_away(Some(Some("web")), Some(None), &["shop/web"])]
    #[case::labels_of_another(Some(Some("web")), Some(Some("api")), &["shop/api", "shop/web"])]
    #[case::never_for_a_service(Some(None), Some(None), &[])]
    fn a_change_requeues_the_services_that_it_is_about(
        #[case] old: Option<Option<&str>>,
        #[case] new: Option<Option<&str>>,
        #[case] services: &[&str],
    ) {
        let key = ObjectKey::new("team-a", "blue");
        let change = Change { key, old: old.map(object), new: new.map(object) };
        assert_eq!(services_of(&change).map(|key| key.to_string()).collect::<Vec<_>>(), services);
    }

    /// With one Node, whose VM is there. A webhook denies every object.
    pub(super) fn denied(services: &Cache<Service>) -> (Arc<HarvesterLoadBalancers>, Vec<Arc<Node>>) {
        let deny = tower::service_fn(|_: Request<Body>| async {
            let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 400,
                "reason": "BadRequest", "message": "admission webhook \"v\" denied the request: no matching VM"});
            let body = Body::from(status.to_string().into_bytes());
            Ok::<_, tower::BoxError>(Response::builder().status(400).body(body)?)
        });
        at_harvester(Client::new(deny, "team-a"), Cache::of([]), services)
    }

    /// The same, but that it answers as `client` does.
    pub(super) fn at_harvester(
        client: Client,
        objects: Cache<RawObject<LoadBalancer>>,
        services: &Cache<Service>,
    ) -> (Arc<HarvesterLoadBalancers>, Vec<Arc<Node>>) {
        let rules = ServiceSettings {
            cluster: GuestCluster::new("blue"),
            namespace: "team-a".to_owned(),
            management_network: None,
            policy: Policy::Host,
            allowed: AllowedDatapaths::default(),
            restrict_sharing: false,
            aliases: Aliases::default(),
        };
        let metadata = json!({"name": "w1", "namespace": "team-a", "uid": "v1", "labels": {labels::GUEST_CLUSTER: "blue"}});
        let vm = json!({"metadata": metadata, "spec": {}});
        let settings = VmSettings {
            namespace: "team-a".to_owned(),
            cluster: Some("blue".to_owned()),
            ..VmSettings::default()
        };
        let vms = Cache::of([serde_json::from_value(vm.clone()).unwrap()]);
        let vms = GuestVms::of(&client, settings, vms, Cache::of([serde_json::from_value(vm).unwrap()]));
        let networks = Networks::of(client.clone(), Some(vms.clone()), &[], None);
        let outage = Outage::new("team-a", &Health::default(), Checks::default());
        let services = services.clone();
        let cloud = HarvesterLoadBalancers::new(rules, client, objects, services, vms, networks, outage);
        (cloud, vec![Arc::new(serde_json::from_value(json!({"metadata": {"name": "w1"}})).unwrap())])
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_is_of_the_service_as_it_was_decided_about() {
        let version = |version: &str, mended: bool| -> Service {
            let annotations = json!({"example.org/mended": mended.to_string()});
            let metadata = json!({"name": "web", "namespace": "shop", "uid": "u", "resourceVersion": version,
                "annotations": annotations});
            let spec = json!({"type": "LoadBalancer", "loadBalancerSourceRanges": ["10.0.0.0/8"],
                "ports": [{"port": 80, "nodePort": 30080}]});
            serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap()
        };
        let (before, mended) = (version("1", false), version("2", true));
        let services = Cache::of([before.clone()]);
        let (cloud, nodes) = denied(&services);
        let write = cloud.decide(&before, &nodes).write.expect("an object to make");
        // meanwhile its user changes it
        services.wrote(mended.clone());
        assert!(cloud.apply(write).await.is_err());
        assert!(cloud.see(&before, &nodes).given_up.is_some());
        assert!(cloud.see(&mended, &nodes).given_up.is_none());
    }
}
