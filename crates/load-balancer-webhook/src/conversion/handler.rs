//! A review of conversion over HTTP: its turn, what the cluster has to say for it, and its answer.

use std::sync::Arc;

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use tokio::time::{Instant, timeout_at};

use super::{Known, Needs, Review, answer, machines, refusal};
use crate::limits::Weight;
use crate::peers::Peer;
use crate::server::{Server, cannot_decide, turns};

/// A list of load balancers that has more bytes is heavy.
const HEAVY_LIST: usize = 1 << 20;

/// The answer to a review of conversion.
pub(crate) async fn converted(server: &Server, peer: &Peer, body: Vec<u8>, until: Instant) -> Response {
    let needs = match Review::read(&body) {
        Ok(review) => review.needs(),
        Err((uid, why)) => {
            tracing::warn!(why, "refused a request that is no review of conversion");
            return json_text(refusal(&uid, &why));
        }
    };
    let weight = if body.len() > HEAVY_LIST { Weight::Heavy } else { Weight::Turns(1) };
    let Ok(_turns) = timeout_at(until, turns(server, peer, weight)).await else {
        tracing::warn!(peer = %peer.address, "a review of conversion waited too long for its turn");
        return cannot_decide("too many reviews are waiting, of this peer or of all: try again");
    };
    let pools = match needs {
        Needs { pools: false, .. } => Arc::default(),
        Needs { pools: true, .. } => match timeout_at(until, server.reviewer.pools_with_records()).await {
            Ok(Ok(pools)) => pools,
            Ok(Err(error)) => return cannot_decide(&error.to_string()),
            Err(_) => return cannot_decide("the API server has not answered in time what pools there are"),
        },
    };
    let vmis = if needs.machines { server.reviewer.vmis() } else { Vec::new() };
    // a list of thousands takes a while, and a bug in it must not take the connection down
    let answer = tokio::task::spawn_blocking(move || {
        let known = Known { pools: &pools, machines: machines(&vmis) };
        let review = Review::read(&body).expect("it was read before");
        answer(&review, &known)
    });
    match answer.await {
        Ok(answer) => json_text(answer),
        Err(error) => {
            tracing::error!(%error, "a conversion panicked");
            (StatusCode::INTERNAL_SERVER_ERROR, "the conversion has a bug").into_response()
        }
    }
}

fn json_text(text: String) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], text).into_response()
}
