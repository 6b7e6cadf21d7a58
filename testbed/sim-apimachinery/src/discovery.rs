//! Discovery: which kinds there are, in the aggregated form that kubectl asks for first and in the old one.

use serde_json::{Value, json};

use crate::kind::{Kind, Scope};

/// Content type of the aggregated documents; without it kubectl falls back to one request for each group version.
pub const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// The aggregated document of `/api` (`core` true: the group without a name) or `/apis` (all others).
pub fn aggregated(kinds: &[&Kind], core: bool) -> Value {
    let groups = groups(kinds)
        .into_iter()
        .filter(|(group, _)| group.is_empty() == core)
        .map(|(group, versions)| {
            let versions = versions
                .into_iter()
                .map(|version| {
                    let resources =
                        of_version(kinds, group, version).map(aggregated_resource).collect::<Vec<_>>();
                    json!({"version": version, "resources": resources, "freshness": "Current"})
                })
                .collect::<Vec<_>>();
            let metadata = if core { json!({}) } else { json!({"name": group}) };
            json!({"metadata": metadata, "versions": versions})
        })
        .collect::<Vec<_>>();
    json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": groups})
}

/// `/api`.
pub fn api_versions(server: &str) -> Value {
    json!({"kind": "APIVersions", "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": server}]})
}

/// `/apis`.
pub fn group_list(kinds: &[&Kind]) -> Value {
    let groups = groups(kinds)
        .into_iter()
        .filter(|(name, _)| !name.is_empty())
        .map(|(name, versions)| group_value(name, &versions))
        .collect::<Vec<_>>();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
}

/// `/apis/<group>`; none if there is no such group.
pub fn group(kinds: &[&Kind], name: &str) -> Option<Value> {
    let (name, versions) = groups(kinds).into_iter().find(|(group, _)| *group == name && !name.is_empty())?;
    let mut group = group_value(name, &versions);
    group["kind"] = "APIGroup".into();
    group["apiVersion"] = "v1".into();
    Some(group)
}

/// `/api/v1` and `/apis/<group>/<version>`; none if there is no such version.
pub fn resource_list(kinds: &[&Kind], group: &str, version: &str) -> Option<Value> {
    let mut resources = Vec::new();
    let mut group_version = None;
    for kind in of_version(kinds, group, version) {
        group_version = Some(kind.api_version());
        let mut resource = json!({
            "name": kind.plural,
            "singularName": kind.singular,
            "namespaced": kind.namespaced(),
            "kind": kind.kind,
            "verbs": kind.verbs,
        });
        if !kind.short_names.is_empty() {
            resource["shortNames"] = json!(kind.short_names);
        }
        if !kind.categories.is_empty() {
            resource["categories"] = json!(kind.categories);
        }
        resources.push(resource);
        for name in &kind.subresources {
            let answer = Subresource::of(kind, name);
            let mut resource = json!({
                "name": format!("{}/{name}", kind.plural),
                "singularName": "",
                "namespaced": kind.namespaced(),
                "kind": answer.kind,
                "verbs": answer.verbs,
            });
            if (answer.group, answer.version) != (&kind.group, &kind.version) {
                resource["group"] = answer.group.into();
                resource["version"] = answer.version.into();
            }
            resources.push(resource);
        }
    }
    let group_version = group_version?;
    Some(
        json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": resources}),
    )
}

fn group_value(name: &str, versions: &[&str]) -> Value {
    let version = |version: &&str| json!({"groupVersion": format!("{name}/{version}"), "version": version});
    let all = versions.iter().map(version).collect::<Vec<_>>();
    let preferred = all.first().cloned();
    json!({"name": name, "versions": all, "preferredVersion": preferred})
}

/// Groups in the order in which they come, each with its versions, the preferred first.
fn groups<'a>(kinds: &[&'a Kind]) -> Vec<(&'a str, Vec<&'a str>)> {
    let mut groups: Vec<(&str, Vec<&str>)> = Vec::new();
    for kind in kinds {
        let at = groups.iter().position(|(group, _)| *group == kind.group).unwrap_or_else(|| {
            groups.push((&kind.group, Vec::new()));
            groups.len() - 1
        });
        if !groups[at].1.contains(&kind.version.as_str()) {
            groups[at].1.push(&kind.version);
        }
    }
    for (_, versions) in &mut groups {
        versions.sort_by(|a, b| priority(b).cmp(&priority(a)).then(a.cmp(b)));
    }
    groups
}

/// `v2` before `v1` before `v1beta2` before `v1beta1` before `v1alpha1`; what is no such version comes last.
fn priority(version: &str) -> (u8, u32, u32) {
    let parsed = || {
        let rest = version.strip_prefix('v')?;
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let major = rest[..digits].parse().ok()?;
        let (stability, minor) = match &rest[digits..] {
            "" => (3, ""),
            rest => match rest.strip_prefix("beta") {
                Some(minor) => (2, minor),
                None => (1, rest.strip_prefix("alpha")?),
            },
        };
        let minor = if minor.is_empty() { 0 } else { minor.parse().ok()? };
        Some((stability, major, minor))
    };
    parsed().unwrap_or((0, 0, 0))
}

fn of_version<'a>(kinds: &'a [&Kind], group: &'a str, version: &'a str) -> impl Iterator<Item = &'a Kind> {
    kinds.iter().copied().filter(move |kind| kind.group == group && kind.version == version)
}

fn aggregated_resource(kind: &Kind) -> Value {
    let scope = match kind.scope {
        Scope::Cluster => "Cluster",
        Scope::Namespaced => "Namespaced",
    };
    let mut resource = json!({
        "resource": kind.plural,
        "responseKind": {"group": kind.group, "version": kind.version, "kind": kind.kind},
        "scope": scope,
        "singularResource": kind.singular,
        "verbs": kind.verbs,
    });
    if !kind.short_names.is_empty() {
        resource["shortNames"] = json!(kind.short_names);
    }
    if !kind.categories.is_empty() {
        resource["categories"] = json!(kind.categories);
    }
    if !kind.subresources.is_empty() {
        let subresources = kind
            .subresources
            .iter()
            .map(|name| {
                let Subresource { group, version, kind, verbs } = Subresource::of(kind, name);
                json!({"subresource": name, "verbs": verbs,
                    "responseKind": {"group": group, "version": version, "kind": kind}})
            })
            .collect::<Vec<_>>();
        resource["subresources"] = json!(subresources);
    }
    resource
}

/// Kind and verbs of a subresource.
struct Subresource<'a> {
    group: &'a str,
    version: &'a str,
    kind: &'a str,
    verbs: &'static [&'static str],
}

impl<'a> Subresource<'a> {
    fn of(kind: &'a Kind, name: &str) -> Self {
        let own = |verbs| Self { group: &kind.group, version: &kind.version, kind: &kind.kind, verbs };
        match name {
            "scale" => Self {
                group: "autoscaling",
                version: "v1",
                kind: "Scale",
                verbs: &["get", "patch", "update"],
            },
            "token" => Self {
                group: "authentication.k8s.io",
                version: "v1",
                kind: "TokenRequest",
                verbs: &["create"],
            },
            "eviction" => Self { group: "policy", version: "v1", kind: "Eviction", verbs: &["create"] },
            "finalize" => own(&["update"]),
            _ => own(&["get", "patch", "update"]),
        }
    }
}

#[cfg(test)]
mod tests;
