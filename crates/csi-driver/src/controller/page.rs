//! Pages of a list. Pure.
//!
//! A token says after which ID a page begins, so it is good for each size of page, in each process and after a restart,
//! and an object that comes or goes moves no other.

use crate::refusal::Refusal;

/// Before the ID in a token. An ID alone is no token.
const AFTER: &str = "after:";

/// One page of what `id` names, in the order of the IDs, and the token of the next page, empty after the last one.
///
/// # Errors
/// For a negative number of entries, and with ABORTED for a token that was not given out.
pub(super) fn page<T>(
    mut all: Vec<T>,
    id: impl Fn(&T) -> &str,
    max_entries: i32,
    token: &str,
) -> Result<(Vec<T>, String), Refusal> {
    let max = usize::try_from(max_entries)
        .map_err(|_| Refusal::invalid(format!("max_entries is {max_entries}: ask for a positive number")))?;
    if !token.is_empty() {
        let after = token.strip_prefix(AFTER).ok_or_else(|| {
            Refusal::aborted("starting_token was not given out by this driver: list from the start")
        })?;
        all.retain(|one| id(one) > after);
    }
    all.sort_by(|one, other| id(one).cmp(id(other)));
    if max == 0 || all.len() <= max {
        return Ok((all, String::new()));
    }
    all.truncate(max);
    let token = all.last().map(|last| format!("{AFTER}{}", id(last))).unwrap_or_default();
    Ok((all, token))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tonic::Code;

    use super::*;

    fn of(all: &[&str], max: i32, token: &str) -> Result<(Vec<String>, String), Refusal> {
        page(all.iter().map(ToString::to_string).collect(), |name| name, max, token)
    }

    #[test]
    fn a_token_survives_another_size_of_page_and_what_was_deleted() {
        let (first, token) = of(&["e", "a", "d", "b", "c"], 2, "").unwrap();
        assert_eq!(first, ["a", "b"]);
        let (rest, end) = of(&["e", "a", "d", "c"], 0, &token).unwrap();
        assert_eq!((rest, end.as_str()), (vec!["c".to_owned(), "d".to_owned(), "e".to_owned()], ""));
    }

    #[test]
    fn the_last_page_has_no_token() {
        assert_eq!(of(&["a", "b"], 2, "").unwrap().1, "");
        assert_eq!(of(&[], 2, "").unwrap().1, "");
    }

    #[test]
    fn a_strange_token_is_aborted_and_a_negative_size_is_invalid() {
        assert_eq!(of(&["a"], 0, "invalid-token").unwrap_err().code, Code::Aborted);
        assert_eq!(of(&["a"], -1, "").unwrap_err().code, Code::InvalidArgument);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn all_pages_together_are_the_list(names in proptest::collection::btree_set("[a-z:]{1,4}", 0..20), max in 1..5_i32) {
            let all: Vec<&str> = names.iter().map(String::as_str).collect();
            let (mut seen, mut token) = (vec![], String::new());
            loop {
                let (page, next) = of(&all, max, &token).unwrap();
                seen.extend(page);
                token = next;
                if token.is_empty() {
                    break;
                }
            }
            prop_assert_eq!(seen, all);
        }
    }
}
