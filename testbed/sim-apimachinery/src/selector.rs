//! Label selectors and field selectors, as they stand in the query of a list or watch.
//!
//! The grammar and the error texts are those of kube-apiserver 1.36 (`tests/vectors/selectors.json`).

use serde_json::Value;

use crate::{kind::Kind, status::Cause, validate::names};

pub use fields::{FieldSelector, asked_name};
pub use labels::LabelSelector;

mod fields;
mod labels;

/// Why a selector was refused: the text of the server's 400.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Error(String);

/// Both selectors of a list or watch.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    labels: LabelSelector,
    fields: FieldSelector,
}

impl Selection {
    /// Reads the query parameters `labelSelector` and `fieldSelector` for a list of that kind.
    ///
    /// # Errors
    /// If one does not parse, or a field is not selectable for that kind.
    pub fn parse(kind: &Kind, labels: &str, fields: &str) -> Result<Self, Error> {
        Ok(Self { labels: LabelSelector::parse(labels)?, fields: FieldSelector::parse(kind, fields)? })
    }

    /// Whether the object is selected.
    pub fn matches(&self, object: &Value) -> bool {
        self.labels.matches(object) && self.fields.matches(object)
    }

    /// Whether everything is selected.
    pub fn is_everything(&self) -> bool {
        self.labels.is_everything() && self.fields.is_everything()
    }
}

fn fault(field: &str, value: &str, details: &[String]) -> Option<Error> {
    if details.is_empty() {
        return None;
    }
    let cause = Cause::invalid(field, &Value::from(value), &details.join("; "));
    Some(Error(format!("unable to parse requirement: {field}: {}", cause.message)))
}

fn check_key(key: &str) -> Result<(), Error> {
    fault("<nil>", key, &names::label_key(key)).map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests;
