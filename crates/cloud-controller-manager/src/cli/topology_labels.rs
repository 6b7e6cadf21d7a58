//! `--topology-labels`: labels of Nodes beside zone and region, from annotations of the instances of their VMs.

/// Labels of Nodes that are not ours to write.
const OTHERS_LABELS: [&str; 4] =
    ["kubernetes.io/hostname", "kubernetes.io/os", "kubernetes.io/arch", "node.kubernetes.io/instance-type"];

/// Characters of a wrong value in a message.
const VALUE_SHOWN: usize = 80;

/// `label`, or `label=annotation` where the annotation has another key.
pub(super) fn read(text: &str) -> Result<(String, String), String> {
    let (label, annotation) = text.split_once('=').unwrap_or((text, text));
    let (label, annotation) = (label.trim(), annotation.trim());
    for key in [label, annotation] {
        if !is_key(key) {
            let shown: String = key.chars().take(VALUE_SHOWN).collect();
            return Err(format!("{shown:?} is no key of a label: use prefix/name, or label=annotation"));
        }
    }
    if OTHERS_LABELS.contains(&label) || label.starts_with("node-role.kubernetes.io/") {
        return Err(format!(
            "the label {label} is written by others: choose another, as my.example.com/host={annotation}"
        ));
    }
    Ok((label.to_owned(), annotation.to_owned()))
}

/// Whether a label or an annotation can have this key.
fn is_key(key: &str) -> bool {
    let (prefix, name) = key.split_once('/').map_or((None, key), |(prefix, name)| (Some(prefix), name));
    let is_word = |text: &str, longest: usize, others: &[u8]| {
        let ends = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
        let bytes = text.as_bytes();
        bytes.len() <= longest
            && ends(bytes.first())
            && ends(bytes.last())
            && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || others.contains(byte))
    };
    is_word(name, 63, b"-_.")
        && prefix.is_none_or(|prefix| {
            is_word(prefix, 253, b"-.") && !prefix.bytes().any(|byte| byte.is_ascii_uppercase())
        })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::one_key("topology.example.com/rack", "topology.example.com/rack", "topology.example.com/rack")]
    #[case::pair("example.com/host=kubernetes.io/hostname", "example.com/host", "kubernetes.io/hostname")]
    #[case::without_prefix("rack = Rack_1", "rack", "Rack_1")]
    fn a_label_has_the_value_of_the_annotation_of_its_key_or_of_the_one_that_is_named(
        #[case] text: &str,
        #[case] label: &str,
        #[case] annotation: &str,
    ) {
        assert_eq!(read(text), Ok((label.to_owned(), annotation.to_owned())));
    }

    #[rstest]
    #[case::hostname("kubernetes.io/hostname", "written by others")]
    #[case::type_of_the_machine("node.kubernetes.io/instance-type=a/b", "written by others")]
    #[case::role("node-role.kubernetes.io/worker=a/b", "written by others")]
    #[case::blank("a b", "no key of a label")]
    #[case::no_annotation("a/b=", "no key of a label")]
    #[case::upper_case_prefix("Example.com/b", "no key of a label")]
    #[case::two_slashes("a/b/c", "no key of a label")]
    fn other_text_is_refused_with_the_reason(#[case] text: &str, #[case] part: &str) {
        assert!(read(text).is_err_and(|why| why.contains(part)));
        assert!(read(&"x".repeat(10_000)).is_err_and(|why| why.len() < 300));
    }
}
