//! The driver as one library call, for the process and for tests.
//!
//! ```text
//! kubeconfig ──awaited, followed──► Host ──► controller service ─┐
//!                                     │                          ├─► calls ──► socket
//! guest cluster ──► node ID ◄─────────┘      identity, node ─────┘
//! ```
//! The socket is there before the host is known: identity and node services need it for little, and the controller service
//! answers UNAVAILABLE with the reason. Whatever the host does ends nothing here.

use std::{path::PathBuf, sync::Arc};

use cloud_config::{Options, Places};
use credential_rotation::{RotationMetrics, SecretName, life::Life};
use futures::FutureExt as _;
use kube::Client;
use program::{Clock, TaskGroup, health::Health, http::Metrics, pod::OwnPod};
use tokio::sync::watch;
use tonic::service::Routes;

use crate::{
    attach::{self, Attacher, export, moved::Exports},
    calls::Calls,
    controller::{self, ControllerService},
    credential::Credential,
    csi::{controller_server::ControllerServer, identity_server::IdentityServer, node_server::NodeServer},
    endpoint::{Endpoint, Listener, ServeError},
    guest::Guest,
    healing::lead::{self, Candidate},
    host::{
        Host,
        missing::Missing,
        reach::{Reached, Reaching, UNREAD, unreached},
        rights,
    },
    identity::DriverIdentity,
    leading::Leading,
    metrics,
    node::{self, NodeService},
    node_id::{Finder, OwnMachine},
    node_monitor::NodeMonitor,
    refusal::error_message,
    replaceable::Replaceable,
};

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
    /// The folder in which the copy of it with a newer token is mounted.
    pub rotated: Option<PathBuf>,
    /// The Secret of the guest in which the leader keeps that copy.
    pub rotated_secret: Option<SecretName>,
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
    let leading = Leading::default();
    let (life, rotations) = (Life::new(parts.clock), RotationMetrics::default());
    {
        let mut registry = parts.metrics.lock().expect("no panic while registering");
        let renews = settings.rotated_secret.is_some().then_some(&rotations);
        metrics::register(&mut registry, &calls, &leading, &life, renews);
    }
    let missing = Missing::new(tasks, parts.guest.clone(), parts.clock, OwnPod::of_process(None));
    let guest = Guest::new(missing.observe_guest(parts.guest));
    let (host_tx, host) = watch::channel(Err(UNREAD.to_owned()));

    let (node_id_tx, node_id) = watch::channel(None);
    let (own_machine_tx, own_machine) = watch::channel(OwnMachine::default());
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
        machine: own_machine.clone(),
        identity: settings.holder.clone(),
        clock: parts.clock,
        leading: leading.clone(),
    };
    let controllers = Controllers {
        settings: controller::Settings {
            host_storage_class: settings.host_storage_class.clone(),
            topology: settings.topology.then(|| guest.clone()),
        },
        attaching: attach::Options {
            max_volumes_per_node: settings.max_volumes_per_node.map(usize::from),
            users: users(guest.clone()),
            guest: Some(guest.clone()),
            exports: Some(Exports::new(guest.clone(), missing.clone())),
            ..attach::Options::new(settings.holder.clone())
        },
        machine: own_machine,
        tasks: tasks.clone(),
    };
    let (service, attacher) = controllers.on(unreached(UNREAD));
    let controller = Replaceable::new(service);
    let (attacher_tx, attacher) = watch::channel(attacher);
    let options = Options::named(&settings.user_agent);
    let (way_tx, way) = watch::channel(None);
    let credential = Credential {
        way,
        secret: settings.rotated_secret,
        rotates: settings.rotated.is_some(),
        options: options.clone(),
        connect: credential_rotation::connect(options.clone()),
        clock: parts.clock,
        life,
        metrics: rotations,
        missing: missing.clone(),
    };
    let events = missing.clone();
    let candidate = Candidate {
        guest: guest.client(),
        clock: parts.clock,
        identity: settings.holder.clone(),
        called: controllers.attaching.called.subscribe(),
        attacher,
        leading,
        credential: Some(credential.clone()),
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
    let node = if settings.topology { node.with_topology(guest, settings.node, events) } else { node };
    let routes = Routes::new(IdentityServer::new(DriverIdentity { topology: settings.topology }))
        .add_service(controller.clone())
        .add_service(NodeServer::new(node))
        .prepare();
    let tell = move |now: Reached| {
        let (service, attacher) = controllers.on(now.clone().unwrap_or_else(|why| unreached(&why)));
        controller.replace(service);
        drop(attacher_tx.send_replace(attacher));
        drop(host_tx.send_replace(now));
    };
    let check = parts.health.readiness("kubeconfig");
    let places = Places { given: settings.kubeconfig, rotated: settings.rotated };
    let mut reaching = Reaching::new(places, options, missing, check, way_tx, tell);
    // the first look is before the first call
    let connected = reaching.look();
    let listener = Listener::bind(settings.endpoint).await?;
    tasks.spawn(reaching.follow(connected, tasks.clone()));
    tasks.spawn_until_stop(credential.measure());
    tasks.spawn(monitor.run(tasks.clone()));
    tasks.spawn(lead::stand(candidate, tasks.clone()));
    // a process beside the sidecars alone is of use wherever it runs
    let check = (!finder.node.is_empty()).then(|| parts.health.readiness("node-id"));
    tasks.spawn_until_stop(finder.find(node_id_tx, own_machine_tx, check));

    listener.serve(calls.of(routes), tasks.stop.clone().cancelled_owned()).await
}

/// Makes controller services.
struct Controllers {
    settings: controller::Settings,
    attaching: attach::Options,
    /// The machine that this process runs in.
    machine: watch::Receiver<OwnMachine>,
    tasks: TaskGroup,
}

impl Controllers {
    /// The one on this host, and its attacher.
    fn on(&self, host: Host) -> (ControllerServer<ControllerService>, Arc<Attacher>) {
        let host = host.for_cluster_of(self.machine.clone());
        let attacher = Arc::new(Attacher::new(host.clone(), &self.tasks, self.attaching.clone()));
        let service = ControllerService::new(host, self.settings.clone(), attacher.clone());
        (ControllerServer::new(service), attacher)
    }
}

/// The Nodes that use a volume, by the VolumeAttachments of the guest.
pub fn users(guest: Guest) -> Arc<export::Users> {
    Arc::new(move |volume: &str| {
        let (guest, volume) = (guest.clone(), volume.to_owned());
        let asked = async move {
            guest.users(&volume).await.map_err(|error| {
                format!(
                    "list the nodes of the guest cluster that use volume {volume}: {}",
                    rights::explained(error_message(&error))
                )
            })
        };
        asked.boxed()
    })
}
