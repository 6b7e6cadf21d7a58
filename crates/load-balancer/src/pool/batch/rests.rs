//! The annotation of a pool that names the addresses that rest.

use std::net::IpAddr;

use harvester_api::{IPPool, annotations, condition};
use ipam::{Record, Resting};
use kube::ResourceExt as _;
use serde_json::{Value, json};

/// The API server takes so many bytes of all annotations of an object together.
const ALL_ANNOTATIONS: usize = 256 << 10;
/// So many of them are left to whoever writes annotations next.
const LEFT: usize = 8 << 10;
/// The ends of rests take no more.
const MOST_BYTES: usize = 100_000;

/// The sentence of the condition of a pool that has no room for them.
pub(super) const CUT_SHORT: &str = "the object has no room for everything that rests: of what the namespace with the most of \
                                    it released, some is given out before its rest is over";

/// About the bytes of an entry in the store, with the escaped quotes.
pub(super) fn bytes(address: IpAddr) -> usize {
    address.to_string().len() + r#"\"\":\"2026-01-01T00:00:00Z\","#.len()
}

/// The bytes that the other annotations leave.
pub(super) fn room(pool: &IPPool) -> usize {
    let others = pool.annotations().iter().filter(|(key, _)| *key != annotations::QUARANTINE);
    let others: usize = others.map(|(key, value)| key.len() + value.len()).sum();
    let left = ALL_ANNOTATIONS.saturating_sub(LEFT + annotations::QUARANTINE.len() + others);
    left.min(MOST_BYTES)
}

/// Ends rests where there are too many to write down, those of the namespace that has the most of them first. Answers
/// whether it did.
pub(super) fn bound(resting: &mut Resting, record: &Record, room: usize) -> bool {
    let namespace = |address| {
        let holder = record.last_holder(address).unwrap_or_default();
        holder.split_once('/').map_or(holder, |(namespace, _)| namespace)
    };
    let mut is_cut = false;
    loop {
        let size = size(resting);
        if size <= room {
            return is_cut;
        }
        resting.shorten(resting.len() * room / size, namespace);
        is_cut = true;
    }
}

/// Whether the condition goes on to say so: it does until a tenth of the room is free again, and does not change with each
/// release.
pub(super) fn stays_cut(
    pool: &IPPool,
    resting: &Resting,
    room: usize,
    size_of_pool: usize,
    limit: usize,
) -> bool {
    let conditions = pool.status.as_ref().map_or(&[][..], |status| &status.conditions);
    let is_told = condition::ready(conditions).is_some_and(|ready| ready.message.contains(CUT_SHORT));
    is_told
        && pool.spec.quarantine_seconds > 0
        && (size(resting) > room / 10 * 9 || size_of_pool > limit / 10 * 9)
}

fn size(resting: &Resting) -> usize {
    resting.iter().map(|(address, _)| bytes(address)).sum()
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
