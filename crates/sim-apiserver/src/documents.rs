//! What is no resource: discovery, OpenAPI, version, health.

use axum::body::Body;
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use serde_json::json;

use crate::Failure;
use crate::server::{ApiServer, json_response, value_response};

/// Answers a path that is no resource.
pub(crate) fn answer(server: &ApiServer, request: &Request<Bytes>) -> Result<Response<Body>, Failure> {
    let path = request.uri().path().trim_end_matches('/');
    match path {
        "/healthz" | "/livez" | "/readyz" | "/readyz/ping" | "/livez/ping" | "/healthz/ping" => {
            let mut response = json_response(StatusCode::OK, "ok");
            response.headers_mut().insert(
                http::header::CONTENT_TYPE,
                http::HeaderValue::from_static("text/plain; charset=utf-8"),
            );
            Ok(response)
        }
        "/version" => {
            let (major, minor) = server.0.release;
            let version = json!({
                "major": major.to_string(), "minor": minor.to_string(), "gitVersion": format!("v{major}.{minor}.0"),
                "gitCommit": "", "gitTreeState": "clean", "buildDate": "1970-01-01T00:00:00Z",
                "goVersion": "", "compiler": "rustc", "platform": "simulated",
            });
            Ok(value_response(StatusCode::OK, &version))
        }
        _ => Err(Failure::no_such_path()),
    }
}
