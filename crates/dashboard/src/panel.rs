//! What a panel says about itself: whether its list is there, which right is missing, what cannot be read.

use program::capabilities::Right;
use serde::Serialize;

use crate::{model::Row, text};

/// Objects that cannot be read, and are named.
const UNREADABLE: usize = 10;

/// The state of the watch behind a panel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Panel {
    pub(crate) kind: &'static str,
    /// `pools` or `balancers`.
    pub(crate) name: &'static str,
    /// The resource, as roles name it.
    pub(crate) resource: String,
    /// The list is complete.
    pub(crate) listed: bool,
    /// Rights that the API server does not grant, such as `list ippools.loadbalancer.harvesterhci.io`.
    pub(crate) missing: Vec<String>,
    /// What might help where rights are missing.
    pub(crate) hint: &'static str,
    /// Why nothing comes from the watch, in the server's words.
    pub(crate) error: Option<String>,
    /// Objects that are there but are no such objects, and why.
    pub(crate) unreadable: Vec<[String; 2]>,
    pub(crate) more_unreadable: usize,
}

impl Panel {
    /// A panel that shows what `rights` are for.
    pub(crate) fn new(name: &'static str, rights: &[Right], hint: &'static str) -> Self {
        let resource =
            rights.first().map(|right| format!("{}.{}", right.resource, right.group)).unwrap_or_default();
        Self { kind: "panel", name, resource, hint, ..Self::default() }
    }

    pub(crate) fn with_unreadable(mut self, objects: &[(impl ToString, String)]) -> Self {
        let named = objects.iter().take(UNREADABLE);
        let named = named.map(|(key, why)| [text::name(&key.to_string()), text::sentence(why)]);
        self.unreadable = named.collect();
        self.more_unreadable = objects.len().saturating_sub(UNREADABLE);
        self
    }

    pub(crate) fn row(&self) -> Row {
        (format!("panel/{}", self.name), crate::json(self))
    }
}
