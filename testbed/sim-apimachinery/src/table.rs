//! Tables for kubectl: what `kubectl get` prints of a kind.
//!
//! The columns and cells are those of the real server (`tests/vectors/table.json` was recorded there). Built-in kinds
//! have theirs in code; kinds from CRDs have `additionalPrinterColumns`; what has neither gets name and creation time.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::kind::{Column, Kind, Origin};

mod age;
mod builtin;
mod cells;
mod json_path;

pub use age::age;
pub use json_path::{JsonPath, first as json_path_first};

/// A `meta.k8s.io/v1` Table with a row for each object. `rows` holds what `includeObject` asks for (metadata, the
/// object, or null), in the same order; the caller adds the list's `metadata`.
pub fn table(kind: &Kind, objects: &[Value], rows: Vec<Value>, now: Timestamp) -> Value {
    let columns = Columns::of(kind);
    let rows = objects
        .iter()
        .zip(rows)
        .map(|(object, row)| json!({"cells": columns.cells(object, now), "object": row}))
        .collect::<Vec<_>>();
    json!({
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": {},
        "columnDefinitions": columns.definitions(),
        "rows": rows,
    })
}

/// The row object for `includeObject=Metadata`, which is the default.
pub fn partial(object: &Value) -> Value {
    json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": object["metadata"]})
}

/// The columns of a kind.
enum Columns<'a> {
    Builtin(&'static builtin::Printer),
    Custom(Vec<(&'a Column, Option<JsonPath>)>),
}

impl<'a> Columns<'a> {
    fn of(kind: &'a Kind) -> Self {
        match kind.origin {
            Origin::Builtin => Self::Builtin(builtin::of(&kind.kind)),
            Origin::Custom => Self::Custom(
                kind.columns.iter().map(|column| (column, JsonPath::parse(&column.json_path))).collect(),
            ),
        }
    }

    fn definitions(&self) -> Vec<Value> {
        let definition = |name: &str, r#type: &str, format: &str, description: &str, priority: i64| json!({"name": name, "type": r#type, "format": format, "description": description, "priority": priority});
        match self {
            Self::Builtin(printer) => printer
                .columns()
                .map(|(name, r#type, priority)| {
                    let is_name = matches!(name, "Name" | "Attacher");
                    definition(name, r#type, if is_name { "name" } else { "" }, "", priority)
                })
                .collect(),
            Self::Custom(columns) => {
                let mut all = vec![definition("Name", "string", "name", "", 0)];
                if columns.is_empty() {
                    all.push(definition("Age", "date", "", "", 0));
                }
                all.extend(
                    columns
                        .iter()
                        .map(|(c, _)| definition(&c.name, &c.r#type, &c.format, &c.description, c.priority)),
                );
                all
            }
        }
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        match self {
            Self::Builtin(printer) => printer.cells(object, now),
            Self::Custom(columns) => {
                let mut cells = vec![object["metadata"]["name"].clone()];
                if columns.is_empty() {
                    cells.push(age(&object["metadata"]["creationTimestamp"], now).into());
                }
                cells.extend(columns.iter().map(|(column, path)| {
                    path.as_ref().map_or(Value::Null, |path| custom_cell(column, path.first(object), now))
                }));
                cells
            }
        }
    }
}

/// A cell of a CRD's column; what does not fit the column's type is left empty.
fn custom_cell(column: &Column, value: Option<&Value>, now: Timestamp) -> Value {
    let Some(value) = value.filter(|value| !value.is_null()) else { return Value::Null };
    match column.r#type.as_str() {
        "integer" => value.as_i64().or_else(|| value.as_f64().map(whole)).map_or(Value::Null, Value::from),
        "number" => value.as_f64().map_or(Value::Null, Value::from),
        "boolean" => value.as_bool().map_or(Value::Null, Value::from),
        "date" => age(value, now).into(),
        _ => match value {
            Value::String(text) => text.as_str().into(),
            other => other.to_string().into(),
        },
    }
}

#[expect(clippy::cast_possible_truncation, reason = "Go cuts fractions off in such a column, too")]
fn whole(n: f64) -> i64 {
    n as i64
}

#[cfg(test)]
mod tests;
