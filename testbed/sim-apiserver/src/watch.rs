//! Watches: one JSON event a line, from the table's log.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use futures::stream;
use http::{Response, StatusCode};
use serde_json::{Value, json};
use tokio::sync::watch::Receiver;
use tokio::time::{Instant, sleep_until};

use crate::Failure;
use crate::conversion::shown;
use crate::faults::Interruption;
use crate::form::{Form, Shape, bytes, to_bytes};
use crate::read::{revision_of, table};
use crate::selection::Selection;
use crate::server::{ApiServer, Ask, json_response};
use crate::store::{Change, Stored, TooOld};

/// A watch that names no end is ended after this time; a real server takes 30 to 60 minutes.
const TIMEOUT: Duration = Duration::from_secs(1800);
/// Period of bookmarks in a watch that allows them.
const BOOKMARKS: Duration = Duration::from_secs(60);

/// Returns the event of a change for a watcher with this selection.
fn project(change: &Change, selection: &Selection) -> Option<&'static str> {
    let matches = |stored: &Arc<Stored>| selection.matches(&stored.value);
    let is = !change.deleted && matches(&change.object);
    let was = change.previous.as_ref().is_some_and(matches);
    match (was, is) {
        (false, false) => None,
        (false, true) => Some("ADDED"),
        (true, true) => Some("MODIFIED"),
        (true, false) => Some("DELETED"),
    }
}

struct Watching {
    server: ApiServer,
    ask: WatchedForm,
    selection: Selection,
    signal: Receiver<u64>,
    interruption: Receiver<(u64, Interruption)>,
    /// Everything up to this revision has been sent.
    seen: u64,
    ready: VecDeque<Bytes>,
    ended: bool,
    end: Instant,
    next_bookmark: Option<Instant>,
}

struct WatchedForm {
    kind: Arc<crate::kind::Kind>,
    version: usize,
    shape: Shape,
}

/// Answers with a stream of events.
pub(crate) async fn start(server: &ApiServer, ask: &Ask) -> Result<Response<Body>, Failure> {
    let selection = Selection::of(ask)?;
    let now = Instant::now();
    let timeout = ask.query.timeout_seconds.map_or(TIMEOUT, Duration::from_secs);
    // before the state is read: what changes in between makes the signal fire once too often, not once too rarely
    let signal = server.0.store.subscribe(&ask.kind.table);
    let interruption = server.0.faults.interruptions();
    let asked = ask.query.resource_version.as_deref().map(revision_of).transpose()?;
    let initial = ask.query.initial_events.unwrap_or(asked.is_none_or(|revision| revision == 0));
    let mut watching = Watching {
        server: server.clone(),
        ask: WatchedForm { kind: ask.kind.clone(), version: ask.version, shape: ask.shape },
        selection,
        signal,
        interruption,
        seen: asked.unwrap_or(0),
        ready: VecDeque::new(),
        ended: false,
        end: now + timeout,
        next_bookmark: ask.query.bookmarks.then(|| now + BOOKMARKS),
    };
    if initial {
        watching.send_state(ask.query.initial_events == Some(true) && ask.query.bookmarks).await;
    } else if asked.is_none() {
        watching.seen = server.0.store.revision();
    }
    let events = stream::unfold(watching, |mut watching| async move {
        let line = watching.next().await?;
        Some((Ok::<_, std::convert::Infallible>(line), watching))
    });
    Ok(json_response(StatusCode::OK, Body::from_stream(events)))
}

impl Watching {
    /// The state as ADDED events, and when asked for the bookmark that says that this was all.
    async fn send_state(&mut self, with_mark: bool) {
        let (revision, objects) = self.server.0.store.list(&self.ask.kind.table, self.selection.namespace());
        for stored in objects {
            if self.selection.matches(&stored.value) {
                self.send("ADDED", &stored).await;
            }
        }
        self.seen = revision;
        if with_mark {
            let mark = self.bookmark(true);
            self.ready.push_back(mark);
        }
    }

    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(line) = self.ready.pop_front() {
                return Some(line);
            }
            if self.ended {
                return None;
            }
            self.signal.mark_unchanged();
            self.read_on().await;
            if self.ready.is_empty() {
                self.wait().await;
            }
        }
    }

    async fn read_on(&mut self) {
        match self.server.0.store.changes_after(&self.ask.kind.table, self.seen) {
            Ok((changes, revision)) => {
                for change in &changes {
                    if let Some(event) = project(change, &self.selection) {
                        self.changed(event, change).await;
                    }
                }
                self.seen = self.seen.max(revision);
            }
            Err(TooOld { oldest }) => self.expire(oldest),
        }
    }

    async fn wait(&mut self) {
        let bookmark = self.next_bookmark;
        tokio::select! {
            biased;
            changed = self.signal.changed() => self.ended |= changed.is_err(),
            changed = self.interruption.changed() => {
                let (_, what) = *self.interruption.borrow_and_update();
                match what {
                    _ if changed.is_err() => self.ended = true,
                    Interruption::Close => self.ended = true,
                    Interruption::Expire => self.expire(self.seen),
                }
            }
            () = sleep_until(self.end) => {
                if self.next_bookmark.is_some() {
                    let mark = self.bookmark(false);
                    self.ready.push_back(mark);
                }
                self.ended = true;
            }
            () = sleep_until(bookmark.unwrap_or(self.end)), if bookmark.is_some() => {
                let mark = self.bookmark(false);
                self.ready.push_back(mark);
                self.next_bookmark = Some(Instant::now() + BOOKMARKS);
            }
        }
    }

    /// "Too old" is an event inside a stream that began with 200: an HTTP 410 would wedge client libraries.
    fn expire(&mut self, oldest: u64) {
        let message = format!("too old resource version: {} ({oldest})", self.seen);
        let status = Failure::expired(message).to_value();
        self.ready.push_back(event("ERROR", &to_bytes(&status)));
        self.ended = true;
    }

    async fn changed(&mut self, ty: &'static str, change: &Change) {
        match &change.previous {
            // it left the selection: the watcher gets what it knew, with the revision at which it went
            Some(previous) if ty == "DELETED" && !change.deleted => {
                let mut last = previous.value.clone();
                last["metadata"]["resourceVersion"] = change.revision.to_string().into();
                self.send(ty, &Arc::new(Stored::unkept(last))).await;
            }
            _ => self.send(ty, &change.object).await,
        }
    }

    /// An object that cannot be converted ends the watch, as on a real server.
    async fn send(&mut self, ty: &'static str, stored: &Arc<Stored>) {
        if self.ended {
            return;
        }
        // the definition may name another webhook than when the watch began
        let WatchedForm { kind, version, .. } = &self.ask;
        let kinds = self.server.kinds();
        let newest = kinds.get(&kind.group, &kind.plural);
        let newest = newest.and_then(|newest| Some((newest, newest.version(&kind.api(*version).version)?)));
        let (kind, version) = newest.unwrap_or((kind, *version));
        match shown(&self.server, kind, version, stored).await {
            Ok(stored) => self.ready.push_back(self.line(ty, &stored)),
            Err(failure) => {
                self.ready.push_back(event("ERROR", &to_bytes(&failure.to_value())));
                self.ended = true;
            }
        }
    }

    fn line(&self, ty: &str, stored: &Stored) -> Bytes {
        let WatchedForm { kind, version, shape } = &self.ask;
        match shape {
            Shape::Table(_) => self.line_of(ty, &stored.value),
            _ => {
                let form = Form::of(kind, *version, *shape);
                event(ty, &stored.bytes(form, |value| bytes(kind, *version, *shape, value)))
            }
        }
    }

    fn line_of(&self, ty: &str, object: &Value) -> Bytes {
        let WatchedForm { kind, version, shape } = &self.ask;
        match shape {
            Shape::Table(include) => {
                let mut table = table(&self.server, kind, *version, *include, &[object]);
                table["metadata"] = json!({"resourceVersion": object["metadata"]["resourceVersion"]});
                event(ty, &to_bytes(&table))
            }
            _ => event(ty, &bytes(kind, *version, *shape, object)),
        }
    }

    fn bookmark(&self, end_of_state: bool) -> Bytes {
        let (kind, api_version) = match self.ask.shape {
            Shape::Metadata => ("PartialObjectMetadata".to_owned(), "meta.k8s.io/v1".to_owned()),
            _ => (self.ask.kind.kind.clone(), self.ask.kind.api(self.ask.version).api_version()),
        };
        let mut metadata = json!({"resourceVersion": self.seen.to_string()});
        if end_of_state {
            metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        let mut mark = json!({"kind": kind, "apiVersion": api_version, "metadata": metadata});
        if let Shape::Table(include) = self.ask.shape {
            mark = table(&self.server, &self.ask.kind, self.ask.version, include, &[&mark]);
        }
        event("BOOKMARK", &to_bytes(&mark))
    }
}

/// A watch that is told at once that its version is too old.
pub(crate) fn expired() -> Response<Body> {
    let status = Failure::expired("too old resource version").to_value();
    json_response(StatusCode::OK, event("ERROR", &to_bytes(&status)))
}

fn event(ty: &str, object: &[u8]) -> Bytes {
    let mut line = Vec::with_capacity(object.len() + 40);
    line.extend_from_slice(br#"{"type":""#);
    line.extend_from_slice(ty.as_bytes());
    line.extend_from_slice(br#"","object":"#);
    line.extend_from_slice(object);
    line.extend_from_slice(b"}\n");
    line.into()
}
