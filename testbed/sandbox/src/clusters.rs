//! The two clusters: their API servers, kinds, roles and namespaces, and the kubeconfigs by which they are reached.

pub(crate) mod aggregated;
mod served;

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use kube::Client;
use program::TaskGroup;
use serde_json::Value;
use sim_apiserver::User as Account;
use sim_harvester::admission;
use test_cluster::{GuestCluster, Rights, Side, User, manifests, releases};

use crate::{
    folder::Folder,
    manifests::{apply, apply_one},
    options::{self, Server},
};
use served::Served;

/// Both clusters; they end when this is dropped or its life ends.
pub(crate) struct Clusters {
    pub(crate) guest: Cluster,
    pub(crate) harvester: Cluster,
    _real: Option<test_cluster::real::Servers>,
}

/// Name of Rancher's user.
pub(crate) const RANCHER: &str = "u-rancher";

/// An administrator, as Rancher's user is; a user of its own, so that its requests can be counted.
fn rancher_account() -> Account {
    Account::named(RANCHER).with_group("system:masters")
}

/// Who reads for Harvester's webhooks: an administrator, whom no rule of faults hits that names no user; another one than the
/// user of the sandbox, so that the audit log tells their requests apart.
fn webhooks_account() -> Account {
    let (namespace, name) = admission::SERVICE;
    Account::service_account(namespace, name).with_group("system:masters")
}

/// One of the two.
pub(crate) struct Cluster {
    side: Side,
    served: Served,
    /// May do everything.
    pub(crate) admin: Client,
    /// Its audit log: one JSON object a line.
    pub(crate) audit: PathBuf,
    dir: PathBuf,
}

impl Clusters {
    /// Starts both servers and gives them what a cluster has before anything runs in it.
    ///
    /// # Errors
    /// When a server does not start, or refuses what every cluster has.
    pub(crate) async fn start(options: &options::Options, dir: &Folder, tasks: &TaskGroup) -> Result<Self> {
        let guest_cluster = guest_cluster();
        let mut real = None;
        let [guest, harvester] = match options.server {
            Server::Sim => [
                Served::simulated(Side::Guest, dir, tasks).await?,
                Served::simulated(Side::Harvester, dir, tasks).await?,
            ],
            Server::Real => {
                let accounts = |side| {
                    let users = User::ALL.into_iter().map(|user| user.account(side, &guest_cluster));
                    users.chain([rancher_account(), webhooks_account()]).collect()
                };
                let servers = test_cluster::real::start(&dir.run().join("servers"), accounts).await?;
                let sides = [Side::Guest, Side::Harvester]
                    .map(|side| Served::real(servers.side(side).clone(), &audit_file(dir, side), tasks));
                real = Some(servers);
                sides
            }
        };
        let cluster = |side, served: Served| -> Result<Cluster> {
            let admin = served.client(&User::Driver.account(side, &guest_cluster))?;
            Ok(Cluster { side, served, admin, audit: audit_file(dir, side), dir: dir.to_path_buf() })
        };
        let (guest, harvester) = (cluster(Side::Guest, guest)?, cluster(Side::Harvester, harvester)?);
        for cluster in [&guest, &harvester] {
            cluster.furnish(options, &guest_cluster).await?;
        }
        if let Some(servers) = &mut real {
            // garbage collection looks for new kinds every half minute only: after the kinds are there
            servers.start_controller_managers()?;
        }
        Ok(Self { guest, harvester, _real: real })
    }
}

impl Cluster {
    /// `https://127.0.0.1:<port>`.
    pub(crate) fn url(&self) -> String {
        self.served.url()
    }

    /// The simulated server, for what only it can do.
    pub(crate) fn simulated(&self) -> Option<&sim_apiserver::ApiServer> {
        self.served.simulated_server()
    }

    /// Writes a kubeconfig for `user` that nobody else can read, and answers where it is.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub(crate) fn kubeconfig(&self, user: User, file: &str, namespace: &str) -> Result<PathBuf> {
        let text = self.served.kubeconfig(&user.account(self.side, &guest_cluster()), namespace);
        let path = self.dir.join(file);
        fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600))
            .context("close a kubeconfig to others")?;
        Ok(path)
    }

    /// A kubeconfig for Rancher.
    pub(crate) fn kubeconfig_for_rancher(&self) -> String {
        self.served.kubeconfig(&rancher_account(), crate::VM_NAMESPACE)
    }

    /// A client for what Harvester's webhooks look at.
    ///
    /// # Errors
    /// When no connection can be prepared.
    pub(crate) fn client_for_webhooks(&self) -> Result<Client> {
        self.served.client(&webhooks_account())
    }

    async fn furnish(&self, options: &options::Options, guest: &GuestCluster) -> Result<()> {
        let rights = match options.rights {
            options::Rights::Ours => Rights::Ours,
            options::Rights::Existing => Rights::Existing,
        };
        for name in manifests::namespaces(self.side, guest) {
            let namespace = format!("{{apiVersion: v1, kind: Namespace, metadata: {{name: {name}}}}}");
            apply(&self.admin, "namespace", &namespace).await?;
        }
        let kinds = manifests::kinds(self.side);
        let mut roles = manifests::roles(rights, self.side, guest);
        roles.iter_mut().for_each(|role| releases::cut(role, options.harvester_behaviour.minor));
        for object in kinds.iter().chain(&roles) {
            let name = object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
            apply_one(&self.admin, object).await.with_context(|| format!("apply {name}"))?;
        }
        for kind in kinds {
            let name = kind.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
            established(&self.admin, name).await?;
        }
        Ok(())
    }
}

/// Waits until objects of a kind can be made.
pub(crate) async fn established(client: &Client, name: &str) -> Result<()> {
    use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
    use kube::runtime::{conditions::is_crd_established, wait::await_condition};
    let kinds = kube::Api::<CustomResourceDefinition>::all(client.clone());
    let wait = await_condition(kinds, name, is_crd_established());
    let waited = tokio::time::timeout(std::time::Duration::from_secs(30), wait).await;
    waited.with_context(|| format!("kind {name} was not established within 30 s"))??;
    Ok(())
}

fn guest_cluster() -> GuestCluster {
    GuestCluster { name: crate::GUEST_CLUSTER.to_owned(), vm_namespace: crate::VM_NAMESPACE.to_owned() }
}

fn audit_file(dir: &Path, side: Side) -> PathBuf {
    dir.join(format!("{}.audit.log", side.name()))
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use k8s_openapi::api::rbac::v1::ClusterRole;
    use rstest::rstest;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: options::Options,
    }

    #[rstest]
    #[case::before_patches("v1.7.1", false, true)]
    #[case::before_snapshots("v1.6.0", false, false)]
    #[case::newest("v1.9.0", true, true)]
    #[tokio::test]
    async fn the_role_of_the_csi_driver_is_that_of_the_release(
        #[case] release: &str,
        #[case] may_patch: bool,
        #[case] may_snapshot: bool,
    ) {
        let options = Line::parse_from(["sandbox", "--harvester-behaviour", release]).options;
        let (dir, tasks) = (Folder::take(None).unwrap(), TaskGroup::new());
        let clusters = Clusters::start(&options, &dir, &tasks).await.unwrap();
        let roles = kube::Api::<ClusterRole>::all(clusters.harvester.admin.clone());
        let rules = roles.get("harvesterhci.io:csi-driver").await.unwrap().rules.unwrap();
        let grants = |resource: &str| {
            rules.iter().any(|rule| rule.resources.iter().flatten().any(|granted| granted == resource))
        };
        assert_eq!((grants("virtualmachines"), grants("volumesnapshots")), (may_patch, may_snapshot));
        tasks.end().await;
    }
}
