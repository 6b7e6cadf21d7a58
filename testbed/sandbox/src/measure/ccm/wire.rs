//! Bytes between a program and an API server, as the network carries them: a relay on loopback counts what comes back.
//!
//! It counts below TLS and HTTP, so compression, headers and record overhead are in the figure, and it is the same for the
//! simulated and the real API server.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use anyhow::{Context, Result};
use program::TaskGroup;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

const CHUNK: usize = 64 * 1024;

/// A port of 127.0.0.1 behind which a server is. It ends when this is dropped.
pub(super) struct Relay {
    address: SocketAddr,
    answered: Arc<AtomicU64>,
    tasks: TaskGroup,
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.tasks.stop.cancel();
    }
}

impl Relay {
    /// Begins to relay to `server`, a URL such as `https://127.0.0.1:6443`.
    pub(super) async fn to(server: &str) -> Result<Self> {
        let url: http::Uri = server.parse().context("the URL of an API server")?;
        let to = url.authority().context("the URL of an API server has a host")?.to_string();
        let listener =
            TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("find a port for a relay")?;
        let address = listener.local_addr().context("find the port of a relay")?;
        let (tasks, answered) = (TaskGroup::new(), Arc::new(AtomicU64::new(0)));
        let (accepting, counter) = (tasks.clone(), answered.clone());
        tasks.spawn_until_stop(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (to, counter) = (to.clone(), counter.clone());
                // a connection that breaks is the program's to make again
                accepting.spawn_until_stop(async move { drop(relay(client, &to, &counter).await) });
            }
        });
        Ok(Self { address, answered, tasks })
    }

    /// `https://127.0.0.1:<port>`.
    pub(super) fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// Bytes that came back from the server so far.
    pub(super) fn answered(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }
}

async fn relay(mut client: TcpStream, to: &str, answered: &AtomicU64) -> std::io::Result<()> {
    let mut server = TcpStream::connect(to).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (mut asks, mut hears) = client.split();
    let (mut answers, mut takes) = server.split();
    let uncounted = AtomicU64::new(0);
    tokio::try_join!(copy(&mut asks, &mut takes, &uncounted), copy(&mut answers, &mut hears, answered))
        .map(drop)
}

async fn copy(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    counted: &AtomicU64,
) -> std::io::Result<()> {
    let mut chunk = vec![0; CHUNK];
    loop {
        let length = from.read(&mut chunk).await?;
        if length == 0 {
            return to.shutdown().await;
        }
        counted.fetch_add(length as u64, Ordering::Relaxed);
        to.write_all(&chunk[..length]).await?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_what_a_server_answers_is_counted() {
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{}", server.local_addr().unwrap());
        let relay = Relay::to(&url).await.unwrap();
        let asked = tokio::spawn(async move {
            let (mut connection, _) = server.accept().await.unwrap();
            let mut question = [0; 8];
            connection.read_exact(&mut question).await.unwrap();
            connection.write_all(&[7; 1000]).await.unwrap();
            question
        });
        let mut client = TcpStream::connect(relay.address).await.unwrap();
        client.write_all(b"question").await.unwrap();
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await.unwrap();
        assert_eq!((asked.await.unwrap(), answer, relay.answered()), (*b"question", vec![7; 1000], 1000));
    }
}
