//! Whose an object of the guest cluster's namespace in Harvester is: this cluster's, perhaps another one's, or nobody knows.
//!
//! Administrators delete what is called this cluster's here, so nobody but Harvester says it: a VirtualMachine carries a cluster's
//! name, and a Node carries the UID of its VirtualMachine. What Pods of the guest cluster say of themselves does not count, and
//! neither does a Node that is not ready: a cluster that was restored from a backup has the Nodes of its original too.

use std::{collections::BTreeSet, net::IpAddr};

use harvester_api::{annotations, labels, names};
use serde_json::Value;

use crate::json::{annotation, is_true, key, label, members, name, text, uid};

/// What the Node's provider ID says of its VirtualMachine: the UID, or the name, as some tools write it. Empty where it says none.
pub(crate) fn machine_id(node: &Value) -> &str {
    text(node, "/spec/providerID").strip_prefix(names::PROVIDER_ID_PREFIX).unwrap_or_default()
}

/// The VirtualMachine that the Node's provider ID names. A name proves nothing about whose the machine is, because another cluster
/// may have one of that name; a UID does.
pub(crate) fn machine_of<'a>(node: &Value, machines: &'a [Value]) -> Option<&'a Value> {
    let id = Some(machine_id(node)).filter(|id| !id.is_empty())?;
    let of = |field: fn(&Value) -> &str| machines.iter().find(|machine| field(machine) == id);
    of(uid).or_else(|| of(name))
}

/// Whether nobody chose the name, so that it says nothing.
pub(crate) fn is_unnamed(cluster: Option<&str>) -> bool {
    cluster.is_none_or(|name| name == names::DEFAULT_CLUSTER_NAME)
}

/// The cluster that a machine says to be of.
pub(crate) fn cluster_of(machine: &Value) -> Option<&str> {
    label(machine, labels::GUEST_CLUSTER)
}

/// Whose an object is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Whose<'a> {
    /// This guest cluster made it: proved by the annotation with its UID, or by its name on the object and on its machines.
    Ours,
    /// It has the proof, and another cluster that looks alike lives by this machine: it carries the object's name or that of ours,
    /// or a Node names it that is not ready or runs elsewhere.
    Another(&'a Value),
    /// It has the proof, and this machine may be of another cluster that looks alike.
    Doubtful(&'a Value),
    /// Nothing proves that this guest cluster made it.
    Unproved,
}

/// The machines of the namespace, as one guest cluster knows them.
#[derive(Debug)]
pub(crate) struct Machines<'a> {
    /// UID of Service `default/kubernetes`.
    cluster: Option<&'a str>,
    /// The name of this guest cluster on its machines, where that proves something.
    name: Option<&'a str>,
    own: Vec<&'a Value>,
    others: Vec<&'a Value>,
    /// Those of the others that a Node names: it is not ready or runs elsewhere, as the original's in a restored cluster.
    lost: Vec<&'a Value>,
    /// There are Nodes that name a machine, and none of these is there by its UID.
    pub(crate) are_elsewhere: bool,
}

impl<'a> Machines<'a> {
    /// `services` and `nodes` of the guest cluster; `machines` and their `instances` of the namespace in Harvester.
    pub(crate) fn of(
        services: &'a [Value],
        nodes: &'a [Value],
        machines: &'a [Value],
        instances: &[Value],
    ) -> Self {
        let kubernetes = services.iter().find(|service| key(service) == "default/kubernetes").map(uid);
        let is_own = |machine: &&Value| {
            let instance = instances.iter().find(|instance| name(instance) == name(machine));
            nodes.iter().any(|node| proves(node, machine, instance))
        };
        let (own, others): (Vec<_>, Vec<_>) = machines.iter().partition(is_own);
        // one name, and on nobody else: two clusters of one name may share the namespace
        let names: BTreeSet<_> = own.iter().filter_map(|machine| cluster_of(machine)).collect();
        let name = match names.into_iter().collect::<Vec<_>>()[..] {
            [one] if !is_unnamed(Some(one)) => Some(one),
            _ => None,
        };
        let named: BTreeSet<_> = nodes.iter().map(machine_id).filter(|uid| !uid.is_empty()).collect();
        let are_elsewhere = !named.is_empty() && !machines.iter().any(|machine| named.contains(uid(machine)));
        let lost = others.iter().copied().filter(|machine| named.contains(uid(machine))).collect();
        let cluster = kubernetes.filter(|uid| !uid.is_empty());
        Self { cluster, name, own, others, lost, are_elsewhere }
    }

    /// Whether nobody has a machine in the namespace.
    pub(crate) fn is_empty(&self) -> bool {
        self.own.is_empty() && self.others.is_empty()
    }

    /// A machine whose cluster is meant and that is no ready Node of this guest cluster.
    pub(crate) fn other(&self, is_meant: impl Fn(Option<&str>) -> bool) -> Option<&'a Value> {
        self.others.iter().copied().find(|machine| is_meant(cluster_of(machine)))
    }

    /// A machine of another cluster that may have this name or this UID too: one of the same name, or restored from the same
    /// backup. `cluster`: the name on the object, which users choose, so that it need not be that of the machines.
    fn look_alike(&self, cluster: Option<&str>) -> Option<Whose<'a>> {
        let is_like = |of: Option<&str>| of == cluster || self.own.iter().any(|own| cluster_of(own) == of);
        let another = self.other(|of| of.is_some() && is_like(of)).or_else(|| self.lost.first().copied());
        let doubtful = || self.other(|of| of.is_none() || is_unnamed(cluster));
        another.map(Whose::Another).or_else(|| doubtful().map(Whose::Doubtful))
    }

    /// Whether the object has the proof of this guest cluster: the annotation with its UID, else the name. `cluster`: the name of
    /// a cluster on the object.
    fn is_proved(&self, object: &Value, cluster: Option<&str>) -> bool {
        match annotation(object, annotations::CLUSTER_UID) {
            Some(its) => self.cluster == Some(its),
            None => self.is_name(cluster),
        }
    }

    /// Whether it is the name of this guest cluster.
    fn is_name(&self, cluster: Option<&str>) -> bool {
        cluster.is_some() && cluster == self.name
    }

    /// Whether an object that nothing proves may be this guest cluster's, of which the Nodes do not say one name now: it carries
    /// the name of a machine that is one of them, or would be if it were ready.
    pub(crate) fn may_be_ours(&self, object: &Value) -> bool {
        let cluster = label(object, labels::CLUSTER);
        let mut nodes = self.own.iter().chain(&self.lost);
        self.name.is_none()
            && cluster.is_some()
            && annotation(object, annotations::CLUSTER_UID).is_none()
            && nodes.any(|machine| cluster_of(machine) == cluster)
    }

    /// Whose a LoadBalancer is.
    pub(crate) fn whose(&self, object: &Value) -> Whose<'a> {
        let cluster = label(object, labels::CLUSTER);
        if !self.is_proved(object, cluster) {
            return Whose::Unproved;
        }
        self.look_alike(cluster).unwrap_or(Whose::Ours)
    }

    /// Whose a claim is, by the name of a cluster on it.
    pub(crate) fn whose_claim(&self, claim: &Value) -> Whose<'a> {
        let cluster = label(claim, labels::GUEST_CLUSTER);
        if !self.is_name(cluster) {
            return Whose::Unproved;
        }
        self.look_alike(cluster).unwrap_or(Whose::Ours)
    }

    /// Whether this guest cluster made the object, as its UID on it says.
    pub(crate) fn has_our_uid(&self, object: &Value) -> bool {
        self.cluster.is_some() && annotation(object, annotations::CLUSTER_UID) == self.cluster
    }
}

/// Whether the machine is the Node's, and the Node one of a cluster that lives.
fn proves(node: &Value, machine: &Value, instance: Option<&Value>) -> bool {
    machine_id(node) == uid(machine)
        && !uid(machine).is_empty()
        && is_true(node, "Ready")
        && runs_in(node, instance)
}

/// Whether the Node runs in the instance of the machine that its provider ID names, which does not change: a kubelet on another
/// machine may go on under the Node's name. The UUIDs of the two differ then, and where there is no instance no kubelet runs in it.
/// A machine or a Node that says no UUID is taken for it.
fn runs_in(node: &Value, instance: Option<&Value>) -> bool {
    let told = text(node, "/status/nodeInfo/systemUUID");
    let Some(instance) = instance else { return told.is_empty() };
    let known = text(instance, "/spec/domain/firmware/uuid");
    (told.is_empty() || known.is_empty() || told.eq_ignore_ascii_case(known)) && is_reached(node, instance)
}

/// Where network plugins write the address of their tunnels (harvester issues 8072 and 9767).
pub(crate) const TUNNELS: [&str; 3] =
    ["flannel.alpha.coreos.com/public-ip", "projectcalico.org/IPv4Address", "projectcalico.org/IPv6Address"];

/// Whether the instance has an address that the Node says of itself, or either says none. KubeVirt makes the UUID of the machine's
/// name, so a machine of that name in another namespace has it too. The addresses in the Node's status say nothing: a cloud
/// controller manager takes them from the instance.
fn is_reached(node: &Value, instance: &Value) -> bool {
    let keys = TUNNELS.into_iter().chain([annotations::PROVIDED_NODE_IP]);
    let told = keys.filter_map(|key| annotation(node, key)).flat_map(|told| told.split(','));
    // Calico writes the length of the prefix too
    let told: Vec<IpAddr> = told.filter_map(|it| it.split('/').next()?.trim().parse().ok()).collect();
    let interfaces = members(&instance["status"]["interfaces"]).iter();
    let known = interfaces.flat_map(|interface| members(&interface["ipAddresses"]));
    let known: Vec<IpAddr> = known.filter_map(|it| it.as_str()?.parse().ok()).collect();
    told.is_empty() || known.is_empty() || told.iter().any(|address| known.contains(address))
}

// ---- Services

/// How a Service of the guest cluster uses a LoadBalancer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Use<'a> {
    /// The object carries its UID.
    Uid,
    /// The object carries its name.
    Name(&'a Value),
    /// It shows an address of the object, or asks for it.
    Address(&'a Value),
}

/// The Service that a LoadBalancer was made for, as its labels say: `namespace/name`.
pub(crate) fn service_of(object: &Value) -> String {
    let named = [labels::SERVICE_NAMESPACE, labels::SERVICE_NAME].map(|key| label(object, key));
    named.map(Option::unwrap_or_default).join("/")
}

/// The addresses that a LoadBalancer has.
pub(crate) fn addresses(object: &Value) -> impl Iterator<Item = IpAddr> {
    let fields = ["/address", "/allocatedAddress/ip", "/allocatedAddress/ipv6IP"];
    let addresses = fields.into_iter().map(move |field| text(&object["status"], field));
    addresses.filter(|text| *text != names::DHCP_ADDRESS).filter_map(|text| text.parse().ok())
}

/// The addresses that a Service shows.
pub(crate) fn shown(service: &Value) -> impl Iterator<Item = IpAddr> {
    let ingress = members(&service["status"]["loadBalancer"]["ingress"]);
    ingress.iter().filter_map(|ingress| ingress["ip"].as_str()?.parse().ok())
}

/// Which Service uses a LoadBalancer; the surest sign counts.
pub(crate) fn used_by<'a>(object: &Value, services: &'a [Value]) -> Option<Use<'a>> {
    let of = annotation(object, annotations::SERVICE_UID);
    if of.is_some_and(|of| services.iter().any(|service| uid(service) == of)) {
        return Some(Use::Uid);
    }
    let named = service_of(object);
    if let Some(service) = services.iter().find(|service| key(service) == named) {
        return Some(Use::Name(service));
    }
    shows(object, services).map(Use::Address)
}

/// A Service that shows an address of the LoadBalancer, or asks for it.
pub(crate) fn shows<'a>(object: &Value, services: &'a [Value]) -> Option<&'a Value> {
    let addresses: Vec<_> = addresses(object).collect();
    let asked = |service: &Value| {
        let asked = annotation(service, annotations::KUBE_VIP_LOADBALANCER_IPS).unwrap_or_default();
        asked.split(',').filter_map(|text| text.trim().parse::<IpAddr>().ok()).collect::<Vec<_>>()
    };
    services.iter().find(|service| shown(service).chain(asked(service)).any(|it| addresses.contains(&it)))
}

#[cfg(test)]
#[path = "whose/tests.rs"]
mod tests;
