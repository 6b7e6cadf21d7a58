//! All services of a driver in front of an API server, called with bytes.

use csi_driver::{
    attach::{Attacher, Options},
    calls::Calls,
    controller::{ControllerService, Settings},
    csi::{controller_server::ControllerServer, identity_server::IdentityServer, node_server::NodeServer},
    host::Host,
    identity::DriverIdentity,
    node::{self, NodeService},
    node_id::Told,
};
use harvester_api::VirtualMachine;
use http_body_util::{BodyExt as _, Full};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use program::TaskGroup;
use prost::Message;
use serde_json::json;
use sim_apiserver::{ApiServer, User};
use tempfile::TempDir;
use tokio::sync::watch;
use tonic::{
    Code, Status,
    body::Body,
    codegen::http::{HeaderMap, Request},
    service::Routes,
};
use tower::ServiceExt as _;

/// A volume, its claim bound, and a machine that does not run.
pub(crate) const VOLUME: &str = "pvc-1";
pub(crate) const MACHINE: &str = "a";

pub(crate) struct Driver {
    pub(crate) folder: TempDir,
    calls: Calls,
    routes: Routes,
    _server: ApiServer,
}

impl Driver {
    pub(crate) async fn new() -> Self {
        let server = ApiServer::builder().namespace("shop").namespace("harvester-system").build();
        let admin = server.client(User::admin());
        sim_harvester::crds::apply(&admin).await.unwrap();
        objects(&admin).await;
        let (folder, tasks) = (tempfile::tempdir().unwrap(), TaskGroup::new());
        let host = Host::new(admin, "shop");
        let attacher = Attacher::new(host.clone(), &tasks, Options::new("pod-a"));
        let controller = ControllerService::new(host, Settings::default(), attacher);
        let settings = node::Settings {
            device_directory: folder.path().join("by-id"),
            devices: folder.path().join("dev"),
            sysfs: folder.path().join("sys"),
            kubelet_root: folder.path().join("kubelet"),
            max_volumes_per_node: 8,
        };
        std::fs::create_dir(&settings.kubelet_root).unwrap();
        let node = NodeService::new(settings, watch::channel(Some(Told::named(MACHINE))).1);
        let routes = Routes::new(IdentityServer::new(DriverIdentity::default()))
            .add_service(ControllerServer::new(controller))
            .add_service(NodeServer::new(node))
            .prepare();
        Self { folder, calls: Calls::new(&tasks), routes, _server: server }
    }

    /// The answer to a request in these bytes.
    pub(crate) async fn answer(&self, method: &str, message: &[u8]) -> Status {
        let mut framed = vec![0];
        framed.extend(u32::try_from(message.len()).unwrap().to_be_bytes());
        framed.extend(message);
        let request = Request::post(format!("/csi.v1.{method}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .header("grpc-timeout", "5S")
            .body(Body::new(Full::new(framed.into())))
            .unwrap();
        let answer = self.calls.of(self.routes.clone()).oneshot(request).await.unwrap();
        let (head, body) = answer.into_parts();
        let trailers = body.collect().await.unwrap().trailers().cloned().unwrap_or_default();
        let status = |headers: &HeaderMap| Status::from_header_map(headers);
        status(&head.headers).or_else(|| status(&trailers)).unwrap()
    }

    pub(crate) async fn code(&self, method: &str, message: &impl Message) -> Code {
        self.answer(method, &message.encode_to_vec()).await.code()
    }

    /// A path below kubelet's root.
    pub(crate) fn path(&self, name: &str) -> String {
        self.folder.path().join("kubelet").join(name).to_str().unwrap().to_owned()
    }
}

async fn objects(admin: &Client) {
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(admin.clone(), "shop");
    let claim = json!({"metadata": {"name": VOLUME}, "spec": {"volumeMode": "Block", "volumeName": "pv-1",
        "accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}});
    claims.create(&PostParams::default(), &serde_json::from_value(claim).unwrap()).await.unwrap();
    let status = Patch::Merge(json!({"status": {"phase": "Bound", "capacity": {"storage": "1Gi"}}}));
    claims.patch_status(VOLUME, &PatchParams::default(), &status).await.unwrap();
    let template = json!({"spec": {"volumes": [], "domain": {"devices": {"disks": []}}}});
    let vm = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"name": MACHINE},
        "spec": {"runStrategy": "Halted", "template": template}});
    let vm: VirtualMachine = serde_json::from_value(vm).unwrap();
    Api::namespaced(admin.clone(), "shop").create(&PostParams::default(), &vm).await.unwrap();
}
