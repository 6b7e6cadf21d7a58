//! Records that other programs made for load balancers that have left them, as fresh reads of the pools showed. Such a record
//! stays while its load balancer does, and that one does not wait for it before it asks for another address.

use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
};

/// The program that made each of them, by holder.
#[derive(Default)]
pub(super) struct ForeignRecords(HashMap<String, BTreeMap<(String, IpAddr), String>>);

impl ForeignRecords {
    /// Whether nobody knew it.
    pub(super) fn note(&mut self, holder: &str, pool: &str, address: IpAddr, maker: &str) -> bool {
        let of_holder = self.0.entry(holder.to_owned()).or_default();
        of_holder.insert((pool.to_owned(), address), maker.to_owned()).is_none()
    }

    pub(super) fn of(&self, holder: &str) -> BTreeMap<(String, IpAddr), String> {
        self.0.get(holder).cloned().unwrap_or_default()
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
