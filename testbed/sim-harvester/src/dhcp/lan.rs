//! What carries the packets, and the two loops that feed the machines: UDP sockets, or channels for tests whose clock
//! stands still.

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

use program::TaskGroup;

use super::{
    Mac,
    client::{Client, Command, Event},
    server::Server,
};

/// Larger than any packet of either side.
const PACKET_MAX: usize = 1500;

type Packet = (Vec<u8>, UnboundedSender<Vec<u8>>);

/// The network between clients and the server. Cheap to clone; all clones are one network.
#[derive(Clone, Debug)]
pub struct Lan(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Memory { to_server: UnboundedSender<Packet>, at_server: Arc<Mutex<Option<UnboundedReceiver<Packet>>>> },
    Udp { server: Arc<UdpSocket> },
}

impl Lan {
    /// Packets go through channels: no socket, no clock.
    pub fn memory() -> Self {
        let (to_server, at_server) = unbounded_channel();
        Self(Kind::Memory { to_server, at_server: Arc::new(Mutex::new(Some(at_server))) })
    }

    /// Packets go through UDP sockets; the server's is bound to `server`, at a port of its own choice when that is 0.
    ///
    /// # Errors
    /// When the address cannot be bound.
    pub async fn udp(server: SocketAddr) -> io::Result<Self> {
        Ok(Self(Kind::Udp { server: Arc::new(UdpSocket::bind(server).await?) }))
    }

    async fn port(&self) -> io::Result<Port> {
        match &self.0 {
            Kind::Memory { to_server, .. } => {
                let (reply, inbox) = unbounded_channel();
                Ok(Port::Memory { to_server: to_server.clone(), reply, inbox })
            }
            Kind::Udp { server } => {
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

    /// The next packet that is DHCP.
    async fn receive(&mut self) -> Message {
        let mut buffer = [0; PACKET_MAX];
        loop {
            let message = match self {
                Self::Memory { inbox, .. } => match inbox.recv().await {
                    Some(packet) => Message::from_bytes(&packet),
                    None => pending().await,
                },
                Self::Udp(socket) => match socket.recv(&mut buffer).await {
                    Ok(length) => Message::from_bytes(&buffer[..length]),
                    // the echo of an earlier packet that nobody took
                    Err(_) => continue,
                },
            };
            if let Ok(message) = message {
                return message;
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
        Kind::Memory { at_server, .. } => {
            let inbox = at_server.lock().expect("no panic while taking").take();
            let mut inbox = inbox.expect("one server on a network");
            tasks.spawn_until_stop(async move {
                while let Some((packet, reply)) = inbox.recv().await {
                    // whoever asked may be gone
                    answer(&packet).into_iter().for_each(|packet| drop(reply.send(packet)));
                }
            });
        }
        Kind::Udp { server } => tasks.spawn_until_stop(async move {
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

/// Leases an address for `mac` and tells `changed` of every address had or lost. When the life ends the address is
/// kept: the next life asks for it.
pub(crate) fn lease(
    tasks: &TaskGroup,
    lan: &Lan,
    mac: Mac,
    wish: Option<Ipv4Addr>,
    seed: u64,
    changed: impl Fn(Option<Ipv4Addr>) + Send + Sync + 'static,
) -> Leasing {
    let (stop, lan, mut client) = (CancellationToken::new(), lan.clone(), Client::new(mac, wish, seed));
    let stopped = stop.clone();
    tasks.spawn_until_stop(async move {
        let mut port = match lan.port().await {
            Ok(port) => port,
            Err(error) => return tracing::warn!(%mac, %error, "no socket for DHCP"),
        };
        let (mut alarm, mut event) = (None, Event::Start);
        loop {
            let last = matches!(event, Event::Stop);
            for command in client.on(event, tokio::time::Instant::now()) {
                match command {
                    Command::Send(message) => {
                        port.send(message.to_vec().expect("a packet of ours can be written")).await;
                    }
                    Command::AlarmAt(at) => alarm = Some(at),
                    Command::Use(address) => changed(Some(address)),
                    Command::Lost => changed(None),
                }
            }
            if last {
                return;
            }
            event = tokio::select! {
                biased;
                () = stopped.cancelled() => Event::Stop,
                message = port.receive() => Event::Packet(message),
                () = async { match alarm { Some(at) => sleep_until(at).await, None => pending().await } } => {
                    alarm = None;
                    Event::Alarm
                }
            };
        }
    });
    Leasing(stop)
}
