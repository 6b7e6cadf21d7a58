//! The report from what was read: a pure function.

use std::{collections::BTreeMap, time::Duration};

use cloud_controller_manager::{
    datapath::{AllowedDatapaths, Datapath, Policy, Rule},
    load_balancers::dry_run::{Object as Seen, Sharing as Shared},
};
use cloud_provider::is_eligible;
use controller_kit::{EventType, RawObject};
use guest_vms::{FoundBy, Lookup};
use harvester_api::{
    ConditionStatus, Ipam, LoadBalancer, annotations, condition, finalizers,
    names::{DHCP_ADDRESS, KUBE_SYSTEM, LOAD_BALANCER_CLASS},
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event as KubeEvent, Service};
use kube::ResourceExt;
use load_balancer::dry_run::{Outcome, Verdict};
use program::text::cut_clean;

use super::{
    headline::{self, headline},
    read::{Assumed, EVERYTHING, HARVESTER, LEASE, Read},
    report::{
        Address, Allocated, Backend, Class, Controller, DataPath, Event, Finding, Node, NotRead, Object,
        Pool, Ready, Report, Sharing, State, Traffic,
    },
};
use crate::screen::cut;

/// Longest value of an annotation or field that the report repeats.
const VALUE_MAX: usize = 200;
/// The flags that are not the cloud controller manager's.
pub(crate) const OF_LOAD_BALANCER: [&str; 3] =
    ["fall-over-when-full", "strict-global-network", "enforce-named-pool-scope"];
/// So many Events are shown, the newest ones.
const EVENTS: usize = 10;

/// How long the Service has been as it is, as far as the objects tell: since the younger of Service and object was made,
/// or the object's condition turned.
pub(crate) fn waited(service: &Service, object: Option<&LoadBalancer>, now: Timestamp) -> Duration {
    let created = service.creation_timestamp().map(|time| time.0);
    let made = object.and_then(|object| object.creation_timestamp()).map(|time| time.0);
    let turned = object.and_then(|object| ready_of(object)?.last_transition_time.parse().ok());
    let since = [created, made, turned].into_iter().flatten().max();
    since.map_or(Duration::ZERO, |since| age(since, now))
}

fn age(since: Timestamp, now: Timestamp) -> Duration {
    now.duration_since(since).try_into().unwrap_or_default()
}

pub(crate) fn last_seen(event: &KubeEvent) -> Option<Timestamp> {
    let series =
        event.series.as_ref().and_then(|series| series.last_observed_time.as_ref()).map(|time| time.0);
    let last = event.last_timestamp.as_ref().map(|time| time.0);
    let once = event.event_time.as_ref().map(|time| time.0);
    series.or(last).or(once).or_else(|| event.creation_timestamp().map(|time| time.0))
}

fn ready_of(object: &LoadBalancer) -> Option<&harvester_api::Condition> {
    condition::ready(&object.status.as_ref()?.conditions)
}

/// Makes the report.
pub(crate) fn decide(read: &Read) -> Report {
    let Read { service, dry_run, .. } = read;
    let spec = service.spec.as_ref();
    let name = format!("{}/{}", service.namespace().unwrap_or_default(), service.name_any());
    let service_type = spec.and_then(|spec| spec.type_.as_deref()).unwrap_or("ClusterIP");
    let class = spec.and_then(|spec| spec.load_balancer_class.as_deref());
    let shown = shown(service);
    let decision = &dry_run.decision;
    let of_objects =
        |it: &&NotRead| it.cluster == HARVESTER && ["loadbalancers", EVERYTHING].contains(&it.resource);
    let unlisted = read.not_read.iter().find(of_objects);
    let unbacked = unbacked(read);
    let (state, headline) = headline(&headline::Seen {
        service: &name,
        service_type,
        class,
        is_deleted: service.metadata.deletion_timestamp.is_some(),
        shown: &shown,
        dry_run,
        unbacked: unbacked.as_deref(),
        unlisted: unlisted.map(|refused| refused.why.as_str()),
    });
    let controller = controller(read);
    let stalled = controller.runs == Some(false) && !controller.due.is_empty();
    let held = held(read);
    let headline = match &held {
        Some(until) if state == State::Leaving => format!("{headline}; it waits until {until}"),
        _ => headline,
    };
    let headline = if stalled { format!("{headline}; {}", controller.sentence) } else { headline };
    let finding = |event: &controller_kit::PendingEvent| Finding {
        event_type: match event.event_type {
            EventType::Normal => "Normal",
            EventType::Warning => "Warning",
        },
        reason: event.reason,
        message: cut(&event.message),
    };
    Report {
        service: name,
        state,
        headline: cut(&headline),
        class: class_of(service_type, class, decision.wanted),
        sharing: sharing(&dry_run.sharing).filter(|_| decision.wanted),
        data_path: decision.wanted.then(|| data_path(read)),
        object: object(read),
        address: address(read, shown),
        traffic: traffic(read),
        controller,
        waits_until: dry_run.waits_until.as_deref().map(cut).or(held),
        findings: decision.events.iter().map(finding).collect(),
        events: events(read),
        not_read: read.not_read.clone(),
        flags: flags(read),
    }
}

/// Why kube-vip does not announce the Service yet (docs/contract/kube-vip.md#endpoints), if that is so.
fn unbacked(read: &Read) -> Option<String> {
    let waits = read.has_endpoint == Some(false) && matches!(read.dry_run.choice.path, Datapath::Guest);
    let selector = read.service.spec.as_ref().and_then(|spec| spec.selector.as_ref());
    let pairs: Vec<_> = selector.into_iter().flatten().map(|(key, value)| format!("{key}={value}")).collect();
    let nobody = match &pairs[..] {
        [] => "no EndpointSlice of it has a ready address".to_owned(),
        pairs => format!("no Pod is ready behind it (selector {})", cut_clean(&pairs.join(","), VALUE_MAX)),
    };
    waits.then(|| format!("{nobody}, and kube-vip 1.2 and later announces it when one is"))
}

/// What a deleted object waits for.
fn held(read: &Read) -> Option<String> {
    let object = present(read).filter(|object| object.metadata.deletion_timestamp.is_some())?;
    let is_held = object.finalizers().iter().any(|finalizer| finalizer == finalizers::LOAD_BALANCER);
    is_held.then(|| {
        let key = &read.dry_run.key;
        format!(
            "the load balancer in Harvester takes its finalizer off LoadBalancer {key}, which it does within seconds where it runs"
        )
    })
}

/// The addresses in the Service's status.
pub(crate) fn shown(service: &Service) -> Vec<String> {
    let status = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    let entries = status.and_then(|status| status.ingress.as_deref()).unwrap_or_default();
    let text = entries.iter().filter_map(|entry| entry.ip.as_ref().or(entry.hostname.as_ref()));
    text.map(|text| cut_clean(text, VALUE_MAX)).collect()
}

fn class_of(service_type: &str, class: Option<&str>, wanted: bool) -> Class {
    let ours = service_type == "LoadBalancer" && class.is_none_or(|class| class == LOAD_BALANCER_CLASS);
    let of_class =
        class.map_or("no class".to_owned(), |class| format!("class {}", cut_clean(class, VALUE_MAX)));
    let sentence = match (service_type, ours) {
        ("LoadBalancer", true) if wanted => {
            format!("type LoadBalancer with {of_class}: the cloud controller manager serves it")
        }
        ("LoadBalancer", true) => {
            format!("type LoadBalancer with {of_class}: the cloud controller manager removes what it served")
        }
        ("LoadBalancer", false) => format!(
            "type LoadBalancer with {of_class}: the cloud controller manager serves those without class and with class \
             {LOAD_BALANCER_CLASS}; a class cannot be changed, so create the Service anew"
        ),
        (other, _) => format!("type {other}: only type LoadBalancer gets a load balancer"),
    };
    let class = class.map(|class| cut_clean(class, VALUE_MAX));
    Class { service_type: service_type.to_owned(), class, ours, sentence }
}

fn sharing(sharing: &Shared) -> Option<Sharing> {
    let text = |key: &controller_kit::ObjectKey| key.to_string();
    Some(match sharing {
        Shared::Own => return None,
        Shared::With { primary, address } => {
            let address = address.as_ref().map(|address| format!(", {address}")).unwrap_or_default();
            Sharing {
                primary: Some(text(primary)),
                shares: true,
                sentence: format!("secondary: it shares the address of service {primary}{address}"),
            }
        }
        Shared::Waits { asked, why } => Sharing {
            primary: asked.as_ref().map(text),
            shares: false,
            sentence: format!("it waits: {}", cut(why)),
        },
        Shared::Refused { asked, why } => {
            let why = why.as_deref().unwrap_or("the findings say why");
            Sharing {
                primary: asked.as_ref().map(text),
                shares: false,
                sentence: format!("refused: {}", cut(why)),
            }
        }
    })
}

fn data_path(read: &Read) -> DataPath {
    let (choice, key) = (&read.dry_run.choice, annotations::DATA_PATH);
    let policy = policy(read.assumed.rules.policy);
    let other = match choice.path {
        Datapath::Guest => "host",
        Datapath::Host => "guest",
    };
    let (rule, because, change) = match choice.rule {
        Rule::Recorded => {
            let record = match read.dry_run.object {
                Seen::Present { .. } => "the workloadType of its LoadBalancer object",
                _ => "the annotations that the controller left on the Service",
            };
            let because = format!("as recorded in {record}");
            (
                "recorded",
                because,
                format!("the path {other} can be had by creating the Service anew with {key}: {other}"),
            )
        }
        Rule::Class => {
            let because = format!("because of class {LOAD_BALANCER_CLASS}");
            ("class", because, "the path guest needs a new Service without the class".to_owned())
        }
        Rule::Annotation => {
            let because = format!("because of annotation {key}");
            ("annotation", because, format!("the path {other} needs {key}: {other}"))
        }
        Rule::HealthCheckPort => {
            let because =
                format!("because of --data-path={policy} and annotation {}", annotations::HEALTH_CHECK_PORT);
            ("healthCheckPort", because, format!("annotation {key}: guest chooses the other path"))
        }
        Rule::Flag => {
            let because = format!("because of --data-path={policy}");
            ("flag", because, format!("annotation {key}: {other} chooses the other path"))
        }
    };
    DataPath { path: choice.path.word(), rule, because, change }
}

fn object(read: &Read) -> Object {
    let (dry_run, key) = (&read.dry_run, &read.dry_run.key);
    let (state, sentence) = match &dry_run.object {
        Seen::Unlisted => ("unknown", "LoadBalancer objects in Harvester could not be listed".to_owned()),
        Seen::Unreadable(why) => ("unreadable", cut(why)),
        Seen::Absent => {
            let sentence = match dry_run.sharing {
                Shared::With { .. } => {
                    "none: a Service that shares an address has no object of its own".to_owned()
                }
                _ if dry_run.decision.wanted => format!("LoadBalancer {key} in Harvester does not exist"),
                _ => "none".to_owned(),
            };
            ("absent", sentence)
        }
        Seen::Present { object, because } if object.metadata.deletion_timestamp.is_some() => {
            ("deleting", format!("LoadBalancer {key} in Harvester is being deleted; {because}"))
        }
        Seen::Present { object, because } => {
            let (made_for, flag) =
                (object.annotations().get(annotations::LB_CLUSTER), read.assumed.rules.cluster.name());
            let other = made_for.filter(|name| *name != flag).map(|name| cut_clean(name, VALUE_MAX));
            let other =
                other.map(|name| format!("; it names cluster {name:?}, and --cluster-name is {flag:?}"));
            let other = other.unwrap_or_default();
            ("present", format!("LoadBalancer {key} in Harvester: {because}{other}"))
        }
    };
    let ready = present(read).and_then(|object| ready_of(object)).map(|ready| Ready {
        status: match ready.status {
            ConditionStatus::True => "True",
            ConditionStatus::False => "False",
            ConditionStatus::Unknown => "Unknown",
        }
        .to_owned(),
        reason: cut_clean(&ready.reason, VALUE_MAX),
        message: cut(&ready.message),
        since: cut_clean(&ready.last_transition_time, VALUE_MAX),
    });
    let secondaries = dry_run.secondaries.iter().map(ToString::to_string).collect();
    Object { name: key.to_string(), state, sentence, ready, secondaries }
}

fn present(read: &Read) -> Option<&RawObject<LoadBalancer>> {
    match &read.dry_run.object {
        Seen::Present { object, .. } => Some(object),
        _ => None,
    }
}

fn address(read: &Read, shown: Vec<String>) -> Address {
    let object = present(read);
    let mut address = Address { shown, asked: asked(&read.service, object), ..Address::default() };
    let Some(object) = object else {
        address.sentence = match (&read.dry_run.sharing, &read.dry_run.object) {
            (Shared::With { .. }, _) => "that of its primary",
            _ if !read.dry_run.decision.wanted => "none",
            (_, Seen::Absent) => "Harvester allocates one for a LoadBalancer object, and there is none",
            _ => "not known",
        }
        .to_owned();
        return address;
    };
    let ipam = object.spec.ipam();
    address.ipam = Some(if ipam == Ipam::Dhcp { "dhcp" } else { "pool" }.to_owned());
    let has = object.status.as_ref().and_then(|status| status.allocated_address.as_ref());
    let pairs = has.into_iter().flat_map(|has| has.primary().into_iter().chain(has.ipv6()));
    let allocated = pairs.map(|(pool, address)| Allocated {
        address: cut_clean(address, VALUE_MAX),
        pool: cut_clean(pool, VALUE_MAX),
    });
    address.allocated = allocated.collect();
    address.sentence = match (&address.allocated[..], read.pools.as_ref().map(|pools| &pools.outcome)) {
        ([], Some(Outcome::Waits { why, .. })) => format!("none: {why}"),
        ([], Some(Outcome::Gets { pool, address })) => format!(
            "none yet: pool {pool} has {address} to give, and the load balancer in Harvester has not recorded it; is it \
             running?"
        ),
        ([], Some(Outcome::Has { pool, address })) => {
            format!("pool {pool} records {address} for it, and the object's status does not show it yet")
        }
        ([], None) => {
            "none; without the right to list ippools only the object's Ready condition tells why".to_owned()
        }
        (given, _) => {
            let text = |it: &Allocated| match (it.address.as_str(), it.pool.as_str()) {
                (DHCP_ADDRESS, _) => "by DHCP: kube-vip leases it".to_owned(),
                (address, "") => address.to_owned(),
                (address, pool) => format!("{address} of pool {pool}"),
            };
            given.iter().map(text).collect::<Vec<_>>().join(", ")
        }
    };
    if let Some(note) = read.pools.as_ref().and_then(|pools| pools.note.as_ref()) {
        address.sentence = format!("{}; {note}", address.sentence);
    }
    address.sentence = cut(&address.sentence);
    if let Some(pools) = &read.pools {
        address.depends = pools.depends.iter().map(|(flag, other)| under(flag, other)).collect();
        address.requirement = Some(match pools.named.as_str() {
            "" => cut(&pools.requirement.to_string()),
            named => format!("the name {}", cut_clean(named, VALUE_MAX)),
        });
        let row = |row: &load_balancer::dry_run::PoolRow| {
            let (verdict, sentence) = match &row.verdict {
                Verdict::Holds(address) => ("holds", format!("{address} is recorded for it")),
                Verdict::Gives(address) => {
                    let place = row.place.map(|place| format!(" as choice {place}")).unwrap_or_default();
                    ("gives", format!("it matches{place}, and would give {address}"))
                }
                Verdict::Refuses(why) => ("refuses", cut(why)),
                Verdict::Rejected(why) => ("rejected", cut(why)),
                Verdict::NotNamed => ("notNamed", "spec.ipPool names another pool".to_owned()),
            };
            Pool { name: row.name.clone(), verdict, sentence, available: row.available, total: row.total }
        };
        address.pools = Some(pools.pools.iter().map(row).collect());
    }
    address
}

/// The other decision of a load balancer with this flag.
fn under(flag: &str, other: &Outcome) -> String {
    let other = match other {
        Outcome::Has { pool, address } => format!("has {address} of pool {pool}"),
        Outcome::Gets { pool, address } => format!("gets {address} of pool {pool}"),
        Outcome::Waits { why, .. } => format!("waits: {why}"),
    };
    cut(&format!("under a load balancer with --{flag} it {other}"))
}

/// The wishes and demands that stand in the objects, whether or not this version acts on them: the findings tell that.
fn asked(service: &Service, object: Option<&RawObject<LoadBalancer>>) -> Vec<String> {
    let requested = service.spec.as_ref().and_then(|spec| spec.load_balancer_ip.clone());
    let mut asked = vec![("spec.loadBalancerIP".to_owned(), requested.unwrap_or_default())];
    let annotated = |from: &BTreeMap<String, String>, key: &str| {
        (format!("annotation {key}"), from.get(key).cloned().unwrap_or_default())
    };
    for key in [
        annotations::IPAM,
        annotations::SERVICE_IP,
        annotations::SERVICE_IP_POOL,
        annotations::SERVICE_NETWORK,
    ] {
        asked.push(annotated(service.annotations(), key));
    }
    if let Some(object) = object {
        asked.push(("spec.ipPool of the object".to_owned(), object.spec.ip_pool.clone()));
        for key in [annotations::REQUESTED_IP, annotations::REQUESTED_IP_STRICT] {
            let (field, value) = annotated(object.annotations(), key);
            asked.push((format!("{field} of the object"), value));
        }
    }
    let given = asked.into_iter().filter(|(_, value)| !value.is_empty());
    given.map(|(field, value)| format!("{field}: {}", cut_clean(&value, VALUE_MAX))).collect()
}

fn traffic(read: &Read) -> Traffic {
    let text = |key: &str| {
        let value = read.service.annotations().get(key).filter(|text| !text.is_empty());
        value.map(|text| cut_clean(text, VALUE_MAX))
    };
    let status = present(read).and_then(|object| object.status.as_ref());
    if !read.dry_run.decision.wanted {
        return Traffic::default();
    }
    let sentence = match read.dry_run.choice.path {
        Datapath::Guest => {
            let asked = text(annotations::KUBE_VIP_LOADBALANCER_IPS);
            match (asked, text(annotations::KUBE_VIP_VIP_HOST)) {
                (_, Some(node)) => {
                    format!("kube-vip announces the address on node {node} of the guest cluster")
                }
                (Some(asked), None) => {
                    format!(
                        "kube-vip in the guest was asked to announce {asked}, and no node says that it does"
                    )
                }
                (None, None) => "kube-vip in the guest has not been asked to announce an address".to_owned(),
            }
        }
        Datapath::Host => match status.map(|status| status.address.as_str()) {
            Some(address) if !address.is_empty() && address != DHCP_ADDRESS => {
                format!("Harvester announces {} and forwards it to the VMs", cut_clean(address, VALUE_MAX))
            }
            _ if matches!(read.dry_run.object, Seen::Unlisted | Seen::Unreadable(_)) => {
                "Harvester carries it; whether it does now is not known without the object".to_owned()
            }
            _ => "Harvester announces no address for it yet".to_owned(),
        },
    };
    let node = |node: &std::sync::Arc<k8s_openapi::api::core::v1::Node>| {
        let because = match (read.vms.found_by(node), read.vms.find(node)) {
            (_, Lookup::Unknown) => "the VMs could not be listed",
            (Some((_, FoundBy::ProviderId)), _) => "by provider ID",
            (Some((_, FoundBy::Name)), _) => "by name",
            (Some((_, FoundBy::HostName)), _) => "by the host name that its guest agent reports",
            (None, _) => "no VM has its provider ID, its name or its host name",
        };
        let vm = read.vms.found_by(node).map(|(vm, _)| vm);
        Node { name: node.name_any(), eligible: is_eligible(node), vm, because }
    };
    let backend = |backend: &harvester_api::BackendStatus| Backend {
        name: cut_clean(&backend.name, VALUE_MAX),
        address: cut_clean(&backend.address, VALUE_MAX),
        ready: backend.ready,
        last_error: cut_clean(&backend.last_error, VALUE_MAX),
        since: cut_clean(&backend.since, VALUE_MAX),
    };
    Traffic {
        sentence,
        nodes: read.nodes.iter().map(node).collect(),
        backends: status.map(|status| status.backends.iter().map(backend).collect()).unwrap_or_default(),
    }
}

fn controller(read: &Read) -> Controller {
    let due = read.dry_run.decision.steps.clone();
    let lease = format!("Lease {KUBE_SYSTEM}/{LEASE}");
    let (runs, sentence) = match &read.lease {
        None => (None, format!("{lease} could not be read")),
        Some(None) => (Some(false), format!("no cloud controller manager runs: there is no {lease}")),
        Some(Some(found)) => {
            let spec = found.spec.clone().unwrap_or_default();
            let holder = cut_clean(&spec.holder_identity.unwrap_or_default(), VALUE_MAX);
            let lasts = u64::try_from(spec.lease_duration_seconds.unwrap_or(0)).unwrap_or(0);
            let renewed = spec.renew_time.map_or(Duration::MAX, |time| age(time.0, read.now));
            match (holder.as_str(), renewed <= Duration::from_secs(lasts)) {
                ("", _) => (Some(false), format!("no cloud controller manager runs: nobody holds {lease}")),
                (_, true) => (Some(true), format!("{holder} holds {lease}")),
                (_, false) => {
                    let ago = words(renewed);
                    (
                        Some(false),
                        format!("no cloud controller manager runs: {holder} renewed {lease} {ago} ago"),
                    )
                }
            }
        }
    };
    Controller { runs, sentence, due }
}

fn events(read: &Read) -> Vec<Event> {
    let newest = &read.events[read.events.len().saturating_sub(EVENTS)..];
    let event = |event: &KubeEvent| {
        let text = |field: &Option<String>| cut(field.as_deref().unwrap_or_default());
        let from = event.source.as_ref().and_then(|source| source.component.clone());
        let seen = last_seen(event);
        Event {
            last_seen: seen.map(|seen| seen.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()).unwrap_or_default(),
            age: seen.map_or("some time".to_owned(), |seen| words(age(seen, read.now))),
            count: event.series.as_ref().and_then(|series| series.count).or(event.count).unwrap_or(1),
            event_type: text(&event.type_),
            reason: text(&event.reason),
            from: text(&from.filter(|from| !from.is_empty()).or_else(|| event.reporting_component.clone())),
            message: text(&event.message),
        }
    };
    newest.iter().map(event).collect()
}

/// As `kubectl` prints ages.
fn words(age: Duration) -> String {
    match age.as_secs() {
        seconds @ 0..120 => format!("{seconds}s"),
        seconds @ 120..7_200 => format!("{}m", seconds / 60),
        seconds @ 7_200..172_800 => format!("{}h", seconds / 3_600),
        seconds => format!("{}d", seconds / 86_400),
    }
}

fn policy(policy: Policy) -> &'static str {
    match policy {
        Policy::Guest => "guest",
        Policy::Annotation => "annotation",
        Policy::Host => "host",
    }
}

fn flags(read: &Read) -> BTreeMap<&'static str, String> {
    let Assumed { rules, host_names, follows_vms, pool_choice } = &read.assumed;
    let AllowedDatapaths { guest, host } = rules.allowed;
    let allowed: Vec<_> =
        [(guest, "guest"), (host, "host")].into_iter().filter(|it| it.0).map(|it| it.1).collect();
    let mut flags = BTreeMap::from([
        ("cluster-name", rules.cluster.name().to_owned()),
        ("data-path", policy(rules.policy).to_owned()),
        ("allowed-data-paths", allowed.join(",")),
        ("restrict-shared-address", rules.restrict_sharing.to_string()),
    ]);
    if let Some(network) = &rules.management_network {
        flags.insert("management-network", network.clone());
    }
    let aliases = [(rules.aliases.metallb, "metallb"), (rules.aliases.cilium, "cilium")];
    let aliases: Vec<_> = aliases.into_iter().filter(|it| it.0).map(|it| it.1).collect();
    if !aliases.is_empty() {
        flags.insert("annotation-aliases", aliases.join(","));
    }
    let disabled = [(host_names, "disable-hostname-lookup"), (follows_vms, "disable-vmi-controller")];
    flags.extend(disabled.into_iter().filter(|it| !it.0).map(|it| (it.1, "true".to_owned())));
    let chosen = [
        pool_choice.fall_over_when_full,
        pool_choice.strict_global_network,
        pool_choice.enforce_named_pool_scope,
    ];
    let given = OF_LOAD_BALANCER.into_iter().zip(chosen).filter(|it| it.1);
    flags.extend(given.map(|it| (it.0, "true".to_owned())));
    flags
}

#[cfg(test)]
mod tests;
