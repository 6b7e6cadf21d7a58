//! Records that other programs made for machines: the node driver records a static address under the namespace and name of the
//! VM, and a load balancer of that name would take the record for its own.
//!
//! A record that an administrator wrote back for a load balancer has another maker too, so that only those count which name
//! a VM as well. Who made a record only a fresh read of the pool tells.

use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
};

/// What is known of the records that name a load balancer and a VM, by holder: whether each is the machine's.
#[derive(Default)]
pub(super) struct Machines(HashMap<String, BTreeMap<(String, IpAddr), bool>>);

impl Machines {
    pub(super) fn judge(&mut self, holder: &str, pool: &str, address: IpAddr, is_machines: bool) {
        let of_holder = self.0.entry(holder.to_owned()).or_default();
        of_holder.insert((pool.to_owned(), address), is_machines);
    }

    /// Whether the record is a machine's; `None`: nobody has looked.
    pub(super) fn is_machines(&self, holder: &str, pool: &str, address: IpAddr) -> Option<bool> {
        self.0.get(holder)?.get(&(pool.to_owned(), address)).copied()
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
