//! Which objects nobody needs: a pure function of the [`Facts`].

use harvester_api::{annotations, finalizers, labels};
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::{Deletion, Kept, Kind, Orphan, Report, facts::Facts, records, volumes};
use crate::{
    doctor::read,
    json::{annotation, is_deleted, key, label, members, name, text, uid},
    screen::cut,
    whose::{Machines, Use, Whose, cluster_of, is_unnamed, service_of, shows, used_by},
};

/// A deletion that waits for longer is stuck.
const STUCK: SignedDuration = SignedDuration::from_mins(10);

/// Decides what is left behind.
pub fn decide(facts: &Facts) -> Report {
    let seen = Seen::of(facts);
    let elsewhere = seen.elsewhere();
    let mut report = Report {
        namespace: facts.namespace.clone(),
        is_incomplete: facts.is_incomplete() || elsewhere.is_some(),
        not_read: facts.not_read().into_iter().chain(elsewhere).collect(),
        ..Report::default()
    };
    seen.balancers(&mut report);
    records::decide(&seen, &mut report);
    volumes::decide(&seen, &mut report);
    seen.finalizers(&mut report);
    report
}

fn time(object: &Value, pointer: &str) -> Option<Timestamp> {
    text(object, pointer).parse().ok()
}

/// Whether so much time has passed since; a time that cannot be read is now.
pub(super) fn is_past(object: &Value, pointer: &str, long: SignedDuration, now: Timestamp) -> bool {
    time(object, pointer).is_some_and(|since| now.duration_since(since) >= long)
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
    pub(super) machines: Machines<'a>,
    /// Why they are not known.
    machines_unread: Option<String>,
    services: Result<&'a [Value], String>,
    /// Why the guest cluster, whose kubeconfig is there, does not say which machines and Services it has.
    unread: Option<String>,
}

impl<'a> Seen<'a> {
    fn of(facts: &'a Facts) -> Self {
        let services = facts.of_guest(read::SERVICES);
        let nodes = facts.of_guest(read::NODES);
        let unread =
            services.as_ref().err().or(nodes.as_ref().err()).filter(|_| facts.guest.is_ok()).cloned();
        let machines = facts.of_harvester(&read::machines(&facts.namespace));
        // without them a machine is no Node's whose kubelet tells a UUID
        let instances = facts.of_harvester(&read::instances(&facts.namespace)).unwrap_or_default();
        let machines_unread = machines.as_ref().err().cloned();
        let machines = Machines::of(
            services.as_ref().copied().unwrap_or_default(),
            nodes.unwrap_or_default(),
            machines.unwrap_or_default(),
            instances,
        );
        Self { facts, machines, machines_unread, services, unread }
    }

    /// Whether a cluster of this name may be alive. Machines of the guest cluster are not its.
    pub(super) fn life(&self, cluster: Option<&str>) -> Life {
        if let Some(why) = self.unread.as_ref().filter(|_| !self.is_deserted()) {
            return Life::Likely(why.clone());
        }
        if let Some(why) = &self.machines_unread {
            return Life::Likely(why.clone());
        }
        let is_its = |of: Option<&str>| of.is_some() && (is_unnamed(cluster) || of == cluster);
        if let Some(machine) = self.machines.other(is_its) {
            return Life::Likely(self.may_be_its(machine));
        }
        if let Some(machine) = self.machines.other(|of| of.is_none()) {
            return Life::Unclear(self.may_be_its(machine));
        }
        // users choose both names, and a cluster may have taken over what another one left
        if let Some(machine) = self.machines.other(|_| true) {
            let (namespace, of) = (&self.facts.namespace, cluster_of(machine).unwrap_or_default());
            let machine = cut(name(machine));
            return Life::Unclear(format!(
                "VirtualMachine {namespace}/{machine} is of cluster {}, which may use it",
                cut(of)
            ));
        }
        self.elsewhere().map_or(Life::Gone, Life::Unclear)
    }

    /// A sentence about a machine that is no ready Node of the guest cluster.
    pub(super) fn may_be_its(&self, machine: &Value) -> String {
        let namespace = &self.facts.namespace;
        format!("VirtualMachine {namespace}/{} may be a machine of its cluster", cut(name(machine)))
    }

    /// Why this may be the wrong namespace.
    fn elsewhere(&self) -> Option<String> {
        let is_known = self.machines_unread.is_none() && self.machines.are_elsewhere;
        is_known.then(|| {
            let namespace = &self.facts.namespace;
            format!("no Node's VirtualMachine is in namespace {namespace}: give the right one by --harvester-namespace")
        })
    }

    /// Whether the namespace has no machine at all, so that no cluster can be alive in it.
    pub(super) fn is_deserted(&self) -> bool {
        self.machines_unread.is_none() && self.machines.is_empty()
    }

    pub(super) fn of_harvester(&self, path: &str) -> Result<&'a [Value], String> {
        self.facts.of_harvester(path)
    }

    fn balancers(&self, report: &mut Report) {
        let path = read::balancers(&self.facts.namespace);
        for object in self.of_harvester(&path).unwrap_or_default() {
            // one of type vm is a person's, unless a cloud controller manager made it
            if text(object, "/spec/workloadType") != "cluster"
                && annotation(object, annotations::CLUSTER_UID).is_none()
            {
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
                Fate::Used => {}
                Fate::Kept(why) => {
                    report.kept.push(Kept { kind: Kind::LoadBalancer, name: name(object).to_owned(), why });
                }
                Fate::Left(delete, sentence, doubt) => {
                    report.orphans.push(orphan(delete, sentence, doubt));
                }
            }
        }
    }

    fn balancer(&self, object: &Value, cluster: Option<&str>) -> Fate {
        let services = match &self.services {
            Ok(services) => *services,
            // a cluster that is gone has no API server
            Err(_) => return self.unproved(cluster),
        };
        let service = service_of(object);
        match used_by(object, services) {
            Some(Use::Uid) => return Fate::Used,
            Some(Use::Name(live)) => {
                return match (self.instead(object, live), shows(object, services)) {
                    (Some(other), None) => Fate::Left(
                        Deletion::Typed,
                        format!(
                            "Service {} has LoadBalancer {other}, and no Service shows its address",
                            cut(&service)
                        ),
                        None,
                    ),
                    _ => Fate::Used,
                };
            }
            Some(Use::Address(live)) => {
                return Fate::Kept(format!("Service {} shows its address", cut(&key(live))));
            }
            None => {}
        }
        let whose = self.machines.whose(object);
        if self.unread.is_some() || whose == Whose::Unproved {
            return self.unproved(cluster);
        }
        if service.starts_with('/') || service.ends_with('/') {
            return Fate::Kept("it names no Service".to_owned());
        }
        if let Some(why) = &self.machines_unread {
            return Fate::Kept(why.clone());
        }
        let doubt = match whose {
            Whose::Another(machine) => return Fate::Kept(self.may_be_its(machine)),
            Whose::Doubtful(machine) => Some(self.may_be_its(machine)),
            Whose::Ours | Whose::Unproved => self.elsewhere(),
        };
        let delete = if doubt.is_some() { Deletion::Typed } else { Deletion::Asked };
        Fate::Left(delete, format!("Service {} is gone", cut(&service)), doubt)
    }

    fn unproved(&self, cluster: Option<&str>) -> Fate {
        let namespace = &self.facts.namespace;
        match self.life(cluster) {
            Life::Likely(why) => Fate::Kept(why),
            Life::Unclear(doubt) => Fate::Left(
                Deletion::Typed,
                format!("no VirtualMachine in namespace {namespace} has the name of its cluster"),
                Some(doubt),
            ),
            Life::Gone => Fate::Left(
                Deletion::Typed,
                format!("its cluster has no VirtualMachine in namespace {namespace}"),
                None,
            ),
        }
    }

    /// Another object that says to be this Service's: the Service was made again (harvester#11345), or two cloud
    /// providers served it.
    fn instead(&self, object: &Value, live: &Value) -> Option<&'a str> {
        let path = read::balancers(&self.facts.namespace);
        let of_service = |other: &&Value| {
            annotation(other, annotations::SERVICE_UID) == Some(uid(live))
                && self.machines.has_our_uid(other)
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
        let has = members(&object["metadata"]["finalizers"]).iter().any(|it| it == finalizer);
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

/// What becomes of a LoadBalancer.
enum Fate {
    Used,
    Kept(String),
    /// How to delete it, why, and what speaks against it.
    Left(Deletion, String, Option<String>),
}
