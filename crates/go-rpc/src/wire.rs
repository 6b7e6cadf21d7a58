//! The bytes of a gob: unsigned and signed integers, floats, and a cursor that reads them.
//!
//! Everything on the wire is built from one thing, the unsigned integer: below 128 it is its own byte;
//! else a byte that says how many follow (256 − n), then n bytes, highest first.

use crate::decode::DecodeError;

pub(crate) fn put_uint(out: &mut Vec<u8>, value: u64) {
    let bytes = value.to_be_bytes();
    if value < 128 {
        out.push(bytes[7]);
        return;
    }
    let zeros = value.leading_zeros() / 8;
    let (_, significant) = bytes.split_at(zeros as usize);
    // 256 − n is the two's complement of n in one byte; n is 1 to 8
    out.push((significant.len() as u8).wrapping_neg());
    out.extend_from_slice(significant);
}

/// The sign is the lowest bit, so that small negative numbers stay short.
pub(crate) fn put_int(out: &mut Vec<u8>, value: i64) {
    put_uint(out, ((value << 1) ^ (value >> 63)).cast_unsigned());
}

/// The bytes of the double are reversed, so that round numbers, whose mantissa ends in zeros, stay short.
pub(crate) fn put_float(out: &mut Vec<u8>, value: f64) {
    put_uint(out, value.to_bits().swap_bytes());
}

pub(crate) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_uint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// The rest of one message.
#[derive(Debug)]
pub(crate) struct Cursor<'a> {
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(message: &'a [u8]) -> Self {
        Self { rest: message }
    }

    pub(crate) fn left(&self) -> usize {
        self.rest.len()
    }

    pub(crate) fn uint(&mut self) -> Result<u64, DecodeError> {
        let (&first, rest) = self.rest.split_first().ok_or(DecodeError::Truncated)?;
        if first < 128 {
            self.rest = rest;
            return Ok(u64::from(first));
        }
        let length = usize::from(first.wrapping_neg());
        if length > 8 {
            return Err(DecodeError::IntegerTooLong { length });
        }
        let (bytes, rest) = rest.split_at_checked(length).ok_or(DecodeError::Truncated)?;
        self.rest = rest;
        Ok(bytes.iter().fold(0, |value, &byte| value << 8 | u64::from(byte)))
    }

    pub(crate) fn int(&mut self) -> Result<i64, DecodeError> {
        let value = self.uint()?;
        let half = (value >> 1).cast_signed();
        Ok(if value & 1 == 1 { !half } else { half })
    }

    pub(crate) fn float(&mut self) -> Result<f64, DecodeError> {
        Ok(f64::from_bits(self.uint()?.swap_bytes()))
    }

    /// A length and so many bytes.
    pub(crate) fn bytes(&mut self) -> Result<&'a [u8], DecodeError> {
        let length = self.uint()?;
        let length = usize::try_from(length).map_err(|_| DecodeError::Truncated)?;
        let (bytes, rest) = self.rest.split_at_checked(length).ok_or(DecodeError::Truncated)?;
        self.rest = rest;
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Debug;

    use proptest::prelude::*;
    use serde_json::Value as Json;

    use super::*;

    fn vectors(kind: &str) -> Vec<(Vec<u8>, Json)> {
        let file: Json = serde_json::from_str(include_str!("../tests/vectors/01-primitives.json")).unwrap();
        let pairs = file[kind].as_array().unwrap();
        assert!(!pairs.is_empty());
        pairs.iter().map(|pair| (unhex(pair["hex"].as_str().unwrap()), pair["value"].clone())).collect()
    }

    fn unhex(text: &str) -> Vec<u8> {
        (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).unwrap()).collect()
    }

    fn written(write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut out = Vec::new();
        write(&mut out);
        out
    }

    fn read<'a, T: Debug>(
        bytes: &'a [u8],
        read: impl FnOnce(&mut Cursor<'a>) -> Result<T, DecodeError>,
    ) -> T {
        let mut cursor = Cursor::new(bytes);
        let value = read(&mut cursor).unwrap();
        assert_eq!(cursor.left(), 0);
        value
    }

    #[test]
    fn unsigned_integers_are_byte_for_byte_those_of_go() {
        for (bytes, value) in vectors("uint") {
            let value: u64 = value.as_str().unwrap().parse().unwrap();
            assert_eq!(written(|out| put_uint(out, value)), bytes);
            assert_eq!(read(&bytes, Cursor::uint), value);
        }
    }

    #[test]
    fn signed_integers_are_byte_for_byte_those_of_go() {
        for (bytes, value) in vectors("int") {
            let value: i64 = value.as_str().unwrap().parse().unwrap();
            assert_eq!(written(|out| put_int(out, value)), bytes);
            assert_eq!(read(&bytes, Cursor::int), value);
        }
    }

    #[test]
    fn floats_bools_and_strings_are_byte_for_byte_those_of_go() {
        for (bytes, value) in vectors("float") {
            let value = value.as_f64().unwrap();
            assert_eq!(written(|out| put_float(out, value)), bytes);
            assert_eq!(read(&bytes, Cursor::float).to_bits(), value.to_bits());
        }
        for (bytes, value) in vectors("bool") {
            assert_eq!(written(|out| put_uint(out, value.as_bool().unwrap().into())), bytes);
        }
        for (bytes, value) in vectors("string") {
            let text = value.as_str().unwrap();
            assert_eq!(written(|out| put_bytes(out, text.as_bytes())), bytes);
            assert_eq!(read(&bytes, Cursor::bytes), text.as_bytes());
        }
    }

    #[test]
    fn an_integer_longer_than_needed_is_read() {
        assert_eq!(read(&[0xff, 1], Cursor::uint), 1);
        assert_eq!(read(&[0xf8, 0, 0, 0, 0, 0, 0, 0, 0], Cursor::uint), 0);
    }

    #[test]
    fn an_integer_of_more_than_eight_bytes_or_cut_short_is_refused() {
        assert_eq!(Cursor::new(&[0xf7; 12]).uint(), Err(DecodeError::IntegerTooLong { length: 9 }));
        assert_eq!(Cursor::new(&[0x80; 200]).uint(), Err(DecodeError::IntegerTooLong { length: 128 }));
        assert_eq!(Cursor::new(&[0xfe, 1]).uint(), Err(DecodeError::Truncated));
        assert_eq!(Cursor::new(&[]).uint(), Err(DecodeError::Truncated));
        assert_eq!(Cursor::new(&[3, 1, 2]).bytes(), Err(DecodeError::Truncated));
    }

    proptest! {
        #[test]
        fn integers_and_floats_come_back(unsigned: u64, signed: i64, float: f64) {
            prop_assert_eq!(read(&written(|out| put_uint(out, unsigned)), Cursor::uint), unsigned);
            prop_assert_eq!(read(&written(|out| put_int(out, signed)), Cursor::int), signed);
            prop_assert_eq!(read(&written(|out| put_float(out, float)), Cursor::float).to_bits(), float.to_bits());
        }
    }
}
