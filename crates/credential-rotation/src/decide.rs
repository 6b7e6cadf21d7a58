//! Whether a token is to be renewed now. Pure.

use cloud_config::places::is_copy_of;
use jiff::{SignedDuration, Timestamp};

use crate::token::{self, Claims};

/// The question for a new token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    pub namespace: String,
    pub account: String,
    /// That of the source's token, which a person chose. The server may give less, or more.
    pub life: SignedDuration,
    /// The end of the token in use.
    pub ends: Timestamp,
}

/// What is to be done about the credential.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// It was not made to be renewed by its account: nothing is asked.
    Nothing,
    DueAt(Timestamp),
    Ask(Ask),
}

/// Decides by the source, the copy with a newer token where there is one that Harvester takes, and the time of the server that
/// gives tokens.
pub fn decide(source: &str, copy: Option<&str>, now: Timestamp) -> Decision {
    let claims = |text: &str| Claims::of(&token::of_kubeconfig(text, None)?);
    let Some(of_source) = claims(source).filter(Claims::is_made_to_rotate) else { return Decision::Nothing };
    let is_same = |copy: &Claims| {
        copy.is_made_to_rotate()
            && (&copy.namespace, &copy.account) == (&of_source.namespace, &of_source.account)
    };
    let of_copy = copy.filter(|copy| is_copy_of(copy, source)).and_then(claims).filter(is_same);
    // the newest is the one in use, also where the server gave it a shorter life than what is left of the source's
    let newest = of_copy.as_ref().filter(|copy| copy.issued > of_source.issued).unwrap_or(&of_source);
    let (Some((life, _)), Some((_, due)), Some(ends)) = (of_source.life(), newest.life(), newest.ends) else {
        return Decision::Nothing;
    };
    if now < due {
        return Decision::DueAt(due);
    }
    let Claims { namespace, account, .. } = of_source;
    Decision::Ask(Ask { namespace, account, life, ends })
}

#[cfg(test)]
mod tests {
    use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
    use cloud_config::places;
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn kubeconfig(account: &str, issued: i64, ends: i64, bound: &str) -> String {
        let claims = json!({"sub": format!("system:serviceaccount:vms:{account}"), "iat": issued, "exp": ends,
            "kubernetes.io": {"secret": {"name": bound}}});
        let token = URL_SAFE_NO_PAD.encode(claims.to_string());
        format!(
            "{{current-context: a, contexts: [{{name: a, context: {{cluster: a, user: a}}}}],
               users: [{{name: a, user: {{token: e30.{token}.c2ln}}}}]}}"
        )
    }

    fn demo(issued: i64, ends: i64) -> String {
        kubeconfig("demo", issued, ends, "demo-credentials")
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn ask(ends: i64) -> Decision {
        let (namespace, account) = ("vms".to_owned(), "demo".to_owned());
        Decision::Ask(Ask { namespace, account, life: SignedDuration::from_secs(900), ends: at(ends) })
    }

    #[rstest]
    #[case::early(None, 699, Decision::DueAt(at(700)))]
    #[case::due(None, 700, ask(1000))]
    #[case::long_over(None, 5000, ask(1000))]
    #[case::the_copy_is_newer(Some(demo(700, 1600)), 1299, Decision::DueAt(at(1300)))]
    #[case::the_copy_is_due(Some(demo(700, 1600)), 1300, ask(1600))]
    #[case::the_server_gave_less(Some(demo(700, 1000 + 60)), 940, ask(1060))]
    // else each look at the Secret that the leader itself has written would ask for another
    #[case::the_copy_ends_before_the_source(Some(demo(700, 910)), 710, Decision::DueAt(at(840)))]
    #[case::the_copy_ends_before_the_source_and_is_due(Some(demo(700, 910)), 840, ask(910))]
    #[case::the_copy_is_older(Some(demo(1, 10)), 699, Decision::DueAt(at(700)))]
    #[case::the_copy_is_anothers(Some(kubeconfig("other", 700, 9000, "other-credentials")), 700, ask(1000))]
    #[case::nonsense(Some("{".to_owned()), 699, Decision::DueAt(at(700)))]
    fn a_token_is_asked_for_when_the_newest_one_of_the_source_is_due(
        #[case] copy: Option<String>,
        #[case] now: i64,
        #[case] expected: Decision,
    ) {
        let source = demo(100, 1000);
        let copy = copy.map(|text| places::copy(&source, &text));
        assert_eq!(decide(&source, copy.as_deref(), at(now)), expected);
    }

    #[test]
    fn a_copy_of_a_source_that_was_changed_since_counts_for_nothing() {
        let copy = places::copy(&demo(1, 900), &demo(100, 9000));
        assert_eq!(decide(&demo(100, 1000), Some(&copy), at(700)), ask(1000));
    }

    #[test]
    fn nothing_is_asked_for_a_token_that_was_not_made_to_rotate() {
        let certificate = "{current-context: a, users: [{name: a, user: {client-certificate: x}}],
            contexts: [{name: a, context: {cluster: a, user: a}}]}";
        for source in [&kubeconfig("demo", 1, 2, "demo-token"), "", "{", certificate] {
            assert_eq!(decide(source, None, at(700)), Decision::Nothing, "{source}");
        }
    }
}
