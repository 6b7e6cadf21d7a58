//! One list of each kind, in the caches that the running programs watch.

use std::sync::Arc;

use cloud_controller_manager::load_balancers::{ServiceSettings, dry_run};
use controller_kit::{Cache, ObjectKey, RawObject, Watched, error_message};
use futures::join;
use guest_vms::{GuestVms, VmSettings};
use harvester_api::{LoadBalancer, VirtualMachine, VirtualMachineInstance, annotations, labels, names};
use jiff::Timestamp;
use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{ConfigMap, Event, Node, Service},
    discovery::v1::EndpointSlice,
};
use kube::{Api, Client, Resource, ResourceExt as _, api::ListParams, core::NamespaceResourceScope};
use load_balancer::{PoolChoice, dry_run as pools};

use super::{
    decide::{last_seen, shown, waited},
    report::NotRead,
};
use crate::{
    access::{nobody, read_only},
    screen::cut,
};

/// The Lease of the cloud controller manager, the Go program's too.
pub(crate) const LEASE: &str = "cloud-controller-manager";
/// An answer has so many Events at most.
const EVENTS: u32 = 500;

/// The clusters to read.
pub struct Clusters {
    pub guest: Client,
    /// How people call the guest cluster's kubeconfig, for messages.
    pub guest_name: String,
    /// Harvester, with the rights of the cloud-config or with more; or why there is no client.
    pub harvester: Result<Client, String>,
}

/// The flags that decide, with the namespace of the cloud-config.
#[derive(Clone, Debug, PartialEq)]
pub struct Assumed {
    pub rules: ServiceSettings,
    /// Without `--disable-hostname-lookup`.
    pub host_names: bool,
    /// Without `--disable-vmi-controller`.
    pub follows_vms: bool,
    /// The flags of the load balancer in Harvester that choose pools, as far as they were given.
    pub pool_choice: PoolChoice,
}

/// Why there is no explanation.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(
        "service {service} does not exist in the guest cluster of {cluster}: check namespace and name, and that the \
         kubeconfig's current-context is the guest cluster's"
    )]
    NotFound { service: ObjectKey, cluster: String },
    #[error("get services {service} in the guest cluster of {cluster} is refused: {why}")]
    Refused { service: ObjectKey, cluster: String, why: String },
    #[error(
        "the API server of the guest cluster of {cluster} does not answer: {why}; check that it runs and that this \
         machine reaches it"
    )]
    Unreachable { cluster: String, why: String },
}

/// Everything that an explanation rests on.
pub(crate) struct Read {
    pub(crate) service: Service,
    pub(crate) nodes: Vec<Arc<Node>>,
    /// Oldest first.
    pub(crate) events: Vec<Event>,
    /// `None`: it could not be read.
    pub(crate) lease: Option<Option<Lease>>,
    /// Whether the Service has an endpoint that is ready. `None`: it could not be read, or kube-vip was not asked for an address
    /// that it does not show.
    pub(crate) has_endpoint: Option<bool>,
    pub(crate) vms: GuestVms,
    pub(crate) dry_run: dry_run::DryRun,
    /// `None`: the pools could not be read, or there is no object.
    pub(crate) pools: Option<pools::DryRun>,
    pub(crate) not_read: Vec<NotRead>,
    pub(crate) assumed: Assumed,
    pub(crate) now: Timestamp,
}

/// # Errors
/// The Service does not exist or cannot be read. Nothing else that is missing is an error: it is named.
pub(crate) async fn read(
    clusters: &Clusters,
    assumed: Assumed,
    key: &ObjectKey,
    now: Timestamp,
) -> Result<Read, Error> {
    let rules = &assumed.rules;
    let guest = read_only(clusters.guest.clone());
    let cluster = || clusters.guest_name.clone();
    let api = Api::<Service>::namespaced(guest.clone(), &key.namespace);
    let service = match api.get_opt(&key.name).await {
        Ok(Some(service)) => service,
        Ok(None) => return Err(Error::NotFound { service: key.clone(), cluster: cluster() }),
        Err(error) => {
            let (cluster, why) = (cluster(), cut(&error_message(&error)));
            return Err(match error {
                kube::Error::Api(_) => Error::Refused { service: key.clone(), cluster, why },
                _ => Error::Unreachable { cluster, why },
            });
        }
    };
    let harvester = match &clusters.harvester {
        Ok(client) => InHarvester::read(&read_only(client.clone()), &rules.namespace).await,
        Err(why) => InHarvester::absent(why),
    };
    let (mut in_guest, mut harvester) = (InGuest::read(&guest, &service, key).await, harvester);
    let settings = VmSettings {
        namespace: rules.namespace.clone(),
        cluster: rules.cluster.chosen_name().map(str::to_owned),
        ..VmSettings::default()
    };
    let vms = GuestVms::of(&nobody(), settings, harvester.vms, harvester.vmis);
    if let (Ok(client), true) = (&clusters.harvester, assumed.host_names) {
        let asked = vms.ask_host_names_once(&read_only(client.clone()), &in_guest.nodes).await;
        let place = Target { cluster: HARVESTER, namespace: Some(&rules.namespace) };
        harvester.not_read.extend(
            asked.err().map(|error| place.not_read("get", "virtualmachineinstances/guestosinfo", &error)),
        );
    }
    // without Nodes it is not known either which VMs are backends
    let vms_of_nodes = match in_guest.nodes_listed {
        true => vms.clone(),
        false => GuestVms::of(&nobody(), VmSettings::default(), Cache::empty(), Cache::empty()),
    };
    let lists = dry_run::Lists {
        services: in_guest.services.clone(),
        nodes: in_guest.nodes.clone(),
        load_balancers: harvester.load_balancers,
        vms: vms_of_nodes,
        networks: in_guest.networks.take(),
        follows_vms: assumed.follows_vms,
    };
    let since = |object: Option<&LoadBalancer>| waited(&service, object, now);
    let dry_run = dry_run::dry_run(nobody(), rules.clone(), lists, &service, since);
    let pools = harvester
        .pools
        .and_then(|lists| pools::dry_run(&lists, &dry_run.key, now.as_second(), assumed.pool_choice));
    let mut not_read = std::mem::take(&mut in_guest.not_read);
    not_read.append(&mut harvester.not_read);
    let is_asked = service.annotations().contains_key(annotations::KUBE_VIP_LOADBALANCER_IPS);
    let has_endpoint = match is_asked && shown(&service).is_empty() {
        true => has_endpoint(&guest, key).await.map_err(|refused| not_read.push(refused)).ok(),
        false => None,
    };
    Ok(Read {
        service,
        nodes: in_guest.nodes,
        events: in_guest.events,
        lease: in_guest.lease,
        has_endpoint,
        vms,
        dry_run,
        pools,
        not_read,
        assumed,
        now,
    })
}

/// Names of the clusters in [`NotRead`].
const GUEST: &str = "guest";
pub(crate) const HARVESTER: &str = "Harvester";
/// The resource of a [`NotRead`] where there is no client.
pub(crate) const EVERYTHING: &str = "all resources";

/// The cluster and the namespace that a request is about.
#[derive(Clone, Copy)]
struct Target<'a> {
    cluster: &'static str,
    namespace: Option<&'a str>,
}

impl Target<'_> {
    fn not_read(self, verb: &'static str, resource: &'static str, error: &kube::Error) -> NotRead {
        let mut why = error_message(error);
        if matches!(error, kube::Error::Api(status) if verb == "list" && status.is_not_found()) {
            why.push_str("; does the kubeconfig lead to this cluster?");
        }
        let (cluster, namespace) = (self.cluster, self.namespace.map(str::to_owned));
        NotRead { cluster, verb, resource, namespace, why: cut(&why) }
    }

    async fn list<K: Watched>(self, api: Api<K>, resource: &'static str) -> Result<Cache<K>, NotRead> {
        Cache::list_once(api).await.map_err(|error| self.not_read("list", resource, &error))
    }
}

struct InGuest {
    services: Cache<Service>,
    nodes: Vec<Arc<Node>>,
    nodes_listed: bool,
    events: Vec<Event>,
    lease: Option<Option<Lease>>,
    networks: Option<RawObject<ConfigMap>>,
    not_read: Vec<NotRead>,
}

impl InGuest {
    async fn read(guest: &Client, service: &Service, key: &ObjectKey) -> Self {
        let everywhere = Target { cluster: GUEST, namespace: None };
        let here = Target { namespace: Some(&key.namespace), ..everywhere };
        let system = Target { namespace: Some(names::KUBE_SYSTEM), ..everywhere };
        let about = ListParams::default().limit(EVENTS).fields(&format!("involvedObject.name={}", key.name));
        let events: Api<Event> = Api::namespaced(guest.clone(), &key.namespace);
        let leases: Api<Lease> = Api::namespaced(guest.clone(), names::KUBE_SYSTEM);
        let (services, nodes, events, lease) = join!(
            everywhere.list(Api::<Service>::all(guest.clone()), "services"),
            everywhere.list(Api::<Node>::all(guest.clone()), "nodes"),
            events.list(&about),
            leases.get_opt(LEASE),
        );
        let mut not_read = Vec::new();
        let services = match services {
            Ok(services) => services,
            Err(refused) => {
                not_read.push(refused);
                services_here(guest, service, here, &mut not_read).await
            }
        };
        let nodes = nodes.map(|nodes| nodes.list()).map_err(|refused| not_read.push(refused));
        let events = events.map(|list| list.items);
        let events = events.map_err(|error| not_read.push(here.not_read("list", "events", &error)));
        let lease = lease.map_err(|error| not_read.push(system.not_read("get", "leases", &error)));
        let mut networks = None;
        if service.annotations().contains_key(annotations::SERVICE_NETWORK) {
            let config_maps: Api<RawObject<ConfigMap>> = Api::namespaced(guest.clone(), names::KUBE_SYSTEM);
            match config_maps.get_opt(names::NETWORKS_CONFIG_MAP).await {
                Ok(found) => networks = found,
                Err(error) => not_read.push(system.not_read("get", "configmaps", &error)),
            }
        }
        let mut events = events.unwrap_or_default();
        let uid = service.metadata.uid.as_deref();
        events.retain(|event| {
            let of = &event.involved_object;
            of.kind.as_deref() == Some("Service") && (of.uid.is_none() || of.uid.as_deref() == uid)
        });
        events.sort_by_key(last_seen);
        let nodes_listed = nodes.is_ok();
        let (nodes, lease) = (nodes.unwrap_or_default(), lease.ok());
        Self { services, nodes, nodes_listed, events, lease, networks, not_read }
    }
}

async fn has_endpoint(guest: &Client, service: &ObjectKey) -> Result<bool, NotRead> {
    let here = Target { cluster: GUEST, namespace: Some(&service.namespace) };
    let slices: Api<EndpointSlice> = Api::namespaced(guest.clone(), &service.namespace);
    let of_service =
        ListParams::default().labels(&format!("{}={}", labels::SLICE_SERVICE_NAME, service.name));
    let listed =
        slices.list(&of_service).await.map_err(|error| here.not_read("list", "endpointslices", &error))?;
    let mut endpoints = listed.items.iter().flat_map(|slice| &slice.endpoints);
    // one that says nothing of itself counts as ready
    Ok(endpoints.any(|endpoint| endpoint.conditions.as_ref().and_then(|it| it.ready).unwrap_or(true)))
}

/// The Services that a role for one namespace lets us read: those of the namespace, and the one that names the cluster.
async fn services_here(
    guest: &Client,
    service: &Service,
    here: Target<'_>,
    not_read: &mut Vec<NotRead>,
) -> Cache<Service> {
    let namespace = here.namespace.unwrap_or_default();
    let kubernetes: Api<Service> = Api::namespaced(guest.clone(), "default");
    let (listed, kubernetes) = join!(
        here.list(Api::<Service>::namespaced(guest.clone(), namespace), "services"),
        kubernetes.get_opt("kubernetes"),
    );
    let mut all: Vec<Service> = match listed {
        Ok(listed) => listed.list().iter().map(|service| (**service).clone()).collect(),
        Err(refused) => {
            not_read.push(refused);
            vec![service.clone()]
        }
    };
    let default = Target { namespace: Some("default"), ..here };
    match kubernetes {
        Ok(kubernetes) => all.extend(kubernetes.filter(|_| namespace != "default")),
        Err(error) => not_read.push(default.not_read("get", "services", &error)),
    }
    Cache::of(all)
}

struct InHarvester {
    load_balancers: Cache<RawObject<LoadBalancer>>,
    vms: Cache<VirtualMachine>,
    vmis: Cache<VirtualMachineInstance>,
    pools: Option<pools::Lists>,
    not_read: Vec<NotRead>,
}

impl InHarvester {
    /// There is no client.
    fn absent(why: &str) -> Self {
        let (verb, resource) = ("list", EVERYTHING);
        Self {
            load_balancers: Cache::empty(),
            vms: Cache::empty(),
            vmis: Cache::empty(),
            pools: None,
            not_read: vec![NotRead { cluster: HARVESTER, verb, resource, namespace: None, why: cut(why) }],
        }
    }

    async fn read(harvester: &Client, namespace: &str) -> Self {
        let everywhere = Target { cluster: HARVESTER, namespace: None };
        let here = Target { namespace: Some(namespace), ..everywhere };
        let (load_balancers, vms, vmis, pools) = join!(
            here.list(namespaced(harvester, namespace), "loadbalancers"),
            here.list(namespaced(harvester, namespace), "virtualmachines"),
            here.list(namespaced(harvester, namespace), "virtualmachineinstances"),
            everywhere.list(all(harvester), "ippools"),
        );
        let mut not_read = Vec::new();
        let load_balancers = listed(load_balancers, &mut not_read);
        let vms = listed(vms, &mut not_read).unwrap_or_else(Cache::empty);
        let vmis = listed(vmis, &mut not_read).unwrap_or_else(Cache::empty);
        let pools = match (listed(pools, &mut not_read), &load_balancers) {
            (Some(pools), Some(own)) => Some(pool_lists(harvester, pools, own, &mut not_read).await),
            _ => None,
        };
        let load_balancers = load_balancers.unwrap_or_else(Cache::empty);
        Self { load_balancers, vms, vmis, pools, not_read }
    }
}

/// The lists that a claim looks at. `own`: the objects of the namespace, where those of all cannot be listed.
async fn pool_lists(
    harvester: &Client,
    pools: Cache<RawObject<harvester_api::IPPool>>,
    own: &Cache<RawObject<LoadBalancer>>,
    not_read: &mut Vec<NotRead>,
) -> pools::Lists {
    let everywhere = Target { cluster: HARVESTER, namespace: None };
    let made = ListParams::default().labels(&format!("{}=true", labels::SERVICE_LB));
    let services: Api<RawObject<Service>> = Api::all(harvester.clone());
    let (load_balancers, services) =
        join!(everywhere.list(all(harvester), "loadbalancers"), services.list(&made));
    let services = services.map_err(|error| everywhere.not_read("list", "services", &error));
    let services = services.map(|list| Cache::of(list.items));
    pools::Lists {
        pools,
        load_balancers: listed(load_balancers, not_read).unwrap_or_else(|| own.clone()),
        services: listed(services, not_read).unwrap_or_else(|| Cache::of([])),
    }
}

fn listed<K>(answer: Result<Cache<K>, NotRead>, not_read: &mut Vec<NotRead>) -> Option<Cache<K>> {
    answer.map_err(|refused| not_read.push(refused)).ok()
}

fn all<K>(client: &Client) -> Api<K>
where
    K: Watched,
{
    Api::all(client.clone())
}

fn namespaced<K>(client: &Client, namespace: &str) -> Api<K>
where
    K: Watched + Resource<Scope = NamespaceResourceScope>,
{
    Api::namespaced(client.clone(), namespace)
}
