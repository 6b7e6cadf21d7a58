//! API groups that something else than this server answers, after authentication and RBAC.

use std::collections::HashMap;
use std::sync::RwLock;

use axum::body::Body;
use bytes::Bytes;
use http::{HeaderValue, Request, Response};

use crate::endpoint::Endpoint;
use crate::server::ApiServer;
use crate::user::User;

/// The servers of aggregated API groups.
#[derive(Debug, Default)]
pub(crate) struct Aggregated(RwLock<HashMap<String, Endpoint>>);

impl ApiServer {
    /// Lets a service answer everything under `/apis/<group>/`, as an aggregated API does: the server has authenticated
    /// the user, applied RBAC, and names the user in `X-Remote-User` and `X-Remote-Group`.
    pub fn aggregate(&self, group: impl Into<String>, service: impl Into<Endpoint>) {
        let mut groups = self.0.aggregated.0.write().expect("no panic while a group is added");
        groups.insert(group.into(), service.into());
    }

    pub(crate) fn aggregated(&self, group: &str) -> Option<Endpoint> {
        self.0.aggregated.0.read().expect("no panic while a group is added").get(group).cloned()
    }
}

/// Hands a request on.
pub(crate) async fn forward(endpoint: &Endpoint, user: &User, request: Request<Bytes>) -> Response<Body> {
    let mut request = request.map(Body::from);
    let headers = request.headers_mut();
    for name in ["x-remote-user", "x-remote-group", "authorization"] {
        headers.remove(name);
    }
    if let Ok(name) = HeaderValue::try_from(user.name.as_str()) {
        headers.insert("x-remote-user", name);
    }
    for group in user.groups.iter().filter_map(|group| HeaderValue::try_from(group.as_str()).ok()) {
        headers.append("x-remote-group", group);
    }
    endpoint.call(request).await
}
