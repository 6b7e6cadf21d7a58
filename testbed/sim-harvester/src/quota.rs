//! Quotas of a namespace: how much of each is used, and whether one more VM fits.
//!
//! A real Harvester makes the VM's pod, which Kubernetes refuses; then its own controller stops the VM and writes
//! the refusal on it. What is counted here is what a VM's limits and claims say.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{PersistentVolumeClaim, ResourceQuota},
    apimachinery::pkg::api::resource::Quantity,
};
use kube::ResourceExt;
use serde_json::{Value, json};

use crate::merge_patch;

/// The used amount of each resource that a quota can limit, in thousandths.
pub(crate) type Usage = BTreeMap<&'static str, i128>;

const LIMITS_CPU: &str = "limits.cpu";
const LIMITS_MEMORY: &str = "limits.memory";
const STORAGE: &str = "requests.storage";
const CLAIMS: &str = "persistentvolumeclaims";

/// A quantity as Kubernetes writes it (`500m`, `4`, `8Gi`), in thousandths; `None` where it is none.
pub(crate) fn thousandths(text: &str) -> Option<i128> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor = match unit {
        "m" => 1,
        "" => 1_000,
        "k" => 1_000_000,
        "M" => 1_000_000_000,
        "G" => 1_000_000_000_000,
        "T" => 1_000_000_000_000_000,
        "P" => 1_000_000_000_000_000_000,
        "Ki" => 1_000 << 10,
        "Mi" => 1_000 << 20,
        "Gi" => 1_000 << 30,
        "Ti" => 1_000 << 40,
        "Pi" => 1_000 << 50,
        _ => return None,
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let fraction = fraction.get(..fraction.len().min(6)).unwrap_or_default();
    let scale = 10_i128.pow(u32::try_from(fraction.len()).ok()?);
    let value: i128 = format!("{whole}{fraction}").parse().ok()?;
    Some(value * factor / scale)
}

/// Thousandths as Kubernetes writes them.
fn text(thousandths: i128) -> String {
    const GIB: i128 = 1_000 << 30;
    const MIB: i128 = 1_000 << 20;
    match thousandths {
        0 => "0".to_owned(),
        value if value % GIB == 0 => format!("{}Gi", value / GIB),
        value if value % MIB == 0 => format!("{}Mi", value / MIB),
        value if value % 1_000 == 0 => (value / 1_000).to_string(),
        value => format!("{value}m"),
    }
}

/// The resources that a VM of this template needs while it runs.
pub(crate) fn of_vm(template_spec: &Value) -> Usage {
    let limits = &template_spec["domain"]["resources"]["limits"];
    let limit = |name: &str| match &limits[name] {
        Value::String(text) => thousandths(text),
        Value::Number(number) => thousandths(&number.to_string()),
        _ => None,
    };
    let usage = [(LIMITS_CPU, limit("cpu")), (LIMITS_MEMORY, limit("memory"))];
    usage.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}

/// The storage that the claims of a namespace use.
pub(crate) fn of_claims<'a>(claims: impl Iterator<Item = &'a PersistentVolumeClaim>) -> Usage {
    let mut usage = Usage::from([(CLAIMS, 0), (STORAGE, 0)]);
    for claim in claims {
        let requests = claim.spec.as_ref().and_then(|spec| spec.resources.as_ref()?.requests.as_ref());
        let storage = requests.and_then(|requests| thousandths(&requests.get("storage")?.0));
        add(&mut usage, &Usage::from([(CLAIMS, 1_000), (STORAGE, storage.unwrap_or_default())]));
    }
    usage
}

/// Adds `more` to `usage`.
pub(crate) fn add(usage: &mut Usage, more: &Usage) {
    for (name, value) in more {
        *usage.entry(name).or_default() += value;
    }
}

fn hard(quota: &ResourceQuota) -> BTreeMap<String, Quantity> {
    quota.spec.as_ref().and_then(|spec| spec.hard.clone()).unwrap_or_default()
}

/// Why a VM that needs `wanted` may not start beside what is `used`, in the words of Kubernetes' admission.
pub(crate) fn refusal<'a>(
    quotas: impl Iterator<Item = &'a ResourceQuota>,
    used: &Usage,
    wanted: &Usage,
) -> Option<String> {
    quotas.into_iter().find_map(|quota| {
        let hard = hard(quota);
        let exceeded: Vec<_> = wanted
            .iter()
            .filter_map(|(name, value)| {
                let limit = hard.get(*name)?;
                let now = used.get(name).copied().unwrap_or_default();
                (now + value > thousandths(&limit.0)?).then_some((*name, *value, now, &limit.0))
            })
            .collect();
        let all = |part: fn(&(&str, i128, i128, &String)) -> String| {
            exceeded.iter().map(part).collect::<Vec<_>>().join(",")
        };
        (!exceeded.is_empty()).then(|| {
            format!(
                "exceeded quota: {}, requested: {}, used: {}, limited: {}",
                quota.name_any(),
                all(|(name, wanted, ..)| format!("{name}={}", text(*wanted))),
                all(|(name, _, used, _)| format!("{name}={}", text(*used))),
                all(|(name, .., limit)| format!("{name}={limit}")),
            )
        })
    })
}

/// The merge patch of a quota's status, where it is not true any more.
pub(crate) fn status(quota: &ResourceQuota, used: &Usage) -> Option<Value> {
    let hard = hard(quota);
    let used: BTreeMap<_, _> = hard
        .keys()
        .map(|name| (name.clone(), text(used.get(name.as_str()).copied().unwrap_or_default())))
        .collect();
    let json = serde_json::to_value(quota).expect("a quota is JSON");
    merge_patch::needed(&json, json!({"status": {"hard": hard, "used": used}}))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("4", Some(4_000), "4")]
    #[case("500m", Some(500), "500m")]
    #[case("0.5", Some(500), "500m")]
    #[case("8Gi", Some(8_000 << 30), "8Gi")]
    #[case("1.5Gi", Some(1_536_000 << 20), "1536Mi")]
    #[case("0", Some(0), "0")]
    #[case("much", None, "")]
    fn reads_and_writes_quantities(
        #[case] given: &str,
        #[case] expected: Option<i128>,
        #[case] written: &str,
    ) {
        assert_eq!(thousandths(given), expected);
        assert_eq!(expected.map(text).unwrap_or_default(), written);
    }

    fn quota(hard: &Value) -> ResourceQuota {
        serde_json::from_value(json!({"metadata": {"name": "small"}, "spec": {"hard": hard}})).unwrap()
    }

    fn vm(cpu: &Value, memory: &str) -> Usage {
        of_vm(&json!({"domain": {"resources": {"limits": {"cpu": cpu, "memory": memory}}}}))
    }

    #[rstest]
    #[case::fits(json!({"limits.cpu": "4"}), None)]
    #[case::other_resource(json!({"pods": "0"}), None)]
    #[case::processors(json!({"limits.cpu": "3"}),
        Some("exceeded quota: small, requested: limits.cpu=2, used: limits.cpu=2, limited: limits.cpu=3"))]
    #[case::both(json!({"limits.cpu": "3", "limits.memory": "10Gi"}),
        Some("exceeded quota: small, requested: limits.cpu=2,limits.memory=8Gi, used: limits.cpu=2,limits.memory=8Gi, \
              limited: limits.cpu=3,limits.memory=10Gi"))]
    fn one_more_vm_fits_or_not(#[case] hard: Value, #[case] expected: Option<&str>) {
        let quota = quota(&hard);
        let refusal = refusal([&quota].into_iter(), &vm(&json!("2"), "8Gi"), &vm(&json!(2), "8Gi"));
        assert_eq!(refusal.as_deref(), expected);
    }

    #[test]
    fn the_status_counts_what_the_quota_limits_and_is_written_once() {
        let claim =
            json!({"metadata": {"name": "a"}, "spec": {"resources": {"requests": {"storage": "40Gi"}}}});
        let mut used = of_claims([&serde_json::from_value(claim).unwrap()].into_iter());
        add(&mut used, &vm(&json!("2"), "8Gi"));
        let quota = quota(&json!({"limits.cpu": "4", "requests.storage": "100Gi", "pods": "5"}));
        let patch = status(&quota, &used).unwrap();
        assert_eq!(
            patch["status"]["used"],
            json!({"limits.cpu": "2", "requests.storage": "40Gi", "pods": "0"})
        );
        let mut json = serde_json::to_value(&quota).unwrap();
        json_patch::merge(&mut json, &patch);
        assert_eq!(status(&serde_json::from_value(json).unwrap(), &used), None);
    }
}
