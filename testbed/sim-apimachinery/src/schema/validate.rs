//! Validation against a schema, with the causes of the real server.

use std::collections::HashSet;

use serde_json::{Value, json};

use super::{ListType, Schema, Type, child, formats};
use crate::status::Cause;

impl Schema {
    /// Everything that is wrong with the object.
    pub fn validate(&self, object: &Value) -> Vec<Cause> {
        let mut causes = Vec::new();
        check(self, object, "", &mut causes);
        causes
    }
}

fn check(schema: &Schema, value: &Value, path: &str, causes: &mut Vec<Cause>) {
    if value.is_null() && schema.nullable {
        return;
    }
    if !has_type(schema, value) {
        // the rest would repeat the same fault in other words, except the enum
        causes.push(wrong_type(schema, value, path));
        check_enum(schema, value, path, causes);
        if let Value::String(_) = value
            && let ListType::Map(_) = schema.list
        {
            causes.push(Cause::invalid(path, value, "must be an object for an array of list-type map"));
        }
        return;
    }
    check_enum(schema, value, path, causes);
    match value {
        Value::String(text) => check_text(schema, text, path, causes),
        Value::Number(_) => check_number(schema, value, path, causes),
        Value::Array(items) => check_list(schema, items, path, causes),
        Value::Object(map) => check_map(schema, map, path, causes),
        _ => {}
    }
    check_junctors(schema, value, path, causes);
}

fn has_type(schema: &Schema, value: &Value) -> bool {
    match schema.r#type {
        Type::Any => true,
        Type::Object => value.is_object(),
        Type::Array => value.is_array(),
        Type::String => value.is_string(),
        Type::Integer => is_integer(value),
        Type::Number => value.is_number(),
        Type::Boolean => value.is_boolean(),
        Type::IntOrString => value.is_string() || is_integer(value),
    }
}

/// 2.0 is an integer, too.
fn is_integer(value: &Value) -> bool {
    value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|n| n.fract() == 0.0)
}

fn wrong_type(schema: &Schema, value: &Value, path: &str) -> Cause {
    let wanted = match schema.r#type {
        Type::Any => "any",
        Type::Object => "object",
        Type::Array => "array",
        Type::String if formats::is_known(&schema.rules.format) => &schema.rules.format,
        Type::String => "string",
        Type::Integer => "integer",
        Type::Number => "number",
        Type::Boolean => "boolean",
        Type::IntOrString => "integer,string",
    };
    let formatted = schema.r#type == Type::String && wanted != "string";
    let given = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(n) if formatted => {
            if n.is_f64() {
                "float64"
            } else {
                "int64"
            }
        }
        Value::Number(_) if is_integer(value) => "integer",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    Cause::type_invalid(path, &given.into(), &format!("{path} in body must be of type {wanted}: \"{given}\""))
}

fn check_enum(schema: &Schema, value: &Value, path: &str, causes: &mut Vec<Cause>) {
    let allowed = &schema.rules.r#enum;
    if !allowed.is_empty() && !allowed.contains(value) {
        let shown = allowed
            .iter()
            .map(|v| v.as_str().map_or_else(|| v.to_string(), str::to_owned))
            .collect::<Vec<_>>();
        let shown = shown.iter().map(String::as_str).collect::<Vec<_>>();
        causes.push(Cause::not_supported(path, value, &shown));
    }
}

fn check_text(schema: &Schema, text: &str, path: &str, causes: &mut Vec<Cause>) {
    let rules = &schema.rules;
    let length = text.chars().count();
    let value = json!(text);
    if rules.max_length.is_some_and(|max| length > max) {
        causes.push(Cause::too_long(path, rules.max_length.unwrap_or_default()));
    } else if let Some(min) = rules.min_length.filter(|min| length < *min) {
        let detail = format!("{path} in body should be at least {min} chars long");
        causes.push(Cause::invalid(path, &value, &detail));
    } else if let Some((pattern, _)) = rules.pattern.as_ref().filter(|(_, regex)| !regex.is_match(text)) {
        causes.push(Cause::invalid(path, &value, &format!("{path} in body should match '{pattern}'")));
    }
    if !formats::is(&rules.format, text) {
        let detail = format!("{path} in body must be of type {}: {value}", rules.format);
        causes.push(Cause::invalid(path, &value, &detail));
    }
}

fn check_number(schema: &Schema, value: &Value, path: &str, causes: &mut Vec<Cause>) {
    let rules = &schema.rules;
    let Some(n) = value.as_f64() else { return };
    let whole = value.as_i64();
    let outside = match rules.format.as_str() {
        "int32" => whole.is_none_or(|n| i32::try_from(n).is_err()),
        "int64" => whole.is_none(),
        _ => false,
    };
    if outside {
        // the real server names no field here either
        let detail = format!("Checked value must be of type integer with format {} in {path}", rules.format);
        causes.push(Cause::invalid("<nil>", &json!(""), &detail));
    }
    let mut refuse =
        |detail: String| causes.push(Cause::invalid(path, value, &format!("{path} in body {detail}")));
    if let Some(factor) = rules.multiple_of
        && ((n / factor) - (n / factor).round()).abs() > 1e-9
    {
        refuse(format!("should be a multiple of {factor}"));
    }
    match rules.maximum {
        Some((max, true)) if n >= max => refuse(format!("should be less than {max}")),
        Some((max, false)) if n > max => refuse(format!("should be less than or equal to {max}")),
        _ => {}
    }
    match rules.minimum {
        Some((min, true)) if n <= min => refuse(format!("should be greater than {min}")),
        Some((min, false)) if n < min => refuse(format!("should be greater than or equal to {min}")),
        _ => {}
    }
}

fn check_list(schema: &Schema, items: &[Value], path: &str, causes: &mut Vec<Cause>) {
    if let Some(inner) = &schema.items {
        for (index, item) in items.iter().enumerate() {
            check(inner, item, &format!("{path}[{index}]"), causes);
        }
    }
    let rules = &schema.rules;
    if let Some(min) = rules.min_items.filter(|min| items.len() < *min) {
        let detail = format!("{path} in body should have at least {min} items");
        causes.push(Cause::invalid(path, &json!(items.len()), &detail));
    }
    if let Some(max) = rules.max_items.filter(|max| items.len() > *max) {
        causes.push(Cause::too_many(path, items.len(), max));
    }
    let mut seen = HashSet::new();
    for (index, item) in items.iter().enumerate() {
        let key = match &schema.list {
            ListType::Atomic => return,
            ListType::Set => item.clone(),
            ListType::Map(keys) => {
                if !item.is_object() {
                    let detail = "must be an object for an array of list-type map";
                    causes.push(Cause::invalid(&format!("{path}[{index}]"), item, detail));
                    continue;
                }
                keys.iter().filter_map(|key| Some((key.clone(), item.get(key)?.clone()))).collect()
            }
        };
        if !seen.insert(key.to_string()) {
            causes.push(Cause::duplicate(&format!("{path}[{index}]"), &key));
        }
    }
}

fn check_map(schema: &Schema, map: &serde_json::Map<String, Value>, path: &str, causes: &mut Vec<Cause>) {
    for name in &schema.required {
        if !map.contains_key(name) {
            causes.push(Cause::required(&child(path, name), ""));
        }
    }
    let rules = &schema.rules;
    if let Some(max) = rules.max_properties.filter(|max| map.len() > *max) {
        causes.push(Cause::too_many(path, map.len(), max));
    }
    if let Some(min) = rules.min_properties.filter(|min| map.len() < *min) {
        let detail = format!("{path} in body should have at least {min} properties");
        causes.push(Cause::invalid(path, &json!(map.len()), &detail));
    }
    for (name, value) in map {
        // metadata has a validation of its own
        if path.is_empty() && name == "metadata" {
            continue;
        }
        if let Some(inner) = schema.field(name) {
            check(inner, value, &child(path, name), causes);
        }
    }
}

fn check_junctors(schema: &Schema, value: &Value, path: &str, causes: &mut Vec<Cause>) {
    let rules = &schema.rules;
    let faults = |branch: &Schema| {
        let mut causes = Vec::new();
        check(branch, value, path, &mut causes);
        causes
    };
    let mut refuse = |text: String| causes.push(Cause::invalid("<nil>", &json!(""), &text));
    if !rules.any_of.is_empty() {
        let tried = rules.any_of.iter().map(faults).collect::<Vec<_>>();
        if tried.iter().all(|faults| !faults.is_empty()) {
            refuse(format!("\"{path}\" must validate at least one schema (anyOf)"));
            causes.extend(fewest(tried));
        }
    } else if !rules.one_of.is_empty() {
        let tried = rules.one_of.iter().map(faults).collect::<Vec<_>>();
        match tried.iter().filter(|faults| faults.is_empty()).count() {
            1 => {}
            0 => {
                refuse(format!("\"{path}\" must validate one and only one schema (oneOf). Found none valid"));
                causes.extend(fewest(tried));
            }
            n => refuse(format!(
                "\"{path}\" must validate one and only one schema (oneOf). Found {n} valid alternatives"
            )),
        }
    }
    for branch in &rules.all_of {
        causes.extend(faults(branch));
    }
    if let Some(branch) = &rules.not
        && faults(branch).is_empty()
    {
        causes.push(Cause::invalid(
            "<nil>",
            &json!(""),
            &format!("\"{path}\" must not validate the schema (not)"),
        ));
    }
}

/// The branch that comes nearest explains most.
fn fewest(tried: Vec<Vec<Cause>>) -> Vec<Cause> {
    tried.into_iter().min_by_key(Vec::len).unwrap_or_default()
}
