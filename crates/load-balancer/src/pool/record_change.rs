//! The records that a change of a pool brings and takes: found by one walk over both versions, for all who are told of it.

use std::{cmp::Ordering, collections::BTreeMap, net::IpAddr};

use controller_kit::{Change, ObjectKey, RawObject};
use harvester_api::IPPool;

use crate::steps::step;

type Record = BTreeMap<String, String>;

/// Addresses as the pool writes them, each with its holder. One that goes from one holder to another is in both lists.
#[derive(Debug, Default)]
pub(crate) struct RecordChange<'a> {
    pub(crate) gone: Vec<(&'a str, &'a str)>,
    pub(crate) come: Vec<(&'a str, &'a str)>,
}

impl<'a> RecordChange<'a> {
    pub(crate) fn of(change: &'a Change<RawObject<IPPool>>) -> Self {
        let [old, new] = [&change.old, &change.new].map(|pool| {
            let status = pool.as_ref().and_then(|pool| pool.status.as_ref());
            status.map(|status| &status.allocated)
        });
        Self::between(old, new)
    }

    fn between(old: Option<&'a Record>, new: Option<&'a Record>) -> Self {
        let (mut difference, [mut old, mut new]) =
            (Self::default(), [old, new].map(|record| record.into_iter().flatten().peekable()));
        loop {
            let side = match (old.peek(), new.peek()) {
                (None, None) => return difference,
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some((before, _)), Some((now, _))) => before.cmp(now),
            };
            step();
            let before = old.next_if(|_| side != Ordering::Greater);
            let now = new.next_if(|_| side != Ordering::Less);
            if before != now {
                let texts = |(key, holder): (&'a String, &'a String)| (key.as_str(), holder.as_str());
                difference.gone.extend(before.map(texts));
                difference.come.extend(now.map(texts));
            }
        }
    }

    /// The addresses that went, or came, or changed hands.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.gone.iter().chain(&self.come).filter_map(|(key, _)| address(key))
    }

    /// The addresses that the pool records now and did not record for the same holder before.
    pub(crate) fn newly_recorded(&self) -> impl Iterator<Item = IpAddr> {
        self.come.iter().filter_map(|(key, _)| address(key))
    }

    /// The load balancers that lost a record.
    pub(crate) fn lost_holders(&self) -> impl Iterator<Item = ObjectKey> {
        self.gone.iter().filter_map(|(_, holder)| load_balancer_of(holder))
    }
}

/// The load balancer that a record names. Another program's holder may be no name of one: the server is not asked for it, and the
/// record is never ours to release.
pub(crate) fn load_balancer_of(holder: &str) -> Option<ObjectKey> {
    let is_part = |part: &str| {
        let inner = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || *byte == b'-';
        !part.is_empty()
            && !part.starts_with('-')
            && !part.ends_with('-')
            && part.as_bytes().iter().all(inner)
    };
    let key = ObjectKey::parse(holder)?;
    let is_name = key.name.len() <= 253 && key.name.split('.').all(is_part);
    (key.namespace.len() <= 63 && is_part(&key.namespace) && is_name).then_some(key)
}

/// Another program may have written an IPv4 address as a mapped one.
pub(crate) fn address(key: &str) -> Option<IpAddr> {
    key.parse::<IpAddr>().ok().map(|address| address.to_canonical())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::steps::steps_of;

    fn record(records: &serde_json::Value) -> Record {
        serde_json::from_value(records.clone()).unwrap()
    }

    #[test]
    fn only_records_that_change_hands_are_told() {
        let before = record(&json!({"10.0.0.7": "shop/web", "10.0.0.8": "shop/api", "10.0.0.9": "shop/db"}));
        let after = record(&json!({"10.0.0.7": "shop/web", "10.0.0.8": "shop/new", "10.0.0.10": "shop/db"}));
        let change = RecordChange::between(Some(&before), Some(&after));
        assert_eq!(change.gone, [("10.0.0.8", "shop/api"), ("10.0.0.9", "shop/db")]);
        assert_eq!(change.come, [("10.0.0.10", "shop/db"), ("10.0.0.8", "shop/new")]);
        assert_eq!(RecordChange::between(None, Some(&before)).come.len(), 3);
        // another program wrote the key so; backends report the address by its own family
        let mapped = record(&json!({"::ffff:10.0.0.7": "capi/m-1"}));
        let of_another = RecordChange::between(None, Some(&mapped));
        assert_eq!(of_another.newly_recorded().collect::<Vec<_>>(), [IpAddr::from([10, 0, 0, 7])]);
    }

    #[test]
    fn a_holder_that_no_load_balancer_can_be_named_is_none() {
        for holder in ["shop/web", "shop/web.v-2", "1/2"] {
            assert_eq!(load_balancer_of(holder), ObjectKey::parse(holder), "{holder}");
        }
        let long = format!("{}/web", "n".repeat(64));
        for holder in [
            "web", "shop/", "/web", "vms/a b", "vms/a?b", "../web", "vms/-a", "vms/a..b", "VMS/web", "vms/é",
            &long,
        ] {
            assert_eq!(load_balancer_of(holder), None, "{holder}");
        }
    }

    #[test]
    fn two_versions_of_a_record_are_walked_once_side_by_side() {
        let before: Record = (0..1000).map(|n| (format!("a-{n}"), "shop/web".to_owned())).collect();
        let mut after = before.clone();
        after.remove("a-7");
        after.insert("b".to_owned(), "shop/web".to_owned());
        assert_eq!(steps_of(|| RecordChange::between(Some(&before), Some(&after))), 1001);
    }

    proptest! {
        #[test]
        fn whatever_is_in_one_version_alone_is_told(
            before in prop::collection::btree_map("[a-e]", "[xy]", 0..5),
            after in prop::collection::btree_map("[a-e]", "[xy]", 0..5),
        ) {
            fn differing<'a>(one: &'a Record, other: &Record) -> Vec<(&'a str, &'a str)> {
                let differing = one.iter().filter(|(key, holder)| other.get(*key) != Some(*holder));
                differing.map(|(key, holder)| (key.as_str(), holder.as_str())).collect()
            }
            let change = RecordChange::between(Some(&before), Some(&after));
            prop_assert_eq!(change.gone, differing(&before, &after));
            prop_assert_eq!(change.come, differing(&after, &before));
        }
    }
}
