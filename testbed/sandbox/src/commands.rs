//! How each part is started: its production name, flags and environment, and a kubeconfig with exactly its rights.
//!
//! Leases are short, so that a restart after a kill does not wait for the old one; nothing else differs from
//! production but the map of addresses for the prober.

use std::{collections::BTreeMap, net::Ipv4Addr};

use anyhow::{Context, Result};
use std::net::TcpListener;
use test_cluster::User;

use crate::{clusters::Clusters, parts::PartCommand};

pub(crate) const WEBHOOK: &str = "harvester-load-balancer-webhook";
pub(crate) const LOAD_BALANCER: &str = "harvester-load-balancer";
pub(crate) const CLOUD_CONTROLLER_MANAGER: &str = "harvester-cloud-provider";

/// Lease, renew deadline and retry period of the parts, as flags and environment take them.
pub(crate) const LEASE: [&str; 3] = ["6s", "5s", "500ms"];

/// Webhook, load balancer and cloud controller manager. Their kubeconfigs are there from now on, also for a user who
/// starts them by hand.
///
/// # Errors
/// When a kubeconfig cannot be written.
pub(crate) fn all(clusters: &Clusters) -> Result<[PartCommand; 3]> {
    Ok([webhook(clusters)?, load_balancer(clusters)?, cloud_controller_manager(clusters)?])
}

fn webhook(clusters: &Clusters) -> Result<PartCommand> {
    let kubeconfig =
        clusters.harvester.kubeconfig(User::Webhook, "webhook.kubeconfig", "harvester-system")?;
    let port = free_port()?;
    Ok(PartCommand {
        name: WEBHOOK.to_owned(),
        program: WEBHOOK,
        mounts_of: None,
        args: vec![
            format!("--https-port={port}"),
            "--namespace=harvester-system".to_owned(),
            format!("--url=https://127.0.0.1:{port}"),
        ],
        environment: environment(&[("KUBECONFIG", &kubeconfig.display().to_string())]),
    })
}

fn load_balancer(clusters: &Clusters) -> Result<PartCommand> {
    let kubeconfig =
        clusters.harvester.kubeconfig(User::LoadBalancer, "load-balancer.kubeconfig", "harvester-system")?;
    Ok(PartCommand {
        name: LOAD_BALANCER.to_owned(),
        program: LOAD_BALANCER,
        mounts_of: None,
        args: vec!["--dial-map=198.18.0.0/16=127.18.0.0/16".to_owned()],
        environment: environment(&[
            ("KUBECONFIG", &kubeconfig.display().to_string()),
            ("CATTLE_ELECTION_LEASE_DURATION", LEASE[0]),
            ("CATTLE_ELECTION_RENEW_DEADLINE", LEASE[1]),
            ("CATTLE_ELECTION_RETRY_PERIOD", LEASE[2]),
        ]),
    })
}

fn cloud_controller_manager(clusters: &Clusters) -> Result<PartCommand> {
    let user = User::CloudControllerManager;
    let cloud = clusters.harvester.kubeconfig(user, "cloud-config", crate::VM_NAMESPACE)?;
    let guest = clusters.guest.kubeconfig(user, "cloud-controller-manager.kubeconfig", "kube-system")?;
    let guest = guest.display().to_string();
    Ok(PartCommand {
        name: CLOUD_CONTROLLER_MANAGER.to_owned(),
        program: CLOUD_CONTROLLER_MANAGER,
        mounts_of: None,
        args: vec![
            format!("--cloud-config={}", cloud.display()),
            format!("--kubeconfig={guest}"),
            format!("--cluster-name={}", crate::GUEST_CLUSTER),
            "--data-path=annotation".to_owned(),
            "--bind-address=127.0.0.1".to_owned(),
            format!("--secure-port={}", free_port()?),
            format!("--leader-elect-lease-duration={}", LEASE[0]),
            format!("--leader-elect-renew-deadline={}", LEASE[1]),
            format!("--leader-elect-retry-period={}", LEASE[2]),
        ],
        environment: environment(&[("KUBECONFIG", &guest)]),
    })
}

pub(crate) fn environment(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

/// A port that was free a moment ago.
///
/// # Errors
/// When this machine has none.
pub(crate) fn free_port() -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("find a free port")?;
    Ok(listener.local_addr().context("find a free port")?.port())
}
