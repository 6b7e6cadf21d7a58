//! May an address be given to another holder? One answer for the end of a load balancer, for its move to another
//! address, and for the record garbage collector.
//!
//! kube-vip announces an address because of a Service, so the Service decides, read afresh, and never the status of the
//! LoadBalancer object. kube-vip up to 1.2.3 withdraws an address only when it sees the deletion of a Service of type
//! LoadBalancer, or another address in it.

use std::{fmt, net::IpAddr};

use controller_kit::ObjectKey;
use harvester_api::annotations;
use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt as _;

use crate::ownership::is_of_load_balancer;

/// The LoadBalancer object that held the address, as far as the answer depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holder<'a> {
    /// The object is gone, or goes: no Service may be left of it.
    Gone,
    /// The object with this UID stays and has another address now: its own Service may stay too.
    Moved(&'a str),
}

/// Why the address must stay with its holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InUse {
    /// The Service asks for the address or shows it.
    ByService,
    /// The Service of the holder shows no other address, so kube-vip may not have followed the move.
    NotFollowed,
    /// The Service was made for the load balancer, or for an earlier one of its name.
    ServiceLeft,
}

impl fmt::Display for InUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ByService => "its Service names the address or shows it",
            Self::NotFollowed => "its Service shows no other address yet",
            Self::ServiceLeft => "a Service of the load balancer is left",
        })
    }
}

/// Answers for `address`, which the record gives to the load balancer `key`. `service` is the Service of that name.
///
/// # Errors
/// Why kube-vip may still announce the address.
pub(crate) fn may_be_given_away(
    key: &ObjectKey,
    holder: Holder<'_>,
    address: IpAddr,
    service: Option<&Service>,
) -> Result<(), InUse> {
    let Some(service) = service else { return Ok(()) };
    if named(service).any(|other| other == address) {
        return Err(InUse::ByService);
    }
    let owners = service.owner_references();
    let is_holders = |uid| owners.iter().any(|owner| owner.uid == uid);
    match holder {
        Holder::Moved(uid) if is_holders(uid) => {
            if shown(service).next().is_some() {
                Ok(())
            } else {
                Err(InUse::NotFollowed)
            }
        }
        Holder::Gone | Holder::Moved(_) => {
            let ours = is_of_load_balancer(&service.metadata, &key.name);
            if ours { Err(InUse::ServiceLeft) } else { Ok(()) }
        }
    }
}

/// The addresses that the Service asks for or shows.
pub(crate) fn named(service: &Service) -> impl Iterator<Item = IpAddr> {
    asked_for(service).chain(shown(service))
}

/// The addresses that the Service asks for.
pub(crate) fn asked_for(service: &Service) -> impl Iterator<Item = IpAddr> {
    let spec = service.spec.as_ref().and_then(|spec| spec.load_balancer_ip.as_deref());
    let annotation = service.annotations().get(annotations::KUBE_VIP_LOADBALANCER_IPS);
    let texts = spec.into_iter().chain(annotation.into_iter().flat_map(|list| list.split(',')));
    texts.filter_map(read)
}

/// The addresses that kube-vip says it announces for the Service.
pub(crate) fn shown(service: &Service) -> impl Iterator<Item = IpAddr> {
    let status = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    let ingress = status.and_then(|status| status.ingress.as_ref()).into_iter().flatten();
    ingress.filter_map(|ingress| ingress.ip.as_deref()).filter_map(read)
}

fn read(text: &str) -> Option<IpAddr> {
    let address = text.trim().parse::<IpAddr>().ok()?.to_canonical();
    (!address.is_unspecified()).then_some(address)
}

#[cfg(test)]
mod tests {
    use harvester_api::labels;
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    fn service(owner: Option<&str>, labelled: bool, asks: &str, shows: &[&str]) -> Option<Service> {
        let owners: Vec<Value> = owner
            .map(|uid| json!({"apiVersion": "x/v1", "kind": "LoadBalancer", "name": "web", "uid": uid}))
            .into_iter()
            .collect();
        let labels = if labelled { json!({labels::SERVICE_LB: "true"}) } else { json!({}) };
        let ingress: Vec<_> = shows.iter().map(|ip| json!({"ip": ip})).collect();
        let service = json!({"metadata": {"name": "web", "ownerReferences": owners, "labels": labels},
            "spec": {"type": "LoadBalancer", "loadBalancerIP": asks}, "status": {"loadBalancer": {"ingress": ingress}}});
        Some(serde_json::from_value(service).unwrap())
    }

    #[rstest]
    #[case::no_service(None, Ok(()), Ok(()))]
    #[case::of_somebody_else(service(None, false, "", &[]), Ok(()), Ok(()))]
    #[case::of_somebody_else_and_asks(
        service(None, false, "10.0.0.7", &[]), Err(InUse::ByService), Err(InUse::ByService))]
    #[case::label_and_owner_lost_and_still_shows(
        service(None, false, "", &["10.0.0.7"]), Err(InUse::ByService), Err(InUse::ByService))]
    #[case::orphaned(
        service(None, true, "10.0.0.9", &["10.0.0.9"]), Err(InUse::ServiceLeft), Err(InUse::ServiceLeft))]
    #[case::of_a_former_object(
        service(Some("u0"), false, "10.0.0.9", &["10.0.0.9"]), Err(InUse::ServiceLeft), Err(InUse::ServiceLeft))]
    #[case::of_the_object(
        service(Some("u1"), true, "10.0.0.7", &["10.0.0.7"]), Err(InUse::ByService), Err(InUse::ByService))]
    #[case::told_to_move(
        service(Some("u1"), true, "10.0.0.9", &["10.0.0.7"]), Err(InUse::ByService), Err(InUse::ByService))]
    #[case::shows_nothing(
        service(Some("u1"), true, "10.0.0.9", &[]), Err(InUse::ServiceLeft), Err(InUse::NotFollowed))]
    #[case::shows_no_lease_yet(
        service(Some("u1"), true, "0.0.0.0", &["0.0.0.0"]), Err(InUse::ServiceLeft), Err(InUse::NotFollowed))]
    #[case::moved(
        service(Some("u1"), true, "10.0.0.9", &["10.0.0.9"]), Err(InUse::ServiceLeft), Ok(()))]
    fn ten_dot_seven_may_be_given_away_when_the_object_is_gone_and_when_it_moved(
        #[case] service: Option<Service>,
        #[case] gone: Result<(), InUse>,
        #[case] moved: Result<(), InUse>,
    ) {
        let key = ObjectKey::new("shop", "web");
        let ask = |holder| may_be_given_away(&key, holder, [10, 0, 0, 7].into(), service.as_ref());
        assert_eq!((ask(Holder::Gone), ask(Holder::Moved("u1"))), (gone, moved));
    }

    #[test]
    fn the_annotation_of_kube_vip_asks_as_well_in_either_form_of_an_address() {
        let mut service = service(None, false, "", &[]).unwrap();
        let wish = "10.0.0.9, ::ffff:10.0.0.7".to_owned();
        service.annotations_mut().insert(annotations::KUBE_VIP_LOADBALANCER_IPS.to_owned(), wish);
        let answer = may_be_given_away(
            &ObjectKey::new("shop", "web"),
            Holder::Gone,
            [10, 0, 0, 7].into(),
            Some(&service),
        );
        assert_eq!(answer, Err(InUse::ByService));
    }
}
