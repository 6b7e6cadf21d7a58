//! The forms of names that Kubernetes takes.

/// Longest name of a Namespace, of a Service, and of a port of one.
const LONGEST_LABEL: usize = 63;

/// Lowercase letters, digits and `-`, beginning and ending with one of the first two.
fn is_part(part: &str) -> bool {
    let ends = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let inner = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || *byte == b'-';
    let bytes = part.as_bytes();
    ends(bytes.first()) && ends(bytes.last()) && bytes.iter().all(inner)
}

/// A part of at most 63 characters: the name of a Namespace.
pub(crate) fn is_label(name: &str) -> bool {
    name.len() <= LONGEST_LABEL && is_part(name)
}

/// A label that begins with a letter. Kubernetes asks that of a Service where the gate `RelaxedServiceNameValidation`
/// is off: it is new in 1.34 and on for all in 1.37.
pub(crate) fn is_service_name(name: &str) -> bool {
    is_label(name) && name.starts_with(|first: char| first.is_ascii_lowercase())
}

/// At most 253 characters, in parts between dots: the name of most objects.
pub(crate) fn is_subdomain(name: &str) -> bool {
    name.len() <= 253 && name.split('.').all(is_part)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::label("team-a", true, true)]
    #[case::digit("1a", true, true)]
    #[case::longest(&"w".repeat(63), true, true)]
    #[case::too_long(&"w".repeat(64), false, true)]
    #[case::dots("vlan.10", false, true)]
    #[case::much_too_long(&"w".repeat(254), false, false)]
    #[case::empty("", false, false)]
    #[case::dash_at_the_end("a-", false, false)]
    #[case::no_part("a..b", false, false)]
    #[case::path("kube-system/secrets", false, false)]
    #[case::query("a?watch=1", false, false)]
    #[case::above("..", false, false)]
    #[case::uppercase("A", false, false)]
    fn a_name_has_the_form_that_the_api_server_asks_for(
        #[case] name: &str,
        #[case] label: bool,
        #[case] subdomain: bool,
    ) {
        assert_eq!((is_label(name), is_subdomain(name)), (label, subdomain));
    }
}
