//! A Kubernetes API server in this process, for tests and the sandbox.
//!
//! ```text
//! ApiServer ──client(user)──► kube::Client      no socket, runs on a paused clock
//!     │ └─────serve(listener)─► TLS, HTTP/1.1 and 2, bearer tokens: an unmodified kubectl
//!     ▼
//! authentication ─► audit ─► faults ─► RBAC ─► admission ─► store ─► watches, garbage collection
//! ```
//! Objects live in memory under one revision counter. What can be decided by looking at a request and an object alone
//! is decided by `sim-apimachinery`; here is what needs the other objects, the time, or a connection. RBAC, admission
//! and validation are never faked: what a test may do here it may do on a real server.
//!
//! ```
//! use k8s_openapi::api::core::v1::ConfigMap;
//! use kube::{Api, api::PostParams};
//! use sim_apiserver::{ApiServer, User};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> kube::Result<()> {
//! let server = ApiServer::builder().seed(1).build();
//! let maps: Api<ConfigMap> = Api::default_namespaced(server.client(User::admin()));
//! let mut map = ConfigMap::default();
//! map.metadata.name = Some("settings".into());
//! let made = maps.create(&PostParams::default(), &map).await?;
//! assert!(made.metadata.resource_version.is_some());
//! assert_eq!(server.audit().records()[0].user, "admin");
//! # Ok(()) }
//! ```
#![forbid(unsafe_code)]

mod admission;
mod aggregated;
mod audit;
mod builder;
mod clock;
mod collect;
mod documents;
mod endpoint;
pub mod faults;
mod form;
mod kind;
mod machinery;
mod options;
mod read;
mod request;
mod review;
mod rights;
mod rules;
mod scale;
mod selection;
mod server;
mod store;
mod transport;
mod user;
mod watch;
mod write;

pub use audit::{Audit, Record};
pub use builder::Builder;
pub use endpoint::Endpoint;
pub use faults::Faults;
pub use request::Verb;
pub use server::{ApiServer, Dropped};
pub use user::User;

/// A refused request: the `Status` that the client gets.
pub(crate) use sim_apimachinery::status::Status as Failure;
