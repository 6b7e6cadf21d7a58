//! The real servers of this process: started for the first test that asks, used by all, ended with the process.

use std::collections::BTreeSet;
use std::env;
use std::process;
use std::time::Duration;

use futures::future::join;
use http::Request;
use serde_json::json;
use tokio::time::sleep;

use super::prepare;
use crate::cluster::{Backend, Cluster};
use crate::inventory;
use crate::manifests::Rights;
use crate::real::{self, Servers};
use crate::user::{GuestCluster, Side, User};

const BETWEEN_LOOKS: Duration = Duration::from_millis(50);

/// Both servers, and what lies on them between two tests.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) servers: Servers,
    rights: Option<Rights>,
    guest_keeps: BTreeSet<String>,
    harvester_keeps: BTreeSet<String>,
}

impl Shared {
    pub(super) async fn start(guest_cluster: &GuestCluster) -> Result<Self, real::Error> {
        let folder = env::temp_dir().join(format!("test-cluster-{}", process::id()));
        let accounts = |side| User::ALL.map(|user| user.account(side, guest_cluster)).to_vec();
        let mut servers = real::start(&folder, accounts).await?;
        servers.remove_folder_at_the_end()?;
        let cluster = |side| {
            let server = servers.side(side).clone();
            let log = std::sync::Mutex::new(server.audit_log());
            Cluster::new(side, guest_cluster.clone(), Backend::Real { server, log })
        };
        let (guest, harvester) = (cluster(Side::Guest), cluster(Side::Harvester));
        for cluster in [&guest, &harvester] {
            prepare::namespaces(cluster, guest_cluster).await;
            prepare::kinds(cluster).await;
        }
        servers.start_controller_managers()?;
        join(until_garbage_is_collected(&guest), until_garbage_is_collected(&harvester)).await;
        let keeps = async |cluster: &Cluster| {
            let objects = inventory::objects(cluster.driver(), cluster.side()).await;
            objects.unwrap_or_else(|error| panic!("list what a fresh server has: {error}"))
        };
        let (guest_keeps, harvester_keeps) = (keeps(&guest).await, keeps(&harvester).await);
        Ok(Self { servers, rights: None, guest_keeps, harvester_keeps })
    }

    /// Takes away what the last test left.
    pub(super) async fn wipe(&self, guest: &Cluster, harvester: &Cluster) {
        let wiped = join(
            inventory::wipe(guest.driver(), Side::Guest, &self.guest_keeps),
            inventory::wipe(harvester.driver(), Side::Harvester, &self.harvester_keeps),
        );
        let (guest, harvester) = wiped.await;
        guest.and(harvester).unwrap_or_else(|error| panic!("wipe the real servers: {error}"));
    }

    /// Changes the roles, where the last test had others, and makes the Secrets that go with them.
    pub(super) async fn give(
        &mut self,
        rights: Rights,
        guest: &Cluster,
        harvester: &Cluster,
        guest_cluster: &GuestCluster,
    ) {
        if self.rights != Some(rights) {
            // in case this is not finished
            self.rights = None;
            prepare::roles(guest, rights, guest_cluster).await;
            prepare::roles(harvester, rights, guest_cluster).await;
            self.rights = Some(rights);
        }
        prepare::secrets(guest, rights, guest_cluster).await;
        prepare::secrets(harvester, rights, guest_cluster).await;
    }
}

/// kube-controller-manager says nowhere that it is ready: it is when an orphan goes.
async fn until_garbage_is_collected(cluster: &Cluster) {
    let map = |name: &str, owners: serde_json::Value| {
        json!({"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"namespace": "default", "name": name, "ownerReferences": owners}})
    };
    let nobody = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "nobody", "uid": "nobody"}]);
    cluster.apply_object(map("orphan", nobody)).await;
    loop {
        let request = Request::get("/api/v1/namespaces/default/configmaps/orphan").body(vec![]);
        match cluster.driver().request_text(request.expect("a constant path")).await {
            Err(kube::Error::Api(status)) if status.is_not_found() => return,
            _ => sleep(BETWEEN_LOOKS).await,
        }
    }
}
