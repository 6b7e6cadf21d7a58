//! A server in front of the guest cluster's, which answers as that one does, but for its version and its clock.

use std::sync::Arc;

use http::{Request, header};
use kube::{Client, client::Body};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

use super::World;

/// What is changed of an answer.
struct Change {
    version: Box<dyn Fn(&mut Value) + Send + Sync>,
    date: Option<&'static str>,
}

/// Serves for as long as the test lasts; answers a kubeconfig.
pub(super) async fn guest(
    world: &World,
    version: impl Fn(&mut Value) + Send + Sync + 'static,
    date: Option<&'static str>,
) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (client, change) = (world.guest.clone(), Arc::new(Change { version: Box::new(version), date }));
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (client, change) = (client.clone(), change.clone());
            // a client that went away has no use for an answer
            tokio::spawn(async move { answer(stream, &client, &change).await.ok() });
        }
    });
    world.copy("guest.kubeconfig", &format!("front-{}", address.port()), |config| {
        config["clusters"][0]["cluster"] = json!({"server": format!("http://{address}")});
        config["users"][0]["user"] = json!({});
    })
}

/// One request on one connection.
async fn answer(mut stream: TcpStream, client: &Client, change: &Change) -> std::io::Result<()> {
    let mut read = Vec::new();
    let end = loop {
        if let Some(end) = read.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
            break end;
        }
        if stream.read_buf(&mut read).await? == 0 {
            return Ok(());
        }
    };
    let head = String::from_utf8_lossy(&read[..end]).into_owned();
    let mut lines = head.lines();
    let mut words = lines.next().unwrap_or_default().split(' ');
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let field = |name: &str| {
        let of = |line: &str| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim().to_owned())
        };
        head.lines().find_map(of)
    };
    let length = field("content-length").and_then(|text| text.parse().ok()).unwrap_or(0);
    let mut body = read.split_off(end + 4);
    while body.len() < length {
        if stream.read_buf(&mut body).await? == 0 {
            return Ok(());
        }
    }
    let request = Request::builder().method(method).uri(path);
    let request = request.header(header::CONTENT_TYPE, field("content-type").unwrap_or_default());
    let given = client.send(request.body(Body::from(body)).unwrap()).await.unwrap();
    let (status, headers) = (given.status().as_u16(), given.headers().clone());
    let mut body = given.into_body().collect_bytes().await.unwrap().to_vec();
    if path == "/version" {
        let mut version: Value = serde_json::from_slice(&body).unwrap();
        (change.version)(&mut version);
        body = version.to_string().into_bytes();
    }
    let of_server = headers.get(header::DATE).and_then(|date| date.to_str().ok()).unwrap_or_default();
    let date = change.date.unwrap_or(of_server);
    let head = format!(
        "HTTP/1.1 {status} OK\r\nContent-Type: application/json\r\nDate: {date}\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(&body).await?;
    stream.shutdown().await
}
