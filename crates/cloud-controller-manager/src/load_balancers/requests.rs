//! The requests for an address and a pool, in the LoadBalancer object.

use harvester_api::{Ipam, LoadBalancer, annotations};
use kube::ResourceExt;
use serde_json::{Value, json};

use super::object::object;
use crate::requested::{Addresses, Asked, Requested};

/// Writes what the Service asks for, and takes away what it asked for before. A request that is malformed changes
/// nothing. The pool of an object for which no Service asked is somebody else's setting: an annotation of the object
/// says which pool came from a Service.
pub(super) fn write(requested: &Requested, json: &mut Value) {
    let object_annotations = object(&mut json["metadata"], "annotations");
    let (demand, wish) = match &requested.demand {
        Asked::For(addresses) => (Some(*addresses), None),
        Asked::Nothing => (None, requested.wish),
        Asked::Malformed => return write_pool(requested, json),
    };
    let requests = [(annotations::REQUESTED_IP_STRICT, demand), (annotations::REQUESTED_IP, wish)];
    for (key, addresses) in requests {
        match addresses {
            Some(addresses) => drop(object_annotations.insert(key.into(), json!(addresses.to_string()))),
            None => drop(object_annotations.remove(key)),
        }
    }
    write_pool(requested, json);
}

fn write_pool(requested: &Requested, json: &mut Value) {
    let object_annotations = object(&mut json["metadata"], "annotations");
    match &requested.pool {
        Asked::For(pool) => {
            object_annotations.insert(annotations::SERVICE_IP_POOL.into(), json!(pool));
            object(json, "spec").insert("ipPool".into(), json!(pool));
        }
        Asked::Nothing => {
            let ours = object_annotations.remove(annotations::SERVICE_IP_POOL);
            if ours.is_some() && json["spec"].get("ipPool") == ours.as_ref() {
                object(json, "spec").remove("ipPool");
            }
        }
        Asked::Malformed => {}
    }
}

/// The addresses that only will do: by the Service, or by the object where the Service's annotation is malformed.
pub(super) fn demanded(requested: &Requested, object: &LoadBalancer) -> Option<Addresses> {
    if object.spec.ipam() == Ipam::Dhcp {
        return None;
    }
    match &requested.demand {
        Asked::For(addresses) => Some(*addresses),
        Asked::Nothing => None,
        Asked::Malformed => {
            let before = object.annotations().get(annotations::REQUESTED_IP_STRICT)?;
            Addresses::parse(before).ok()
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[expect(clippy::needless_pass_by_value, reason = "cases read better without references")]
    fn requested(demand: Asked<&str>, wish: Option<&str>, pool: Asked<&str>) -> Requested {
        fn map<T>(asked: &Asked<&str>, of: impl FnOnce(&str) -> T) -> Asked<T> {
            match asked {
                Asked::Nothing => Asked::Nothing,
                Asked::For(text) => Asked::For(of(text)),
                Asked::Malformed => Asked::Malformed,
            }
        }
        let parse = |text: &str| Addresses::parse(text).unwrap();
        Requested {
            demand: map(&demand, parse),
            wish: wish.map(parse),
            pool: map(&pool, str::to_owned),
            events: vec![],
        }
    }

    const STRICT: &str = annotations::REQUESTED_IP_STRICT;
    const WISH: &str = annotations::REQUESTED_IP;
    const POOL: &str = annotations::SERVICE_IP_POOL;

    #[rstest]
    #[case::nothing(json!({}), requested(Asked::Nothing, None, Asked::Nothing), json!({}))]
    #[case::a_wish(json!({}), requested(Asked::Nothing, Some("10.0.0.7"), Asked::Nothing), json!({WISH: "10.0.0.7"}))]
    #[case::a_demand_wins(json!({WISH: "10.0.0.7"}),
        requested(Asked::For("10.0.0.8,fd00::8"), Some("10.0.0.7"), Asked::Nothing), json!({STRICT: "10.0.0.8,fd00::8"}))]
    #[case::the_demand_went(json!({STRICT: "10.0.0.8"}), requested(Asked::Nothing, Some("10.0.0.7"), Asked::Nothing),
        json!({WISH: "10.0.0.7"}))]
    #[case::all_went(json!({STRICT: "10.0.0.8", WISH: "10.0.0.7"}), requested(Asked::Nothing, None, Asked::Nothing), json!({}))]
    #[case::malformed_now(json!({STRICT: "10.0.0.8"}), requested(Asked::Malformed, Some("10.0.0.7"), Asked::Nothing),
        json!({STRICT: "10.0.0.8"}))]
    fn the_object_asks_for_what_its_service_asks_for(
        #[case] before: Value,
        #[case] requested: Requested,
        #[case] after: Value,
    ) {
        let mut json = json!({"metadata": {"annotations": before}, "spec": {"ipPool": "of-the-admin"}});
        write(&requested, &mut json);
        assert_eq!(json["metadata"]["annotations"], after);
        assert_eq!(json["spec"]["ipPool"], "of-the-admin");
    }

    #[rstest]
    #[case::asked_for(json!({}), None, Asked::For("edge"), json!({POOL: "edge"}), Some("edge"))]
    #[case::changed(json!({POOL: "edge"}), Some("edge"), Asked::For("lab"), json!({POOL: "lab"}), Some("lab"))]
    #[case::no_more(json!({POOL: "edge"}), Some("edge"), Asked::Nothing, json!({}), None)]
    #[case::malformed_now(json!({POOL: "edge"}), Some("edge"), Asked::Malformed, json!({POOL: "edge"}), Some("edge"))]
    // somebody in Harvester wrote the field
    #[case::anothers(json!({}), Some("edge"), Asked::Nothing, json!({}), Some("edge"))]
    #[case::anothers_since(json!({POOL: "edge"}), Some("lab"), Asked::Nothing, json!({}), Some("lab"))]
    fn the_pool_of_a_service_comes_and_goes_and_that_of_others_stays(
        #[case] annotations: Value,
        #[case] before: Option<&str>,
        #[case] pool: Asked<&str>,
        #[case] annotations_after: Value,
        #[case] after: Option<&str>,
    ) {
        let mut json = json!({"metadata": {"annotations": annotations}, "spec": {}});
        if let Some(before) = before {
            json["spec"]["ipPool"] = before.into();
        }
        write(&requested(Asked::Nothing, None, pool), &mut json);
        assert_eq!(json["metadata"]["annotations"], annotations_after);
        assert_eq!(json["spec"].get("ipPool").and_then(Value::as_str), after);
    }
}
