//! `endpoints.json`: where everything is, for programs. It appears when everything is ready.

use std::{fs, path::Path};

use anyhow::{Context, Result};
use serde::Serialize;

use crate::parts::PartInfo;

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Endpoints {
    pub(crate) guest: ClusterInfo,
    pub(crate) harvester: ClusterInfo,
    pub(crate) nodes: Vec<NodeInfo>,
    /// CIDR that VIPs come from.
    pub(crate) vip_range: String,
    pub(crate) parts: Vec<PartInfo>,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct ClusterInfo {
    /// `https://127.0.0.1:<port>`.
    pub(crate) server: String,
    /// File with the rights of an administrator.
    pub(crate) kubeconfig: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NodeInfo {
    /// Name of the guest Node.
    pub(crate) name: String,
    /// Name of its VM in Harvester.
    pub(crate) vm: String,
    /// Address in every object.
    pub(crate) address: String,
    /// The same on the wire.
    pub(crate) loopback_address: String,
}

impl Endpoints {
    /// Writes the file at once: a program that waits for it never reads half of it.
    pub(crate) fn write(&self, dir: &Path) -> Result<()> {
        let (draft, file) = (dir.join(".endpoints.json"), dir.join("endpoints.json"));
        let text = serde_json::to_string_pretty(self).context("describe the sandbox")?;
        fs::write(&draft, text + "\n").with_context(|| format!("write {}", draft.display()))?;
        fs::rename(&draft, &file).with_context(|| format!("write {}", file.display()))
    }
}
