//! Addresses and the objects that they concern, found by either.

use std::{
    collections::{BTreeSet, HashMap},
    net::IpAddr,
};

use controller_kit::ObjectKey;

/// The objects that name an address, by address. There are ten thousand of them that name one address each, and few that
/// name several, so a set of one takes no more than its item.
#[derive(Debug, Default)]
pub(crate) struct AddressIndex {
    /// Sorted.
    addresses: HashMap<ObjectKey, Box<[IpAddr]>>,
    objects: HashMap<IpAddr, Objects>,
}

impl AddressIndex {
    /// From now on `object` names these. Returns the addresses that it names anew or no more.
    pub(crate) fn set(&mut self, object: &ObjectKey, addresses: BTreeSet<IpAddr>) -> Vec<IpAddr> {
        let before = self.addresses.remove(object).unwrap_or_default();
        let gone = before.iter().copied().filter(|address| !addresses.contains(address));
        let come = addresses.iter().copied().filter(|address| before.binary_search(address).is_err());
        let mut changed: Vec<_> = gone.chain(come).collect();
        changed.sort_unstable();
        for address in &changed {
            let objects = self.objects.entry(*address).or_default();
            if addresses.contains(address) {
                objects.insert(object);
            } else if objects.remove(object) {
                self.objects.remove(address);
            }
        }
        if !addresses.is_empty() {
            self.addresses.insert(object.clone(), addresses.into_iter().collect());
        }
        changed
    }

    /// The objects that name `address`.
    pub(crate) fn objects(&self, address: IpAddr) -> impl Iterator<Item = &ObjectKey> {
        self.objects.get(&address).into_iter().flat_map(Objects::iter)
    }

    /// The objects of one namespace that name `address`. Those of others cost nothing.
    pub(crate) fn objects_in(&self, namespace: &str, address: IpAddr) -> impl Iterator<Item = &ObjectKey> {
        let first = ObjectKey::new(namespace, "");
        let from_there =
            self.objects.get(&address).into_iter().flat_map(move |objects| objects.starting_at(&first));
        from_there.take_while(move |object| object.namespace == namespace)
    }

    /// The addresses that `object` names.
    pub(crate) fn addresses_of(&self, object: &ObjectKey) -> impl Iterator<Item = IpAddr> {
        self.addresses.get(object).into_iter().flatten().copied()
    }

    #[cfg(test)]
    pub(crate) fn entries(&self) -> usize {
        self.objects.values().map(|objects| objects.iter().count()).sum()
    }
}

/// Sorted. A tree's node has room for eleven.
#[derive(Debug)]
enum Objects {
    /// None only before the first one is inserted.
    One(Option<ObjectKey>),
    More(BTreeSet<ObjectKey>),
}

impl Default for Objects {
    fn default() -> Self {
        Self::One(None)
    }
}

impl Objects {
    fn insert(&mut self, object: &ObjectKey) {
        match self {
            Self::One(none @ None) => *none = Some(object.clone()),
            Self::One(one) => *self = Self::More(one.take().into_iter().chain([object.clone()]).collect()),
            Self::More(objects) => drop(objects.insert(object.clone())),
        }
    }

    /// Answers whether none is left.
    fn remove(&mut self, object: &ObjectKey) -> bool {
        match self {
            Self::One(one) => {
                one.take_if(|one| one == object);
                one.is_none()
            }
            Self::More(objects) => {
                objects.remove(object);
                if objects.len() < 2
                    && let Some(last) = objects.pop_first()
                {
                    *self = Self::One(Some(last));
                }
                false
            }
        }
    }

    fn iter(&self) -> impl Iterator<Item = &ObjectKey> {
        self.starting_at(&ObjectKey::default())
    }

    fn starting_at(&self, first: &ObjectKey) -> impl Iterator<Item = &ObjectKey> + use<'_> {
        let (one, more) = match self {
            Self::One(one) => (one.as_ref().filter(|one| *one >= first), None),
            Self::More(objects) => (None, Some(objects.range(first.clone()..))),
        };
        one.into_iter().chain(more.into_iter().flatten())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_found_by_the_addresses_that_it_names_now() {
        let (mut index, web) = (AddressIndex::default(), ObjectKey::new("shop", "web"));
        let ip = |last| IpAddr::from([10, 0, 0, last]);
        assert_eq!(index.set(&web, [ip(1), ip(2)].into()), [ip(1), ip(2)]);
        assert_eq!(index.set(&web, [ip(2), ip(3)].into()), [ip(1), ip(3)]);
        assert_eq!((index.objects(ip(1)).count(), index.objects(ip(3)).count()), (0, 1));
        assert_eq!(index.addresses_of(&web).collect::<Vec<_>>(), [ip(2), ip(3)]);
        for other in ["sho", "shop-2"] {
            index.set(&ObjectKey::new(other, "web"), [ip(2)].into());
        }
        assert_eq!(index.objects_in("shop", ip(2)).collect::<Vec<_>>(), [&web]);
        for other in ["sho", "shop-2"] {
            index.set(&ObjectKey::new(other, "web"), BTreeSet::new());
        }
        assert_eq!(index.set(&web, BTreeSet::new()), [ip(2), ip(3)]);
        assert!(index.objects.is_empty());
    }
}
