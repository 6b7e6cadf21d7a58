//! Clients that can only read.

use http::{Method, Request};
use kube::{Client, client::Body};
use tower::BoxError;

/// `client`, but every request other than GET fails before it is sent.
pub fn read_only(client: Client) -> Client {
    let namespace = client.default_namespace().to_owned();
    let service = tower::service_fn(move |request: Request<Body>| {
        let client = client.clone();
        async move {
            if request.method() != Method::GET {
                return Err(BoxError::from(format!(
                    "{} is a write, and this program only reads",
                    request.method()
                )));
            }
            client.send(request).await.map_err(BoxError::from)
        }
    });
    Client::new(service, namespace)
}

/// For a decision that asks nobody.
pub(crate) fn nobody() -> Client {
    let service = tower::service_fn(|_: Request<Body>| async {
        Err::<http::Response<Body>, _>(BoxError::from("a decision sends no request"))
    });
    Client::new(service, "default")
}
