//! The Pod that this process runs in, and the identity that follows from it.
//!
//! ```text
//! token of the process ──claim kubernetes.io/pod/uid──┐  (they must agree)
//! environment POD_UID ────────────────────────────────┴─► Identity ──hold──► abstract socket
//! HOSTNAME, else the kernel's host name ──────────────────►
//! ```
//! A process that was killed in a Pod that stays leaves a Lease behind. Its successor may take that Lease at once if it
//! knows that the predecessor is dead. The kernel knows: a process that writes its Pod UID into a Lease holds an
//! abstract Unix socket of that name for life, and another process can bind the name only after the first one is gone.
//!
//! Three things keep this true:
//! * A process that does not hold the socket leaves the UID out of its identity ([`Identity::text`]), so that nobody
//!   takes it for a dead predecessor.
//! * The last part of an identity begins with a *place*: a digest of the boot and of the network namespace. Abstract
//!   sockets exist within one network namespace of one running kernel. A UID that is the same on two hosts, or in two
//!   sandboxes of one Pod, has two places. A process that cannot read its place leaves the UID out.
//! * The UID comes from two sources, which must agree. A token without the claim (a legacy one) and a static Pod
//!   without a token leave the environment; where both sources are silent or differ, there is no UID.

mod own;
mod socket;
mod token;

use std::{
    env, fs, io,
    path::Path,
    sync::{Arc, Mutex},
};

pub use self::own::OwnPod;
use self::socket::{Socket, fnv};

/// The file in which the kubelet puts the token of a Pod's service account.
const TOKEN_FILE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/token";
/// The environment variable for `metadata.uid` of the downward API.
const UID_VARIABLE: &str = "POD_UID";
/// The longest UID that is believed; those of Kubernetes have 36 characters.
const LONGEST_UID: usize = 64;

/// Whatever a process knows of its Pod before it is decided what to believe.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sources {
    pub host_name: String,
    /// Content of the token file.
    pub token: Option<String>,
    /// `metadata.uid` by the downward API.
    pub downward_uid: Option<String>,
    /// Boot and network namespace, where both can be read: processes that can see each other's abstract sockets have
    /// the same.
    pub place: Option<String>,
}

impl Sources {
    /// Reads environment and files. `token_file` replaces the usual one.
    pub fn of_process(token_file: Option<&Path>) -> Self {
        let given = |name: &str| env::var(name).ok().filter(|text| !text.is_empty());
        let read = |path: &Path| fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
        let kernel = || read(Path::new("/proc/sys/kernel/hostname")).filter(|name| !name.is_empty());
        Self {
            host_name: given("HOSTNAME").or_else(kernel).unwrap_or_else(|| "localhost".to_owned()),
            token: read(token_file.unwrap_or(Path::new(TOKEN_FILE))),
            downward_uid: given(UID_VARIABLE),
            place: place(Path::new("/proc")),
        }
    }

    /// The Pod's UID, where nothing contradicts it.
    fn uid(&self) -> Option<String> {
        let claimed = self.token.as_deref().and_then(token::pod_uid);
        let uid = match (claimed, &self.downward_uid) {
            (Some(claimed), Some(given)) if claimed != *given => return None,
            (Some(uid), _) => uid,
            (None, given) => given.clone()?,
        };
        let is_plain = uid.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        (is_plain && (1..=LONGEST_UID).contains(&uid.len())).then_some(uid)
    }
}

/// How this process calls itself in Leases. Clones share the sockets that they hold.
#[derive(Clone, Debug)]
pub struct Identity(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// `<host name>_<random>`, or the text that was given.
    plain: String,
    pod: Option<InPod>,
    held: Mutex<Vec<Socket>>,
}

#[derive(Debug)]
struct InPod {
    host_name: String,
    uid: String,
    /// Sixteen hexadecimal digits.
    place: String,
    /// `<host name>_<Pod UID>_<place and random>`.
    text: String,
}

/// Identities of this process: their sockets are held until it ends, also where the part that leads ends before.
static FOR_LIFE: Mutex<Vec<Identity>> = Mutex::new(Vec::new());

impl Identity {
    /// The identity of this process. `token_file` replaces the usual file, for tests.
    pub fn of_process(token_file: Option<&Path>) -> Self {
        let identity = Self::new(&Sources::of_process(token_file), fastrand::u64(..));
        FOR_LIFE.lock().expect("no panic while an identity is kept").push(identity.clone());
        identity
    }

    /// The identity that follows from `sources`. Its sockets are free when the last clone is dropped.
    pub fn new(sources: &Sources, random: u64) -> Self {
        let host_name = sources.host_name.clone();
        let pod = sources.uid().zip(sources.place.as_ref()).map(|(uid, place)| {
            let place = format!("{:016x}", fnv(place.as_bytes()));
            let text = format!("{host_name}_{uid}_{place}{random:016x}");
            InPod { host_name: host_name.clone(), uid, place, text }
        });
        Self(Arc::new(Inner { plain: format!("{host_name}_{random:016x}"), pod, held: Mutex::default() }))
    }

    /// Binds the socket for this Lease, unless it is bound already. Says whether it is: then every other process that
    /// held it is dead. Without a Pod UID there is no socket.
    pub fn hold(&self, namespace: &str, lease: &str) -> bool {
        let Some(pod) = &self.0.pod else { return false };
        let name = socket::name(&pod.uid, namespace, lease);
        let mut held = self.0.held.lock().expect("no panic while a socket is bound");
        if held.iter().any(|socket| socket.is_named(&name)) {
            return true;
        }
        match Socket::bind(name) {
            Ok(socket) => {
                held.push(socket);
                true
            }
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => false,
            Err(error) => {
                tracing::debug!(error = &error as &dyn std::error::Error, lease, "no socket for this Lease");
                false
            }
        }
    }

    /// The text for the Lease of a candidate that holds the socket, or does not.
    pub fn text(&self, holds: bool) -> &str {
        self.0.pod.as_ref().filter(|_| holds).map_or(&self.0.plain, |pod| &pod.text)
    }

    /// Whether `holder` is one of the texts of this identity.
    pub fn is(&self, holder: &str) -> bool {
        holder == self.0.plain || self.0.pod.as_ref().is_some_and(|pod| holder == pod.text)
    }

    /// Whether `holder` is a process of this Pod that held the socket. If it is free to us, that process is dead.
    pub fn is_predecessor(&self, holder: &str) -> bool {
        let Some(pod) = &self.0.pod else { return false };
        let mut parts = holder.rsplitn(3, '_');
        let (Some(last), Some(uid), Some(host_name)) = (parts.next(), parts.next(), parts.next()) else {
            return false;
        };
        !self.is(holder) && host_name == pod.host_name && uid == pod.uid && in_place(last, &pod.place)
    }
}

/// The place of this process by what the kernel says in `proc`. Half of it is none: it could be that of another host.
fn place(proc: &Path) -> Option<String> {
    let boot = fs::read_to_string(proc.join("sys/kernel/random/boot_id")).ok()?;
    let network = fs::read_link(proc.join("self/ns/net")).ok()?;
    let (boot, network) = (boot.trim(), network.display());
    (!boot.is_empty()).then(|| format!("{boot} {network}"))
}

/// Whether the last part of an identity names this place, or none.
fn in_place(last: &str, place: &str) -> bool {
    let names_a_place = last.len() == 32 && last.bytes().all(|byte| byte.is_ascii_hexdigit());
    !names_a_place || last.starts_with(place)
}

impl From<String> for Identity {
    /// An identity without a Pod: it takes over by client-go's rules alone.
    fn from(text: String) -> Self {
        Self(Arc::new(Inner { plain: text, pod: None, held: Mutex::default() }))
    }
}

impl From<&str> for Identity {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

impl PartialEq for Identity {
    fn eq(&self, other: &Self) -> bool {
        self.0.plain == other.0.plain && self.text(true) == other.text(true)
    }
}

impl Eq for Identity {}

#[cfg(test)]
mod tests;
