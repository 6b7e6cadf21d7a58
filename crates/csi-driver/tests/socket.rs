//! The driver as a caller sees it: over its socket.

use std::path::{Path, PathBuf};

use csi_driver::csi::identity_client::IdentityClient;
use csi_driver::csi::identity_server::IdentityServer;
use csi_driver::csi::{GetPluginCapabilitiesRequest, GetPluginInfoRequest, ProbeRequest};
use csi_driver::endpoint::{Endpoint, Listener};
use csi_driver::identity::DriverIdentity;
use harvester_api::names::CSI_DRIVER;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tonic::service::Routes;
use tonic::transport::{Channel, Uri};

/// A driver on a socket of its own.
struct Driver {
    stop: oneshot::Sender<()>,
    served: JoinHandle<()>,
}

impl Driver {
    async fn at(path: &Path) -> Self {
        let listener =
            Listener::bind(Endpoint::Unix(path.to_owned())).await.expect("a socket in a fresh folder");
        let (stop, stopped) = oneshot::channel();
        let routes = Routes::new(IdentityServer::new(DriverIdentity::default()));
        let served = tokio::spawn(async move {
            listener
                .serve(routes, async { drop(stopped.await) })
                .await
                .expect("it serves until it is told to stop");
        });
        Self { stop, served }
    }

    async fn end(self) {
        self.stop.send(()).expect("it serves");
        self.served.await.expect("it ends without a panic");
    }
}

async fn channel(path: PathBuf) -> Channel {
    let connect = tower::service_fn(move |_: Uri| {
        let path = path.clone();
        async move { UnixStream::connect(path).await.map(TokioIo::new) }
    });
    // the address is required, and the connector goes by the path alone
    tonic::transport::Endpoint::from_static("http://socket")
        .connect_with_connector(connect)
        .await
        .expect("the driver listens")
}

#[tokio::test]
async fn the_driver_says_who_it_is_and_that_it_lives() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("csi.sock");
    let driver = Driver::at(&path).await;
    let mut client = IdentityClient::new(channel(path).await);
    let info = client.get_plugin_info(GetPluginInfoRequest {}).await.unwrap().into_inner();
    assert_eq!(info.name, CSI_DRIVER);
    assert!(!info.vendor_version.is_empty());
    let capabilities = client.get_plugin_capabilities(GetPluginCapabilitiesRequest {}).await.unwrap();
    assert_eq!(capabilities.into_inner().capabilities.len(), 2);
    assert_eq!(client.probe(ProbeRequest {}).await.unwrap().into_inner().ready, Some(true));
    drop(client);
    driver.end().await;
}

#[tokio::test]
async fn a_socket_that_a_dead_process_left_is_taken_over() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("csi.sock");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let driver = Driver::at(&path).await;
    let mut client = IdentityClient::new(channel(path).await);
    client.probe(ProbeRequest {}).await.unwrap();
    drop(client);
    driver.end().await;
}

// docs/contract/csi-driver.md#end
#[tokio::test]
async fn the_socket_goes_with_the_driver_unless_another_process_has_its_own_there() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("csi.sock");
    let first = Driver::at(&path).await;
    let second = Driver::at(&path).await;
    first.end().await;
    assert!(path.exists());
    second.end().await;
    assert!(!path.exists());
}

#[tokio::test]
async fn a_file_that_is_no_socket_is_not_removed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("csi.sock");
    std::fs::write(&path, "notes").unwrap();
    Listener::bind(Endpoint::Unix(path.clone())).await.unwrap_err();
    assert_eq!(std::fs::read_to_string(path).unwrap(), "notes");
}

#[tokio::test]
async fn a_socket_in_no_folder_is_a_fault_that_names_it() {
    let endpoint = Endpoint::Unix("/nowhere/csi.sock".into());
    let error = Listener::bind(endpoint).await.unwrap_err();
    assert_eq!(error.to_string(), "listen on unix:///nowhere/csi.sock");
}
