//! The sockets of the datapath. What should listen where is compared with what does, and every connection asks the
//! newest [`World`] where to go.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    io,
    net::{Shutdown, SocketAddr},
    sync::{Arc, Mutex},
    time::Duration,
};

use socket2::SockRef;
use tokio::{
    io::{AsyncReadExt, BufStream},
    net::{TcpListener, TcpStream, UdpSocket},
    sync::watch,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

use controller_kit::{Action, ObjectKey, Queue};
use program::TaskGroup;

use super::{
    BackendName, Changed, Cluster, Destination, Hop, Place, Protocol, Refused, World, blackhole::Blackhole,
    http,
};
use crate::{settings::Backend, wire::WireMap};

mod datagrams;

/// After an update so many times as long as it took passes before the next: changes are joined, as kube-proxy joins
/// them, and thousands of Services do not cost thousands of updates.
const REST: u32 = 9;

/// The pause before an address that could not be bound is tried again: no event tells when its holder goes.
const WHILE_OCCUPIED: Duration = Duration::from_secs(2);

/// A connection on loopback that takes longer has hung.
const AT_ONCE: Duration = Duration::from_millis(500);

/// A port of a Service that is served at its VIP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Carried {
    pub cluster: Cluster,
    pub service: ObjectKey,
    /// Address and port as the Service has them.
    pub vip: SocketAddr,
    pub protocol: Protocol,
    /// Where it is really served: another port where the Service's may not be bound.
    pub on_wire: SocketAddr,
}

/// A port of a Service whose traffic cannot be carried on this computer, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot carry traffic of {destination} ({place}): {why}")]
pub struct CannotCarry {
    pub destination: Destination,
    /// Whose it is.
    pub place: Place,
    pub why: String,
}

/// The wanted state of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Listening,
    Silent,
    Closed,
}

/// The state of an address.
#[derive(Debug)]
enum Open {
    /// Connections, with the socket that the task accepts from.
    Listening(CancellationToken, Arc<TcpListener>),
    Datagrams(CancellationToken),
    Silent {
        _hole: Blackhole,
    },
}

impl Open {
    fn mode(&self) -> Mode {
        match self {
            Self::Listening(..) | Self::Datagrams(_) => Mode::Listening,
            Self::Silent { .. } => Mode::Silent,
        }
    }

    /// Nothing is heard any more, and the address is free for a [`Blackhole`].
    fn close(&self) {
        match self {
            Self::Listening(stop, listener) => {
                stop.cancel();
                // the task lets go of it later; until then it must not be in the way
                if let Err(error) = SockRef::from(&**listener).shutdown(Shutdown::Both) {
                    tracing::trace!(%error, "a listener ends later");
                }
            }
            Self::Datagrams(stop) => stop.cancel(),
            Self::Silent { .. } => {}
        }
    }
}

#[derive(Debug)]
struct State {
    open: BTreeMap<Destination, Open>,
    carried: Vec<Carried>,
    cannot: Vec<CannotCarry>,
    world: Arc<World>,
    random: fastrand::Rng,
    answered: BTreeMap<BackendName, u64>,
}

/// The datapath on real sockets. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Listeners {
    wire: WireMap,
    tasks: TaskGroup,
    state: Arc<Mutex<State>>,
    /// Counts updates, for tasks that wait for one.
    updates: watch::Sender<u64>,
}

impl Listeners {
    pub(crate) fn new(tasks: &TaskGroup, wire: WireMap, seed: u64) -> Self {
        let state = State {
            open: BTreeMap::new(),
            carried: Vec::new(),
            cannot: Vec::new(),
            world: Arc::default(),
            random: fastrand::Rng::with_seed(seed),
            answered: BTreeMap::new(),
        };
        Self {
            wire,
            tasks: tasks.clone(),
            state: Arc::new(Mutex::new(state)),
            updates: watch::Sender::new(0),
        }
    }

    /// Follows the world that `see` shows, whenever `changed` gets an item. Without sockets only [`Listeners::pick`]
    /// and [`Listeners::count`] are of use.
    pub(crate) fn follow(
        &self,
        changed: &Queue<Changed>,
        see: impl Fn() -> Arc<World> + Send + Sync + 'static,
    ) {
        let (listeners, see) = (self.clone(), Arc::new(see));
        changed.run(&self.tasks, 1, move |Changed| {
            let (listeners, see) = (listeners.clone(), see.clone());
            async move {
                let began = Instant::now();
                let occupied = listeners.update(see());
                listeners.updates.send_modify(|count| *count += 1);
                sleep(began.elapsed() * REST).await;
                Ok::<_, Infallible>(if occupied {
                    Action::RequeueAfter(WHILE_OCCUPIED)
                } else {
                    Action::AwaitChange
                })
            }
        });
        changed.add(Changed);
    }

    pub(crate) fn carried(&self) -> Vec<Carried> {
        self.state().carried.clone()
    }

    pub(crate) fn cannot_carry(&self) -> Vec<CannotCarry> {
        self.state().cannot.clone()
    }

    /// Waits until `holds`, looking again after every update.
    pub(crate) async fn until(&self, mut holds: impl FnMut() -> bool) {
        let mut updates = self.updates.subscribe();
        updates.wait_for(|_| holds()).await.expect("we hold the sender");
    }

    /// Requests answered so far by each backend.
    pub(crate) fn answered(&self) -> BTreeMap<BackendName, u64> {
        self.state().answered.clone()
    }

    pub(crate) fn count(&self, name: &BackendName) {
        *self.state().answered.entry(name.clone()).or_default() += 1;
    }

    /// One of so many, by the seed.
    pub(crate) fn pick(&self, of: usize) -> usize {
        self.state().random.usize(..of)
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().expect("no panic while the listeners are locked")
    }

    /// Opens and closes what differs; answers whether an address is occupied by somebody else.
    fn update(&self, world: Arc<World>) -> bool {
        let places = world.places();
        let mut state = self.state();
        let State { open, carried, cannot, world: newest, .. } = &mut *state;
        *newest = world;
        open.retain(|at, open| {
            let stays = places.contains_key(at) && mode(newest, *at) == open.mode();
            if !stays {
                open.close();
            }
            stays
        });
        let before = std::mem::take(cannot);
        let mut occupied = false;
        carried.clear();
        for (to, place) in places {
            let wanted = mode(newest, to);
            if wanted != Mode::Closed && !open.contains_key(&to) {
                match self.open(to, wanted) {
                    Ok(opened) => drop(open.insert(to, opened)),
                    Err(error) => {
                        occupied |= error.kind() == io::ErrorKind::AddrInUse;
                        let why = why(to, &error);
                        cannot.push(CannotCarry { destination: to, place: place.clone(), why });
                    }
                }
            }
            if let (Place::Vip(cluster, service), true) = (place, open.contains_key(&to)) {
                let Destination { at: vip, protocol } = to;
                carried.push(Carried { cluster, service, vip, protocol, on_wire: self.wire.socket(vip) });
            }
        }
        for new in cannot.iter().filter(|new| !before.contains(new)) {
            tracing::warn!("{new}");
        }
        occupied
    }

    fn open(&self, to: Destination, mode: Mode) -> io::Result<Open> {
        let (at, on_wire) = (to.at, self.wire.socket(to.at));
        match (to.protocol, mode) {
            (Protocol::Tcp, Mode::Silent) => return Ok(Open::Silent { _hole: Blackhole::open(on_wire)? }),
            (Protocol::Tcp, _) => {}
            (Protocol::Udp, _) => {
                let socket = std::net::UdpSocket::bind(on_wire)?;
                socket.set_nonblocking(true)?;
                let stop = self.tasks.stop.child_token();
                datagrams::serve(self, UdpSocket::from_std(socket)?, to, &stop);
                return Ok(Open::Datagrams(stop));
            }
            (Protocol::Sctp, _) => return Err(io::ErrorKind::Unsupported.into()),
        }
        let listener = std::net::TcpListener::bind(on_wire)?;
        listener.set_nonblocking(true)?;
        let (listener, stop) = (Arc::new(TcpListener::from_std(listener)?), self.tasks.stop.child_token());
        let (this, ended, accepting) = (self.clone(), stop.clone(), listener.clone());
        self.tasks.spawn(async move {
            while let Some(accepted) = ended.run_until_cancelled(accepting.accept()).await {
                let stream = match accepted {
                    Ok((stream, _)) => stream,
                    // a connection that went before it was accepted
                    Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
                    Err(error) => {
                        // no file descriptors, say: who frees some does not tell us
                        tracing::warn!(%at, %error, "cannot accept connections");
                        sleep(WHILE_OCCUPIED).await;
                        continue;
                    }
                };
                let (this, ended) = (this.clone(), ended.clone());
                this.tasks.clone().spawn(async move {
                    // whatever it was doing: an address that goes takes its connections along
                    ended.run_until_cancelled(this.serve(stream, at)).await;
                });
            }
        });
        Ok(Open::Listening(stop, listener))
    }

    /// The world that the listeners followed last.
    pub(crate) fn world(&self) -> Arc<World> {
        self.state().world.clone()
    }

    async fn serve(&self, stream: TcpStream, at: SocketAddr) {
        let outcome = match self.world().at(Destination::tcp(at)) {
            Hop::Forward(to) => self.forward(stream, at, to[self.pick(to.len())]).await,
            Hop::Answer(..) => self.answer(stream, at).await,
            Hop::Refused(Refused::Silent(_)) => hold(stream).await,
            Hop::Refused(_) => stream.set_zero_linger(),
        };
        if let Err(error) = outcome {
            tracing::trace!(%at, %error, "connection ended");
        }
    }

    async fn forward(&self, mut stream: TcpStream, at: SocketAddr, to: SocketAddr) -> io::Result<()> {
        if !self.wire.is_of_a_vm(to.ip()) {
            // never leave loopback: what is not ours, the dummy endpoint for instance, does not answer
            return hold(stream).await;
        }
        let asked = Instant::now();
        let mut onward = match TcpStream::connect(self.wire.socket(to)).await {
            Ok(onward) => onward,
            Err(error) => {
                stream.set_zero_linger()?;
                return Err(error);
            }
        };
        // an attempt may hang until its target comes back, and by then the target may not be wanted any more
        let wanted =
            || matches!(self.world().at(Destination::tcp(at)), Hop::Forward(now) if now.contains(&to));
        if asked.elapsed() > AT_ONCE && !wanted() {
            return stream.set_zero_linger();
        }
        tokio::io::copy_bidirectional(&mut stream, &mut onward).await.map(drop)
    }

    async fn answer(&self, stream: TcpStream, at: SocketAddr) -> io::Result<()> {
        let mut stream = BufStream::new(stream);
        while let Some(request) = http::read(&mut stream).await? {
            let Hop::Answer(name, backend) = self.world().at(Destination::tcp(at)) else {
                return hold(stream.into_inner()).await;
            };
            if let Backend::Slow(delay) = backend {
                sleep(delay).await;
            }
            self.count(&name);
            if !http::respond(&mut stream, &request, &name).await? {
                break;
            }
        }
        Ok(())
    }
}

fn mode(world: &World, to: Destination) -> Mode {
    let silent = |at: &SocketAddr| {
        let next = Destination { at: *at, ..to };
        matches!(world.at(next), Hop::Refused(Refused::Silent(_)))
    };
    match world.at(to) {
        // told even while it has no backend
        _ if to.protocol == Protocol::Sctp => Mode::Listening,
        // a socket that hears datagrams and says nothing is silent enough
        Hop::Refused(Refused::Silent(_)) if to.protocol == Protocol::Udp => Mode::Listening,
        Hop::Forward(_) if to.protocol == Protocol::Udp => Mode::Listening,
        // kube-proxy forwards packets: who connects while nobody is there connects when somebody comes
        Hop::Forward(next) if next.iter().all(silent) => Mode::Silent,
        Hop::Forward(_) | Hop::Answer(..) => Mode::Listening,
        Hop::Refused(Refused::Silent(_)) => Mode::Silent,
        Hop::Refused(_) => Mode::Closed,
    }
}

/// Hears everything, answers nothing, until the other side has had enough.
async fn hold(mut stream: TcpStream) -> io::Result<()> {
    let mut buffer = [0; 4096];
    while stream.read(&mut buffer).await? > 0 {}
    Ok(())
}

fn why(to: Destination, error: &io::Error) -> String {
    let protocol = to.protocol;
    match error.kind() {
        io::ErrorKind::AddrNotAvailable if to.at.is_ipv6() => format!(
            "this computer does not have the address; on Linux `ip -6 route add local {} dev lo` gives it to it",
            to.at.ip()
        ),
        io::ErrorKind::AddrNotAvailable => {
            "this computer does not have the address; pools of 127.0.0.0/8 work on Linux".to_owned()
        }
        io::ErrorKind::Unsupported => {
            format!(
                "{protocol} needs a module of the kernel that few computers have; TCP and UDP are carried"
            )
        }
        io::ErrorKind::AddrInUse => "another program listens there".to_owned(),
        io::ErrorKind::PermissionDenied => "this user may not listen on the port".to_owned(),
        _ => error.to_string(),
    }
}
