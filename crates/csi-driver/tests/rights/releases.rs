//! The roles as releases of Harvester have them.

use test_cluster::{TestCluster, User};
use tonic::Code;

use super::{
    bed::{Bed, Call, codes, process},
    roles::{grant, is_granted_by, pieces, unbind_in_the_cluster},
};

/// Since when a call is granted all that it needs.
fn since(call: Call) -> u32 {
    match call {
        Call::RestoreBackup | Call::DeleteRestored | Call::Backup | Call::DeleteBackup | Call::GetBackup => 8,
        Call::Restore | Call::Snapshot | Call::DeleteSnapshot | Call::GetSnapshot => 7,
        Call::CreateExport | Call::DeleteExport | Call::PublishExport => 4,
        _ => 3,
    }
}

/// The calls that a release grants too little for. What needs no more than the namespace goes on.
fn expected(minor: u32) -> Vec<(Call, Code)> {
    let is_refused = |call: &Call| minor < since(*call);
    Call::ALL.into_iter().filter(is_refused).map(|call| (call, Code::PermissionDenied)).collect()
}

async fn check(cluster: &TestCluster, minors: &[u32]) {
    let bed = Bed::start(cluster, &format!("v1.{}.0", minors[0])).await;
    for minor in minors {
        let mut granted = pieces(cluster);
        granted.retain(|piece| is_granted_by(piece, *minor));
        grant(cluster, &granted).await;
        let service = process(cluster, cluster.harvester.client(User::CsiDriver), &bed.tasks);
        let refused = bed.refused(&service).await;
        assert_eq!(codes(&refused), expected(*minor), "Harvester 1.{minor}: {refused:?}");
        for (call, status) in refused {
            let text = status.message();
            let names = format!("of Harvester 1.{} and later grants this right", since(call));
            assert!(text.contains("harvesterhci.io:csi-driver") && text.contains(&names), "{call:?}: {text}");
        }
    }
    bed.tasks.end().await;
}

/// A K3s guest whose kubeconfig was made by hand.
async fn check_unbound(cluster: &TestCluster, version: &str) {
    let bed = Bed::start(cluster, version).await;
    unbind_in_the_cluster(cluster).await;
    let service = process(cluster, cluster.harvester.client(User::CsiDriver), &bed.tasks);
    let refused = bed.refused(&service).await;
    assert_eq!(codes(&refused), expected(3), "{version}: {refused:?}");
    for (call, status) in refused {
        let text = status.message();
        assert!(text.contains("ClusterRole harvesterhci.io:csi-driver of Harvester"), "{call:?}: {text}");
    }
    bed.tasks.end().await;
}

test_cluster::component_tests! {
    // docs/contract/csi-driver.md#rights
    #[simulated_only("the table of releases is walked by time")]
    async fn up_to_1_7_the_driver_works_by_subresources_with_what_the_release_grants(cluster: TestCluster) {
        check(&cluster, &[7, 6, 5, 4, 3]).await;
    }

    // docs/contract/csi-driver.md#rights
    #[simulated_only("the table of releases is walked by time")]
    async fn from_1_8_on_the_driver_works_by_patches(cluster: TestCluster) {
        check(&cluster, &[9, 8]).await;
    }

    // docs/contract/csi-driver.md#rights
    #[simulated_only("the table of releases is walked by time")]
    async fn up_to_1_7_a_subresource_that_is_refused_is_named(cluster: TestCluster) {
        let bed = Bed::start(&cluster, "v1.7.0").await;
        let mut granted = pieces(&cluster);
        granted.retain(|piece| is_granted_by(piece, 7));
        for (resource, call) in
            [("virtualmachines/addvolume", Call::Publish), ("virtualmachines/removevolume", Call::Unpublish)]
        {
            let without: Vec<_> = granted.iter().filter(|piece| piece.resource != resource).cloned().collect();
            grant(&cluster, &without).await;
            let service = process(&cluster, cluster.harvester.client(User::CsiDriver), &bed.tasks);
            let status = bed.call(&service, call).await.unwrap_err();
            assert_eq!(status.code(), Code::PermissionDenied, "{status}");
            let text = status.message();
            assert!(text.contains(resource) && text.contains("harvesterhci.io:cloudprovider"), "{text}");
            grant(&cluster, &granted).await;
            bed.call(&service, call).await.unwrap();
        }
        bed.tasks.end().await;
    }

    // docs/contract/csi-driver.md#rights
    #[simulated_only("the table of releases is walked by time")]
    async fn on_1_7_the_role_binding_alone_is_enough_for_disks_and_the_rest_is_named(cluster: TestCluster) {
        check_unbound(&cluster, "v1.7.0").await;
    }

    // docs/contract/csi-driver.md#ways: a kubeconfig of an administrator may patch machines, whose instances keep the disk
    #[simulated_only("the host's answer is awaited")]
    async fn on_1_7_a_process_that_may_patch_and_only_detaches_takes_the_disk_out_of_the_instance(
        cluster: TestCluster,
    ) {
        let bed = Bed::start(&cluster, "v1.7.0").await;
        let service = process(&cluster, cluster.harvester.client(User::CsiDriver), &bed.tasks);
        bed.call(&service, Call::Publish).await.unwrap();
        let another = process(&cluster, cluster.harvester.client(User::Driver), &bed.tasks);
        bed.call(&another, Call::Unpublish).await.unwrap();
        bed.tasks.end().await;
    }

    // docs/contract/csi-driver.md#rights
    #[simulated_only("the table of releases is walked by time")]
    async fn on_1_9_the_role_binding_alone_is_enough_for_disks_and_the_rest_is_named(cluster: TestCluster) {
        check_unbound(&cluster, "v1.9.0").await;
    }
}
