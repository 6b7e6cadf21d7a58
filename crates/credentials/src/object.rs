//! Objects of any kind at the API server, as plain JSON.

use http::{Method, Request};
use kube::Client;
use serde_json::Value;

/// The path of an object's kind: `/api/v1/namespaces/vms/secrets`.
fn collection(object: &Value) -> (String, String) {
    let version = object["apiVersion"].as_str().unwrap_or_default();
    let root = if version.contains('/') { "apis" } else { "api" };
    let plural = format!("{}s", object["kind"].as_str().unwrap_or_default().to_lowercase());
    let place = match object["metadata"]["namespace"].as_str() {
        Some(namespace) => format!("namespaces/{namespace}/"),
        None => String::new(),
    };
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    // RBAC's names may hold a colon, which a path may too
    (format!("/{root}/{version}/{place}{plural}"), name.to_owned())
}

/// The object as kubectl names it: `secret/demo-token`.
pub(crate) fn title(object: &Value) -> String {
    let kind = object["kind"].as_str().unwrap_or_default().to_lowercase();
    let version = object["apiVersion"].as_str().unwrap_or_default();
    let group = version.split_once('/').map(|(group, _)| format!(".{group}")).unwrap_or_default();
    format!("{kind}{group}/{}", object["metadata"]["name"].as_str().unwrap_or_default())
}

fn request(method: Method, path: &str, body: Option<&Value>) -> kube::Result<Request<Vec<u8>>> {
    let body = body.map(|body| body.to_string().into_bytes()).unwrap_or_default();
    let request = Request::builder().method(method).uri(path).header("Content-Type", "application/json");
    request.body(body).map_err(kube::Error::HttpError)
}

/// The object of this kind, namespace and name, if it is there.
pub(crate) async fn get(client: &Client, like: &Value) -> kube::Result<Option<Value>> {
    let (path, name) = collection(like);
    match client.request(request(Method::GET, &format!("{path}/{name}"), None)?).await {
        Ok(object) => Ok(Some(object)),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        Err(error) => Err(error),
    }
}

pub(crate) async fn create(client: &Client, object: &Value) -> kube::Result<Value> {
    let (path, _) = collection(object);
    client.request(request(Method::POST, &path, Some(object))?).await
}

/// Deletes the object if it is still the one that was read.
pub(crate) async fn delete(client: &Client, object: &Value) -> kube::Result<Value> {
    let (path, name) = collection(object);
    let options = serde_json::json!({"apiVersion": "v1", "kind": "DeleteOptions",
        "preconditions": {"uid": object["metadata"]["uid"], "resourceVersion": object["metadata"]["resourceVersion"]}});
    client.request(request(Method::DELETE, &format!("{path}/{name}"), Some(&options))?).await
}

/// A token for a service account.
pub(crate) async fn token(
    client: &Client,
    namespace: &str,
    account: &str,
    question: &Value,
) -> kube::Result<Value> {
    let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token");
    client.request(request(Method::POST, &path, Some(question))?).await
}

/// Writes the object over the version that it was read from.
pub(crate) async fn replace(client: &Client, object: &Value) -> kube::Result<Value> {
    let (path, name) = collection(object);
    client.request(request(Method::PUT, &format!("{path}/{name}"), Some(object))?).await
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case(json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a", "namespace": "b"}}),
        "/api/v1/namespaces/b/secrets", "secret/a")]
    #[case(json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "a"}}),
        "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", "clusterrolebinding.rbac.authorization.k8s.io/a")]
    fn an_object_has_a_path_and_a_title(#[case] object: Value, #[case] path: &str, #[case] expected: &str) {
        assert_eq!((collection(&object).0.as_str(), title(&object).as_str()), (path, expected));
    }
}
