//! Addresses that the writers of pools are about to record: one table for the whole process, so that two pools whose
//! ranges overlap never give one address to two holders.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard},
};

/// The table. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Claims(Arc<Mutex<HashMap<IpAddr, String>>>);

/// Addresses that one pool's writer is about to record. Their end is its drop: after the pool's cache knows the answer.
#[derive(Debug)]
pub(crate) struct Reserved {
    claims: Claims,
    pool: String,
    addresses: Vec<IpAddr>,
}

impl Claims {
    /// Reserves all of `addresses` for `pool`, or none of them where another pool's writer is about to record one.
    pub(crate) fn reserve(&self, pool: &str, addresses: &[IpAddr]) -> Option<Reserved> {
        let mut table = self.table();
        let free = |address: &IpAddr| table.get(address).is_none_or(|by| by == pool);
        if !addresses.iter().all(free) {
            return None;
        }
        table.extend(addresses.iter().map(|address| (*address, pool.to_owned())));
        Some(Reserved { claims: self.clone(), pool: pool.to_owned(), addresses: addresses.to_vec() })
    }

    /// Whether the writer of another pool is about to record `address`.
    pub(crate) fn is_reserved_by_another(&self, pool: &str, address: IpAddr) -> bool {
        self.table().get(&address).is_some_and(|by| by != pool)
    }

    fn table(&self) -> MutexGuard<'_, HashMap<IpAddr, String>> {
        self.0.lock().expect("no panic while the table of claims is locked")
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let mut table = self.claims.table();
        for address in &self.addresses {
            if table.get(address).is_some_and(|by| *by == self.pool) {
                table.remove(address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_reserved_for_one_pool_until_its_writer_is_done() {
        let (claims, ip) = (Claims::default(), |last| IpAddr::from([10, 0, 0, last]));
        let first = claims.reserve("edge", &[ip(1), ip(2)]).unwrap();
        assert!(claims.reserve("core", &[ip(2), ip(3)]).is_none());
        assert!(!claims.is_reserved_by_another("edge", ip(3)), "all or none");
        assert!(claims.is_reserved_by_another("core", ip(1)));
        assert!(!claims.is_reserved_by_another("edge", ip(1)));
        drop(first);
        assert!(claims.reserve("core", &[ip(2), ip(3)]).is_some());
    }
}
