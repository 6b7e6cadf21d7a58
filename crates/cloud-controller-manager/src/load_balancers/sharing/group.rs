//! Each port of an address, with its protocol, belongs to one Service of the group: the primary or a secondary.

use std::{collections::HashMap, sync::Arc};

use controller_kit::{Explanation, ObjectKey};
use harvester_api::load_balancer::MAX_LISTENERS;
use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;

use crate::service_config::{ports, protocol};

/// A Service that has a part in the address of a primary.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub(crate) service: Arc<Service>,
    pub(crate) claim: Claim,
    /// Why it may not share the address, whatever its ports.
    pub(crate) fault: Option<Explanation>,
}

/// What a Service has of the address of a primary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// It has the label, and its status shows the address.
    Shown,
    /// It has the label, which anybody may write.
    Labelled,
    /// It had the label, and its status shows the address still: it moves to another one. On the host datapath the object
    /// has its listeners.
    Leaving,
    /// It asks for the address.
    Asked,
}

/// The Services that have their ports at the address, and why the others may not.
#[derive(Clone, Debug, Default)]
pub(crate) struct Group {
    pub(crate) admitted: Vec<Member>,
    pub(crate) refused: HashMap<ObjectKey, Explanation>,
}

impl Group {
    pub(crate) fn has(&self, service: &ObjectKey, claim: Claim) -> bool {
        let is_it = |member: &Member| member.claim == claim && ObjectKey::of(&*member.service) == *service;
        self.admitted.iter().any(is_it)
    }
}

/// The Service that has a port.
struct Holder {
    service: ObjectKey,
    leaves: bool,
}

/// Gives each port, with its protocol, to one Service: to the primary, then by [`Claim`], then to the oldest. Whoever
/// decides, and in whatever order, decides alike, so that two Services that want one port do not take turns. `carried`:
/// the ports become listeners of the primary's object, which has room for so many.
pub(crate) fn admit(primary: &Service, mut members: Vec<Member>, carried: bool) -> Group {
    members.sort_by_cached_key(|member| {
        let rank = match member.claim {
            Claim::Shown => 0,
            // its next primary may be refused the write that carries it, for any time
            Claim::Leaving if carried => 1,
            Claim::Labelled => 2,
            // kube-vip in the guest was asked for the other address already
            Claim::Leaving => 3,
            Claim::Asked => 4,
        };
        let metadata = &member.service.metadata;
        (rank, metadata.creation_timestamp.clone(), metadata.uid.clone())
    });
    let mut group = Group::default();
    let mut taken: HashMap<(i32, String), Holder> = HashMap::new();
    take(&mut taken, primary, false);
    for Member { service, claim, fault } in members {
        let room = MAX_LISTENERS.saturating_sub(taken.len());
        let too_many = || {
            (carried && ports(&service).len() > room).then(|| {
                let sentence = format!(
                    "the load balancer of service {} has room for {room} more ports on the data path host: use \
                     another address",
                    ObjectKey::of(primary)
                );
                Explanation::new("TooManyPorts", sentence)
            })
        };
        match fault.or_else(|| conflict(primary, &service, &taken)).or_else(too_many) {
            Some(fault) => drop(group.refused.insert(ObjectKey::of(&*service), fault)),
            None => {
                take(&mut taken, &service, claim == Claim::Leaving);
                group.admitted.push(Member { service, claim, fault: None });
            }
        }
    }
    group
}

fn take(taken: &mut HashMap<(i32, String), Holder>, service: &Service, leaves: bool) {
    let holder = || Holder { service: ObjectKey::of(service), leaves };
    taken.extend(ports(service).iter().map(|port| ((port.port, protocol(port).to_owned()), holder())));
}

fn conflict(
    primary: &Service,
    service: &Service,
    taken: &HashMap<(i32, String), Holder>,
) -> Option<Explanation> {
    let (port, holder) = ports(service).iter().find_map(|port| {
        let holder = taken.get(&(port.port, protocol(port).to_owned()))?;
        Some((port, holder))
    })?;
    let Holder { service: holder, leaves } = holder;
    // a name in another namespace is told to nobody who did not know it
    let is_known =
        Some(&holder.namespace) == service.namespace().as_ref() || *holder == ObjectKey::of(primary);
    let holder =
        if is_known { format!("service {holder}") } else { "a service of another namespace".to_owned() };
    let (still, wait) = if *leaves { (" still", ", or wait until it has left") } else { ("", "") };
    let sentence = format!(
        "{holder}{still} has port {}/{} at the address of service {}: use another port, or another address{wait}",
        port.port,
        protocol(port),
        ObjectKey::of(primary)
    );
    Some(Explanation::new("PortConflict", sentence))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::{Claim::*, *};

    fn service(namespace: &str, name: &str, created: u8, ports: &Value) -> Service {
        let ports: Vec<_> = ports
            .as_array()
            .unwrap()
            .iter()
            .map(|port| match port.as_str() {
                Some(udp) => json!({"port": udp.parse::<i32>().unwrap(), "protocol": "UDP"}),
                None => json!({"port": port}),
            })
            .collect();
        serde_json::from_value(json!({"metadata": {"namespace": namespace, "name": name, "uid": name,
            "creationTimestamp": format!("2026-01-01T00:00:{created:02}Z")}, "spec": {"ports": ports}}))
        .unwrap()
    }

    fn member(name: &str, created: u8, ports: &Value, claim: Claim) -> Member {
        Member { service: Arc::new(service("shop", name, created, ports)), claim, fault: None }
    }

    fn admitted(members: Vec<Member>, carried: bool) -> Vec<String> {
        let primary = service("shop", "web", 5, &json!([80, 443]));
        let mut there = members.clone();
        let names = |group: Group| group.admitted.iter().map(|it| it.service.name_any()).collect::<Vec<_>>();
        let admitted = names(admit(&primary, members, carried));
        there.reverse();
        assert_eq!(
            names(admit(&primary, there, carried)),
            admitted,
            "the order of the question is no matter"
        );
        admitted
    }

    // docs/contract/cloud-controller-manager.md#L13: with the protocol
    #[rstest]
    #[case::another_port(json!([81]), true)]
    #[case::same_port(json!([81, 80]), false)]
    #[case::same_number_of_another_protocol(json!(["80"]), true)]
    fn a_port_of_the_primary_is_no_secondarys(#[case] ports: Value, #[case] expected: bool) {
        // whoever is older: the address is the primary's
        for created in [1, 9] {
            assert_eq!(!admitted(vec![member("api", created, &ports, Asked)], false).is_empty(), expected);
        }
    }

    // docs/contract/cloud-controller-manager.md#L12: both look at both
    #[rstest]
    #[case::older_first(vec![member("api", 2, &json!([81]), Asked), member("old", 1, &json!([81]), Asked)], &["old"])]
    #[case::by_uid_in_one_second(
        vec![member("b", 1, &json!([81]), Asked), member("a", 1, &json!([81]), Asked)], &["a"])]
    #[case::one_that_uses_the_address_keeps_its_port(
        vec![member("api", 2, &json!([81]), Labelled), member("old", 1, &json!([81]), Asked)], &["api"])]
    #[case::older_of_two_that_use_it(
        vec![member("api", 2, &json!([81]), Labelled), member("old", 1, &json!([81]), Labelled)], &["old"])]
    #[case::one_that_shows_it_before_an_older_one_with_its_label(
        vec![member("api", 2, &json!([81]), Shown), member("old", 1, &json!([81]), Labelled)], &["api"])]
    #[case::one_that_leaves_before_one_that_comes(
        vec![member("api", 2, &json!([81]), Leaving), member("old", 1, &json!([81]), Asked)], &["api"])]
    #[case::one_that_stays_before_one_that_leaves(
        vec![member("api", 2, &json!([81]), Shown), member("old", 1, &json!([81]), Leaving)], &["api"])]
    #[case::a_refused_one_takes_no_port(
        vec![member("a", 1, &json!([80, 81]), Asked), member("b", 2, &json!([81]), Asked)], &["b"])]
    #[case::both_protocols(
        vec![member("dns", 1, &json!([53]), Asked), member("dns-udp", 2, &json!(["53"]), Asked)], &["dns", "dns-udp"])]
    fn of_two_secondaries_with_one_port_one_has_it(
        #[case] members: Vec<Member>,
        #[case] expected: &[&str],
        #[values(false, true)] carried: bool,
    ) {
        assert_eq!(admitted(members, carried), expected);
    }

    /// On the guest datapath nothing can hinder it to leave, and the one with the label was handed the address.
    #[rstest]
    #[case::host(true, "leaving")]
    #[case::guest(false, "labelled")]
    fn one_that_leaves_keeps_its_port_from_one_that_came_where_the_object_carries_it(
        #[case] carried: bool,
        #[case] expected: &str,
    ) {
        let members = [("leaving", 2, Leaving), ("labelled", 1, Labelled)].map(|(name, created, claim)| {
            let created = if carried { created } else { 3 - created };
            member(name, created, &json!([81]), claim)
        });
        assert_eq!(admitted(members.to_vec(), carried), [expected]);
    }

    #[rstest]
    #[case::same_namespace(
        "shop",
        Shown,
        "service shop/old has port 81/TCP at the address of service shop/web: use another port, or another address"
    )]
    #[case::another_namespace("lab", Shown, "a service of another namespace has port 81/TCP")]
    #[case::leaving("shop", Leaving, "service shop/old still has port 81/TCP")]
    #[case::leaving_says_what_to_do("shop", Leaving, "or another address, or wait until it has left")]
    fn a_conflict_names_the_holder_to_its_own_namespace(
        #[case] namespace: &str,
        #[case] claim: Claim,
        #[case] part: &str,
    ) {
        let primary = service("shop", "web", 1, &json!([80]));
        let lost = Arc::new(service(namespace, "new", 3, &json!([81])));
        let lost = Member { service: lost, claim: Asked, fault: None };
        let group = admit(&primary, vec![member("old", 2, &json!([81]), claim), lost], false);
        let (key, fault) = group.refused.iter().next().unwrap();
        assert_eq!((key.name.as_str(), fault.reason), ("new", "PortConflict"));
        assert!(fault.message.contains(part), "{}", fault.message);
    }

    #[test]
    fn a_group_has_no_more_ports_than_an_object_has_listeners() {
        let primary = service("shop", "web", 1, &json!([80]));
        let many: Vec<i32> = (1000..1099).collect();
        let [fits, over] =
            [99, 98].map(|from| member(&from.to_string(), 2, &json!(many[99 - from..]), Asked));
        let reasons = |members, carried| {
            let group = admit(&primary, members, carried);
            group.refused.values().map(|fault| fault.reason).collect::<Vec<_>>()
        };
        assert_eq!(reasons(vec![fits.clone()], true), Vec::<&str>::new());
        let another = member("z", 3, &json!([81]), Asked);
        assert_eq!(reasons(vec![fits.clone(), another.clone()], true), ["TooManyPorts"]);
        assert_eq!(reasons(vec![fits, another.clone()], false), Vec::<&str>::new());
        assert_eq!(reasons(vec![over, another], true), Vec::<&str>::new());
    }
}
