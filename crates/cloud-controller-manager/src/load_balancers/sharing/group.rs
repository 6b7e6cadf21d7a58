//! The ports of the Services that share one address.

use std::{collections::HashMap, sync::Arc};

use controller_kit::{Explanation, ObjectKey};
use harvester_api::load_balancer::MAX_LISTENERS;
use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;

use crate::service_config::{ports, protocol};

/// A Service that uses the address of a primary, or asks for it.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub(crate) service: Arc<Service>,
    /// It uses the address already.
    pub(crate) uses: bool,
    /// Its status shows it.
    pub(crate) shows: bool,
    /// Why it may not share the address, whatever its ports.
    pub(crate) fault: Option<Explanation>,
}

/// The Services that may share the address, and why the others may not.
#[derive(Clone, Debug, Default)]
pub(crate) struct Group {
    pub(crate) admitted: Vec<Arc<Service>>,
    pub(crate) refused: HashMap<ObjectKey, Explanation>,
}

/// Gives each port, with its protocol, to one Service: to the primary, then to a Service that uses the address already,
/// then to the oldest. Anybody may write the label that says that a Service uses an address, so one whose status shows it
/// comes first. Whoever decides, and in whatever order, decides alike, so that two Services that want one port do not take
/// turns. `carried`: the ports become listeners of the primary's object, which has room for so many.
pub(crate) fn admit(primary: &Service, mut members: Vec<Member>, carried: bool) -> Group {
    members.sort_by_cached_key(|member| {
        let metadata = &member.service.metadata;
        (
            !(member.uses && member.shows),
            !member.uses,
            metadata.creation_timestamp.clone(),
            metadata.uid.clone(),
        )
    });
    let mut group = Group::default();
    let mut taken: HashMap<(i32, String), ObjectKey> = HashMap::new();
    take(&mut taken, primary);
    for Member { service, fault, .. } in members {
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
                take(&mut taken, &service);
                group.admitted.push(service);
            }
        }
    }
    group
}

fn take(taken: &mut HashMap<(i32, String), ObjectKey>, service: &Service) {
    let key = ObjectKey::of(service);
    taken.extend(ports(service).iter().map(|port| ((port.port, protocol(port).to_owned()), key.clone())));
}

fn conflict(
    primary: &Service,
    service: &Service,
    taken: &HashMap<(i32, String), ObjectKey>,
) -> Option<Explanation> {
    let (port, holder) = ports(service).iter().find_map(|port| {
        let holder = taken.get(&(port.port, protocol(port).to_owned()))?;
        Some((port, holder))
    })?;
    // a name in another namespace is told to nobody who did not know it
    let is_known =
        Some(&holder.namespace) == service.namespace().as_ref() || *holder == ObjectKey::of(primary);
    let holder =
        if is_known { format!("service {holder}") } else { "a service of another namespace".to_owned() };
    let sentence = format!(
        "{holder} has port {}/{} at the address of service {}: use another port, or another address",
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

    use super::*;

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

    fn member(name: &str, created: u8, ports: &Value, uses: bool) -> Member {
        Member { service: Arc::new(service("shop", name, created, ports)), uses, shows: false, fault: None }
    }

    fn showing(member: Member) -> Member {
        Member { shows: true, ..member }
    }

    fn admitted(members: Vec<Member>) -> Vec<String> {
        let primary = service("shop", "web", 5, &json!([80, 443]));
        let mut there = members.clone();
        let names = |group: Group| group.admitted.iter().map(|it| it.name_any()).collect::<Vec<_>>();
        let admitted = names(admit(&primary, members, false));
        there.reverse();
        assert_eq!(names(admit(&primary, there, false)), admitted, "the order of the question is no matter");
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
            assert_eq!(!admitted(vec![member("api", created, &ports, false)]).is_empty(), expected);
        }
    }

    // docs/contract/cloud-controller-manager.md#L12: both look at both
    #[rstest]
    #[case::older_first(vec![member("api", 2, &json!([81]), false), member("old", 1, &json!([81]), false)], &["old"])]
    #[case::by_uid_in_one_second(
        vec![member("b", 1, &json!([81]), false), member("a", 1, &json!([81]), false)], &["a"])]
    #[case::one_that_uses_the_address_keeps_its_port(
        vec![member("api", 2, &json!([81]), true), member("old", 1, &json!([81]), false)], &["api"])]
    #[case::older_of_two_that_use_it(
        vec![member("api", 2, &json!([81]), true), member("old", 1, &json!([81]), true)], &["old"])]
    #[case::one_that_shows_it_before_an_older_one_with_its_label(
        vec![showing(member("api", 2, &json!([81]), true)), member("old", 1, &json!([81]), true)], &["api"])]
    #[case::one_that_shows_it_without_its_label(
        vec![showing(member("api", 2, &json!([81]), false)), member("old", 1, &json!([81]), false)], &["old"])]
    #[case::a_refused_one_takes_no_port(
        vec![member("a", 1, &json!([80, 81]), false), member("b", 2, &json!([81]), false)], &["b"])]
    #[case::both_protocols(
        vec![member("dns", 1, &json!([53]), false), member("dns-udp", 2, &json!(["53"]), false)], &["dns", "dns-udp"])]
    fn of_two_secondaries_with_one_port_one_has_it(#[case] members: Vec<Member>, #[case] expected: &[&str]) {
        assert_eq!(admitted(members), expected);
    }

    #[rstest]
    #[case::same_namespace("shop", "service shop/old has port 81/TCP at the address of service shop/web")]
    #[case::another_namespace("lab", "a service of another namespace has port 81/TCP")]
    fn a_conflict_names_the_holder_to_its_own_namespace(#[case] namespace: &str, #[case] part: &str) {
        let primary = service("shop", "web", 1, &json!([80]));
        let lost = Arc::new(service(namespace, "new", 3, &json!([81])));
        let lost = Member { service: lost, uses: false, shows: false, fault: None };
        let group = admit(&primary, vec![member("old", 2, &json!([81]), true), lost], false);
        let (key, fault) = group.refused.iter().next().unwrap();
        assert_eq!((key.name.as_str(), fault.reason), ("new", "PortConflict"));
        assert!(fault.message.contains(part), "{}", fault.message);
    }

    #[test]
    fn a_group_has_no_more_ports_than_an_object_has_listeners() {
        let primary = service("shop", "web", 1, &json!([80]));
        let many: Vec<i32> = (1000..1099).collect();
        let [fits, over] =
            [99, 98].map(|from| member(&from.to_string(), 2, &json!(many[99 - from..]), false));
        let reasons = |members, carried| {
            let group = admit(&primary, members, carried);
            group.refused.values().map(|fault| fault.reason).collect::<Vec<_>>()
        };
        assert_eq!(reasons(vec![fits.clone()], true), Vec::<&str>::new());
        let another = member("z", 3, &json!([81]), false);
        assert_eq!(reasons(vec![fits.clone(), another.clone()], true), ["TooManyPorts"]);
        assert_eq!(reasons(vec![fits, another.clone()], false), Vec::<&str>::new());
        assert_eq!(reasons(vec![over, another], true), Vec::<&str>::new());
    }
}
