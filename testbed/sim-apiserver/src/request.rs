//! Parses path, query and headers of a request into a [`Target`] and a [`Query`], once.

use http::{HeaderMap, Method, Uri, header};
use serde_json::Value;

use crate::Failure;

/// A resource path: `/apis/<group>/<version>/namespaces/<namespace>/<plural>/<name>/<subresource>`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) namespace: Option<String>,
    pub(crate) plural: String,
    pub(crate) name: Option<String>,
    pub(crate) subresource: Option<String>,
    /// The rest of the path after the subresource, of aggregated APIs.
    pub(crate) rest: Vec<String>,
}

/// The target of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    Resource(Target),
    /// Discovery, health, documents.
    Other,
}

/// Reads a path.
pub(crate) fn route(path: &str) -> Route {
    let segments: Vec<String> = path.split('/').filter(|s| !s.is_empty()).map(percent_decoded).collect();
    let (group, version, rest) = match segments.split_first() {
        Some((api, rest)) if api == "api" && rest.len() >= 2 => (String::new(), rest[0].clone(), &rest[1..]),
        Some((apis, rest)) if apis == "apis" && rest.len() >= 3 => {
            (rest[0].clone(), rest[1].clone(), &rest[2..])
        }
        _ => return Route::Other,
    };
    let target = Target { group, version, ..Target::default() };
    let (namespace, rest) = match rest {
        // `/namespaces/shop/services`; but `/namespaces/shop/status` and `finalize` are the namespace's own
        [word, namespace, plural, ..]
            if word == "namespaces" && !(plural == "status" || plural == "finalize") =>
        {
            (Some(namespace.clone()), &rest[2..])
        }
        _ => (None, rest),
    };
    Route::Resource(Target {
        namespace,
        plural: rest.first().cloned().unwrap_or_default(),
        name: rest.get(1).cloned(),
        subresource: rest.get(2).cloned(),
        rest: rest.iter().skip(3).cloned().collect(),
        ..target
    })
}

fn percent_decoded(segment: &str) -> String {
    let bytes = segment.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut i = 0;
    while i < bytes.len() {
        let hex = (bytes[i] == b'%')
            .then(|| segment.get(i + 1..i + 3).and_then(|hex| u8::from_str_radix(hex, 16).ok()))
            .flatten();
        if let Some(byte) = hex {
            decoded.push(byte);
            i += 3;
        } else {
            decoded.push(bytes[i]);
            i += 1;
        }
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

/// The verb of a request, as RBAC and the audit log call it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verb {
    /// Read one object.
    Get,
    /// Read many.
    List,
    /// Follow changes.
    Watch,
    /// Make an object.
    Create,
    /// Replace an object.
    Update,
    /// Change an object.
    Patch,
    /// Remove an object.
    Delete,
    /// Remove many.
    DeleteCollection,
}

impl Verb {
    pub(crate) fn of(method: &Method, named: bool, watch: bool) -> Option<Self> {
        Some(match (method, named) {
            (&Method::GET | &Method::HEAD, _) if watch => Self::Watch,
            (&Method::GET | &Method::HEAD, true) => Self::Get,
            (&Method::GET | &Method::HEAD, false) => Self::List,
            (&Method::POST, _) => Self::Create,
            (&Method::PUT, _) => Self::Update,
            (&Method::PATCH, _) => Self::Patch,
            (&Method::DELETE, true) => Self::Delete,
            (&Method::DELETE, false) => Self::DeleteCollection,
            _ => return None,
        })
    }

    /// The word: `deletecollection`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::List => "list",
            Self::Watch => "watch",
            Self::Create => "create",
            Self::Update => "update",
            Self::Patch => "patch",
            Self::Delete => "delete",
            Self::DeleteCollection => "deletecollection",
        }
    }

    /// Whether the request changes something.
    #[must_use]
    pub fn writes(self) -> bool {
        !matches!(self, Self::Get | Self::List | Self::Watch)
    }
}

/// The parameters of the query.
#[derive(Clone, Debug, Default)]
pub(crate) struct Query {
    pub(crate) label_selector: Option<String>,
    pub(crate) field_selector: Option<String>,
    pub(crate) limit: usize,
    pub(crate) continue_at: Option<String>,
    pub(crate) resource_version: Option<String>,
    pub(crate) version_match: Option<String>,
    pub(crate) watch: bool,
    pub(crate) bookmarks: bool,
    pub(crate) initial_events: Option<bool>,
    pub(crate) timeout_seconds: Option<u64>,
    /// Each of them: any asks for a dry run, and only `All` makes sense.
    pub(crate) dry_run: Vec<String>,
    pub(crate) field_manager: Option<String>,
    pub(crate) force: Option<bool>,
    pub(crate) field_validation: Option<String>,
    pub(crate) include_object: Option<String>,
    pub(crate) propagation_policy: Option<String>,
    pub(crate) orphan_dependents: Option<bool>,
}

impl Query {
    pub(crate) fn of(uri: &Uri) -> Result<Self, Failure> {
        let pairs = axum::extract::Query::<Vec<(String, String)>>::try_from_uri(uri)
            .map_err(|e| Failure::bad_request(format!("query: {e}")))?;
        let mut query = Self::default();
        for (key, value) in pairs.0 {
            let truth = || matches!(value.as_str(), "true" | "1" | "");
            let number = || {
                value
                    .parse::<u64>()
                    .map_err(|_| Failure::bad_request(format!("{key}: {value:?} is no number")))
            };
            match key.as_str() {
                "labelSelector" => query.label_selector = Some(value),
                "fieldSelector" => query.field_selector = Some(value),
                "limit" => query.limit = usize::try_from(number()?).unwrap_or(usize::MAX),
                "continue" => query.continue_at = Some(value).filter(|v| !v.is_empty()),
                "resourceVersion" => query.resource_version = Some(value).filter(|v| !v.is_empty()),
                "resourceVersionMatch" => query.version_match = Some(value).filter(|v| !v.is_empty()),
                "watch" => query.watch = truth(),
                "allowWatchBookmarks" => query.bookmarks = truth(),
                "sendInitialEvents" => query.initial_events = Some(truth()),
                "timeoutSeconds" => query.timeout_seconds = Some(number()?),
                "dryRun" => query.dry_run.push(value),
                "fieldManager" => query.field_manager = Some(value).filter(|v| !v.is_empty()),
                "force" => query.force = Some(truth()),
                "fieldValidation" => query.field_validation = Some(value),
                "includeObject" => query.include_object = Some(value),
                "propagationPolicy" => query.propagation_policy = Some(value),
                "orphanDependents" => query.orphan_dependents = Some(truth()),
                _ => {}
            }
        }
        Ok(query)
    }
}

/// The media type of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Media {
    Json,
    Yaml,
    Protobuf,
    JsonPatch,
    MergePatch,
    StrategicMergePatch,
    ApplyPatch,
    Other,
}

impl Media {
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let text = headers.get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
        match text.split(';').next().unwrap_or_default().trim() {
            "" | "application/json" | "*/*" => Self::Json,
            "application/yaml" => Self::Yaml,
            "application/vnd.kubernetes.protobuf" => Self::Protobuf,
            "application/json-patch+json" => Self::JsonPatch,
            "application/merge-patch+json" => Self::MergePatch,
            "application/strategic-merge-patch+json" => Self::StrategicMergePatch,
            "application/apply-patch+yaml" => Self::ApplyPatch,
            _ => Self::Other,
        }
    }

    /// Patches have content types of their own.
    pub(crate) fn is_patch(self) -> bool {
        matches!(self, Self::JsonPatch | Self::MergePatch | Self::StrategicMergePatch | Self::ApplyPatch)
    }

    /// Reads a body that is a document, not a list of operations.
    pub(crate) fn document(self, body: &[u8]) -> Result<Value, Failure> {
        match self {
            Self::Json | Self::JsonPatch | Self::MergePatch | Self::StrategicMergePatch => {
                serde_json::from_slice(body).map_err(|e| {
                    Failure::bad_request(format!("the object provided is unrecognized: not JSON: {e}"))
                })
            }
            Self::Yaml | Self::ApplyPatch => {
                let text = std::str::from_utf8(body)
                    .map_err(|e| Failure::bad_request(format!("error decoding YAML: {e}")))?;
                serde_saphyr::from_str(text)
                    .map_err(|e| Failure::bad_request(format!("error decoding YAML: {e}")))
            }
            Self::Protobuf => crate::machinery::protobuf(body),
            Self::Other => Err(Failure::unsupported_media_type(&[
                "application/json",
                "application/yaml",
                "application/vnd.kubernetes.protobuf",
            ])),
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn written(target: &Target) -> String {
        let Target { group, version, namespace, plural, name, subresource, rest } = target;
        format!("{group}|{version}|{namespace:?}|{plural}|{name:?}|{subresource:?}|{rest:?}")
            .replace("None", "-")
    }

    #[rstest]
    #[case("/api/v1/services", r#"|v1|-|services|-|-|[]"#)]
    #[case("/api/v1/namespaces", r#"|v1|-|namespaces|-|-|[]"#)]
    #[case("/api/v1/namespaces/shop", r#"|v1|-|namespaces|Some("shop")|-|[]"#)]
    #[case("/api/v1/namespaces/shop/status", r#"|v1|-|namespaces|Some("shop")|Some("status")|[]"#)]
    #[case(
        "/api/v1/namespaces/shop/services/web/status",
        r#"|v1|Some("shop")|services|Some("web")|Some("status")|[]"#
    )]
    #[case(
        "/apis/rbac.authorization.k8s.io/v1/clusterroles/system%3Anode",
        r#"rbac.authorization.k8s.io|v1|-|clusterroles|Some("system:node")|-|[]"#
    )]
    #[case(
        "/apis/subresources.kubevirt.io/v1/namespaces/a/virtualmachines/b/start/c",
        r#"subresources.kubevirt.io|v1|Some("a")|virtualmachines|Some("b")|Some("start")|["c"]"#
    )]
    fn a_path_names_its_resource(#[case] path: &str, #[case] expected: &str) {
        let Route::Resource(target) = route(path) else { panic!("{path} is no resource") };
        assert_eq!(written(&target), expected);
    }

    #[rstest]
    #[case("/")]
    #[case("/api")]
    #[case("/api/v1")]
    #[case("/apis/apps/v1")]
    #[case("/readyz/ping")]
    #[case("/openapi/v3/api/v1")]
    fn documents_are_no_resources(#[case] path: &str) {
        assert_eq!(route(path), Route::Other);
    }

    #[test]
    fn foreign_percent_signs_do_not_panic() {
        for path in ["/api/v1/services/%", "/api/v1/services/%zz", "/api/v1/services/%c3%28", "/api/v1/x/%é"]
        {
            assert!(matches!(route(path), Route::Resource(_)), "{path}");
        }
    }
}
