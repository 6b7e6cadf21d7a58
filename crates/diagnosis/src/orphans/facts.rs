//! What is read of both clusters, before anybody judges it.

use jiff::Timestamp;
use kube::Client;

pub(super) use crate::doctor::read::VOLUMES;
use crate::doctor::{
    facts::{Cluster, Failed, Trouble},
    read::{self, cluster},
};

pub(super) fn claims(namespace: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/persistentvolumeclaims")
}

pub(super) fn pods(namespace: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/pods")
}

pub(super) fn snapshots(namespace: &str) -> String {
    format!("/apis/snapshot.storage.k8s.io/v1/namespaces/{namespace}/volumesnapshots")
}

/// Everything that is looked at.
#[derive(Clone, Debug)]
pub struct Facts {
    pub now: Timestamp,
    /// The guest cluster's namespace in Harvester. Nothing of other namespaces is an orphan.
    pub namespace: String,
    /// No answers where there is no kubeconfig of a guest cluster.
    pub guest: Cluster,
    pub harvester: Cluster,
}

/// Reads Harvester, then the guest cluster. `guest` may be missing, as for a cluster that is gone.
pub async fn read_both(
    guest: Result<&Client, String>,
    harvester: &Client,
    namespace: &str,
    now: Timestamp,
) -> Facts {
    let own = [
        read::balancers(namespace),
        read::machines(namespace),
        read::instances(namespace),
        claims(namespace),
        pods(namespace),
        snapshots(namespace),
    ];
    // before the load balancers: a record that is there then has its load balancer in the list
    let pools = cluster(harvester, vec![read::POOLS.to_owned()]).await;
    let mut harvester = cluster(harvester, own.to_vec()).await;
    harvester.answers.extend(pools.answers);
    let paths = [read::NODES, read::SERVICES, VOLUMES].map(str::to_owned).to_vec();
    let guest = match guest {
        Ok(client) => cluster(client, paths).await,
        Err(why) => {
            let failed = Failed { trouble: Trouble::NoAnswer, why };
            Cluster { answers: paths.into_iter().map(|path| (path, Err(failed.clone()))).collect() }
        }
    };
    Facts { now, namespace: namespace.to_owned(), guest, harvester }
}
