//! Strategic merge patch, which kubectl sends for built-in kinds.
//!
//! Maps are merged, lists too where the schema says so: items by their merge key, scalars as sets. Directives:
//! `$patch: replace|delete|merge` in a map or list item, `$retainKeys`, `$setElementOrder/<list>` and
//! `$deleteFromPrimitiveList/<list>` beside a list. Everything else is RFC 7386.

use serde_json::{Map, Value};

use crate::{schema::Schema, status::Status};

const PATCH: &str = "$patch";
const RETAIN: &str = "$retainKeys";
const ORDER: &str = "$setElementOrder/";
const DELETE: &str = "$deleteFromPrimitiveList/";

/// Returns the object after the patch.
///
/// # Errors
/// 400 if a directive is malformed, or a list item has no merge key.
pub fn patch(schema: &Schema, object: &Value, patch: &Value) -> Result<Value, Status> {
    let (Value::Object(original), Value::Object(patch)) = (object, patch) else {
        return Err(Status::bad_request("a strategic merge patch is a JSON object, applied to one"));
    };
    merge_map(Some(schema), original.clone(), patch).map(Value::Object)
}

fn merge_map(
    schema: Option<&Schema>,
    mut original: Map<String, Value>,
    patch: &Map<String, Value>,
) -> Result<Map<String, Value>, Status> {
    match patch.get(PATCH).map(|directive| directive.as_str()) {
        None | Some(Some("merge")) => {}
        Some(Some("replace")) => return Ok(without_directives(patch)),
        Some(Some("delete")) => return Ok(Map::new()),
        Some(other) => {
            return Err(Status::bad_request(format!(
                "unknown patch type {:?} in map",
                other.unwrap_or_default()
            )));
        }
    }
    retain_keys(&mut original, patch)?;
    let field = |name: &str| schema.and_then(|schema| schema.field(name)).map(|s| &**s);

    // first everything that concerns lists with an order, since it takes two or three keys together
    let mut done = Vec::new();
    for (key, order) in patch {
        let Some(name) = key.strip_prefix(ORDER) else { continue };
        let order = order.as_array().ok_or_else(|| malformed(key))?;
        let before = original.get(name).and_then(Value::as_array).cloned();
        let deleted = deletions(patch, name)?;
        let mut merged = before.clone().unwrap_or_default();
        delete_from(&mut merged, deleted);
        if let Some(wanted) = patch.get(name) {
            done.push(name);
            match wanted.as_array() {
                Some(wanted) => merged = merge_list(field(name), merged, wanted)?,
                None if wanted.is_null() => {
                    original.remove(name);
                    continue;
                }
                None => return Err(malformed(name)),
            }
        }
        if before.is_some() || patch.contains_key(name) {
            let ordered =
                in_order(merge_key(field(name)), merged, order, before.as_deref().unwrap_or_default());
            original.insert(name.to_owned(), Value::Array(ordered));
        }
    }
    for (key, wanted) in patch {
        if key == PATCH || key == RETAIN || key.starts_with(ORDER) || done.contains(&key.as_str()) {
            continue;
        }
        if let Some(name) = key.strip_prefix(DELETE) {
            let deleted = wanted.as_array().ok_or_else(|| malformed(key))?;
            if let Some(Value::Array(items)) = original.get_mut(name) {
                delete_from(items, deleted);
            }
            continue;
        }
        let merged = match (original.remove(key), wanted) {
            (_, Value::Null) => continue,
            (Some(Value::Object(is)), Value::Object(wanted)) => {
                Value::Object(merge_map(field(key), is, wanted)?)
            }
            (Some(Value::Array(is)), Value::Array(wanted))
                if field(key).is_some_and(|s| s.strategy.merge) =>
            {
                let before = is.clone();
                let merged = merge_list(field(key), is, wanted)?;
                Value::Array(in_order(merge_key(field(key)), merged, wanted, &before))
            }
            (_, wanted) => cleaned(wanted),
        };
        original.insert(key.clone(), merged);
    }
    Ok(original)
}

fn malformed(key: &str) -> Status {
    Status::bad_request(format!("invalid patch: {key} must be a list"))
}

fn retain_keys(original: &mut Map<String, Value>, patch: &Map<String, Value>) -> Result<(), Status> {
    let Some(retained) = patch.get(RETAIN) else { return Ok(()) };
    let retained = retained.as_array().ok_or_else(|| malformed(RETAIN))?;
    let kept = |name: &str| retained.iter().any(|key| key == name);
    if let Some(stray) =
        patch.keys().find(|key| !key.starts_with('$') && !patch[*key].is_null() && !kept(key))
    {
        return Err(Status::bad_request(format!(
            "invalid patch: {RETAIN} does not name {stray}, which the patch sets"
        )));
    }
    original.retain(|name, _| kept(name));
    Ok(())
}

fn deletions<'a>(patch: &'a Map<String, Value>, name: &str) -> Result<&'a [Value], Status> {
    let key = format!("{DELETE}{name}");
    patch
        .get(&key)
        .map_or(Ok(&[][..]), |list| list.as_array().map(Vec::as_slice).ok_or_else(|| malformed(&key)))
}

fn delete_from(items: &mut Vec<Value>, deleted: &[Value]) {
    items.retain(|item| !deleted.contains(item));
}

fn merge_key(schema: Option<&Schema>) -> Option<&str> {
    schema?.strategy.merge_key.as_deref()
}

/// Merges a list; its schema has the merge strategy (or an order was given for it, which says the same).
fn merge_list(schema: Option<&Schema>, original: Vec<Value>, patch: &[Value]) -> Result<Vec<Value>, Status> {
    if !schema.is_some_and(|schema| schema.strategy.merge) {
        return Ok(patch.iter().map(cleaned).collect());
    }
    let Some(key) = merge_key(schema) else {
        let mut merged: Vec<Value> = Vec::with_capacity(original.len() + patch.len());
        for item in original.iter().chain(patch) {
            if !merged.contains(item) {
                merged.push(item.clone());
            }
        }
        return Ok(merged);
    };
    let inner = schema.and_then(|schema| schema.items.as_deref());
    if patch.iter().any(|item| item[PATCH] == "replace") {
        let kept = patch.iter().filter(|item| item.get(PATCH).is_none());
        return Ok(kept.map(cleaned).collect());
    }
    let mut merged = original;
    for item in patch {
        let Value::Object(wanted) = item else {
            return Err(Status::bad_request(format!(
                "invalid patch: {item} is no object, but the list merges by {key}"
            )));
        };
        let Some(value) = wanted.get(key) else {
            return Err(Status::bad_request(format!(
                "map: {item} does not contain declared merge key: {key}"
            )));
        };
        if wanted.get(PATCH).is_some_and(|directive| directive == "delete") {
            merged.retain(|is| is.get(key) != Some(value));
            continue;
        }
        match merged.iter_mut().find(|is| is.get(key) == Some(value)) {
            Some(Value::Object(is)) => *is = merge_map(inner, std::mem::take(is), wanted)?,
            _ => merged.push(cleaned(item)),
        }
    }
    Ok(merged)
}

/// Puts the items that `order` names into that order; the others keep their place relative to where they stood
/// `before`.
fn in_order(key: Option<&str>, items: Vec<Value>, order: &[Value], before: &[Value]) -> Vec<Value> {
    let name = |item: &Value| key.map_or_else(|| item.clone(), |key| item[key].clone());
    let place = |list: &[Value], item: &Value| {
        let wanted = name(item);
        list.iter().position(|other| name(other) == wanted)
    };
    let (mut named, mut others): (Vec<Value>, Vec<Value>) =
        items.into_iter().partition(|item| place(order, item).is_some());
    named.sort_by_key(|item| place(order, item));
    others.sort_by_key(|item| place(before, item).unwrap_or(usize::MAX));
    let mut ordered = Vec::with_capacity(named.len() + others.len());
    let (mut named, mut others) = (named.into_iter().peekable(), others.into_iter().peekable());
    loop {
        let other_first = match (others.peek(), named.peek()) {
            (Some(other), Some(item)) => {
                matches!((place(before, other), place(before, item)), (Some(a), Some(b)) if a < b)
            }
            (Some(_), None) => true,
            (None, _) => false,
        };
        match if other_first { others.next() } else { named.next() } {
            Some(item) => ordered.push(item),
            None => return ordered,
        }
    }
}

/// The value as it is stored when there was none before: directives are for the server, not for the store.
fn cleaned(value: &Value) -> Value {
    match value {
        Value::Object(map) => Value::Object(without_directives(map)),
        Value::Array(items) => {
            let kept = items.iter().filter(|item| {
                item[PATCH] != "delete"
                    && item.as_object().is_none_or(|m| !(m.len() == 1 && m.contains_key(PATCH)))
            });
            Value::Array(kept.map(cleaned).collect())
        }
        scalar => scalar.clone(),
    }
}

fn without_directives(map: &Map<String, Value>) -> Map<String, Value> {
    map.iter()
        .filter(|(key, value)| {
            *key != PATCH
                && *key != RETAIN
                && !key.starts_with(ORDER)
                && !key.starts_with(DELETE)
                && !value.is_null()
        })
        .map(|(key, value)| (key.clone(), cleaned(value)))
        .collect()
}

#[cfg(test)]
mod tests;
