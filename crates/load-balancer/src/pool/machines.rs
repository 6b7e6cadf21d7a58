//! Records that other programs made for machines: the node driver records a static address under the namespace and name of the
//! VM, and a load balancer of that name would take the record for its own.
//!
//! The node driver records the address before it makes the VM, so that its records count whether or not the VM is there. A
//! record that an administrator wrote back for a load balancer has another maker too, so that of others only those count which
//! name a VM as well. Who made a record only a fresh read of the pool tells.

use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
};

/// Who made a record that names a load balancer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Maker {
    /// Nobody has looked.
    #[default]
    Unknown,
    LoadBalancer,
    /// Another program, and there was no VM of the name: an answer for as long as the record stands and no such VM is seen.
    Other,
    /// The node driver, or another program for the VM of the name.
    Machine,
}

/// What is known of the makers of records that name a load balancer, by holder.
#[derive(Default)]
pub(super) struct Machines(HashMap<String, BTreeMap<(String, IpAddr), Maker>>);

impl Machines {
    pub(super) fn judge(&mut self, holder: &str, pool: &str, address: IpAddr, maker: Maker) {
        let of_holder = self.0.entry(holder.to_owned()).or_default();
        of_holder.insert((pool.to_owned(), address), maker);
    }

    pub(super) fn maker(&self, holder: &str, pool: &str, address: IpAddr) -> Maker {
        let known = self.0.get(holder).and_then(|of_holder| of_holder.get(&(pool.to_owned(), address)));
        known.copied().unwrap_or_default()
    }

    /// As [`Self::judge`], unless it is known.
    pub(super) fn judge_unknown(&mut self, holder: &str, pool: &str, address: IpAddr, maker: Maker) {
        if self.maker(holder, pool, address) == Maker::Unknown {
            self.judge(holder, pool, address, maker);
        }
    }

    /// The record is gone.
    pub(super) fn forget(&mut self, holder: &str, pool: &str, address: IpAddr) {
        if let Some(of_holder) = self.0.get_mut(holder) {
            of_holder.remove(&(pool.to_owned(), address));
            if of_holder.is_empty() {
                self.0.remove(holder);
            }
        }
    }
}
