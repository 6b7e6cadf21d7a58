//! What Harvester has for load balancers: the kinds, the webhook, pools.

use harvester_api::finalizers;
use jiff::{SignedDuration, Timestamp};
use load_balancer::fields;
use serde_json::Value;

use super::{
    super::{
        Outcome,
        facts::{Facts, Failed, Trouble},
        read,
    },
    answer, asked_of_harvester, config, got, items, some, unread, unserved,
};
use crate::json::{is_deleted, key, members, text};

/// The kinds, as the server's list of its resources names them.
const KINDS: [&str; 2] = ["loadbalancers", "ippools"];

pub(super) fn crds(facts: &Facts) -> Result<Outcome, Outcome> {
    asked_of_harvester(facts)?;
    let missing = unserved(&facts.harvester, read::BALANCER_KINDS, &KINDS)?;
    Ok(if missing.is_empty() {
        Outcome::green("v1beta1 is served")
    } else {
        Outcome::red(
            format!(
                "Harvester does not serve {} of loadbalancer.harvesterhci.io/v1beta1",
                missing.join(" and ")
            ),
            "in Harvester run `kubectl apply --server-side --force-conflicts -f deploy/crds`; the chart harvester-load-balancer \
             makes these kinds too",
        )
    })
}

pub(super) fn crd_fields(facts: &Facts) -> Result<Outcome, Outcome> {
    let missing = missing_fields(facts)?.join(", ");
    if missing.is_empty() {
        return Ok(Outcome::green("no field of this project is missing"));
    }
    let objects = items(&facts.harvester, &read::balancers(&config(facts)?.namespace))?;
    Ok(if objects.iter().any(is_of_our_load_balancer) {
        Outcome::amber(
            format!("Harvester's CRDs have no {missing}: what these fields are for is off"),
            "where one of them is wanted: docs/install.md, Harvester, has the two commands, in their order",
        )
    } else {
        Outcome::green(format!(
            "Harvester's CRDs have no {missing}: these are for the load balancer of this project, which serves no LoadBalancer here"
        ))
    })
}

/// The Go load balancer gives no reason with a condition, and that of this project always does.
fn is_of_our_load_balancer(object: &Value) -> bool {
    let mut conditions = members(&object["status"]["conditions"]).iter();
    conditions
        .any(|it| it["type"] == "Ready" && it["reason"].as_str().is_some_and(|reason| !reason.is_empty()))
}

/// The fields of this project that the kinds have not.
fn missing_fields(facts: &Facts) -> Result<Vec<String>, Outcome> {
    let document = got(&facts.harvester, read::BALANCER_SCHEMAS)?;
    let schemas = document.pointer("/components/schemas").and_then(Value::as_object);
    let is_kind = |schema: &&Value, kind: &str| {
        members(&schema["x-kubernetes-group-version-kind"]).iter().any(|it| it["kind"] == *kind)
    };
    let root = |kind: &str| schemas.and_then(|all| all.values().find(|schema| is_kind(schema, kind)));
    if let Some(kind) = fields::KINDS.into_iter().find(|kind| root(kind).is_none()) {
        return Err(Outcome::not_asked(format!("GET {} does not describe {kind}", read::BALANCER_SCHEMAS)));
    }
    Ok(fields::missing(|field| root(fields::kind_of(field)).is_some_and(|root| has(root, field.path))))
}

/// Of a list its items have the fields.
fn has(schema: &Value, path: &[&str]) -> bool {
    let [name, rest @ ..] = path else { return true };
    let of = if schema["items"].is_object() { &schema["items"] } else { schema };
    of["properties"].get(*name).is_some_and(|field| has(field, rest))
}

pub(super) fn conversion(facts: &Facts) -> Result<Outcome, Outcome> {
    let path = read::former(&config(facts)?.namespace);
    Ok(match answer(&facts.harvester, &path) {
        Ok(list) if list["items"].as_array().is_none_or(Vec::is_empty) => {
            Outcome::not_asked("there is no LoadBalancer here to convert")
        }
        Ok(_) => Outcome::green("v1alpha1 can be read"),
        Err(Failed { trouble: Trouble::NotFound, .. }) => Outcome::green("v1alpha1 is not served"),
        Err(Failed { trouble: Trouble::Refused, why }) => Outcome::red(
            format!("LoadBalancers cannot be converted: {why}"),
            "start the webhook in Harvester; its log says who may write the conversion of the CRD",
        ),
        Err(failed) => unread(&path, failed),
    })
}

/// How the webhook of either program ends the names that it registers.
const WEBHOOK: &str = "harvester-load-balancer-webhook\"";

pub(super) fn webhook(facts: &Facts) -> Result<Outcome, Outcome> {
    let start = "start harvester-load-balancer-webhook in Harvester; its log tells of the certificate and of the registration";
    let is_its = |failed: &Failed| failed.why.contains(WEBHOOK);
    Ok(match &facts.trial {
        Ok(()) => Outcome::red(
            "a LoadBalancer with two listeners of one name is accepted: no webhook judges it",
            start,
        ),
        Err(failed) if is_its(failed) && failed.why.contains("failed calling webhook") => {
            Outcome::red(failed.why.clone(), start)
        }
        Err(failed) if is_its(failed) && failed.why.contains("denied the request") => {
            Outcome::green("it refuses what it is to refuse")
        }
        // another webhook, or the server itself
        Err(failed) => Outcome::not_asked(failed.why.clone()),
    })
}

/// A load balancer looks at an object within seconds.
const ANSWERS_WITHIN: SignedDuration = SignedDuration::from_mins(1);

pub(super) fn load_balancer(facts: &Facts) -> Result<Outcome, Outcome> {
    let balancers = items(&facts.harvester, &read::balancers(&config(facts)?.namespace))?;
    let is_answered = |balancer: &Value| {
        let status = &balancer["status"];
        !members(&status["conditions"]).is_empty()
            || ["allocatedAddress", "address"].iter().any(|field| !status[*field].is_null())
    };
    let is_overdue = |balancer: &Value, since: &str| {
        let since = text(&balancer["metadata"], since).parse::<Timestamp>();
        since.is_ok_and(|since| facts.now_in_harvester().duration_since(since) > ANSWERS_WITHIN)
    };
    // one that somebody deletes before it was looked at gets no status
    let is_silent = |balancer: &&Value| {
        !is_answered(balancer) && is_overdue(balancer, "/creationTimestamp") && !is_deleted(balancer)
    };
    let is_held = |balancer: &&Value| {
        let kept = members(&balancer["metadata"]["finalizers"]);
        is_overdue(balancer, "/deletionTimestamp") && kept.iter().any(|it| *it == finalizers::LOAD_BALANCER)
    };
    let silent: Vec<_> = balancers.iter().filter(is_silent).map(key).collect();
    let held: Vec<_> = balancers.iter().filter(is_held).map(key).collect();
    let of_silent = format!("{} had no status for more than a minute", some(&silent));
    let of_held = format!("{} was deleted more than a minute ago and has its finalizer still", some(&held));
    let told: Vec<_> = [(silent, of_silent), (held, of_held)]
        .into_iter()
        .filter(|it| !it.0.is_empty())
        .map(|it| it.1)
        .collect();
    if !told.is_empty() {
        return Ok(Outcome::red(
            told.join("; "),
            "start harvester-load-balancer in Harvester: `kubectl -n harvester-system get deployments,leases` shows whether it \
             runs and leads, and its log says what stops it",
        ));
    }
    Ok(match balancers.iter().filter(|balancer| is_answered(balancer)).count() {
        0 => Outcome::not_asked("there is no LoadBalancer yet that might have a status"),
        served => Outcome::green(format!("{served} LoadBalancers have a status")),
    })
}

pub(super) fn pools(facts: &Facts) -> Result<Outcome, Outcome> {
    let pools = items(&facts.harvester, read::POOLS)?;
    // a pool that nobody has looked at yet says nothing
    let free: Vec<_> = pools.iter().filter_map(|pool| pool["status"]["available"].as_i64()).collect();
    let all: i64 = free.iter().copied().fold(0, i64::saturating_add);
    Ok(match pools.len() {
        0 => Outcome::amber(
            "Harvester has no IPPool",
            "make one: Services with IPAM pool wait until there is one, those with DHCP need none",
        ),
        count if all == 0 && free.len() == count => {
            Outcome::red(format!("none of {count} IPPools has a free address"), "add a range to one of them")
        }
        count if all == 0 => Outcome::not_asked(format!(
            "{} of {count} IPPools have no status yet, and the others no free address",
            count - free.len()
        )),
        _ => Outcome::green(format!("{all} free addresses in {} IPPools", free.len())),
    })
}
