//! Answers to requests of ours that another server than the watched one may have given.
//!
//! A request that is under way when a cache moves is answered by the former server, at the latest when its time limit has
//! passed. Versions and absences of that server say nothing of the next one, and no event of the next one would correct them.

use std::sync::Arc;

use super::{
    Cache, Change, Watched,
    store::{Store, is_over},
};
use crate::ObjectKey;

/// Of [`Cache::answers`].
pub struct ServerAnswers<K> {
    cache: Cache<K>,
    server: u64,
}

impl<K: Watched> ServerAnswers<K> {
    pub(super) fn of(cache: &Cache<K>) -> Self {
        let server = cache.known().server();
        Self { cache: cache.clone(), server }
    }

    /// As [`Cache::wrote`].
    pub fn wrote(&self, object: K) -> Arc<K> {
        // what is trimmed does not say it any more
        let is_over = is_over(&object);
        let object = self.cache.trimmed(object);
        let written = object.clone();
        self.note(|known| {
            if is_over {
                known.gone(&ObjectKey::of(&*written), written.meta().uid.as_deref().unwrap_or_default())
            } else {
                known.wrote(written)
            }
        });
        object
    }

    /// As [`Cache::gone`].
    pub fn gone(&self, key: &ObjectKey, uid: &str) {
        self.note(|known| known.gone(key, uid));
    }

    /// Whether no other server answers since.
    pub fn are_of_this_server(&self) -> bool {
        self.cache.known().server() == self.server
    }

    /// The cache may move at any time: it is locked from the question to the change.
    fn note(&self, answer: impl FnOnce(&mut Store<K>) -> Option<Change<K>>) {
        let change = {
            let mut known = self.cache.known();
            if known.server() == self.server { answer(&mut known) } else { None }
        };
        self.cache.tell(change);
    }
}
