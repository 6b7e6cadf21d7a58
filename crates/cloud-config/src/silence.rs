//! How long a request may go without a sign of life, from sending it to the end of its answer.
//!
//! ```text
//! request ──► answer begins ──► part of its body ──► part of its body ──► end
//!    └ longest ┘          └ longest ┘          └ longest ┘
//! ```
//! Between two signs, not in all: a long list over a slow line takes its time, and a connection that died without a word
//! is noticed all the same. A watch may be silent as long as it was asked to last: then the server ends it.

use std::{io, time::Duration};

use futures::stream::{self, Stream};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::{Bytes, Frame};
use kube::client::Body;
use tower::BoxError;

/// Between two signs of life of a request that is no watch.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// A server that is not told when a watch ends chooses within this time.
const LONGEST_WATCH: Duration = Duration::from_secs(3600);
/// So much later than asked for may a watch end.
const LATE: Duration = Duration::from_secs(10);

/// The longest silence of a request with this query.
pub(crate) fn longest(query: &str) -> Duration {
    let value = |key: &str| {
        query.split('&').filter_map(|pair| pair.split_once('=')).find(|(name, _)| *name == key).map(|it| it.1)
    };
    match value("watch") {
        Some("true" | "1") => {
            let asked = value("timeoutSeconds").and_then(|seconds| seconds.parse().ok());
            asked.map_or(LONGEST_WATCH, Duration::from_secs).saturating_add(LATE)
        }
        _ => ANSWER_TIMEOUT,
    }
}

/// An error by which callers know a server that does not answer.
pub(crate) fn timed_out(what: String) -> BoxError {
    io::Error::new(io::ErrorKind::TimedOut, what).into()
}

/// The body, which fails where it says nothing for so long.
pub(crate) fn broken_by(
    silence: Duration,
    body: Body,
) -> StreamBody<impl Stream<Item = Result<Frame<Bytes>, BoxError>>> {
    StreamBody::new(stream::unfold(Some(body), move |body| async move {
        let mut body = body?;
        let frame = match tokio::time::timeout(silence, body.frame()).await {
            Ok(frame) => frame?.map_err(BoxError::from),
            Err(_) => {
                let what = format!("the answer stopped halfway, nothing came for {} s", silence.as_secs());
                Err(timed_out(what))
            }
        };
        let rest = frame.is_ok().then_some(body);
        Some((frame, rest))
    }))
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, pin::pin};

    use futures::{StreamExt as _, TryStreamExt as _};
    use http::{Request, Response};
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::{Api, Client, api::WatchParams};
    use rstest::rstest;
    use tokio::time::{Instant, sleep};

    use super::*;
    use crate::{Connection, Options};

    #[rstest]
    #[case::get("", 30)]
    #[case::list("limit=500&resourceVersion=0", 30)]
    #[case::no_watch("watch=false&timeoutSeconds=290", 30)]
    #[case::watch("watch=true&timeoutSeconds=290&allowWatchBookmarks=true", 300)]
    #[case::other_form("timeoutSeconds=60&watch=1", 70)]
    #[case::watch_without_end("watch=true", 3610)]
    fn a_watch_may_be_silent_as_long_as_it_lasts(#[case] query: &str, #[case] seconds: u64) {
        assert_eq!(longest(query), Duration::from_secs(seconds));
    }

    /// A server that answers at once, sends parts of the body after these pauses, and then says nothing more, for ever.
    fn stalling(pauses: &'static [u64], part: &'static str) -> Client {
        let server = Client::new(
            tower::service_fn(move |_: Request<Body>| async move {
                let parts = stream::iter(pauses).then(move |pause| async move {
                    sleep(Duration::from_secs(*pause)).await;
                    Ok::<_, Infallible>(Frame::data(Bytes::from_static(part.as_bytes())))
                });
                Ok::<_, Infallible>(Response::new(StreamBody::new(parts.chain(stream::pending()))))
            }),
            "shop",
        );
        Connection::limiting(server, &Options::named("part/1"))
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_stops_halfway_fails_and_a_slow_one_is_waited_for() {
        let began = Instant::now();
        let client = stalling(&[20, 20, 20], "{");
        let error = client.request_text(Request::get("/x").body(vec![]).unwrap()).await.unwrap_err();
        let text = format!("{error:?}");
        assert!(text.contains("nothing came for 30 s"), "{text}");
        assert_eq!(began.elapsed(), Duration::from_secs(20 + 20 + 20 + 30));
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_is_not_cut_between_events_and_ends_soon_after_its_time() {
        const EVENT: &str = "{\"type\":\"ADDED\",\"object\":{\"apiVersion\":\"v1\",\"kind\":\"ConfigMap\",\"metadata\":{\"name\":\"a\"}}}\n";
        let api: Api<ConfigMap> = Api::default_namespaced(stalling(&[50, 50], EVENT));
        let began = Instant::now();
        let mut events = pin!(api.watch(&WatchParams::default().timeout(60), "").await.unwrap());
        for seconds in [50, 100] {
            assert!(events.try_next().await.unwrap().is_some());
            assert_eq!(began.elapsed(), Duration::from_secs(seconds));
        }
        assert!(events.try_next().await.is_err());
        assert_eq!(began.elapsed(), Duration::from_secs(100 + 70));
    }
}
