//! Failed requests to Harvester, in one line for the user who reads a machine's error in Rancher.

use std::{error::Error as _, fmt};

use kube::core::Status;

/// A request failed.
#[derive(Debug, thiserror::Error)]
#[error("{doing}: {}", reason(source))]
pub struct Error {
    doing: String,
    source: kube::Error,
}

impl Error {
    pub(super) fn new(
        verb: &'static str,
        what: &'static str,
        object: impl fmt::Display,
        source: kube::Error,
    ) -> Self {
        Self { doing: format!("{verb} {what} {object}"), source }
    }

    /// The server's answer, if there was one.
    pub fn status(&self) -> Option<&Status> {
        match &self.source {
            kube::Error::Api(status) => Some(status),
            _ => None,
        }
    }

    /// Whether the server answered 409: an object has the name already, or another writer was quicker.
    pub fn is_taken(&self) -> bool {
        self.status().is_some_and(|status| status.code == 409)
    }

    /// Whether the credential lacks the right.
    pub fn is_forbidden(&self) -> bool {
        self.status().is_some_and(|status| status.code == 403)
    }

    /// Whether the same request may succeed later: there was no answer, the server asks for patience, or another writer
    /// was quicker. Without an answer the server may have carried the request out.
    pub fn is_passing(&self) -> bool {
        let passing = |status: &Status| match status.code {
            409 => status.reason != "AlreadyExists",
            code => code == 429 || code >= 500,
        };
        self.status().is_none_or(passing)
    }
}

/// Whether this is a 404 about that very object.
pub(super) fn is_about(error: &kube::Error, plural: &str, name: &str) -> bool {
    let kube::Error::Api(status) = error else { return false };
    let about = status.details.as_ref().is_some_and(|details| details.kind == plural && details.name == name);
    status.code == 404 && about
}

fn reason(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => match status.code {
            401 => {
                "Harvester refuses the credential (401): renew the cloud credential of the Harvester cluster"
                    .to_owned()
            }
            403 => format!("the credential has no right to that (403): {}", one_line(&status.message)),
            // the proxy of Rancher answers for a cluster that it does not know any more
            404 if status
                .details
                .as_ref()
                .is_none_or(|details| details.kind.contains("clusters.management")) =>
            {
                format!(
                    "the server at that address is no Harvester API, or the cluster was registered anew (404): {}",
                    one_line(&status.message)
                )
            }
            _ => one_line(&status.message),
        },
        kube::Error::Auth(_) => "the kubeconfig's credential cannot be used".to_owned(),
        other => format!("Harvester does not answer: {}", chain(other)),
    }
}

/// The texts of an error and of its sources, without repetitions.
fn chain(error: &kube::Error) -> String {
    let mut text = one_line(&error.to_string());
    let mut cause = error.source();
    while let Some(error) = cause {
        let line = one_line(&error.to_string());
        if !text.contains(&line) {
            text = format!("{text}: {line}");
        }
        cause = error.source();
    }
    text
}

pub(crate) fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Replaces the words `not found`: rancher-machine takes an error with them for success or for an absent machine.
pub(crate) fn mask_not_found(text: &str) -> String {
    let mut masked = String::with_capacity(text.len());
    let lower = text.to_ascii_lowercase();
    let mut from = 0;
    while let Some(at) = lower[from..].find("not found") {
        masked.push_str(&text[from..from + at]);
        masked.push_str("missing");
        from += at + "not found".len();
    }
    masked + &text[from..]
}

#[cfg(test)]
mod tests {
    use kube::core::response::StatusDetails;
    use rstest::rstest;

    use super::*;

    fn status(code: u16, message: &str, kind: &str, name: &str) -> kube::Error {
        let details = StatusDetails {
            kind: kind.into(),
            name: name.into(),
            group: String::new(),
            uid: String::new(),
            causes: vec![],
            retry_after_seconds: 0,
        };
        let details = (!kind.is_empty()).then_some(details);
        kube::Error::Api(Box::new(Status { code, details, ..Status::failure(message, "X") }))
    }

    // docs/contract/node-driver.md#1.2: the proxy's 404 is no removed VM
    #[rstest]
    #[case::the_vm(status(404, "x", "virtualmachines", "demo-1"), true)]
    #[case::another_vm(status(404, "x", "virtualmachines", "demo-2"), false)]
    #[case::the_cluster(status(404, "x", "clusters.management.cattle.io", "demo-1"), false)]
    #[case::no_such_path(status(404, "404 page not found", "", ""), false)]
    #[case::forbidden(status(403, "x", "virtualmachines", "demo-1"), false)]
    fn only_a_404_about_the_object_means_that_it_is_gone(#[case] error: kube::Error, #[case] gone: bool) {
        assert_eq!(is_about(&error, "virtualmachines", "demo-1"), gone);
    }

    #[rstest]
    #[case::credential(status(401, "Unauthorized", "", ""), "renew the cloud credential")]
    #[case::right(status(403, "no\nway", "", ""), "no right to that (403): no way")]
    #[case::webhook(status(422, "memory is too small", "", ""), "make VM shop/demo-1: memory is too small")]
    #[case::proxy(status(404, "clusters.management.cattle.io \"c-1\" not found", "", ""), "registered anew")]
    fn an_error_says_what_was_done_and_why_it_failed(#[case] source: kube::Error, #[case] part: &str) {
        let text = Error::new("make", "VM", "shop/demo-1", source).to_string();
        assert!(text.contains(part) && text.starts_with("make VM shop/demo-1: "), "{text}");
        assert_eq!(text.lines().count(), 1);
    }

    #[rstest]
    #[case("nothing", "nothing")]
    #[case("a \"b\" not found, C NOT FOUND", "a \"b\" missing, C missing")]
    #[case("not found", "missing")]
    fn the_words_that_rancher_machine_takes_for_success_are_replaced(
        #[case] text: &str,
        #[case] expected: &str,
    ) {
        assert_eq!(mask_not_found(text), expected);
    }
}
