//! The objects of a cache, as plain state: events and answers go in, changes come out.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;

use super::{Change, Watched, undecoded::DecodeError};
use crate::ObjectKey;

/// An object as the watch gave it: read, or only its name and why it could not be read.
type Read<K> = Result<Arc<K>, DecodeError>;

#[derive(Debug)]
pub(super) struct Store<K> {
    objects: BTreeMap<ObjectKey, Arc<K>>,
    malformed: BTreeMap<ObjectKey, String>,
    /// The newest version that the watch has passed. Versions of one server are comparable numbers.
    watched: u64,
    /// While a list is coming in: what it named, and what we wrote meanwhile.
    relisting: Option<HashSet<ObjectKey>>,
    /// UIDs of objects whose end we learned before the watch, which may still tell of their last changes.
    ended: HashSet<String>,
    /// What the list that is to come, or is coming in, has not named yet is another server's.
    is_elsewhere: bool,
    /// How often another server was the one that answers. The watch follows later ([`Store::moves_elsewhere`]).
    server: u64,
}

impl<K> Default for Store<K> {
    fn default() -> Self {
        Self {
            objects: BTreeMap::new(),
            malformed: BTreeMap::new(),
            watched: 0,
            relisting: None,
            ended: HashSet::new(),
            is_elsewhere: false,
            server: 0,
        }
    }
}

impl<K: Watched> Store<K> {
    pub(super) fn get(&self, key: &ObjectKey) -> Option<Arc<K>> {
        self.objects.get(key).cloned()
    }

    pub(super) fn list(&self) -> Vec<Arc<K>> {
        self.objects.values().cloned().collect()
    }

    pub(super) fn list_in(&self, namespace: &str) -> Vec<Arc<K>> {
        let from_there = self.objects.range(ObjectKey::new(namespace, "")..);
        let own = from_there.take_while(|(key, _)| key.namespace == namespace);
        own.map(|(_, object)| object.clone()).collect()
    }

    /// The newest version that the watch has passed.
    pub(super) fn passed(&self) -> u64 {
        self.watched
    }

    pub(super) fn malformed(&self) -> Vec<(ObjectKey, String)> {
        self.malformed.iter().map(|(key, why)| (key.clone(), why.clone())).collect()
    }

    pub(super) fn relist_begins(&mut self) {
        self.relisting = Some(HashSet::new());
    }

    /// The server that answers now, of those that did.
    pub(super) fn server(&self) -> u64 {
        self.server
    }

    /// Another server answers from now on.
    pub(super) fn another_answers(&mut self) {
        self.server += 1;
    }

    /// Another server is watched from now on. What the former one had is shown until the list of this one has come, and no
    /// version of the two is compared.
    pub(super) fn moves_elsewhere(&mut self) {
        self.is_elsewhere = true;
        self.watched = 0;
        self.ended.clear();
        // what is written from now on is written there
        self.relist_begins();
    }

    pub(super) fn relisted(&mut self, read: Read<K>) -> Option<Change<K>> {
        let key = key_of(&read);
        if !self.names_first(&key) {
            return self.applied(read);
        }
        let former = self.objects.remove(&key);
        let change = self.applied(read);
        let Some(former) = former else { return change };
        let new = change.and_then(|change| change.new);
        let is_same = new
            .as_ref()
            .is_some_and(|new| new.uid() == former.uid() && version_of(&**new) == version_of(&*former));
        (!is_same).then(|| Change { key, old: Some(former), new })
    }

    /// Notes that the list that is under way, or a write meanwhile, names this object. Answers whether what is known of it is
    /// another server's.
    fn names_first(&mut self, key: &ObjectKey) -> bool {
        self.relisting.as_mut().is_some_and(|named| named.insert(key.clone())) && self.is_elsewhere
    }

    /// Objects that the list did not name are gone, unless we wrote them after the list had begun.
    pub(super) fn relist_ends(&mut self) -> Vec<Change<K>> {
        let Some(named) = self.relisting.take() else { return Vec::new() };
        self.is_elsewhere = false;
        self.ended.clear();
        self.malformed.retain(|key, _| named.contains(key));
        let gone: Vec<_> = self.objects.keys().filter(|key| !named.contains(*key)).cloned().collect();
        gone.into_iter().filter_map(|key| self.remove(&key)).collect()
    }

    /// Passes the version of an object if it, or a newer one, is known already.
    pub(super) fn skip_if_known(&mut self, key: &ObjectKey, metadata: &ObjectMeta) -> bool {
        let version = version_in(metadata);
        let is_known = !self.malformed.contains_key(key)
            && self.objects.get(key).is_some_and(|known| version_of(&**known) >= version);
        if is_known {
            self.watched = self.watched.max(version);
        }
        is_known
    }

    pub(super) fn applied(&mut self, read: Read<K>) -> Option<Change<K>> {
        let key = key_of(&read);
        match read {
            Ok(object) => {
                self.malformed.remove(&key);
                let version = version_of(&*object);
                self.watched = self.watched.max(version);
                match self.objects.get(&key) {
                    Some(known) if version_of(&**known) >= version => None,
                    None if object.uid().is_some_and(|uid| self.ended.contains(&uid)) => None,
                    _ => Some(self.insert(key, object)),
                }
            }
            Err(unreadable) => {
                tracing::warn!(kind = %K::kind(&()), object = %key, reason = unreadable.error, "object cannot be read");
                self.malformed.insert(key.clone(), unreadable.error);
                self.remove(&key)
            }
        }
    }

    pub(super) fn deleted(&mut self, read: Read<K>) -> Option<Change<K>> {
        let key = key_of(&read);
        self.malformed.remove(&key);
        let Ok(object) = read else { return self.remove(&key) };
        self.ended.remove(&object.uid().unwrap_or_default());
        self.watched = self.watched.max(version_of(&*object));
        let known = self.objects.get(&key)?;
        // a newer object of the same name, which we made ourselves, outlives the end of the old one
        let successor = known.uid() != object.uid() && version_of(&**known) > version_of(&*object);
        if successor { None } else { self.remove(&key) }
    }

    /// Of a write that did not end its object ([`is_over`]).
    pub(super) fn wrote(&mut self, object: Arc<K>) -> Option<Change<K>> {
        let (key, version) = (ObjectKey::of(&*object), version_of(&*object));
        let is_known_elsewhere = self.names_first(&key);
        match self.objects.get(&key) {
            Some(known) if !is_known_elsewhere && version_of(&**known) >= version => None,
            // the watch has passed this version and the object is not there: it was deleted after our write
            None if version <= self.watched && self.relisting.is_none() => None,
            _ => Some(self.insert(key, object)),
        }
    }

    /// Of a read. It may be older than an end that we know of, or than a list that is under way: where that does not name the
    /// object, it is gone when the list is complete.
    pub(super) fn saw(&mut self, object: Arc<K>) -> Option<Change<K>> {
        let (key, version) = (ObjectKey::of(&*object), version_of(&*object));
        let has_ended = object.uid().is_some_and(|uid| self.ended.contains(&uid));
        let known = self.objects.get(&key).map_or(self.watched, |known| version_of(&**known));
        let is_news = version > known && !has_ended && !self.is_elsewhere;
        is_news.then(|| self.insert(key, object))
    }

    pub(super) fn gone(&mut self, key: &ObjectKey, uid: &str) -> Option<Change<K>> {
        let known = self.objects.get(key)?;
        if known.uid().as_deref() != Some(uid) {
            return None;
        }
        self.ended.insert(uid.to_owned());
        self.remove(key)
    }

    fn insert(&mut self, key: ObjectKey, object: Arc<K>) -> Change<K> {
        let old = self.objects.insert(key.clone(), object.clone());
        Change { key, old, new: Some(object) }
    }

    fn remove(&mut self, key: &ObjectKey) -> Option<Change<K>> {
        let old = self.objects.remove(key)?;
        Some(Change { key: key.clone(), old: Some(old), new: None })
    }
}

fn key_of<K: Watched>(read: &Read<K>) -> ObjectKey {
    match read {
        Ok(object) => ObjectKey::of(&**object),
        Err(unreadable) => unreadable.key.clone(),
    }
}

pub(super) fn version_of<K: Watched>(object: &K) -> u64 {
    version_in(object.meta())
}

fn version_in(metadata: &ObjectMeta) -> u64 {
    metadata.resource_version.as_deref().and_then(|version| version.parse().ok()).unwrap_or(u64::MAX)
}

/// Whether a write's answer was the object's last: the write that takes the last finalizer of an object that is being
/// deleted ends it, and is answered with the object as it was sent, under the version that it had before. (Only Pods
/// go on without finalizers, while their grace period lasts.)
pub(super) fn is_over<K: Watched>(object: &K) -> bool {
    let metadata = object.meta();
    metadata.deletion_timestamp.is_some()
        && metadata.finalizers.as_ref().is_none_or(Vec::is_empty)
        && metadata.deletion_grace_period_seconds.unwrap_or_default() == 0
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use serde_json::json;

    use super::*;

    fn map(uid: &str, version: u64) -> Arc<ConfigMap> {
        let json = json!({"metadata": {"name": "web", "namespace": "shop", "uid": uid,
            "resourceVersion": version.to_string()}});
        Arc::new(serde_json::from_value(json).unwrap())
    }

    fn version(known: &Store<ConfigMap>) -> Option<u64> {
        known.get(&ObjectKey::new("shop", "web")).map(|object| version_of(&*object))
    }

    #[test]
    fn the_objects_of_a_namespace_are_listed_without_those_of_others() {
        let mut known = Store::default();
        let named = |namespace: &str, name: &str| {
            let json = json!({"metadata": {"name": name, "namespace": namespace, "resourceVersion": "1"}});
            Arc::new(serde_json::from_value::<ConfigMap>(json).unwrap())
        };
        for (namespace, name) in [("sho", "z"), ("shop", "b"), ("shop", "a"), ("shop-2", "a")] {
            known.applied(Ok(named(namespace, name)));
        }
        let names = |namespace| known.list_in(namespace).iter().map(|map| map.name_any()).collect::<Vec<_>>();
        assert_eq!((names("shop"), names("none")), (vec!["a".to_owned(), "b".to_owned()], vec![]));
    }

    #[test]
    fn our_own_write_counts_before_the_watch_has_seen_it_and_is_told_once() {
        let mut known = Store::default();
        assert!(known.applied(Ok(map("a", 5))).is_some());
        assert!(known.wrote(map("a", 7)).is_some());
        assert_eq!(version(&known), Some(7));
        assert!(known.applied(Ok(map("a", 6))).is_none(), "the watch is behind");
        assert!(known.applied(Ok(map("a", 7))).is_none(), "the watch has caught up");
        assert_eq!(version(&known), Some(7));
    }

    #[test]
    fn a_late_answer_does_not_bring_back_what_was_deleted() {
        let mut known = Store::default();
        known.applied(Ok(map("a", 5)));
        known.deleted(Ok(map("a", 8)));
        assert!(known.wrote(map("a", 7)).is_none());
        assert_eq!(version(&known), None);
    }

    #[test]
    fn the_end_of_an_old_object_does_not_take_its_successor() {
        let mut known = Store::default();
        known.applied(Ok(map("a", 5)));
        known.wrote(map("b", 9));
        assert!(known.deleted(Ok(map("a", 8))).is_none());
        assert_eq!(version(&known), Some(9));
    }

    #[test]
    fn a_new_list_removes_what_it_does_not_name_but_not_what_we_wrote_meanwhile() {
        let mut known = Store::default();
        known.applied(Ok(map("a", 5)));
        known.relist_begins();
        assert_eq!(known.relist_ends().len(), 1);
        assert_eq!(version(&known), None);

        known.relist_begins();
        known.wrote(map("b", 9));
        assert!(known.relist_ends().is_empty());
        assert_eq!(version(&known), Some(9));
    }

    #[test]
    fn what_a_read_shows_while_a_list_comes_in_is_known_at_once_and_stays_where_the_list_names_it() {
        for is_named in [true, false] {
            let mut known = Store::default();
            known.applied(Ok(map("a", 5)));
            known.relist_begins();
            assert!(known.saw(map("a", 7)).is_some());
            if is_named {
                assert!(known.relisted(Ok(map("a", 6))).is_none(), "it was listed before");
            }
            known.relist_ends();
            assert_eq!(version(&known), is_named.then_some(7));
        }
        let mut known = Store::default();
        known.applied(Ok(map("a", 5)));
        known.deleted(Ok(map("a", 8)));
        known.relist_begins();
        assert!(known.saw(map("a", 7)).is_none(), "it was deleted since");
    }

    /// One that was rebuilt, or restored from a copy, has objects of the same names, and counts from below.
    #[test]
    fn the_list_of_another_server_replaces_what_the_former_one_had_whatever_its_versions_are() {
        let mut known = Store::default();
        known.applied(Ok(map("a", 9)));
        known.moves_elsewhere();
        assert_eq!(version(&known), Some(9), "it is shown until then");
        known.relist_begins();
        let change = known.relisted(Ok(map("b", 3))).expect("it is another object");
        assert_eq!(
            [change.old, change.new].map(|it| it.and_then(|it| it.uid())),
            ["a", "b"].map(|it| Some(it.to_owned()))
        );
        assert!(known.relist_ends().is_empty());
        assert!(known.applied(Ok(map("b", 4))).is_some());
        known.deleted(Ok(map("b", 5)));
        assert!(known.wrote(map("c", 6)).is_some(), "its watch has passed 5");
        assert_eq!(version(&known), Some(6));
    }

    #[test]
    fn what_we_write_at_another_server_replaces_what_the_former_one_had_and_outlives_the_list() {
        let mut known = Store::default();
        known.applied(Ok(map("a", 9)));
        known.moves_elsewhere();
        known.relist_begins();
        assert!(known.wrote(map("b", 4)).is_some());
        assert!(known.relisted(Ok(map("b", 3))).is_none(), "it was listed before");
        assert!(known.relist_ends().is_empty());
        assert_eq!(version(&known), Some(4));
    }

    #[test]
    fn an_object_that_is_the_same_at_another_address_of_one_server_is_not_told_again() {
        let mut known = Store::default();
        known.applied(Ok(map("a", 9)));
        known.moves_elsewhere();
        known.relist_begins();
        assert!(known.relisted(Ok(map("a", 9))).is_none());
        assert!(known.relist_ends().is_empty());
        assert_eq!(version(&known), Some(9));
    }

    #[test]
    fn an_object_that_cannot_be_read_is_named_and_hides_no_other() {
        let mut known = Store::<ConfigMap>::default();
        known.applied(Ok(map("a", 4)));
        known.applied(Err(DecodeError {
            key: ObjectKey::new("shop", "web"),
            error: "data is a number".into(),
        }));
        assert_eq!(version(&known), None);
        assert_eq!(known.malformed(), [(ObjectKey::new("shop", "web"), "data is a number".to_owned())]);
        known.applied(Ok(map("a", 6)));
        assert_eq!(known.malformed(), []);
    }
}
