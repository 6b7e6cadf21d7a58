//! JSON that a server sent, as text again, without the `managedFields`: they are half of an object, and caches do not
//! keep them. Values are copied one by one: a tree of them would cost more than all the rest of a read.

use std::fmt;

use serde::{
    Deserializer, Serialize,
    de::{DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Visitor},
};

/// The text of one object without `metadata.managedFields`.
///
/// # Errors
/// When the deserializer's input is not JSON.
pub(crate) fn without_managed_fields<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let mut text = Vec::new();
    TextCopier { into: &mut text, place: Place::Object }.deserialize(deserializer)?;
    String::from_utf8(text).map_err(D::Error::custom)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Object,
    Metadata,
    Inside,
}

impl Place {
    fn under(self, key: &str) -> Self {
        if self == Self::Object && key == "metadata" { Self::Metadata } else { Self::Inside }
    }
}

/// Copies one value.
struct TextCopier<'a> {
    into: &'a mut Vec<u8>,
    place: Place,
}

impl TextCopier<'_> {
    fn scalar<E: Error>(self, value: &(impl Serialize + ?Sized)) -> Result<(), E> {
        serde_json::to_writer(self.into, value).map_err(E::custom)
    }
}

impl<'de> DeserializeSeed<'de> for TextCopier<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for TextCopier<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("any JSON value")
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<(), E> {
        self.scalar(&value)
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<(), E> {
        self.scalar(&value)
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<(), E> {
        self.scalar(&value)
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<(), E> {
        self.scalar(&value)
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<(), E> {
        self.scalar(value)
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        self.scalar(&())
    }

    fn visit_none<E: Error>(self) -> Result<(), E> {
        self.visit_unit()
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<(), A::Error> {
        let Self { into, .. } = self;
        into.push(b'[');
        let begun = into.len();
        loop {
            let end = into.len();
            if end > begun {
                into.push(b',');
            }
            if values.next_element_seed(TextCopier { into: &mut *into, place: Place::Inside })?.is_none() {
                into.truncate(end);
                break;
            }
        }
        into.push(b']');
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        let Self { into, place } = self;
        into.push(b'{');
        let begun = into.len();
        while let Some(key) = entries.next_key::<String>()? {
            if place == Place::Metadata && key == "managedFields" {
                entries.next_value::<IgnoredAny>()?;
                continue;
            }
            if into.len() > begun {
                into.push(b',');
            }
            serde_json::to_writer(&mut *into, &key).map_err(A::Error::custom)?;
            into.push(b':');
            entries.next_value_seed(TextCopier { into: &mut *into, place: place.under(&key) })?;
        }
        into.push(b'}');
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::Value;

    use super::*;

    #[rstest]
    #[case::scalars(r#"{"a":null,"b":true,"c":-1,"d":18446744073709551615,"e":1.5,"f":"\"\u0000ü"}"#)]
    #[case::nested(r#"{"a":[],"b":{},"c":[1,[2,{"d":3}],""]}"#)]
    #[case::elsewhere(r#"{"spec":{"metadata":{"managedFields":[1]}},"managedFields":2}"#)]
    #[case::no_object("[1,2]")]
    fn a_copy_has_the_same_values(#[case] text: &str) {
        let copied = without_managed_fields(&mut serde_json::Deserializer::from_str(text)).unwrap();
        let same: [Value; 2] = [text, &copied].map(|text| serde_json::from_str(text).unwrap());
        assert_eq!(same[0], same[1], "{copied}");
    }

    #[rstest]
    #[case::first(r#"{"metadata":{"managedFields":[{"f:a":{}}],"name":"web"}}"#)]
    #[case::last(r#"{"metadata":{"name":"web","managedFields":[{"f:a":{}}]}}"#)]
    fn managed_fields_are_left_out(#[case] text: &str) {
        let copied = without_managed_fields(&mut serde_json::Deserializer::from_str(text)).unwrap();
        assert_eq!(copied, r#"{"metadata":{"name":"web"}}"#);
    }

    #[test]
    fn what_is_no_json_is_an_error() {
        let mut cut = serde_json::Deserializer::from_str(r#"{"a":[1"#);
        assert!(without_managed_fields(&mut cut).is_err());
    }
}
