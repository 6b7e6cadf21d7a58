//! Objects by the Service that they are for.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Mutex,
};

/// Names of objects by the UID in their annotation.
#[derive(Debug, Default)]
pub(super) struct Index(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    uid_of: HashMap<String, String>,
    names_of: HashMap<String, BTreeSet<String>>,
}

impl Index {
    /// The object `name` is for the Service with this UID; `None`: for nobody that is known, or gone.
    pub(super) fn set(&self, name: &str, uid: Option<String>) {
        let mut state = self.0.lock().expect("no panic while indexing");
        if let Some(old) = state.uid_of.remove(name)
            && let Some(names) = state.names_of.get_mut(&old)
        {
            names.remove(name);
            if names.is_empty() {
                state.names_of.remove(&old);
            }
        }
        if let Some(uid) = uid {
            state.names_of.entry(uid.clone()).or_default().insert(name.to_owned());
            state.uid_of.insert(name.to_owned(), uid);
        }
    }

    /// The object of a Service; of several the first by name.
    pub(super) fn balancer_of(&self, uid: &str) -> Option<String> {
        let state = self.0.lock().expect("no panic while indexing");
        state.names_of.get(uid).and_then(|names| names.first().cloned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_found_by_its_service_until_it_is_gone() {
        let index = Index::default();
        index.set("old-name", Some("1".into()));
        index.set("old-name", Some("1".into()));
        index.set("other", Some("2".into()));
        assert_eq!(index.balancer_of("1").as_deref(), Some("old-name"));
        index.set("old-name", Some("3".into()));
        assert_eq!((index.balancer_of("1"), index.balancer_of("3").as_deref()), (None, Some("old-name")));
        index.set("old-name", None);
        assert_eq!(index.balancer_of("3"), None);
    }
}
