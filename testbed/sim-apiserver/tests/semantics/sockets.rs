//! The same server behind a socket: TLS, tokens, HTTP/1.1 and 2, broken clients.

use futures::{StreamExt, pin_mut};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{ListParams, PostParams, WatchEvent, WatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use sim_apiserver::{ApiServer, User};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::support::{cluster, config_map, refusal};

async fn served(server: &ApiServer) -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = server.clone();
    tokio::spawn(async move { server.serve(listener).await });
    address
}

async fn client(kubeconfig: &str) -> Client {
    let kubeconfig = Kubeconfig::from_yaml(kubeconfig).unwrap();
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    config.proxy_url = None;
    Client::try_from(config).unwrap()
}

#[tokio::test]
async fn a_kubeconfig_of_the_server_reaches_it_as_its_user() {
    let (server, _admin) = cluster();
    let address = served(&server).await;
    let admin = client(&server.kubeconfig(User::admin(), address)).await;
    let maps: Api<ConfigMap> = Api::namespaced(admin, "shop");
    let version = maps.list(&ListParams::default()).await.unwrap().metadata.resource_version.unwrap();
    let events = maps.watch(&WatchParams::default(), &version).await.unwrap();
    pin_mut!(events);
    maps.create(&PostParams::default(), &config_map("a", "1")).await.unwrap();
    assert!(
        matches!(events.next().await, Some(Ok(WatchEvent::Added(map))) if map.metadata.name.as_deref() == Some("a"))
    );
    let eve = client(&server.kubeconfig("eve", address)).await;
    let status = refusal(Api::<ConfigMap>::namespaced(eve, "shop").list(&ListParams::default()).await);
    assert!(status.message.contains("User \"eve\" cannot list"), "{}", status.message);
    let stranger = server.kubeconfig("eve", address).replace(&server.token(&User::named("eve")), "wrong");
    let status = refusal(client(&stranger).await.apiserver_version().await);
    assert_eq!(status.code, 401);
}

#[tokio::test]
async fn a_client_that_speaks_no_tls_harms_nobody() {
    let (server, _admin) = cluster();
    let address = served(&server).await;
    let mut plain = TcpStream::connect(address).await.unwrap();
    plain.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    let mut rest = vec![];
    plain.read_to_end(&mut rest).await.ok();
    let admin = client(&server.kubeconfig(User::admin(), address)).await;
    assert_eq!(admin.apiserver_version().await.unwrap().major, "1");
}

#[tokio::test]
async fn a_body_that_is_too_large_is_refused_and_not_read() {
    let (server, admin) = cluster();
    let body = vec![b' '; 4 * 1024 * 1024];
    let request = http::Request::post("/api/v1/namespaces/shop/configmaps").body(body).unwrap();
    assert_eq!(refusal(admin.request::<serde_json::Value>(request).await).code, 413);
    assert!(server.audit().records().iter().all(|record| record.code != 201));
}
