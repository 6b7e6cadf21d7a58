//! Records of IPPools that are nobody's.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use csi_driver::volume::name::HostName;
use harvester_api::{IPPool, annotations};
use serde_json::Value;

use super::{Deletion, Kept, Kind, Orphan, Report, decide::Seen};
use crate::{doctor::read, json::name, screen::cut, shell::shell_word};

pub(super) fn decide(seen: &Seen<'_>, report: &mut Report) {
    let namespace = &seen.facts.namespace;
    let lists = [read::balancers(namespace), read::machines(namespace), read::instances(namespace)];
    let lists: Result<Vec<_>, _> = lists.iter().map(|path| seen.of_harvester(path)).collect();
    let Ok(lists) = lists else { return };
    let holders: BTreeSet<_> = lists.into_iter().flatten().map(name).collect();
    for object in seen.of_harvester(read::POOLS).unwrap_or_default() {
        let Ok(pool) = serde_json::from_value::<IPPool>(object.clone()) else { continue };
        let records: BTreeMap<_, _> = pool.status.iter().flat_map(|status| &status.allocated).collect();
        for (address, holder) in records {
            let held_by = holder.strip_prefix(&format!("{namespace}/"));
            let Some(gone) = held_by.filter(|held_by| !holders.contains(held_by)) else { continue };
            let (kind, of_pool) = (Kind::PoolRecord, format!("{} {}", name(object), cut(address)));
            // a record of another program is that program's
            let parsed = address.parse().ok();
            let foreign = parsed.and_then(|address| ip_pools::managers::foreign(&pool, address));
            if let Some(program) = foreign {
                let why = format!("{} wrote it, and knows whether {} is gone", cut(&program), cut(holder));
                report.kept.push(Kept { kind, name: of_pool, why });
                continue;
            }
            report.orphans.push(Orphan {
                kind,
                namespace: None,
                name: of_pool,
                of: "-".to_owned(),
                delete: Deletion::ByHand,
                sentence: format!("it is recorded for LoadBalancer {namespace}/{}, which is gone", cut(gone)),
                doubt: None,
                next: Some(release(object, parsed, namespace, gone)),
                object: object.clone(),
            });
        }
    }
}

/// The command that releases the record. A tenant may write a pool's status: text that is no name of an object becomes
/// part of no command.
fn release(pool: &Value, address: Option<IpAddr>, namespace: &str, holder: &str) -> String {
    let pool = shell_word(name(pool));
    let Some(address) = address.filter(|_| HostName::from_handle(holder).is_some()) else {
        return format!(
            "no object can have that name: take the entry out of status.allocated, with \
             kubectl edit ippools.loadbalancer.harvesterhci.io {pool}"
        );
    };
    let value = shell_word(&format!("{}={address}: {namespace}/{holder}", annotations::MANUALLY_RELEASE_IP));
    format!("kubectl annotate ippools.loadbalancer.harvesterhci.io {pool} {value}")
}
