//! Following some objects of a kind until somebody stops listening.
//!
//! ```text
//! watch ──established──► read ──► All(…) ──► Present, Gone, Gone, Present … ──ends──► watch again
//!   └─refused (403)──► read every POLL ──► All(…), All(…), …    (refused too: Refused, and that is all)
//! ```
//! The read comes after the watch stands, so nothing can happen between the two. What the watch tells of the time before
//! the read may come late, and then the newest version comes behind it.

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
pub const POLL: Duration = Duration::from_secs(5);
/// Seconds until a watch ends and a read follows: so long, and a little longer (`cloud_config`), nothing may be heard of
/// changes while a connection is dead without a word. Most machines are up before.
const WATCH_SECONDS: u32 = 60;
/// The longest pause after a failure; it begins with a second.
const LONGEST_PAUSE: Duration = Duration::from_secs(8);

/// Which objects.
#[derive(Clone, Debug)]
pub enum Select {
    /// The one of this name.
    Name(String),
    /// Those with these labels.
    Labels(String),
    /// Those with these fields; empty for all.
    Fields(String),
}

/// What is known before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// Nothing: read first.
    Read,
    /// All: what is there comes with the watch, and nothing else matters.
    Watch,
}

/// News.
#[derive(Clone, Debug, PartialEq)]
pub enum News<K> {
    /// These are all objects.
    All(Vec<K>),
    Present(K),
    Gone(K),
    /// Neither watching nor reading is allowed: there will be no news.
    Refused,
    /// No connection or a failure, in words; it is tried again.
    Trouble(String),
}

impl News<DynamicObject> {
    /// The same news of objects of their kind; trouble where one is not what its kind should be.
    pub fn read<K: Resource + DeserializeOwned>(self) -> News<K> {
        let read = |object: DynamicObject| {
            let name = object.name_any();
            object.try_parse::<K>().map_err(|error| format!("{name} cannot be read: {error}"))
        };
        let news = match self {
            Self::All(objects) => objects.into_iter().map(read).collect::<Result<_, _>>().map(News::All),
            Self::Present(object) => read(object).map(News::Present),
            Self::Gone(object) => read(object).map(News::Gone),
            Self::Refused => Ok(News::Refused),
            Self::Trouble(why) => Ok(News::Trouble(why)),
        };
        news.unwrap_or_else(News::Trouble)
    }
}

/// Follows objects until the receiver is dropped.
pub async fn follow(
    api: Api<DynamicObject>,
    select: Select,
    start: Start,
    tell: mpsc::Sender<News<DynamicObject>>,
) {
    let (mut read_first, mut pause) = (start == Start::Read, Duration::from_secs(1));
    loop {
        let ended = watch_once(&api, &select, read_first, &tell).await;
        read_first = true;
        match ended {
            Ended::Normally => pause = Duration::from_secs(1),
            Ended::NobodyListens => return,
            Ended::Refused => return poll(&api, &select, &tell).await,
            Ended::Failed(error) => {
                if tell.send(News::Trouble(text(&error))).await.is_err() {
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
    /// Watching is not allowed.
    Refused,
    Failed(kube::Error),
}

async fn watch_once(
    api: &Api<DynamicObject>,
    select: &Select,
    read_first: bool,
    tell: &mpsc::Sender<News<DynamicObject>>,
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
        let news = match read(api, select).await {
            Ok(objects) => News::All(objects),
            // a watch without a read says nothing of what is absent, but all of what is there
            Err(kube::Error::Api(status)) if status.code == 403 => News::Trouble(one_line(&status.message)),
            Err(error) => return Ended::Failed(error),
        };
        if tell.send(news).await.is_err() {
            return Ended::NobodyListens;
        }
    }
    let mut events = std::pin::pin!(events);
    loop {
        let news = match events.try_next().await {
            Ok(Some(WatchEvent::Added(object) | WatchEvent::Modified(object))) => News::Present(object),
            Ok(Some(WatchEvent::Deleted(object))) => News::Gone(object),
            Ok(Some(WatchEvent::Bookmark(_))) => continue,
            Ok(None) => return Ended::Normally,
            Ok(Some(WatchEvent::Error(status))) => return Ended::Failed(kube::Error::Api(status)),
            Err(error) => return Ended::Failed(error),
        };
        if tell.send(news).await.is_err() {
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

/// A 404 about this object, whatever its kind is.
fn gone(error: &kube::Error, name: &str) -> bool {
    let kube::Error::Api(status) = error else { return false };
    let kind = status.details.as_ref().map(|details| details.kind.as_str()).unwrap_or_default();
    !kind.is_empty() && !kind.contains("clusters.management") && is_about(error, kind, name)
}

async fn poll(api: &Api<DynamicObject>, select: &Select, tell: &mpsc::Sender<News<DynamicObject>>) {
    loop {
        let (news, last) = match read(api, select).await {
            Ok(objects) => (News::All(objects), false),
            Err(kube::Error::Api(status)) if status.code == 403 => (News::Refused, true),
            Err(error) => (News::Trouble(text(&error)), false),
        };
        if tell.send(news).await.is_err() || last {
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
