//! The CRDs whose fields a program asks for.

use std::{collections::BTreeMap, pin::pin, time::Duration};

use futures::StreamExt as _;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray,
};
use kube::{
    Api, Client,
    runtime::{
        WatchStreamExt as _,
        watcher::{self, Event, watcher},
    },
};
use tokio::time::{Instant, sleep};

use super::{Capabilities, Field, REFUSED_PERIOD};

/// A CRD that cannot be read counts as known after this: a server that was out of reach for a moment says nothing about
/// fields, and a program waits no longer for one that goes on failing.
const READ_WITHIN: Duration = Duration::from_secs(10);
/// Before the second try to read one; the pause grows by as much with each further try.
const READ_AGAIN: Duration = Duration::from_millis(250);

/// Keeps the fields of one CRD true.
pub(super) async fn follow(capabilities: Capabilities, client: Client, crd: &'static str) {
    let api = Api::<CustomResourceDefinition>::all(client);
    let (began, mut failures) = (Instant::now(), 0);
    loop {
        // a role may grant `get` and no watch
        match api.get_opt(crd).await {
            Ok(found) => {
                capabilities.read(crd, found.as_ref());
                watch(&capabilities, &api, crd).await;
            }
            Err(error) if !is_denied(&error) && began.elapsed() < READ_WITHIN => {
                tracing::debug!(error = &error as &dyn std::error::Error, crd, "the CRD is read again");
                failures += 1;
                sleep(READ_AGAIN * failures).await;
                continue;
            }
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(
                    error,
                    crd,
                    "this CRD cannot be read: optional fields that it was not seen to have count as absent"
                );
                capabilities.unread(crd);
            }
        }
        sleep(REFUSED_PERIOD).await;
    }
}

/// Follows the watch, which ends where it is refused.
async fn watch(capabilities: &Capabilities, api: &Api<CustomResourceDefinition>, crd: &'static str) {
    let only = watcher::Config::default().fields(&format!("metadata.name={crd}"));
    let mut events = pin!(watcher(api.clone(), only).default_backoff());
    let mut listed = false;
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => listed = false,
            Ok(Event::Apply(found) | Event::InitApply(found)) => {
                listed = true;
                capabilities.read(crd, Some(&found));
            }
            Ok(Event::InitDone) if listed => {}
            Ok(Event::InitDone | Event::Delete(_)) => capabilities.read(crd, None),
            Err(error) if is_refused(&error) => {
                tracing::debug!(
                    error = &error as &dyn std::error::Error,
                    crd,
                    "the watch is refused: the CRD is read every 30 s"
                );
                return;
            }
            Err(error) => {
                tracing::debug!(error = &error as &dyn std::error::Error, crd, "the watch begins again");
            }
        }
    }
}

/// Whether another try would get the same answer.
fn is_denied(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if matches!(status.code, 401 | 403))
}

fn is_refused(error: &watcher::Error) -> bool {
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status))
        | watcher::Error::WatchError(status) => status.code == 403,
        _ => false,
    }
}

impl Capabilities {
    fn read(&self, name: &'static str, crd: Option<&CustomResourceDefinition>) {
        self.update(|state| {
            state.crds.insert(name, true);
            for (field, there) in state.fields.iter_mut().filter(|(field, _)| field.crd == name) {
                *there = crd.is_some_and(|crd| has(crd, field));
            }
        });
    }

    /// The fields stay as they were.
    fn unread(&self, name: &'static str) {
        self.update(|state| {
            state.crds.insert(name, true);
        });
    }
}

fn has(crd: &CustomResourceDefinition, field: &Field) -> bool {
    let version = crd.spec.versions.iter().find(|version| version.name == field.version);
    let Some(version) = version else { return false };
    let root = version.schema.as_ref().and_then(|schema| schema.open_api_v3_schema.as_ref());
    let mut at = root;
    for name in field.path {
        at = at.and_then(|schema| properties(schema)?.get(*name));
    }
    field.path.is_empty() || at.is_some()
}

/// Of a list those of its items.
fn properties(schema: &JSONSchemaProps) -> Option<&BTreeMap<String, JSONSchemaProps>> {
    match &schema.items {
        Some(JSONSchemaPropsOrArray::Schema(item)) => item.properties.as_ref(),
        _ => schema.properties.as_ref(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_field_of_the_items_of_a_list_is_found() {
        let ranges = json!({"type": "array", "items": {"type": "object", "properties": {"drain": {"type": "boolean"}}}});
        let schema = json!({"openAPIV3Schema": {"type": "object", "properties": {"ranges": ranges}}});
        let crd: CustomResourceDefinition = serde_json::from_value(json!({"metadata": {"name": "pools.a"},
            "spec": {"group": "a", "scope": "Cluster", "names": {"kind": "Pool", "plural": "pools"},
                "versions": [{"name": "v1", "served": true, "storage": true, "schema": schema}]}}))
        .unwrap();
        let has = |path: &'static [&'static str]| has(&crd, &Field { crd: "pools.a", version: "v1", path });
        assert_eq!(
            (has(&["ranges"]), has(&["ranges", "drain"]), has(&["ranges", "subnet"])),
            (true, true, false)
        );
    }
}
