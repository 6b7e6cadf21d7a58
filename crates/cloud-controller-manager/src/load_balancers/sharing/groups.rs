//! The groups that share an address, each found once between two changes: a change of one Service wakes its whole group,
//! and each of the group looks at all of it.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use controller_kit::ObjectKey;

use super::group::Group;

/// Groups by their primary.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    changes: AtomicU64,
    found: Mutex<Found>,
}

#[derive(Debug, Default)]
struct Found {
    /// All groups were found after so many changes.
    after: u64,
    groups: HashMap<ObjectKey, Arc<Group>>,
}

impl Groups {
    /// A Service or an object is another one now: what was found counts no more.
    pub(crate) fn changed(&self) {
        self.changes.fetch_add(1, Ordering::SeqCst);
    }

    /// The group of this primary; `find` looks it up.
    pub(crate) fn get(&self, primary: &ObjectKey, find: impl FnOnce() -> Group) -> Arc<Group> {
        // before the look: a change meanwhile makes what it finds old
        let after = self.changes.load(Ordering::SeqCst);
        let found = || self.found.lock().expect("no panic while remembering");
        if let Some(group) = Some(found())
            .filter(|found| found.after == after)
            .and_then(|found| found.groups.get(primary).cloned())
        {
            return group;
        }
        let group = Arc::new(find());
        let mut found = found();
        if found.after < after {
            *found = Found { after, groups: HashMap::new() };
        }
        if found.after == after {
            found.groups.insert(primary.clone(), group.clone());
        }
        group
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_group_is_gone_through_once_after_a_change_however_many_ask() {
        let (groups, web, api) =
            (Groups::default(), ObjectKey::new("shop", "web"), ObjectKey::new("shop", "api"));
        let looks = Cell::new(0);
        let look = |primary: &ObjectKey| {
            drop(groups.get(primary, || {
                looks.set(looks.get() + 1);
                Group::default()
            }));
        };
        for expected in [2, 4] {
            for _ in 0..1_000 {
                look(&web);
                look(&api);
            }
            assert_eq!(looks.get(), expected);
            groups.changed();
        }
    }

    #[test]
    fn a_group_that_changes_while_it_is_gone_through_is_not_remembered() {
        let (groups, web) = (Groups::default(), ObjectKey::new("shop", "web"));
        drop(groups.get(&web, || {
            groups.changed();
            Group::default()
        }));
        let looks = Cell::new(0);
        drop(groups.get(&web, || {
            looks.set(1);
            Group::default()
        }));
        assert_eq!(looks.get(), 1);
    }
}
