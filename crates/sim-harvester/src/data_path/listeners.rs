//! The sockets of the data path. What should listen where is compared with what does, and every connection asks the
//! newest [`World`] where to go.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    io,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, BufStream},
    net::{TcpListener, TcpStream},
    sync::watch,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

use controller_kit::{Life, Next, ObjectKey, Queue};

use super::{BackendName, Changed, Cluster, Hop, Place, Refused, World, blackhole::Blackhole, http};
use crate::{settings::Backend, wire::WireMap};

/// After an update so many times as long as it took passes before the next: changes are joined, as kube-proxy joins
/// them, and thousands of Services do not cost thousands of updates.
const REST: u32 = 9;

/// How often an address that could not be bound is tried again: whoever has it does not tell us when it goes.
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
    /// Where it is really served: another port where the Service's may not be bound.
    pub on_wire: SocketAddr,
}

/// A port of a Service whose traffic cannot be carried on this machine, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot carry traffic of {address} ({place}): {why}")]
pub struct CannotCarry {
    pub address: SocketAddr,
    /// Whose it is.
    pub place: Place,
    pub why: String,
}

/// What an address should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Listening,
    Silent,
    Closed,
}

/// What an address is.
#[derive(Debug)]
enum Open {
    Listening(CancellationToken),
    Silent { _hole: Blackhole },
}

impl Open {
    fn mode(&self) -> Mode {
        match self {
            Self::Listening(_) => Mode::Listening,
            Self::Silent { .. } => Mode::Silent,
        }
    }
}

#[derive(Debug)]
struct State {
    open: BTreeMap<SocketAddr, Open>,
    carried: Vec<Carried>,
    cannot: Vec<CannotCarry>,
    world: Arc<World>,
    random: fastrand::Rng,
    answered: BTreeMap<BackendName, u64>,
}

/// The data path on real sockets. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Listeners {
    wire: WireMap,
    life: Life,
    state: Arc<Mutex<State>>,
    /// Counts updates, for whoever waits for one.
    updates: watch::Sender<u64>,
}

impl Listeners {
    pub(crate) fn new(life: &Life, wire: WireMap, seed: u64) -> Self {
        let state = State {
            open: BTreeMap::new(),
            carried: Vec::new(),
            cannot: Vec::new(),
            world: Arc::default(),
            random: fastrand::Rng::with_seed(seed),
            answered: BTreeMap::new(),
        };
        Self { wire, life: life.clone(), state: Arc::new(Mutex::new(state)), updates: watch::Sender::new(0) }
    }

    /// Follows the world that `see` shows, whenever `changed` gets an item. Without sockets only [`Listeners::pick`]
    /// and [`Listeners::count`] are of use.
    pub(crate) fn follow(&self, changed: &Queue<Changed>, see: impl Fn() -> World + Send + Sync + 'static) {
        let (listeners, see) = (self.clone(), Arc::new(see));
        changed.run(&self.life, 1, move |Changed| {
            let (listeners, see) = (listeners.clone(), see.clone());
            async move {
                let began = Instant::now();
                let occupied = listeners.update(see());
                listeners.updates.send_modify(|count| *count += 1);
                sleep(began.elapsed() * REST).await;
                Ok::<_, Infallible>(if occupied { Next::After(WHILE_OCCUPIED) } else { Next::AwaitChange })
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
    fn update(&self, world: World) -> bool {
        let places = world.places();
        let mut state = self.state();
        let State { open, carried, cannot, world: newest, .. } = &mut *state;
        *newest = Arc::new(world);
        open.retain(|at, open| {
            let stays = places.contains_key(at) && mode(newest, *at) == open.mode();
            if let (false, Open::Listening(stop)) = (stays, &*open) {
                stop.cancel();
            }
            stays
        });
        let before = std::mem::take(cannot);
        let mut occupied = false;
        carried.clear();
        for (at, place) in places {
            let wanted = mode(newest, at);
            if wanted != Mode::Closed && !open.contains_key(&at) {
                match self.open(at, wanted) {
                    Ok(opened) => drop(open.insert(at, opened)),
                    Err(error) => {
                        occupied |= error.kind() == io::ErrorKind::AddrInUse;
                        cannot.push(CannotCarry { address: at, place: place.clone(), why: why(&error) });
                    }
                }
            }
            if let (Place::Vip(cluster, service), true) = (place, open.contains_key(&at)) {
                carried.push(Carried { cluster, service, vip: at, on_wire: self.wire.socket(at) });
            }
        }
        for ((address, protocol), place) in newest.others() {
            let why = format!("only TCP is carried, and the port is {protocol}");
            cannot.push(CannotCarry { address, place, why });
        }
        for new in cannot.iter().filter(|new| !before.contains(new)) {
            tracing::warn!("{new}");
        }
        occupied
    }

    fn open(&self, at: SocketAddr, mode: Mode) -> io::Result<Open> {
        let on_wire = self.wire.socket(at);
        if mode == Mode::Silent {
            return Ok(Open::Silent { _hole: Blackhole::open(on_wire)? });
        }
        let listener = std::net::TcpListener::bind(on_wire)?;
        listener.set_nonblocking(true)?;
        let (listener, stop) = (TcpListener::from_std(listener)?, self.life.stop.child_token());
        let (this, ended) = (self.clone(), stop.clone());
        self.life.spawn(async move {
            while let Some(accepted) = ended.run_until_cancelled(listener.accept()).await {
                let stream = match accepted {
                    Ok((stream, _)) => stream,
                    // a connection that went before it was accepted
                    Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
                    Err(error) => {
                        // no file descriptors, say: who frees some does not tell us
                        tracing::warn!(%at, %error, "cannot accept connections");
                        tokio::time::sleep(WHILE_OCCUPIED).await;
                        continue;
                    }
                };
                let (this, ended) = (this.clone(), ended.clone());
                this.life.clone().spawn(async move {
                    // whatever it was doing: an address that goes takes its connections along
                    ended.run_until_cancelled(this.serve(stream, at)).await;
                });
            }
        });
        Ok(Open::Listening(stop))
    }

    fn world(&self) -> Arc<World> {
        self.state().world.clone()
    }

    async fn serve(&self, stream: TcpStream, at: SocketAddr) {
        let world = self.world();
        let outcome = match world.at(at) {
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
        if !self.wire.is_mapped(to.ip()) {
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
        let wanted = || matches!(self.world().at(at), Hop::Forward(now) if now.contains(&to));
        if asked.elapsed() > AT_ONCE && !wanted() {
            return stream.set_zero_linger();
        }
        tokio::io::copy_bidirectional(&mut stream, &mut onward).await.map(drop)
    }

    async fn answer(&self, stream: TcpStream, at: SocketAddr) -> io::Result<()> {
        let mut stream = BufStream::new(stream);
        while let Some(request) = http::read(&mut stream).await? {
            let Hop::Answer(name, backend) = self.world().at(at) else {
                return hold(stream.into_inner()).await;
            };
            if let Backend::Slow(delay) = backend {
                tokio::time::sleep(delay).await;
            }
            self.count(&name);
            if !http::respond(&mut stream, &request, &name).await? {
                break;
            }
        }
        Ok(())
    }
}

fn mode(world: &World, at: SocketAddr) -> Mode {
    let silent = |to: &SocketAddr| matches!(world.at(*to), Hop::Refused(Refused::Silent(_)));
    match world.at(at) {
        // kube-proxy forwards packets: who connects while nobody is there connects when somebody comes
        Hop::Forward(to) if to.iter().all(silent) => Mode::Silent,
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

fn why(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AddrNotAvailable => {
            "this machine does not have the address; pools of 127.0.0.0/8 work on Linux".to_owned()
        }
        io::ErrorKind::AddrInUse => "another program listens there".to_owned(),
        io::ErrorKind::PermissionDenied => "this user may not listen on the port".to_owned(),
        _ => error.to_string(),
    }
}
