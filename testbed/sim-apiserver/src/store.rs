//! All objects, one revision counter, and what changed lately.
//!
//! ```text
//! transact ──► Inner::put / Inner::remove ──► revision + 1 ──► table, log of the table, signal to its watchers
//!                                        └──► indexes: uids, owners, Service addresses ──► chores (garbage, namespaces)
//! ```
//! A watcher keeps the last revision that it has seen and reads on in the table's log when the signal says so: nothing
//! is missed or seen twice, and a watcher that falls behind the bounded log learns that it must list again.

pub(crate) mod addresses;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use serde_json::Value;
use tokio::sync::watch;

use self::addresses::Addresses;
use crate::form::Form;
use crate::{rights, tokens};

/// The memory that the objects in a table's log may take: those that are current, and those that are kept for watchers
/// alone.
const HISTORY_BYTES: usize = 16 << 20;

/// Namespace (empty for cluster-scoped kinds) and name.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Key {
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl Key {
    pub(crate) fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.to_owned(), name: name.to_owned() }
    }

    pub(crate) fn of(object: &Value) -> Self {
        let metadata = &object["metadata"];
        Self::new(
            metadata["namespace"].as_str().unwrap_or_default(),
            metadata["name"].as_str().unwrap_or_default(),
        )
    }
}

/// One version of an object, as it is kept, and the bytes of the forms in which somebody asked for it.
#[derive(Debug)]
pub(crate) struct Stored {
    pub(crate) value: Value,
    pub(crate) revision: u64,
    /// About how many bytes of memory the value takes.
    weight: usize,
    bytes: Mutex<Vec<(Form, Bytes)>>,
}

/// The memory of one node of the maps of which a value is made; it has room for a few entries, and most have one.
const NODE: usize = 640;

/// About how many bytes of memory a value takes beside its own place.
fn weight(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(|item| size_of::<Value>() + weight(item)).sum(),
        Value::Object(fields) => {
            NODE * fields.len().div_ceil(8)
                + fields.iter().map(|(name, field)| name.len() + weight(field)).sum::<usize>()
        }
        _ => 0,
    }
}

impl Stored {
    fn new(value: Value, revision: u64) -> Self {
        Self { weight: weight(&value), value, revision, bytes: Mutex::default() }
    }

    /// An object that is answered but was not kept: of a dry run.
    pub(crate) fn unkept(value: Value) -> Self {
        let revision = value["metadata"]["resourceVersion"].as_str().and_then(|text| text.parse().ok());
        Self::new(value, revision.unwrap_or(0))
    }

    /// The object in a form: serialised once, however many ask.
    pub(crate) fn bytes(&self, form: Form, make: impl FnOnce(&Value) -> Bytes) -> Bytes {
        let mut bytes = self.bytes.lock().expect("no panic while an object is serialised");
        if let Some((_, made)) = bytes.iter().find(|(known, _)| *known == form) {
            return made.clone();
        }
        let made = make(&self.value);
        bytes.push((form, made.clone()));
        made
    }

    /// Lets the bytes of an object go that most have read: a newer version is there.
    fn supersede(&self) {
        self.bytes.lock().expect("no panic while an object is serialised").clear();
    }

    pub(crate) fn uid(&self) -> &str {
        self.value["metadata"]["uid"].as_str().unwrap_or_default()
    }

    pub(crate) fn is_deleting(&self) -> bool {
        self.value["metadata"]["deletionTimestamp"].is_string()
    }
}

/// The effect of a commit.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub(crate) revision: u64,
    pub(crate) deleted: bool,
    /// The object after the change; of a deletion its last state with the deletion's own revision.
    pub(crate) object: Arc<Stored>,
    pub(crate) previous: Option<Arc<Stored>>,
}

/// Work that a commit leaves to the controllers inside the server ([`crate::collect`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Chore {
    /// The object with this uid is gone: its dependents have one owner less.
    Dependents { owner: String },
    /// An object whose owners may all be gone already.
    Orphan { table: Arc<str>, key: Key },
    /// An object waits with a finalizer of the garbage collector.
    Deleting { table: Arc<str>, key: Key },
    /// A namespace is being deleted, or lost one of its last objects.
    Namespace { name: String },
    /// A ClusterRole has changed, and others may gather its rules.
    Roles,
    /// A Secret waits for the token of its service account.
    Token { key: Key },
}

#[derive(Debug)]
struct Table {
    objects: BTreeMap<Key, Arc<Stored>>,
    log: VecDeque<Change>,
    /// Of the objects in the log, together.
    weight: usize,
    /// The newest revision that the log has forgotten: watches from before it are too old.
    forgotten: u64,
    signal: watch::Sender<u64>,
}

impl Default for Table {
    fn default() -> Self {
        Self {
            objects: BTreeMap::new(),
            log: VecDeque::new(),
            weight: 0,
            forgotten: 0,
            signal: watch::Sender::new(0),
        }
    }
}

/// The state under the lock.
#[derive(Debug)]
pub(crate) struct Inner {
    revision: u64,
    tables: HashMap<Arc<str>, Table>,
    history: usize,
    places: HashMap<String, (Arc<str>, Key)>,
    dependents: HashMap<String, BTreeSet<(Arc<str>, Key)>>,
    terminating: BTreeSet<String>,
    pub(crate) addresses: Addresses,
    chores: Vec<Chore>,
}

/// The request came from a revision that the log no longer holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooOld {
    /// The oldest revision from which a watch can still start.
    pub(crate) oldest: u64,
}

#[derive(Debug)]
pub(crate) struct Store(Mutex<Inner>);

impl Store {
    /// `history` changes of each table are kept for watchers.
    pub(crate) fn new(history: usize, addresses: Addresses) -> Self {
        Self(Mutex::new(Inner {
            revision: 0,
            tables: HashMap::new(),
            history,
            places: HashMap::new(),
            dependents: HashMap::new(),
            terminating: BTreeSet::new(),
            addresses,
            chores: vec![],
        }))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().expect("no panic under the store's lock")
    }

    /// Runs `f` alone with the state: the only way to write.
    pub(crate) fn transact<T>(&self, f: impl FnOnce(&mut Inner) -> T) -> T {
        f(&mut self.lock())
    }

    pub(crate) fn revision(&self) -> u64 {
        self.lock().revision
    }

    pub(crate) fn get(&self, table: &str, key: &Key) -> Option<Arc<Stored>> {
        self.lock().get(table, key)
    }

    /// The objects of a namespace or of all, in order of their keys, and the revision of that state.
    pub(crate) fn list(&self, table: &str, namespace: Option<&str>) -> (u64, Vec<Arc<Stored>>) {
        let inner = self.lock();
        (inner.revision, inner.list(table, namespace))
    }

    /// The changes of a table after a revision, oldest first, and the revision up to which that is all.
    pub(crate) fn changes_after(&self, table: &str, revision: u64) -> Result<(Vec<Change>, u64), TooOld> {
        let inner = self.lock();
        let Some(table) = inner.tables.get(table) else { return Ok((vec![], inner.revision)) };
        if revision < table.forgotten {
            return Err(TooOld { oldest: table.forgotten });
        }
        let first = table.log.partition_point(|change| change.revision <= revision);
        Ok((table.log.range(first..).cloned().collect(), inner.revision))
    }

    /// Says when a table has changed.
    pub(crate) fn subscribe(&self, table: &Arc<str>) -> watch::Receiver<u64> {
        self.lock().table(table).signal.subscribe()
    }

    /// Takes the work that commits have left.
    pub(crate) fn take_chores(&self) -> Vec<Chore> {
        std::mem::take(&mut self.lock().chores)
    }

    /// Returns the place of the object with this uid.
    pub(crate) fn place(&self, uid: &str) -> Option<(Arc<str>, Key)> {
        self.lock().places.get(uid).cloned()
    }

    /// The objects that name this uid as an owner.
    pub(crate) fn dependents(&self, uid: &str) -> Vec<(Arc<str>, Key)> {
        self.lock().dependents.get(uid).map(|set| set.iter().cloned().collect()).unwrap_or_default()
    }

    /// Every object of a namespace, whatever its kind.
    pub(crate) fn contents(&self, namespace: &str) -> Vec<(Arc<str>, Arc<Stored>)> {
        let inner = self.lock();
        let mut contents: Vec<_> = inner
            .tables
            .iter()
            .flat_map(|(name, table)| {
                let from = Key::new(namespace, "");
                let in_namespace = table.objects.range(from..).take_while(|(k, _)| k.namespace == namespace);
                in_namespace.map(|(_, object)| (name.clone(), object.clone()))
            })
            .collect();
        contents.sort_by_key(|(_, object)| object.revision);
        contents
    }

    /// Forgets all history, as a server does that compacted: every watch from an older revision must list again.
    pub(crate) fn compact(&self) {
        let mut inner = self.lock();
        let revision = inner.revision;
        for table in inner.tables.values_mut() {
            table.log.clear();
            table.weight = 0;
            table.forgotten = revision;
        }
    }
}

impl Inner {
    fn table(&mut self, name: &Arc<str>) -> &mut Table {
        self.tables.entry(name.clone()).or_default()
    }

    pub(crate) fn get(&self, table: &str, key: &Key) -> Option<Arc<Stored>> {
        self.tables.get(table)?.objects.get(key).cloned()
    }

    pub(crate) fn list(&self, table: &str, namespace: Option<&str>) -> Vec<Arc<Stored>> {
        let Some(table) = self.tables.get(table) else { return vec![] };
        match namespace {
            None => table.objects.values().cloned().collect(),
            Some(namespace) => {
                let from = Key::new(namespace, "");
                let in_namespace = table.objects.range(from..).take_while(|(k, _)| k.namespace == namespace);
                in_namespace.map(|(_, object)| object.clone()).collect()
            }
        }
    }

    /// Keeps a new version of an object under the next revision.
    pub(crate) fn put(&mut self, table: &Arc<str>, value: Value) -> Arc<Stored> {
        self.commit(table, value, false)
    }

    /// Removes an object. Watchers get its last state, with the removal's own revision.
    pub(crate) fn remove(&mut self, table: &Arc<str>, key: &Key) -> Option<Arc<Stored>> {
        let last = self.get(table, key)?;
        Some(self.commit(table, last.value.clone(), true))
    }

    fn commit(&mut self, table_name: &Arc<str>, mut value: Value, deleted: bool) -> Arc<Stored> {
        self.revision += 1;
        let revision = self.revision;
        value["metadata"]["resourceVersion"] = revision.to_string().into();
        let key = Key::of(&value);
        let object = Arc::new(Stored::new(value, revision));
        let history = self.history;
        let table = self.table(table_name);
        let previous = if deleted {
            table.objects.remove(&key)
        } else {
            table.objects.insert(key.clone(), object.clone())
        };
        table.log.push_back(Change { revision, deleted, object: object.clone(), previous: previous.clone() });
        table.weight += object.weight;
        while table.log.len() > history.max(1) || (table.weight > HISTORY_BYTES && table.log.len() > 1) {
            let Some(oldest) = table.log.pop_front() else { break };
            table.weight -= oldest.object.weight;
            table.forgotten = oldest.revision;
        }
        if let Some(previous) = &previous {
            previous.supersede();
        }
        table.signal.send_replace(revision);
        self.index(table_name, key, previous.as_deref(), &object, deleted);
        object
    }

    fn index(
        &mut self,
        table: &Arc<str>,
        key: Key,
        previous: Option<&Stored>,
        object: &Arc<Stored>,
        deleted: bool,
    ) {
        let place = (table.clone(), key);
        let now = (!deleted).then_some(&**object);
        let owned_before = previous.map(|p| owners(&p.value)).unwrap_or_default();
        let owned_now = now.map(|o| owners(&o.value)).unwrap_or_default();
        for gone in owned_before.iter().filter(|uid| !owned_now.contains(*uid)) {
            if let Some(dependents) = self.dependents.get_mut(*gone) {
                dependents.remove(&place);
                if dependents.is_empty() {
                    self.dependents.remove(*gone);
                }
            }
            // an owner may wait for the end of this one
            if let Some((table, key)) = self.places.get(*gone).cloned() {
                self.chores.push(Chore::Deleting { table, key });
            }
        }
        for new in owned_now.iter().filter(|uid| !owned_before.contains(*uid)) {
            self.dependents.entry((*new).to_owned()).or_default().insert(place.clone());
        }
        if !owned_now.is_empty() && owned_now != owned_before {
            self.chores.push(Chore::Orphan { table: table.clone(), key: place.1.clone() });
        }
        if &**table == "services" {
            self.addresses.observe(previous.map(|p| &p.value), now.map(|o| &o.value));
        }
        if &**table == rights::CLUSTER_ROLES {
            self.chores.push(Chore::Roles);
        }
        if &**table == "secrets" && now.is_some_and(|secret| tokens::is_wanted(&secret.value)) {
            self.chores.push(Chore::Token { key: place.1.clone() });
        }
        if &**table == "namespaces" {
            if now.is_some_and(Stored::is_deleting) {
                self.terminating.insert(place.1.name.clone());
                self.chores.push(Chore::Namespace { name: place.1.name.clone() });
            } else {
                self.terminating.remove(&place.1.name);
            }
        }
        if deleted {
            self.places.remove(object.uid());
            if self.terminating.contains(&place.1.namespace) {
                self.chores.push(Chore::Namespace { name: place.1.namespace.clone() });
            }
            self.chores.push(Chore::Dependents { owner: object.uid().to_owned() });
        } else {
            if object.is_deleting() {
                self.chores.push(Chore::Deleting { table: table.clone(), key: place.1.clone() });
            }
            if previous.is_none() {
                self.places.insert(object.uid().to_owned(), place);
            }
        }
    }

    /// Whether a namespace is there, and whether it is on its way out.
    pub(crate) fn namespace(&self, name: &str) -> Option<Lifetime> {
        let namespace = self.get("namespaces", &Key::new("", name))?;
        Some(if namespace.is_deleting() { Lifetime::Ending } else { Lifetime::Active })
    }
}

/// Whether something is there to stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lifetime {
    Active,
    /// Deleted, but not gone.
    Ending,
}

/// The uids of an object's owners.
pub(crate) fn owners(object: &Value) -> BTreeSet<&str> {
    let references = object["metadata"]["ownerReferences"].as_array();
    references.into_iter().flatten().filter_map(|reference| reference["uid"].as_str()).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn store(history: usize) -> (Store, Arc<str>) {
        (Store::new(history, Addresses::default()), "configmaps".into())
    }

    fn named(name: &str) -> Value {
        json!({"metadata": {"namespace": "shop", "name": name, "uid": format!("uid of {name}")}})
    }

    #[test]
    fn each_commit_has_a_revision_of_its_own_and_a_deletion_too() {
        let (store, table) = store(10);
        let first = store.transact(|inner| inner.put(&table, named("a")));
        let second = store.transact(|inner| inner.put(&table, named("b")));
        let gone = store.transact(|inner| inner.remove(&table, &Key::new("shop", "a"))).unwrap();
        assert_eq!((first.revision, second.revision, gone.revision), (1, 2, 3));
        assert_eq!(gone.value["metadata"]["resourceVersion"], "3");
        let (seen, head) = store.changes_after(&table, 1).unwrap();
        assert_eq!(head, 3);
        assert_eq!(seen.iter().map(|c| (c.revision, c.deleted)).collect::<Vec<_>>(), [(2, false), (3, true)]);
    }

    #[test]
    fn a_log_that_has_forgotten_says_so_instead_of_leaving_a_gap() {
        let (store, table) = store(2);
        for name in ["a", "b", "c"] {
            store.transact(|inner| inner.put(&table, named(name)));
        }
        assert_eq!(store.changes_after(&table, 0).unwrap_err(), TooOld { oldest: 1 });
        assert_eq!(store.changes_after(&table, 1).unwrap().0.len(), 2);
        store.compact();
        assert_eq!(store.changes_after(&table, 2).unwrap_err(), TooOld { oldest: 3 });
        assert!(store.changes_after(&table, 3).unwrap().0.is_empty());
    }

    #[test]
    fn a_log_forgets_sooner_what_is_heavier() {
        let (store, table) = store(1000);
        for i in 0..40 {
            let mut object = named("a");
            object["data"] = json!({"key": "x".repeat(1 << 20), "i": i});
            store.transact(|inner| inner.put(&table, object));
        }
        let TooOld { oldest } = store.changes_after(&table, 0).unwrap_err();
        assert_eq!(store.changes_after(&table, oldest).unwrap().0.len(), 15);
    }

    #[test]
    fn an_object_is_serialised_once_for_all_who_want_the_same_form() {
        let (store, table) = store(2);
        let object = store.transact(|inner| inner.put(&table, named("a")));
        let form = Form::json(0);
        let first = object.bytes(form, |_| Bytes::from_static(b"once"));
        assert_eq!(object.bytes(form, |_| unreachable!("made twice")), first);
    }
}
