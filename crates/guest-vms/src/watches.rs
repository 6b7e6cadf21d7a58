//! The objects of one kind that concern the guest cluster: one watch of those with the cluster's label, and one by name
//! for each that a Node may be and that has no such label.
//!
//! An object whose label goes leaves the first watch as if it were deleted. A watch by name sees it whatever its labels
//! are, so only such a watch, once its list is complete, tells that there is no object of that name
//! ([`Watches::is_settled`]).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
};

use controller_kit::{Cache, Change, ObjectKey, ServerAnswers, Watched};
use kube::{Api, Client, Resource, ResourceExt, core::NamespaceResourceScope, runtime::watcher};
use program::{Subscribers, TaskGroup};
use tokio::sync::watch;

/// The watches of one kind. Cheap to clone.
pub(crate) struct Watches<K>(Arc<Shared<K>>);

impl<K> Clone for Watches<K> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

struct Shared<K> {
    tasks: TaskGroup,
    api: Api<K>,
    namespace: String,
    trim: Arc<dyn Fn(&mut K) + Send + Sync>,
    /// Without a label to watch by it holds nothing.
    labelled: Cache<K>,
    has_label: bool,
    /// The list holds every object of the namespace: a name that is not in it is free.
    is_whole: bool,
    named: Mutex<BTreeMap<String, Named<K>>>,
    changes: Subscribers<Change<K>>,
    deletions: Subscribers<K>,
    /// A list by name is complete.
    settled: Subscribers,
    error: watch::Sender<Option<String>>,
}

struct Named<K> {
    cache: Cache<K>,
    /// Everybody was told what is in the first list, and is told what is in a later one before that is complete.
    is_settled: Arc<AtomicBool>,
    tasks: TaskGroup,
}

impl<K> Clone for Named<K> {
    fn clone(&self) -> Self {
        Self { cache: self.cache.clone(), is_settled: self.is_settled.clone(), tasks: self.tasks.clone() }
    }
}

impl<K: Watched + Resource<Scope = NamespaceResourceScope>> Watches<K> {
    /// Watches the objects that `selector` selects, where there is one.
    pub(crate) fn start(
        tasks: &TaskGroup,
        client: &Client,
        namespace: &str,
        selector: Option<&str>,
        trim: impl Fn(&mut K) + Send + Sync + 'static,
    ) -> Self {
        let trim: Arc<dyn Fn(&mut K) + Send + Sync> = Arc::new(trim);
        let own = trim.clone();
        let api = Api::namespaced(client.clone(), namespace);
        let labelled = match selector {
            Some(selector) => {
                let config = watcher::Config::default().labels(selector);
                Cache::start_trimmed(tasks, api.clone(), config, move |object| own(object))
            }
            None => Cache::empty(),
        };
        let this = Self(Arc::new(Shared {
            tasks: tasks.clone(),
            api,
            namespace: namespace.to_owned(),
            trim,
            labelled: labelled.clone(),
            has_label: selector.is_some(),
            is_whole: false,
            named: Mutex::default(),
            changes: Subscribers::default(),
            deletions: Subscribers::default(),
            settled: Subscribers::default(),
            error: watch::Sender::new(None),
        }));
        this.forward(tasks, &labelled);
        this
    }

    /// All objects of the namespace, from one list that nobody follows. `client` is never asked.
    pub(crate) fn of(client: &Client, namespace: &str, all: Cache<K>) -> Self {
        Self(Arc::new(Shared {
            tasks: TaskGroup::new(),
            api: Api::namespaced(client.clone(), namespace),
            namespace: namespace.to_owned(),
            trim: Arc::new(|_| ()),
            labelled: all,
            has_label: true,
            is_whole: true,
            named: Mutex::default(),
            changes: Subscribers::default(),
            deletions: Subscribers::default(),
            settled: Subscribers::default(),
            error: watch::Sender::new(None),
        }))
    }

    /// Watches the objects of these names that lack the label, and no others by name any more.
    pub(crate) fn follow(&self, names: &BTreeSet<String>) {
        let wanted = |name: &String| names.contains(name) && self.of_label(name).is_none();
        let mut named = self.named();
        let dropped: Vec<_> = named.extract_if(.., |name, _| !wanted(name)).collect();
        let missing = names.iter().filter(|name| wanted(name) && !named.contains_key(*name));
        let begun: Vec<_> = missing.map(|name| (name.clone(), self.begin(name))).collect();
        let watches: Vec<_> = begun.iter().map(|(_, watch)| watch.clone()).collect();
        named.extend(begun);
        drop(named);
        for watch in watches {
            // first: a name that is settled before its object is told of would count as free
            self.forward(&watch.tasks, &watch.cache);
            self.settle_when_listed(watch);
        }
        for (name, watch) in dropped {
            watch.tasks.stop.cancel();
            let key = self.key(&name);
            if let Some(old) = watch.cache.get(&key) {
                let new = self.of_label(&name);
                self.0.changes.tell(&Change { key, old: Some(old), new });
            }
        }
        self.note_error();
    }

    fn settle_when_listed(&self, watch: Named<K>) {
        let (this, Named { cache, is_settled, tasks }) = (self.clone(), watch);
        tasks.spawn_until_stop(async move {
            cache.ready().await;
            is_settled.store(true, Ordering::SeqCst);
            this.0.settled.tell(&());
        });
    }

    /// Lists all anew at another server. Until that is complete nothing is ready, and no name without the label is settled.
    pub(crate) fn relist_elsewhere(&self) {
        self.0.labelled.relist_elsewhere();
        let watches: Vec<_> = self.named().values().cloned().collect();
        for watch in watches {
            watch.cache.relist_elsewhere();
            self.settle_when_listed(watch);
        }
    }

    fn begin(&self, name: &str) -> Named<K> {
        // it ends with its Node or with everything, and the end of everything waits for it
        let stop = self.0.tasks.stop.child_token();
        let tasks = TaskGroup { stop, tasks: self.0.tasks.tasks.clone() };
        let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
        let trim = self.0.trim.clone();
        let cache = Cache::start_trimmed(&tasks, self.0.api.clone(), config, move |object| trim(object));
        Named { cache, is_settled: Arc::default(), tasks }
    }

    fn forward(&self, tasks: &TaskGroup, cache: &Cache<K>) {
        // the cache must not keep alive what keeps the cache
        let shared = Arc::downgrade(&self.0);
        let into = shared.clone();
        cache.on_delete(move |object| {
            if let Some(shared) = into.upgrade() {
                shared.deletions.tell(object);
            }
        });
        let into = shared.clone();
        cache.on_change(move |change| {
            if let Some(shared) = into.upgrade() {
                shared.changes.tell(change);
            }
        });
        let mut errors = cache.watch_errors();
        tasks.spawn_until_stop(async move {
            errors.mark_changed();
            while errors.changed().await.is_ok() {
                errors.mark_unchanged();
                let Some(shared) = shared.upgrade() else { return };
                Self(shared).note_error();
            }
        });
    }

    fn note_error(&self) {
        let error = self.0.labelled.watch_error().or_else(|| {
            let named = self.named();
            named.values().find_map(|watch| watch.cache.watch_error())
        });
        // of two watches that fail with the same words each is news
        self.0.error.send_if_modified(|noted| {
            let is_news = error.is_some() || noted.is_some();
            *noted = error;
            is_news
        });
    }

    /// Whether the objects with the label were listed once.
    pub(crate) fn is_ready(&self) -> bool {
        !self.0.has_label || self.0.labelled.is_ready()
    }

    pub(crate) async fn ready(&self) {
        if self.0.has_label {
            self.0.labelled.ready().await;
        }
    }

    /// Whether it is known whether there is an object of this name.
    pub(crate) fn is_settled(&self, name: &str) -> bool {
        let is_listed = |watch: &Named<K>| watch.is_settled.load(Ordering::SeqCst) && watch.cache.is_ready();
        self.of_label(name).is_some()
            || self.0.is_whole && self.is_ready()
            || self.named().get(name).is_some_and(is_listed)
    }

    pub(crate) fn get(&self, name: &str) -> Option<Arc<K>> {
        self.of_label(name).or_else(|| self.named().get(name)?.cache.get(&self.key(name)))
    }

    /// All objects that are watched, in the order of their names.
    pub(crate) fn list(&self) -> Vec<Arc<K>> {
        let named: Vec<_> = self.named().values().flat_map(|watch| watch.cache.list()).collect();
        let all = named.into_iter().chain(self.0.labelled.list());
        let by_name: BTreeMap<_, _> = all.map(|object| (object.name_any(), object)).collect();
        by_name.into_values().collect()
    }

    /// Whether some object cannot be read.
    pub(crate) fn has_malformed(&self) -> bool {
        let is_so = |cache: &Cache<K>| !cache.malformed().is_empty();
        is_so(&self.0.labelled) || self.named().values().any(|watch| is_so(&watch.cache))
    }

    /// Why one of the watches does not work now.
    pub(crate) fn watch_error(&self) -> Option<String> {
        self.0.error.borrow().clone()
    }

    pub(crate) fn watch_errors(&self) -> watch::Receiver<Option<String>> {
        self.0.error.subscribe()
    }

    /// Whether the watch that would tell of this name does not work now.
    pub(crate) fn is_broken(&self, name: &str) -> bool {
        self.0.labelled.watch_error().is_some()
            || self.named().get(name).is_some_and(|watch| watch.cache.watch_error().is_some())
    }

    /// Takes the answer to a read of this name that begins now, for [`Watches::was_read`].
    pub(crate) fn answers(&self, name: &str) -> Option<ServerAnswers<K>> {
        let by_name = self.named().get(name).map(|watch| watch.cache.answers());
        by_name.or_else(|| self.0.has_label.then(|| self.0.labelled.answers()))
    }

    /// An object of this name was read, or was not there. It counts until the watch that would tell of it works.
    pub(crate) fn was_read(&self, name: &str, object: Option<K>, answers: &ServerAnswers<K>) {
        match object {
            Some(object) => drop(answers.wrote(object)),
            None => {
                if let Some(uid) = self.get(name).and_then(|object| object.uid()) {
                    answers.gone(&self.key(name), &uid);
                }
            }
        }
    }

    /// As [`Cache::on_change`]; one object may be told of by two watches.
    pub(crate) fn on_change(&self, subscriber: impl Fn(&Change<K>) + Send + Sync + 'static) {
        let subscriber = Arc::new(subscriber);
        let from_now_on = subscriber.clone();
        self.0.changes.add(move |change| from_now_on(change));
        for object in self.list() {
            subscriber(&Change { key: ObjectKey::of(&*object), old: None, new: Some(object) });
        }
    }

    /// Calls `subscriber` with every object that a watch tells to be deleted, or that lost the label.
    pub(crate) fn on_leave(&self, subscriber: impl Fn(&K) + Send + Sync + 'static) {
        self.0.deletions.add(subscriber);
    }

    /// Calls `subscriber` when a name becomes settled.
    pub(crate) fn on_settled(&self, subscriber: impl Fn() + Send + Sync + 'static) {
        self.0.settled.add(move |()| subscriber());
    }

    fn of_label(&self, name: &str) -> Option<Arc<K>> {
        self.0.labelled.get(&self.key(name))
    }

    fn key(&self, name: &str) -> ObjectKey {
        ObjectKey::new(&self.0.namespace, name)
    }

    fn named(&self) -> MutexGuard<'_, BTreeMap<String, Named<K>>> {
        self.0.named.lock().expect("no panic while watches begin or end")
    }
}
