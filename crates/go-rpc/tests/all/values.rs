//! Values of every kind.

use go_rpc::{
    DecodeError, Decoder, Encoder, FromGob, GoString, Interface, Kind, Limits, Marshaler, Mismatch, Struct,
    ToGob, Type, Typed, Value, gob_struct, next_value,
};
use proptest::prelude::*;
use rstest::rstest;

use crate::corpus::decode;

fn encoded(typed: &Typed) -> Vec<u8> {
    let mut bytes = Vec::new();
    Encoder::new().encode_typed(typed, &mut bytes).unwrap();
    bytes
}

fn back(typed: &Typed) -> Typed {
    let (mut values, error) = decode(Limits::default(), &encoded(typed));
    assert_eq!((values.len(), error), (1, None));
    values.remove(0)
}

/// A value of any kind with its type, up to three levels deep.
fn typed() -> impl Strategy<Value = Typed> {
    let scalar = prop_oneof![
        any::<bool>().prop_map(|v| v.to_typed()),
        any::<i64>().prop_map(|v| v.to_typed()),
        any::<u64>().prop_map(|v| v.to_typed()),
        any::<f64>().prop_map(|v| v.to_typed()),
        any::<Vec<u8>>().prop_map(|v| v.to_typed()),
        any::<Vec<u8>>().prop_map(|v| GoString::from(v).to_typed()),
        any::<(f64, f64)>().prop_map(|(re, im)| Typed { of: Type::COMPLEX, value: Value::Complex(re, im) }),
        any::<Vec<u8>>()
            .prop_map(|v| Typed { of: Type::opaque("Time", Marshaler::Binary), value: Value::Opaque(v) }),
        Just(Typed { of: Type::INTERFACE, value: Value::Interface(None) }),
    ];
    scalar.prop_recursive(3, 32, 4, |inner| {
        prop_oneof![
            (inner.clone(), 0..4usize).prop_map(|(item, n)| Typed {
                of: Type::slice(item.of),
                value: Value::List(vec![item.value; n])
            }),
            (inner.clone(), 1..4usize).prop_map(|(item, n)| Typed {
                of: Type::array(item.of, n as u64),
                value: Value::List(vec![item.value; n])
            }),
            (inner.clone(), inner.clone(), 0..3usize).prop_map(|(key, element, n)| Typed {
                of: Type::map(key.of, element.of),
                value: Value::Map(vec![(key.value, element.value); n])
            }),
            (inner.clone(), "[*]?[a-z.]{1,20}").prop_map(|(holds, name)| Typed {
                of: Type::INTERFACE,
                value: Interface { name, holds }.into()
            }),
            (proptest::collection::vec(inner, 0..4), "[A-Z][a-z]{0,5}").prop_map(|(fields, name)| {
                let names = ["D", "A", "C", "B"];
                let of = names.into_iter().zip(fields.iter().map(|field| field.of.clone()));
                let of = Type::structure(&name, of);
                let value =
                    names.into_iter().zip(fields).fold(Struct::new(), |all, (n, f)| all.with(n, f.value));
                Typed { of, value: value.into() }
            }),
        ]
    })
}

proptest! {
    #[test]
    fn every_value_comes_back(values in proptest::collection::vec(typed(), 1..4)) {
        let (mut encoder, mut bytes) = (Encoder::new(), Vec::new());
        for typed in &values {
            encoder.encode_typed(typed, &mut bytes).unwrap();
        }
        prop_assert_eq!(decode(Limits::default(), &bytes), (values, None));
    }

    #[test]
    fn a_value_cut_short_is_refused(typed in typed(), at: prop::sample::Index) {
        let whole = encoded(&typed);
        let cut = at.index(whole.len());
        let (values, _) = decode(Limits::default(), &whole[..cut]);
        prop_assert_eq!(values, vec![]);
    }
}

#[derive(Debug, Default, PartialEq)]
struct Point {
    x: i64,
    y: i64,
}
gob_struct!(Point as "Point" { x => "X", y => "Y" });

#[derive(Debug, Default, PartialEq)]
struct Path {
    name: String,
    points: Vec<Point>,
    closed: bool,
}
gob_struct!(Path as "Path" { name => "Name", points => "Points", closed => "Closed" });

#[test]
fn structs_are_matched_by_field_name() {
    let path = Path { name: "p".into(), points: vec![Point { x: 1, y: 0 }, Point::default()], closed: false };
    assert_eq!(Path::from_value(back(&path.to_typed()).value), Ok(path));
    // unknown fields are ignored, missing ones zero
    let other = Struct::new().with("Y", Value::Int(3)).with("Z", Value::Int(4));
    assert_eq!(Point::from_value(other.into()), Ok(Point { x: 0, y: 3 }));
}

#[test]
fn a_mismatch_says_where_it_is() {
    let points = Value::List(vec![Struct::new().with("X", "left").into()]);
    let error = Path::from_value(Struct::new().with("Points", points).into()).unwrap_err();
    assert_eq!(error, Mismatch { path: "Points.X".into(), wanted: "int", found: "string" });
    assert_eq!(error.to_string(), "gob: field Points.X: received string, want int");
}

#[test]
fn time_is_carried_as_its_bytes() {
    // version, seconds since year 1, nanoseconds, offset in minutes (-1: UTC): 1970-01-01T00:00:00Z
    let epoch = [&[1][..], &62_135_596_800_u64.to_be_bytes(), &[0; 4], &[0xff; 2]].concat();
    let time = Typed { of: Type::opaque("Time", Marshaler::Gob), value: Value::Opaque(epoch) };
    assert_eq!(back(&time), time);
}

#[test]
fn a_type_that_contains_itself_comes_back() {
    // struct Node { Next: Node } with id 64, by hand: one node behind another
    let descriptor =
        b"\x1b\x7f\x03\x01\x01\x04Node\x01\xff\x80\x00\x01\x01\x01\x04Next\x01\xff\x80\x00\x00\x00";
    let bytes = [&descriptor[..], b"\x05\xff\x80\x01\x00\x00"].concat();
    let (values, error) = decode(Limits::default(), &bytes);
    assert_eq!(error, None);
    let inner = Struct::new().with("Next", Struct::new());
    assert_eq!(values[0].value, inner.into());
    assert_eq!(values[0].of.kind(), Kind::Struct);
    assert_eq!(values[0].of.field("Next"), Some(values[0].of.clone()));
    assert_eq!(back(&values[0]), values[0]);
}

#[rstest]
#[case::message_too_long(&[0xfc, 0x7f, 0xff, 0xff, 0xff], DecodeError::ValueTooLong { limit: 4 << 20 })]
#[case::length_no_integer(&[0xf0], DecodeError::IntegerTooLong { length: 16 })]
#[case::empty_message(&[0], DecodeError::Truncated)]
#[case::unknown_type(&[3, 0xff, 0x80, 0], DecodeError::UnknownType { id: 64 })]
#[case::type_zero(&[2, 0, 0], DecodeError::UnknownType { id: 0 })]
#[case::singleton(&[3, 4, 1, 2], DecodeError::Singleton)]
#[case::string_longer_than_message(&[4, 0x0c, 0, 9, b'x'], DecodeError::Truncated)]
fn malformed(#[case] bytes: &[u8], #[case] expected: DecodeError) {
    assert_eq!(decode(Limits::default(), bytes), (vec![], Some(expected)));
}

#[test]
fn nesting_has_a_limit() {
    let nested = |levels| {
        (0..levels).fold(true.to_typed(), |inner, _| Typed {
            of: Type::slice(inner.of),
            value: Value::List(vec![inner.value]),
        })
    };
    assert_eq!(back(&nested(64)), nested(64));
    let (_, error) = decode(Limits::default(), &encoded(&nested(65)));
    assert_eq!(error, Some(DecodeError::TooDeep { limit: 64 }));
}

#[test]
fn after_a_value_that_is_none_the_next_message_is_read() {
    let mut decoder = Decoder::new(Limits::default());
    let mut bytes: &[u8] = &[3, 4, 1, 2, 3, 4, 0, 2];
    next_value(&mut decoder, &mut bytes).unwrap_err();
    assert_eq!(next_value(&mut decoder, &mut bytes).unwrap().unwrap().value, Value::Int(1));
}
