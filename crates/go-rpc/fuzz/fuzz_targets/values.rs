//! Any bytes as a stream of gobs: no panic, and what decodes comes back equal.

#![no_main]

use go_rpc::{Decoder, Encoder, Limits, next_value};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let (mut decoder, mut rest) = (Decoder::new(Limits::default()), bytes);
    while let Ok(Some(typed)) = next_value(&mut decoder, &mut rest) {
        let mut again = Vec::new();
        Encoder::new().encode_typed(&typed, &mut again).expect("what was decoded can be encoded");
        let back = next_value(&mut Decoder::new(LARGE), &mut &again[..]);
        // floats may be NaN, which equals nothing: compare what is written
        let mut third = Vec::new();
        let back = back.expect("what was encoded can be decoded").expect("there is a value");
        Encoder::new().encode_typed(&back, &mut third).expect("what was decoded can be encoded");
        assert_eq!(again, third);
    }
});

/// Descriptors in front can make a value longer than it came.
const LARGE: Limits = Limits { value: 64 << 20, memory: 64 << 20, types: 64 << 20, depth: 64 };
