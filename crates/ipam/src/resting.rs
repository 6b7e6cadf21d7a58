//! Released addresses that rest: nobody but their former holder gets them before the end of their rest.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
    net::IpAddr,
};

/// The longest rest of an address, in seconds: a year.
pub const LONGEST_REST: i64 = 366 * 24 * 3600;

/// The addresses that rest, each with the end of its rest. Times are seconds since 1970.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resting(BTreeMap<IpAddr, i64>);

impl Resting {
    /// What somebody wrote down. No rest is longer than one that begins within the second `now` and lasts `longest`: others
    /// write there as well.
    pub fn read(entries: impl IntoIterator<Item = (IpAddr, i64)>, now: i64, longest: i64) -> Self {
        let latest = Self::end_of_new(now, longest).unwrap_or(now);
        let bounded = entries.into_iter().map(|(address, end)| (address, end.min(latest)));
        Self(bounded.filter(|(_, end)| *end > now).collect())
    }

    /// The end of a rest of so many seconds that begins within the second `now`: no earlier than it should.
    pub fn end_of_new(now: i64, seconds: i64) -> Option<i64> {
        (seconds > 0).then(|| now.saturating_add(seconds.min(LONGEST_REST) + 1))
    }

    /// The end of the address' rest.
    pub fn end_of(&self, address: IpAddr) -> Option<i64> {
        self.0.get(&address).copied()
    }

    pub fn begin(&mut self, address: IpAddr, end: i64) {
        self.0.insert(address, end);
    }

    pub fn end(&mut self, address: IpAddr) {
        self.0.remove(&address);
    }

    pub fn retain(&mut self, mut keep: impl FnMut(IpAddr) -> bool) {
        self.0.retain(|address, _| keep(*address));
    }

    /// Ends rests until at most `most` are left: of the tenant who has the most of them, the first to end. A tenant who lays
    /// thousands of addresses to rest ends nobody else's.
    pub fn shorten<'a>(&mut self, most: usize, tenant: impl Fn(IpAddr) -> &'a str) {
        let mut of_tenants: BTreeMap<&str, Vec<Reverse<(i64, IpAddr)>>> = BTreeMap::new();
        for (address, end) in &self.0 {
            of_tenants.entry(tenant(*address)).or_default().push(Reverse((*end, *address)));
        }
        let mut by_number: BinaryHeap<_> = of_tenants
            .into_values()
            .map(|rests| (rests.len(), BinaryHeap::from(rests)))
            .map(|(number, rests)| (number, rests.peek().copied(), rests.into_sorted_vec()))
            .collect();
        while self.0.len() > most {
            let Some((number, _, mut rests)) = by_number.pop() else { return };
            // the last one of the sorted ends first
            if let Some(Reverse((_, address))) = rests.pop() {
                self.0.remove(&address);
            }
            by_number.push((number.saturating_sub(1), rests.last().copied(), rests));
        }
    }

    /// In numeric order of the addresses.
    pub fn iter(&self) -> impl Iterator<Item = (IpAddr, i64)> {
        self.0.iter().map(|(address, end)| (*address, *end))
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    #[test]
    fn a_forged_end_is_no_later_than_a_rest_that_begins_now() {
        let entries = [(ip(1), i64::MAX), (ip(2), 105), (ip(3), 100), (ip(4), i64::MIN)];
        let read = |longest| Resting::read(entries, 100, longest).iter().collect::<Vec<_>>();
        assert_eq!(read(60), [(ip(1), 161), (ip(2), 105)]);
        assert_eq!(read(0), [], "without a rest for new ones the old ones end");
        assert_eq!(read(-5), []);
        assert_eq!(read(i64::MAX)[0], (ip(1), 101 + LONGEST_REST));
    }

    #[test]
    fn of_too_many_rests_those_of_who_has_the_most_end_first() {
        let entries = [(ip(1), 110), (ip(2), 101), (ip(3), 140), (ip(4), 120), (ip(5), 130), (ip(6), 105)];
        let of_evil = [ip(3), ip(4), ip(5), ip(6)];
        let left = |most| {
            let mut resting = Resting::read(entries, 100, 60);
            resting.shorten(most, |address| if of_evil.contains(&address) { "evil" } else { "shop" });
            resting.iter().map(|(address, _)| address).collect::<Vec<_>>()
        };
        assert_eq!(left(6).len(), 6);
        assert_eq!(left(5), [1, 2, 3, 4, 5].map(ip));
        assert_eq!(left(4), [1, 2, 3, 5].map(ip), "the victim's would have ended first");
        // of two with as many the one whose first ends first
        assert_eq!(left(3), [1, 3, 5].map(ip));
        assert!(left(0).is_empty());
    }
}
