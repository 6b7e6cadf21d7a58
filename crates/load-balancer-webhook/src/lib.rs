//! The admission webhook: checks and completes LoadBalancer objects and IPPools before they are stored.
//!
//! ```text
//! API server ──AdmissionReview──► server ──► limits ──Write──► reviewer ──► load_balancer, ip_pool: validate, mutate (pure)
//!                                   ▲                             │
//!                     certificates  │                             └─ sees: Namespaces, VMs, VMIs (watched), pools, networks
//! secrets ◄──► keep ────────────────┘
//!               └──► both webhook configurations (caBundle)
//! ```
//! Any number of replicas may run: they share the certificates in the secrets, and write the configurations only
//! where they are not as they should be. A review has no side effects, so a dry run is reviewed like any other write.

mod certificate;
pub mod cli;
mod configuration;
pub mod fixtures;
pub mod ip_pool;
mod keep;
mod limits;
pub mod load_balancer;
mod owners;
mod patch;
pub mod review;
mod reviewer;
mod secret;
mod server;
mod status;

use std::io;
use std::net::TcpListener;
use std::time::Duration;

use axum::Router;
use axum_server::tls_rustls::RustlsConfig;
use kube::Client;
use program::{Clock, TaskGroup};

pub use configuration::Address;
pub use keep::Error as KeepError;

/// How long open connections may finish when the process ends.
const GRACE: Duration = Duration::from_secs(5);

/// What the rules depend on besides objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// The one user who may write addresses and records: the load balancer's controller.
    pub status_writer: String,
}

/// What the command line decides.
#[derive(Clone, Debug)]
pub struct Config {
    /// Namespace of the chart: of the secrets, and of the Service.
    pub namespace: String,
    pub policy: Policy,
    /// Where the API server finds us.
    pub address: Address,
}

/// Why the webhook could not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("prepare certificates")]
    Keep(#[from] keep::Error),
    #[error("listen for admission reviews")]
    Listen(#[from] io::Error),
}

/// The webhook without a socket: what answers reviews, and the certificates to serve it with, which are kept good
/// in place. The API server is told where we are as soon as the caller lets other tasks run.
///
/// # Errors
/// No certificate could be had.
pub async fn prepare(
    client: Client,
    clock: Clock,
    config: Config,
    tasks: &TaskGroup,
) -> Result<(Router, RustlsConfig), Error> {
    let Config { namespace, policy, address } = config;
    let reviewer = reviewer::Reviewer::start(tasks, client.clone(), policy).await;
    let keeper = keep::Keeper::start(tasks, client, clock, namespace, address).await;
    let tls = keeper.first().await?;
    tasks.spawn_until_stop(keeper.keep(tls.clone()));
    Ok((server::router(reviewer), tls))
}

/// Serves on `listener` until the life ends.
///
/// # Errors
/// No certificate could be had, or the listener failed.
pub async fn run(
    client: Client,
    clock: Clock,
    config: Config,
    listener: TcpListener,
    tasks: &TaskGroup,
) -> Result<(), Error> {
    let (router, tls) = prepare(client, clock, config, tasks).await?;
    listener.set_nonblocking(true)?;
    let handle = axum_server::Handle::new();
    let server = axum_server::from_tcp_rustls(listener, tls)?.handle(handle.clone());
    let stop = tasks.stop.clone();
    tasks.spawn(async move {
        stop.cancelled().await;
        handle.graceful_shutdown(Some(GRACE));
    });
    server.serve(router.into_make_service()).await?;
    Ok(())
}
