//! The network that carries the packets, UDP sockets or channels for tests on a paused clock, and the two loops that feed
//! client and server.

use std::{
    future::pending,
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex},
};

use dhcproto::{Decodable, Encodable, v4::Message};
use tokio::{
    net::UdpSocket,
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    time::sleep_until,
};
use tokio_util::sync::CancellationToken;

use dhcp_client::{Client, Command, Config, Event, Mac};
use program::TaskGroup;

use super::server::Server;

/// Larger than any packet of either side.
const PACKET_MAX: usize = 1500;

type Packet = (Vec<u8>, UnboundedSender<Vec<u8>>);

/// The network between clients and the server. Cheap to clone; all clones are one network.
#[derive(Clone, Debug)]
pub struct Lan(Transport);

#[derive(Clone, Debug)]
enum Transport {
    Memory { to_server: UnboundedSender<Packet>, at_server: Arc<Mutex<Option<UnboundedReceiver<Packet>>>> },
    Udp { server: Arc<UdpSocket> },
}

impl Lan {
    /// Packets go through channels: no socket, no clock.
    pub fn memory() -> Self {
        let (to_server, at_server) = unbounded_channel();
        Self(Transport::Memory { to_server, at_server: Arc::new(Mutex::new(Some(at_server))) })
    }

    /// Packets go through UDP sockets; the server's is bound to `server`, at a port of its own choice when that is 0.
    ///
    /// # Errors
    /// When the address cannot be bound.
    pub async fn udp(server: SocketAddr) -> io::Result<Self> {
        Ok(Self(Transport::Udp { server: Arc::new(UdpSocket::bind(server).await?) }))
    }

    async fn port(&self) -> io::Result<Port> {
        match &self.0 {
            Transport::Memory { to_server, .. } => {
                let (reply, inbox) = unbounded_channel();
                Ok(Port::Memory { to_server: to_server.clone(), reply, inbox })
            }
            Transport::Udp { server } => {
                let to = server.local_addr()?;
                let socket = UdpSocket::bind((to.ip(), 0)).await?;
                socket.connect(to).await?;
                Ok(Port::Udp(socket))
            }
        }
    }
}

/// One client's end.
#[derive(Debug)]
enum Port {
    Memory {
        to_server: UnboundedSender<Packet>,
        reply: UnboundedSender<Vec<u8>>,
        inbox: UnboundedReceiver<Vec<u8>>,
    },
    Udp(UdpSocket),
}

impl Port {
    async fn send(&self, packet: Vec<u8>) {
        // a packet that is lost is a packet that is lost
        match self {
            Self::Memory { to_server, reply, .. } => drop(to_server.send((packet, reply.clone()))),
            Self::Udp(socket) => drop(socket.send(&packet).await),
        }
    }

    /// The next packet.
    async fn receive(&mut self) -> Vec<u8> {
        match self {
            Self::Memory { inbox, .. } => match inbox.recv().await {
                Some(packet) => packet,
                None => pending().await,
            },
            Self::Udp(socket) => {
                let mut buffer = vec![0; PACKET_MAX];
                loop {
                    // an error is the echo of an earlier packet at a closed port
                    if let Ok(length) = socket.recv(&mut buffer).await {
                        buffer.truncate(length);
                        return buffer;
                    }
                }
            }
        }
    }
}

/// Answers on `lan` until the life ends.
pub(crate) fn serve(tasks: &TaskGroup, lan: &Lan, server: Arc<Mutex<Server>>) {
    let answer = move |packet: &[u8]| {
        let message = Message::from_bytes(packet).ok()?;
        let mut server = server.lock().expect("no panic while answering");
        server.on(&message, tokio::time::Instant::now())?.to_vec().ok()
    };
    match lan.0.clone() {
        Transport::Memory { at_server, .. } => {
            let inbox = at_server.lock().expect("no panic while taking").take();
            let mut inbox = inbox.expect("one server on a network");
            tasks.spawn_until_stop(async move {
                while let Some((packet, reply)) = inbox.recv().await {
                    // the client may be gone
                    answer(&packet).into_iter().for_each(|packet| drop(reply.send(packet)));
                }
            });
        }
        Transport::Udp { server } => tasks.spawn_until_stop(async move {
            let mut buffer = [0; PACKET_MAX];
            loop {
                let Ok((length, from)) = server.recv_from(&mut buffer).await else { continue };
                if let Some(packet) = answer(&buffer[..length]) {
                    drop(server.send_to(&packet, from).await);
                }
            }
        }),
    }
}

/// A lease that is kept for as long as this lives; dropping it gives the address back.
#[derive(Debug)]
pub(crate) struct Leasing(CancellationToken);

impl Drop for Leasing {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// Leases an address for `mac` and calls `changed` with every address that the client gets or loses. When `tasks` ends,
/// the client keeps the address: the next one asks for it.
pub(crate) fn lease(
    tasks: &TaskGroup,
    lan: &Lan,
    mac: Mac,
    requested: Option<Ipv4Addr>,
    seed: u64,
    changed: impl Fn(Option<Ipv4Addr>) + Send + Sync + 'static,
) -> Leasing {
    let (stop, lan) = (CancellationToken::new(), lan.clone());
    let mut client = Client::new(Config { requested, ..Config::new(mac, seed) });
    let (stopped, ended) = (stop.clone(), tasks.stop.clone());
    tasks.spawn_until_stop(async move {
        let mut port = match lan.port().await {
            Ok(port) => port,
            Err(error) => return tracing::warn!(%mac, %error, "no socket for DHCP"),
        };
        let mut alarm = None;
        let mut commands = client.on(Event::Start, now());
        loop {
            for command in commands {
                match command {
                    Command::Send { packet, .. } => port.send(packet).await,
                    Command::AlarmAt(at) => alarm = Some(at),
                    Command::Use(lease) => changed(Some(lease.address)),
                    Command::Renewed(_) => {}
                    Command::Lost => changed(None),
                }
            }
            if stopped.is_cancelled() {
                return;
            }
            commands = tokio::select! {
                biased;
                // a task is polled once more when its group has ended: the address stays the client's
                () = ended.cancelled() => return,
                () = stopped.cancelled() => client.on(Event::Stop, now()),
                packet = port.receive() => client.on(Event::Packet(&packet), now()),
                () = async { match alarm { Some(at) => sleep_until(at.into()).await, None => pending().await } } => {
                    alarm = None;
                    client.on(Event::Alarm, now())
                }
            };
        }
    });
    Leasing(stop)
}

fn now() -> std::time::Instant {
    tokio::time::Instant::now().into_std()
}
