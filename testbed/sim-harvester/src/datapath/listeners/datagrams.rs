//! UDP through the datapath. Every client of an address is a flow of its own that stays with its backend, as the
//! kernel's connection tracking keeps it for kube-proxy. Pods and VMs answer each datagram with one of their own.

use std::{
    collections::HashMap,
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use serde_json::json;
use tokio::{net::UdpSocket, sync::mpsc, time::timeout};
use tokio_util::sync::CancellationToken;

use super::{Listeners, WHILE_OCCUPIED};
use crate::{
    datapath::{BackendName, Destination, Hop},
    settings::Backend,
};

/// A flow is forgotten when nothing has come or gone for so long: Linux' `nf_conntrack_udp_timeout`.
const IDLE: Duration = Duration::from_secs(30);
/// A datagram is never longer.
const DATAGRAM_MAX: usize = 64 * 1024;
/// Datagrams that wait for a flow; more are lost, as is UDP's way.
const WAITING: usize = 64;

/// The datagrams of one client to one backend.
struct Flow {
    to: SocketAddr,
    datagrams: mpsc::Sender<Vec<u8>>,
}

/// Carries or answers what arrives at `here` until `stop`.
pub(super) fn serve(listeners: &Listeners, socket: UdpSocket, here: Destination, stop: &CancellationToken) {
    let (listeners, socket, ended) = (listeners.clone(), Arc::new(socket), stop.clone());
    let tasks = listeners.tasks.clone();
    tasks.spawn(async move {
        let mut flows: HashMap<SocketAddr, Flow> = HashMap::new();
        let mut buffer = vec![0; DATAGRAM_MAX];
        while let Some(received) = ended.run_until_cancelled(socket.recv_from(&mut buffer)).await {
            let (length, client) = match received {
                Ok(received) => received,
                Err(error) => {
                    tracing::warn!(%here, %error, "cannot receive datagrams");
                    tokio::time::sleep(WHILE_OCCUPIED).await;
                    continue;
                }
            };
            match listeners.world().at(here) {
                Hop::Answer(name, backend) => {
                    answer(&listeners, &socket, client, length, &name, backend, &ended);
                }
                Hop::Forward(targets) => {
                    flows.retain(|_, flow| !flow.datagrams.is_closed() && targets.contains(&flow.to));
                    let flow = flows.entry(client).or_insert_with(|| {
                        let to = targets[listeners.pick(targets.len())];
                        Flow { to, datagrams: open(&listeners, socket.clone(), client, to, &ended) }
                    });
                    // full: lost
                    drop(flow.datagrams.try_send(buffer[..length].to_vec()));
                }
                Hop::Refused(_) => {}
            }
        }
    });
}

fn answer(
    listeners: &Listeners,
    socket: &Arc<UdpSocket>,
    client: SocketAddr,
    length: usize,
    name: &BackendName,
    backend: Backend,
    stop: &CancellationToken,
) {
    let (socket, stop) = (socket.clone(), stop.clone());
    listeners.count(name);
    let text = format!("{}\n", json!({"vm": name.vm, "pod": name.pod, "bytes": length}));
    listeners.tasks.spawn(async move {
        let answer = async {
            if let Backend::Slow(delay) = backend {
                tokio::time::sleep(delay).await;
            }
            socket.send_to(text.as_bytes(), client).await
        };
        if let Some(Err(error)) = stop.run_until_cancelled(answer).await {
            tracing::trace!(%client, %error, "a datagram was lost");
        }
    });
}

/// Starts a flow between `client` of `socket` and the backend `to`; it ends when its sender goes or it is idle.
fn open(
    listeners: &Listeners,
    socket: Arc<UdpSocket>,
    client: SocketAddr,
    to: SocketAddr,
    stop: &CancellationToken,
) -> mpsc::Sender<Vec<u8>> {
    let (sender, datagrams) = mpsc::channel(WAITING);
    let (stop, wire) = (stop.clone(), listeners.wire);
    listeners.tasks.spawn(async move {
        // never leave loopback: what is not ours does not answer
        if !wire.is_of_a_vm(to.ip()) {
            return;
        }
        if let Some(Err(error)) =
            stop.run_until_cancelled(run(datagrams, &socket, client, wire.socket(to))).await
        {
            tracing::trace!(%client, %to, %error, "a flow ended");
        }
    });
    sender
}

async fn run(
    mut datagrams: mpsc::Receiver<Vec<u8>>,
    socket: &UdpSocket,
    client: SocketAddr,
    backend: SocketAddr,
) -> io::Result<()> {
    let onward = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    onward.connect(backend).await?;
    let mut buffer = vec![0; DATAGRAM_MAX];
    loop {
        let step = async {
            tokio::select! {
                datagram = datagrams.recv() => match datagram {
                    Some(datagram) => onward.send(&datagram).await.map(|_| true),
                    None => Ok(false),
                },
                length = onward.recv(&mut buffer) => socket.send_to(&buffer[..length?], client).await.map(|_| true),
            }
        };
        match timeout(IDLE, step).await {
            Ok(Ok(true)) => {}
            Ok(Ok(false)) | Err(_) => return Ok(()),
            Ok(Err(error)) => return Err(error),
        }
    }
}
