//! Sets of fields, in the form that `fieldsV1` has: a tree whose edges are `f:name`, `k:{keys}` and `v:value`.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// A tree of path elements; a node may itself be in the set, and hold others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FieldSet {
    member: bool,
    children: BTreeMap<String, Self>,
}

impl FieldSet {
    pub(crate) fn is_empty(&self) -> bool {
        !self.member && self.children.is_empty()
    }

    pub(crate) fn is_member(&self) -> bool {
        self.member
    }

    pub(crate) fn child(&self, element: &str) -> Option<&Self> {
        self.children.get(element)
    }

    pub(crate) fn children(&self) -> impl Iterator<Item = (&str, &Self)> {
        self.children.iter().map(|(element, child)| (element.as_str(), child))
    }

    /// Adds the path.
    pub(crate) fn insert(&mut self, path: &[String]) {
        let mut at = self;
        for element in path {
            // most paths share their beginning: look before copying the name
            if !at.children.contains_key(element) {
                at.children.insert(element.clone(), Self::default());
            }
            at = at.children.get_mut(element).expect("just inserted");
        }
        at.member = true;
    }

    /// Takes out the path itself (not what is below it).
    pub(crate) fn remove(&mut self, path: &[&str]) {
        match path {
            [] => self.member = false,
            [first, rest @ ..] => {
                if let Some(child) = self.children.get_mut(*first) {
                    child.remove(rest);
                    if child.is_empty() {
                        self.children.remove(*first);
                    }
                }
            }
        }
    }

    /// Takes out the path with everything below it.
    pub(crate) fn remove_below(&mut self, path: &[&str]) {
        match path {
            [] => *self = Self::default(),
            [first, rest @ ..] => {
                if let Some(child) = self.children.get_mut(*first) {
                    child.remove_below(rest);
                    if child.is_empty() {
                        self.children.remove(*first);
                    }
                }
            }
        }
    }

    /// Keeps only what is below the element.
    pub(crate) fn keep_below(&mut self, element: &str) {
        self.children.retain(|name, _| name == element);
    }

    pub(crate) fn union(&self, other: &Self) -> Self {
        let mut children = self.children.clone();
        for (element, child) in &other.children {
            let merged = children.get(element).map_or_else(|| child.clone(), |own| own.union(child));
            children.insert(element.clone(), merged);
        }
        Self { member: self.member || other.member, children }
    }

    pub(crate) fn difference(&self, other: &Self) -> Self {
        let children = self
            .children
            .iter()
            .map(|(element, child)| {
                let rest = other.children.get(element).map_or_else(|| child.clone(), |o| child.difference(o));
                (element.clone(), rest)
            })
            .filter(|(_, child)| !child.is_empty())
            .collect();
        Self { member: self.member && !other.member, children }
    }

    pub(crate) fn intersection(&self, other: &Self) -> Self {
        let children = self
            .children
            .iter()
            .filter_map(|(element, child)| {
                Some((element.clone(), child.intersection(other.children.get(element)?)))
            })
            .filter(|(_, child)| !child.is_empty())
            .collect();
        Self { member: self.member && other.member, children }
    }

    /// All paths of the set, as error texts write them: `.spec.ports[port=80,protocol="TCP"].targetPort`.
    pub(crate) fn paths(&self) -> Vec<String> {
        let mut paths = Vec::new();
        self.collect("", &mut paths);
        paths
    }

    fn collect(&self, path: &str, paths: &mut Vec<String>) {
        if self.member {
            paths.push(path.to_owned());
        }
        for (element, child) in &self.children {
            child.collect(&format!("{path}{}", readable(element)), paths);
        }
    }

    /// `fieldsV1`.
    pub(crate) fn to_json(&self) -> Value {
        let mut map = Map::new();
        if self.member && !self.children.is_empty() {
            map.insert(".".to_owned(), Value::Object(Map::new()));
        }
        for (element, child) in &self.children {
            map.insert(element.clone(), child.to_json());
        }
        Value::Object(map)
    }

    /// Reads `fieldsV1`; none if it has no such form.
    pub(crate) fn of_json(value: &Value) -> Option<Self> {
        let mut set = Self::node(value)?;
        // an empty document is an empty set, an empty element is a member
        set.member = value.get(".").is_some();
        Some(set)
    }

    fn node(value: &Value) -> Option<Self> {
        let map = value.as_object()?;
        let mut set = Self { member: map.is_empty(), children: BTreeMap::new() };
        for (element, child) in map {
            match element.as_str() {
                "." => set.member = true,
                _ if element.get(1..2) == Some(":") => {
                    set.children.insert(element.clone(), Self::node(child)?);
                }
                _ => return None,
            }
        }
        Some(set)
    }
}

fn readable(element: &str) -> String {
    match element.split_at_checked(2) {
        Some(("f:", name)) => format!(".{name}"),
        Some(("k:", keys)) => match serde_json::from_str::<BTreeMap<String, Value>>(keys) {
            Ok(keys) => {
                let keys = keys.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>();
                format!("[{}]", keys.join(","))
            }
            Err(_) => format!("[{keys}]"),
        },
        Some(("v:", value)) => format!("[={value}]"),
        Some((_, index)) => format!("[{index}]"),
        None => element.to_owned(),
    }
}
