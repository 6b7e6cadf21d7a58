//! A volume as Longhorn has it: whether it is filled, and its size. Only read.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Resource, core::NamespaceResourceScope};
use serde::Deserialize;

use super::{HostCondition, lenient};

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Volume {
    pub api_version: String,
    pub kind: String,
    pub metadata: ObjectMeta,
    #[serde(deserialize_with = "lenient")]
    pub spec: VolumeSpec,
    #[serde(deserialize_with = "lenient")]
    pub status: VolumeStatus,
}

kind!(Volume, "longhorn.io", "v1beta2", "volumes", NamespaceResourceScope);

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeSpec {
    /// In bytes. A growth raises it when it begins.
    #[serde(deserialize_with = "lenient")]
    pub size: String,
    /// `snap://…` or `vol://…` for a copy, else empty.
    #[serde(deserialize_with = "lenient")]
    pub data_source: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeStatus {
    #[serde(deserialize_with = "lenient")]
    pub clone_status: CloneStatus,
    /// A backup is being restored into it.
    #[serde(deserialize_with = "lenient")]
    pub restore_required: bool,
    #[serde(deserialize_with = "lenient")]
    pub conditions: Vec<HostCondition>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct CloneStatus {
    #[serde(deserialize_with = "lenient")]
    pub state: String,
}
