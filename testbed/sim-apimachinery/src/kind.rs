//! The description of a kind, as data: built-in kinds and kinds from a CRD look the same from here on.

use serde_json::Value;

use crate::json::{elements, text};

/// Whether objects of a kind live in namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// One name space for the whole cluster.
    Cluster,
    /// Names are unique within a namespace.
    Namespaced,
}

/// The origin of a kind; the two differ in patches, in PUT without a version and in error texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Compiled in: strategic merge patch is offered.
    Builtin,
    /// From a CustomResourceDefinition: strategic merge patch is answered with 415.
    Custom,
}

/// A printer column of a CRD (`additionalPrinterColumns`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    /// Heading.
    pub name: String,
    /// OpenAPI type: `string`, `integer`, `number`, `boolean`, `date`.
    pub r#type: String,
    /// OpenAPI format, may be empty.
    pub format: String,
    /// Shown by `kubectl explain`-like tools.
    pub description: String,
    /// 0 is always shown, above 0 only with `-o wide`.
    pub priority: i64,
    /// A simple JSONPath such as `.spec.ports[0].port`.
    pub json_path: String,
}

/// The description of one kind in one version.
#[derive(Clone, Debug)]
pub struct Kind {
    /// API group, empty for the core group.
    pub group: String,
    /// Version, such as `v1`.
    pub version: String,
    /// Kind, such as `Service`.
    pub kind: String,
    /// Kind of lists, such as `ServiceList`.
    pub list_kind: String,
    /// Resource name in paths, such as `services`.
    pub plural: String,
    /// Name for one object, such as `service`.
    pub singular: String,
    /// Short names for kubectl, such as `svc`.
    pub short_names: Vec<String>,
    /// Categories for kubectl, such as `all`.
    pub categories: Vec<String>,
    /// Whether objects live in namespaces.
    pub scope: Scope,
    /// Subresources by name (`status`, `scale`, `token`, …).
    pub subresources: Vec<String>,
    /// Verbs offered, as discovery names them.
    pub verbs: Vec<String>,
    /// Printer columns of a CRD; built-in kinds have their columns in code.
    pub columns: Vec<Column>,
    /// Field selectors besides `metadata.name` (and `metadata.namespace`), as paths into the object.
    pub selectable: Vec<String>,
    /// `metadata.generation` is kept and counts changes outside metadata and status.
    pub keeps_generation: bool,
    /// PUT without `metadata.resourceVersion` is accepted.
    pub unconditional_update: bool,
    /// PUT of an absent object creates it.
    pub create_on_update: bool,
    /// Objects of this version are stored (the other versions of a CRD are served from them).
    pub storage: bool,
    /// Origin of the kind.
    pub origin: Origin,
}

/// The verbs of an ordinary resource, in the order of the real server's discovery.
pub const ALL_VERBS: [&str; 8] =
    ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];

impl Kind {
    /// `v1` or `apps/v1`.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }

    /// `services` or `deployments.apps`: how error texts name the resource.
    pub fn qualified_resource(&self) -> String {
        qualified(&self.plural, &self.group)
    }

    /// `Service` or `Deployment.apps`: how validation errors name the kind.
    pub fn qualified_kind(&self) -> String {
        qualified(&self.kind, &self.group)
    }

    /// Whether `/status` is a resource of its own.
    pub fn has_status(&self) -> bool {
        self.has_subresource("status")
    }

    /// Whether there is a subresource of that name.
    pub fn has_subresource(&self, name: &str) -> bool {
        self.subresources.iter().any(|s| s == name)
    }

    /// Whether objects live in namespaces.
    pub fn namespaced(&self) -> bool {
        self.scope == Scope::Namespaced
    }

    /// Whether discovery offers that verb.
    pub fn offers(&self, verb: &str) -> bool {
        self.verbs.iter().any(|v| v == verb)
    }

    /// The collection's path, such as `/api/v1/namespaces/{namespace}/services`.
    pub fn path(&self, namespace: Option<&str>) -> String {
        let root = if self.group.is_empty() { "/api/" } else { "/apis/" };
        match (self.scope, namespace) {
            (Scope::Namespaced, Some(namespace)) => {
                format!("{root}{}/namespaces/{namespace}/{}", self.api_version(), self.plural)
            }
            _ => format!("{root}{}/{}", self.api_version(), self.plural),
        }
    }

    /// The kinds that a CustomResourceDefinition (apiextensions.k8s.io/v1) serves, one for each served version.
    ///
    /// Reads leniently: whether the definition is valid is the business of [`crate::validate`].
    pub fn of_crd(crd: &Value) -> Vec<Self> {
        let spec = &crd["spec"];
        let names = &spec["names"];
        let kind = owned(&names["kind"]);
        let or = |value: &Value, other: String| if value.is_string() { owned(value) } else { other };
        let scope = if spec["scope"] == "Cluster" { Scope::Cluster } else { Scope::Namespaced };
        let versions = spec["versions"].as_array().map_or(&[][..], Vec::as_slice);
        versions
            .iter()
            .filter(|version| version["served"] == true)
            .map(|version| {
                let subresources = ["status", "scale"]
                    .into_iter()
                    .filter(|name| version["subresources"].get(name).is_some_and(|v| !v.is_null()))
                    .map(str::to_owned)
                    .collect();
                Self {
                    group: owned(&spec["group"]),
                    version: owned(&version["name"]),
                    list_kind: or(&names["listKind"], format!("{kind}List")),
                    plural: owned(&names["plural"]),
                    singular: or(&names["singular"], kind.to_lowercase()),
                    kind: kind.clone(),
                    short_names: texts(&names["shortNames"]),
                    categories: texts(&names["categories"]),
                    scope,
                    subresources,
                    verbs: ALL_VERBS.map(str::to_owned).to_vec(),
                    columns: columns(&version["additionalPrinterColumns"]),
                    selectable: elements(&version["selectableFields"])
                        .iter()
                        .map(|field| owned(&field["jsonPath"]).trim_start_matches('.').to_owned())
                        .collect(),
                    keeps_generation: true,
                    unconditional_update: false,
                    create_on_update: false,
                    storage: version["storage"] == true,
                    origin: Origin::Custom,
                }
            })
            .collect()
    }
}

fn columns(value: &Value) -> Vec<Column> {
    elements(value)
        .iter()
        .map(|column| Column {
            name: owned(&column["name"]),
            r#type: owned(&column["type"]),
            format: owned(&column["format"]),
            description: owned(&column["description"]),
            priority: column["priority"].as_i64().unwrap_or_default(),
            json_path: owned(&column["jsonPath"]),
        })
        .collect()
}

/// `name` or `name.group`.
pub fn qualified(name: &str, group: &str) -> String {
    if group.is_empty() { name.to_owned() } else { format!("{name}.{group}") }
}

/// Splits `apiVersion` into group and version.
pub fn group_version(api_version: &str) -> (&str, &str) {
    api_version.split_once('/').unwrap_or(("", api_version))
}

fn owned(value: &Value) -> String {
    text(value).to_owned()
}

fn texts(value: &Value) -> Vec<String> {
    elements(value).iter().map(owned).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_crd_serves_one_kind_for_each_served_version() {
        let crd = json!({"spec": {
        "group": "pools.example.com",
        "names": {"kind": "AddressPool", "plural": "addresspools", "shortNames": ["pool"]},
        "scope": "Cluster",
        "versions": [
            {"name": "v1beta1", "served": true, "storage": true, "subresources": {"status": {}},
             "additionalPrinterColumns": [{"name": "TOTAL", "type": "integer", "jsonPath": ".status.total"}]},
            {"name": "v1alpha1", "served": false, "storage": false},
        ]}});
        let kinds = Kind::of_crd(&crd);
        assert_eq!(kinds.len(), 1);
        let pool = &kinds[0];
        assert_eq!(pool.list_kind, "AddressPoolList");
        assert_eq!(pool.singular, "addresspool");
        assert_eq!(pool.path(Some("x")), "/apis/pools.example.com/v1beta1/addresspools");
        assert_eq!(pool.qualified_resource(), "addresspools.pools.example.com");
        assert!(pool.has_status() && !pool.has_subresource("scale") && pool.storage);
        assert_eq!(pool.columns[0].json_path, ".status.total");
    }

    #[test]
    fn a_definition_that_is_no_definition_serves_nothing() {
        assert!(Kind::of_crd(&json!(null)).is_empty());
        assert!(Kind::of_crd(&json!({"spec": {"versions": [1, "x"]}})).is_empty());
    }
}
