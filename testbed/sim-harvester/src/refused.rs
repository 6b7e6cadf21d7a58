//! Writes that the API server refuses, and refusals that are none: what is there already, or gone already, is as wanted.

use controller_kit::ObjectKey;

/// A write was refused.
#[derive(Debug, thiserror::Error)]
#[error("{what} {object}")]
pub(crate) struct Error {
    what: &'static str,
    object: ObjectKey,
    source: kube::Error,
}

impl Error {
    /// For `map_err`: the action that was tried, and its object.
    pub(crate) fn of(what: &'static str, object: &ObjectKey) -> impl FnOnce(kube::Error) -> Self {
        move |source| Self { what, object: object.clone(), source }
    }

    /// Whether the object was written after it was read.
    pub(crate) fn is_conflict(&self) -> bool {
        matches!(&self.source, kube::Error::Api(status) if status.is_conflict())
    }
}

/// Nothing for an object that is gone: it needs no write any more.
pub(crate) fn unless_gone<K>(answer: kube::Result<K>) -> kube::Result<Option<K>> {
    match answer {
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(None),
        answer => answer.map(Some),
    }
}

/// Nothing for an object that is there already: the watch tells of it.
pub(crate) fn unless_there<K>(answer: kube::Result<K>) -> kube::Result<Option<K>> {
    match answer {
        Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(None),
        answer => answer.map(Some),
    }
}
