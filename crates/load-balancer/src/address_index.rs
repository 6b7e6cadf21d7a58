//! Addresses and the objects that they concern, found by either.

use std::{
    collections::{BTreeSet, HashMap},
    net::IpAddr,
};

use controller_kit::ObjectKey;

/// The objects that name an address, by address.
#[derive(Debug, Default)]
pub(crate) struct AddressIndex {
    addresses: HashMap<ObjectKey, BTreeSet<IpAddr>>,
    objects: HashMap<IpAddr, BTreeSet<ObjectKey>>,
}

impl AddressIndex {
    /// From now on `object` names these. Returns the addresses that it names anew or no more.
    pub(crate) fn set(&mut self, object: &ObjectKey, addresses: BTreeSet<IpAddr>) -> Vec<IpAddr> {
        let before = self.addresses.remove(object).unwrap_or_default();
        let changed: Vec<_> = before.symmetric_difference(&addresses).copied().collect();
        for address in &changed {
            let objects = self.objects.entry(*address).or_default();
            if !objects.remove(object) {
                objects.insert(object.clone());
            }
            if objects.is_empty() {
                self.objects.remove(address);
            }
        }
        if !addresses.is_empty() {
            self.addresses.insert(object.clone(), addresses);
        }
        changed
    }

    /// The objects that name `address`.
    pub(crate) fn objects(&self, address: IpAddr) -> impl Iterator<Item = &ObjectKey> {
        self.objects.get(&address).into_iter().flatten()
    }

    /// The objects of one namespace that name `address`. Those of others cost nothing.
    pub(crate) fn objects_in(&self, namespace: &str, address: IpAddr) -> impl Iterator<Item = &ObjectKey> {
        let objects = self.objects.get(&address);
        let from_there = objects.map(|objects| objects.range(ObjectKey::new(namespace, "")..));
        from_there.into_iter().flatten().take_while(move |object| object.namespace == namespace)
    }

    /// The addresses that `object` names.
    pub(crate) fn addresses_of(&self, object: &ObjectKey) -> impl Iterator<Item = IpAddr> {
        self.addresses.get(object).into_iter().flatten().copied()
    }

    #[cfg(test)]
    pub(crate) fn entries(&self) -> usize {
        self.objects.values().map(BTreeSet::len).sum()
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
