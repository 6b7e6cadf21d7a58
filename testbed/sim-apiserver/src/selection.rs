//! Which objects a list or a watch wants: a namespace, labels, fields.

use serde_json::Value;
use sim_apimachinery::{event, selector};

use crate::Failure;
use crate::kind::Behaviour;
use crate::server::Ask;

/// The objects that a request selects.
#[derive(Clone, Debug, Default)]
pub(crate) struct Selection {
    namespace: Option<String>,
    name: Option<String>,
    query: selector::Selection,
    /// Events are kept in the words of the core group, and selected in the words of the path.
    new_words: bool,
}

impl Selection {
    pub(crate) fn of(ask: &Ask) -> Result<Self, Failure> {
        let text = |selector: &Option<String>| selector.clone().unwrap_or_default();
        let (labels, fields) = (text(&ask.query.label_selector), text(&ask.query.field_selector));
        let query = selector::Selection::parse(ask.api(), &labels, &fields)
            .map_err(|e| Failure::bad_request(e.to_string()))?;
        Ok(Self {
            namespace: ask.target.namespace.clone(),
            name: ask.target.name.clone(),
            query,
            new_words: ask.kind.behaviour == Behaviour::NewEvent,
        })
    }

    /// The namespace, when there is one: only its objects need be looked at.
    pub(crate) fn namespace(&self) -> Option<&str> {
        self.namespace.as_deref()
    }

    /// Whether all objects (of the namespace) are selected.
    pub(crate) fn is_everything(&self) -> bool {
        self.name.is_none() && self.query.is_everything()
    }

    pub(crate) fn matches(&self, object: &Value) -> bool {
        let metadata = &object["metadata"];
        self.namespace.as_deref().is_none_or(|namespace| metadata["namespace"] == namespace)
            && self.name.as_deref().is_none_or(|name| metadata["name"] == name)
            && (self.query.is_everything() || self.query_matches(object))
    }

    fn query_matches(&self, object: &Value) -> bool {
        if self.new_words { self.query.matches(&event::to_new(object)) } else { self.query.matches(object) }
    }
}
