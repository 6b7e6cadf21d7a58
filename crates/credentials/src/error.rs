//! Errors as sentences for people.

use std::io;

use program::text::cut_clean;

/// Longest text of others that is shown.
const LONGEST: usize = 1_000;

/// Text of others for one line of a terminal.
pub(crate) fn shown(text: &str) -> String {
    cut_clean(text, LONGEST)
}

/// Why there is no kubeconfig: a sentence for people.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub(crate) struct Error {
    text: String,
    /// With which the API server refused.
    pub(crate) code: Option<u16>,
}

pub(crate) fn fault(text: impl Into<String>) -> Error {
    Error { text: text.into(), code: None }
}

impl Error {
    /// What is asked for is not there.
    pub(crate) fn not_found(text: String) -> Self {
        Self { text, code: Some(404) }
    }

    /// What is to be made is somebody else's.
    pub(crate) fn conflict(text: String) -> Self {
        Self { text, code: Some(409) }
    }

    /// A sentence about this answer.
    pub(crate) fn of(error: &kube::Error, text: String) -> Self {
        let code = match error {
            kube::Error::Api(status) => Some(status.code),
            _ => None,
        };
        Self { text, code }
    }
}

impl From<kube::Error> for Error {
    fn from(error: kube::Error) -> Self {
        Self::of(&error, sentence(&error))
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        fault(error.to_string())
    }
}

/// What a server or the way to it says, without the object that it says it by.
pub(crate) fn sentence(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => format!("{} ({})", shown(&status.message), status.code),
        _ => shown(&one_line(error)),
    }
}

/// An error with what it stands on.
fn one_line(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let line = inner.to_string();
        if !text.contains(&line) {
            text = format!("{text}: {line}");
        }
        cause = inner.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_server_says_cannot_steer_a_terminal() {
        let status =
            kube::core::Status::failure("\u{1b}]0;x\u{7}no\nnote: all is well", "Forbidden").with_code(403);
        let told = sentence(&kube::Error::Api(status.boxed()));
        assert_eq!(told, "\u{fffd}]0;x\u{fffd}no note: all is well (403)");
    }
}
