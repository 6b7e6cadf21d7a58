//! The recorded streams in `tests/vectors`.

use std::fs;
use std::path::Path;

use go_rpc::{DecodeError, Decoder, Limits, Typed, next_value};
use serde_json::Value as Json;

pub(crate) fn file(name: &str) -> Vec<Json> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors").join(name);
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

pub(crate) fn unhex(text: &Json) -> Vec<u8> {
    let text = text.as_str().unwrap();
    (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).unwrap()).collect()
}

/// All values of a stream, up to its end or the first error.
pub(crate) fn decode(limits: Limits, mut bytes: &[u8]) -> (Vec<Typed>, Option<DecodeError>) {
    let mut decoder = Decoder::new(limits);
    let mut values = Vec::new();
    loop {
        match next_value(&mut decoder, &mut bytes) {
            Ok(Some(value)) => values.push(value),
            Ok(None) => return (values, None),
            Err(error) => return (values, Some(error)),
        }
    }
}

/// Every stream of every vector: values, and both directions of the sessions without the HTTP upgrade.
pub(crate) fn streams() -> Vec<Vec<u8>> {
    let values = file("02-values.json");
    let values = values
        .iter()
        .map(|vector| vector["encode_calls"].as_array().unwrap().iter().flat_map(unhex).collect());
    let by_hand = file("09-accepted-by-go.json");
    let by_hand = by_hand.iter().map(|vector| unhex(&vector["hex"]));
    let mut all: Vec<Vec<u8>> = values.chain(by_hand).collect();
    for name in SESSIONS {
        let session = file(name);
        for direction in ["request", "response"] {
            let calls = session.iter().filter(|step| step.get("call").is_some());
            all.push(calls.flat_map(|step| unhex(&step[direction])).collect());
        }
    }
    all
}

pub(crate) const SESSIONS: [&str; 6] = [
    "03-session-flags.json",
    "04-session-create.json",
    "05-session-getters.json",
    "06-session-rm.json",
    "07-session-errors.json",
    "11-session-simple-encoder.json",
];
