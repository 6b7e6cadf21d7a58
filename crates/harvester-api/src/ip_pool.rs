//! `loadbalancer.harvesterhci.io/v1beta1`, kind IPPool: cluster-scoped, without status subresource.

use std::collections::BTreeMap;

use kube::CustomResource;
use serde::{Deserialize, Serialize};

use crate::Condition;

/// Which addresses there are, and for whom.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "loadbalancer.harvesterhci.io",
    version = "v1beta1",
    kind = "IPPool",
    plural = "ippools",
    shortname = "pool",
    shortname = "pools",
    schema = "disabled",
    status = "IPPoolStatus",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
pub struct IPPoolSpec {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    #[serde(default)]
    pub ranges: Vec<PoolRange>,
    #[serde(default)]
    pub selector: PoolSelector,
    /// So many addresses at most for a guest cluster or a namespace. An addition of ours, like the field below and
    /// [`PoolRange::drain`]: absent on older schemas.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub quota: Vec<PoolQuota>,
    /// An address that was released is given to nobody else for so many seconds; 0 means none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub quarantine_seconds: i64,
}

impl IPPoolSpec {
    /// Whether the pool is the fallback for everybody: exactly one scope, all of it `*`. Derived from the spec and
    /// not from the label, which is missing when the webhook was away.
    pub fn is_global(&self) -> bool {
        matches!(self.selector.scope.as_slice(), [scope]
            if scope.project == "*" && scope.namespace == "*" && scope.guest_cluster == "*")
    }
}

/// A stretch of a subnet. Everything but `subnet` has a default; see the crate `ipam`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PoolRange {
    /// CIDR; host bits are allowed.
    pub subnet: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub range_start: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub range_end: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub gateway: String,
    /// Nothing new is given out of the range; what is held stays.
    #[serde(skip_serializing_if = "is_false")]
    pub drain: bool,
}

/// So many addresses at most for the load balancers of one guest cluster, or of one namespace of Harvester.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PoolQuota {
    /// Name of the guest cluster; exactly one of this and `namespace` is given.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub guest_cluster: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// 0 means that no address is given.
    pub max: i64,
}

/// Who may draw from the pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PoolSelector {
    /// The highest wins; 0 means none.
    #[serde(skip_serializing_if = "is_zero")]
    pub priority: i64,
    /// `namespace/name` of a NetworkAttachmentDefinition, compared as text; empty matches only empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub network: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub scope: Vec<PoolScope>,
}

fn is_zero(number: &i64) -> bool {
    *number == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
fn is_false(flag: &bool) -> bool {
    !*flag
}

/// One admitted combination; `*` admits any value.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PoolScope {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub project: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub guest_cluster: String,
}

/// The record. The schema requires `available`, `lastAllocated` and `total` of every status that is written.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct IPPoolStatus {
    /// Usable addresses.
    pub total: i64,
    /// `total` less the allocated ones.
    pub available: i64,
    /// Where the round robin stands.
    pub last_allocated: String,
    /// Address to holder, `namespace/name` of a LoadBalancer object. An address is held if and only if it is a key here.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub allocated: BTreeMap<String, String>,
    /// Released address to its last holder.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub allocated_history: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}
