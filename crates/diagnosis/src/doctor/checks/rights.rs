//! What the credential may do in Harvester.

use program::capabilities::Right;

use super::{
    super::{
        Outcome,
        facts::{Asked, Facts},
    },
    config,
    credential::{bind, of_own_namespace},
    harvester_release, some,
    storage::uses_storage,
};
use crate::shell::shell_word;

const LOAD_BALANCERS: &str = "rights-load-balancers";
const MACHINES: &str = "rights-machines";
const VOLUMES: &str = "rights-volumes";

/// Whether the rights of a check are given: red where the part does not work, amber where something is off.
fn rights(facts: &Facts, check: &str, feature: &str) -> Result<Outcome, Outcome> {
    super::asked_of_harvester(facts)?;
    let config = config(facts)?;
    let namespace = &config.namespace;
    let of_check = || facts.rights.iter().filter(|asked| asked.check == check);
    if of_check().next().is_none() || of_check().any(|asked| asked.allowed.is_none()) {
        return Err(Outcome::not_asked("Harvester does not answer to questions about rights"));
    }
    // one role grants all of these: where nothing of it is bound, one line says so
    let mut of_role = facts.rights.iter().filter(|asked| asked.check != VOLUMES);
    if check != LOAD_BALANCERS && of_role.all(|asked| asked.allowed == Some(false)) {
        return Err(Outcome::waits_for(LOAD_BALANCERS));
    }
    let refused = || of_check().filter(|asked| asked.allowed == Some(false));
    let lame: Vec<_> = refused().filter(|it| it.is_vital || is_only_way(facts, it)).collect();
    // what both parts need is told once
    let is_told = |it: &&Asked| {
        check == VOLUMES
            && facts
                .rights
                .iter()
                .any(|other| other.check == MACHINES && other.is_vital && other.right == it.right)
    };
    if !lame.is_empty() && lame.iter().all(is_told) {
        return Err(Outcome::waits_for(MACHINES));
    }
    if let Some(first) = lame.first() {
        let rights: Vec<_> = lame.iter().map(|it| it.right.to_string()).collect();
        let mend = of_own_namespace(config).unwrap_or_else(|| {
            format!("ClusterRole {} grants it: {}", first.role, bind(config, check == VOLUMES))
        });
        return Ok(Outcome::red(
            format!("not allowed: {}; without the first {}", some(&rights), first.off),
            mend,
        ));
    }
    // what the roles of this release lack cannot be bound
    let release = harvester_release(facts);
    let is_known = |since: &str| release.is_none() || release >= super::release(since).or(Some((0, 0)));
    let off: Vec<_> = refused().filter(|it| is_known(it.since) && !is_other_way(facts, it)).collect();
    Ok(match off.first() {
        None => Outcome::green(format!("all that {feature} need, in namespace {namespace}")),
        Some(first) => Outcome::amber(
            format!("{} of {} rights are missing, and so {}", off.len(), of_check().count(), first.off),
            format!(
                "`harvester-cloud-provider cloud-config inspect{} {}` lists them, what is off without each, and the role to \
                 bind",
                if check == VOLUMES { " --for csi" } else { "" },
                shell_word(&config.file)
            ),
        ),
    })
}

/// Whether machines can be changed: by a PATCH, and by the subresources.
fn ways(facts: &Facts) -> [bool; 2] {
    let is_allowed = |verb: &str, subresource: &str| {
        facts.rights.iter().any(|it| {
            it.allowed == Some(true)
                && (it.right.verb, it.right.resource, it.right.subresource)
                    == (verb, "virtualmachines", subresource)
        })
    };
    [is_allowed("patch", ""), is_allowed("update", "addvolume") && is_allowed("update", "removevolume")]
}

fn is_way(asked: &Asked) -> bool {
    let Right { verb, resource, subresource, .. } = &asked.right;
    matches!(
        (*verb, *resource, *subresource),
        ("patch", "virtualmachines", "") | (_, _, "addvolume" | "removevolume")
    )
}

fn is_only_way(facts: &Facts, asked: &Asked) -> bool {
    is_way(asked) && ways(facts) == [false, false]
}

/// It is not missed, because there is the other way.
fn is_other_way(facts: &Facts, asked: &Asked) -> bool {
    is_way(asked) && ways(facts) != [false, false]
}

pub(super) fn rights_load_balancers(facts: &Facts) -> Result<Outcome, Outcome> {
    rights(facts, LOAD_BALANCERS, "Services of type LoadBalancer")
}

pub(super) fn rights_machines(facts: &Facts) -> Result<Outcome, Outcome> {
    rights(facts, MACHINES, "Nodes")
}

pub(super) fn rights_volumes(facts: &Facts) -> Result<Outcome, Outcome> {
    uses_storage(facts)?;
    rights(facts, VOLUMES, "volumes")
}
