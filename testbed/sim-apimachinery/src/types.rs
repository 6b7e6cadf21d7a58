//! The fields of the built-in kinds: one table for schemas, patches, OpenAPI and protobuf.
//!
//! The facts (names, types, protobuf numbers, list and patch strategies) are those that Kubernetes 1.36 publishes in
//! its protobuf and OpenAPI definitions; the files under `types/` hold one section for each Go package:
//!
//! ```text
//! =ServicePort atomic?          a message; `kind` if it has apiVersion and kind, `atomic` if it is owned as a whole
//! 3 port int32 required         protobuf number, JSON name, type, attributes
//! ```
//! Types are scalars, a message of the section, `section:Message`, `[]T` or `{}T` (a map). Attributes: `required`,
//! `inline` (fields stand in the parent's JSON), `ptr` (Go keeps a pointer to the scalar), `map=keys` and `set` (list types), `atomic` (maps),
//! `patch=strategy:key` (strategic merge patch) and `default=json`.

use std::{collections::HashMap, sync::LazyLock};

use serde_json::Value;

/// A message of the table.
#[derive(Debug)]
pub(crate) struct Message {
    /// Go package path as OpenAPI ids have it, such as `io.k8s.api.core.v1`.
    pub(crate) package: &'static str,
    pub(crate) name: &'static str,
    /// Has `apiVersion` and `kind`.
    pub(crate) kind: bool,
    /// Owned as a whole in server-side apply.
    pub(crate) atomic: bool,
    pub(crate) fields: Vec<Field>,
}

impl Message {
    /// The id in OpenAPI documents.
    pub(crate) fn id(&self) -> String {
        format!("{}.{}", self.package, self.name)
    }
}

#[derive(Debug)]
pub(crate) struct Field {
    pub(crate) number: u32,
    pub(crate) name: &'static str,
    pub(crate) r#type: Type,
    pub(crate) required: bool,
    pub(crate) inline: bool,
    /// Go keeps a pointer to the scalar: zero and absent are two things.
    pub(crate) pointer: bool,
    pub(crate) atomic: bool,
    pub(crate) set: bool,
    pub(crate) map_keys: Vec<&'static str>,
    pub(crate) merge: bool,
    pub(crate) merge_key: Option<&'static str>,
    pub(crate) retain_keys: bool,
    pub(crate) default: Option<Value>,
}

/// Index of a message in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct MessageId(usize);

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Type {
    String,
    Bool,
    Int32,
    Int64,
    Double,
    Bytes,
    Time,
    MicroTime,
    Quantity,
    IntOrString,
    /// Any JSON (RawExtension, FieldsV1).
    Any,
    /// JSON of several shapes that has no protobuf form here.
    Union,
    List(Box<Self>),
    Map(Box<Self>),
    Message(MessageId),
}

const SECTIONS: [(&str, &str, &str); 18] = [
    (
        "admissionregistration",
        "io.k8s.api.admissionregistration.v1",
        include_str!("types/admissionregistration.txt"),
    ),
    (
        "apiextensions",
        "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1",
        include_str!("types/apiextensions.txt"),
    ),
    (
        "apiregistration",
        "io.k8s.kube-aggregator.pkg.apis.apiregistration.v1",
        include_str!("types/apiregistration.txt"),
    ),
    ("apps", "io.k8s.api.apps.v1", include_str!("types/apps.txt")),
    ("authentication", "io.k8s.api.authentication.v1", include_str!("types/authentication.txt")),
    ("authorization", "io.k8s.api.authorization.v1", include_str!("types/authorization.txt")),
    ("autoscaling", "io.k8s.api.autoscaling.v1", include_str!("types/autoscaling.txt")),
    ("batch", "io.k8s.api.batch.v1", include_str!("types/batch.txt")),
    ("coordination", "io.k8s.api.coordination.v1", include_str!("types/coordination.txt")),
    ("core", "io.k8s.api.core.v1", include_str!("types/core.txt")),
    ("discovery", "io.k8s.api.discovery.v1", include_str!("types/discovery.txt")),
    ("events", "io.k8s.api.events.v1", include_str!("types/events.txt")),
    ("meta", META, include_str!("types/meta.txt")),
    ("networking", "io.k8s.api.networking.v1", include_str!("types/networking.txt")),
    ("policy", "io.k8s.api.policy.v1", include_str!("types/policy.txt")),
    ("rbac", "io.k8s.api.rbac.v1", include_str!("types/rbac.txt")),
    ("scheduling", "io.k8s.api.scheduling.v1", include_str!("types/scheduling.txt")),
    ("storage", "io.k8s.api.storage.v1", include_str!("types/storage.txt")),
];

const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";

/// The short name of a package.
pub(crate) fn section(package: &str) -> &'static str {
    SECTIONS.iter().find(|(_, id, _)| *id == package).map_or("", |(section, ..)| section)
}

/// All messages.
pub(crate) struct Types {
    messages: Vec<Message>,
    ids: HashMap<(&'static str, &'static str), MessageId>,
}

static TYPES: LazyLock<Types> = LazyLock::new(Types::read);

/// The table.
pub(crate) fn types() -> &'static Types {
    &TYPES
}

const SHAPE: &str = "the tables under types/ have the form that the module describes (a test reads them all)";

impl Types {
    fn read() -> Self {
        let mut ids = HashMap::new();
        for (section, _, text) in SECTIONS {
            for line in text.lines() {
                if let Some(header) = line.strip_prefix('=') {
                    let name = header.split(' ').next().expect(SHAPE);
                    let id = MessageId(ids.len());
                    ids.insert((section, name), id);
                }
            }
        }
        let mut messages: Vec<Message> = Vec::with_capacity(ids.len());
        for (section, package, text) in SECTIONS {
            for line in text.lines() {
                let mut words = line.split(' ');
                let first = words.next().expect(SHAPE);
                if let Some(name) = first.strip_prefix('=') {
                    let flags = words.collect::<Vec<_>>();
                    messages.push(Message {
                        package,
                        name,
                        kind: flags.contains(&"kind"),
                        atomic: flags.contains(&"atomic"),
                        fields: Vec::new(),
                    });
                } else {
                    let number = first.parse().expect(SHAPE);
                    let field = field(section, number, words, &ids);
                    messages.last_mut().expect(SHAPE).fields.push(field);
                }
            }
        }
        Self { messages, ids }
    }

    pub(crate) fn get(&self, id: MessageId) -> &Message {
        &self.messages[id.0]
    }

    /// The message of a section (`core`, `meta`, …).
    pub(crate) fn find(&self, section: &str, name: &str) -> Option<MessageId> {
        self.ids.get(&(section, name)).copied()
    }

    /// The message of a built-in kind, by group and kind.
    pub(crate) fn of_kind(&self, group: &str, kind: &str) -> Option<MessageId> {
        let section = match group {
            "" => "core",
            "apiextensions.k8s.io" => "apiextensions",
            "meta.k8s.io" => "meta",
            _ => group.split('.').next().unwrap_or_default(),
        };
        let id = self.find(section, kind).filter(|id| self.get(*id).kind);
        id.or_else(|| self.find("meta", kind).filter(|id| self.get(*id).kind))
    }
}

fn field(
    section: &'static str,
    number: u32,
    mut words: std::str::Split<'static, char>,
    ids: &HashMap<(&'static str, &'static str), MessageId>,
) -> Field {
    let name = words.next().expect(SHAPE);
    let mut field = Field {
        number,
        name,
        r#type: parse_type(words.next().expect(SHAPE), section, ids),
        required: false,
        inline: false,
        pointer: false,
        atomic: false,
        set: false,
        map_keys: Vec::new(),
        merge: false,
        merge_key: None,
        retain_keys: false,
        default: None,
    };
    for word in words {
        match word.split_once('=').unwrap_or((word, "")) {
            ("required", _) => field.required = true,
            ("inline", _) => field.inline = true,
            ("ptr", _) => field.pointer = true,
            ("atomic", _) => field.atomic = true,
            ("set", _) => field.set = true,
            ("map", keys) => field.map_keys = keys.split(',').collect(),
            ("patch", strategy) => {
                let (strategies, key) = strategy.split_once(':').unwrap_or((strategy, ""));
                field.merge = strategies.split(',').any(|s| s == "merge");
                field.retain_keys = strategies.split(',').any(|s| s == "retainKeys");
                field.merge_key = Some(key).filter(|key| !key.is_empty());
            }
            ("default", json) => field.default = Some(serde_json::from_str(json).expect(SHAPE)),
            _ => panic!("{SHAPE}: {name} {word}"),
        }
    }
    field
}

fn parse_type(
    text: &'static str,
    section: &'static str,
    ids: &HashMap<(&'static str, &'static str), MessageId>,
) -> Type {
    if let Some(item) = text.strip_prefix("[]") {
        return Type::List(Box::new(parse_type(item, section, ids)));
    }
    if let Some(value) = text.strip_prefix("{}") {
        return Type::Map(Box::new(parse_type(value, section, ids)));
    }
    match text {
        "string" => Type::String,
        "bool" => Type::Bool,
        "int32" => Type::Int32,
        "int64" => Type::Int64,
        "double" => Type::Double,
        "bytes" => Type::Bytes,
        "time" => Type::Time,
        "microtime" => Type::MicroTime,
        "quantity" => Type::Quantity,
        "intorstring" => Type::IntOrString,
        "any" => Type::Any,
        "union" => Type::Union,
        name => Type::Message(*ids.get(&name.split_once(':').unwrap_or((section, name))).expect(SHAPE)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_built_in_kind_has_its_fields() {
        for kind in crate::builtin::kinds() {
            let id = types().of_kind(&kind.group, &kind.kind);
            let message = types().get(id.unwrap_or_else(|| panic!("{kind:?}")));
            assert_eq!(message.name, kind.kind);
            let names = message.fields.iter().map(|field| field.name).collect::<Vec<_>>();
            assert!(names.contains(&"metadata"), "{names:?}");
            assert!(!kind.has_status() || names.contains(&"status") || kind.kind == "APIService");
        }
    }

    #[test]
    fn no_number_stands_for_two_fields() {
        for message in &types().messages {
            let mut numbers = message.fields.iter().map(|field| field.number).collect::<Vec<_>>();
            numbers.sort_unstable();
            numbers.dedup();
            assert_eq!(numbers.len(), message.fields.len(), "{}", message.id());
        }
    }
}
