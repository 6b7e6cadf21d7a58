//! Merges two documents: the values of the first one win, lists are appended, maps are merged.
//!
//! Upstream replaces an explicit `false`, `0` or `""` of the first document (docs/contract/node-driver.md#B17); this merge
//! replaces only absent values and null.

use super::{Map, Node};

/// A list or a map of the second document that is lost, because the first has a value of another type there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Conflict {
    /// Keys from the root, joined by dots.
    pub path: String,
}

/// Merges `second` into `first`.
pub(crate) fn merge(first: &mut Map, second: Map) -> Vec<Conflict> {
    let mut conflicts = vec![];
    merge_at(first, second, "", &mut conflicts);
    conflicts
}

fn merge_at(first: &mut Map, second: Map, path: &str, conflicts: &mut Vec<Conflict>) {
    for (key, value) in second.entries {
        if value.is_null() {
            continue;
        }
        let name = match &key {
            Node::Scalar { text, .. } => text.as_str(),
            _ => unreachable!("keys are scalars, the builder sees to it"),
        };
        let path = if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
        let present = first.entries.iter_mut().find(|(known, _)| super::same_key(known, &key));
        match (present.map(|(_, value)| value), value) {
            (None, value) => first.entries.push((key, value)),
            (Some(present), value) if present.is_null() => *present = value,
            (Some(Node::List { items, .. }), Node::List { items: more, .. }) => items.extend(more),
            (Some(Node::Map(present)), Node::Map(value)) => merge_at(present, value, &path, conflicts),
            (Some(_), Node::Scalar { .. }) => {}
            (Some(_), Node::List { .. } | Node::Map(_)) => conflicts.push(Conflict { path }),
        }
    }
}
