//! Errors as sentences for people.

use std::io;

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
        kube::Error::Api(status) => format!("{} ({})", status.message, status.code),
        _ => one_line(error),
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
