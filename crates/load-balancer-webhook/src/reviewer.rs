//! Reads what the rules need, and returns their decision.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use controller_kit::{Cache, ObjectKey, error_message};
use harvester_api::kubevirt::{VirtualMachineInstanceStatus, VmInterface};
use harvester_api::{IPPool, VirtualMachine, VirtualMachineInstance, annotations, labels};
use json_patch::PatchOperation;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{ApiResource, DynamicObject, ObjectMeta};
use kube::core::GroupVersionKind;
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt as _};
use program::TaskGroup;

use crate::load_balancer::named_pool_scope;
use crate::pools::Pools;
use crate::review::{Faults, Kind, Reason, Write};
use crate::{Policy, ip_pool, load_balancer};

/// Objects in one page of a list. Little of them is kept, but a tenant can make a VM of a megabyte.
const AT_ONCE: u32 = 50;
/// Networks of a VM, and addresses of all its interfaces, that are kept; the bytes of an address.
const NETWORKS: usize = 32;
const ADDRESSES: usize = 128;
const ADDRESS: usize = 64;
/// Bytes of an annotation that a rule reads: that of a project has some 60.
const TEXT: usize = 256;
/// How long the start waits for each list: without KubeVirt there never is one of virtual machines, and without the right none
/// of namespaces.
const LISTED_WITHIN: Duration = Duration::from_secs(10);

/// The webhook could not read something that a rule needs.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unseen {
    #[error("read {what}: {}", error_message(&**source))]
    Read { what: &'static str, source: Arc<kube::Error> },
    /// As at a start with many of them, or without the right to list them.
    #[error(
        "the virtual machines, by which the annotations for the network and the guest cluster are judged, are not listed \
         yet: try again; if it stays so the log of the webhook says why"
    )]
    VmsNotListed,
    #[error(
        "the running virtual machines, by which the backends of an object of v1alpha1 are found, are not listed yet: try \
         again; if it stays so the log of the webhook says why"
    )]
    VmisNotListed,
}

/// Code and message of a refusal.
pub(crate) type Denial = (Reason, String);

/// The caches that the rules decide by. Pools are read afresh, and only when the spec of one changes: two pools that
/// are created one after the other see each other.
pub(crate) struct Reviewer {
    client: Client,
    policy: Policy,
    pools: Pools,
    recorded: Pools,
    namespaces: Cache<Namespace>,
    vms: Cache<VirtualMachine>,
    vmis: Cache<VirtualMachineInstance>,
}

impl Reviewer {
    /// Starts the caches and waits for them.
    pub(crate) async fn start(tasks: &TaskGroup, client: Client, policy: Policy) -> Self {
        let config = watcher::Config::default().page_size(AT_ONCE);
        let reviewer = Self {
            namespaces: Cache::start_trimmed(tasks, Api::all(client.clone()), config.clone(), trim_namespace),
            vms: Cache::start_trimmed(tasks, Api::all(client.clone()), config.clone(), trim_vm),
            vmis: Cache::start_trimmed(tasks, Api::all(client.clone()), config, trim_vmi),
            pools: Pools::new(client.clone()),
            recorded: Pools::with_records(client.clone()),
            client,
            policy,
        };
        let vms = async {
            reviewer.vms.ready().await;
            reviewer.vmis.ready().await;
        };
        let (namespaces, vms) = tokio::join!(
            tokio::time::timeout(LISTED_WITHIN, reviewer.namespaces.ready()),
            tokio::time::timeout(LISTED_WITHIN, vms)
        );
        if namespaces.is_err() {
            tracing::warn!("cannot list namespaces: each review that needs one reads it");
        }
        if vms.is_err() {
            tracing::warn!(
                "cannot list virtual machines: load balancers of guest clusters get no network annotation, the removal \
                 of a guest cluster is not noticed, no object of v1alpha1 that has backends is converted, and with \
                 --enforce-named-pool-scope no new claim of a network or guest cluster is admitted"
            );
        }
        reviewer
    }

    pub(crate) fn policy(&self) -> &Policy {
        &self.policy
    }

    /// All pools with their records, read no longer than a moment ago.
    pub(crate) async fn pools_with_records(&self) -> Result<Arc<[IPPool]>, Unseen> {
        self.recorded.recent().await.map_err(|source| Unseen::Read { what: "IPPools", source })
    }

    /// The running VMs of these namespaces with their addresses. An object that were converted by half of them would be
    /// stored with half of its backends.
    pub(crate) fn vmis(
        &self,
        namespaces: &BTreeSet<String>,
    ) -> Result<Vec<Arc<VirtualMachineInstance>>, Unseen> {
        if !self.vmis.is_ready() {
            return Err(Unseen::VmisNotListed);
        }
        Ok(namespaces.iter().flat_map(|namespace| self.vmis.list_in(namespace)).collect())
    }

    /// Why a write is refused; nothing where it is admitted.
    pub(crate) async fn validate(&self, write: &Write) -> Result<Option<Denial>, Unseen> {
        let (prefix, faults) = match write.kind {
            Kind::LoadBalancer => {
                let mut seen = self.see_load_balancer(write);
                if named_pool_scope::needs_facts(write, &self.policy) {
                    seen.facts = Some(self.facts(write, &seen).await?);
                }
                (load_balancer::prefix(write), load_balancer::validate(write, &seen, &self.policy))
            }
            Kind::IPPool => {
                let pools = if ip_pool::needs_pools(write) {
                    self.pools.list().await.map_err(|source| Unseen::Read { what: "IPPools", source })?
                } else {
                    Arc::default()
                };
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
                let mut seen = self.see_load_balancer(write);
                if load_balancer::of_cluster(write) || load_balancer::names_pool(write, &self.policy) {
                    seen.namespace = self.namespace(&write.namespace).await?;
                }
                (load_balancer::prefix(write), load_balancer::mutate(write, &seen, &self.policy))
            }
            Kind::IPPool => {
                let network = match ip_pool::needs_network(write) {
                    Ok(Some((namespace, name))) => self.network(namespace, name).await?,
                    // `mutate` returns the fault
                    Ok(None) | Err(_) => None,
                };
                let seen = ip_pool::Seen { pools: Arc::default(), network };
                (ip_pool::prefix(write), ip_pool::mutate(write, &seen, &self.policy))
            }
        };
        Ok(operations.map_err(|fault| Faults::from(fault).denial(&prefix).expect("one fault makes a denial")))
    }

    /// What a load balancer's claims are judged by, beside what is seen of its namespace.
    async fn facts(
        &self,
        write: &Write,
        seen: &load_balancer::Seen,
    ) -> Result<named_pool_scope::Facts, Unseen> {
        if named_pool_scope::needs_vms(write) && !(self.vms.is_ready() && self.vmis.is_ready()) {
            return Err(Unseen::VmsNotListed);
        }
        let namespace = self.namespace(&write.namespace).await?;
        let is_cluster_of_others =
            named_pool_scope::is_cluster_of_others(write, seen, || (self.vms.list(), self.vmis.list()));
        let pools = if is_cluster_of_others || named_pool_scope::names_pool(write) {
            // one that was made or changed this moment is judged by the load balancer
            self.pools.recent().await.map_err(|source| Unseen::Read { what: "IPPools", source })?
        } else {
            Arc::default()
        };
        Ok(named_pool_scope::Facts {
            project: named_pool_scope::project(&namespace.unwrap_or_default()),
            is_cluster_of_others,
            pools,
        })
    }

    /// The virtual machines around a load balancer whose rules look at them.
    fn see_load_balancer(&self, write: &Write) -> load_balancer::Seen {
        if !load_balancer::of_cluster(write) && !named_pool_scope::needs_facts(write, &self.policy) {
            return load_balancer::Seen::default();
        }
        load_balancer::Seen {
            namespace: None,
            facts: None,
            vms: self.vms.list_in(&write.namespace),
            vmis: self.vmis.list_in(&write.namespace),
        }
    }

    /// The annotations of a Namespace. One that the cache lacks may be just made.
    async fn namespace(&self, name: &str) -> Result<Option<BTreeMap<String, String>>, Unseen> {
        let namespace = match self.namespaces.get(&ObjectKey::new("", name)) {
            Some(namespace) => Some(namespace),
            None => {
                let fresh = Api::<Namespace>::all(self.client.clone()).get_opt(name).await;
                let fresh =
                    fresh.map_err(|error| Unseen::Read { what: "the Namespace", source: Arc::new(error) })?;
                // where none is listed, no watch would tell of a change
                fresh.map(|namespace| match self.namespaces.is_ready() {
                    true => self.namespaces.wrote(namespace),
                    false => Arc::new(namespace),
                })
            }
        };
        Ok(namespace.map(|namespace| namespace.annotations().clone()))
    }

    async fn network(&self, namespace: &str, name: &str) -> Result<Option<DynamicObject>, Unseen> {
        let kind = GroupVersionKind::gvk("k8s.cni.cncf.io", "v1", "NetworkAttachmentDefinition");
        let resource = ApiResource::from_gvk_with_plural(&kind, "network-attachment-definitions");
        let api = Api::<DynamicObject>::namespaced_with(self.client.clone(), namespace, &resource);
        let found = api.get_opt(name).await;
        found.map_err(|error| Unseen::Read {
            what: "the NetworkAttachmentDefinition",
            source: Arc::new(error),
        })
    }
}

fn trim_namespace(namespace: &mut Namespace) {
    trim_metadata(&mut namespace.metadata, &[], &[annotations::PROJECT_ID]);
    namespace.spec = None;
    namespace.status = None;
}

fn trim_vm(vm: &mut VirtualMachine) {
    trim_metadata(
        &mut vm.metadata,
        &[labels::CREATOR, labels::GUEST_CLUSTER],
        &[annotations::REMOVE_ALL_PVCS],
    );
    vm.spec = Default::default();
    vm.status = None;
}

fn trim_vmi(vmi: &mut VirtualMachineInstance) {
    trim_metadata(&mut vmi.metadata, &[labels::CREATOR, labels::GUEST_CLUSTER], &[]);
    vmi.spec.networks.retain(|network| network.multus.is_some() && network.has_real_names());
    vmi.spec.networks.truncate(NETWORKS);
    vmi.spec.networks.shrink_to_fit();
    vmi.spec.rest = Default::default();
    // what a guest agent says may be as long as it likes; the first address of each interface counts most
    let interfaces = vmi.status.take().unwrap_or_default().interfaces;
    let (first, others): (Vec<_>, Vec<_>) =
        interfaces.into_iter().map(|interface| (interface.ip_address, interface.ip_addresses)).unzip();
    let mut addresses: Vec<String> = Vec::new();
    for address in first.into_iter().chain(others.into_iter().flatten()) {
        let is_one = (1..=ADDRESS).contains(&address.len());
        if is_one && addresses.len() < ADDRESSES && !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    let all = VmInterface { ip_addresses: addresses, ..VmInterface::default() };
    vmi.status = Some(VirtualMachineInstanceStatus { interfaces: vec![all], ..Default::default() });
}

/// Keeps of what users write only what a rule reads: a tenant can put 256 KiB of annotations on each of their objects.
fn trim_metadata(metadata: &mut ObjectMeta, labels: &[&str], annotations: &[&str]) {
    let keep = |map: &mut Option<BTreeMap<String, String>>, keys: &[&str]| {
        map.iter_mut()
            .for_each(|map| map.retain(|key, text| keys.contains(&key.as_str()) && text.len() <= TEXT));
    };
    keep(&mut metadata.labels, labels);
    keep(&mut metadata.annotations, annotations);
    metadata.owner_references = None;
    metadata.finalizers = None;
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Mutex;

    use axum::body::Body;
    use axum::http::{Request, Response};
    use serde::{Serialize, de::DeserializeOwned};
    use serde_json::{Value, json};

    use super::*;

    fn trimmed<K: Serialize + DeserializeOwned>(kind: &str, spec: &Value, trim: fn(&mut K)) -> Value {
        let all = json!({
            "harvesterhci.io/creator": "c", "guestcluster.harvesterhci.io/name": "gc1", "field.cattle.io/projectId": "p",
            "harvesterhci.io/removeAllPersistentVolumeClaims": "true", "note": "x".repeat(1_000),
        });
        let object = json!({"apiVersion": "v1", "kind": kind, "spec": spec, "metadata": {"name": "a", "namespace": "b",
            "labels": all, "annotations": all, "finalizers": ["x"]}});
        let mut object: K = serde_json::from_value(object).unwrap();
        trim(&mut object);
        serde_json::to_value(object).unwrap()
    }

    #[test]
    fn of_vms_and_namespaces_only_what_a_rule_reads_is_kept() {
        let labels = json!({"harvesterhci.io/creator": "c", "guestcluster.harvesterhci.io/name": "gc1"});
        let vm = trimmed("VirtualMachine", &json!({"template": {}}), trim_vm);
        let removing = json!({"harvesterhci.io/removeAllPersistentVolumeClaims": "true"});
        let expected = json!({"name": "a", "namespace": "b", "labels": labels, "annotations": removing});
        assert_eq!(vm["metadata"], expected);

        let nic = |name: &str| json!({"name": name, "multus": {"networkName": name}});
        let networks =
            json!({"networks": [{"name": "default", "pod": {}}, nic("one"), nic("two")], "domain": {}});
        let vmi = trimmed("VirtualMachineInstance", &networks, trim_vmi);
        let expected = json!({"name": "a", "namespace": "b", "labels": labels, "annotations": {}});
        assert_eq!(
            (&vmi["metadata"], &vmi["spec"]),
            (&expected, &json!({"networks": [nic("one"), nic("two")]}))
        );

        let namespace = trimmed("Namespace", &json!({}), trim_namespace);
        assert_eq!(namespace["metadata"]["labels"], json!({}));
        assert_eq!(namespace["metadata"]["annotations"], json!({"field.cattle.io/projectId": "p"}));
    }

    #[test]
    fn of_a_running_vm_a_bounded_number_of_addresses_is_kept_and_the_first_of_each_interface_before_others() {
        let of = |first: &str, others: Vec<String>| VmInterface {
            ip_address: first.to_owned(),
            ip_addresses: others,
            ..VmInterface::default()
        };
        let many = (0..1_000).map(|n| format!("10.1.{}.{}", n / 250, n % 250)).collect();
        let interfaces = vec![
            of("10.0.0.1", many),
            of("", vec!["x".repeat(1_000)]),
            of("10.0.0.2", vec!["10.0.0.1".to_owned()]),
        ];
        let vmi = json!({"metadata": {"name": "a"}, "spec": {}, "status": {"interfaces": interfaces}});
        let mut vmi: VirtualMachineInstance = serde_json::from_value(vmi).unwrap();
        trim_vmi(&mut vmi);
        let kept: Vec<_> =
            vmi.status.unwrap().interfaces.into_iter().flat_map(|interface| interface.ip_addresses).collect();
        assert_eq!(kept.len(), ADDRESSES);
        assert_eq!(kept[..3], ["10.0.0.1", "10.0.0.2", "10.1.0.0"]);
    }

    #[tokio::test]
    async fn what_tenants_make_is_listed_in_small_pages() {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let of_service = asked.clone();
        let service = tower::service_fn(move |request: Request<kube::client::Body>| {
            let uri = request.uri().to_string();
            let is_watch = uri.contains("watch=");
            if !is_watch {
                of_service.lock().unwrap().push(uri);
            }
            async move {
                if is_watch {
                    std::future::pending::<()>().await;
                }
                let list = json!({"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": "1"}, "items": []});
                Ok::<_, Infallible>(Response::new(Body::from(list.to_string())))
            }
        });
        let tasks = TaskGroup::new();
        Reviewer::start(&tasks, Client::new(service, "default"), Policy::default()).await;
        let mut asked = asked.lock().unwrap().clone();
        asked.sort();
        let kinds: Vec<_> = asked
            .iter()
            .filter_map(|uri| uri.split(['/', '?']).find(|part| part.ends_with('s') && *part != "apis"))
            .collect();
        assert_eq!(kinds, ["namespaces", "virtualmachineinstances", "virtualmachines"]);
        for uri in &asked {
            assert!(uri.split(['?', '&']).any(|part| part == "limit=50"), "{uri}");
        }
        tasks.end().await;
    }
}
