//! The newest version known of every object of a kind.
//!
//! A plain watch cache shows the world as it was some milliseconds ago, and a controller that has just written would
//! decide from what it overwrote. Here the answer to our own write counts at once, until the watch has caught up.
//! A subscriber hears of a change once, from the watch or from the answer, whichever comes first.

mod backoff;
mod server_answers;
mod source;
mod store;
mod undecoded;

use std::{
    fmt::Debug,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures::{TryStreamExt, future::BoxFuture};
use kube::{Api, Resource, api::ListParams, runtime::watcher};
use serde::de::DeserializeOwned;
use tokio::{
    sync::{Notify, watch},
    time::{Instant, sleep},
};

use program::{Subscribers, TaskGroup};

use crate::{ObjectKey, error_message, retry_after};
use backoff::WatchBackoff;
pub use server_answers::ServerAnswers;
use source::{Source, undecoded};
use store::Store;
use undecoded::Undecoded;

/// A kind that a [`Cache`] can hold.
pub trait Watched:
    Resource<DynamicType = ()> + DeserializeOwned + Clone + Debug + Send + Sync + 'static
{
}

impl<K> Watched for K where
    K: Resource<DynamicType = ()> + DeserializeOwned + Clone + Debug + Send + Sync + 'static
{
}

/// One object before and after; at least one of the two is there.
#[derive(Debug)]
pub struct Change<K> {
    pub key: ObjectKey,
    pub old: Option<Arc<K>>,
    pub new: Option<Arc<K>>,
}

impl<K> Clone for Change<K> {
    fn clone(&self) -> Self {
        Self { key: self.key.clone(), old: self.old.clone(), new: self.new.clone() }
    }
}

/// Objects in one answer of [`Cache::list_once`].
const PAGE: u32 = 500;

type Trim<K> = Box<dyn Fn(&mut K) + Send + Sync>;

struct Shared<K> {
    known: Mutex<Store<K>>,
    /// Removes the fields that nobody reads.
    trim: Trim<K>,
    subscribers: Subscribers<Change<K>>,
    /// Of [`Cache::on_delete`].
    deletions: Subscribers<K>,
    ready: watch::Sender<bool>,
    /// When the watch told something last, and the newest version that it has passed.
    heard: watch::Sender<Option<(Instant, u64)>>,
    /// Rung by [`Cache::relist`], where a watch follows.
    relist: Option<Arc<Notify>>,
    /// The watch that begins next is at another server.
    moves_elsewhere: AtomicBool,
    /// Why the watch does not work.
    watch_error: watch::Sender<Option<String>>,
}

/// A watched kind, or a selection of it. Cheap to clone; all clones are one cache.
pub struct Cache<K>(Arc<Shared<K>>);

impl<K> Clone for Cache<K> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<K: Watched> Cache<K> {
    /// Lists and watches in the background until `tasks` ends. An object that cannot be read hides no other
    /// ([`Cache::malformed`]). For a [`PartialObjectMeta`](kube::core::PartialObjectMeta) the server sends the metadata alone.
    pub fn start(tasks: &TaskGroup, api: Api<K>, config: watcher::Config) -> Self {
        Self::start_trimmed(tasks, api, config, |_| ())
    }

    /// Like [`Cache::start`]; `trim` removes the fields that nobody reads before an object is kept. `managedFields`
    /// always go.
    pub fn start_trimmed(
        tasks: &TaskGroup,
        api: Api<K>,
        config: watcher::Config,
        trim: impl Fn(&mut K) + Send + Sync + 'static,
    ) -> Self {
        Self::start_after(std::future::ready(()), tasks, api, config, trim)
    }

    /// Like [`Cache::start_trimmed`]; nothing is asked for before `others` ends.
    pub fn start_after(
        others: impl Future<Output = ()> + Send + 'static,
        tasks: &TaskGroup,
        api: Api<K>,
        config: watcher::Config,
        trim: impl Fn(&mut K) + Send + Sync + 'static,
    ) -> Self {
        let relist = Arc::<Notify>::default();
        let cache = Self::keeping(Box::new(trim), Some(relist.clone()));
        let (into, anew) = (cache.clone(), cache.clone());
        let on_result = move |heard| match heard {
            Ok(Some(event)) => into.on_event(event),
            Ok(None) => into.set_watch_error(None),
            Err(why) => into.set_watch_error(Some(why)),
        };
        let on_anew = Box::new(move || anew.begins_anew());
        let (others, source) = (Box::pin(others), Source::of(api));
        tasks.spawn_until_stop(follow(others, source, config, relist, Box::new(on_result), on_anew));
        cache
    }

    /// A cache that hears only of our own writes: for tests of what reads caches, and in place of a list that a program
    /// that looks once cannot have.
    pub fn empty() -> Self {
        Self::keeping(Box::new(|_| ()), None)
    }

    /// A complete cache of one list that nobody follows, for a program that looks once.
    ///
    /// # Errors
    /// The server does not answer with the list.
    pub async fn list_once(api: Api<K>) -> kube::Result<Self> {
        let (cache, api) = (Self::empty(), undecoded::<K, false>(api));
        let mut page = ListParams::default().limit(PAGE);
        cache.on_event(watcher::Event::Init);
        loop {
            let list = api.list(&page).await?;
            for object in list.items {
                cache.on_event(watcher::Event::InitApply(object));
            }
            match list.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => page = page.continue_token(&token),
                None => break,
            }
        }
        cache.on_event(watcher::Event::InitDone);
        Ok(cache)
    }

    /// A complete cache of these objects, as [`Cache::list_once`] makes one.
    pub fn of(objects: impl IntoIterator<Item = K>) -> Self {
        let cache = Self::empty();
        cache.on_event(watcher::Event::Init);
        for object in objects {
            let object = cache.trimmed(object);
            cache.known().relisted(Ok(object));
        }
        cache.on_event(watcher::Event::InitDone);
        cache
    }

    fn keeping(trim: Trim<K>, relist: Option<Arc<Notify>>) -> Self {
        Self(Arc::new(Shared {
            known: Mutex::new(Store::default()),
            trim,
            subscribers: Subscribers::default(),
            deletions: Subscribers::default(),
            ready: watch::Sender::new(false),
            heard: watch::Sender::new(None),
            relist,
            moves_elsewhere: AtomicBool::new(false),
            watch_error: watch::Sender::new(None),
        }))
    }

    /// Waits until the first list, or that of the latest [`Cache::relist`], is complete. Decisions about absence are wrong before that.
    pub async fn ready(&self) {
        self.0.ready.subscribe().wait_for(|ready| *ready).await.expect("the cache holds the sender");
    }

    /// Whether that list is complete, for those who cannot wait.
    pub fn is_ready(&self) -> bool {
        *self.0.ready.borrow()
    }

    /// For how long the watch has told nothing. One whose connection a proxy holds has no error, and what others did
    /// meanwhile is not known here.
    pub fn silent_for(&self) -> Duration {
        let heard = *self.0.heard.borrow();
        heard.map_or(Duration::MAX, |(at, _)| at.elapsed())
    }

    /// Waits until the watch itself has delivered this version of an object, or a later one. The answer to our own write does
    /// not count.
    pub async fn wait_until_watched(&self, version: u64) {
        let mut heard = self.0.heard.subscribe();
        let has_passed = |heard: &Option<(Instant, u64)>| heard.is_some_and(|(_, passed)| passed >= version);
        heard.wait_for(has_passed).await.expect("the cache holds the sender");
    }

    /// Lists and watches anew, for a watch that is seen to be stale; one that is broken waits no longer. Until the list has
    /// come the cache is not ready, and shows what it knew. Nothing happens where no watch follows.
    pub fn relist(&self) {
        let Some(relist) = &self.0.relist else { return };
        self.0.ready.send_replace(false);
        relist.notify_one();
    }

    /// [`Cache::relist`] where another server answers by now: its objects replace those of the former one, and versions of the
    /// two are not compared. Who writes to a cache that moves has [`Cache::answers`].
    pub fn relist_elsewhere(&self) {
        self.known().another_answers();
        self.0.moves_elsewhere.store(true, Ordering::SeqCst);
        self.relist();
    }

    /// What the former watch told last may have come after [`Cache::relist`].
    fn begins_anew(&self) {
        self.0.ready.send_replace(false);
        if self.0.moves_elsewhere.swap(false, Ordering::SeqCst) {
            self.known().moves_elsewhere();
        }
    }

    /// Why the watch does not work now, in the server's words where there are some; nothing while it works.
    pub fn watch_error(&self) -> Option<String> {
        self.0.watch_error.borrow().clone()
    }

    /// [`Cache::watch_error`] as it changes.
    pub fn watch_errors(&self) -> watch::Receiver<Option<String>> {
        self.0.watch_error.subscribe()
    }

    /// The newest version known, or nothing when there is no such object.
    pub fn get(&self, key: &ObjectKey) -> Option<Arc<K>> {
        self.known().get(key)
    }

    /// All objects, in the order of their keys.
    pub fn list(&self) -> Vec<Arc<K>> {
        self.known().list()
    }

    /// Those of one namespace. Those of others cost nothing.
    pub fn list_in(&self, namespace: &str) -> Vec<Arc<K>> {
        self.known().list_in(namespace)
    }

    /// Objects that are there but cannot be read as `K`, with the reason. Absence from [`Cache::get`] proves
    /// nothing for these.
    pub fn malformed(&self) -> Vec<(ObjectKey, String)> {
        self.known().malformed()
    }

    /// The answer of the server to a write of ours: from now on this version is known, trimmed like any other.
    pub fn wrote(&self, object: K) -> Arc<K> {
        self.answers().wrote(object)
    }

    /// Takes the answers to requests that are sent after this call. Once another server answers
    /// ([`Cache::relist_elsewhere`]) they change nothing here.
    pub fn answers(&self) -> ServerAnswers<K> {
        ServerAnswers::of(self)
    }

    /// What a read returned past a watch that is behind. A list that is under way may be newer, and slow: until it is complete
    /// the object is there.
    pub fn saw(&self, object: K) {
        let object = self.trimmed(object);
        let change = self.known().saw(object);
        self.tell(change);
    }

    /// The server said that the object with this key and UID is gone.
    pub fn gone(&self, key: &ObjectKey, uid: &str) {
        self.answers().gone(key, uid);
    }

    /// Calls `subscriber` for every change from now on, and for every object that is already there. It is called while
    /// nothing is locked, must be quick, and should look the object up again rather than trust the order of calls.
    pub fn on_change(&self, subscriber: impl Fn(&Change<K>) + Send + Sync + 'static) {
        let subscriber = Arc::new(subscriber);
        let from_now_on = subscriber.clone();
        self.0.subscribers.add(move |change| from_now_on(change));
        for object in self.list() {
            subscriber(&Change { key: ObjectKey::of(&*object), old: None, new: Some(object) });
        }
    }

    /// Calls `subscriber` with every object whose deletion the watch tells from now on, before [`Cache::on_change`] tells
    /// that it is gone. A list that does not name an object tells of no deletion: the list may be of another server.
    pub fn on_delete(&self, subscriber: impl Fn(&K) + Send + Sync + 'static) {
        self.0.deletions.add(subscriber);
    }

    fn trimmed(&self, mut object: K) -> Arc<K> {
        object.meta_mut().managed_fields = None;
        (self.0.trim)(&mut object);
        Arc::new(object)
    }

    fn on_event(&self, event: watcher::Event<Undecoded>) {
        let read = |undecoded: Undecoded| undecoded.read().map(|object| self.trimmed(object));
        let is_news = !matches!(event, watcher::Event::Init | watcher::Event::InitApply(_));
        if is_news {
            self.set_watch_error(None);
        }
        let change = match event {
            watcher::Event::Init => {
                self.known().relist_begins();
                None
            }
            watcher::Event::InitApply(object) => self.known().relisted(read(object)),
            // most events echo a version that the answer to our own write brought already
            watcher::Event::Apply(object) if self.known().skip_if_known(&object.key(), object.meta()) => None,
            watcher::Event::Apply(object) => self.known().applied(read(object)),
            watcher::Event::Delete(object) => {
                let object = read(object);
                if let Ok(object) = &object {
                    self.0.deletions.tell(object);
                }
                self.known().deleted(object)
            }
            watcher::Event::InitDone => {
                let gone = self.known().relist_ends();
                self.tell(gone);
                // a list of the former server may end while the watch of the next one has not begun
                self.0.ready.send_modify(|ready| *ready = !self.0.moves_elsewhere.load(Ordering::SeqCst));
                None
            }
        };
        if is_news {
            let passed = self.known().passed();
            self.0.heard.send_replace(Some((Instant::now(), passed)));
        }
        self.tell(change);
    }

    fn tell(&self, changes: impl IntoIterator<Item = Change<K>>) {
        for change in changes {
            self.0.subscribers.tell(&change);
        }
    }

    fn set_watch_error(&self, watch_error: Option<String>) {
        self.0.watch_error.send_if_modified(|noted| {
            let is_new = *noted != watch_error;
            *noted = watch_error;
            is_new
        });
    }

    fn known(&self) -> MutexGuard<'_, Store<K>> {
        self.0.known.lock().expect("no panic while the cache is locked")
    }
}

/// Why a watch broke, in the server's words where there are some.
fn reason(error: &watcher::Error) -> String {
    use watcher::Error::{InitialListFailed, WatchError, WatchFailed, WatchStartFailed};
    match error {
        InitialListFailed(source) | WatchStartFailed(source) | WatchFailed(source) => error_message(source),
        WatchError(status) if !status.message.is_empty() => status.message.clone(),
        other => error_message(other),
    }
}

/// The wait that a busy server asked for.
fn asked_wait(error: &watcher::Error) -> Option<Duration> {
    match error {
        watcher::Error::WatchError(status) => retry_after::of_status(status),
        other => retry_after(other),
    }
}

/// Something from the watch, nothing where it works again and nothing changes, or why nothing comes from it.
type WatchResult = Result<Option<watcher::Event<Undecoded>>, String>;

/// A watch that broke works again when no error came for so long: longer than a connection takes to fail.
const WORKS_AFTER: Duration = Duration::from_secs(45);

async fn follow(
    others: BoxFuture<'static, ()>,
    source: Source,
    config: watcher::Config,
    relist: Arc<Notify>,
    on_result: Box<dyn Fn(WatchResult) + Send>,
    on_anew: Box<dyn Fn() + Send + Sync>,
) {
    others.await;
    let kind = source.path().to_owned();
    let begin = || source.watch(config.clone());
    let begin_anew = || {
        tracing::info!(kind, "listing and watching anew");
        on_anew();
        begin()
    };
    // not the watcher's own back-off: that one begins anew with every list that it tries
    let (mut events, mut backoff) = (begin(), WatchBackoff::default());
    let mut is_broken = false;
    loop {
        let next = tokio::select! {
            next = events.try_next() => next,
            () = sleep(WORKS_AFTER), if is_broken => {
                is_broken = false;
                on_result(Ok(None));
                continue;
            }
            () = relist.notified() => {
                events = begin_anew();
                continue;
            }
        };
        is_broken = next.is_err();
        match next {
            Ok(Some(event)) => {
                if matches!(event, watcher::Event::Apply(_) | watcher::Event::Delete(_)) {
                    backoff.works();
                }
                on_result(Ok(Some(event)));
            }
            Ok(None) => return,
            Err(error) => {
                let why = reason(&error);
                let (retry_in, is_new) = backoff.broke(&why, Instant::now());
                let retry_in = retry_in.max(asked_wait(&error).unwrap_or_default());
                if is_new {
                    tracing::warn!(kind, ?retry_in, "watch broke; trying again: {why}");
                } else {
                    tracing::debug!(kind, ?retry_in, "watch broke; trying again: {why}");
                }
                on_result(Err(why));
                tokio::select! {
                    () = sleep(retry_in) => {}
                    // what broke may have been another server's
                    () = relist.notified() => {
                        events = begin_anew();
                        backoff.works();
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
