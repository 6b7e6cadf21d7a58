//! Arbitrary bytes never panic, and never allocate beyond the limits.
//!
//! `GO_RPC_INPUTS` says how many inputs are generated; the full run tries a million.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

#[path = "all/corpus.rs"]
mod corpus;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::env;

use go_rpc::{DecodeError, Limits, Server};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRunner};
use rstest::rstest;
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

use corpus::decode;

/// Counts what the current thread has allocated, so that tests beside this one do not matter.
struct Counting;

thread_local! {
    static NOW: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

fn count(bytes: isize) {
    let now = NOW.get() + bytes;
    NOW.set(now);
    PEAK.set(PEAK.get().max(now));
}

#[expect(unsafe_code, reason = "a global allocator is unsafe by its nature; this one only counts")]
// SAFETY: every call goes to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promise is passed on
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller's promise is passed on
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // both live while the bytes move
        count(size as isize);
        count(-(layout.size() as isize));
        // SAFETY: the caller's promise is passed on
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Decodes the stream and returns the most bytes that were allocated at a time.
fn peak(limits: Limits, bytes: &[u8]) -> (usize, Option<DecodeError>) {
    let before = NOW.get();
    PEAK.set(before);
    let (mut bytes, mut decoder) = (bytes, go_rpc::Decoder::new(limits));
    let error = loop {
        match go_rpc::next_value(&mut decoder, &mut bytes) {
            Ok(Some(_)) => {}
            Ok(None) => break None,
            Err(error) => break Some(error),
        }
    };
    ((PEAK.get() - before).cast_unsigned(), error)
}

/// Small, so that a breach shows.
const LIMITS: Limits = Limits { value: 64 << 10, memory: 96 << 10, types: 32 << 10, depth: 32 };

/// The decoder's own memory: its stack.
const OWN: usize = 16 << 10;

fn check(bytes: &[u8]) {
    let (peak, _) = peak(LIMITS, bytes);
    assert!(peak <= LIMITS.memory + LIMITS.types + OWN, "{peak} bytes allocated for {bytes:02x?}");
}

fn inputs() -> u32 {
    env::var("GO_RPC_INPUTS").map_or(10_000, |text| text.parse().expect("GO_RPC_INPUTS is a number"))
}

/// The default generator of random numbers takes two thirds of the time in a build without optimisation.
fn quick(cases: u32) -> Config {
    Config { cases, failure_persistence: None, rng_algorithm: RngAlgorithm::XorShift, ..Config::default() }
}

#[derive(Clone, Debug)]
enum Change {
    Set(u8),
    Flip(u8),
    Remove,
    Insert(u8),
    Repeat(u8),
}

fn change() -> impl Strategy<Value = Change> {
    // bytes that mean something: lengths, small numbers, ids
    let byte = prop_oneof![any::<u8>(), 0..9_u8, 0xf7..=0xff_u8];
    prop_oneof![
        byte.clone().prop_map(Change::Set),
        (0..8_u8).prop_map(|bit| Change::Flip(1 << bit)),
        Just(Change::Remove),
        byte.prop_map(Change::Insert),
        (1..32_u8).prop_map(Change::Repeat),
    ]
}

fn changed(stream: &[u8], changes: Vec<(u16, Change)>) -> Vec<u8> {
    let mut bytes = stream.to_vec();
    for (at, change) in changes {
        let at = usize::from(at) % bytes.len().max(1);
        match change {
            _ if bytes.is_empty() => {}
            Change::Set(byte) => bytes[at] = byte,
            Change::Flip(bit) => bytes[at] ^= bit,
            Change::Remove => drop(bytes.remove(at)),
            Change::Insert(byte) => bytes.insert(at, byte),
            Change::Repeat(length) => {
                let end = bytes.len().min(at + usize::from(length));
                let part = bytes[at..end].to_vec();
                bytes.splice(at..at, part);
            }
        }
    }
    bytes
}

#[test]
fn changed_vectors_never_panic_and_stay_within_the_limits() {
    // the long sessions repeat what the short ones have: a part of each keeps this quick
    let streams: Vec<Vec<u8>> =
        corpus::streams().into_iter().map(|stream| stream[..stream.len().min(700)].to_vec()).collect();
    let config = quick(inputs());
    let changes = proptest::collection::vec((any::<u16>(), change()), 0..5);
    let result = TestRunner::new(config).run(&(0..streams.len(), changes), |(stream, changes)| {
        check(&changed(&streams[stream], changes));
        Ok(())
    });
    result.unwrap();
}

#[test]
fn whole_vectors_stay_within_the_limits() {
    for stream in corpus::streams() {
        check(&stream);
    }
}

proptest! {
    #![proptest_config(quick(inputs() / 10))]

    #[test]
    fn noise_never_panics_and_stays_within_the_limits(bytes: Vec<u8>) {
        check(&bytes);
    }
}

/// Messages around their contents.
fn messages(contents: &[&[u8]]) -> Vec<u8> {
    contents.iter().flat_map(|contents| [&[contents.len() as u8][..], contents].concat()).collect()
}

#[rstest]
// []interface: two bytes promise 32767 elements
#[case::slice(messages(&[&[0x7f, 2, 1, 2, 0xff, 0x80, 0, 1, 0x10, 0, 0], &[0xff, 0x80, 0, 0xfe, 0x7f, 0xff]]))]
// map[string]string with as many pairs
#[case::map(messages(&[&[0x7f, 4, 1, 2, 0xff, 0x80, 0, 1, 0x0c, 1, 0x0c, 0, 0], &[0xff, 0x80, 0, 0xfe, 0x3f, 0xff]]))]
// [2^40]bool
#[case::array(messages(&[
    &[0x7f, 1, 1, 2, 0xff, 0x80, 0, 1, 2, 1, 0xfa, 2, 0, 0, 0, 0, 0, 0, 0],
    &[0xff, 0x80, 0, 0xfa, 1, 0, 0, 0, 0, 0],
]))]
// a struct descriptor that promises 2^56 fields
#[case::fields(messages(&[&[0x7f, 3, 1, 2, 0xff, 0x80, 0, 1, 0xf8, 1, 0, 0, 0, 0, 0, 0, 0]]))]
fn promises_of_many_elements_allocate_nothing(#[case] bytes: Vec<u8>) {
    let (peak, error) = peak(LIMITS, &bytes);
    assert!(error.is_some());
    assert!(peak < 8 << 10, "{peak} bytes allocated, then {error:?}");
}

#[test]
fn many_types_and_ever_longer_chains_of_them_have_a_limit() {
    // each is a slice of the one before, and each is used: whoever builds them anew every time needs n² memory
    let mut bytes = Vec::new();
    for id in 64..4000_i64 {
        let mut descriptor = Vec::new();
        let int = |out: &mut Vec<u8>, value: i64| {
            let zigzag = ((value << 1) ^ (value >> 63)) as u64;
            out.extend([0xfe, (zigzag >> 8) as u8, zigzag as u8]);
        };
        int(&mut descriptor, -id);
        descriptor.extend([2, 1, 2]);
        int(&mut descriptor, id);
        descriptor.extend([0, 1]);
        int(&mut descriptor, if id == 64 { 8 } else { id - 1 });
        descriptor.extend([0, 0]);
        let mut value = Vec::new();
        int(&mut value, id);
        value.extend([0, 0]);
        bytes.extend(messages(&[&descriptor, &value]));
    }
    let (peak, error) = peak(LIMITS, &bytes);
    assert_eq!(error, Some(DecodeError::TooManyTypes { limit: LIMITS.types }));
    assert!(peak <= LIMITS.types + OWN, "{peak}");
}

#[test]
fn a_value_in_endless_pieces_has_a_limit() {
    // an interface whose type never comes, only descriptors of others
    let mut bytes = messages(&[&[0x10, 0, 1, b'x']]);
    let empty = [0x7f, 3, 1, 2, 0xff, 0x80, 0, 0, 0];
    bytes.extend(messages(&[&empty]));
    bytes.extend(messages(&[&[0]]).repeat(3));
    assert!(decode(LIMITS, &bytes).1.is_some());
    // and messages without contents
    let limits = Limits { value: 100, ..LIMITS };
    assert_eq!(decode(limits, &[0; 1000]).1, Some(DecodeError::Truncated));
}

#[test]
fn a_server_survives_changed_sessions() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let streams: Vec<Vec<u8>> = corpus::SESSIONS
        .iter()
        .map(|name| {
            let steps = corpus::file(name);
            steps
                .iter()
                .filter(|step| step.get("call").is_some())
                .flat_map(|step| corpus::unhex(&step["request"]))
                .take(700)
                .collect()
        })
        .collect();
    let config = quick(inputs() / 50);
    let changes = proptest::collection::vec((any::<u16>(), change()), 0..5);
    let result = TestRunner::new(config).run(&(0..streams.len(), changes), |(stream, changes)| {
        let bytes = changed(&streams[stream], changes);
        runtime.block_on(async {
            let (mut ours, theirs) = duplex(1 << 12);
            let server = Server::new(LIMITS, []);
            let serving = tokio::spawn(async move { server.serve_gobs(theirs).await });
            // the server may hang up at once; it must end in any case
            let (mut read, mut write) = tokio::io::split(&mut ours);
            let mut answers = Vec::new();
            let ask = async {
                write.write_all(&bytes).await.ok();
                write.shutdown().await.ok();
            };
            let ((), read) = tokio::join!(ask, read.read_to_end(&mut answers));
            read.unwrap();
            serving.await.expect("the server does not panic").ok();
        });
        Ok(())
    });
    result.unwrap();
}
