//! The primary of a Service: the one at the end of a chain of Services that ask for each other's address. A chain in a ring
//! has none.

use std::{collections::HashSet, sync::Arc};

use controller_kit::{Explanation, ObjectKey};
use harvester_api::annotations;
use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;

use crate::service_config::primary;

/// The answer to the annotation `primary-service` of a Service, as far as the Services tell it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Chain {
    /// There is no annotation.
    Own,
    Ends(Arc<Service>),
    /// What is missing may come; the sentence says what.
    Waits(String),
    /// `None`: the annotation itself is wrong, which the faults of the Service say already.
    Refused(Option<Explanation>),
}

/// A chain has at most so many Services after the first: every look at a Service follows its chain.
const CHAIN_MAX: usize = 16;

/// Follows the annotations from `service`. `find` reads Services, `is_served` says whether we give one of type
/// LoadBalancer its address.
pub(crate) fn follow(
    service: &Service,
    find: impl Fn(&ObjectKey) -> Option<Arc<Service>>,
    is_served: impl Fn(&Service) -> bool,
) -> Chain {
    let start = ObjectKey::of(service);
    let mut next = match primary(service) {
        Ok(None) => return Chain::Own,
        Ok(Some(next)) => next,
        Err(_) => return Chain::Refused(None),
    };
    let mut passed = HashSet::from([start.clone()]);
    loop {
        let refused = |reason, why: String| {
            let sentence =
                format!("{why}: let annotation {} name another Service", annotations::PRIMARY_SERVICE);
            Chain::Refused(Some(Explanation::new(reason, sentence)))
        };
        if next == start && passed.len() == 1 {
            return refused("InvalidPrimaryService", format!("service {start} cannot share its own address"));
        }
        if !passed.insert(next.clone()) {
            return refused(
                "InvalidPrimaryService",
                format!("service {next} would share its own address, in a ring of Services"),
            );
        }
        if passed.len() > CHAIN_MAX + 1 {
            let why = format!("it asks for the address over more than {CHAIN_MAX} other services");
            return refused("PrimaryNotSuitable", why);
        }
        let Some(found) = find(&next) else {
            return Chain::Waits(format!("service {next}, whose address it asks for, is not there"));
        };
        if found.spec.as_ref().and_then(|spec| spec.type_.as_deref()) != Some("LoadBalancer") {
            return refused("PrimaryNotSuitable", format!("service {next} is not of type LoadBalancer"));
        }
        if !is_served(&found) {
            return refused(
                "PrimaryNotSuitable",
                format!("service {next} has a load balancer of another class"),
            );
        }
        if found.metadata.deletion_timestamp.is_some() {
            return Chain::Waits(format!("service {next}, whose address it asks for, is being deleted"));
        }
        next = match primary(&found) {
            Ok(None) => return Chain::Ends(found),
            Ok(Some(further)) => further,
            Err(fault) => return refused(fault.reason, format!("service {next}: {}", fault.message)),
        };
    }
}

/// Whether the owner of `primary` and the flags let Services of this namespace share its address.
pub(crate) fn admits(primary: &Service, namespace: &str, restricted: bool) -> bool {
    if !restricted || primary.namespace().as_deref() == Some(namespace) {
        return true;
    }
    let listed = primary.annotations().get(annotations::ALLOW_SHARED_FROM).map(String::as_str);
    listed.unwrap_or_default().split(',').map(str::trim).any(|item| item == "*" || item == namespace)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    const KEY: &str = "cloudprovider.harvesterhci.io/primary-service";

    /// Services of namespace `shop`: name, the annotation, more metadata or spec.
    fn service(name: &str, asks: &str, more: &Value) -> Arc<Service> {
        let mut json = json!({"metadata": {"namespace": "shop", "name": name, "annotations": {KEY: asks}},
            "spec": {"type": "LoadBalancer"}});
        for (part, fields) in more.as_object().into_iter().flatten() {
            for (key, value) in fields.as_object().into_iter().flatten() {
                json[part][key] = value.clone();
            }
        }
        Arc::new(serde_json::from_value(json).unwrap())
    }

    fn followed(asks: &str) -> Chain {
        let none = Value::Null;
        let all = [
            service("web", "", &none),
            service("api", "web", &none),
            service("admin", "shop/api", &none),
            service("ring", "rang", &none),
            service("rang", "ring", &none),
            service("into", "ring", &none),
            service("wrong", "a/b/c", &none),
            service("inside", "", &json!({"spec": {"type": "ClusterIP"}})),
            service("foreign", "", &json!({"spec": {"loadBalancerClass": "other"}})),
            service("leaving", "", &json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})),
        ];
        // of `far-16` sixteen others are asked
        let far = (1..=17).map(|hop| {
            let before = if hop == 1 { "web".to_owned() } else { format!("far-{}", hop - 1) };
            service(&format!("far-{hop}"), &before, &none)
        });
        let all: Vec<_> = all.into_iter().chain(far).collect();
        let name = |service: &Service| service.metadata.name.clone();
        let asking = service("new", asks, &none);
        let all = all.iter().chain([&asking]);
        let find = |key: &ObjectKey| {
            all.clone().find(|it| key.namespace == "shop" && name(it).as_ref() == Some(&key.name)).cloned()
        };
        let served = |service: &Service| service.spec.as_ref().unwrap().load_balancer_class.is_none();
        follow(&asking, find, served)
    }

    // docs/contract/user-docs.md#17b: a bare name too
    #[rstest]
    #[case::none("", None)]
    #[case::primary("shop/web", Some("web"))]
    #[case::bare_name("web", Some("web"))]
    #[case::chain("admin", Some("web"))]
    #[case::longest_chain("far-15", Some("web"))]
    fn a_chain_is_followed_to_its_end(#[case] asks: &str, #[case] end: Option<&str>) {
        match (followed(asks), end) {
            (Chain::Own, None) => {}
            (Chain::Ends(found), Some(end)) => assert_eq!(found.metadata.name.as_deref(), Some(end)),
            other => panic!("{other:?}"),
        }
    }

    #[rstest]
    #[case::absent("nobody", "is not there")]
    #[case::in_another_namespace("lab/web", "lab/web, whose address")]
    #[case::leaving("leaving", "is being deleted")]
    fn a_primary_that_may_come_is_waited_for(#[case] asks: &str, #[case] part: &str) {
        let Chain::Waits(why) = followed(asks) else { panic!("{asks} is not waited for") };
        assert!(why.contains(part), "{why}");
    }

    #[rstest]
    #[case::oneself("new", "InvalidPrimaryService", "its own address")]
    #[case::ring("ring", "InvalidPrimaryService", "in a ring of Services")]
    #[case::into_a_ring("into", "InvalidPrimaryService", "shop/ring would share its own address")]
    #[case::wrong_further_on("wrong", "InvalidPrimaryService", "service shop/wrong: ")]
    #[case::no_load_balancer("inside", "PrimaryNotSuitable", "shop/inside is not of type LoadBalancer")]
    #[case::too_long("far-16", "PrimaryNotSuitable", "over more than 16 other services")]
    #[case::of_another_class(
        "foreign",
        "PrimaryNotSuitable",
        "shop/foreign has a load balancer of another class"
    )]
    fn a_request_that_leads_nowhere_is_refused_with_the_reason(
        #[case] asks: &str,
        #[case] reason: &str,
        #[case] part: &str,
    ) {
        let Chain::Refused(Some(fault)) = followed(asks) else { panic!("{asks} is not refused") };
        assert_eq!(fault.reason, reason);
        assert!(fault.message.contains(part) && fault.message.contains(KEY), "{}", fault.message);
    }

    #[rstest]
    #[case::open(false, "", "lab", true)]
    #[case::closed(true, "", "lab", false)]
    #[case::own_namespace(true, "", "shop", true)]
    #[case::listed(true, "test, lab", "lab", true)]
    #[case::not_listed(true, "test,lab", "prod", false)]
    #[case::everybody(true, "*", "lab", true)]
    #[case::part_of_a_name(true, "laboratory", "lab", false)]
    fn an_address_is_shared_with_the_namespaces_that_its_owner_lists(
        #[case] restricted: bool,
        #[case] listed: &str,
        #[case] namespace: &str,
        #[case] expected: bool,
    ) {
        let annotations = json!({"metadata": {"annotations": {annotations::ALLOW_SHARED_FROM: listed}}});
        assert_eq!(admits(&service("web", "", &annotations), namespace, restricted), expected);
    }
}
