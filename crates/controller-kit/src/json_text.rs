//! JSON that a server sent, as text again, without the `managedFields`: they are half of an object, and caches do not
//! keep them. The other values are copied as they stand: a tree of them would cost more than all the rest of a read, and a
//! value that is nested deeper than a decoder goes would fail the whole list that it is in.

use std::{borrow::Cow, collections::BTreeMap};

use serde::{Deserialize, Deserializer, de::Error};
use serde_json::value::{RawValue, to_raw_value};

/// The deepest nesting of an object that [`serde_json`] makes a value of, with room for the list around it.
pub(crate) const DEEPEST: usize = 100;

/// The text of one object without `metadata.managedFields`.
///
/// # Errors
/// When the deserializer's input is not a JSON object.
pub(crate) fn without_managed_fields<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let mut fields = BTreeMap::<Cow<'_, str>, Box<RawValue>>::deserialize(deserializer)?;
    if let Some(metadata) = fields.get_mut("metadata")
        // whoever decodes the object reports metadata of a wrong type
        && let Ok(mut inner) = serde_json::from_str::<BTreeMap<Cow<'_, str>, &RawValue>>(metadata.get())
        && inner.remove("managedFields").is_some()
    {
        *metadata = to_raw_value(&inner).map_err(D::Error::custom)?;
    }
    serde_json::to_string(&fields).map_err(D::Error::custom)
}

/// How many objects and lists are inside of each other at the deepest place of a JSON text.
pub(crate) fn depth(json: &str) -> usize {
    let (mut depth, mut deepest, mut in_text, mut escaped) = (0_usize, 0, false, false);
    for byte in json.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = in_text,
            b'"' => in_text = !in_text,
            b'{' | b'[' if !in_text => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b'}' | b']' if !in_text => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
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
    #[case::metadata_of_a_wrong_type(r#"{"metadata":["managedFields"],"spec":{}}"#)]
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

    // an API server stores 10,000 levels where a definition prunes nothing
    #[test]
    fn an_object_may_be_nested_deeper_than_a_decoder_goes() {
        let (open, close) = (r#"{"a":"#.repeat(9_000), "}".repeat(9_000));
        let text = format!(r#"{{"metadata":{{"name":"web"}},"spec":{open}1{close}}}"#);
        assert!(serde_json::from_str::<Value>(&text).is_err());
        let list = format!("[{text},{text}]");
        let list: Vec<Copied> = serde_json::from_str(&list).unwrap();
        assert!(list.iter().all(|Copied(copied)| *copied == text));
        assert_eq!(depth(&text), 9_001);
    }

    #[derive(Deserialize)]
    struct Copied(#[serde(deserialize_with = "without_managed_fields")] String);

    #[rstest]
    #[case::scalar("1", 0)]
    #[case::flat(r#"{"a":[],"b":{}}"#, 2)]
    #[case::brackets_in_a_text(r#"["[[\"[[","\\"]"#, 1)]
    fn depth_counts_what_is_open_at_once(#[case] json: &str, #[case] expected: usize) {
        assert_eq!(depth(json), expected);
    }

    #[test]
    fn what_is_no_json_is_an_error() {
        let mut cut = serde_json::Deserializer::from_str(r#"{"a":[1"#);
        assert!(without_managed_fields(&mut cut).is_err());
    }
}
