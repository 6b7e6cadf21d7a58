//! Connections to a server with TLS, straight and through a proxy.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::sync::{Arc, Mutex};

use cloud_config::{CloudConfig, Connection, Options, Places, places, proxy::Environment};
use sim_apiserver::ApiServer;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

/// A server behind TLS, and the kubeconfig of its administrator.
async fn server() -> String {
    drop(rustls::crypto::ring::default_provider().install_default());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, server) = (listener.local_addr().unwrap(), ApiServer::builder().build());
    let kubeconfig = server.kubeconfig("admin", address);
    tokio::spawn(async move { server.serve(listener).await });
    kubeconfig
}

fn open(kubeconfig: &str) -> Connection {
    let config = CloudConfig::parse(kubeconfig, "cloud-config", &Environment::default()).unwrap();
    Connection::open(&config, &Options::named("part/1")).unwrap()
}

#[tokio::test]
async fn a_server_is_known_by_its_authority_and_knows_us_by_our_token() {
    let kubeconfig = server().await;
    let client = open(&kubeconfig).client();
    assert_eq!(client.apiserver_version().await.unwrap().minor, "33");
    client.list_core_api_versions().await.expect("the administrator's token is taken");
    let stranger = kubeconfig.replace("certificate-authority-data:", "ignored:");
    assert!(open(&stranger).client().apiserver_version().await.is_err(), "its authority is not the system's");
}

// docs/credentials.md: a token that nobody gave out must not keep the parts from Harvester
#[tokio::test]
async fn a_copy_whose_token_the_server_refuses_gives_way_to_its_source() {
    drop(rustls::crypto::ring::default_provider().install_default());
    let [good, forged] = ["c2ln", "Zm9yZ2Vk"].map(|signature| format!("e30.eyJzdWIiOiJhIn0.{signature}"));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, server) =
        (listener.local_addr().unwrap(), ApiServer::builder().token(&good, "admin").build());
    let source = server.kubeconfig("admin", address).replace(&server.token(&"admin".into()), &good);
    tokio::spawn(async move { server.serve(listener).await });
    let folder = tempfile::tempdir().unwrap();
    let given = folder.path().join("source");
    std::fs::write(&given, &source).unwrap();
    std::fs::write(
        folder.path().join(places::COPY_KEY),
        places::copy(&source, &source.replace(&good, &forged)),
    )
    .unwrap();
    let config = Places { given: Some(given), rotated: Some(folder.path().to_owned()) }.read().unwrap();
    assert!(config.is_copy() && config.token() == Some(&*forged));
    let client = Connection::open(&config, &Options::named("part/1")).unwrap().client();
    let refused = client.list_core_api_versions().await.unwrap_err();
    assert!(matches!(refused, kube::Error::Api(status) if status.code == 401));
    client.list_core_api_versions().await.expect("the token of the cloud-config itself is taken");
}

/// A proxy: it keeps the requests that it got, and opens a tunnel.
async fn proxy() -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let requests = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&requests);
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let kept = Arc::clone(&kept);
            tokio::spawn(async move {
                let mut head = vec![0; 4096];
                let length = client.read(&mut head).await.unwrap();
                let head = String::from_utf8_lossy(&head[..length]).into_owned();
                let server = head.split_whitespace().nth(1).unwrap().to_owned();
                kept.lock().unwrap().push(head);
                client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
                let mut server = TcpStream::connect(server).await.unwrap();
                drop(tokio::io::copy_bidirectional(&mut client, &mut server).await);
            });
        }
    });
    (address.to_string(), requests)
}

#[tokio::test]
async fn a_proxy_of_the_kubeconfig_is_used_with_its_password() {
    let (kubeconfig, (proxy, requests)) = (server().await, proxy().await);
    let proxied = kubeconfig.replace(
        "    certificate-authority-data:",
        &format!("    proxy-url: http://me:pa%40ss@{proxy}\n    certificate-authority-data:"),
    );
    assert_eq!(open(&proxied).client().apiserver_version().await.unwrap().minor, "33");
    let requests = requests.lock().unwrap().clone();
    assert_eq!(requests.len(), 1);
    assert!(requests[0].starts_with("CONNECT 127.0.0.1:"), "{requests:?}");
    // me:pa@ss
    assert!(requests[0].contains("Basic bWU6cGFAc3M="), "{requests:?}");
}
