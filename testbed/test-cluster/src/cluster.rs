//! One of the two clusters, as a test uses it: clients as its users, objects as the test itself, and what was asked.

use std::collections::BTreeSet;
use std::fmt::{self, Debug};
use std::sync::{Mutex, PoisonError};

use futures::future::join_all;
use http::header::ACCEPT;
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams, TypeMeta};
use kube::discovery::ApiResource;
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sim_apiserver::ApiServer;

use crate::manifests;
use crate::real;
use crate::request::{Class, Request};
use crate::traffic::{self, Item, Items, Owner, Traffic};
use crate::user::{GuestCluster, Side, User};

/// A Kubernetes cluster of a test: the guest's or Harvester's, simulated or real.
///
/// The helpers act as [`User::Driver`], and panic with the server's words where it refuses: a test that is about a
/// refusal uses [`Cluster::client`].
///
/// Keys of objects are `namespace/name`, or `name` for kinds without namespace.
pub struct Cluster {
    side: Side,
    guest: GuestCluster,
    backend: Backend,
    heard: Mutex<Heard>,
    driver: Client,
    /// Of the clients that the test hands out, on the real servers.
    traffic: Traffic,
}

/// Kinds whose objects our parts give owners, beside those that they watch.
const COLLECTED: [&str; 2] = ["/api/v1/services", "/apis/discovery.k8s.io/v1/endpointslices"];

/// What was asked by everybody but the test.
#[derive(Default)]
struct Heard {
    requests: Vec<Request>,
    /// Those that are no leader election.
    activity: usize,
}

#[derive(Debug)]
pub(crate) enum Backend {
    Simulated { server: ApiServer, heard: Mutex<u64> },
    Real { server: real::Server, log: Mutex<real::AuditLog> },
}

#[derive(Deserialize)]
struct List<K> {
    items: Vec<K>,
}

impl Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster")
            .field("side", &self.side)
            .field("backend", &self.backend)
            .finish_non_exhaustive()
    }
}

impl Cluster {
    pub(crate) fn new(side: Side, guest: GuestCluster, backend: Backend) -> Self {
        let account = User::Driver.account(side, &guest);
        let driver = match &backend {
            Backend::Simulated { server, .. } => server.client(account),
            Backend::Real { server, .. } => {
                server.client(&account.name).expect("a server that runs has clients")
            }
        };
        Self { side, guest, backend, heard: Mutex::default(), driver, traffic: Traffic::default() }
    }

    /// Which of the two it is.
    #[must_use]
    pub fn side(&self) -> Side {
        self.side
    }

    /// A client as `user`.
    ///
    /// # Panics
    /// Where the real server's address cannot be used.
    #[must_use]
    pub fn client(&self, user: User) -> Client {
        let account = user.account(self.side, &self.guest);
        match &self.backend {
            Backend::Simulated { server, .. } => server.client(account),
            Backend::Real { server, .. } => {
                self.traffic.observe(server.client(&account.name).expect("a server that runs has clients"))
            }
        }
    }

    /// The simulated server, for faults and other things that only it can do.
    #[must_use]
    pub fn simulated(&self) -> Option<&ApiServer> {
        match &self.backend {
            Backend::Simulated { server, .. } => Some(server),
            Backend::Real { .. } => None,
        }
    }

    /// The real server, for its kubeconfigs.
    #[must_use]
    pub fn real(&self) -> Option<&real::Server> {
        match &self.backend {
            Backend::Simulated { .. } => None,
            Backend::Real { server, .. } => Some(server),
        }
    }

    /// Creates an object and returns what the server made of it.
    pub async fn create<K>(&self, object: &K) -> K
    where
        K: Resource<DynamicType = ()> + Serialize + DeserializeOwned + Clone + Debug,
    {
        let api = self.typed::<K>(object.meta().namespace.as_deref());
        let object: DynamicObject = convert(object);
        let created = api.create(&PostParams::default(), &object).await;
        convert(&created.unwrap_or_else(|error| panic!("create {object:?}: {error}")))
    }

    /// Creates the objects of a YAML text, or merges them into those that are there, like `kubectl apply`. Objects
    /// without namespace go to `default`. Kinds are those of Kubernetes and of this cluster's [`manifests::kinds`].
    pub async fn apply(&self, yaml: &str) {
        for document in manifests::documents(yaml).unwrap_or_else(|error| panic!("{error}\n{yaml}")) {
            self.apply_object(document).await;
        }
    }

    pub(crate) async fn apply_object(&self, document: Value) {
        let object: DynamicObject = convert(&document);
        let types = object.types.as_ref().expect("a manifest has apiVersion and kind");
        let (resource, namespaced) = manifests::resource(self.side, types);
        let namespace = object.metadata.namespace.as_deref().unwrap_or("default");
        let api = self.dynamic(&resource, namespaced.then_some(namespace));
        // create first would not do: a change of an object need not be a whole object
        let known = match object.metadata.name.as_deref() {
            Some(name) => api.get_metadata_opt(name).await.map(|found| found.map(|_| name)),
            None => Ok(None),
        };
        let applied = match known {
            Ok(Some(name)) => api.patch(name, &PatchParams::default(), &Patch::Merge(&document)).await,
            Ok(None) => api.create(&PostParams::default(), &object).await,
            Err(error) => Err(error),
        };
        if let Err(error) = applied {
            panic!("apply {document}: {error}");
        }
    }

    /// The object of this key, if there is one.
    pub async fn get<K>(&self, key: &str) -> Option<K>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned,
    {
        let (namespace, name) = split(key);
        let object = self.typed::<K>(namespace).get_opt(name).await;
        object
            .unwrap_or_else(|error| panic!("get {} {key}: {error}", K::kind(&())))
            .map(|object| convert(&object))
    }

    /// All objects of a kind, in all namespaces, by namespace and name.
    pub async fn list<K>(&self) -> Vec<K>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned,
    {
        // straight from the text: tests that look often do little else
        let request = kube::core::Request::new(K::url_path(&(), None)).list(&ListParams::default());
        let request = request.expect("a kind has a path");
        let list = self.driver.request::<List<K>>(request).await;
        list.unwrap_or_else(|error| panic!("list {}: {error}", K::plural(&()))).items
    }

    /// Merges `patch` into the object of this key.
    pub async fn patch<K>(&self, key: &str, patch: Value) -> K
    where
        K: Resource<DynamicType = ()> + DeserializeOwned,
    {
        let (namespace, name) = split(key);
        let api = self.typed::<K>(namespace);
        let patched = api.patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await;
        convert(&patched.unwrap_or_else(|error| panic!("patch {} {key} with {patch}: {error}", K::kind(&()))))
    }

    /// Merges `patch` into the status subresource of the object of this key.
    pub async fn patch_status<K>(&self, key: &str, patch: Value) -> K
    where
        K: Resource<DynamicType = ()> + DeserializeOwned,
    {
        let (namespace, name) = split(key);
        let api = self.typed::<K>(namespace);
        let patched = api.patch_status(name, &PatchParams::default(), &Patch::Merge(&patch)).await;
        convert(&patched.unwrap_or_else(|error| panic!("patch status of {} {key}: {error}", K::kind(&()))))
    }

    /// Deletes the object of this key; finalizers may keep it for a while. One that is not there is no failure.
    pub async fn delete<K>(&self, key: &str)
    where
        K: Resource<DynamicType = ()> + DeserializeOwned,
    {
        let (namespace, name) = split(key);
        match self.typed::<K>(namespace).delete(name, &DeleteParams::default()).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.is_not_found() => {}
            Err(error) => panic!("delete {} {key}: {error}", K::kind(&())),
        }
    }

    /// What was asked of this cluster since the test began or [`Cluster::forget_requests`], by everybody but the test,
    /// oldest first.
    #[must_use]
    pub fn requests(&self) -> Vec<Request> {
        self.listen();
        lock(&self.heard).requests.clone()
    }

    /// Those of [`Cluster::requests`] that `user` asked and that are about the work itself: no election, no Events, no
    /// watches, no discovery.
    #[must_use]
    pub fn work_of(&self, user: User) -> Vec<Request> {
        let name = user.account(self.side, &self.guest).name.clone();
        let mut requests = self.requests();
        requests.retain(|request| request.user == name && request.class() == Class::Work);
        requests
    }

    /// Counts from now on.
    pub fn forget_requests(&self) {
        self.listen();
        *lock(&self.heard) = Heard::default();
    }

    /// Requests so far that show that something is going on.
    pub(crate) fn activity(&self) -> usize {
        self.listen();
        lock(&self.heard).activity
    }

    pub(crate) fn driver(&self) -> &Client {
        &self.driver
    }

    pub(crate) fn traffic(&self) -> &Traffic {
        &self.traffic
    }

    /// Whether every watch of the clients that the test handed out has delivered what is there now, and no object waits
    /// for kube-controller-manager to collect it.
    pub(crate) async fn is_seen_as_it_is(&self) -> bool {
        let watched = self.traffic.watched();
        let lists = join_all(watched.iter().map(|question| self.versions(question.list()))).await;
        let collected = join_all(COLLECTED.iter().map(|path| self.versions((*path).to_owned()))).await;
        let mut all: Vec<Item> = Vec::new();
        for (question, items) in watched.iter().zip(lists) {
            // a server that does not answer is not at rest
            let Some(items) = items else { return false };
            if !self.traffic.have_seen(question, &traffic::view(&items)) {
                return false;
            }
            all.extend(items);
        }
        all.extend(collected.into_iter().flatten().flatten());
        !self.garbage_among(&all).await
    }

    async fn versions(&self, path: String) -> Option<Vec<Item>> {
        let list = http::Request::get(path)
            .header(ACCEPT, "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1");
        let answer = self.driver.request::<Items>(list.body(vec![]).expect("a watched path is a URI")).await;
        answer.ok().map(|list| list.items.unwrap_or_default())
    }

    /// Whether an object waits for its dependents, or its owner is gone.
    async fn garbage_among(&self, items: &[Item]) -> bool {
        let ours = |finalizer: &String| finalizer == "foregroundDeletion" || finalizer == "orphan";
        if items.iter().any(|item| item.metadata.finalizers.iter().any(ours)) {
            return true;
        }
        let known: BTreeSet<&str> = items.iter().map(|item| item.metadata.uid.as_str()).collect();
        let owners: BTreeSet<(&Owner, Option<&str>)> = items
            .iter()
            .flat_map(|item| {
                item.metadata.owner_references.iter().map(|one| (one, item.metadata.namespace.as_deref()))
            })
            .filter(|(owner, _)| !known.contains(owner.uid.as_str()))
            .collect();
        let there = join_all(owners.iter().map(|(owner, namespace)| self.is_there(owner, *namespace))).await;
        there.contains(&false)
    }

    async fn is_there(&self, owner: &Owner, namespace: Option<&str>) -> bool {
        let types = TypeMeta { api_version: owner.api_version.clone(), kind: owner.kind.clone() };
        let (resource, namespaced) = manifests::resource(self.side, &types);
        let found =
            self.dynamic(&resource, namespace.filter(|_| namespaced)).get_metadata_opt(&owner.name).await;
        match found {
            Ok(found) => found.is_some_and(|object| object.metadata.uid.as_deref() == Some(&owner.uid)),
            // what cannot be asked for cannot be waited for
            Err(_) => true,
        }
    }

    fn listen(&self) {
        let records = match &self.backend {
            Backend::Simulated { server, heard } => {
                let mut heard = lock(heard);
                let new = server.audit().since(*heard);
                *heard += new.len() as u64;
                new
            }
            Backend::Real { log, .. } => lock(log).new_records(),
        };
        let mut new: Vec<Request> = records.into_iter().map(Request::from).collect();
        new.retain(|request| !request.is_drivers());
        let activity =
            new.iter().filter(|request| !matches!(request.class(), Class::Lease | Class::Rights)).count();
        let mut heard = lock(&self.heard);
        heard.requests.append(&mut new);
        heard.activity += activity;
    }

    fn typed<K: Resource<DynamicType = ()>>(&self, namespace: Option<&str>) -> Api<DynamicObject> {
        self.dynamic(&ApiResource::erase::<K>(&()), namespace)
    }

    fn dynamic(&self, resource: &ApiResource, namespace: Option<&str>) -> Api<DynamicObject> {
        match namespace {
            Some(namespace) => Api::namespaced_with(self.driver.clone(), namespace, resource),
            None => Api::all_with(self.driver.clone(), resource),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn split(key: &str) -> (Option<&str>, &str) {
    key.split_once('/').map_or((None, key), |(namespace, name)| (Some(namespace), name))
}

fn convert<T: DeserializeOwned>(object: &impl Serialize) -> T {
    let json = serde_json::to_value(object).expect("an object of Kubernetes is JSON");
    T::deserialize(&json).unwrap_or_else(|error| panic!("{error} in {json}"))
}
