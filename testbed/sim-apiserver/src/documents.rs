//! Documents that are no resources: discovery, OpenAPI, version, health.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use axum::body::Body;
use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, header};
use serde_json::{Value, json};
use sim_apimachinery::openapi::{self, Described};
use sim_apimachinery::{discovery, kind as api};

use crate::Failure;
use crate::form::to_bytes;
use crate::kind::{Kinds, Version};
use crate::server::{ApiServer, json_response, value_response};

/// The OpenAPI documents that somebody has read, each with its hash. Those of other kinds than the present are dropped.
#[derive(Debug, Default)]
pub(crate) struct Documents(Mutex<Made>);

#[derive(Debug, Default)]
struct Made {
    /// The kinds that the documents are of.
    of: Option<Arc<Kinds>>,
    documents: BTreeMap<String, (Bytes, String)>,
}

/// Answers a path that is no resource.
pub(crate) fn answer(server: &ApiServer, request: &Request<Bytes>) -> Result<Response<Body>, Failure> {
    let segments: Vec<&str> = request.uri().path().split('/').filter(|segment| !segment.is_empty()).collect();
    let kinds = server.kinds();
    let versions: Vec<&api::Kind> = versions(&kinds).map(|version| &version.api).collect();
    let found = |document: Option<Value>| {
        document.map(|document| value_response(StatusCode::OK, &document)).ok_or_else(Failure::no_such_path)
    };
    match segments.as_slice() {
        ["healthz" | "livez" | "readyz", ..] => {
            let mut response = json_response(StatusCode::OK, "ok");
            let text = HeaderValue::from_static("text/plain; charset=utf-8");
            response.headers_mut().insert(header::CONTENT_TYPE, text);
            Ok(response)
        }
        ["version"] => found(Some(version(server))),
        ["api" | "apis"] if wants_aggregated(request) => {
            let document = discovery::aggregated(&versions, segments[0] == "api");
            let mut response = value_response(StatusCode::OK, &document);
            let media = HeaderValue::from_static(discovery::AGGREGATED);
            response.headers_mut().insert(header::CONTENT_TYPE, media);
            Ok(response)
        }
        ["api"] => {
            let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
            let host = host.or_else(|| request.uri().authority().map(|authority| authority.as_str()));
            found(Some(discovery::api_versions(host.unwrap_or_default())))
        }
        ["apis"] => found(Some(discovery::group_list(&versions))),
        ["apis", group] => found(discovery::group(&versions, group)),
        ["api", version] => found(discovery::resource_list(&versions, "", version)),
        ["apis", group, version] => found(discovery::resource_list(&versions, group, version)),
        ["openapi", "v2"] => Ok(openapi_v2(server, request)),
        ["openapi", "v3"] => {
            let documents = server.0.documents.of(&kinds);
            let index = documents.iter().map(|(path, (_, hash))| (path.as_str(), hash.as_str()));
            found(Some(openapi::index(index)))
        }
        ["openapi", "v3", path @ ..] => {
            let documents = server.0.documents.of(&kinds);
            let (text, _) = documents.get(&path.join("/")).ok_or_else(Failure::no_such_path)?;
            Ok(json_response(StatusCode::OK, text.clone()))
        }
        [] => found(Some(
            json!({"paths": ["/api", "/apis", "/healthz", "/livez", "/openapi/v2", "/openapi/v3", "/readyz", "/version"]}),
        )),
        _ => Err(Failure::no_such_path()),
    }
}

fn versions(kinds: &Kinds) -> impl Iterator<Item = &Version> {
    kinds.iter().flat_map(|kind| &kind.versions)
}

fn wants_aggregated(request: &Request<Bytes>) -> bool {
    let accept =
        request.headers().get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    accept.split(',').any(|choice| choice.contains("as=APIGroupDiscoveryList") && choice.contains("v=v2;"))
        || accept
            .split(',')
            .any(|choice| choice.contains("as=APIGroupDiscoveryList") && choice.ends_with("v=v2"))
}

/// kubectl asks here for kinds that it did not find in the third version, such as `List`; nothing is described here,
/// and then it does not check them.
fn openapi_v2(server: &ApiServer, request: &Request<Bytes>) -> Response<Body> {
    let accept = request.headers().get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
    if accept.is_some_and(|accept| accept.contains("proto-openapi.spec.v2@v1.0+protobuf")) {
        let mut response = json_response(StatusCode::OK, Body::empty());
        let media = HeaderValue::from_static("application/com.github.proto-openapi.spec.v2.v1.0+protobuf");
        response.headers_mut().insert(header::CONTENT_TYPE, media);
        return response;
    }
    let (major, minor) = server.0.release;
    let info = json!({"title": "Kubernetes (simulated)", "version": format!("v{major}.{minor}.0")});
    value_response(StatusCode::OK, &json!({"swagger": "2.0", "info": info, "paths": {}}))
}

fn version(server: &ApiServer) -> Value {
    let (major, minor) = server.0.release;
    json!({
        "major": major.to_string(), "minor": minor.to_string(), "gitVersion": format!("v{major}.{minor}.0"),
        "gitCommit": "", "gitTreeState": "clean", "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "", "compiler": "rustc", "platform": "simulated",
    })
}

impl Documents {
    /// The documents of these kinds, by their path under `/openapi/v3/`.
    fn of(&self, kinds: &Arc<Kinds>) -> BTreeMap<String, (Bytes, String)> {
        let mut made = self.0.lock().expect("no panic while documents are made");
        if !made.of.as_ref().is_some_and(|of| Arc::ptr_eq(of, kinds)) {
            let mut described: BTreeMap<String, Vec<Described<'_>>> = BTreeMap::new();
            for version in versions(kinds) {
                let entry = Described { kind: &version.api, schema: version.raw_schema.as_deref() };
                described.entry(openapi::path(&version.api)).or_default().push(entry);
            }
            let known = std::mem::take(&mut made.documents);
            made.documents = described
                .into_iter()
                .map(|(path, kinds)| {
                    // built-in kinds do not change
                    let builtin = kinds.iter().all(|kind| kind.schema.is_none());
                    if let Some(document) = known.get(&path).filter(|_| builtin) {
                        return (path, document.clone());
                    }
                    let text = to_bytes(&openapi::document(&kinds));
                    let hash = openapi::hash(&String::from_utf8_lossy(&text));
                    (path, (text, hash))
                })
                .collect();
            made.of = Some(kinds.clone());
        }
        made.documents.clone()
    }
}
