//! Decodes flags that may be base64: Rancher's form encodes them, users of the command line mostly do not.

use base64::{Engine as _, engine::general_purpose::STANDARD};

/// Decodes base64 if `expected` recognises the result; otherwise the text itself. Upstream decodes each text of the right
/// letters, and so makes garbage of plain words (docs/contract/node-driver.md#B20).
pub(crate) fn decoded(text: &str, expected: fn(&str) -> bool) -> String {
    let compact: String = text.trim().chars().filter(|letter| !matches!(letter, '\r' | '\n')).collect();
    STANDARD
        .decode(compact)
        .ok()
        .and_then(|bytes| String::from_utf8(bytes).ok())
        .filter(|decoded| expected(decoded))
        .unwrap_or_else(|| text.to_owned())
}

/// Whether a text looks like YAML, JSON or a script, and not like decoded random bytes.
pub(crate) fn is_document(text: &str) -> bool {
    let printable = text.chars().all(|letter| !letter.is_control() || matches!(letter, '\n' | '\r' | '\t'));
    printable && (text.is_empty() || text.contains([':', '{', '#', '[', '\n']))
}

/// Whether a text looks like a document, or is JSON such as `null`.
pub(crate) fn is_json_or_document(text: &str) -> bool {
    is_document(text) || serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::encoded("I2Nsb3VkLWNvbmZpZwphOiAxCg==", "#cloud-config\na: 1\n")]
    #[case::encoded_in_lines("I2Nsb3VkLWNv\r\nbmZpZwphOiAxCg==\n", "#cloud-config\na: 1\n")]
    #[case::plain("#cloud-config\na: 1\n", "#cloud-config\na: 1\n")]
    #[case::without_padding_it_is_plain("YTogMQo", "YTogMQo")]
    // docs/contract/node-driver.md#B20
    #[case::a_word_that_could_be_base64("password", "password")]
    #[case::letters_that_decode_to_letters("aGVsbG8=", "aGVsbG8=")]
    #[case::empty("", "")]
    fn base64_is_decoded_where_a_document_comes_of_it(#[case] text: &str, #[case] expected: &str) {
        assert_eq!(decoded(text, is_document), expected);
    }

    #[rstest]
    // docs/contract/node-driver.md#B14
    #[case::null("bnVsbA==", "null")]
    #[case::object("e30=", "{}")]
    #[case::plain_null("null", "null")]
    #[case::a_word("password", "password")]
    fn where_json_is_expected_null_is_decoded_too(#[case] text: &str, #[case] expected: &str) {
        assert_eq!(decoded(text, is_json_or_document), expected);
    }
}
