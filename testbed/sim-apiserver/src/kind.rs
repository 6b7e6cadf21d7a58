//! The kinds that the server knows: data, so that a CustomResourceDefinition adds one at run time.
//!
//! ```text
//! path ──(group, plural)──► Kind ──► Version (schema, columns, subresources)
//!                            └─────► Behaviour (what the server itself does with objects of this kind)
//! ```

pub(crate) mod builtin;
pub(crate) mod custom;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;
use sim_apimachinery::kind as api;
use sim_apimachinery::schema::Schema;

/// The treatment of a kind's objects besides keeping them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Behaviour {
    /// A custom resource: its schema says all.
    Custom,
    /// Kept under the rules for its content.
    Plain,
    /// `customresourcedefinitions`: adds kinds.
    Definition,
    /// The same storage as the core group's events, in the words of `events.k8s.io/v1`.
    NewEvent,
    Namespace,
    Node,
    Pod,
    Service,
    /// Deployments and DaemonSets: there is always a status.
    Workload,
    /// Not kept: a question, answered by the create.
    Review,
}

/// One served version of a kind.
#[derive(Clone, Debug)]
pub(crate) struct Version {
    /// Names, scope, subresources, columns: what clients are told.
    pub(crate) api: api::Kind,
    /// `scale` of the definition: the paths of replicas and selector.
    pub(crate) scale: Option<Value>,
    /// Schema of the objects.
    pub(crate) schema: Arc<Schema>,
    /// `openAPIV3Schema` of a custom resource, for those who ask for it.
    pub(crate) raw_schema: Option<Arc<Value>>,
}

/// A kind of objects, in all its versions.
#[derive(Clone, Debug)]
pub(crate) struct Kind {
    pub(crate) group: String,
    pub(crate) plural: String,
    pub(crate) kind: String,
    pub(crate) namespaced: bool,
    /// The served ones.
    pub(crate) versions: Vec<Version>,
    /// `apiVersion` under which objects are kept.
    pub(crate) stored_as: String,
    pub(crate) behaviour: Behaviour,
    /// `conversion.webhook` of a definition whose versions need one.
    pub(crate) conversion: Option<Arc<Value>>,
    /// Name of the table that keeps the objects.
    pub(crate) table: Arc<str>,
}

impl Kind {
    pub(crate) fn version(&self, name: &str) -> Option<usize> {
        self.versions.iter().position(|v| v.api.version == name)
    }

    /// Returns the discovery data of a version.
    pub(crate) fn api(&self, version: usize) -> &api::Kind {
        &self.versions[version].api
    }

    /// Custom resources know no strategic merge patch and no update without a version.
    pub(crate) fn is_custom(&self) -> bool {
        self.behaviour == Behaviour::Custom
    }
}

/// All kinds, by group and plural. Immutable; a changed definition makes a new one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Kinds(BTreeMap<(String, String), Arc<Kind>>);

impl Kinds {
    pub(crate) fn builtin() -> Self {
        let mut kinds = Self::default();
        for kind in builtin::kinds() {
            kinds.insert(kind);
        }
        kinds
    }

    pub(crate) fn insert(&mut self, kind: Kind) {
        self.0.insert((kind.group.clone(), kind.plural.clone()), Arc::new(kind));
    }

    pub(crate) fn remove(&mut self, group: &str, plural: &str) -> Option<Arc<Kind>> {
        self.0.remove(&(group.to_owned(), plural.to_owned()))
    }

    pub(crate) fn get(&self, group: &str, plural: &str) -> Option<&Arc<Kind>> {
        self.0.get(&(group.to_owned(), plural.to_owned()))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Kind>> {
        self.0.values()
    }
}
