//! All chance of a thread from one seed: the order of hash maps, tokio's choice among branches that are ready, and the
//! jitter of back-offs. Without this a seed would not make the same run twice.

use std::cell::Cell;

thread_local! {
    static STATE: Cell<u64> = const { Cell::new(0) };
}

/// Everything random in this thread follows from `seed` from now on.
pub(crate) fn begin(seed: u64) {
    STATE.set(seed);
    fastrand::seed(seed);
}

/// Takes the place of libc's function, in this test only: the standard library draws the keys of its hash maps from it,
/// and tokio its seeds from those.
#[expect(unsafe_code, reason = "the C library's interface; no safe crate replaces its source of chance")]
#[unsafe(no_mangle)]
unsafe extern "C" fn getrandom(buffer: *mut u8, length: usize, _flags: u32) -> isize {
    // SAFETY: the caller says that so many bytes may be written there
    let bytes = unsafe { std::slice::from_raw_parts_mut(buffer, length) };
    for byte in bytes {
        // SplitMix64, one step for each byte
        let mut value = STATE.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        STATE.set(value);
        value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        *byte = (value >> 56) as u8;
    }
    isize::try_from(length).unwrap_or(isize::MAX)
}

#[test]
fn hash_maps_of_two_threads_with_one_seed_agree() {
    use std::hash::BuildHasher as _;
    let hashes = [7, 7, 8].map(|seed| {
        let thread = std::thread::spawn(move || {
            begin(seed);
            let state = std::hash::RandomState::new();
            (state.hash_one("web"), fastrand::u64(..))
        });
        thread.join().expect("nobody panics")
    });
    assert_eq!(hashes[0], hashes[1]);
    assert_ne!(hashes[0], hashes[2]);
}
