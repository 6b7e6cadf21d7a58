//! kube-vip, simulated: which addresses it announces for a Service, and what it writes about them.
//!
//! One runs in the guest, one in Harvester. Real releases differ, and what stands or falls with a difference is
//! tried on each: [`Release`]. The decision is [`announce`]; nothing in it writes, waits or knows DHCP.

pub(crate) mod controller;

use std::{collections::BTreeSet, net::IpAddr};

use k8s_openapi::api::{core::v1::Service, discovery::v1::EndpointSlice};
use kube::ResourceExt;

use harvester_api::annotations::{KUBE_VIP_IGNORE, KUBE_VIP_LOADBALANCER_IPS};

use crate::data_path::endpoints_of;

/// The only load balancer class that kube-vip serves besides none.
pub const CLASS: &str = "kube-vip.io/kube-vip-class";
/// Allows announcing without endpoints from 1.2.1 on, for external traffic policy Cluster only.
pub const WITHOUT_ENDPOINTS: &str = "kube-vip.io/allow-reconcile-without-endpoints";

/// A range of releases that behave alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Release {
    /// Up to 0.6: the annotation, then `spec.loadBalancerIP`.
    UpTo06,
    /// 0.7 and 0.8: an address in the status beats `spec.loadBalancerIP`.
    From07,
    /// 0.9 to 1.1: `spec.loadBalancerIP` counts again where the status disagrees with it.
    From09,
    /// 1.2 and newer: like 0.9, and no address for a Service without endpoints.
    From12,
}

impl Release {
    /// The range that a version such as `0.8.1` or `v1.2.3` falls into.
    pub fn of(version: &str) -> Option<Self> {
        let mut numbers = version.trim_start_matches('v').split('.').map(|part| part.parse::<u32>().ok());
        let (major, minor) = (numbers.next()??, numbers.next()??);
        Some(match (major, minor) {
            (0, ..=6) => Self::UpTo06,
            (0, 7 | 8) => Self::From07,
            (0, _) | (1, ..=1) => Self::From09,
            _ => Self::From12,
        })
    }

    /// The range that a Harvester release such as `v1.4.2` brings on its hosts.
    pub fn of_harvester(version: &str) -> Option<Self> {
        let mut numbers =
            version.trim_start_matches('v').split(['.', '-']).map(|part| part.parse::<u32>().ok());
        let (major, minor) = (numbers.next()??, numbers.next()??);
        Some(match (major, minor) {
            (0, _) | (1, ..=3) => Self::UpTo06,
            (1, 4..=6) => Self::From07,
            (1, 7 | 8) => Self::From09,
            _ => Self::From12,
        })
    }
}

/// What one Service has announced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// These addresses.
    Addresses(BTreeSet<IpAddr>),
    /// An address to be leased: `0.0.0.0` was asked for.
    Dhcp,
}

/// What to do about one Service now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnnounceStep {
    /// Go on as before.
    Keep,
    /// The Service is not for this kube-vip: nothing is announced anew or written to it, and what was announced stays.
    Ignore,
    /// Announce this and nothing else.
    Announce(Wanted),
    /// Announce nothing any more. What was written to the Service stays there.
    Withdraw,
}

/// What kube-vip of this release on `node` does about a Service, when it has announced `previous` for it until now.
pub fn announce(
    service: Option<&Service>,
    slices: &[&EndpointSlice],
    release: Release,
    node: &str,
    previous: Option<&Wanted>,
) -> AnnounceStep {
    let withdraw = || if previous.is_some() { AnnounceStep::Withdraw } else { AnnounceStep::Keep };
    let Some(spec) = service.and_then(|service| service.spec.as_ref()) else { return withdraw() };
    let service = service.expect("it has a spec");
    if spec.type_.as_deref() != Some("LoadBalancer") {
        return withdraw();
    }
    // whoever is ignored after having been announced stays announced
    if service.annotations().get(KUBE_VIP_IGNORE).is_some_and(|value| value == "true") {
        return AnnounceStep::Ignore;
    }
    if spec.load_balancer_class.as_deref().is_some_and(|class| !class.is_empty() && class != CLASS) {
        return AnnounceStep::Ignore;
    }
    if release >= Release::From12 && !has_endpoints(service, slices, node) {
        return withdraw();
    }
    match wanted(service, release) {
        None => AnnounceStep::Keep,
        Some(wanted) if previous == Some(&wanted) => AnnounceStep::Keep,
        Some(wanted) => AnnounceStep::Announce(wanted),
    }
}

/// The first source that names an address decides.
fn wanted(service: &Service, release: Release) -> Option<Wanted> {
    let annotation = service.annotations().get(KUBE_VIP_LOADBALANCER_IPS);
    let annotation = addresses(annotation.map(String::as_str).into_iter().flat_map(|list| list.split(',')));
    let spec = service.spec.as_ref().and_then(|spec| spec.load_balancer_ip.as_deref());
    let spec = addresses(spec);
    let status = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    let ingress = status.and_then(|status| status.ingress.as_ref()).into_iter().flatten();
    let status = addresses(ingress.filter_map(|ingress| ingress.ip.as_deref()));
    let order = match release {
        Release::UpTo06 => vec![annotation, spec],
        Release::From07 => vec![annotation, status, spec],
        Release::From09 | Release::From12 => {
            let agrees = spec.iter().all(|wish| status.contains(wish));
            let spec_first = if agrees { BTreeSet::new() } else { spec.clone() };
            vec![annotation, spec_first, status, spec]
        }
    };
    let first = order.into_iter().find(|addresses| !addresses.is_empty())?;
    Some(if first.iter().any(IpAddr::is_unspecified) { Wanted::Dhcp } else { Wanted::Addresses(first) })
}

fn addresses<'a>(texts: impl IntoIterator<Item = &'a str>) -> BTreeSet<IpAddr> {
    texts.into_iter().filter_map(|text| text.trim().parse().ok()).collect()
}

fn has_endpoints(service: &Service, slices: &[&EndpointSlice], node: &str) -> bool {
    let (all, local) = endpoints_of(slices.iter().copied(), node);
    let policy = service.spec.as_ref().and_then(|spec| spec.external_traffic_policy.as_deref());
    match policy {
        Some("Local") => local > 0,
        _ => all > 0 || service.annotations().get(WITHOUT_ENDPOINTS).is_some_and(|value| value == "true"),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    const ANNOTATION: &str = "127.77.0.1";
    const SPEC: &str = "127.77.0.2";
    const STATUS: &str = "127.77.0.3";

    fn service(annotations: &Value, spec: &Value, ingress: &[&str]) -> Service {
        let ingress: Vec<_> = ingress.iter().map(|ip| json!({"ip": ip})).collect();
        let mut json = json!({"metadata": {"name": "web", "annotations": annotations},
            "spec": {"type": "LoadBalancer"}, "status": {"loadBalancer": {"ingress": ingress}}});
        json_patch::merge(&mut json["spec"], spec);
        serde_json::from_value(json).unwrap()
    }

    fn slice(endpoints: &Value) -> EndpointSlice {
        serde_json::from_value(json!({"addressType": "IPv4", "endpoints": endpoints})).unwrap()
    }

    fn of(address: &str) -> Wanted {
        Wanted::Addresses(BTreeSet::from([address.parse().unwrap()]))
    }

    fn check(
        service: Option<&Service>,
        release: Release,
        previous: Option<&Wanted>,
        expected: &AnnounceStep,
    ) {
        let slice = slice(&json!([{"addresses": ["198.18.7.131"], "conditions": {"ready": false}}]));
        assert_eq!(&announce(service, &[&slice], release, "node-1", previous), expected, "{release:?}");
    }

    const ALL: [Release; 4] = [Release::UpTo06, Release::From07, Release::From09, Release::From12];

    #[rstest]
    #[case::annotation_wins(true, true, true, [ANNOTATION, ANNOTATION, ANNOTATION, ANNOTATION])]
    #[case::status_and_spec(false, true, true, [SPEC, STATUS, SPEC, SPEC])]
    #[case::spec_alone(false, true, false, [SPEC, SPEC, SPEC, SPEC])]
    #[case::status_alone(false, false, true, ["", STATUS, STATUS, STATUS])]
    #[case::nothing(false, false, false, ["", "", "", ""])]
    fn takes_the_address_from_the_first_source_that_names_one(
        #[case] annotation: bool,
        #[case] spec: bool,
        #[case] status: bool,
        #[case] expected: [&str; 4],
    ) {
        let annotations = if annotation { json!({KUBE_VIP_LOADBALANCER_IPS: ANNOTATION}) } else { json!({}) };
        let spec = if spec { json!({"loadBalancerIP": SPEC}) } else { json!({}) };
        let service = service(&annotations, &spec, if status { &[STATUS] } else { &[] });
        for (release, expected) in ALL.into_iter().zip(expected) {
            let expected =
                if expected.is_empty() { AnnounceStep::Keep } else { AnnounceStep::Announce(of(expected)) };
            check(Some(&service), release, None, &expected);
        }
    }

    #[rstest]
    #[case::leased_before([STATUS], [AnnounceStep::Announce(Wanted::Dhcp), AnnounceStep::Announce(of(STATUS)),
        AnnounceStep::Announce(Wanted::Dhcp), AnnounceStep::Announce(Wanted::Dhcp)])]
    fn after_a_restart_0_7_takes_a_leased_address_for_a_fixed_one(
        #[case] ingress: [&str; 1],
        #[case] expected: [AnnounceStep; 4],
    ) {
        let service = service(&json!({}), &json!({"loadBalancerIP": "0.0.0.0"}), &ingress);
        for (release, expected) in ALL.into_iter().zip(expected) {
            check(Some(&service), release, None, &expected);
        }
    }

    #[rstest]
    #[case::node_port(json!({"type": "NodePort"}))]
    #[case::cluster_ip(json!({"type": "ClusterIP"}))]
    fn withdraws_on_a_change_of_type(#[case] spec: Value) {
        let service = service(&json!({KUBE_VIP_LOADBALANCER_IPS: ANNOTATION}), &spec, &[]);
        for release in ALL {
            check(Some(&service), release, Some(&of(ANNOTATION)), &AnnounceStep::Withdraw);
            check(Some(&service), release, None, &AnnounceStep::Keep);
        }
    }

    #[test]
    fn withdraws_when_the_service_is_gone() {
        for release in ALL {
            check(None, release, Some(&of(ANNOTATION)), &AnnounceStep::Withdraw);
            check(None, release, None, &AnnounceStep::Keep);
        }
    }

    #[test]
    fn ignore_keeps_away_and_does_not_withdraw() {
        let annotations = json!({KUBE_VIP_LOADBALANCER_IPS: ANNOTATION, KUBE_VIP_IGNORE: "true"});
        let service = service(&annotations, &json!({}), &[STATUS]);
        for release in ALL {
            check(Some(&service), release, None, &AnnounceStep::Ignore);
            check(Some(&service), release, Some(&of(SPEC)), &AnnounceStep::Ignore);
        }
    }

    #[rstest]
    #[case::none(json!(null), true)]
    #[case::empty(json!(""), true)]
    #[case::its_own(json!(CLASS), true)]
    #[case::another("harvesterhci.io/load-balancer".into(), false)]
    fn serves_services_without_class_and_of_its_own(#[case] class: Value, #[case] served: bool) {
        let annotations = json!({KUBE_VIP_LOADBALANCER_IPS: ANNOTATION});
        let service = service(&annotations, &json!({"loadBalancerClass": class}), &[]);
        let expected = if served { AnnounceStep::Announce(of(ANNOTATION)) } else { AnnounceStep::Ignore };
        check(Some(&service), Release::From12, None, &expected);
    }

    #[test]
    fn an_address_that_changed_replaces_the_old_one_and_one_that_did_not_is_left_alone() {
        let service = service(&json!({KUBE_VIP_LOADBALANCER_IPS: ANNOTATION}), &json!({}), &[]);
        check(Some(&service), Release::From09, Some(&of(SPEC)), &AnnounceStep::Announce(of(ANNOTATION)));
        check(Some(&service), Release::From09, Some(&of(ANNOTATION)), &AnnounceStep::Keep);
    }

    #[rstest]
    #[case::none("Cluster", false, json!([]), false)]
    #[case::allowed_without("Cluster", true, json!([]), true)]
    #[case::any_readiness("Cluster", false, json!([{"addresses": ["a"], "conditions": {"ready": false}}]), true)]
    #[case::local_elsewhere("Local", false, json!([{"addresses": ["a"], "nodeName": "node-2"}]), false)]
    #[case::local_here("Local", false, json!([{"addresses": ["a"], "nodeName": "node-1"}]), true)]
    #[case::local_here_not_serving("Local", false,
        json!([{"addresses": ["a"], "nodeName": "node-1", "conditions": {"serving": false}}]), false)]
    #[case::local_is_not_allowed_without("Local", true, json!([]), false)]
    fn from_1_2_on_a_service_needs_endpoints(
        #[case] policy: &str,
        #[case] allowed: bool,
        #[case] endpoints: Value,
        #[case] announced: bool,
    ) {
        let mut annotations = json!({KUBE_VIP_LOADBALANCER_IPS: ANNOTATION});
        if allowed {
            annotations[WITHOUT_ENDPOINTS] = "true".into();
        }
        let service = service(&annotations, &json!({"externalTrafficPolicy": policy}), &[]);
        let slice = slice(&endpoints);
        let decide = |release, previous: Option<&Wanted>| {
            announce(Some(&service), &[&slice], release, "node-1", previous)
        };
        let (wanted, expected) = (of(ANNOTATION), AnnounceStep::Announce(of(ANNOTATION)));
        assert_eq!(decide(Release::From09, None), expected);
        assert_eq!(decide(Release::From12, None), if announced { expected } else { AnnounceStep::Keep });
        let later = if announced { AnnounceStep::Keep } else { AnnounceStep::Withdraw };
        assert_eq!(decide(Release::From12, Some(&wanted)), later);
    }

    #[rstest]
    #[case("0.3.7", Some(Release::UpTo06))]
    #[case("v0.6.0", Some(Release::UpTo06))]
    #[case("0.8.1", Some(Release::From07))]
    #[case("v0.9.2", Some(Release::From09))]
    #[case("1.0.4", Some(Release::From09))]
    #[case("1.1.2", Some(Release::From09))]
    #[case("v1.2.3", Some(Release::From12))]
    #[case("2.0.0", Some(Release::From12))]
    #[case("latest", None)]
    fn every_version_has_its_range(#[case] version: &str, #[case] expected: Option<Release>) {
        assert_eq!(Release::of(version), expected);
    }

    #[rstest]
    #[case("v1.3.2", Release::UpTo06)]
    #[case("v1.4.1", Release::From07)]
    #[case("v1.6.0", Release::From07)]
    #[case("v1.7.0", Release::From09)]
    #[case("v1.8.0", Release::From09)]
    #[case("v1.9.0-rc6", Release::From12)]
    fn every_harvester_brings_one(#[case] version: &str, #[case] expected: Release) {
        assert_eq!(Release::of_harvester(version), Some(expected));
    }
}
