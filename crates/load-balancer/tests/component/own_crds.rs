//! On the CRDs as Harvester ships them, which lack the fields of this project.

use std::collections::BTreeSet;

use harvester_api::IPPool;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{Api, ResourceExt as _, api::PostParams};
use load_balancer::fields::OPTIONAL_FIELDS;
use serde_json::{Value, json};
use test_cluster::{TestCluster, User};

use super::{
    fixtures::{address_of, controller, load_balancer, pool, ready_of},
    grants::Log,
};

fn remove(schema: &mut Value, path: &[&str]) {
    let [name, rest @ ..] = path else { return };
    let of = if schema["items"].is_object() { &mut schema["items"] } else { schema };
    let properties = of["properties"].as_object_mut().unwrap();
    match rest {
        [] => drop(properties.remove(*name).unwrap()),
        rest => remove(&mut properties[*name], rest),
    }
}

/// Writes the definitions with or without the fields.
async fn define(cluster: &TestCluster, are_ours: bool) {
    let definitions: Api<CustomResourceDefinition> = Api::all(cluster.harvester.client(User::Driver));
    for name in OPTIONAL_FIELDS.iter().map(|field| field.crd).collect::<BTreeSet<_>>() {
        let version = definitions.get(name).await.unwrap().resource_version();
        let mut kinds = test_cluster::manifests::kinds(test_cluster::Side::Harvester).iter();
        let mut definition = kinds.find(|kind| kind["metadata"]["name"] == name).unwrap().clone();
        definition["metadata"]["resourceVersion"] = version.into();
        let versions = definition["spec"]["versions"].as_array_mut().unwrap();
        for field in OPTIONAL_FIELDS.iter().filter(|field| field.crd == name && !are_ours) {
            let version = versions.iter_mut().find(|version| version["name"] == field.version).unwrap();
            remove(&mut version["schema"]["openAPIV3Schema"], field.path);
        }
        let definition = serde_json::from_value(definition).unwrap();
        definitions.replace(name, &PostParams::default(), &definition).await.unwrap();
    }
    cluster.settle().await;
}

test_cluster::component_tests! {
    // docs/contract/addresses.md#7
    #[simulated_only("the definition of a real server is that of all tests")]
    async fn without_the_fields_of_this_project_addresses_are_given_and_one_line_names_them_until_they_come(
        cluster: TestCluster
    ) {
        define(&cluster, false).await;
        let log = Log::start();
        let said = || log.take().lines().filter(|line| line.contains("the CRDs have no ")).map(str::to_owned).collect::<Vec<_>>();
        let _running = controller(&cluster).await;
        let ours = json!({"spec": {"quota": [{"namespace": "team-a", "max": 1}], "quarantineSeconds": 3600}});
        pool(&cluster, "edge", 10, 20).await;
        cluster.harvester.patch::<IPPool>("edge", ours.clone()).await;
        for name in ["one", "two"] {
            load_balancer(&cluster, name, "").await;
            cluster.settle().await;
            assert!(!address_of(&cluster, name).await.is_empty(), "nobody limits {name}");
        }
        let lines = said();
        let [line] = &lines[..] else { panic!("{lines:?}") };
        for field in &OPTIONAL_FIELDS {
            assert!(line.contains(&format!("{} of ", field.path.join("."))), "{line}");
        }

        define(&cluster, true).await;
        assert_eq!(said(), [""; 0]);
        cluster.harvester.patch::<IPPool>("edge", ours).await;
        load_balancer(&cluster, "three", "").await;
        cluster.settle().await;
        assert_eq!(ready_of(&cluster, "three").await.reason, "QuotaExceeded");
    }
}
