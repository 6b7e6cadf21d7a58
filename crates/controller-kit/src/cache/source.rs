//! The API whose objects a cache holds: whole, or their metadata alone.

use futures::{StreamExt as _, TryStreamExt as _, stream::BoxStream};
use kube::{Api, core::ApiResource, runtime::watcher};

use super::{Watched, undecoded::Undecoded};

/// A list and a watch.
type Events = BoxStream<'static, watcher::Result<watcher::Event<Undecoded>>>;

/// An [`Api`] takes from its type what it asks the server for, so that there are two for all kinds.
pub(super) enum Source {
    Objects(Api<Undecoded>),
    Metadata(Api<Undecoded<true>>),
}

impl Source {
    /// Metadata where `K` is [`PartialObjectMeta`](kube::core::PartialObjectMeta).
    pub(super) fn of<K: Watched>(api: Api<K>) -> Self {
        if K::metadata_api() { Self::Metadata(undecoded(api)) } else { Self::Objects(undecoded(api)) }
    }

    pub(super) fn path(&self) -> &str {
        match self {
            Self::Objects(api) => api.resource_url(),
            Self::Metadata(api) => api.resource_url(),
        }
    }

    pub(super) fn watch(&self, config: watcher::Config) -> Events {
        match self {
            Self::Objects(api) => watcher(api.clone(), config).boxed(),
            Self::Metadata(api) => watcher(api.clone(), config).map_ok(erase_form).boxed(),
        }
    }
}

pub(super) fn undecoded<K: Watched, const METADATA: bool>(api: Api<K>) -> Api<Undecoded<METADATA>> {
    let kind = ApiResource::erase::<K>(&());
    match api.namespace().map(ToOwned::to_owned) {
        Some(namespace) => Api::all_with(api.into_client(), &kind).constrain(&namespace),
        None => Api::all_with(api.into_client(), &kind),
    }
}

fn erase_form(event: watcher::Event<Undecoded<true>>) -> watcher::Event<Undecoded> {
    use watcher::Event::{Apply, Delete, Init, InitApply, InitDone};
    match event {
        Apply(object) => Apply(object.erase_form()),
        Delete(object) => Delete(object.erase_form()),
        Init => Init,
        InitApply(object) => InitApply(object.erase_form()),
        InitDone => InitDone,
    }
}
