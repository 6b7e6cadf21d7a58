//! The annotation of a pool that names the addresses that rest.

use std::net::IpAddr;

use harvester_api::annotations;
use ipam::Resting;
use serde_json::{Value, json};

/// All annotations of an object have 256 KiB at most.
const MOST_BYTES: usize = 100_000;

/// About the bytes of an entry in the store, with the escaped quotes.
pub(super) fn bytes(address: IpAddr) -> usize {
    address.to_string().len() + r#"\"\":\"2026-01-01T00:00:00Z\","#.len()
}

/// Ends the rests that would end first, where there are too many to write down.
pub(super) fn bound(resting: &mut Resting) {
    let size: usize = resting.iter().map(|(address, _)| bytes(address)).sum();
    if size > MOST_BYTES {
        resting.shorten(resting.len() * MOST_BYTES / size);
    }
}

pub(super) fn write(json: &mut Value, resting: &Resting) {
    let Some(metadata) = json.pointer_mut("/metadata").and_then(Value::as_object_mut) else { return };
    match ip_pools::resting_text(resting) {
        Some(text) => {
            let map = metadata.entry("annotations").or_insert_with(|| json!({}));
            if let Some(map) = map.as_object_mut() {
                map.insert(annotations::QUARANTINE.to_owned(), text.into());
            }
        }
        None => {
            if let Some(map) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
                map.remove(annotations::QUARANTINE);
            }
        }
    }
}
