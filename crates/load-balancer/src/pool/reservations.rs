//! Addresses that the writers of pools are about to record: one table for the whole process, so that two pools whose
//! ranges overlap never give one address to two holders.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, OnceLock},
};

/// The table. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct Reservations(Arc<Shared>);

#[derive(Default)]
struct Shared {
    table: Mutex<HashMap<IpAddr, Entry>>,
    on_free: OnceLock<OnFree>,
}

type OnFree = Box<dyn Fn(&[IpAddr]) + Send + Sync>;

struct Entry {
    pool: String,
    /// How often it is reserved: a PUT that got no answer and the one that repeats it reserve the same address.
    count: usize,
    /// Another pool had to pass over the address.
    was_missed: bool,
}

/// Addresses that one pool's writer is about to record. Their end is its drop: after the pool's cache knows the answer.
pub(crate) struct Reserved {
    reservations: Reservations,
    addresses: Vec<IpAddr>,
}

impl Reservations {
    /// From now on `on_free` hears of addresses that another pool had to pass over and that nobody reserves any more.
    /// They may be recorded by now.
    pub(crate) fn on_free(&self, on_free: impl Fn(&[IpAddr]) + Send + Sync + 'static) {
        let first = self.0.on_free.set(Box::new(on_free)).is_ok();
        debug_assert!(first, "one wiring for one table");
    }

    /// Reserves all of `addresses` for `pool`, or none of them where another pool's writer is about to record one.
    pub(crate) fn reserve(&self, pool: &str, addresses: &[IpAddr]) -> Option<Reserved> {
        let mut table = self.table();
        let free = |address: &IpAddr| table.get(address).is_none_or(|entry| entry.pool == pool);
        if !addresses.iter().all(free) {
            return None;
        }
        for address in addresses {
            let new = || Entry { pool: pool.to_owned(), count: 0, was_missed: false };
            table.entry(*address).or_insert_with(new).count += 1;
        }
        Some(Reserved { reservations: self.clone(), addresses: addresses.to_vec() })
    }

    /// Whether the writer of another pool is about to record `address`, so that `pool` has to pass over it.
    pub(crate) fn is_reserved_by_another(&self, pool: &str, address: IpAddr) -> bool {
        let mut table = self.table();
        let Some(entry) = table.get_mut(&address).filter(|entry| entry.pool != pool) else { return false };
        entry.was_missed = true;
        true
    }

    fn table(&self) -> MutexGuard<'_, HashMap<IpAddr, Entry>> {
        self.0.table.lock().expect("no panic while the table of reservations is locked")
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let mut missed = Vec::new();
        let mut table = self.reservations.table();
        for address in &self.addresses {
            let Some(entry) = table.get_mut(address) else { continue };
            entry.count -= 1;
            if entry.count == 0 {
                missed.extend(entry.was_missed.then_some(*address));
                table.remove(address);
            }
        }
        drop(table);
        if let (false, Some(on_free)) = (missed.is_empty(), self.reservations.0.on_free.get()) {
            on_free(&missed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    #[test]
    fn an_address_is_reserved_for_one_pool_until_its_writer_is_done() {
        let reservations = Reservations::default();
        let first = reservations.reserve("edge", &[ip(1), ip(2)]).unwrap();
        assert!(reservations.reserve("core", &[ip(2), ip(3)]).is_none());
        assert!(!reservations.is_reserved_by_another("edge", ip(3)), "all or none");
        assert!(reservations.is_reserved_by_another("core", ip(1)));
        assert!(!reservations.is_reserved_by_another("edge", ip(1)));
        drop(first);
        assert!(reservations.reserve("core", &[ip(2), ip(3)]).is_some());
    }

    #[test]
    fn a_try_that_fails_does_not_end_the_reservation_of_the_one_before_it() {
        let reservations = Reservations::default();
        let without_answer = reservations.reserve("edge", &[ip(1)]).unwrap();
        drop(reservations.reserve("edge", &[ip(1), ip(2)]).unwrap());
        assert!(reservations.is_reserved_by_another("core", ip(1)));
        assert!(!reservations.is_reserved_by_another("core", ip(2)));
        drop(without_answer);
        assert!(!reservations.is_reserved_by_another("core", ip(1)));
    }

    #[test]
    fn who_had_to_pass_over_an_address_hears_when_it_is_free() {
        let (reservations, freed) = (Reservations::default(), Arc::new(Mutex::new(Vec::new())));
        let heard = freed.clone();
        reservations.on_free(move |addresses| heard.lock().unwrap().extend_from_slice(addresses));
        let reserved = reservations.reserve("edge", &[ip(1), ip(2)]).unwrap();
        assert!(reservations.is_reserved_by_another("core", ip(2)));
        drop(reserved);
        assert_eq!(*freed.lock().unwrap(), [ip(2)], "nobody missed the other");
    }
}
