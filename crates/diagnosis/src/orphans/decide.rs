//! Which objects nobody needs: a pure function of the [`Facts`].

use std::collections::BTreeSet;

use harvester_api::{annotations, finalizers, labels, names};
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::{Deletion, Kept, Kind, Orphan, Report, facts::Facts, records, volumes};
use crate::{doctor::read, explain::cut};

/// A deletion that waits for longer is stuck.
const STUCK: SignedDuration = SignedDuration::from_mins(10);

/// Decides what is left behind.
pub fn decide(facts: &Facts) -> Report {
    let mut report =
        Report { not_read: facts.not_read(), is_incomplete: facts.is_incomplete(), ..Report::default() };
    let seen = Seen::of(facts);
    seen.balancers(&mut report);
    records::decide(&seen, &mut report);
    volumes::decide(&seen, &mut report);
    seen.finalizers(&mut report);
    report
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

/// Whether a cluster may be alive.
pub(super) enum Life {
    /// Nothing of it is in the namespace.
    Gone,
    /// Nothing says that it is alive, and a machine may be one of its.
    Unclear(String),
    /// By its name it is alive, or what would say so cannot be read.
    Likely(String),
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
    /// Why the guest cluster, whose kubeconfig is there, does not say which machines and Services it has.
    unread: Option<String>,
}

impl<'a> Seen<'a> {
    fn of(facts: &'a Facts) -> Self {
        let services = facts.of_guest(read::SERVICES);
        let is_kubernetes = |service: &&Value| {
            (text(service, "/metadata/namespace"), name(service)) == ("default", "kubernetes")
        };
        let kubernetes = services.as_ref().ok().and_then(|services| services.iter().find(is_kubernetes));
        let uid = kubernetes.map(|service| text(service, "/metadata/uid")).filter(|uid| !uid.is_empty());
        let nodes = facts.of_guest(read::NODES);
        let unread =
            services.as_ref().err().or(nodes.as_ref().err()).filter(|_| facts.guest.is_ok()).cloned();
        let ids = nodes.unwrap_or_default().iter().filter_map(|node| {
            text(node, "/spec/providerID")
                .strip_prefix(names::PROVIDER_ID_PREFIX)
                .filter(|uid| !uid.is_empty())
        });
        let ids: BTreeSet<_> = ids.collect();
        let machines = facts.of_harvester(&read::machines(&facts.namespace));
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
        Self { facts, uid, cluster, machines, ours, services, unread }
    }

    /// Whether this guest cluster made the object: by the annotation, else by the label.
    fn is_proved(&self, object: &Value, cluster: Option<&str>) -> bool {
        match annotation(object, annotations::CLUSTER_UID) {
            Some(uid) => self.uid == Some(uid),
            None => cluster.is_some() && cluster == self.cluster,
        }
    }

    /// Whether a cluster of this name may be alive. Machines of the guest cluster are not its.
    pub(super) fn life(&self, cluster: Option<&str>) -> Life {
        if let Some(why) = self.unread.as_ref().filter(|_| !self.is_deserted()) {
            return Life::Likely(why.clone());
        }
        let is_its = |of: Option<&str>| of.is_some() && (is_unnamed(cluster) || of == cluster);
        if let Some(why) = self.other_machine(is_its) {
            return Life::Likely(why);
        }
        // without a guest cluster the names of machines alone tell whose they are, and users choose both names
        let is_unclear = |of: Option<&str>| of.is_none() || self.facts.guest.is_err();
        self.other_machine(is_unclear).map_or(Life::Gone, Life::Unclear)
    }

    /// Why an object with the proof of this cluster may be another one's all the same: that one has this name or was
    /// restored from the same backup, and nothing says which machines are its.
    pub(super) fn look_alike(&self, cluster: Option<&str>) -> Option<String> {
        self.other_machine(|of| of.is_none() || is_unnamed(cluster))
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
        self.facts.of_harvester(path)
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
            let orphan = |delete, sentence: String, doubt| Orphan {
                kind: Kind::LoadBalancer,
                namespace: Some(self.facts.namespace.clone()),
                name: name(object).to_owned(),
                of: cut(cluster.unwrap_or("-")),
                delete,
                sentence,
                doubt,
                next: None,
                object: object.clone(),
            };
            match self.balancer(object, cluster) {
                Balancer::Used => {}
                Balancer::Kept(why) => {
                    report.kept.push(Kept { kind: Kind::LoadBalancer, name: name(object).to_owned(), why });
                }
                Balancer::Left(delete, sentence, doubt) => {
                    report.orphans.push(orphan(delete, sentence, doubt));
                }
            }
        }
    }

    fn balancer(&self, object: &Value, cluster: Option<&str>) -> Balancer {
        let namespace = label(object, labels::SERVICE_NAMESPACE).unwrap_or_default();
        let service = label(object, labels::SERVICE_NAME).unwrap_or_default();
        let (wanted, uid) = (format!("{namespace}/{service}"), annotation(object, annotations::SERVICE_UID));
        let services = match &self.services {
            Ok(services) => *services,
            // a cluster that is gone has no API server
            Err(_) => return self.unproved(cluster),
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
                    None,
                ),
                _ => Balancer::Used,
            };
        }
        if let Some(shows) = shown {
            return Balancer::Kept(format!("Service {} shows its address", cut(&shows)));
        }
        if self.unread.is_some() || !self.is_proved(object, cluster) {
            return self.unproved(cluster);
        }
        if namespace.is_empty() || service.is_empty() {
            return Balancer::Kept("it names no Service".to_owned());
        }
        // a cluster that was restored beside its original has the same UID
        if let Some(why) = self.other_machine(|of| of.is_some() && of == cluster) {
            return Balancer::Kept(why);
        }
        let doubt = self.look_alike(cluster);
        let delete = if doubt.is_some() { Deletion::Typed } else { Deletion::Asked };
        Balancer::Left(delete, format!("Service {} is gone", cut(&wanted)), doubt)
    }

    fn unproved(&self, cluster: Option<&str>) -> Balancer {
        let namespace = &self.facts.namespace;
        match self.life(cluster) {
            Life::Likely(why) => Balancer::Kept(why),
            Life::Unclear(doubt) => Balancer::Left(
                Deletion::Typed,
                format!("no VirtualMachine in namespace {namespace} has the name of its cluster"),
                Some(doubt),
            ),
            Life::Gone => Balancer::Left(
                Deletion::Typed,
                format!("its cluster has no VirtualMachine in namespace {namespace}"),
                None,
            ),
        }
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
            doubt: None,
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
    /// How to delete it, why, and what speaks against it.
    Left(Deletion, String, Option<String>),
}

/// Whether nobody chose the name, so that it says nothing.
fn is_unnamed(cluster: Option<&str>) -> bool {
    cluster.is_none_or(|name| name == names::DEFAULT_CLUSTER_NAME)
}

/// `namespace/name`.
pub(super) fn key(object: &Value) -> String {
    format!("{}/{}", text(object, "/metadata/namespace"), name(object))
}
