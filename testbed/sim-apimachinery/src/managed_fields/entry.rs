//! The entries of `metadata.managedFields`.

use serde_json::{Value, json};

use super::{FieldSet, Writer};

/// More updaters than this are folded into one, so that the list stays short.
const MAX_UPDATERS: usize = 10;
const FOLDED: &str = "ancient-changes";

/// The operation by which a manager came to own fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Operation {
    Apply,
    Update,
}

impl Operation {
    fn name(self) -> &'static str {
        match self {
            Self::Apply => "Apply",
            Self::Update => "Update",
        }
    }
}

/// The fields that one manager owns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) manager: String,
    pub(crate) operation: Operation,
    pub(crate) api_version: String,
    pub(crate) subresource: String,
    pub(crate) time: String,
    pub(crate) fields: FieldSet,
}

impl Entry {
    pub(crate) fn new(writer: &Writer<'_>, operation: Operation) -> Self {
        Self {
            manager: writer.manager.to_owned(),
            operation,
            api_version: writer.api_version.to_owned(),
            subresource: writer.subresource.to_owned(),
            time: writer.now.to_owned(),
            fields: FieldSet::default(),
        }
    }

    /// Whether this is the writer's own entry; an applier stays the same over versions.
    pub(crate) fn is(&self, writer: &Writer<'_>, operation: Operation) -> bool {
        self.operation == operation
            && self.manager == writer.manager
            && self.subresource == writer.subresource
            && (operation == Operation::Apply || self.api_version == writer.api_version)
    }

    fn read(value: &Value) -> Option<Self> {
        let text = |key: &str| value[key].as_str().unwrap_or_default().to_owned();
        let operation = match value["operation"].as_str()? {
            "Apply" => Operation::Apply,
            "Update" => Operation::Update,
            _ => return None,
        };
        Some(Self {
            manager: text("manager"),
            operation,
            api_version: text("apiVersion"),
            subresource: text("subresource"),
            time: text("time"),
            fields: FieldSet::of_json(&value["fieldsV1"])?,
        })
    }

    fn to_json(&self) -> Value {
        let mut entry = json!({
            "manager": self.manager,
            "operation": self.operation.name(),
            "apiVersion": self.api_version,
            "time": self.time,
            "fieldsType": "FieldsV1",
            "fieldsV1": self.fields.to_json(),
        });
        if !self.subresource.is_empty() {
            entry["subresource"] = self.subresource.as_str().into();
        }
        entry
    }
}

/// Reads the list; none if it is absent or one entry is unreadable.
pub(crate) fn entries(list: &Value) -> Option<Vec<Entry>> {
    list.as_array()?.iter().map(Entry::read).collect()
}

/// Writes the list in the server's order: appliers first, then by time and name. An empty one is left out.
pub(crate) fn write(object: &mut Value, mut managers: Vec<Entry>) {
    managers.retain(|entry| !entry.fields.is_empty());
    managers.sort_by(|a, b| {
        let key = |e: &Entry| {
            (e.operation, e.time.clone(), e.manager.clone(), e.api_version.clone(), e.subresource.clone())
        };
        key(a).cmp(&key(b))
    });
    fold(&mut managers);
    let Some(metadata) = object["metadata"].as_object_mut() else { return };
    if managers.is_empty() {
        metadata.remove("managedFields");
    } else {
        let list = managers.iter().map(Entry::to_json).collect();
        metadata.insert("managedFields".to_owned(), Value::Array(list));
    }
}

/// Folds the oldest updaters (they come first) of one version into one entry.
fn fold(managers: &mut Vec<Entry>) {
    let updaters = managers.iter().filter(|entry| entry.operation == Operation::Update).count();
    for _ in MAX_UPDATERS..updaters {
        let Some(first) = managers.iter().position(|entry| entry.operation == Operation::Update) else {
            return;
        };
        let oldest = managers.remove(first);
        match managers.iter_mut().find(|e| {
            e.operation == Operation::Update && e.manager == FOLDED && e.api_version == oldest.api_version
        }) {
            Some(folded) => {
                folded.fields = folded.fields.union(&oldest.fields);
                folded.time = oldest.time;
            }
            None => {
                managers.insert(
                    first,
                    Entry { manager: FOLDED.to_owned(), subresource: String::new(), ..oldest },
                );
                // one entry was renamed, none was saved: fold the next into it
                if let Some(next) = managers.get(first + 1).cloned() {
                    managers.remove(first + 1);
                    managers[first].fields = managers[first].fields.union(&next.fields);
                    managers[first].time = next.time;
                }
            }
        }
    }
}
