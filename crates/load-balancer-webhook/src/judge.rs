//! Sees what the rules need, and asks them.

use std::time::Duration;

use controller_kit::{Cache, ObjectKey, error_message};
use harvester_api::{IPPool, VirtualMachine, VirtualMachineInstance};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{ApiResource, DynamicObject, ListParams};
use kube::core::GroupVersionKind;
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt as _};
use program::TaskGroup;
use serde_json::Value;

use super::{Policy, ip_pool, load_balancer};
use crate::review::{Answer, Operation, Request, Subject};

/// How long the start waits for the list of virtual machines: without KubeVirt there never is one.
const MACHINES_WAIT: Duration = Duration::from_secs(10);

/// What was needed for a judgement could not be read.
#[derive(Debug, thiserror::Error)]
#[error("read {what}: {}", error_message(source))]
pub(super) struct Unseen {
    what: &'static str,
    source: kube::Error,
}

/// Rules, and the caches that they are judged by. Pools are read afresh, and only when the spec of one is new: two
/// pools that are created one after the other see each other.
pub(super) struct Judge {
    pub(super) client: Client,
    pub(super) policy: Policy,
    namespaces: Cache<Namespace>,
    vms: Cache<VirtualMachine>,
    vmis: Cache<VirtualMachineInstance>,
}

impl Judge {
    /// Starts the caches and waits for them.
    pub(super) async fn start(tasks: &TaskGroup, client: Client, policy: Policy) -> Self {
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
        let judge = Self {
            namespaces: Cache::start_trimmed(tasks, Api::all(client.clone()), config.clone(), trim_namespace),
            vms: Cache::start_trimmed(tasks, Api::all(client.clone()), config.clone(), trim_vm),
            vmis: Cache::start_trimmed(tasks, Api::all(client.clone()), config, trim_vmi),
            client,
            policy,
        };
        judge.namespaces.ready().await;
        let machines = async {
            judge.vms.ready().await;
            judge.vmis.ready().await;
        };
        if tokio::time::timeout(MACHINES_WAIT, machines).await.is_err() {
            tracing::warn!(
                "cannot list virtual machines: guest clusters get no network, and are not seen to go"
            );
        }
        judge
    }

    pub(super) async fn validate(&self, request: &Request) -> Result<Answer, Unseen> {
        match request.subject {
            Subject::LoadBalancer => {
                let faults = load_balancer::validate(request, &self.around(request).await?, &self.policy);
                Ok(Answer::to_faults(&load_balancer::prefix(request), &faults))
            }
            Subject::IPPool => {
                let pools = if ip_pool::needs_pools(request) { self.pools().await? } else { Vec::new() };
                let world = ip_pool::World { pools, network: None };
                let faults = ip_pool::validate(request, &world, &self.policy);
                Ok(Answer::to_faults(&ip_pool::prefix(request), &faults))
            }
            Subject::Other => Ok(Answer::Allow),
        }
    }

    pub(super) async fn mutate(&self, request: &Request) -> Result<Answer, Unseen> {
        let (prefix, answer) = match request.subject {
            Subject::LoadBalancer => {
                let operations = load_balancer::mutate(request, &self.around(request).await?, &self.policy);
                (load_balancer::prefix(request), operations)
            }
            Subject::IPPool => {
                let network = match ip_pool::needs_network(request) {
                    Ok(Some((namespace, name))) => self.network(namespace, name).await?,
                    // what is wrong with it is said by `mutate`
                    Ok(None) | Err(_) => None,
                };
                let world = ip_pool::World { pools: Vec::new(), network };
                (ip_pool::prefix(request), ip_pool::mutate(request, &world, &self.policy))
            }
            Subject::Other => return Ok(Answer::Allow),
        };
        Ok(match answer {
            Ok(operations) => Answer::Patch(operations),
            Err(fault) => Answer::to_faults(&prefix, &[fault]),
        })
    }

    /// What is known of a load balancer's namespace. One that the cache does not have may be just made.
    async fn around(&self, request: &Request) -> Result<load_balancer::World, Unseen> {
        if request.operation == Operation::Delete || request.object["spec"]["workloadType"] != "cluster" {
            return Ok(load_balancer::World::default());
        }
        let namespace = match self.namespaces.get(&ObjectKey::new("", request.namespace.clone())) {
            Some(namespace) => Some(namespace),
            None => {
                let fresh = Api::<Namespace>::all(self.client.clone()).get_opt(&request.namespace).await;
                let fresh = fresh.map_err(|source| Unseen { what: "the Namespace", source })?;
                fresh.map(|namespace| self.namespaces.wrote(namespace))
            }
        };
        let here =
            |namespace: Option<String>| namespace.is_some_and(|namespace| namespace == request.namespace);
        Ok(load_balancer::World {
            namespace: namespace.map(|namespace| namespace.annotations().clone()),
            vms: self.vms.list().into_iter().filter(|vm| here(vm.namespace())).collect(),
            vmis: self.vmis.list().into_iter().filter(|vmi| here(vmi.namespace())).collect(),
        })
    }

    async fn pools(&self) -> Result<Vec<IPPool>, Unseen> {
        let pools = Api::<DynamicObject>::all_with(self.client.clone(), &ApiResource::erase::<IPPool>(&()));
        let pools =
            pools.list(&ListParams::default()).await.map_err(|source| Unseen { what: "IPPools", source })?;
        // one that cannot be read as a pool has no ranges that could overlap
        let read = |pool: DynamicObject| serde_json::from_value(serde_json::to_value(pool).ok()?).ok();
        Ok(pools.items.into_iter().filter_map(read).collect())
    }

    async fn network(&self, namespace: &str, name: &str) -> Result<Option<Value>, Unseen> {
        let kind = GroupVersionKind::gvk("k8s.cni.cncf.io", "v1", "NetworkAttachmentDefinition");
        let resource = ApiResource::from_gvk_with_plural(&kind, "network-attachment-definitions");
        let api = Api::<DynamicObject>::namespaced_with(self.client.clone(), namespace, &resource);
        let what = "the NetworkAttachmentDefinition";
        let found = api.get_opt(name).await.map_err(|source| Unseen { what, source })?;
        Ok(found.map(|definition| serde_json::to_value(definition).expect("it was read from JSON")))
    }
}
