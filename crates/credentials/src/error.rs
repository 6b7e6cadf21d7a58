//! Errors as sentences for people.

use std::io;

/// Why there is no kubeconfig: a sentence for people.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Error(String);

pub(crate) fn fault(text: impl Into<String>) -> Error {
    Error(text.into())
}

impl From<kube::Error> for Error {
    fn from(error: kube::Error) -> Self {
        Self(sentence(&error))
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        Self(error.to_string())
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
