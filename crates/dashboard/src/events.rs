//! The stream of server-sent events of one page. It makes the next part when the connection has room for it, so a page
//! that does not read costs one part and no more.

use std::{convert::Infallible, time::Duration};

use bytes::Bytes;
use futures::{Stream, stream};
use tokio::{
    sync::{OwnedSemaphorePermit, watch},
    time::{Instant, sleep, sleep_until},
};
use tokio_util::sync::CancellationToken;

use crate::{feed::Feed, model::Batch};

/// Changes that come within it are told together.
const TOGETHER: Duration = Duration::from_millis(100);
/// A comment is sent after so long without a change: a page that is gone without a word is noticed by it.
const STILL_THERE: Duration = Duration::from_secs(15);
/// About so many bytes are one event.
const PART: usize = 64 << 10;

/// A page that listens.
struct Listener {
    feed: Feed,
    versions: watch::Receiver<u64>,
    /// The version that the page knows.
    known: Option<u64>,
    /// The page does not know everything of that version yet.
    is_behind: bool,
    /// Nothing is sent before.
    next: Instant,
    stop: CancellationToken,
    /// Its place among the pages.
    _place: OwnedSemaphorePermit,
}

/// Everything there is, then every change, until `stop`.
pub(crate) fn stream(
    feed: Feed,
    stop: CancellationToken,
    place: OwnedSemaphorePermit,
) -> impl Stream<Item = Result<Bytes, Infallible>> {
    let versions = feed.versions();
    let next = Instant::now();
    let listener = Listener { feed, versions, known: None, is_behind: true, next, stop, _place: place };
    stream::unfold(listener, async |mut listener| {
        let event = listener.next().await?;
        Some((Ok(event), listener))
    })
}

impl Listener {
    /// The next event; none at the end of the process.
    async fn next(&mut self) -> Option<Bytes> {
        let stop = self.stop.clone();
        stop.run_until_cancelled(async {
            if !self.is_behind {
                tokio::select! {
                    changed = self.versions.changed() => changed.ok()?,
                    () = sleep(STILL_THERE) => return Some(Bytes::from_static(b":\n\n")),
                }
                sleep_until(self.next).await;
            }
            self.versions.mark_unchanged();
            let batch = self.feed.since(self.known, PART);
            (self.known, self.is_behind) = (Some(batch.version), !batch.complete);
            self.next = Instant::now() + TOGETHER;
            Some(event(&batch))
        })
        .await?
    }
}

/// `data: {"reset": …, "complete": …, "rows": [[name, row], …]}`; the row is null when it went.
fn event(batch: &Batch) -> Bytes {
    let mut text = format!("data: {{\"reset\":{},\"complete\":{},\"rows\":[", batch.reset, batch.complete);
    for (index, (name, json)) in batch.rows.iter().enumerate() {
        let comma = if index == 0 { "" } else { "," };
        let json = json.as_deref().unwrap_or("null");
        text.push_str(&format!("{comma}[{},{json}]", crate::json(&**name)));
    }
    text.push_str("]}\n\n");
    text.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_line_of_json_whatever_is_in_the_rows() {
        let row = |name: &str, json: Option<&str>| (name.into(), json.map(Into::into));
        let foreign = crate::json(&"a\nb\r\n\ndata: c");
        let rows = vec![row("a\"\n", Some(&foreign)), row("b", None)];
        let text = event(&Batch { reset: true, rows, version: 2, complete: false });
        let text = std::str::from_utf8(&text).unwrap();
        let line = text.strip_prefix("data: ").unwrap().strip_suffix("\n\n").unwrap();
        assert!(!line.contains(['\n', '\r']));
        let read: serde_json::Value = serde_json::from_str(line).unwrap();
        let expected = serde_json::json!({"reset": true, "complete": false,
            "rows": [["a\"\n", "a\nb\r\n\ndata: c"], ["b", null]]});
        assert_eq!(read, expected);
    }
}
