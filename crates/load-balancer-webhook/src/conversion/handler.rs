//! A review of conversion over HTTP: its turn, what the cluster has to say for it, and its answer.

use std::sync::Arc;

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use tokio::time::{Instant, timeout_at};

use super::{Lookup, Needs, Review, answer, machines, refusal};
use crate::limits::Weight;
use crate::metrics::{decided, failed};
use crate::peers::Peer;
use crate::server::{Server, cannot_decide, turns};

/// A review that has more bytes takes two turns, and so on. API servers ask for one object at a time, and an ordinary one
/// has less; two bytes are a value, which takes sixteen times as much memory.
const BYTES_OF_TURN: usize = 64 << 10;

/// The answer to a review of conversion.
pub(crate) async fn converted(server: &Server, peer: &Peer, body: Vec<u8>, until: Instant) -> Response {
    let weight = Weight::of(body.len(), BYTES_OF_TURN);
    let Ok(_turns) = timeout_at(until, turns(server, peer, weight)).await else {
        tracing::warn!(peer = %peer.address, "a review of conversion waited too long for its turn");
        return cannot_decide("too many reviews are waiting, of this peer or of all: try again");
    };
    let look = move || {
        let needs = Review::read(&body).map(|review| review.needs());
        (body, needs)
    };
    let (body, needs) = match apart(look).await {
        Ok((body, Ok(Ok(needs)))) => (body, needs),
        // any tenant can have an API server ask for such an object, and no other is touched
        Ok((_, Ok(Err((uid, why))))) => return decided(false, refused(&uid, &why)),
        Ok((_, Err((uid, why)))) => return failed(refused(&uid, &why)),
        Err(bug) => return bug,
    };
    let pools = match &needs {
        Needs { pools: false, .. } => Arc::default(),
        Needs { pools: true, .. } => match timeout_at(until, server.reviewer.pools_with_records()).await {
            Ok(Ok(pools)) => pools,
            Ok(Err(error)) => return cannot_decide(&error.to_string()),
            Err(_) => return cannot_decide("the API server has not answered in time what pools there are"),
        },
    };
    let vmis = match needs.machines {
        namespaces if namespaces.is_empty() => Vec::new(),
        namespaces => match server.reviewer.vmis(&namespaces) {
            Ok(vmis) => vmis,
            Err(error) => return cannot_decide(&error.to_string()),
        },
    };
    let convert = move || {
        let lookup = Lookup { pools: &pools, machines: machines(&vmis) };
        Review::read(&body).and_then(|review| answer(&review, &lookup))
    };
    match apart(convert).await {
        Ok(Ok(text)) => json_text(text),
        Ok(Err((uid, why))) => failed(refused(&uid, &why)),
        Err(bug) => bug,
    }
}

/// The answer to a review of which nothing is converted.
fn refused(uid: &str, why: &str) -> Response {
    tracing::warn!(why, "refused a review of conversion");
    json_text(refusal(uid, why))
}

/// Does what takes a while for a list of thousands, and where a bug must not take the connection down.
async fn apart<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Response> {
    tokio::task::spawn_blocking(work).await.map_err(|error| {
        tracing::error!(%error, "a conversion panicked");
        (StatusCode::INTERNAL_SERVER_ERROR, "the conversion has a bug").into_response()
    })
}

fn json_text(text: String) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], text).into_response()
}
