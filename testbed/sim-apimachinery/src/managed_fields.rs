//! Field ownership: `metadata.managedFields`, kept on every write.
//!
//! ```text
//! old, new ──compare──► added, changed, removed ──► taken from the others, given to the writer
//! ```
//! A writer is known by manager, operation, subresource and (for updates) apiVersion. The rules are those of the real
//! server (`tests/vectors/apply.json` was recorded there). Equal subtrees are passed over, so a write costs what it
//! changes plus one comparison of the whole.

use serde_json::Value;

pub(crate) use compare::{compare, element, elements, set_of};
pub(crate) use entry::{Entry, Operation, entries, write};
pub(crate) use set::FieldSet;

use crate::schema::Schema;

mod compare;
mod entry;
mod set;

/// A writer, the API version and subresource of the write, and its time.
#[derive(Clone, Copy, Debug)]
pub struct Writer<'a> {
    /// `fieldManager`, or the first part of the user agent.
    pub manager: &'a str,
    /// The version that the request used.
    pub api_version: &'a str,
    /// `status` and so on; empty for the object itself.
    pub subresource: &'a str,
    /// RFC 3339, whole seconds.
    pub now: &'a str,
}

/// Writes down what an ordinary write (POST, PUT, the patches other than apply) changed: sets
/// `metadata.managedFields` of `new`, whatever stood there before.
///
/// The list that the request brings is taken where it is readable, else the one of `old`. A request that brings a list
/// without entries turns the bookkeeping off for itself and drops what was there, as on a real server.
pub fn track(schema: &Schema, old: Option<&Value>, new: &mut Value, writer: &Writer<'_>) {
    let given = &new["metadata"]["managedFields"];
    let reset = old.is_some() && is_reset(given);
    let kept = entries(given).filter(|entries| !entries.is_empty());
    let mut managers = kept.or_else(|| entries(&old?["metadata"]["managedFields"])).unwrap_or_default();
    if reset {
        managers.clear();
    } else {
        let changes = compare(schema, old, Some(&*new));
        if !changes.is_empty() {
            let changed = changes.added.union(&changes.modified);
            let own = |entry: &Entry| entry.is(writer, Operation::Update);
            for entry in managers.iter_mut().filter(|entry| !own(entry)) {
                entry.fields = entry.fields.difference(&changed).difference(&changes.removed);
            }
            let at = managers.iter().position(own).unwrap_or_else(|| {
                managers.push(Entry::new(writer, Operation::Update));
                managers.len() - 1
            });
            let entry = &mut managers[at];
            let fields = entry.fields.difference(&changes.removed).union(&changed);
            if fields != entry.fields {
                entry.fields = fields;
                writer.now.clone_into(&mut entry.time);
            }
        }
    }
    write(new, managers);
}

/// Whether a list of owners, or the want of one, can be kept as it is: what webhooks leave need not be.
pub fn is_readable(list: &Value) -> bool {
    list.is_null() || entries(list).is_some()
}

/// `[]` or `[{}]`, the documented way to drop all ownership.
fn is_reset(given: &Value) -> bool {
    given.as_array().is_some_and(|list| {
        list.is_empty() || (list.len() == 1 && list[0].as_object().is_some_and(serde_json::Map::is_empty))
    })
}

#[cfg(test)]
mod tests;
