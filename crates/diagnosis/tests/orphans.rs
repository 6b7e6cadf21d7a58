//! `orphans` on the simulated servers and on real ones.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

use diagnosis::orphans::{Deletion, Orphan, Report, decide, delete, facts};
use harvester_api::{LoadBalancer, VirtualMachine, annotations};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim, Service};
use kube::ResourceExt as _;
use serde_json::json;
use test_cluster::{TestCluster, User, component_tests};

const VOLUMES: [&str; 2] =
    ["pvc-0a1b2c3d-0000-4000-8000-000000000001", "pvc-0a1b2c3d-0000-4000-8000-000000000002"];

/// Cluster blue with one machine, Service `shop/web` and a PersistentVolume; besides an object whose Service is gone, one
/// of a cluster that is gone, and a volume that nobody names.
async fn prepare(cluster: &TestCluster) {
    cluster
        .harvester
        .apply(
            "{apiVersion: kubevirt.io/v1, kind: VirtualMachine, metadata: {name: n1, namespace: team-a,
               labels: {guestcluster.harvesterhci.io/name: blue}},
               spec: {runStrategy: Always, template: {metadata: {}, spec: {}}}}",
        )
        .await;
    let uid = cluster.harvester.get::<VirtualMachine>("team-a/n1").await.unwrap().uid().unwrap();
    let kubernetes = cluster.guest.get::<Service>("default/kubernetes").await;
    let kubernetes = kubernetes.map(|service| service.uid().unwrap());
    cluster
        .guest
        .apply(&format!(
            "{{apiVersion: v1, kind: Node, metadata: {{name: n1}}, spec: {{providerID: 'harvester://{uid}'}}}}
---
{{apiVersion: v1, kind: Namespace, metadata: {{name: shop}}}}
---
{{apiVersion: v1, kind: Service, metadata: {{name: web, namespace: shop}},
  spec: {{type: LoadBalancer, ports: [{{name: http, port: 80}}]}}}}
---
{{apiVersion: v1, kind: PersistentVolume, metadata: {{name: pv}}, spec: {{capacity: {{storage: 1Gi}},
  accessModes: [ReadWriteOnce], csi: {{driver: driver.harvesterhci.io, volumeHandle: {}}}}}}}
",
            VOLUMES[0]
        ))
        .await;
    let ready = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    cluster.guest.patch_status::<Node>("n1", ready).await;
    for (name, of, service) in [("live", "blue", "web"), ("old", "blue", "gone"), ("far", "red", "web2")] {
        let uid = if of == "blue" { kubernetes.clone() } else { Some("c7".to_owned()) };
        let notes = uid.map_or(json!({}), |uid| json!({annotations::CLUSTER_UID: uid}));
        cluster
            .harvester
            .apply(&format!(
                "{{apiVersion: loadbalancer.harvesterhci.io/v1beta1, kind: LoadBalancer,
                   metadata: {{name: {name}, namespace: team-a, annotations: {notes},
                     labels: {{cloudprovider.harvesterhci.io/cluster: {of},
                       cloudprovider.harvesterhci.io/serviceNamespace: shop,
                       cloudprovider.harvesterhci.io/serviceName: {service}}}}},
                   spec: {{workloadType: cluster}}}}"
            ))
            .await;
    }
    for name in VOLUMES {
        cluster
            .harvester
            .apply(&format!(
                "{{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {{name: {name}, namespace: team-a,
                   labels: {{guestcluster.harvesterhci.io/name: blue}}}},
                   spec: {{accessModes: [ReadWriteMany], volumeMode: Block, resources: {{requests: {{storage: 1Gi}}}}}}}}"
            ))
            .await;
    }
}

/// `orphans`, as in two hours: claims are no longer young.
async fn report(cluster: &TestCluster, harvester: User) -> Report {
    let (guest, client) = (cluster.guest.client(User::Driver), cluster.harvester.client(harvester));
    let claims = cluster.harvester.list::<PersistentVolumeClaim>().await;
    let made = claims.iter().filter_map(|claim| claim.creation_timestamp()).map(|time| time.0).max();
    let now: Timestamp = made.unwrap() + SignedDuration::from_hours(2);
    decide(&facts::read_both(Ok(&guest), &client, "team-a", now).await)
}

fn found(report: &Report) -> Vec<(&str, Deletion)> {
    report.orphans.iter().map(|orphan| (orphan.name.as_str(), orphan.delete)).collect()
}

async fn balancers(cluster: &TestCluster) -> Vec<String> {
    let mut names: Vec<_> =
        cluster.harvester.list::<LoadBalancer>().await.iter().map(|object| object.name_any()).collect();
    names.sort_unstable();
    names
}

component_tests! {
    async fn what_is_chosen_is_deleted_and_what_a_living_cluster_uses_stays(cluster: TestCluster) {
        prepare(&cluster).await;
        let before = report(&cluster, User::Driver).await;
        let expected = [("far", Deletion::Typed), ("old", Deletion::Asked), (VOLUMES[1], Deletion::Typed)];
        assert_eq!(found(&before), expected, "{before:#?}");
        assert_eq!(before.not_read, [""; 0]);
        let chosen: Vec<&Orphan> = before.orphans.iter().collect();
        let client = cluster.harvester.client(User::Driver);
        let outcomes = delete::delete(&client, &chosen).await;
        assert!(outcomes.iter().all(|outcome| outcome.is_deleted), "{outcomes:?}");
        assert_eq!(balancers(&cluster).await, ["live"]);
        let claims = cluster.harvester.list::<PersistentVolumeClaim>().await;
        let left: Vec<_> = claims.iter().filter(|claim| claim.metadata.deletion_timestamp.is_none()).collect();
        assert_eq!(left.iter().map(|claim| claim.name_any()).collect::<Vec<_>>(), [VOLUMES[0]]);
    }

    async fn what_changed_after_it_was_shown_is_not_deleted(cluster: TestCluster) {
        prepare(&cluster).await;
        let before = report(&cluster, User::Driver).await;
        let old: Vec<&Orphan> = before.orphans.iter().filter(|orphan| orphan.name == "old").collect();
        let client = cluster.harvester.client(User::Driver);
        // after the second look: the server finds another version
        let note = json!({"metadata": {"annotations": {"team": "shop"}}});
        cluster.harvester.patch::<LoadBalancer>("team-a/old", note).await;
        let outcomes = delete::delete(&client, &old).await;
        assert!(!outcomes[0].is_deleted, "{outcomes:?}");
        let again = report(&cluster, User::Driver).await;
        let (same, outcomes) = delete::unchanged(&old, &again);
        assert!(same.is_empty() && outcomes[0].sentence.contains("has changed"), "{outcomes:?}");
        // before it: its Service is there again
        cluster.guest.apply("{apiVersion: v1, kind: Service, metadata: {name: gone, namespace: shop},
            spec: {type: LoadBalancer, ports: [{name: http, port: 80}]}}").await;
        let now: Vec<&Orphan> = again.orphans.iter().filter(|orphan| orphan.name == "old").collect();
        let again = report(&cluster, User::Driver).await;
        let (same, outcomes) = delete::unchanged(&now, &again);
        assert!(same.is_empty() && outcomes[0].sentence.contains("somebody may need it"), "{outcomes:?}");
        assert_eq!(balancers(&cluster).await, ["far", "live", "old"]);
    }

    async fn what_was_deleted_is_made_again_by_the_undo(cluster: TestCluster) {
        prepare(&cluster).await;
        let before = report(&cluster, User::Driver).await;
        let chosen: Vec<&Orphan> = before.orphans.iter().collect();
        let undo = delete::undo(&chosen);
        delete::delete(&cluster.harvester.client(User::Driver), &chosen).await;
        // nothing runs here that would take the finalizer of claims off
        let claim = format!("team-a/{}", VOLUMES[1]);
        if cluster.harvester.get::<PersistentVolumeClaim>(&claim).await.is_some() {
            let free = json!({"metadata": {"finalizers": null}});
            cluster.harvester.patch::<PersistentVolumeClaim>(&claim, free).await;
        }
        assert_eq!(balancers(&cluster).await, ["live"]);
        assert!(cluster.harvester.get::<PersistentVolumeClaim>(&claim).await.is_none());

        cluster.harvester.apply(&undo).await;
        let after = report(&cluster, User::Driver).await;
        assert_eq!(found(&after), found(&before), "{after:#?}");
        for (old, new) in before.orphans.iter().zip(&after.orphans) {
            assert_ne!(old.object["metadata"]["uid"], new.object["metadata"]["uid"]);
            for field in ["/spec", "/metadata/labels", "/metadata/annotations"] {
                assert_eq!(old.object.pointer(field), new.object.pointer(field), "{field} of {}", old.name);
            }
        }
    }

    async fn who_may_read_nothing_is_proposed_nothing(cluster: TestCluster) {
        prepare(&cluster).await;
        let report = report(&cluster, User::Nobody).await;
        assert_eq!((report.orphans.len(), report.not_read.len()), (0, 8), "{report:#?}");
        assert_eq!(balancers(&cluster).await, ["far", "live", "old"]);
    }
}
