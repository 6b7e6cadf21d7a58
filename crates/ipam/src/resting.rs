//! Released addresses that rest: nobody but their former holder gets them before the end of their rest.

use std::{collections::BTreeMap, net::IpAddr};

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

    /// Ends the rests that would end first, until at most `most` are left.
    pub fn shorten(&mut self, most: usize) {
        let mut ends: Vec<_> = self.0.iter().map(|(address, end)| (*end, *address)).collect();
        ends.sort_unstable();
        ends.truncate(self.0.len().saturating_sub(most));
        for (_, address) in ends {
            self.0.remove(&address);
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
    fn of_too_many_the_first_to_end_are_let_go() {
        let mut resting = Resting::read([(ip(1), 130), (ip(2), 110), (ip(3), 120)], 100, 60);
        resting.shorten(3);
        assert_eq!(resting.len(), 3);
        resting.shorten(1);
        assert_eq!(resting.iter().collect::<Vec<_>>(), [(ip(1), 130)]);
        assert_eq!((resting.end_of(ip(1)), resting.end_of(ip(2))), (Some(130), None));
    }
}
