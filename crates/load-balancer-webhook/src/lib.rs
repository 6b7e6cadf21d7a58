//! The admission webhook: checks and completes LoadBalancer objects and IPPools before they are stored.
//!
//! ```text
//! API server ──AdmissionReview──► server ──► limits ──Write──► reviewer ──► load_balancer, ip_pool: validate, mutate (pure)
//!                                   ▲                             │
//!                     certificates  │                             └─ sees: Namespaces, VMs, VMIs (watched), pools, networks
//! secrets ◄──► rotator ─────────────┘
//!                 └──► registrations: both webhook configurations, conversion of LoadBalancer (caBundle)
//! ```
//! Any number of replicas may run: they share the certificates in the secrets, and write the configurations only
//! where they are not as they should be. A review has no side effects, so a dry run is reviewed like any other write.
//! Whoever reaches the port gets an answer: docs/contract/load-balancer.md#9.1 says what that tells any peer.

mod body;
mod certificate;
pub mod cli;
mod conversion;
mod dns;
pub mod fixtures;
mod ip_pool;
mod limits;
mod load_balancer;
mod metrics;
mod owners;
mod patch;
mod peers;
mod pools;
pub mod registration;
mod review;
mod reviewer;
mod rights;
mod rotator;
mod secret;
mod server;
mod status;
mod steps;
mod stored;

use std::io;
use std::net::TcpListener;

use axum::Router;
use axum_server::tls_rustls::RustlsConfig;
use kube::Client;
use program::capabilities::{Capabilities, Wanted};
use program::{Clock, TaskGroup};

pub use metrics::Metrics;
pub use registration::Address;
pub use rotator::Error as RotatorError;

/// The part of the rules that the command line sets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// The one user who may write addresses and records: the load balancer's controller.
    pub status_writer: String,
    /// What load balancers say of themselves is judged, and the selector of a pool that they name counts.
    pub enforce_named_pool_scope: bool,
}

/// The settings of the command line.
#[derive(Clone, Debug)]
pub struct Config {
    /// Namespace of the chart: of the secrets, and of the Service.
    pub namespace: String,
    pub policy: Policy,
    /// The address by which the API server calls the webhook.
    pub address: Address,
}

/// Why the webhook could not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("prepare certificates")]
    Rotator(#[from] RotatorError),
    #[error("listen for admission reviews")]
    Listen(#[from] io::Error),
}

/// The webhook without a socket: the router that answers reviews, and the TLS configuration to serve it with, whose
/// certificates the rotator renews in place. The rotator registers the webhook as soon as the caller yields.
///
/// # Errors
/// No certificate could be had.
pub async fn prepare(
    client: Client,
    clock: Clock,
    config: Config,
    metrics: &Metrics,
    tasks: &TaskGroup,
) -> Result<(Router, RustlsConfig), Error> {
    let Config { namespace, policy, address } = config;
    let needs = rights::needs(&namespace);
    let wanted = Wanted { rights: needs.rights(), fields: Vec::new() };
    let capabilities = Capabilities::start(tasks, client.clone(), wanted);
    capabilities.tell_missing(needs, metrics.rights_missing.clone(), |line| tracing::warn!("{line}"));
    let reviewer = reviewer::Reviewer::start(tasks, client.clone(), policy).await;
    let (names, registrations) =
        (rotator::names(&namespace, &address), registration::all(&namespace, &address));
    let ends = metrics.certificate_ends.clone();
    let rotator = rotator::Rotator::start(tasks, client, clock, namespace, names, registrations, ends).await;
    rotator.heed(&capabilities);
    let tls = rotator.first().await?;
    tasks.spawn_until_stop(rotator.run(tls.clone()));
    Ok((metrics.count(server::router(reviewer)), tls))
}

/// Serves on `listener` until `tasks` stops.
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
    let (router, certificates) = prepare(client, clock, config, &Metrics::default(), tasks).await?;
    Ok(program::serving::tls(tasks, listener, certificates, router).await?)
}
