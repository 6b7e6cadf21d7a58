//! How the clusters are reached: clients that can only read, and the cloud-config with the token that counts.

use cloud_config::CloudConfig;
use credential_rotation::{InUse, in_use};
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

/// The cloud-config with the token that the parts use.
pub(crate) async fn with_token_in_use(
    given: Result<CloudConfig, cloud_config::Error>,
    guest: Result<&Client, String>,
    settings: &cloud_config::Options,
) -> Result<InUse, cloud_config::Error> {
    let connect = credential_rotation::connect(settings.clone());
    Ok(in_use(given?, guest, &*connect).await)
}

/// For a decision that asks nobody.
pub(crate) fn nobody() -> Client {
    let service = tower::service_fn(|_: Request<Body>| async {
        Err::<http::Response<Body>, _>(BoxError::from("a decision sends no request"))
    });
    Client::new(service, "default")
}
