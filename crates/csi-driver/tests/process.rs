//! The whole driver in this process, with a host that is not there.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use csi_driver::{
    csi::{
        ControllerGetCapabilitiesRequest, DeleteVolumeRequest, ProbeRequest,
        controller_client::ControllerClient, identity_client::IdentityClient,
    },
    endpoint::Endpoint,
    run::{Parts, Settings, run},
};
use hyper_util::rt::TokioIo;
use kube::{Client, client::Body};
use program::{Clock, TaskGroup, health::Health};
use tokio::{net::UnixStream, task::JoinHandle};
use tonic::{
    Code, Status,
    codegen::http::{Request, Response},
    transport::{Channel, Uri},
};

/// A driver on a socket in `folder`, with the kubeconfig that may come to be there.
struct Driver {
    tasks: TaskGroup,
    health: Health,
    socket: PathBuf,
    served: JoinHandle<()>,
}

impl Driver {
    async fn start(folder: &Path) -> Self {
        Self::on_node(folder, "node-a").await
    }

    /// On the Node of this name, or without a name.
    async fn on_node(folder: &Path, node: &str) -> Self {
        let (tasks, health, socket) = (TaskGroup::new(), Health::default(), folder.join("csi.sock"));
        let nobody = tower::service_fn(|_: Request<Body>| async {
            Err::<Response<Body>, _>(tower::BoxError::from("the guest cluster is away"))
        });
        let parts = Parts {
            guest: Client::new(nobody, "default"),
            clock: Clock::system(),
            health: health.clone(),
            metrics: Arc::default(),
        };
        let settings = Settings {
            endpoint: Endpoint::Unix(socket.clone()),
            node: node.to_owned(),
            holder: "pod-a".to_owned(),
            kubeconfig: Some(folder.join("kubeconfig")),
            rotated: None,
            rotated_secret: None,
            user_agent: "harvester-csi-driver/1".to_owned(),
            host_storage_class: None,
            device_directory: folder.join("by-id"),
            kubelet_root: folder.join("kubelet"),
            max_volumes_per_node: None,
            topology: false,
            interfaces: folder.join("net"),
        };
        let running = tasks.clone();
        let served = tokio::spawn(async move {
            run(parts, settings, &running).await.unwrap();
            running.end().await;
        });
        let driver = Self { tasks, health, socket, served };
        until(|| driver.socket.exists()).await;
        driver
    }

    async fn channel(&self) -> Channel {
        let path = self.socket.clone();
        let connect = tower::service_fn(move |_: Uri| {
            let path = path.clone();
            async move { UnixStream::connect(path).await.map(TokioIo::new) }
        });
        let endpoint = tonic::transport::Endpoint::from_static("http://socket");
        endpoint.connect_with_connector(connect).await.unwrap()
    }

    /// What a call answers that needs the host.
    async fn refusal(&self) -> Status {
        let request = DeleteVolumeRequest { volume_id: "pvc-1".to_owned(), ..DeleteVolumeRequest::default() };
        ControllerClient::new(self.channel().await).delete_volume(request).await.unwrap_err()
    }
}

/// Waits for what comes by real time: a file is looked for every two seconds.
async fn until(is_so: impl Fn() -> bool) {
    while !is_so() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// A kubeconfig for a server that nobody runs.
fn kubeconfig() -> String {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    format!(
        "{{current-context: a, clusters: [{{name: a, cluster: {{server: 'http://127.0.0.1:{port}'}}}}],
           contexts: [{{name: a, context: {{cluster: a}}}}]}}"
    )
}

// docs/contract/csi-driver.md#exits
#[tokio::test]
async fn the_driver_lives_without_a_kubeconfig_and_takes_the_one_that_appears() {
    let folder = tempfile::tempdir().unwrap();
    let driver = Driver::start(folder.path()).await;
    let probe = IdentityClient::new(driver.channel().await).probe(ProbeRequest {}).await.unwrap();
    assert_eq!(probe.into_inner().ready, Some(true));
    let mut controller = ControllerClient::new(driver.channel().await);
    controller.controller_get_capabilities(ControllerGetCapabilitiesRequest {}).await.unwrap();
    let refusal = driver.refusal().await;
    let expected =
        format!("no kubeconfig of the Harvester cluster in {}", folder.path().join("kubeconfig").display());
    assert_eq!(refusal.code(), Code::Unavailable, "{refusal}");
    assert!(refusal.message().contains(&expected), "{refusal}");

    fs::write(folder.path().join("kubeconfig"), kubeconfig()).unwrap();
    until(|| !driver.health.readiness_report().contains("kubeconfig")).await;
    let refusal = driver.refusal().await;
    assert_eq!(
        (refusal.code(), refusal.message().contains("no kubeconfig")),
        (Code::Unavailable, false),
        "{refusal}"
    );

    driver.tasks.stop.cancel();
    driver.served.await.unwrap();
    assert!(!driver.socket.exists());
}

// the Deployment beside the sidecars names no Node, and may run on a machine that is none of Harvester's
#[tokio::test]
async fn a_process_that_was_told_no_node_is_ready_without_knowing_its_machine() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("kubeconfig"), kubeconfig()).unwrap();
    let driver = Driver::on_node(folder.path(), "").await;
    until(|| !driver.health.readiness_report().contains("kubeconfig")).await;
    let report = driver.health.readiness_report();
    assert!(!report.contains("node-id"), "{report}");
    driver.tasks.stop.cancel();
    driver.served.await.unwrap();
}
