//! What a server makes of the IP families that a Service asks for: one table, for both kinds of server. The guest's
//! server has two networks for cluster addresses, Harvester's has one.
#![cfg(test)]

use k8s_openapi::api::core::v1::Service;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde::Deserialize;
use serde_json::{Value, json};
use test_cluster::{Side, TestCluster, User, component_tests};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    name: String,
    #[serde(default)]
    on_one_family: bool,
    steps: Vec<Step>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Step {
    /// The spec of the new Service; then merged into the one that is there.
    asks: Value,
    /// Policy and families, as `PreferDualStack IPv4 IPv6`, and after a comma the families of its addresses.
    gets: Option<String>,
    /// What the server says instead.
    refused: Option<String>,
}

/// As [`Step::gets`].
fn shown(service: &Service) -> String {
    let spec = service.spec.clone().unwrap_or_default();
    let addresses = spec.cluster_ips.unwrap_or_default();
    assert_eq!(spec.cluster_ip.as_ref(), addresses.first());
    let family = |address: &String| match address.as_str() {
        "None" => "None",
        address if address.starts_with("fd43::") => "IPv6",
        address if address.starts_with("10.") => "IPv4",
        other => panic!("whose address is {other}?"),
    };
    let addresses: Vec<_> = addresses.iter().map(family).collect();
    let mut words = vec![spec.ip_family_policy.unwrap_or_default()];
    words.extend(spec.ip_families.unwrap_or_default());
    format!("{}, {}", words.join(" "), addresses.join(" "))
}

async fn step(services: &Api<Service>, asks: &Value, is_new: bool) -> kube::Result<Service> {
    if is_new {
        let mut object =
            json!({"metadata": {"name": "web"}, "spec": {"ports": [{"port": 80}], "selector": {"a": "b"}}});
        for (field, value) in asks.as_object().unwrap() {
            object["spec"][field] = value.clone();
        }
        let service: Service = serde_json::from_value(object).unwrap();
        return services.create(&PostParams::default(), &service).await;
    }
    services.patch("web", &PatchParams::default(), &Patch::Merge(json!({"spec": asks}))).await
}

component_tests! {
    async fn a_service_gets_the_families_that_the_table_says(cluster: TestCluster) {
        let table: Vec<Line> = serde_saphyr::from_str(include_str!("families.yaml")).unwrap();
        let mut wrong = vec![];
        for line in &table {
            let side = if line.on_one_family { Side::Harvester } else { Side::Guest };
            let services: Api<Service> = Api::namespaced(cluster.side(side).client(User::Driver), "default");
            for (i, wanted) in line.steps.iter().enumerate() {
                let is_right = |outcome: &str| match (&wanted.gets, &wanted.refused) {
                    (Some(gets), None) => outcome == gets,
                    (None, Some(part)) => outcome.contains(part),
                    _ => panic!("{}: a step gets something or is refused", line.name),
                };
                let outcome = match step(&services, &wanted.asks, i == 0).await {
                    Ok(service) => shown(&service),
                    Err(kube::Error::Api(status)) => status.message.clone(),
                    Err(error) => panic!("{error}"),
                };
                if !is_right(&outcome) {
                    wrong.push(format!("{}, step {}: {outcome}", line.name, i + 1));
                }
            }
            drop(services.delete("web", &Default::default()).await);
        }
        assert!(wrong.is_empty(), "{} of {} lines:\n{}", wrong.len(), table.len(), wrong.join("\n"));
    }
}
