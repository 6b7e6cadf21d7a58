//! Follows objects of a kind until the receiver is dropped.
//!
//! ```text
//! watch ──established──► read ──► Replaced ──► Applied, Deleted, Deleted, Applied … ──ends──► watch again
//!   └─refused (403)──► read every POLL ──► Replaced, Replaced, …    (refused too: Forbidden, and the end)
//! ```
//! The driver reads after the watch is established, so no change is missed between the two. A watch event from before the
//! read may come after it; the newest version of the object follows then.

use std::time::Duration;

use futures::TryStreamExt as _;
use kube::{
    Api, Resource, ResourceExt as _,
    api::{DynamicObject, ListParams, WatchEvent, WatchParams},
};
use serde::de::DeserializeOwned;
use tokio::{sync::mpsc, time::sleep};

use super::error::{is_about, one_line};

/// Time between two reads where watching is refused.
pub(crate) const POLL: Duration = Duration::from_secs(5);
/// Seconds until a watch ends and a read follows. A connection that died in silence hides changes for so long, and a little
/// longer (`cloud_config`). Most machines are up before.
const WATCH_SECONDS: u32 = 60;
/// Longest pause after a failure; the first one lasts a second.
const LONGEST_PAUSE: Duration = Duration::from_secs(8);

/// Selects objects.
#[derive(Clone, Debug)]
pub(crate) enum Select {
    /// The one of this name.
    Name(String),
    /// Those with these labels.
    Labels(String),
    /// Those with these fields; empty for all.
    Fields(String),
}

/// How to begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    /// Read first: nothing is known.
    Read,
    /// Only watch: the watch brings the objects that exist, and the absence of others is not asked for.
    Watch,
}

/// A change of the followed objects.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Change<K> {
    /// These are all objects now.
    Replaced(Vec<K>),
    Applied(K),
    Deleted(K),
    /// The credential may neither watch nor read: no change will follow.
    Forbidden,
    /// A request failed; the next one follows.
    Failed(String),
}

impl Change<DynamicObject> {
    /// The same change with typed objects; a failure if one does not parse.
    pub(crate) fn read<K: Resource + DeserializeOwned>(self) -> Change<K> {
        let read = |object: DynamicObject| {
            let name = object.name_any();
            object.try_parse::<K>().map_err(|error| format!("{name} cannot be read: {error}"))
        };
        let change = match self {
            Self::Replaced(objects) => {
                objects.into_iter().map(read).collect::<Result<_, _>>().map(Change::Replaced)
            }
            Self::Applied(object) => read(object).map(Change::Applied),
            Self::Deleted(object) => read(object).map(Change::Deleted),
            Self::Forbidden => Ok(Change::Forbidden),
            Self::Failed(why) => Ok(Change::Failed(why)),
        };
        change.unwrap_or_else(Change::Failed)
    }
}

/// Follows objects until the receiver is dropped.
pub(crate) async fn follow(
    api: Api<DynamicObject>,
    select: Select,
    start: Start,
    sender: mpsc::Sender<Change<DynamicObject>>,
) {
    let (mut read_first, mut pause) = (start == Start::Read, Duration::from_secs(1));
    loop {
        let ended = watch_once(&api, &select, read_first, &sender).await;
        read_first = true;
        match ended {
            Ended::Normally => pause = Duration::from_secs(1),
            Ended::NobodyListens => return,
            Ended::Refused => return poll(&api, &select, &sender).await,
            Ended::Failed(error) => {
                if sender.send(Change::Failed(text(&error))).await.is_err() {
                    return;
                }
                sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
    }
}

enum Ended {
    Normally,
    NobodyListens,
    /// The credential may not watch.
    Refused,
    Failed(kube::Error),
}

async fn watch_once(
    api: &Api<DynamicObject>,
    select: &Select,
    read_first: bool,
    sender: &mpsc::Sender<Change<DynamicObject>>,
) -> Ended {
    let params = match select {
        Select::Name(name) => WatchParams::default().fields(&format!("metadata.name={name}")),
        Select::Labels(labels) => WatchParams::default().labels(labels),
        Select::Fields(fields) => WatchParams::default().fields(fields),
    };
    // no version: the newest state first, as additions
    let events = match api.watch(&params.disable_bookmarks().timeout(WATCH_SECONDS), "").await {
        Ok(events) => events,
        Err(kube::Error::Api(status)) if matches!(status.code, 403 | 405) => return Ended::Refused,
        Err(error) => return Ended::Failed(error),
    };
    if read_first {
        let change = match read(api, select).await {
            Ok(objects) => Change::Replaced(objects),
            // a watch without a read says nothing of what is absent, but all of what is there
            Err(kube::Error::Api(status)) if status.code == 403 => Change::Failed(one_line(&status.message)),
            Err(error) => return Ended::Failed(error),
        };
        if sender.send(change).await.is_err() {
            return Ended::NobodyListens;
        }
    }
    let mut events = std::pin::pin!(events);
    loop {
        let change = match events.try_next().await {
            Ok(Some(WatchEvent::Added(object) | WatchEvent::Modified(object))) => Change::Applied(object),
            Ok(Some(WatchEvent::Deleted(object))) => Change::Deleted(object),
            Ok(Some(WatchEvent::Bookmark(_))) => continue,
            Ok(None) => return Ended::Normally,
            Ok(Some(WatchEvent::Error(status))) => return Ended::Failed(kube::Error::Api(status)),
            Err(error) => return Ended::Failed(error),
        };
        if sender.send(change).await.is_err() {
            return Ended::NobodyListens;
        }
    }
}

async fn read(api: &Api<DynamicObject>, select: &Select) -> kube::Result<Vec<DynamicObject>> {
    let list = match select {
        Select::Name(name) => {
            return match api.get(name).await {
                Ok(object) => Ok(vec![object]),
                Err(error) if gone(&error, name) => Ok(vec![]),
                Err(error) => Err(error),
            };
        }
        Select::Labels(labels) => ListParams::default().labels(labels),
        Select::Fields(fields) => ListParams::default().fields(fields),
    };
    Ok(api.list(&list).await?.items)
}

/// Whether this is a 404 about the object of this name, of whichever kind.
fn gone(error: &kube::Error, name: &str) -> bool {
    let kube::Error::Api(status) = error else { return false };
    let kind = status.details.as_ref().map(|details| details.kind.as_str()).unwrap_or_default();
    !kind.is_empty() && !kind.contains("clusters.management") && is_about(error, kind, name)
}

async fn poll(api: &Api<DynamicObject>, select: &Select, sender: &mpsc::Sender<Change<DynamicObject>>) {
    loop {
        let (change, last) = match read(api, select).await {
            Ok(objects) => (Change::Replaced(objects), false),
            Err(kube::Error::Api(status)) if status.code == 403 => (Change::Forbidden, true),
            Err(error) => (Change::Failed(text(&error)), false),
        };
        if sender.send(change).await.is_err() || last {
            return;
        }
        sleep(POLL).await;
    }
}

fn text(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => one_line(&status.message),
        other => one_line(&other.to_string()),
    }
}
