//! The driver as one library call, for the process and for tests.
//!
//! ```text
//! kubeconfig ──awaited, followed──► Host ──► controller service ─┐
//!                                     │                          ├─► calls ──► socket
//! guest cluster ──► node ID ◄─────────┘      identity, node ─────┘
//! ```
//! The socket is there before the host is known: identity and node services need it for little, and the controller service
//! answers UNAVAILABLE with the reason. Whatever the host does ends nothing here.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use cloud_config::{CloudConfig, Connection, Options};
use kube::{Client, client::Body};
use program::{
    Clock, TaskGroup,
    health::{Check, Health},
    http::Metrics,
};
use tokio::{sync::watch, time::sleep};
use tonic::{
    codegen::http::{Request, Response},
    service::Routes,
};
use tower::BoxError;

use crate::{
    attach::Attacher,
    calls::Calls,
    controller::{self, ControllerService},
    csi::{controller_server::ControllerServer, identity_server::IdentityServer},
    endpoint::{Endpoint, Listener, ServeError},
    guest::Guest,
    host::Host,
    identity::DriverIdentity,
    node_id::{Finder, Reached},
    replaceable::Replaceable,
};

/// How often a kubeconfig that is not there, or of no use, is looked for.
const LOOK_AGAIN: Duration = Duration::from_secs(2);

/// Clients and services of the process that the driver uses.
#[derive(Clone)]
pub struct Parts {
    /// The cluster whose Pods use the volumes.
    pub guest: Client,
    pub clock: Clock,
    /// Liveness and readiness.
    pub health: Health,
    /// Receives our metrics.
    pub metrics: Metrics,
}

/// The settings that flags decide.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    pub endpoint: Endpoint,
    /// Name of the Node that this runs on; empty where nobody gave it.
    pub node: String,
    /// The kubeconfig for the host, or the folder that it is in.
    pub kubeconfig: Option<PathBuf>,
    /// How requests to the host present themselves.
    pub user_agent: String,
    /// StorageClass of volumes on the host, where the one of the guest names none.
    pub host_storage_class: Option<String>,
    /// The folder of links to disks by their identifiers.
    pub device_directory: PathBuf,
    /// The folder under which kubelet has the volumes of Pods.
    pub kubelet_root: PathBuf,
    pub max_volumes_per_node: Option<u16>,
    /// The kernel's list of network interfaces.
    pub interfaces: PathBuf,
}

/// Serves until `tasks` ends and the calls under way then are answered.
///
/// # Errors
/// When nobody can call: the endpoint cannot be listened on, or takes no connections any more.
pub async fn run(parts: Parts, settings: Settings, tasks: &TaskGroup) -> Result<(), ServeError> {
    let calls = Calls::new(tasks);
    calls.register(&mut parts.metrics.lock().expect("no panic while registering"));
    let guest = Guest::new(parts.guest);
    let (reached, host) = watch::channel(Err("the kubeconfig has not been read yet".to_owned()));

    let (name, _node_id) = watch::channel(None);
    let finder = Finder {
        node: settings.node.clone(),
        guest: guest.clone(),
        host: host.clone(),
        interfaces: settings.interfaces.clone(),
    };
    let controller =
        Replaceable::new(controller_of(unreached("the kubeconfig has not been read yet"), &settings));
    let routes = Routes::new(IdentityServer::new(DriverIdentity)).add_service(controller.clone()).prepare();
    let listener = Listener::bind(settings.endpoint.clone()).await?;

    let serve = {
        let settings = settings.clone();
        move |reached: &Reached| {
            let host = reached.clone().unwrap_or_else(|why| unreached(&why));
            controller.replace(controller_of(host, &settings));
        }
    };
    let (config, options) = (settings.kubeconfig.clone(), Options::named(&settings.user_agent));
    let check = parts.health.readiness("kubeconfig");
    tasks.spawn(follow_host(config, options, reached, serve, check, tasks.clone()));
    tasks.spawn_until_stop(finder.find(name, parts.health.readiness("node-id")));

    listener.serve(calls.of(routes), tasks.stop.clone().cancelled_owned()).await
}

/// The controller service on this host.
fn controller_of(host: Host, settings: &Settings) -> ControllerServer<ControllerService> {
    let settings = controller::Settings { host_storage_class: settings.host_storage_class.clone() };
    ControllerServer::new(ControllerService::new(host.clone(), settings, Attacher::new(host)))
}

/// The host of which nothing is known: each request fails with the reason, so that each call is checked as ever, and is
/// UNAVAILABLE where it needs the host.
fn unreached(why: &str) -> Host {
    let why = why.to_owned();
    let refuse = tower::service_fn(move |_: Request<Body>| {
        let why = why.clone();
        async move { Err::<Response<Body>, _>(BoxError::from(why)) }
    });
    Host::new(Client::new(refuse, "default"), "default")
}

/// Waits for the kubeconfig, tells the host, and follows the file from then on.
async fn follow_host(
    given: Option<PathBuf>,
    options: Options,
    reached: watch::Sender<Reached>,
    serve: impl Fn(&Reached),
    check: Check,
    tasks: TaskGroup,
) {
    let tell = |now: Reached| {
        serve(&now);
        drop(reached.send_replace(now));
    };
    let mut said = String::new();
    let (connection, followed) = loop {
        match connect(given.as_deref(), &options) {
            Ok(connected) => break connected,
            Err(why) => {
                check.fail(why.clone());
                if said != why {
                    tracing::warn!("{why}; it is awaited, and until then the host is out of reach");
                    tell(Err(why.clone()));
                    said = why;
                }
            }
        }
        if tasks.stop.run_until_cancelled(sleep(LOOK_AGAIN)).await.is_none() {
            return;
        }
    };
    tell(Ok(Host::new(connection.client(), connection.namespace())));
    check.pass();
    connection.follow(followed, tasks.stop.clone()).await;
}

/// The connection, and what to follow.
fn connect(given: Option<&Path>, options: &Options) -> Result<(Connection, Option<PathBuf>), String> {
    let (file, followed) = find(given)?;
    let config = CloudConfig::read(&file).map_err(|error| error.to_string())?;
    let connection = Connection::open(&config, options).map_err(|error| error.to_string())?;
    tracing::info!(file = config.file, server = config.server(), namespace = config.namespace, "Harvester");
    Ok((connection, followed))
}

/// The kubeconfig: the given one, else that of the usual places (docs/contract/csi-driver.md#kubeconfig).
fn find(given: Option<&Path>) -> Result<(PathBuf, Option<PathBuf>), String> {
    let given = given.filter(|path| !path.as_os_str().is_empty());
    let mut missing = Vec::new();
    for path in [given, None] {
        match cloud_config::find(path) {
            Ok(file) => return Ok((file, path.map(Path::to_owned))),
            Err(cloud_config::Error::Missing { tried }) => missing.extend(tried),
            Err(error) => return Err(error.to_string()),
        }
    }
    let places: Vec<_> = missing.iter().map(|path| path.display().to_string()).collect();
    Err(format!(
        "no kubeconfig of the Harvester cluster in {}: put one there, or name it with --kubeconfig",
        places.join(", ")
    ))
}
