//! Who may reach a load balancer of VMs: the ranges that its annotation names, on its Service.
//!
//! The object's confirmation says what the Service has now. It goes before the Service is given other ranges, and comes
//! when they are stored. The Service has the annotation too, by which ranges of ours are told from those of a person.

use harvester_api::{LoadBalancer, WorkloadType, annotations, load_balancer::MAX_SOURCE_RANGES};
use ipam::Family;
use ipnet::IpNet;
use k8s_openapi::api::core::v1::Service;
use kube::{Resource as _, ResourceExt as _};
use serde_json::Value;

use super::seen_family;
use crate::ownership::Owner;

/// The length of so many IPv6 ranges.
const LONGEST: usize = MAX_SOURCE_RANGES * 44;

/// The ranges, as the annotation has them and one by one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SourceRanges<'a> {
    text: &'a str,
    ranges: Vec<&'a str>,
}

/// Reads the annotation of an object.
///
/// # Errors
/// What is wrong with it, in a sentence.
pub(crate) fn of(lb: &LoadBalancer) -> Result<Option<SourceRanges<'_>>, String> {
    let Some(text) = lb.annotations().get(annotations::SOURCE_RANGES).map(String::as_str) else {
        return Ok(None);
    };
    if text.trim().is_empty() {
        return Ok(None);
    }
    let fault = |what: String| {
        format!(
            "annotation {}: {what}; write ranges such as 192.0.2.0/24 with commas between them, at most {MAX_SOURCE_RANGES}. Until \
             then the load balancer has no backends",
            annotations::SOURCE_RANGES
        )
    };
    if text.len() > LONGEST || text.split(',').count() > MAX_SOURCE_RANGES {
        return Err(fault("it is too long".to_owned()));
    }
    let ranges: Vec<_> = text.split(',').map(str::trim).collect();
    if let Some(wrong) = ranges.iter().find(|range| range.parse::<IpNet>().is_err()) {
        let shown: String = wrong.chars().take(60).collect();
        return Err(fault(format!("{shown:?} is no range of addresses")));
    }
    // kube-proxy leaves those of the other family out, and where none is left it admits everybody
    let family = seen_family(lb, None);
    let is_of = |range: &&str| range.parse::<IpNet>().is_ok_and(|range| Family::of(range.addr()) == family);
    if !ranges.iter().any(is_of) {
        return Err(fault(format!("it has no range of {family}")));
    }
    Ok(Some(SourceRanges { text, ranges }))
}

/// Gives the Service the ranges, or takes those away that it has from us.
pub(super) fn put_on(service: &mut Value, ranges: Option<&SourceRanges<'_>>) {
    if let Some(SourceRanges { text, ranges }) = ranges {
        service["metadata"]["annotations"][annotations::SOURCE_RANGES] = (*text).into();
        service["spec"]["loadBalancerSourceRanges"] = ranges.clone().into();
        return;
    }
    let found = service.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut);
    let ours = found.and_then(|found| found.remove(annotations::SOURCE_RANGES)).is_some();
    if let (true, Some(spec)) = (ours, service["spec"].as_object_mut()) {
        spec.remove("loadBalancerSourceRanges");
    }
}

/// The annotation of the object, if its Service has just these ranges now.
pub(crate) fn applied<'a>(lb: &'a LoadBalancer, service: Option<&Service>) -> Option<&'a str> {
    if lb.spec.workload() != WorkloadType::Vm {
        return None;
    }
    let wanted = of(lb).ok().flatten()?;
    let is_ours = |service: &&Service| {
        Owner::of(lb).ownership(service.meta()).is_writable() && service.meta().deletion_timestamp.is_none()
    };
    let spec = service.filter(is_ours)?.spec.as_ref()?;
    let has = spec.load_balancer_source_ranges.as_deref().unwrap_or_default();
    has.iter().map(String::as_str).eq(wanted.ranges.iter().copied()).then_some(wanted.text)
}

/// The confirmation that the object has.
pub(crate) fn confirmed(lb: &LoadBalancer) -> Option<&str> {
    lb.annotations().get(annotations::SOURCE_RANGES_APPLIED).map(String::as_str)
}

/// Writes or removes the confirmation.
pub(crate) fn confirm(object: &mut Value, applied: Option<&str>) {
    match applied {
        Some(text) => object["metadata"]["annotations"][annotations::SOURCE_RANGES_APPLIED] = text.into(),
        None => {
            let found = object.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut);
            if let Some(found) = found {
                found.remove(annotations::SOURCE_RANGES_APPLIED);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use harvester_api::LoadBalancerSpec;
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn with(text: &str) -> LoadBalancer {
        let mut lb = LoadBalancer::new("web", LoadBalancerSpec::default());
        lb.metadata.uid = Some("u1".into());
        lb.annotations_mut().insert(annotations::SOURCE_RANGES.to_owned(), text.to_owned());
        lb
    }

    fn service(owner: &str, ranges: &[&str]) -> Service {
        let owners = [json!({"apiVersion": "x/v1", "kind": "LoadBalancer", "name": "web", "uid": owner})];
        let json = json!({"metadata": {"name": "web", "ownerReferences": owners},
            "spec": {"loadBalancerSourceRanges": ranges}});
        serde_json::from_value(json).unwrap()
    }

    #[rstest]
    #[case::nonsense("everybody")]
    #[case::an_address("10.0.0.1")]
    #[case::one_of_two("10.0.0.0/8,x")]
    #[case::an_empty_part("10.0.0.0/8,")]
    #[case::of_ipv6_alone("fd00::/8")]
    #[case::many(&["10.0.0.0/8"; 501].join(","))]
    #[case::huge(&"9".repeat(100_000))]
    fn what_cannot_be_read_is_shown_in_part_and_confirmed_by_nothing(#[case] text: &str) {
        let lb = with(text);
        let why = of(&lb).unwrap_err();
        assert!(
            why.starts_with("annotation loadbalancer.harvesterhci.io/source-ranges: ") && why.len() < 400,
            "{why}"
        );
        assert_eq!(applied(&lb, Some(&service("u1", &[]))), None);
    }

    #[test]
    fn only_what_the_service_has_is_confirmed() {
        let lb = with("10.0.0.0/8,fd00::/8");
        let has = |owner, ranges: &[&str]| applied(&lb, Some(&service(owner, ranges)));
        assert_eq!(has("u1", &["10.0.0.0/8", "fd00::/8"]), Some("10.0.0.0/8,fd00::/8"));
        assert_eq!(has("u1", &["10.0.0.0/8"]), None);
        assert_eq!(has("u1", &["10.0.0.0/8", "fd00::/8", "0.0.0.0/0"]), None);
        assert_eq!(has("u0", &["10.0.0.0/8", "fd00::/8"]), None, "of a former object");
        assert_eq!(applied(&lb, None), None);
        assert_eq!(applied(&with(" "), Some(&service("u1", &[]))), None);
    }

    #[test]
    fn ranges_of_a_person_stay_and_ours_go_with_the_annotation() {
        let mut by_hand = json!({"metadata": {}, "spec": {"loadBalancerSourceRanges": ["192.0.2.0/24"]}});
        let before = by_hand.clone();
        put_on(&mut by_hand, None);
        assert_eq!(by_hand, before);
        let lb = with("10.0.0.0/8, fd00::/8");
        put_on(&mut by_hand, of(&lb).unwrap().as_ref());
        assert_eq!(by_hand["spec"]["loadBalancerSourceRanges"], json!(["10.0.0.0/8", "fd00::/8"]));
        put_on(&mut by_hand, None);
        assert_eq!(by_hand, json!({"metadata": {"annotations": {}}, "spec": {}}));
    }
}
