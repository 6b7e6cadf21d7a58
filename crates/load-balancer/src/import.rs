//! Pools of Harvester before 1.2: ConfigMap `kube-system/kubevip`, turned into `IPPool` objects once.
//!
//! What can be imported is; what cannot is named, an entry a line, in an annotation of the ConfigMap, and in an Event
//! where we may write one. Pools that are there already stay as they are and only learn which addresses were in use, so
//! an import that was interrupted is repeated; what they lack of the ConfigMap is named too.

mod plan;

use std::{net::IpAddr, sync::Arc};

use controller_kit::{Action, Cache, EventType, ObjectKey, RawObject, replace};
use harvester_api::{IPPool, annotations, names};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Resource, ResourceExt,
    api::{ListParams, PostParams},
};

use crate::{
    context::Context,
    pool::{Failure, Order},
};
use plan::{InUse, Plan};

/// What went wrong; the queue tries again.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("import of the pools in ConfigMap kube-system/kubevip: {doing}")]
    Request { doing: &'static str, source: kube::Error },
    #[error("import of the pools in ConfigMap kube-system/kubevip: create IPPool {pool}")]
    Create { pool: String, source: kube::Error },
    #[error("import of the pools in ConfigMap kube-system/kubevip: remember address {address}")]
    Remember { address: IpAddr, source: Failure },
}

/// Key of the ConfigMap that is imported.
pub fn key() -> ObjectKey {
    ObjectKey::new(names::KUBE_SYSTEM, names::KUBEVIP_CONFIG_MAP)
}

/// Imports, unless that was done before.
///
/// # Errors
/// Those that may pass, among them a webhook that does not answer yet.
pub async fn reconcile(cx: Arc<Context>, config_maps: Cache<RawObject<ConfigMap>>) -> Result<Action, Error> {
    let Some(source) = config_maps.get(&key()) else { return Ok(Action::AwaitChange) };
    if source.annotations().get(annotations::AFTER_CONVERSION).is_some_and(|done| done == "true") {
        return Ok(Action::AwaitChange);
    }
    let (in_use, unread) = in_use(&cx).await?;
    let Plan { pools, remember, mut faults } = plan::decide(source.data.as_ref(), &in_use);
    faults.extend(unread);

    for pool in pools {
        let name = pool.name_any();
        match Api::<IPPool>::all(cx.client.clone()).create(&PostParams::default(), &pool).await {
            Ok(_) => tracing::info!(pool = name, "imported from ConfigMap kube-system/kubevip"),
            Err(kube::Error::Api(status)) if status.is_already_exists() => {
                let there = Api::<IPPool>::all(cx.client.clone()).get_opt(&name).await;
                let there = there.map_err(|source| Error::Create { pool: name.clone(), source })?;
                let lack = there.and_then(|there| plan::lacks(&pool, &there));
                tracing::info!(pool = name, lack, "already there: only addresses in use are imported");
                faults.extend(lack);
            }
            Err(kube::Error::Api(status)) if plan::final_refusal(&status) => {
                faults.push(format!("pool {name}: {}", status.message));
            }
            Err(source) => return Err(Error::Create { pool: name, source }),
        }
    }
    for (pool, address, holder) in remember {
        // only pools that were there before need it: ours came into being with their history
        let Some(known) = cx.caches.pools.get(&ObjectKey::new("", &pool)) else { continue };
        let status = known.status.clone().unwrap_or_default();
        let text = address.to_string();
        if status.allocated.contains_key(&text) || status.allocated_history.contains_key(&text) {
            continue;
        }
        let remembered = cx.pools.order(&pool, Order::Remember { holder, address }).await;
        remembered.map_err(|source| Error::Remember { address, source })?;
    }

    for fault in &faults {
        tracing::warn!(fault, "not imported from ConfigMap kube-system/kubevip");
    }
    if !faults.is_empty() {
        let message = format!("not imported: {}", faults.join("; "));
        cx.recorder.publish(&source.object_ref(&()), EventType::Warning, "ImportIncomplete", &message);
    }
    let marked = source.edited(|json| plan::mark(json, &faults));
    if let Some(json) = marked {
        let written = replace::<ConfigMap>(&cx.client, &json).await;
        config_maps.wrote(written.map_err(|source| Error::Request { doing: "mark it as done", source })?);
    }
    Ok(Action::AwaitChange)
}

/// Addresses given out by kube-vip-cloud-provider, which kept a ConfigMap of that name in every namespace; and what of
/// that cannot be read.
async fn in_use(cx: &Context) -> Result<(Vec<InUse>, Vec<String>), Error> {
    let params = ListParams::default().fields(&format!("metadata.name={}", names::KUBEVIP_CONFIG_MAP));
    let all = Api::<ConfigMap>::all(cx.client.clone()).list(&params).await;
    let all = all.map_err(|source| Error::Request { doing: "list ConfigMaps named kubevip", source })?;
    let of = |map: ConfigMap| {
        let namespace = map.namespace().unwrap_or_default();
        let text = map.data.unwrap_or_default().remove(names::KUBEVIP_SERVICES).unwrap_or_default();
        plan::services(&namespace, &text)
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
