//! What there is and what should be, for one Service: the decision. No clock, no cache, no client.

mod host;
mod remarks;

use std::{collections::BTreeMap, time::Duration};

use cloud_provider::{Balancer, FINALIZER, Notice, Publish, View};
use controller_kit::Kept;
use harvester_api::{ConditionStatus, LoadBalancer, annotations, condition, names::DHCP_ADDRESS};
use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;

use super::object::{Carried, Identity, Wanted};
use crate::{
    data_path::{Allowed, DataPath, Policy, choose},
    machines::Backends,
    wishes::{Fault, Wishes},
};

/// Harvester answers a new object within a fraction of a second; after this time its silence is told.
pub(super) const ANSWER: Duration = Duration::from_secs(10);
/// An address that was allocated for so long and is not announced: nothing will announce it.
pub(super) const ANNOUNCEMENT: Duration = Duration::from_secs(60);

/// What the world looked like.
#[derive(Clone, Debug)]
pub(super) struct Sight<'a> {
    pub(super) identity: &'a Identity,
    pub(super) policy: Policy,
    pub(super) allowed: Allowed,
    pub(super) service: &'a Service,
    pub(super) wishes: &'a Wishes,
    pub(super) balancer: Found<'a>,
    /// `None` while the VMs are not known.
    pub(super) backends: Option<Backends>,
    /// How long the object has been in its [`Phase`].
    pub(super) waited: Duration,
}

/// The object of the Service.
#[derive(Clone, Copy, Debug)]
pub(super) enum Found<'a> {
    Absent,
    Present(&'a Kept<LoadBalancer>),
    Unreadable(&'a str),
}

/// What an object waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Allocation,
    Announcement,
}

/// What `balancer` waits for, if anything.
pub(super) fn phase(balancer: &LoadBalancer) -> Option<Phase> {
    let path = DataPath::recorded(&balancer.spec);
    match (allocated(balancer), path) {
        ("", _) => Some(Phase::Allocation),
        (_, DataPath::Host) if announced(balancer).is_none() => Some(Phase::Announcement),
        _ => None,
    }
}

/// The view, and the object as it should be, where that is known and nothing forbids it.
pub(super) fn judge<'a>(sight: &Sight<'a>) -> (View, Option<Wanted<'a>>) {
    let Sight { identity, policy, allowed, service, wishes, balancer, backends: _, waited } = sight;
    let present = match balancer {
        Found::Present(balancer) => Some(*balancer),
        Found::Absent | Found::Unreadable(_) => None,
    };
    let choice = choose(*policy, *allowed, wishes, recorded(service, present));
    let path = choice.path;
    let mut faults = wishes.faults.clone();
    faults.extend(choice.refusal);
    let mut view = View { notices: choice.notices, ..View::default() };
    let carried = match path {
        DataPath::Guest => Some(Carried::Guest { announced: ingress(service) }),
        DataPath::Host => host::carried(sight, present.is_some(), &mut faults, &mut view.notices),
    };
    let (identity, service, wishes) = (*identity, *service, *wishes);
    let wanted = carried.map(|carried| Wanted { identity, service, wishes, carried });
    let refused = refusal(service, &faults, present.is_some());
    let forbidden = refused.is_some() && present.is_none();

    view.notices.extend(remarks::keys(wishes, path));
    view.own_annotations.push(annotations::KUBE_VIP_LOADBALANCER_IPS.to_owned());
    view.balancer = match balancer {
        Found::Absent => Balancer::Absent,
        Found::Unreadable(why) => Balancer::Unreadable((*why).to_owned()),
        Found::Present(balancer) if balancer.metadata.deletion_timestamp.is_some() => Balancer::Leaving,
        Found::Present(balancer) => {
            view.notices.extend(remarks::fixed(balancer, wishes, path));
            let in_step =
                wanted.as_ref().is_none_or(|wanted| balancer.edited(|json| wanted.apply(json)).is_none());
            Balancer::Present { in_step, address: working(balancer, service, path) }
        }
    };
    if let Some(balancer) = present {
        let (waiting, again) = waiting(balancer, path, *waited);
        (view.waiting, view.again) = (waiting, again);
        if path == DataPath::Host && phase(balancer) == Some(Phase::Announcement) && *waited >= ANNOUNCEMENT {
            let sentence = "Harvester has allocated an address and does not announce it: its kube-vip may need the load \
                balancer of this project; annotation cloudprovider.harvesterhci.io/data-path: guest on a new Service \
                has it announced in the guest";
            view.notices.push(Notice::warning("HostNotAnnouncing", sentence));
        }
    }
    match path {
        DataPath::Guest => {
            if let Some(ip) = present.map(|balancer| allocated(balancer)).filter(|ip| !ip.is_empty()) {
                view.after = mark(annotations::KUBE_VIP_LOADBALANCER_IPS, ip);
            }
        }
        DataPath::Host => {
            view.before = mark(annotations::KUBE_VIP_IGNORE, "true");
            view.own_annotations.push(annotations::KUBE_VIP_IGNORE.to_owned());
            view.outlives = true;
            let address = present.and_then(|balancer| announced(balancer));
            view.publish = address.map_or(Publish::Nothing, |address| Publish::Address(address.to_owned()));
        }
    }
    match refused {
        Some(notice) if forbidden => view.refusals.push(notice),
        Some(notice) => view.notices.push(notice),
        // not known yet: nothing to tell, and nothing to make
        None => view.held = wanted.is_none() && present.is_none(),
    }
    (view, wanted.filter(|_| !forbidden))
}

/// The path that is settled: by the object; without one, by the marks that we leave on a Service that has our
/// finalizer. They tell how to clean up, and on which path an object comes back that somebody deleted in Harvester.
fn recorded(service: &Service, present: Option<&Kept<LoadBalancer>>) -> Option<DataPath> {
    let mark = |key: &str| service.annotations().get(key).map(String::as_str).unwrap_or_default();
    match present {
        Some(balancer) => Some(DataPath::recorded(&balancer.spec)),
        None if !service.finalizers().iter().any(|name| name == FINALIZER) => None,
        None if mark(annotations::KUBE_VIP_IGNORE) == "true" => Some(DataPath::Host),
        None if !mark(annotations::KUBE_VIP_LOADBALANCER_IPS).is_empty() => Some(DataPath::Guest),
        None => None,
    }
}

/// All faults in one Event.
fn refusal(service: &Service, faults: &[Fault], exists: bool) -> Option<Notice> {
    let first = faults.first()?;
    let sentences: Vec<_> = faults.iter().map(|fault| fault.message.as_str()).collect();
    let (namespace, name) = (service.namespace().unwrap_or_default(), service.name_any());
    let what = if exists { "the load balancer stays as it is" } else { "no load balancer" };
    Some(Notice::warning(
        first.reason,
        format!("{what} for service {namespace}/{name}: {}", sentences.join("; ")),
    ))
}

/// Why there is no address, and when to look again.
fn waiting(balancer: &LoadBalancer, path: DataPath, waited: Duration) -> (Option<String>, Option<Duration>) {
    let Some(phase) = phase(balancer) else { return (None, None) };
    let limit = match phase {
        Phase::Allocation => ANSWER,
        Phase::Announcement => ANNOUNCEMENT,
    };
    let again = limit.checked_sub(waited).filter(|rest| !rest.is_zero());
    if phase == Phase::Announcement {
        return (None, again);
    }
    let conditions = balancer.status.as_ref().map(|status| &status.conditions[..]).unwrap_or_default();
    let not_ready = condition::ready(conditions).filter(|ready| ready.status == ConditionStatus::False);
    let hint = match path {
        DataPath::Host => {
            " (annotation cloudprovider.harvesterhci.io/data-path: guest on a new Service may have another pool)"
        }
        DataPath::Guest => "",
    };
    match not_ready.map(|ready| ready.message.as_str()).filter(|message| !message.is_empty()) {
        Some(message) => (Some(format!("{message}{hint}")), None),
        None if again.is_none() => {
            let sentence = format!(
                "Harvester has not answered for {} s: is its load balancer running?",
                limit.as_secs()
            );
            (Some(sentence), None)
        }
        None => (None, again),
    }
}

/// The address by which the Service can be reached, as far as we know.
fn working(balancer: &LoadBalancer, service: &Service, path: DataPath) -> Option<String> {
    match path {
        DataPath::Host => announced(balancer).map(str::to_owned),
        DataPath::Guest if allocated(balancer) == DHCP_ADDRESS => ingress(service),
        DataPath::Guest => Some(allocated(balancer).to_owned()).filter(|ip| !ip.is_empty()),
    }
}

fn allocated(balancer: &LoadBalancer) -> &str {
    let status = balancer.status.as_ref().and_then(|status| status.allocated_address.as_ref());
    status.map(|address| address.ip.as_str()).unwrap_or_default()
}

/// `status.address`, once that is a real address.
fn announced(balancer: &LoadBalancer) -> Option<&str> {
    let address = balancer.status.as_ref().map(|status| status.address.as_str()).unwrap_or_default();
    (!address.is_empty() && address != DHCP_ADDRESS).then_some(address)
}

/// The address that kube-vip wrote into the Service's status.
fn ingress(service: &Service) -> Option<String> {
    let balancer = service.status.as_ref()?.load_balancer.as_ref()?;
    balancer.ingress.as_deref()?.iter().find_map(|entry| entry.ip.clone()).filter(|ip| !ip.is_empty())
}

fn mark(key: &str, value: &str) -> BTreeMap<String, Option<String>> {
    BTreeMap::from([(key.to_owned(), Some(value.to_owned()))])
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;
    use crate::{balancers::selector::Backend, cluster::GuestCluster};

    const CHECK: &str = "cloudprovider.harvesterhci.io/healthcheck-port";
    const HOST: &str = "cloudprovider.harvesterhci.io/data-path";

    fn service(annotations: &Value, spec: &Value) -> Service {
        let mut json = json!({
            "metadata": {"name": "web", "namespace": "shop", "uid": "1", "annotations": annotations},
            "spec": {"type": "LoadBalancer", "ports": [{"port": 80, "nodePort": 30080}]},
        });
        for (key, value) in spec.as_object().into_iter().flatten() {
            json["spec"][key] = value.clone();
        }
        serde_json::from_value(json).unwrap()
    }

    fn object(workload: &str, status: &Value) -> Kept<LoadBalancer> {
        let json = json!({"metadata": {"name": "blue-shop-web-1", "namespace": "team-a"},
            "spec": {"workloadType": workload, "ipam": "pool"}, "status": status});
        Kept::from_json(json).unwrap()
    }

    fn backends() -> Backends {
        let backend = Backend { vm: "a".into(), cluster: Some("blue".into()), name: Some("a".into()) };
        Backends { eligible: ["a".to_owned()].into(), nodes_without_vm: vec![], all: vec![backend] }
    }

    /// Judges in mode `annotation`; `change` makes the sight another one.
    fn view(
        service: &Service,
        balancer: Option<&Kept<LoadBalancer>>,
        change: impl FnOnce(&mut Sight<'_>),
    ) -> View {
        let identity =
            Identity { cluster: GuestCluster::new("blue"), cluster_uid: None, management_network: None };
        let wishes = Wishes::of(service);
        let mut sight = Sight {
            identity: &identity,
            policy: Policy::Annotation,
            allowed: Allowed::default(),
            service,
            wishes: &wishes,
            balancer: balancer.map_or(Found::Absent, Found::Present),
            backends: Some(backends()),
            waited: Duration::ZERO,
        };
        change(&mut sight);
        judge(&sight).0
    }

    fn refusals(annotations: &Value, spec: &Value, change: impl FnOnce(&mut Sight<'_>)) -> Vec<&'static str> {
        let view = view(&service(annotations, spec), None, change);
        view.refusals.iter().map(|notice| notice.reason).collect()
    }

    fn told(view: &View) -> Vec<&'static str> {
        view.notices.iter().map(|notice| notice.reason).collect()
    }

    // data-paths.md rows 1, 2, 9; the first reason names the Event, its text has them all
    #[rstest]
    #[case::nothing_wrong(json!({CHECK: "80"}), json!({}), None)]
    #[case::no_node_port(json!({CHECK: "80"}), json!({"ports": [{"port": 80}]}), Some("NodePortMissing"))]
    #[case::sctp(json!({HOST: "host"}), json!({"ports": [{"port": 80, "protocol": "SCTP", "nodePort": 1}]}),
        Some("ProtocolNotSupported"))]
    #[case::network(json!({HOST: "host", annotations::SERVICE_NETWORK: "a/b"}), json!({}), Some("NetworkNotSupported"))]
    #[case::ipv6(json!({HOST: "host"}), json!({"ipFamilies": ["IPv6"]}), Some("IPFamilyNotSupported"))]
    #[case::dual(json!({HOST: "host"}), json!({"ipFamilies": ["IPv6", "IPv4"]}), None)]
    #[case::check(json!({CHECK: "81"}), json!({}), Some("InvalidHealthCheck"))]
    #[case::announced(json!({CHECK: "80", annotations::KUBE_VIP_LOADBALANCER_IPS: "10.0.0.1"}), json!({}),
        Some("AnnouncedInGuest"))]
    #[case::local(json!({HOST: "host"}), json!({"externalTrafficPolicy": "Local"}), Some("HealthCheckNeeded"))]
    #[case::local_and_check(json!({CHECK: "80"}), json!({"externalTrafficPolicy": "Local"}), None)]
    // docs: health checks of old manifests never fail a Service
    #[case::check_on_guest(json!({HOST: "guest", CHECK: "81"}), json!({}), None)]
    #[case::source_ranges(json!({}), json!({"loadBalancerSourceRanges": ["10.0.0.0/8"]}), Some("NotSupported"))]
    #[case::later_but_served(json!({annotations::SERVICE_IP: "10.0.0.1"}), json!({}), None)]
    fn refused(#[case] annotations: Value, #[case] spec: Value, #[case] reason: Option<&str>) {
        assert_eq!(refusals(&annotations, &spec, |_| ()), reason.into_iter().collect::<Vec<_>>());
    }

    #[test]
    fn the_host_path_waits_for_the_list_of_vms_in_silence() {
        let service = service(&json!({CHECK: "80"}), &json!({}));
        let unknown = view(&service, None, |sight| sight.backends = None);
        assert_eq!((unknown.held, unknown.refusals), (true, vec![]));
        let empty = view(&service, None, |sight| sight.backends = Some(Backends::default()));
        assert_eq!((empty.held, empty.refusals[0].reason), (false, "UnAvailableLoadBalancer"));
    }

    #[test]
    fn an_object_that_exists_is_not_touched_because_of_what_became_wrong() {
        let object = object("vm", &json!({"address": "10.0.0.9"}));
        let view = view(&service(&json!({CHECK: "81"}), &json!({})), Some(&object), |_| ());
        assert_eq!((view.refusals.len(), told(&view)), (0, vec!["InvalidHealthCheck"]));
        let address = Some("10.0.0.9".to_owned());
        assert_eq!(view.balancer, Balancer::Present { in_step: true, address });
        assert_eq!(view.publish, Publish::Address("10.0.0.9".into()));
    }

    #[rstest]
    #[case::nothing("cluster", json!({}), 0, None, Some(10))]
    #[case::silence("cluster", json!({}), 10, Some("has not answered"), None)]
    #[case::reason("cluster", json!({"conditions": [{"type": "Ready", "status": "False", "message": "pool lab is full"}]}),
        0, Some("pool lab is full"), None)]
    #[case::hint_on_host("vm", json!({"conditions": [{"type": "Ready", "status": "False", "message": "no pool"}]}),
        0, Some("data-path: guest"), None)]
    #[case::allocated("cluster", json!({"allocatedAddress": {"ip": "10.0.0.9"}}), 99, None, None)]
    #[case::to_be_announced("vm", json!({"allocatedAddress": {"ip": "10.0.0.9"}}), 20, None, Some(40))]
    fn what_is_waited_for_is_told(
        #[case] workload: &str,
        #[case] status: Value,
        #[case] waited: u64,
        #[case] waiting: Option<&str>,
        #[case] again: Option<u64>,
    ) {
        let object = object(workload, &status);
        let view = view(&service(&json!({}), &json!({})), Some(&object), |sight| {
            sight.waited = Duration::from_secs(waited);
        });
        let text = view.waiting.unwrap_or_default();
        assert!(waiting.map_or(text.is_empty(), |part| text.contains(part)), "{text}");
        assert_eq!(view.again, again.map(Duration::from_secs));
    }

    // data-paths.md row 2, last sentence: an object of v0.1.x, whose Service kube-vip announced
    #[test]
    fn an_address_announced_twice_is_told() {
        let marks = json!({annotations::KUBE_VIP_VIP_HOST: "worker-1"});
        let object = object("vm", &json!({"address": "10.0.0.9"}));
        let view = view(&service(&marks, &json!({})), Some(&object), |_| ());
        assert_eq!(told(&view), ["VipAnnouncedTwice"]);
        assert_eq!(view.before[annotations::KUBE_VIP_IGNORE].as_deref(), Some("true"));
    }

    #[test]
    fn a_host_service_is_cleaned_up_as_one_also_when_its_object_is_gone() {
        let mut service =
            service(&json!({annotations::KUBE_VIP_IGNORE: "true"}), &json!({"type": "ClusterIP"}));
        service.metadata.finalizers = Some(vec![FINALIZER.to_owned()]);
        let view = view(&service, None, |_| ());
        assert_eq!((view.outlives, view.publish), (true, Publish::Nothing));
        assert!(view.own_annotations.contains(&annotations::KUBE_VIP_IGNORE.to_owned()));
    }

    // an object that somebody deleted in Harvester comes back on its path, whatever the flags say now
    #[rstest]
    #[case::guest(annotations::KUBE_VIP_LOADBALANCER_IPS, "10.0.0.9", false)]
    #[case::host(annotations::KUBE_VIP_IGNORE, "true", true)]
    fn a_lost_object_comes_back_on_its_path(#[case] mark: &str, #[case] value: &str, #[case] host: bool) {
        let mut service =
            service(&json!({mark: value, HOST: if host { "guest" } else { "host" }}), &json!({}));
        service.metadata.finalizers = Some(vec![FINALIZER.to_owned()]);
        let view = view(&service, None, |_| ());
        assert_eq!((view.outlives, view.refusals.len(), told(&view)), (host, 0, vec!["DataPathFixed"]));
    }

    #[test]
    fn the_address_for_kube_vip_is_what_harvester_allocated() {
        for ip in ["10.0.0.9", DHCP_ADDRESS] {
            let object = object("cluster", &json!({"allocatedAddress": {"ip": ip}}));
            let view = view(&service(&json!({}), &json!({})), Some(&object), |_| ());
            assert_eq!(view.after[annotations::KUBE_VIP_LOADBALANCER_IPS].as_deref(), Some(ip));
            assert_eq!(view.publish, Publish::NotOurs);
        }
    }
}
