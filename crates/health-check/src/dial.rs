//! The only place that opens sockets.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use rustix::io::Errno;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::answer::{self, MOST_READ, Rest};
use crate::{HttpGet, tls};

/// So much is read of a TLS connection until its handshake is through: more than the longest chain of certificates that is
/// taken.
const MOST_READ_OF_HANDSHAKE: u64 = 24 * 1_024;

/// So much is read after the handshake: a record of the greatest size, for many servers send their answer in one, and some
/// tickets before it. All of them can come in one read, and each costs this process several times what its bytes do.
const MOST_READ_AFTER_HANDSHAKE: u64 = 20 * 1_024;

/// An answer is read so often. One task makes the probes of all tenants, and each read costs it a look at all that came: a
/// backend that sends byte by byte would cost many times another.
const MOST_READS: usize = 32;

/// Longest text of a failure, in characters.
const LONGEST_WORDS: usize = 120;

/// Tries one probe. The [`Prober`](crate::Prober) keeps the time-out, one for all of it: it drops the future, which must
/// end the attempt. An argument everywhere, so that tests and simulators pass their own.
pub type Dial = Arc<dyn Fn(Probe) -> BoxFuture<'static, Result<(), DialError>> + Send + Sync>;

/// One probe: a TCP connect, or an HTTP request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    pub address: SocketAddr,
    pub http: Option<HttpGet>,
}

/// Why a probe failed, in words for people. None of them is the backend's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DialError {
    /// Nothing listens there, or a firewall rejects.
    #[error("connection refused")]
    Refused,
    /// The backend is down or slow, or a firewall drops.
    #[error("no answer within {} s", within.as_secs_f64())]
    NoAnswer { within: Duration },
    /// No way to the address from here.
    #[error("unreachable: {0}")]
    Unreachable(String),
    /// The probe panicked, maybe by what the backend sent: a fault of this program, and the backend gets no traffic.
    #[error("unreachable: the probe ended by a fault of the load balancer, see its log")]
    Panicked,
    /// It accepted the connection, and ended it before its answer did.
    #[error("connection closed before the end of an answer")]
    Closed,
    /// Another HTTP status than 200 to 399.
    #[error("HTTP {0}")]
    Status(u16),
    #[error("not HTTP")]
    NotHttp,
    #[error("not TLS")]
    NotTls,
    #[error("TLS: {0}")]
    Tls(String),
    /// This process could not dial, for instance for want of file descriptors. Says nothing of the backend.
    #[error("could not dial: {0}")]
    Local(String),
}

impl DialError {
    /// A word for each kind, as a metric may have it: there are these nine and no more.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::NoAnswer { .. } => "no_answer",
            Self::Unreachable(_) | Self::Panicked => "unreachable",
            Self::Closed => "closed",
            Self::Status(_) => "status",
            Self::NotHttp => "not_http",
            Self::NotTls => "not_tls",
            Self::Tls(_) => "tls",
            Self::Local(_) => "local",
        }
    }

    /// What a reader of the verdict wants to hear of when it changes: the kind, and of an HTTP status which.
    pub(crate) fn kind(&self) -> impl PartialEq + use<> {
        let status = if let Self::Status(status) = self { Some(*status) } else { None };
        (std::mem::discriminant(self), status)
    }

    /// Of a connection that the backend accepted.
    fn of_stream(error: io::Error) -> Self {
        use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected, UnexpectedEof};
        let tls = error.get_ref().and_then(|source| source.downcast_ref::<rustls::Error>());
        match (tls, error.kind()) {
            (Some(rustls::Error::InvalidMessage(_)), _) => Self::NotTls,
            (Some(rustls::Error::Other(error)), _) => Self::Tls(words(&error.0.to_string())),
            (Some(error), _) => Self::Tls(words(&error.to_string())),
            (None, BrokenPipe | ConnectionAborted | ConnectionReset | NotConnected | UnexpectedEof) => {
                Self::Closed
            }
            (None, _) => error.into(),
        }
    }
}

/// Text of a library, as it may stand in a status.
fn words(text: &str) -> String {
    text.chars().filter(|char| !char.is_control()).take(LONGEST_WORDS).collect()
}

/// Errors of connect(2) that the backend cannot cause: no file descriptor, port or memory is left, or a firewall on
/// this side forbids. All others may come from the network, also those that no [`io::ErrorKind`] names.
const OF_OUR_SIDE: [Errno; 9] = [
    Errno::MFILE,
    Errno::NFILE,
    Errno::NOBUFS,
    Errno::NOMEM,
    Errno::ADDRNOTAVAIL,
    Errno::ADDRINUSE,
    Errno::AGAIN,
    Errno::PERM,
    Errno::ACCESS,
];

impl DialError {
    /// Of connect(2) to this address. Linux answers EACCES also where ICMPv6 says that a firewall of the backend's side forbids;
    /// over IPv4 that is EHOSTUNREACH.
    fn of_connect(error: io::Error, at: SocketAddr) -> Self {
        let is_forbidden = error.raw_os_error() == Some(Errno::ACCESS.raw_os_error());
        if is_forbidden && at.is_ipv6() { Self::Unreachable(error.to_string()) } else { error.into() }
    }
}

impl From<io::Error> for DialError {
    fn from(error: io::Error) -> Self {
        let is = |errno: &Errno| error.raw_os_error() == Some(errno.raw_os_error());
        match error.kind() {
            io::ErrorKind::ConnectionRefused => Self::Refused,
            _ if OF_OUR_SIDE.iter().any(is) => Self::Local(error.to_string()),
            _ => Self::Unreachable(error.to_string()),
        }
    }
}

/// Probes over the network.
///
/// Every connection ends in a reset (zero linger), so that no local port stays in TIME_WAIT. One without a request carries
/// no data: the application behind it sees a connection that is reset or never accepted.
pub fn network() -> Dial {
    network_by(|address| address)
}

/// Probes over the network, where `route` says at which address a backend is found.
pub fn network_by(route: impl Fn(SocketAddr) -> SocketAddr + Send + Sync + 'static) -> Dial {
    let tls = tls::connector();
    Arc::new(move |probe| {
        let (at, tls) = (route(probe.address), tls.clone());
        async move {
            let stream = TcpStream::connect(at).await.map_err(|error| DialError::of_connect(error, at))?;
            stream.set_zero_linger()?;
            match probe.http {
                None => Ok(()),
                // apart, so that the many dials without a request stay small
                Some(get) => Box::pin(ask(stream, &get, probe.address, &tls)).await,
            }
        }
        .boxed()
    })
}

async fn ask(
    stream: TcpStream,
    get: &HttpGet,
    host: SocketAddr,
    tls: &TlsConnector,
) -> Result<(), DialError> {
    let request = get.bytes(host);
    if !get.is_tls() {
        return exchange(stream, &request).await;
    }
    // not `into_split`, which would send the end of its half before the reset
    let (read, write) = tokio::io::split(stream);
    let stream = tokio::io::join(read.take(MOST_READ_OF_HANDSHAKE), write);
    // an address is no name that is sent: the backend sees what every client sees that does not know its name
    let name = ServerName::IpAddress(host.ip().into());
    let mut stream = tls.connect(name, stream).await.map_err(DialError::of_stream)?;
    stream.get_mut().0.reader_mut().set_limit(MOST_READ_AFTER_HANDSHAKE);
    exchange(stream, &request).await
}

/// Sends the request, and reads the answer until it says enough.
async fn exchange(mut stream: impl AsyncRead + AsyncWrite + Unpin, request: &[u8]) -> Result<(), DialError> {
    stream.write_all(request).await.map_err(DialError::of_stream)?;
    stream.flush().await.map_err(DialError::of_stream)?;
    let (mut buffer, mut length, mut reads) = ([0; MOST_READ], 0, 0);
    loop {
        reads += 1;
        let rest = match stream.read(&mut buffer[length..]).await.map_err(DialError::of_stream)? {
            0 => Rest::Closed,
            more => {
                length += more;
                if length == MOST_READ || reads == MOST_READS { Rest::Unread } else { Rest::Open }
            }
        };
        if let Some(result) = answer::judge(&buffer[..length], rest) {
            return result;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use rstest::rstest;
    use tokio::io::ReadBuf;

    use super::*;

    /// A backend that sends one byte more as often as it is read.
    struct ByteByByte {
        answer: &'static [u8],
        reads: usize,
    }

    impl AsyncRead for ByteByByte {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            read: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            read.put_slice(&[self.answer.get(self.reads).copied().unwrap_or(b'x')]);
            self.reads += 1;
            Poll::Ready(Ok(()))
        }
    }

    #[rstest]
    #[case::endless_header(b"HTTP/1.1 200 OK\r\nA: ", Ok(()))]
    #[case::endless_header_of_a_failure(b"HTTP/1.1 503 x\r\nA: ", Err(DialError::Status(503)))]
    #[case::endless_reason(b"HTTP/1.1 200 ", Err(DialError::NotHttp))]
    #[tokio::test]
    async fn a_backend_that_sends_byte_by_byte_is_read_a_few_times_and_counts_by_what_came(
        #[case] answer: &'static [u8],
        #[case] expected: Result<(), DialError>,
    ) {
        let mut backend = ByteByByte { answer, reads: 0 };
        let result = exchange(tokio::io::join(&mut backend, tokio::io::sink()), b"").await;
        assert_eq!((result, backend.reads), (expected, 32));
    }

    #[rstest]
    #[case::no_descriptor(Errno::MFILE, "could not dial")]
    #[case::no_descriptor_on_the_host(Errno::NFILE, "could not dial")]
    #[case::no_buffer(Errno::NOBUFS, "could not dial")]
    #[case::no_memory(Errno::NOMEM, "could not dial")]
    #[case::no_port(Errno::ADDRNOTAVAIL, "could not dial")]
    #[case::port_in_use(Errno::ADDRINUSE, "could not dial")]
    #[case::no_ephemeral_port(Errno::AGAIN, "could not dial")]
    #[case::own_firewall(Errno::PERM, "could not dial")]
    #[case::own_policy(Errno::ACCESS, "could not dial")]
    #[case::rejected(Errno::CONNREFUSED, "connection refused")]
    #[case::dropped(Errno::TIMEDOUT, "unreachable")]
    #[case::no_route(Errno::HOSTUNREACH, "unreachable")]
    #[case::reset(Errno::CONNRESET, "unreachable")]
    // errors that the backend's host can cause by ICMP
    #[case::no_such_protocol(Errno::NOPROTOOPT, "unreachable")]
    #[case::host_down(Errno::HOSTDOWN, "unreachable")]
    fn only_errors_that_the_backend_cannot_cause_are_our_own_failure(
        #[case] errno: Errno,
        #[case] expected: &str,
    ) {
        let at = SocketAddr::from(([198, 18, 0, 1], 80));
        let error = DialError::of_connect(io::Error::from_raw_os_error(errno.raw_os_error()), at);
        assert!(error.to_string().starts_with(expected), "{error}");
    }

    // net/ipv6/icmp.c, tab_unreach: "administratively prohibited" and "reject route" are EACCES
    #[rstest]
    #[case::firewall_of_the_backend(Errno::ACCESS, "unreachable")]
    #[case::own_firewall(Errno::PERM, "could not dial")]
    #[case::no_descriptor(Errno::MFILE, "could not dial")]
    fn over_ipv6_a_firewall_before_the_backend_forbids_and_the_backend_does_not_stay_ready(
        #[case] errno: Errno,
        #[case] expected: &str,
    ) {
        let at = SocketAddr::from(([0xfd00, 0, 0, 0, 0, 0, 0, 7], 80));
        let error = DialError::of_connect(io::Error::from_raw_os_error(errno.raw_os_error()), at);
        assert!(error.to_string().starts_with(expected), "{error}");
    }
}
