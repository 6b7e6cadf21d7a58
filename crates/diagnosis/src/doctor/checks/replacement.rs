//! Before one set of programs takes the other's place: what must have ended, and what the other one does not know.

use std::collections::{BTreeMap, BTreeSet};

use cloud_config::expiry::Expiry;
use harvester_api::{annotations, labels, names};
use serde_json::Value;

use super::{
    super::{Outcome, facts::Facts, read},
    answer, config,
    credential::{end_of_authority, lasting},
    guest::balanced,
    items, some, unread,
};
use crate::{
    json::{self, annotation, is_deleted, key, label, members, name, text},
    whose::{addresses, cluster_of, is_unnamed, machine_of, service_of, shown},
};

/// Attached or detached only in part.
fn is_under_way(attachment: &Value) -> bool {
    text(attachment, "/spec/attacher") == names::CSI_DRIVER
        && (attachment["status"]["attached"] != true || is_deleted(attachment))
}

pub(super) fn attachments(facts: &Facts) -> Result<Outcome, Outcome> {
    let under_way: Vec<_> = items(&facts.guest, read::ATTACHMENTS)?
        .iter()
        .filter(|attachment| is_under_way(attachment))
        .map(|attachment| {
            let volume = text(attachment, "/spec/source/persistentVolumeName");
            format!("{volume} on {}", text(attachment, "/spec/nodeName"))
        })
        .collect();
    Ok(if under_way.is_empty() {
        Outcome::green("none is under way")
    } else {
        Outcome::red(
            format!("attached or detached in part: {}", some(&under_way)),
            "wait until they have ended; `kubectl get volumeattachments` shows them, their Events say what they wait for",
        )
    })
}

/// The claims that the machine's template has, on the way of a claim or of a DataVolume.
fn claims(machine: &Value) -> impl Iterator<Item = &str> {
    members(&machine["spec"]["template"]["spec"]["volumes"]).iter().filter_map(|volume| {
        let claim = volume["persistentVolumeClaim"]["claimName"].as_str();
        claim.or_else(|| volume["dataVolume"]["name"].as_str())
    })
}

pub(super) fn one_machine(facts: &Facts) -> Result<Outcome, Outcome> {
    let ours: BTreeSet<_> = items(&facts.guest, read::VOLUMES)?
        .iter()
        .filter(|volume| text(volume, "/spec/csi/driver") == names::CSI_DRIVER)
        .map(|volume| text(volume, "/spec/csi/volumeHandle"))
        .collect();
    let mut machines: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for machine in items(&facts.harvester, &read::machines(&config(facts)?.namespace))? {
        for claim in claims(machine).filter(|claim| ours.contains(claim)) {
            machines.entry(claim).or_default().insert(name(machine));
        }
    }
    let twice: Vec<_> = machines
        .iter()
        .filter(|(_, machines)| machines.len() > 1)
        .map(|(claim, machines)| {
            format!("{claim} ({})", machines.iter().copied().collect::<Vec<_>>().join(" and "))
        })
        .collect();
    Ok(if twice.is_empty() {
        Outcome::green(format!("{} volumes", ours.len()))
    } else {
        Outcome::red(
            format!("in two machines: {}", some(&twice)),
            "remove it from the machine whose Node has no VolumeAttachment for it, in Harvester: what two machines write \
             destroys a file system",
        )
    })
}

/// The load balancers of Services that are here, which the name of the Service, its namespace and its address tell.
fn of_this_cluster(facts: &Facts) -> Result<Vec<&Value>, Outcome> {
    let services = balanced(facts)?;
    let shown_by: BTreeMap<String, BTreeSet<_>> =
        services.iter().map(|service| (key(service), shown(service).collect())).collect();
    let is_ours = |object: &&Value| {
        let shown = shown_by.get(&service_of(object));
        shown.is_some_and(|shown| addresses(object).any(|address| shown.contains(&address)))
    };
    let objects = items(&facts.harvester, &read::balancers(&config(facts)?.namespace))?;
    Ok(objects.iter().filter(is_ours).collect())
}

/// The name that the VirtualMachines of the Nodes carry, where they agree on one.
fn name_of_machines(facts: &Facts) -> Option<&str> {
    let nodes = items(&facts.guest, read::NODES).ok()?;
    let machines = items(&facts.harvester, &read::machines(&config(facts).ok()?.namespace)).ok()?;
    let own = nodes.iter().filter_map(|node| machine_of(node, machines));
    let names: BTreeSet<_> = own.filter_map(cluster_of).filter(|name| !is_unnamed(Some(*name))).collect();
    names.first().copied().filter(|_| names.len() == 1)
}

pub(super) fn cluster_name(facts: &Facts) -> Result<Outcome, Outcome> {
    let objects = of_this_cluster(facts)?;
    let names: BTreeSet<_> = objects.iter().filter_map(|object| label(object, labels::CLUSTER)).collect();
    let names: Vec<_> = names.into_iter().collect();
    Ok(match names[..] {
        [] => Outcome::green("there is no load balancer yet: any name will do"),
        [name] if is_unnamed(Some(name)) => Outcome::amber(
            format!("{name}, the name of every guest cluster that was given none: two of them delete each other's objects"),
            match name_of_machines(facts) {
                Some(own) => format!(
                    "set global.cattle.clusterName to {own}, the name on the VirtualMachines of the Nodes: the objects of Services \
                     that are there are taken over"
                ),
                None => "set global.cattle.clusterName to a name that no other guest cluster has: the objects of Services that \
                         are there are taken over"
                    .to_owned(),
            },
        ),
        [name] => Outcome::green(format!(
            "{name}: set it as global.cattle.clusterName; under another one the Go program makes new load balancers"
        )),
        _ => Outcome::red(
            format!("the load balancers of this cluster's Services carry the names {}", some(&names)),
            "all of them serve Services now, so delete none: set the name that most carry as global.cattle.clusterName; the \
             objects of Services that are there are taken over under another name too",
        ),
    })
}

pub(super) fn way_back_data_path(facts: &Facts) -> Result<Outcome, Outcome> {
    let of_machines: Vec<_> = of_this_cluster(facts)?
        .into_iter()
        .filter(|object| text(object, "/spec/workloadType") != "cluster")
        .map(key)
        .collect();
    Ok(if of_machines.is_empty() {
        Outcome::green("all are of type cluster")
    } else {
        Outcome::amber(
            format!("of data path host: {}", some(&of_machines)),
            "their traffic goes on, but the Go cloud controller manager changes them no more: make these Services anew \
             afterwards",
        )
    })
}

/// What the Go programs' types lack, so that their first write drops it.
const BALANCER_FIELDS: [&str; 5] = [
    "/spec/ipv6Pool",
    "/spec/ipFamilyPolicy",
    "/spec/healthCheck/path",
    "/spec/healthCheck/scheme",
    "/status/allocatedAddress/ipv6IP",
];
const POOL_FIELDS: [&str; 2] = ["/spec/quota", "/spec/quarantineSeconds"];

/// The fields of an object that are there and mean something.
fn unknown_to_go<'a>(object: &'a Value, fields: &'a [&str]) -> impl Iterator<Item = String> + 'a {
    let means = |value: &Value| {
        !value.is_null() && *value != 0 && *value != "" && value.as_array().is_none_or(|all| !all.is_empty())
    };
    let there = fields.iter().filter(move |field| object.pointer(field).is_some_and(means));
    there.map(|field| format!("{} ({})", name(object), field.trim_start_matches('/').replace('/', ".")))
}

/// Whether the Go load balancer, which knows no families, gives IPv6 addresses out of the pool: of one of both families, when
/// its ranges of IPv4 are at their end.
fn has_ipv6(pool: &Value) -> bool {
    members(&pool["spec"]["ranges"]).iter().any(|range| text(range, "/subnet").contains(':'))
}

/// A second address in another pool than the first, which is the only one that the Go load balancer gives back.
fn second_elsewhere(balancer: &Value) -> Option<String> {
    let has = |field: &str| text(&balancer["status"]["allocatedAddress"], field);
    let (pool, address) = (has("/ipv6Pool"), has("/ipv6IP"));
    let is_elsewhere = !address.is_empty() && !pool.is_empty() && pool != has("/ipPool");
    is_elsewhere.then(|| format!("{} ({address} of pool {pool})", name(balancer)))
}

/// Negative numbers: one of them, and the Go load balancer cannot list any object of the kind.
fn unreadable_to_go(balancer: &Value) -> impl Iterator<Item = String> {
    let check = balancer["spec"]["healthCheck"].as_object().into_iter().flatten();
    let negative = check.filter(|(_, value)| value.as_i64().is_some_and(|number| number < 0));
    negative.map(|(field, value)| format!("{} (spec.healthCheck.{field} is {value})", name(balancer)))
}

pub(super) fn way_back_fields(facts: &Facts) -> Result<Outcome, Outcome> {
    let objects = items(&facts.harvester, &read::balancers(&config(facts)?.namespace))?;
    // most cloud-configs may not list pools
    let answered = answer(&facts.harvester, read::POOLS);
    let pools = answered.as_ref().map(json::items_or_none).unwrap_or_default();
    let drains = |pool: &Value| {
        let is_draining = members(&pool["spec"]["ranges"]).iter().any(|range| range["drain"] == true);
        is_draining.then(|| format!("{} (spec.ranges.drain)", name(pool)))
    };
    let by_name = |pool: &Value| {
        // as the load balancer reads it
        let is_off = |text: &str| text.trim().eq_ignore_ascii_case("false");
        let is_by_name = annotation(pool, annotations::AUTO_ASSIGN).is_some_and(is_off);
        is_by_name.then(|| format!("{} (auto-assign)", name(pool)))
    };
    let of_pools = pools.iter().flat_map(|pool| {
        unknown_to_go(pool, &POOL_FIELDS).chain(drains(pool)).chain(by_name(pool)).collect::<Vec<_>>()
    });
    let unreadable: Vec<_> = objects.iter().flat_map(unreadable_to_go).collect();
    if !unreadable.is_empty() {
        return Ok(Outcome::red(
            format!("the Go programs cannot list LoadBalancers because of {}", some(&unreadable)),
            "take these numbers out of the objects, or write 0 or more",
        ));
    }
    let of_objects =
        objects.iter().flat_map(|object| unknown_to_go(object, &BALANCER_FIELDS).collect::<Vec<_>>());
    let fields: Vec<_> = of_objects.chain(of_pools).collect();
    let ipv6: Vec<_> = pools.iter().filter(|pool| has_ipv6(pool)).map(|pool| name(pool).to_owned()).collect();
    let seconds: Vec<_> = objects.iter().filter_map(second_elsewhere).collect();
    let found = [
        (
            "unknown to the Go programs",
            fields,
            "keep a copy of these objects: the Go programs pass over the fields, and their first write drops them",
        ),
        (
            "pools with ranges of IPv6, which the Go load balancer gives to Services of IPv4 too, where ranges of IPv4 are at their \
             end or not there",
            ipv6,
            "see that a pool of IPv4 alone serves the same load balancers with a higher priority, or take the ranges out of \
             the pools",
        ),
        (
            "second addresses that the Go load balancer never gives back",
            seconds,
            "make the Services of these load balancers anew for one family before: nobody can delete the pools of these \
             addresses afterwards",
        ),
    ];
    let found: Vec<_> = found.into_iter().filter(|(_, those, _)| !those.is_empty()).collect();
    let sentences: Vec<_> = found.iter().map(|(what, those, _)| format!("{what}: {}", some(those))).collect();
    let mends: Vec<_> = found.iter().map(|(_, _, mend)| *mend).collect();
    Ok(match answered {
        _ if !found.is_empty() => Outcome::amber(sentences.join("; "), mends.join("; ")),
        Ok(_) => Outcome::green("none"),
        Err(failed) => unread(read::POOLS, failed).and(Some("no load balancer asks for it")),
    })
}

pub(super) fn way_back_credential(facts: &Facts) -> Result<Outcome, Outcome> {
    let config = config(facts)?;
    if let Some(sentence) = end_of_authority(config, facts) {
        let mend = format!(
            "have it renewed in Harvester; then {}, and give the Go charts that one",
            lasting(config)
        );
        return Ok(Outcome::red(sentence, mend));
    }
    Ok(match config.expiry {
        Expiry::At(end) => Outcome::red(
            format!("it ends at {end}, and the Go programs neither renew it nor follow a change"),
            format!("{}, and give the Go charts that one, whose token does not end", lasting(config)),
        ),
        Expiry::Never => Outcome::green("it does not end"),
        // as Rancher's own tokens
        Expiry::Unknown => Outcome::not_asked("the credential does not say when it ends"),
    })
}
