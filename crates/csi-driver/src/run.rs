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
    sync::Arc,
    time::Duration,
};

use cloud_config::{CloudConfig, Connection, Options};
use controller_kit::error_message;
use futures::FutureExt as _;
use kube::{Client, client::Body};
use program::{
    Clock, TaskGroup,
    health::{Check, Health},
    http::Metrics,
    pod::OwnPod,
};
use tokio::{sync::watch, time::sleep};
use tonic::{
    codegen::http::{Request, Response},
    service::Routes,
};
use tower::BoxError;

use crate::{
    attach::{self, Attacher, export},
    calls::Calls,
    controller::{self, ControllerService},
    csi::{controller_server::ControllerServer, identity_server::IdentityServer, node_server::NodeServer},
    endpoint::{Endpoint, Listener, ServeError},
    guest::Guest,
    host::{Host, missing::Missing, rights},
    identity::DriverIdentity,
    node::{self, NodeService},
    node_id::{Finder, Reached},
    node_monitor::NodeMonitor,
    reconcile::lead::{self, Candidate},
    replaceable::Replaceable,
};

/// How often a kubeconfig that is not there, or of no use, is looked for.
const LOOK_AGAIN: Duration = Duration::from_secs(2);

/// Why the host is out of reach before the first look.
const UNREAD: &str = "the kubeconfig has not been read yet";

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
    /// The name of this process in annotations: no other process has it.
    pub holder: String,
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
    /// Nodes and volumes say where they are.
    pub topology: bool,
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
    let missing = Missing::new(tasks, parts.guest.clone(), parts.clock, OwnPod::of_process(None));
    let guest = Guest::new(parts.guest.clone());
    let (reached, host) = watch::channel(Err(UNREAD.to_owned()));

    let (name, node_id) = watch::channel(None);
    let finder = Finder {
        node: settings.node.clone(),
        guest: guest.clone(),
        host: host.clone(),
        interfaces: settings.interfaces.clone(),
    };
    let monitor = NodeMonitor {
        guest: guest.client(),
        host: host.clone(),
        node: settings.node.clone(),
        machine: node_id.clone(),
        identity: settings.holder.clone(),
        clock: parts.clock,
    };
    let controllers = Controllers {
        settings: controller::Settings {
            host_storage_class: settings.host_storage_class.clone(),
            topology: settings.topology.then(|| guest.clone()),
        },
        attaching: attach::Options {
            max_volumes_per_node: settings.max_volumes_per_node.map(usize::from),
            users: users(guest.clone()),
            ..attach::Options::new(settings.holder.clone())
        },
        tasks: tasks.clone(),
    };
    let (service, attacher) = controllers.on(unreached(UNREAD));
    let controller = Replaceable::new(service);
    let (attachers, attacher) = watch::channel(attacher);
    let candidate = Candidate {
        guest: parts.guest.clone(),
        clock: parts.clock,
        identity: settings.holder.clone(),
        called: controllers.attaching.called.subscribe(),
        attacher,
    };
    let node = NodeService::new(
        node::Settings {
            device_directory: settings.device_directory,
            kubelet_root: settings.kubelet_root,
            max_volumes_per_node: settings.max_volumes_per_node.unwrap_or_default().into(),
            ..node::Settings::default()
        },
        node_id,
    );
    let node = if settings.topology { node.with_topology(guest, settings.node) } else { node };
    let routes = Routes::new(IdentityServer::new(DriverIdentity { topology: settings.topology }))
        .add_service(controller.clone())
        .add_service(NodeServer::new(node))
        .prepare();
    let mut reaching = Reaching {
        given: settings.kubeconfig,
        options: Options::named(&settings.user_agent),
        tell: move |now: Reached| {
            let (service, attacher) = controllers.on(now.clone().unwrap_or_else(|why| unreached(&why)));
            controller.replace(service);
            drop(attachers.send_replace(attacher));
            drop(reached.send_replace(now));
        },
        missing,
        check: parts.health.readiness("kubeconfig"),
        said: String::new(),
    };
    // the first look is before the first call
    let connected = reaching.look();
    let listener = Listener::bind(settings.endpoint).await?;
    tasks.spawn(reaching.follow(connected, tasks.clone()));
    tasks.spawn(monitor.run(tasks.clone()));
    tasks.spawn(lead::stand(candidate, tasks.clone()));
    tasks.spawn_until_stop(finder.find(name, parts.health.readiness("node-id")));

    listener.serve(calls.of(routes), tasks.stop.clone().cancelled_owned()).await
}

/// Makes controller services.
struct Controllers {
    settings: controller::Settings,
    attaching: attach::Options,
    tasks: TaskGroup,
}

impl Controllers {
    /// The one on this host, and its attacher.
    fn on(&self, host: Host) -> (ControllerServer<ControllerService>, Arc<Attacher>) {
        let attacher = Arc::new(Attacher::new(host.clone(), &self.tasks, self.attaching.clone()));
        let service = ControllerService::new(host, self.settings.clone(), attacher.clone());
        (ControllerServer::new(service), attacher)
    }
}

/// The Nodes that use a volume, for the end of an export. One that is leaving is no user any more.
fn users(guest: Guest) -> Arc<export::Users> {
    Arc::new(move |volume: &str| {
        let (guest, volume) = (guest.clone(), volume.to_owned());
        let asked = async move {
            let users = guest.users(&volume).await.map_err(|error| {
                format!(
                    "list the nodes of the guest cluster that use volume {volume}: {}",
                    rights::explained(error_message(&error))
                )
            })?;
            Ok(users.into_iter().filter(|user| !user.is_leaving).map(|user| user.node).collect())
        };
        asked.boxed()
    })
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

/// The way to the host.
struct Reaching<T> {
    given: Option<PathBuf>,
    options: Options,
    /// Hears of the host, or of why there is none.
    tell: T,
    missing: Missing,
    check: Check,
    /// The last reason that was told.
    said: String,
}

impl<T: Fn(Reached)> Reaching<T> {
    /// Looks for the kubeconfig once, and tells the host.
    fn look(&mut self) -> Option<Connected> {
        match connect(self.given.as_deref(), &self.options) {
            Ok(connected) => {
                let namespace = connected.0.namespace();
                let client = self.missing.observe(connected.0.client(), namespace);
                (self.tell)(Ok(Host::new(client, namespace)));
                self.check.pass();
                Some(connected)
            }
            Err(why) => {
                self.check.fail(why.clone());
                if self.said != why {
                    tracing::warn!("{why}; it is awaited, and until then the host is out of reach");
                    (self.tell)(Err(why.clone()));
                    self.said = why;
                }
                None
            }
        }
    }

    /// Looks until there is a kubeconfig, and follows the file from then on.
    async fn follow(mut self, mut connected: Option<Connected>, tasks: TaskGroup) {
        let (connection, followed) = loop {
            if let Some(connected) = connected.take() {
                break connected;
            }
            if tasks.stop.run_until_cancelled(sleep(LOOK_AGAIN)).await.is_none() {
                return;
            }
            connected = self.look();
        };
        connection.follow(followed, tasks.stop.clone()).await;
    }
}

/// A connection, and the path to follow.
type Connected = (Connection, Option<PathBuf>);

fn connect(given: Option<&Path>, options: &Options) -> Result<Connected, String> {
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
