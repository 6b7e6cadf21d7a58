//! Field selectors: `metadata.name=web,status.phase!=Running`.

use serde_json::Value;

use super::Error;
use crate::kind::{Kind, Origin};

/// A conjunction of comparisons of fields with texts; the empty one selects everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSelector(Vec<Term>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Term {
    path: String,
    equal: bool,
    value: String,
}

impl FieldSelector {
    /// Reads the text form for a list of that kind.
    ///
    /// # Errors
    /// If it does not parse, or names a field that cannot be selected by.
    pub fn parse(kind: &Kind, text: &str) -> Result<Self, Error> {
        let terms = terms(text)?;
        // the real server reads the whole text before it looks at the fields
        match terms.iter().find(|term: &&Term| !selectable(kind, &term.path)) {
            Some(term) => Err(unknown(kind, &term.path)),
            None => Ok(Self(terms)),
        }
    }

    /// Whether the object has these values; an absent field is the empty text, numbers and booleans are printed.
    pub fn matches(&self, object: &Value) -> bool {
        self.0.iter().all(|term| (field(object, &term.path) == term.value) == term.equal)
    }

    /// Whether there is no comparison.
    pub fn is_everything(&self) -> bool {
        self.0.is_empty()
    }
}

/// The one name that a list or watch with this selector is about: authorization goes by it
/// (`RequestInfoFactory.NewRequestInfo` of the real server).
pub fn asked_name(text: &str) -> Option<String> {
    let is_path_segment = |name: &str| name != "." && name != ".." && !name.contains(['/', '%']);
    let exact = terms(text).ok()?.into_iter().find(|term| term.equal && term.path == "metadata.name")?;
    Some(exact.value).filter(|name| is_path_segment(name))
}

fn terms(text: &str) -> Result<Vec<Term>, Error> {
    let mut terms = Vec::new();
    for part in split_terms(text) {
        if part.is_empty() {
            continue;
        }
        let (path, equal, value) = ["!=", "==", "="]
            .into_iter()
            .filter_map(|operator| Some((part.find(operator)?, operator)))
            .min_by_key(|(at, operator)| (*at, 2 - operator.len().min(2)))
            .map(|(at, operator)| (&part[..at], operator != "!=", &part[at + operator.len()..]))
            .ok_or_else(|| Error(format!("invalid selector: '{text}'; can't understand '{part}'")))?;
        let value = unescape(value)?;
        terms.push(Term { path: path.to_owned(), equal, value });
    }
    Ok(terms)
}

fn selectable(kind: &Kind, path: &str) -> bool {
    match path {
        "metadata.name" => true,
        "metadata.namespace" => {
            kind.namespaced() || (kind.origin == Origin::Builtin && kind.selectable.is_empty())
        }
        _ => kind.selectable.iter().any(|s| s == path),
    }
}

fn unknown(kind: &Kind, path: &str) -> Error {
    Error(match (kind.origin, kind.selectable.is_empty()) {
        (Origin::Custom, _) => format!("field label not supported: {path}"),
        (Origin::Builtin, true) => {
            format!("{path:?} is not a known field selector: only \"metadata.name\", \"metadata.namespace\"")
        }
        (Origin::Builtin, false) => match kind.kind.as_str() {
            "Pod" | "Node" | "Secret" | "Service" | "Namespace" | "Event" | "ReplicationController" => {
                format!("field label not supported: {path}")
            }
            _ => format!("field label {path:?} not supported for {}", kind.kind),
        },
    })
}

/// Splits at commas that are not escaped.
fn split_terms(text: &str) -> impl Iterator<Item = &str> {
    let mut escaped = false;
    text.split(move |c: char| {
        let separates = c == ',' && !escaped;
        escaped = c == '\\' && !escaped;
        separates
    })
}

fn unescape(value: &str) -> Result<String, Error> {
    let wrong = |what: String| Error(format!("invalid field selector: {what}"));
    let mut out = String::with_capacity(value.len());
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some(escaped @ ('\\' | ',' | '=')) => out.push(escaped),
                Some(other) => return Err(wrong(format!("invalid escape sequence: \\{other}"))),
                None => return Err(wrong("invalid escape sequence: \\".to_owned())),
            },
            ',' | '=' => return Err(wrong(format!("unescaped character in value: {}", u32::from(c)))),
            _ => out.push(c),
        }
    }
    Ok(out)
}

/// The text of a field as selectors compare it.
fn field(object: &Value, path: &str) -> String {
    let mut at = object;
    for step in path.split('.') {
        at = match at.get(step) {
            Some(next) => next,
            None => return if is_flag(path) { "false".to_owned() } else { String::new() },
        };
    }
    match at {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

/// Fields that Go prints as `false` when they are absent.
fn is_flag(path: &str) -> bool {
    matches!(path, "spec.unschedulable" | "spec.hostNetwork")
}
