//! Events have two groups and one storage: here are the words of one in the words of the other.

use serde_json::{Value, json};

/// Name in `events.k8s.io/v1`, name in core/v1.
const WORDS: &[(&str, &str)] = &[
    ("regarding", "involvedObject"),
    ("note", "message"),
    ("reportingController", "reportingComponent"),
    ("deprecatedSource", "source"),
    ("deprecatedFirstTimestamp", "firstTimestamp"),
    ("deprecatedLastTimestamp", "lastTimestamp"),
    ("deprecatedCount", "count"),
];

/// A kept Event, in the words of `events.k8s.io/v1`.
pub fn to_new(stored: &Value) -> Value {
    let mut event = renamed(stored, |new, core| (core, new));
    event["apiVersion"] = "events.k8s.io/v1".into();
    event
}

/// An Event in the words of `events.k8s.io/v1`, as it is kept.
pub fn from_new(event: &Value) -> Value {
    let mut stored = renamed(event, |new, core| (new, core));
    stored["apiVersion"] = "v1".into();
    if stored["source"].is_null() {
        stored["source"] = json!({});
    }
    stored
}

fn renamed<'a>(event: &Value, order: impl Fn(&'a str, &'a str) -> (&'a str, &'a str)) -> Value {
    let mut renamed = event.clone();
    let Some(fields) = renamed.as_object_mut() else { return renamed };
    for (new, core) in WORDS {
        let (from, to) = order(new, core);
        if let Some(value) = fields.remove(from) {
            fields.insert(to.to_owned(), value);
        }
    }
    renamed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_of_one_group_is_an_event_of_the_other() {
        let core = json!({
            "apiVersion": "v1", "kind": "Event", "involvedObject": {"name": "web"}, "message": "hello",
            "source": {"component": "ccm"}, "reportingComponent": "ccm", "count": 2,
        });
        let new = to_new(&core);
        assert_eq!(
            new,
            json!({
                "apiVersion": "events.k8s.io/v1", "kind": "Event", "regarding": {"name": "web"}, "note": "hello",
                "deprecatedSource": {"component": "ccm"}, "reportingController": "ccm", "deprecatedCount": 2,
            })
        );
        assert_eq!(from_new(&new), core);
    }
}
