//! Merges an applied object into the live one by the types of lists and maps.

use std::collections::{HashMap, HashSet, VecDeque};

use serde_json::{Map, Value};

use crate::{
    managed_fields::{element, elements},
    schema::{ListType, Schema},
};

/// Merges `config` over `live`: its values win; maps and lists that are not owned as a whole are merged.
pub(super) fn merge(schema: &Schema, live: &Value, config: &Value) -> Value {
    if elements(schema, live).is_none() || elements(schema, config).is_none() {
        return config.clone();
    }
    match (live, config) {
        (Value::Object(live), Value::Object(config)) => Value::Object(merge_maps(schema, live, config)),
        (Value::Array(live), Value::Array(config)) => Value::Array(merge_lists(schema, live, config)),
        _ => config.clone(),
    }
}

fn merge_maps(schema: &Schema, live: &Map<String, Value>, config: &Map<String, Value>) -> Map<String, Value> {
    let mut merged = live.clone();
    let anything = Schema::anything();
    for (name, wanted) in config {
        let inner = schema.field(name).map_or(&anything, |s| &**s);
        let value = merged.get(name).map_or_else(|| wanted.clone(), |is| merge(inner, is, wanted));
        merged.insert(name.clone(), value);
    }
    merged
}

/// Items of both lists come in the order of `config`; the others keep their place among them.
fn merge_lists(schema: &Schema, live: &[Value], config: &[Value]) -> Vec<Value> {
    let named = |list: &[Value]| list.iter().map(|item| element(schema, item)).collect::<Vec<_>>();
    let (live_names, config_names) = (named(live), named(config));
    let first_of = |names: &[String]| {
        let mut at: HashMap<String, usize> = HashMap::with_capacity(names.len());
        for (index, name) in names.iter().enumerate() {
            at.entry(name.clone()).or_insert(index);
        }
        at
    };
    let (live_at, config_at) = (first_of(&live_names), first_of(&config_names));
    let inner = schema.items.as_deref();
    let item = |name: &str, wanted: &Value| match (live_at.get(name), inner, &schema.list) {
        (Some(index), Some(inner), ListType::Map(_)) => merge(inner, &live[*index], wanted),
        _ => wanted.clone(),
    };
    let mut shared = config_names.iter().filter(|name| live_at.contains_key(*name)).collect::<VecDeque<_>>();
    let mut done: HashSet<&str> = HashSet::new();
    let mut merged = Vec::with_capacity(live.len().max(config.len()));
    let (mut l, mut c) = (0, 0);
    while l < live.len() || c < config.len() {
        if let Some(name) = live_names.get(l) {
            let only_live = !config_at.contains_key(name);
            // an item that config brings at another place, or that is already in
            let elsewhere = done.contains(name.as_str()) || shared.front().is_some_and(|next| *next != name);
            if only_live {
                merged.push(live[l].clone());
            }
            if only_live || elsewhere {
                l += 1;
                continue;
            }
        }
        let Some(name) = config_names.get(c) else {
            l += 1;
            continue;
        };
        if live_names.get(l) == Some(name) {
            l += 1;
        }
        if shared.front() == Some(&name) {
            shared.pop_front();
        }
        if done.insert(name) {
            merged.push(item(name, &config[c]));
        }
        c += 1;
    }
    merged
}
