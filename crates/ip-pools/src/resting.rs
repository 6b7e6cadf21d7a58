//! The annotation that names the addresses of a pool that rest: a JSON object of addresses and the ends of their rests.

use std::{collections::BTreeMap, net::IpAddr};

use harvester_api::{IPPool, annotations};
use ipam::Resting;
use jiff::Timestamp;
use kube::ResourceExt;
use serde_json::Value;

/// What stands in the annotation, whoever wrote it. An entry that cannot be read is none.
pub fn written_rests(pool: &IPPool) -> BTreeMap<IpAddr, i64> {
    let Some(text) = pool.annotations().get(annotations::QUARANTINE) else { return BTreeMap::new() };
    let entries: BTreeMap<String, Value> = serde_json::from_str(text).unwrap_or_default();
    let entry = |(address, end): (String, Value)| {
        let address: IpAddr = address.parse().ok()?;
        let end: Timestamp = end.as_str()?.parse().ok()?;
        // an end within a second is rounded up
        let up = i64::from(end.subsec_nanosecond() > 0);
        Some((address.to_canonical(), end.as_second().saturating_add(up)))
    };
    entries.into_iter().filter_map(entry).collect()
}

/// The addresses that rest at `now`, in seconds since 1970. No rest is longer than the pool's specification says now.
pub fn resting(pool: &IPPool, now: i64) -> Resting {
    Resting::read(written_rests(pool), now, pool.spec.quarantine_seconds)
}

/// For the annotation; nothing where no address rests.
pub fn resting_text(resting: &Resting) -> Option<String> {
    let entry = |(address, end): (IpAddr, i64)| format!("\"{address}\":\"{}\"", time_text(end));
    let entries: Vec<_> = resting.iter().map(entry).collect();
    (!entries.is_empty()).then(|| format!("{{{}}}", entries.join(",")))
}

/// Seconds since 1970 as RFC 3339.
pub fn time_text(seconds: i64) -> String {
    Timestamp::from_second(seconds).unwrap_or(Timestamp::MAX).strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pool(text: &str) -> IPPool {
        let object = json!({"metadata": {"name": "edge", "annotations": {annotations::QUARANTINE: text}},
            "spec": {"ranges": [], "quarantineSeconds": 60}});
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn what_is_written_is_read_again() {
        let resting = Resting::read([([10, 0, 0, 7].into(), 1_767_225_660)], 1_767_225_600, 60);
        let text = resting_text(&resting).unwrap();
        assert_eq!(text, r#"{"10.0.0.7":"2026-01-01T00:01:00Z"}"#);
        assert_eq!(super::resting(&pool(&text), 1_767_225_600), resting);
        assert_eq!(resting_text(&Resting::default()), None);
    }

    #[test]
    fn garbage_in_the_annotation_lets_nothing_rest_and_stops_nothing() {
        for text in ["", "x", "[]", "null", "{", r#"{"10.0.0.7":7}"#, r#"{"x":"2026-01-01T00:01:00Z"}"#] {
            assert!(written_rests(&pool(text)).is_empty(), "{text}");
        }
        let some = r#"{"x":1,"::ffff:10.0.0.7":"2026-01-01T01:01:00.5+01:00","10.0.0.8":"soon","fd00::7":"9999-01-01T00:00:00Z"}"#;
        let read = resting(&pool(some), 1_767_225_600);
        let v6 = "fd00::7".parse().unwrap();
        assert_eq!(
            read.iter().collect::<Vec<_>>(),
            [([10, 0, 0, 7].into(), 1_767_225_661), (v6, 1_767_225_661)]
        );
    }
}
