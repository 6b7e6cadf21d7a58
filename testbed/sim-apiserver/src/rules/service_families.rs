//! The IP families of a Service, as `initIPFamilyFields` of kube-apiserver settles them: before it gives addresses, and
//! on a dry run too.

use serde_json::{Value, json};
use sim_apimachinery::json::{elements, is_unset};
use sim_apimachinery::service::{is_headless, type_of, wants_address};
use sim_apimachinery::status::Cause;

const FAMILIES: [&str; 2] = ["IPv4", "IPv6"];
const POLICY: &str = "spec.ipFamilyPolicy";

/// Fills in `ipFamilyPolicy` and `ipFamilies`, and shortens `clusterIPs` and `ipFamilies` where one of two is given up.
/// `configured` are the families of the server, the first its default.
///
/// # Errors
/// What this server cannot give, and what contradicts itself.
pub(super) fn settle(
    configured: &[&'static str],
    old: Option<&Value>,
    service: &mut Value,
) -> Result<(), Vec<Cause>> {
    // who prefers two is not given a second one, nor loses it, because the server has changed
    if old.is_some_and(|old| prefers_the_same(old, service)) {
        return Ok(());
    }
    let addressed = old.filter(|old| wants_address(old));
    let is_free =
        is_headless(service) && service["spec"]["selector"].as_object().is_none_or(|it| it.is_empty());
    let spec = &mut service["spec"];
    if is_unset(&spec["ipFamilyPolicy"]) {
        let before = addressed.map(|old| &old["spec"]["ipFamilyPolicy"]).filter(|policy| !is_unset(policy));
        let usual = if is_free { "RequireDualStack" } else { "SingleStack" };
        spec["ipFamilyPolicy"] = before.cloned().unwrap_or_else(|| usual.into());
    }
    let policy = spec["ipFamilyPolicy"].clone();
    let wants_one = policy == "SingleStack";
    if elements(&spec["clusterIPs"]).is_empty() && !is_unset(&spec["clusterIP"]) {
        spec["clusterIPs"] = json!([spec["clusterIP"]]);
    }
    let mut causes = vec![];
    if let Some(old) = addressed {
        give_up(old, spec, &policy, &mut causes);
    }
    for (field, what) in [("clusterIPs", "cluster IPs"), ("ipFamilies", "IP families")] {
        if wants_one && elements(&spec[field]).len() == 2 {
            let detail =
                format!("must be 'RequireDualStack' or 'PreferDualStack' when multiple {what} are specified");
            causes.push(Cause::invalid(POLICY, &policy, &detail));
        }
    }
    let mut families: Vec<String> =
        elements(&spec["ipFamilies"]).iter().filter_map(|family| Some(family.as_str()?.to_owned())).collect();
    infer(configured, spec, &mut families, &mut causes);
    if !causes.is_empty() {
        return Err(causes);
    }
    if !is_free {
        causes = not_configured(configured, &policy, &families);
        if !causes.is_empty() {
            return Err(causes);
        }
    }
    if families.is_empty() {
        families.push(configured[0].to_owned());
    }
    // a headless Service without selector may have families that the server has not
    if !wants_one && families.len() == 1 && (is_free || configured.len() == 2) {
        let other = FAMILIES.into_iter().find(|family| families[0] != *family);
        families.extend(other.map(str::to_owned));
    }
    spec["ipFamilies"] = json!(families);
    Ok(())
}

fn prefers_the_same(old: &Value, new: &Value) -> bool {
    let prefers = |service: &Value| service["spec"]["ipFamilyPolicy"] == "PreferDualStack";
    let same = |field: &str| old["spec"][field] == new["spec"][field];
    type_of(old) == type_of(new) && prefers(old) && prefers(new) && same("clusterIPs") && same("ipFamilies")
}

/// The policy alone says that the second family goes; nobody loses it by leaving it out.
fn give_up(old: &Value, spec: &mut Value, policy: &Value, causes: &mut Vec<Cause>) {
    for (field, what) in [("clusterIPs", "cluster IP"), ("ipFamilies", "IP family")] {
        let (before, after) = (elements(&old["spec"][field]), elements(&spec[field]));
        let is_shorter = !after.is_empty() && after.len() < before.len();
        if policy == "SingleStack" {
            if before == after && after.len() > 1 {
                spec[field] = json!([after[0]]);
            }
        } else if is_shorter {
            let detail = format!("must be 'SingleStack' to release the secondary {what}");
            causes.push(Cause::invalid(POLICY, policy, &detail));
        }
    }
}

/// Addresses that were asked for say their families.
fn infer(configured: &[&str], spec: &Value, families: &mut Vec<String>, causes: &mut Vec<Cause>) {
    let addresses = &spec["clusterIPs"];
    for (i, address) in elements(addresses).iter().enumerate().skip(families.len()) {
        let family = match address.as_str() {
            Some("None") | None => break,
            Some(address) if address.contains(':') => "IPv6",
            Some(_) => "IPv4",
        };
        if configured.contains(&family) {
            families.push(family.to_owned());
        } else {
            let detail = format!("{family} is not configured on this cluster");
            causes.push(Cause::invalid(&format!("spec.clusterIPs[{i}]"), addresses, &detail));
        }
    }
}

fn not_configured(configured: &[&str], policy: &Value, families: &[String]) -> Vec<Cause> {
    let mut causes = vec![];
    if policy == "RequireDualStack" && configured.len() < 2 {
        let detail = "this cluster is not configured for dual-stack services";
        causes.push(Cause::invalid(POLICY, policy, detail));
    }
    for (i, family) in
        families.iter().enumerate().filter(|(_, family)| !configured.contains(&family.as_str()))
    {
        let field = format!("spec.ipFamilies[{i}]");
        causes.push(Cause::invalid(&field, &json!(family), "not configured on this cluster"));
    }
    causes
}
