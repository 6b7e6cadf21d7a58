//! From the caches into the model. Nothing is decided here: a change of an object makes its rows anew.

use std::sync::{Arc, Mutex, MutexGuard, Weak};

use controller_kit::{Cache, Change, ObjectKey, Watched};
use harvester_api::{IPPool, LoadBalancer};
use kube::{Api, Client, runtime::watcher};
use program::{
    TaskGroup,
    capabilities::{Capabilities, Right, Wanted},
};
use serde::Serialize;
use tokio::sync::watch;

use crate::{
    balancer,
    model::{Batch, Model, Row},
    panel::Panel,
    pool,
};

const GROUP: &str = "loadbalancer.harvesterhci.io";
const ONE_NAMESPACE: &str = "a kubeconfig with rights in one namespace needs --namespace=NAMESPACE";

/// What the page is about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    /// The namespace whose LoadBalancer objects are shown; else those of all.
    pub namespace: Option<String>,
    /// How people call the cluster.
    pub cluster: String,
}

/// What pages are told. Clones are the same.
#[derive(Clone)]
pub struct Feed(Arc<Shared>);

struct Shared {
    model: Mutex<Model>,
    /// [`Model::version`].
    version: watch::Sender<u64>,
    capabilities: Capabilities,
    pools: Watch<IPPool>,
    balancers: Watch<LoadBalancer>,
}

/// A watched kind and its panel.
struct Watch<K> {
    cache: Cache<K>,
    rights: Vec<Right>,
    panel: Panel,
}

impl<K: Watched> Watch<K> {
    fn panel(&self, capabilities: &Capabilities) -> Row {
        let missing = self.rights.iter().filter(|right| !capabilities.allows(right));
        let panel = Panel {
            listed: self.cache.is_ready(),
            missing: missing.map(ToString::to_string).collect(),
            error: self.cache.watch_error().map(|why| crate::text::sentence(&why)),
            ..self.panel.clone()
        };
        panel.with_unreadable(&self.cache.malformed()).row()
    }
}

#[derive(Serialize)]
struct ClusterRow<'a> {
    kind: &'static str,
    name: &'a str,
    namespace: Option<&'a str>,
    version: &'static str,
}

impl Feed {
    /// Lists and watches with this client until `tasks` ends. A kind that the client may not watch is tried again by
    /// itself, and its panel says meanwhile which right is missing.
    pub fn start(tasks: &TaskGroup, client: &Client, scope: &Scope) -> Self {
        let rights = |resource| ["list", "watch"].map(|verb| Right::new(verb, GROUP, resource)).to_vec();
        let within = |right: Right| match &scope.namespace {
            Some(namespace) => right.within(namespace),
            None => right,
        };
        let of_pools = rights("ippools");
        let of_balancers: Vec<_> = rights("loadbalancers").into_iter().map(within).collect();
        let balancers: Api<LoadBalancer> = match &scope.namespace {
            Some(namespace) => Api::namespaced(client.clone(), namespace),
            None => Api::all(client.clone()),
        };
        let hint = if scope.namespace.is_none() { ONE_NAMESPACE } else { "" };
        let wanted = Wanted { rights: [of_pools.clone(), of_balancers.clone()].concat(), fields: Vec::new() };
        let config = watcher::Config::default;
        let mut model = Model::default();
        let cluster = ClusterRow {
            kind: "cluster",
            name: &scope.cluster,
            namespace: scope.namespace.as_deref(),
            version: env!("CARGO_PKG_VERSION"),
        };
        model.put("cluster", &crate::json(&cluster));
        let feed = Self(Arc::new(Shared {
            model: Mutex::new(model),
            version: watch::Sender::new(0),
            capabilities: Capabilities::start(tasks, client.clone(), wanted),
            pools: Watch {
                cache: Cache::start_trimmed(tasks, Api::all(client.clone()), config(), pool::trim),
                panel: Panel::new("pools", &of_pools, ""),
                rights: of_pools,
            },
            balancers: Watch {
                cache: Cache::start(tasks, balancers, config()),
                panel: Panel::new("balancers", &of_balancers, hint),
                rights: of_balancers,
            },
        }));
        feed.follow(tasks);
        feed
    }

    fn follow(&self, tasks: &TaskGroup) {
        let shared = &self.0;
        shared
            .pools
            .cache
            .on_change(with(shared, |shared, change: &Change<_>| shared.pool_changed(&change.key)));
        let changed = with(shared, |shared, change: &Change<_>| shared.balancer_changed(&change.key));
        shared.balancers.cache.on_change(changed);
        let panels = with(shared, |shared, ()| shared.panels());
        panels(&());
        shared.capabilities.on_change(move || panels(&()));
        follow_watch(tasks, shared, &shared.pools.cache);
        follow_watch(tasks, shared, &shared.balancers.cache);
    }

    /// The version of the last change, as it changes.
    pub(crate) fn versions(&self) -> watch::Receiver<u64> {
        self.0.version.subscribe()
    }

    /// What a page that knows version `known` is to be told next; see [`Model::since`].
    pub(crate) fn since(&self, known: Option<u64>, most: usize) -> Batch {
        self.0.model().since(known, most)
    }
}

/// Calls `f` as long as the feed is there, which the caches and capabilities that it holds must not keep.
fn with<T, F: Fn(&Shared, &T) + Clone>(shared: &Arc<Shared>, f: F) -> impl Fn(&T) + Clone + use<T, F> {
    let weak: Weak<Shared> = Arc::downgrade(shared);
    move |change| {
        if let Some(shared) = weak.upgrade() {
            f(&shared, change);
        }
    }
}

/// Tells the panel what becomes of the list and of the watch.
fn follow_watch<K: Watched>(tasks: &TaskGroup, shared: &Arc<Shared>, cache: &Cache<K>) {
    let (listed, mut errors) = (cache.clone(), cache.watch_errors());
    let panels = with(shared, |shared, ()| shared.panels());
    let again = panels.clone();
    tasks.spawn_until_stop(async move {
        listed.ready().await;
        panels(&());
    });
    tasks.spawn_until_stop(async move {
        while errors.changed().await.is_ok() {
            again(&());
        }
    });
}

impl Shared {
    fn pool_changed(&self, key: &ObjectKey) {
        self.apply(|model| {
            // looked up while the model is locked: of two changes at once the later one stays
            let rows = self.pools.cache.get(key).map(|pool| pool::rows(&pool)).unwrap_or_default();
            model.replace(&pool::prefix(&key.name), rows);
        });
    }

    fn balancer_changed(&self, key: &ObjectKey) {
        self.apply(|model| match self.balancers.cache.get(key) {
            Some(object) => model.put(&balancer::row_name(key), &balancer::row(&object)),
            None => model.remove(&balancer::row_name(key)),
        });
    }

    fn panels(&self) {
        self.apply(|_| {});
    }

    fn apply(&self, change: impl FnOnce(&mut Model)) {
        let mut model = self.model();
        change(&mut model);
        for (name, json) in [self.pools.panel(&self.capabilities), self.balancers.panel(&self.capabilities)] {
            model.put(&name, &json);
        }
        self.version.send_if_modified(|version| {
            let is_news = *version != model.version();
            *version = model.version();
            is_news
        });
    }

    fn model(&self) -> MutexGuard<'_, Model> {
        self.model.lock().expect("no panic while the model is locked")
    }
}
