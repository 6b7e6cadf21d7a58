//! A Harvester behind an address with a path, as Rancher has one for each cluster.

use std::{
    fs,
    sync::{Arc, Mutex},
};

use kube::Client;
use sim_apiserver::User;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream},
};

use super::host::{Host, How};

const PATH: &str = "/k8s/clusters/c-m-x7k2m";

/// Answers one request as Harvester does, if its path begins as it has to; notes the rest of the path.
async fn answer(stream: TcpStream, harvester: Client, asked: Arc<Mutex<Vec<String>>>) {
    let (mut stream, mut head, mut line) = (BufReader::new(stream), Vec::new(), String::new());
    while stream.read_line(&mut line).await.unwrap_or_default() > 2 {
        head.push(std::mem::take(&mut line));
    }
    let Some((method, path)) = head.first().and_then(|line| line.split_once(' ')) else { return };
    let path = path.split(' ').next().unwrap();
    let length = head
        .iter()
        .find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.trim().parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    stream.read_exact(&mut body).await.unwrap();
    let (code, text) = match path.strip_prefix(PATH) {
        None => (404, "{}".to_owned()),
        Some(path) => {
            asked.lock().unwrap().push(format!("{method} {}", path.split('?').next().unwrap()));
            let request =
                http::Request::builder().method(method).uri(path).header("Content-Type", "application/json");
            match harvester.request_text(request.body(body).unwrap()).await {
                Ok(text) => (200, text),
                Err(kube::Error::Api(status)) => (status.code, serde_json::to_string(&status).unwrap()),
                Err(error) => panic!("{error}"),
            }
        }
    };
    let answer = format!(
        "HTTP/1.1 {code} -\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{text}",
        text.len()
    );
    stream.write_all(answer.as_bytes()).await.unwrap();
}

// https://github.com/kubernetes/kubectl/issues/1676
#[tokio::test(flavor = "multi_thread")]
async fn the_check_goes_by_the_path_that_the_servers_address_has() {
    let Some(host) = Host::open().await else { return };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}{PATH}", listener.local_addr().unwrap());
    let (asked, harvester) = (Arc::new(Mutex::new(Vec::new())), host.server.client(User::admin()));
    let noted = asked.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(answer(stream, harvester.clone(), noted.clone()));
        }
    });
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rancher");
    fs::write(&file, fs::read_to_string(host.kubeconfig()).unwrap().replace(&host.address, &address))
        .unwrap();
    let how = How { kubeconfig: Some(file), ..How::default() };
    let told = host.works(&how, "generate_addon.sh", "demo vms").await;
    assert!(told.out.contains("Checking address, certificate and token...done\n"), "{}", told.out);
    let asked = asked.lock().unwrap();
    let check = "POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    assert!(asked.iter().any(|one| one == check), "{asked:?}");
}
