//! The LoadBalancer object of each Service: Harvester's side of [`cloud_provider::LoadBalancers`].
//!
//! Objects are watched in the whole namespace of the cloud-config, and found by whom they are for:
//! 1. annotation `cloudprovider.harvesterhci.io/service-uid`, which every object of ours carries, also under a former
//!    cluster name;
//! 2. the name computed for the Service, which is how the Go program's objects are met.
//!
//! Writing is POST, PUT of the JSON that was read with our fields changed, and DELETE by name. A conflict is not an
//! error: the watch brings the newer version, and everything is decided afresh from it.

mod index;
mod object;
mod orphans;
pub mod selector;
mod view;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use cloud_provider::{Failure, LoadBalancers, View, Wake, Whom, asks_for_balancer};
use controller_kit::{Cache, Change, ObjectKey, RawObject, error_message, replace};
use harvester_api::{LoadBalancer, annotations, labels, names};
use k8s_openapi::api::core::v1::{Node, Service};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, PostParams},
};
use serde_json::Value;
use tokio::time::Instant;

pub use self::object::Identity;
use self::{
    index::Index,
    object::Wanted,
    view::{Found, Phase, Sight, judge, phase},
};
use crate::{
    cluster::GuestCluster,
    data_path::{Allowed, Policy},
    machines::Machines,
    wishes::Wishes,
};

/// What does not change while the program runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Rules {
    pub cluster: GuestCluster,
    /// Namespace in Harvester.
    pub namespace: String,
    /// `--management-network`, with namespace.
    pub management_network: Option<String>,
    pub policy: Policy,
    pub allowed: Allowed,
}

/// Harvester's load balancers.
pub struct Balancers {
    rules: Rules,
    client: Client,
    objects: Cache<RawObject<LoadBalancer>>,
    services: Cache<Service>,
    machines: Machines,
    index: Arc<Index>,
    /// By Service UID: what its object waits for, and since when.
    waiting: Mutex<HashMap<String, (Phase, Instant)>>,
}

impl Balancers {
    /// `objects` and `services` are watch caches; they should be ready before a controller asks.
    pub fn new(
        rules: Rules,
        client: Client,
        objects: Cache<RawObject<LoadBalancer>>,
        services: Cache<Service>,
        machines: Machines,
    ) -> Self {
        let index = Arc::new(Index::default());
        let (into, source) = (index.clone(), objects.clone());
        objects.on_change(move |change| {
            let object = source.get(&change.key);
            let uid = object.as_ref().and_then(|it| it.annotations().get(annotations::SERVICE_UID).cloned());
            into.set(&change.key.name, uid);
        });
        Self { rules, client, objects, services, machines, index, waiting: Mutex::default() }
    }

    fn identity(&self) -> Identity {
        let kubernetes = self.services.get(&ObjectKey::new("default", "kubernetes"));
        Identity {
            cluster: self.rules.cluster.clone(),
            cluster_uid: kubernetes.and_then(|service| service.uid()),
            management_network: self.rules.management_network.clone(),
        }
    }

    /// Where the object of the Service is, or will be.
    fn key(&self, service: &Service) -> ObjectKey {
        let uid = service.uid().unwrap_or_default();
        let name = self.index.balancer_of(&uid).unwrap_or_else(|| {
            let namespace = service.namespace().unwrap_or_default();
            self.rules.cluster.balancer_name(&namespace, &service.name_any(), &uid)
        });
        ObjectKey::new(&self.rules.namespace, name)
    }

    /// Looks, and hands what was seen to `then`.
    fn sight<T>(
        &self,
        service: &Service,
        nodes: &[Arc<Node>],
        then: impl FnOnce(&ObjectKey, Option<&RawObject<LoadBalancer>>, View, Option<Wanted<'_>>) -> T,
    ) -> T {
        let key = self.key(service);
        let object = self.objects.get(&key);
        let malformed = || self.objects.malformed().into_iter().find(|(other, _)| *other == key);
        let unreadable = if object.is_none() { malformed() } else { None };
        let why =
            unreadable.map(|(key, why)| format!("LoadBalancer {key} in Harvester cannot be read: {why}"));
        let (identity, wishes) = (self.identity(), Wishes::of(service));
        let found = match (&object, &why) {
            (Some(object), _) => Found::Present(object),
            (None, Some(why)) => Found::Unreadable(why),
            (None, None) => Found::Absent,
        };
        let wanted =
            asks_for_balancer(service, self.class()) && service.metadata.deletion_timestamp.is_none();
        let (view, should_be) = judge(&Sight {
            identity: &identity,
            policy: self.rules.policy,
            allowed: self.rules.allowed,
            service,
            wishes: &wishes,
            balancer: found,
            backends: if wanted { self.machines.backends(nodes) } else { None },
            waited: self.waited(service, object.as_deref()),
        });
        then(&key, object.as_deref(), view, should_be)
    }

    fn waited(&self, service: &Service, object: Option<&RawObject<LoadBalancer>>) -> Duration {
        let (uid, now) = (service.uid().unwrap_or_default(), Instant::now());
        let mut waiting = self.waiting.lock().expect("no panic while counting");
        match object.and_then(|object| phase(object)) {
            None => {
                waiting.remove(&uid);
                Duration::ZERO
            }
            Some(phase) => {
                let entry = waiting.entry(uid).or_insert((phase, now));
                if entry.0 != phase {
                    *entry = (phase, now);
                }
                now.duration_since(entry.1)
            }
        }
    }

    fn api(&self) -> Api<RawObject<LoadBalancer>> {
        Api::namespaced(self.client.clone(), &self.rules.namespace)
    }

    async fn create(&self, key: &ObjectKey, json: Value) -> Result<(), Failure> {
        let body = RawObject::from_json(json).expect("made from the type's own fields");
        match self.api().create(&PostParams::default(), &body).await {
            Ok(made) => {
                self.objects.wrote(made);
                Ok(())
            }
            Err(kube::Error::Api(status)) if status.is_already_exists() || status.is_conflict() => {
                Err(Failure::Outdated)
            }
            Err(error) => Err(refused("create", key, &error)),
        }
    }

    async fn update(&self, key: &ObjectKey, json: &Value) -> Result<(), Failure> {
        match replace::<LoadBalancer>(&self.client, json).await {
            Ok(written) => {
                let unchanged = written.metadata.resource_version.as_deref()
                    == json["metadata"]["resourceVersion"].as_str();
                self.objects.wrote(written);
                if unchanged {
                    let why = "admission there took the change back";
                    return Err(Failure::Refused(format!("update LoadBalancer {key} in Harvester: {why}")));
                }
                Ok(())
            }
            Err(kube::Error::Api(status)) if status.is_conflict() || status.is_not_found() => {
                Err(Failure::Outdated)
            }
            Err(error) => Err(refused("update", key, &error)),
        }
    }
}

impl LoadBalancers for Balancers {
    fn class(&self) -> Option<&str> {
        Some(names::LOAD_BALANCER_CLASS)
    }

    fn view(&self, service: &Service, nodes: &[Arc<Node>]) -> View {
        self.sight(service, nodes, |_, _, view, _| view)
    }

    async fn ensure(&self, service: &Service, nodes: &[Arc<Node>]) -> Result<(), Failure> {
        enum Write {
            Create(Value),
            Update(Value),
        }
        let (key, write) = self.sight(service, nodes, |key, object, _, wanted| {
            let write = wanted.and_then(|wanted| match object {
                None => Some(Write::Create(wanted.fresh(&key.namespace, &key.name))),
                Some(object) => object.edited(|json| wanted.apply(json)).map(Write::Update),
            });
            (key.clone(), write)
        });
        match write {
            Some(Write::Create(json)) => self.create(&key, json).await,
            Some(Write::Update(json)) => self.update(&key, &json).await,
            None => Ok(()),
        }
    }

    async fn delete(&self, service: &Service) -> Result<(), Failure> {
        let key = self.key(service);
        match self.api().delete(&key.name, &DeleteParams::default()).await {
            Ok(answer) => match answer.left().filter(|object| object.metadata.deletion_timestamp.is_some()) {
                Some(leaving) => {
                    self.objects.wrote(leaving);
                }
                None => self.forget(&key),
            },
            Err(kube::Error::Api(status)) if status.is_not_found() => self.forget(&key),
            Err(kube::Error::Api(status)) if status.is_conflict() => return Err(Failure::Outdated),
            Err(error) => return Err(refused("delete", &key, &error)),
        }
        self.waiting.lock().expect("no panic while counting").remove(&service.uid().unwrap_or_default());
        Ok(())
    }

    fn subscribe(&self, wake: Wake) {
        let woken = wake.clone();
        self.objects.on_change(move |change| {
            for service in services_of(change) {
                woken(Whom::One(service));
            }
        });
        self.machines.on_change(Arc::new(move || wake(Whom::All)));
    }
}

impl Balancers {
    fn forget(&self, key: &ObjectKey) {
        if let Some(uid) = self.objects.get(key).and_then(|object| object.uid()) {
            self.objects.gone(key, &uid);
        }
    }
}

/// The Service that an object is for, by its labels, and the one that it was for before: whoever took the labels away
/// wakes that Service, too, and it puts them back.
fn services_of(change: &Change<RawObject<LoadBalancer>>) -> impl Iterator<Item = ObjectKey> + use<> {
    let service = |object: &Arc<RawObject<LoadBalancer>>| {
        let label = |key: &str| object.labels().get(key).cloned();
        Some(ObjectKey::new(label(labels::SERVICE_NAMESPACE)?, label(labels::SERVICE_NAME)?))
    };
    let [new, old] = [&change.new, &change.old].map(|version| version.as_ref().and_then(service));
    let former = old.filter(|old| new.as_ref() != Some(old));
    new.into_iter().chain(former)
}

fn refused(verb: &str, key: &ObjectKey, error: &kube::Error) -> Failure {
    Failure::Refused(format!("{verb} LoadBalancer {key} in Harvester: {}", error_message(error)))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

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
    fn a_change_wakes_the_services_that_it_is_about(
        #[case] old: Option<Option<&str>>,
        #[case] new: Option<Option<&str>>,
        #[case] services: &[&str],
    ) {
        let key = ObjectKey::new("team-a", "blue");
        let change = Change { key, old: old.map(object), new: new.map(object) };
        assert_eq!(services_of(&change).map(|key| key.to_string()).collect::<Vec<_>>(), services);
    }
}
