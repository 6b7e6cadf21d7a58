//! The driver reads no answer beyond [`LONGEST`]. A kubeconfig may lead anywhere, and a server there must not fill the
//! memory of Rancher's pod.

use http::{Request, Response};
use http_body_util::Limited;
use kube::{Client, client::Body};

/// Bytes of one answer. The list of all claims of a large namespace has a tenth of it.
const LONGEST: usize = 32 << 20;

/// Wraps a client: a longer answer ends with an error.
pub(crate) fn limited(client: Client) -> Client {
    let namespace = client.default_namespace().to_owned();
    let service = tower::service_fn(move |request: Request<Body>| {
        let client = client.clone();
        async move {
            let answer: Response<Body> = client.send(request).await?;
            Ok::<_, tower::BoxError>(answer.map(|body| Limited::new(body, LONGEST)))
        }
    });
    Client::new(service, namespace)
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use super::*;
    use crate::harvester::Harvester;
    use bytes::Bytes;
    use futures::stream;

    /// A server whose answers never end.
    fn endless(sent: Arc<AtomicUsize>) -> Client {
        let service = tower::service_fn(move |_: Request<Body>| {
            let sent = sent.clone();
            async move {
                let chunks = stream::repeat_with(move || {
                    sent.fetch_add(1 << 20, Ordering::Relaxed);
                    assert!(sent.load(Ordering::Relaxed) < 1 << 30, "somebody reads it all");
                    Ok::<_, std::io::Error>(Bytes::from(vec![b' '; 1 << 20]))
                });
                Ok::<_, tower::BoxError>(Response::new(axum::body::Body::from_stream(chunks)))
            }
        });
        Client::new(service, "shop")
    }

    #[tokio::test]
    async fn an_answer_without_end_is_an_error_before_it_fills_the_memory() {
        let sent = Arc::new(AtomicUsize::new(0));
        let harvester = Harvester::new(endless(sent.clone()), "https://h:6443", "shop");
        let error = harvester.vm("demo-1").await.unwrap_err().to_string();
        assert!(error.starts_with("read VM shop/demo-1: ") && error.contains("limit"), "{error}");
        assert!(sent.load(Ordering::Relaxed) <= LONGEST + (2 << 20), "{sent:?}");
    }
}
