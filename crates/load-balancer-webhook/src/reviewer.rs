//! Reads what the rules need, and returns their decision.

use std::time::Duration;

use controller_kit::{Cache, ObjectKey, error_message};
use harvester_api::{IPPool, VirtualMachine, VirtualMachineInstance};
use json_patch::PatchOperation;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{ApiResource, DynamicObject, ListParams};
use kube::core::GroupVersionKind;
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt as _};
use program::TaskGroup;

use crate::review::{Faults, Kind, Reason, Write};
use crate::{Policy, ip_pool, load_balancer};

/// How long the start waits for the list of virtual machines: without KubeVirt there never is one.
const VMS_WITHIN: Duration = Duration::from_secs(10);

/// The webhook could not read something that a rule needs.
#[derive(Debug, thiserror::Error)]
#[error("read {what}: {}", error_message(source))]
pub(crate) struct Unseen {
    what: &'static str,
    source: kube::Error,
}

/// Code and message of a refusal.
pub(crate) type Denial = (Reason, String);

/// The caches that the rules decide by. Pools are read afresh, and only when the spec of one changes: two pools that
/// are created one after the other see each other.
pub(crate) struct Reviewer {
    client: Client,
    policy: Policy,
    namespaces: Cache<Namespace>,
    vms: Cache<VirtualMachine>,
    vmis: Cache<VirtualMachineInstance>,
}

impl Reviewer {
    /// Starts the caches and waits for them.
    pub(crate) async fn start(tasks: &TaskGroup, client: Client, policy: Policy) -> Self {
        let config = watcher::Config::default();
        let trim_namespace = |namespace: &mut Namespace| {
            namespace.spec = None;
            namespace.status = None;
        };
        let trim_vm = |vm: &mut VirtualMachine| {
            vm.spec = Default::default();
            vm.status = None;
        };
        let trim_vmi = |vmi: &mut VirtualMachineInstance| {
            vmi.spec.rest = Default::default();
            vmi.status = None;
        };
        let reviewer = Self {
            namespaces: Cache::start_trimmed(tasks, Api::all(client.clone()), config.clone(), trim_namespace),
            vms: Cache::start_trimmed(tasks, Api::all(client.clone()), config.clone(), trim_vm),
            vmis: Cache::start_trimmed(tasks, Api::all(client.clone()), config, trim_vmi),
            client,
            policy,
        };
        reviewer.namespaces.ready().await;
        let vms = async {
            reviewer.vms.ready().await;
            reviewer.vmis.ready().await;
        };
        if tokio::time::timeout(VMS_WITHIN, vms).await.is_err() {
            tracing::warn!(
                "cannot list virtual machines: load balancers of guest clusters get no network annotation, and the \
                 removal of a guest cluster is not noticed"
            );
        }
        reviewer
    }

    pub(crate) fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Why a write is refused; nothing where it is admitted.
    pub(crate) async fn validate(&self, write: &Write) -> Result<Option<Denial>, Unseen> {
        let (prefix, faults) = match write.kind {
            Kind::LoadBalancer => {
                let seen = self.see_load_balancer(write).await?;
                (load_balancer::prefix(write), load_balancer::validate(write, &seen, &self.policy))
            }
            Kind::IPPool => {
                let pools = if ip_pool::needs_pools(write) { self.pools().await? } else { Vec::new() };
                let seen = ip_pool::Seen { pools, network: None };
                (ip_pool::prefix(write), ip_pool::validate(write, &seen, &self.policy))
            }
        };
        Ok(faults.denial(&prefix))
    }

    /// The operations that complete an object, or why they cannot be found.
    pub(crate) async fn mutate(&self, write: &Write) -> Result<Result<Vec<PatchOperation>, Denial>, Unseen> {
        let (prefix, operations) = match write.kind {
            Kind::LoadBalancer => {
                let seen = self.see_load_balancer(write).await?;
                (load_balancer::prefix(write), load_balancer::mutate(write, &seen, &self.policy))
            }
            Kind::IPPool => {
                let network = match ip_pool::needs_network(write) {
                    Ok(Some((namespace, name))) => self.network(namespace, name).await?,
                    // `mutate` returns the fault
                    Ok(None) | Err(_) => None,
                };
                let seen = ip_pool::Seen { pools: Vec::new(), network };
                (ip_pool::prefix(write), ip_pool::mutate(write, &seen, &self.policy))
            }
        };
        Ok(operations.map_err(|fault| Faults::from(fault).denial(&prefix).expect("one fault makes a denial")))
    }

    /// The surroundings of a guest cluster's load balancer. A Namespace that the cache lacks may be just made.
    async fn see_load_balancer(&self, write: &Write) -> Result<load_balancer::Seen, Unseen> {
        let cluster = write.reviewed().is_some_and(|object| object.data["spec"]["workloadType"] == "cluster");
        if !cluster {
            return Ok(load_balancer::Seen::default());
        }
        let namespace = match self.namespaces.get(&ObjectKey::new("", write.namespace.clone())) {
            Some(namespace) => Some(namespace),
            None => {
                let fresh = Api::<Namespace>::all(self.client.clone()).get_opt(&write.namespace).await;
                let fresh = fresh.map_err(|source| Unseen { what: "the Namespace", source })?;
                fresh.map(|namespace| self.namespaces.wrote(namespace))
            }
        };
        let here =
            |namespace: Option<String>| namespace.is_some_and(|namespace| namespace == write.namespace);
        Ok(load_balancer::Seen {
            namespace: namespace.map(|namespace| namespace.annotations().clone()),
            vms: self.vms.list().into_iter().filter(|vm| here(vm.namespace())).collect(),
            vmis: self.vmis.list().into_iter().filter(|vmi| here(vmi.namespace())).collect(),
        })
    }

    async fn pools(&self) -> Result<Vec<IPPool>, Unseen> {
        let pools = Api::<DynamicObject>::all_with(self.client.clone(), &ApiResource::erase::<IPPool>(&()));
        let pools =
            pools.list(&ListParams::default()).await.map_err(|source| Unseen { what: "IPPools", source })?;
        // a pool that cannot be read has no ranges that could overlap
        Ok(pools.items.into_iter().filter_map(|pool| pool.try_parse().ok()).collect())
    }

    async fn network(&self, namespace: &str, name: &str) -> Result<Option<DynamicObject>, Unseen> {
        let kind = GroupVersionKind::gvk("k8s.cni.cncf.io", "v1", "NetworkAttachmentDefinition");
        let resource = ApiResource::from_gvk_with_plural(&kind, "network-attachment-definitions");
        let api = Api::<DynamicObject>::namespaced_with(self.client.clone(), namespace, &resource);
        api.get_opt(name).await.map_err(|source| Unseen { what: "the NetworkAttachmentDefinition", source })
    }
}
