//! The only place that opens sockets.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use rustix::io::Errno;
use tokio::net::TcpStream;

/// Tries whether something accepts connections at an address. The [`Prober`](crate::Prober) keeps the time-out: it
/// drops the future, which must end the attempt. An argument everywhere, so that tests and simulators pass their own.
pub type Dial = Arc<dyn Fn(SocketAddr) -> BoxFuture<'static, Result<(), DialError>> + Send + Sync>;

/// Why a probe failed, in words for people.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DialError {
    /// Nothing listens there, or a firewall rejects.
    #[error("connection refused")]
    Refused,
    /// No answer in time: the backend is down, or a firewall drops.
    #[error("no answer in time")]
    TimedOut,
    /// No way to the address from here.
    #[error("unreachable: {0}")]
    Unreachable(String),
    /// This process could not dial, for instance for want of file descriptors. Says nothing of the backend.
    #[error("could not dial: {0}")]
    Local(String),
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

impl From<io::Error> for DialError {
    fn from(error: io::Error) -> Self {
        let is = |errno: &Errno| error.raw_os_error() == Some(errno.raw_os_error());
        match error.kind() {
            io::ErrorKind::ConnectionRefused => Self::Refused,
            io::ErrorKind::TimedOut => Self::TimedOut,
            _ if OF_OUR_SIDE.iter().any(is) => Self::Local(error.to_string()),
            _ => Self::Unreachable(error.to_string()),
        }
    }
}

/// Opens a TCP connection and resets it (zero linger), without data. The application behind it sees a connection
/// that is reset or never accepted, and no local port stays in TIME_WAIT.
pub fn tcp() -> Dial {
    Arc::new(|address| {
        async move {
            let stream = TcpStream::connect(address).await?;
            stream.set_zero_linger()?;
            Ok(())
        }
        .boxed()
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use tokio::io::AsyncReadExt as _;
    use tokio::net::TcpListener;

    use super::*;

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
    #[case::dropped(Errno::TIMEDOUT, "no answer in time")]
    #[case::no_route(Errno::HOSTUNREACH, "unreachable")]
    #[case::reset(Errno::CONNRESET, "unreachable")]
    // errors that the backend's host can cause by ICMP
    #[case::no_such_protocol(Errno::NOPROTOOPT, "unreachable")]
    #[case::host_down(Errno::HOSTDOWN, "unreachable")]
    fn only_errors_that_the_backend_cannot_cause_are_our_own_failure(
        #[case] errno: Errno,
        #[case] expected: &str,
    ) {
        let error = DialError::from(io::Error::from_raw_os_error(errno.raw_os_error()));
        assert!(error.to_string().starts_with(expected), "{error}");
    }

    #[tokio::test]
    async fn a_probe_of_a_listening_port_succeeds_and_ends_in_a_reset() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        tcp()(listener.local_addr().unwrap()).await.unwrap();
        let (mut stream, _) = listener.accept().await.unwrap();
        let seen = stream.read_u8().await.unwrap_err();
        assert_eq!(seen.kind(), io::ErrorKind::ConnectionReset);
    }

    #[tokio::test]
    async fn a_probe_of_a_closed_port_is_refused() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        assert_eq!(tcp()(address).await, Err(DialError::Refused));
    }
}
