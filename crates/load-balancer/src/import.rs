//! Pools of Harvester before 1.2: ConfigMap `kube-system/kubevip`, turned into `IPPool` objects once.
//!
//! The controller imports every entry that it can read. It names the others, an entry a line, in an annotation of the
//! ConfigMap, and in an Event where our role lets it write one. A pool that is there already stays as it is and only
//! learns which addresses were in use, so an interrupted import can be repeated; the annotation also names the ranges
//! of the ConfigMap that such a pool lacks.
//!
//! Nobody reads the ConfigMap after that. Who changes a pool there is told by an Event which IPPool to edit.

mod edits;
mod in_use;
mod plan;

use std::{collections::BTreeMap, net::IpAddr};

use controller_kit::{Action, Cache, ObjectKey, PendingEvent, RawObject, Recorder, replace};
use harvester_api::{IPPool, LoadBalancer, annotations, names};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{ListParams, PostParams},
};
use serde_json::Value;

use crate::pool::{Failure, Order, Writers};
use edits::Entries;
use in_use::InUse;
use plan::{ImportPlan, Remembered, Seen};

/// A failure after which the queue tries again.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("import of the pools in ConfigMap kube-system/kubevip: {doing}")]
    Request { doing: &'static str, source: kube::Error },
    #[error("import of the pools in ConfigMap kube-system/kubevip: create IPPool {pool}")]
    Create { pool: String, source: kube::Error },
    #[error("import of the pools in ConfigMap kube-system/kubevip: remember address {address}")]
    Remember { address: IpAddr, source: Failure },
}

/// Key of the ConfigMap that is imported.
pub(crate) fn key() -> ObjectKey {
    ObjectKey::new(names::KUBE_SYSTEM, names::KUBEVIP_CONFIG_MAP)
}

/// The import.
pub(crate) struct Import {
    pub(crate) client: Client,
    pub(crate) recorder: Recorder,
    pub(crate) config_maps: Cache<RawObject<ConfigMap>>,
    pub(crate) pools: Cache<RawObject<IPPool>>,
    pub(crate) load_balancers: Cache<RawObject<LoadBalancer>>,
    pub(crate) writers: Writers,
}

impl Import {
    /// Imports, unless that was done before.
    ///
    /// # Errors
    /// Those that may pass, among them a webhook that does not answer yet.
    pub(crate) async fn reconcile(&self) -> Result<Action, Error> {
        let Some(source) = self.config_maps.get(&key()) else { return Ok(Action::AwaitChange) };
        if source.annotations().get(annotations::AFTER_CONVERSION).is_some_and(|done| done == "true") {
            return self.tell_edits(&source).await;
        }
        let seen = self.see(&source).await?;
        let plan = plan::decide(&seen);
        self.act(&source, plan).await
    }

    async fn see(&self, source: &ConfigMap) -> Result<Seen, Error> {
        let (in_use, unread) = self.in_use().await?;
        let pools = self.pools.list().iter().map(|pool| (pool.name_any(), (***pool).clone())).collect();
        let shown = in_use.iter().filter_map(|InUse { holder, .. }| {
            let lb = self.load_balancers.get(holder)?;
            Some((holder.clone(), in_use::shown_by(&lb)?))
        });
        let shown = shown.collect();
        Ok(Seen { data: source.data.clone().unwrap_or_default(), in_use, unread, shown, pools })
    }

    async fn act(&self, source: &RawObject<ConfigMap>, plan: ImportPlan) -> Result<Action, Error> {
        let ImportPlan { create, remember, mut faults } = plan;
        // a pool that cannot be written keeps nothing from the others
        let mut failed = None;
        for pool in create {
            let name = pool.name_any();
            let api = Api::<IPPool>::all(self.client.clone());
            match api.create(&PostParams::default(), &pool).await {
                Ok(_) => tracing::info!(pool = name, "imported from ConfigMap kube-system/kubevip"),
                Err(kube::Error::Api(status)) if plan::is_final_refusal(&status) => {
                    faults.push(format!("pool {name}: {}", status.message));
                }
                // a pool that appeared meanwhile is seen the next time
                Err(source) => drop(failed.get_or_insert(Error::Create { pool: name, source })),
            }
        }
        let orders = remember.into_iter().map(|Remembered { pool, address, holder }| async move {
            let order = Order::Remember { holder: holder.to_string(), address };
            let remembered = self.writers.order(&pool, order).await;
            remembered.map_err(|source| Error::Remember { address, source })
        });
        for remembered in futures::future::join_all(orders).await {
            failed = failed.or(remembered.err());
        }
        if let Some(failed) = failed {
            return Err(failed);
        }
        for fault in &faults {
            tracing::warn!(fault, "not imported from ConfigMap kube-system/kubevip");
        }
        if !faults.is_empty() {
            let message = format!("not imported: {}", faults.join("; "));
            let about = source.object_ref(&());
            self.recorder.publish(&about, &PendingEvent::warning("ImportIncomplete", message));
        }
        let entries = Entries::of(source.data.as_ref().unwrap_or(&BTreeMap::new()));
        let mark = |json: &mut Value| {
            plan::mark(json, &faults);
            entries.annotate(json);
        };
        self.write(source, mark).await
    }

    /// Tells who changed a pool in the ConfigMap since the import that it has no effect there. The entries of an import by
    /// the Go program are those that are found first.
    async fn tell_edits(&self, source: &RawObject<ConfigMap>) -> Result<Action, Error> {
        let empty = BTreeMap::new();
        let now = Entries::of(source.data.as_ref().unwrap_or(&empty));
        let before = source.annotations().get(annotations::IMPORTED_ENTRIES);
        if let Some(before) = before.and_then(|text| Entries::read(text)) {
            let has_pool = |name: &str| self.pools.get(&ObjectKey::new("", name)).is_some();
            let Some(message) = edits::sentence(&now.changed_since(&before), has_pool) else {
                return Ok(Action::AwaitChange);
            };
            tracing::warn!(message, "edit of ConfigMap kube-system/kubevip without effect");
            self.recorder
                .publish(&source.object_ref(&()), &PendingEvent::warning("EditHasNoEffect", message));
        }
        self.write(source, |json| now.annotate(json)).await
    }

    async fn write(
        &self,
        source: &RawObject<ConfigMap>,
        change: impl FnOnce(&mut Value),
    ) -> Result<Action, Error> {
        if let Some(json) = source.edited(change) {
            let written = replace::<ConfigMap>(&self.client, &json).await;
            let written = written.map_err(|source| Error::Request { doing: "annotate it", source })?;
            self.config_maps.wrote(written);
        }
        Ok(Action::AwaitChange)
    }

    /// Addresses given out by kube-vip-cloud-provider, which kept a ConfigMap of that name in every namespace; and a
    /// sentence for each of these ConfigMaps that cannot be read.
    async fn in_use(&self) -> Result<(Vec<InUse>, Vec<String>), Error> {
        let params = ListParams::default().fields(&format!("metadata.name={}", names::KUBEVIP_CONFIG_MAP));
        let all = Api::<ConfigMap>::all(self.client.clone()).list(&params).await;
        let all = all.map_err(|source| Error::Request { doing: "list ConfigMaps named kubevip", source })?;
        let of = |map: ConfigMap| {
            let namespace = map.namespace().unwrap_or_default();
            let text = map.data.unwrap_or_default().remove(names::KUBEVIP_SERVICES).unwrap_or_default();
            in_use::services(&namespace, &text)
        };
        let (mut addresses, mut unread) = (Vec::new(), Vec::new());
        for read in all.items.into_iter().map(of) {
            match read {
                Ok(found) => addresses.extend(found),
                Err(why) => unread.push(why),
            }
        }
        Ok((addresses, unread))
    }
}
