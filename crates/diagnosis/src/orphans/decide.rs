//! Which objects nobody needs: a pure function of the [`Facts`].

use std::collections::{BTreeMap, BTreeSet};

use harvester_api::{IPPool, annotations, finalizers, labels, names};
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::{Deletion, Kept, Kind, Orphan, Report, facts::Facts, volumes};
use crate::{
    doctor::{
        facts::{Cluster, Failed, Trouble},
        read,
    },
    explain::cut,
};

/// A deletion that waits for longer is stuck.
const STUCK: SignedDuration = SignedDuration::from_mins(10);

/// Decides what is left behind.
pub fn decide(facts: &Facts) -> Report {
    let mut report = Report { not_read: not_read(facts), ..Report::default() };
    let seen = Seen::of(facts);
    seen.balancers(&mut report);
    seen.records(&mut report);
    volumes::decide(&seen, &mut report);
    seen.finalizers(&mut report);
    report
}

/// A list that is not there has nothing in it; one that cannot be read may have anything.
pub(super) fn items<'a>(cluster: &'a Cluster, path: &str) -> Result<&'a [Value], String> {
    match cluster.answers.get(path) {
        Some(Ok(list)) => {
            list["items"].as_array().map(Vec::as_slice).ok_or_else(|| format!("{path} is no list"))
        }
        Some(Err(Failed { trouble: Trouble::NotFound, .. })) => Ok(&[]),
        Some(Err(failed)) => Err(cut(&format!("GET {path} failed: {}", failed.why))),
        None => Err(format!("GET {path} was not sent")),
    }
}

fn not_read(facts: &Facts) -> Vec<String> {
    let of = |name: &'static str, cluster: &Cluster| -> Vec<String> {
        let unread = cluster.answers.keys().filter_map(|path| items(cluster, path).err());
        unread.map(|why| format!("{name}: {why}")).collect()
    };
    [of("guest", &facts.guest), of("Harvester", &facts.harvester)].concat()
}

pub(super) fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

pub(super) fn name(object: &Value) -> &str {
    text(object, "/metadata/name")
}

fn annotation<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    object["metadata"]["annotations"][key].as_str().filter(|text| !text.is_empty())
}

pub(super) fn label<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    object["metadata"]["labels"][key].as_str().filter(|text| !text.is_empty())
}

fn time(object: &Value, pointer: &str) -> Option<Timestamp> {
    text(object, pointer).parse().ok()
}

/// Whether so much time has passed since; a time that cannot be read is now.
pub(super) fn is_past(object: &Value, pointer: &str, long: SignedDuration, now: Timestamp) -> bool {
    time(object, pointer).is_some_and(|since| now.duration_since(since) >= long)
}

pub(super) fn is_deleted(object: &Value) -> bool {
    !object["metadata"]["deletionTimestamp"].is_null()
}

/// Whose an object is.
pub(super) enum Owner<'a> {
    /// This guest cluster's, which is proved.
    Ours,
    /// Another cluster's, of this name as far as it says.
    Other(Option<&'a str>),
}

/// What was read, as questions ask for it.
pub(super) struct Seen<'a> {
    pub(super) facts: &'a Facts,
    /// UID of the guest's Service `default/kubernetes`.
    uid: Option<&'a str>,
    /// The label of the guest cluster's machines, where it proves something.
    pub(super) cluster: Option<&'a str>,
    machines: Result<&'a [Value], String>,
    /// UIDs of VirtualMachines that are Nodes of the guest cluster.
    ours: BTreeSet<&'a str>,
    services: Result<&'a [Value], String>,
}

impl<'a> Seen<'a> {
    fn of(facts: &'a Facts) -> Self {
        let services = items(&facts.guest, read::SERVICES);
        let is_kubernetes = |service: &&Value| {
            (text(service, "/metadata/namespace"), name(service)) == ("default", "kubernetes")
        };
        let kubernetes = services.as_ref().ok().and_then(|services| services.iter().find(is_kubernetes));
        let uid = kubernetes.map(|service| text(service, "/metadata/uid")).filter(|uid| !uid.is_empty());
        let nodes = items(&facts.guest, read::NODES).unwrap_or_default();
        let ids = nodes.iter().filter_map(|node| {
            text(node, "/spec/providerID")
                .strip_prefix(names::PROVIDER_ID_PREFIX)
                .filter(|uid| !uid.is_empty())
        });
        let ids: BTreeSet<_> = ids.collect();
        let machines = items(&facts.harvester, &read::machines(&facts.namespace));
        let all: &'a [Value] = machines.as_ref().copied().unwrap_or_default();
        let uids = all.iter().map(|machine| text(machine, "/metadata/uid"));
        let ours: BTreeSet<_> = uids.filter(|uid| ids.contains(uid)).collect();
        let is_ours = |machine: &Value| ours.contains(text(machine, "/metadata/uid"));
        let labelled: BTreeSet<_> = all
            .iter()
            .filter(|machine| is_ours(machine))
            .filter_map(|machine| label(machine, labels::GUEST_CLUSTER))
            .collect();
        // one name, and on nobody else: two clusters of one name may share the namespace
        let cluster = match labelled.into_iter().collect::<Vec<_>>()[..] {
            [one] if one != names::DEFAULT_CLUSTER_NAME => Some(one),
            _ => None,
        };
        let cluster = cluster.filter(|cluster| {
            let has_name = |machine: &&Value| label(machine, labels::GUEST_CLUSTER) == Some(*cluster);
            all.iter().filter(has_name).all(is_ours)
        });
        Self { facts, uid, cluster, machines, ours, services }
    }

    /// By the annotation, else by the label.
    fn owner(&self, object: &'a Value, cluster: Option<&'a str>) -> Owner<'a> {
        match annotation(object, annotations::CLUSTER_UID) {
            Some(uid) if self.uid == Some(uid) => Owner::Ours,
            None if cluster.is_some() && cluster == self.cluster => Owner::Ours,
            _ => Owner::Other(cluster),
        }
    }

    /// Why a cluster of this name may be alive.
    pub(super) fn may_live(&self, cluster: Option<&str>) -> Option<String> {
        // without its guest cluster no machine is known to be of another one
        let guest_is_read = self.services.is_ok() && items(&self.facts.guest, read::NODES).is_ok();
        let named = cluster.filter(|name| *name != names::DEFAULT_CLUSTER_NAME && guest_is_read);
        self.other_machine(|of| named.is_none() || of.is_none() || of == named)
    }

    /// A sentence about a machine with such a label that is no Node of the guest cluster, or about the list that is missing.
    fn other_machine(&self, is_meant: impl Fn(Option<&str>) -> bool) -> Option<String> {
        let namespace = &self.facts.namespace;
        let machines = match &self.machines {
            Ok(machines) => machines,
            Err(why) => return Some(why.clone()),
        };
        let is_other = |machine: &&Value| {
            let is_ours = self.ours.contains(text(machine, "/metadata/uid"));
            !is_ours && is_meant(label(machine, labels::GUEST_CLUSTER))
        };
        let machine = machines.iter().find(is_other)?;
        Some(format!("VirtualMachine {namespace}/{} may be a machine of its cluster", cut(name(machine))))
    }

    /// Whether the namespace has no machine at all, so that no cluster can be alive in it.
    pub(super) fn is_deserted(&self) -> bool {
        self.machines.as_ref().is_ok_and(|machines| machines.is_empty())
    }

    pub(super) fn of_harvester(&self, path: &str) -> Result<&'a [Value], String> {
        items(&self.facts.harvester, path)
    }

    /// A Service of the guest cluster that shows one of these addresses, or asks for it.
    fn shows(services: &[Value], addresses: &[&str]) -> Option<String> {
        let shown = |service: &&Value| {
            let entries = service["status"]["loadBalancer"]["ingress"].as_array().map(Vec::as_slice);
            let of_status = entries.unwrap_or_default().iter().map(|entry| text(entry, "/ip"));
            let asked = annotation(service, annotations::KUBE_VIP_LOADBALANCER_IPS).unwrap_or_default();
            of_status.chain(asked.split(',').map(str::trim)).any(|shown| addresses.contains(&shown))
        };
        services.iter().find(shown).map(key)
    }

    fn balancers(&self, report: &mut Report) {
        let path = read::balancers(&self.facts.namespace);
        for object in self.of_harvester(&path).unwrap_or_default() {
            if text(object, "/spec/workloadType") != "cluster" {
                continue;
            }
            if is_deleted(object) {
                self.stuck(object, Kind::LoadBalancer, finalizers::LOAD_BALANCER, report);
                continue;
            }
            let cluster = label(object, labels::CLUSTER);
            let orphan = |delete, sentence: String| Orphan {
                kind: Kind::LoadBalancer,
                namespace: Some(self.facts.namespace.clone()),
                name: name(object).to_owned(),
                of: cut(cluster.unwrap_or("-")),
                delete,
                sentence,
                next: None,
                object: object.clone(),
            };
            match self.balancer(object, cluster) {
                Balancer::Used => {}
                Balancer::Kept(why) => {
                    report.kept.push(Kept { kind: Kind::LoadBalancer, name: name(object).to_owned(), why });
                }
                Balancer::Left(delete, sentence) => report.orphans.push(orphan(delete, sentence)),
            }
        }
    }

    fn balancer(&self, object: &'a Value, cluster: Option<&'a str>) -> Balancer {
        let owner = self.owner(object, cluster);
        let namespace = label(object, labels::SERVICE_NAMESPACE).unwrap_or_default();
        let service = label(object, labels::SERVICE_NAME).unwrap_or_default();
        let (wanted, uid) = (format!("{namespace}/{service}"), annotation(object, annotations::SERVICE_UID));
        let services = match &self.services {
            Ok(services) => *services,
            // a cluster that is gone has no API server
            Err(why) => {
                return if self.is_deserted() {
                    Balancer::Left(Deletion::Typed, self.no_machine())
                } else {
                    Balancer::Kept(why.clone())
                };
            }
        };
        if uid.is_some_and(|uid| services.iter().any(|live| text(live, "/metadata/uid") == uid)) {
            return Balancer::Used;
        }
        let status = &object["status"];
        let fields = ["/address", "/allocatedAddress/ip", "/allocatedAddress/ipv6IP"];
        let addresses = fields.map(|field| text(status, field));
        let addresses: Vec<_> =
            addresses.into_iter().filter(|text| !["", names::DHCP_ADDRESS].contains(text)).collect();
        let shown = Self::shows(services, &addresses);
        if let Some(live) = services.iter().find(|live| key(live) == wanted) {
            return match (self.instead(object, live), shown) {
                (Some(other), None) => Balancer::Left(
                    Deletion::Typed,
                    format!(
                        "Service {} has LoadBalancer {other}, and no Service shows its address",
                        cut(&wanted)
                    ),
                ),
                _ => Balancer::Used,
            };
        }
        if let Some(shows) = shown {
            return Balancer::Kept(format!("Service {} shows its address", cut(&shows)));
        }
        match owner {
            Owner::Ours if namespace.is_empty() || service.is_empty() => {
                Balancer::Kept("it names no Service".to_owned())
            }
            // a cluster that was restored beside its original has the same UID
            Owner::Ours => match self.other_machine(|of| of.is_some() && of == cluster) {
                Some(why) => Balancer::Kept(why),
                None => Balancer::Left(Deletion::Asked, format!("Service {} is gone", cut(&wanted))),
            },
            Owner::Other(cluster) => match self.may_live(cluster) {
                Some(why) => Balancer::Kept(why),
                None => Balancer::Left(Deletion::Typed, self.no_machine()),
            },
        }
    }

    pub(super) fn no_machine(&self) -> String {
        format!("its cluster has no VirtualMachine in namespace {}", self.facts.namespace)
    }

    /// Another object that says to be this Service's: the Service was made again (harvester#11345), or two cloud
    /// providers served it.
    fn instead(&self, object: &Value, live: &Value) -> Option<&'a str> {
        let uid = text(live, "/metadata/uid");
        let path = read::balancers(&self.facts.namespace);
        let of_service = |other: &&Value| {
            annotation(other, annotations::SERVICE_UID) == Some(uid)
                && self.uid.is_some()
                && annotation(other, annotations::CLUSTER_UID) == self.uid
                && !is_deleted(other)
                && name(other) != name(object)
        };
        self.of_harvester(&path).ok()?.iter().find(of_service).map(name)
    }

    fn records(&self, report: &mut Report) {
        let namespace = &self.facts.namespace;
        let Ok(balancers) = self.of_harvester(&read::balancers(namespace)) else { return };
        let instances = self.of_harvester(&read::instances(namespace));
        let (Ok(machines), Ok(instances)) = (self.machines.as_ref().copied(), instances) else { return };
        let holders: BTreeSet<_> = [balancers, machines, instances].into_iter().flatten().map(name).collect();
        for object in self.of_harvester(read::POOLS).unwrap_or_default() {
            let Ok(pool) = serde_json::from_value::<IPPool>(object.clone()) else { continue };
            let records: BTreeMap<_, _> = pool.status.iter().flat_map(|status| &status.allocated).collect();
            for (address, holder) in records {
                let held_by = holder.strip_prefix(&format!("{namespace}/"));
                let Some(gone) = held_by.filter(|held_by| !holders.contains(held_by)) else { continue };
                let pool_name = name(object);
                // a record of another program is that program's
                let foreign =
                    address.parse().ok().and_then(|address| ip_pools::managers::foreign(&pool, address));
                if let Some(program) = foreign {
                    let (kind, name) = (Kind::PoolRecord, format!("{pool_name} {}", cut(address)));
                    let why =
                        format!("{} wrote it, and knows whether {} is gone", cut(&program), cut(holder));
                    report.kept.push(Kept { kind, name, why });
                    continue;
                }
                let release = annotations::MANUALLY_RELEASE_IP;
                report.orphans.push(Orphan {
                    kind: Kind::PoolRecord,
                    namespace: None,
                    name: format!("{pool_name} {}", cut(address)),
                    of: "-".to_owned(),
                    delete: Deletion::ByHand,
                    sentence: format!("it is recorded for LoadBalancer {namespace}/{}, which is gone", cut(gone)),
                    next: Some(format!(
                        "kubectl annotate ippools.loadbalancer.harvesterhci.io {pool_name} '{release}={}: {}'",
                        cut(address),
                        cut(holder)
                    )),
                    object: object.clone(),
                });
            }
        }
    }

    /// VirtualMachines that a finalizer of the former load balancer keeps.
    fn finalizers(&self, report: &mut Report) {
        let namespace = &self.facts.namespace;
        let kinds = [
            (Kind::VirtualMachine, read::machines(namespace), finalizers::LEGACY_VM),
            (Kind::VirtualMachineInstance, read::instances(namespace), finalizers::LEGACY_VMI),
        ];
        for (kind, path, finalizer) in kinds {
            for object in self.of_harvester(&path).unwrap_or_default() {
                self.stuck(object, kind, finalizer, report);
            }
        }
    }

    fn stuck(&self, object: &Value, kind: Kind, finalizer: &str, report: &mut Report) {
        let since = "/metadata/deletionTimestamp";
        let finalizers = object["metadata"]["finalizers"].as_array();
        let has = finalizers.is_some_and(|all| all.iter().any(|it| it == finalizer));
        if !has || !is_past(object, since, STUCK, self.facts.now) {
            return;
        }
        let cluster = label(object, labels::CLUSTER).or_else(|| label(object, labels::GUEST_CLUSTER));
        report.orphans.push(Orphan {
            kind,
            namespace: Some(self.facts.namespace.clone()),
            name: name(object).to_owned(),
            of: cut(cluster.unwrap_or("-")),
            delete: Deletion::ByHand,
            sentence: format!(
                "it is deleted since {}, and finalizer {finalizer} keeps it",
                text(object, since)
            ),
            next: Some(format!(
                "start the load balancer in Harvester, which takes the finalizer off {} {}/{}",
                kind.word(),
                self.facts.namespace,
                name(object)
            )),
            object: object.clone(),
        });
    }
}

enum Balancer {
    Used,
    Kept(String),
    Left(Deletion, String),
}

/// `namespace/name`.
pub(super) fn key(object: &Value) -> String {
    format!("{}/{}", text(object, "/metadata/namespace"), name(object))
}
