//! Where gRPC is served: a unix socket as a rule, else TCP.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::str::FromStr;

use tokio::net::{TcpListener, UnixListener};
use tokio_stream::wrappers::{TcpListenerStream, UnixListenerStream};
use tonic::transport::server::Router;

/// The value of `--endpoint`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    Unix(PathBuf),
    Tcp(String),
}

impl FromStr for Endpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (scheme, rest) = text.split_once("://").unwrap_or(("", text));
        match (scheme.to_ascii_lowercase().as_str(), rest) {
            ("unix" | "tcp", "") => {
                Err(format!("{text:?} ends after the scheme: write unix:///csi/csi.sock"))
            }
            // a relative path counts from the root, as with the Go driver
            ("unix", path) => Ok(Self::Unix(PathBuf::from("/").join(path))),
            ("tcp", address) => Ok(Self::Tcp(address.to_owned())),
            _ => Err(format!("{text:?} is neither unix://PATH nor tcp://ADDRESS")),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix://{}", path.display()),
            Self::Tcp(address) => write!(f, "tcp://{address}"),
        }
    }
}

/// The endpoint cannot be listened on, or its connections cannot be taken.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("listen on {endpoint}")]
    Listen { endpoint: Endpoint, source: io::Error },
    #[error("serve on {endpoint}")]
    Serve { endpoint: Endpoint, source: tonic::transport::Error },
}

/// A place to take calls at.
#[derive(Debug)]
pub struct Listener {
    endpoint: Endpoint,
    socket: Socket,
}

#[derive(Debug)]
enum Socket {
    Unix(UnixListener),
    Tcp(TcpListener),
}

impl Listener {
    /// Takes the place of a socket that a former process left. Inside a runtime.
    ///
    /// # Errors
    /// Where there is no folder, no right, or another program on the port.
    pub async fn bind(endpoint: Endpoint) -> Result<Self, ServeError> {
        let socket = match &endpoint {
            Endpoint::Unix(path) => match std::fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => UnixListener::bind(path).map(Socket::Unix),
            },
            Endpoint::Tcp(address) => TcpListener::bind(address).await.map(Socket::Tcp),
        };
        match socket {
            Ok(socket) => Ok(Self { endpoint, socket }),
            Err(source) => Err(ServeError::Listen { endpoint, source }),
        }
    }

    /// Serves until `stop` ends and the calls under way then are answered.
    ///
    /// # Errors
    /// When connections can no longer be taken.
    pub async fn serve(self, router: Router, stop: impl Future<Output = ()>) -> Result<(), ServeError> {
        let served = match self.socket {
            Socket::Unix(socket) => {
                router.serve_with_incoming_shutdown(UnixListenerStream::new(socket), stop).await
            }
            Socket::Tcp(socket) => {
                router.serve_with_incoming_shutdown(TcpListenerStream::new(socket), stop).await
            }
        };
        served.map_err(|source| ServeError::Serve { endpoint: self.endpoint, source })
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("unix:///csi/csi.sock", Endpoint::Unix("/csi/csi.sock".into()))]
    #[case("UNIX://csi/csi.sock", Endpoint::Unix("/csi/csi.sock".into()))]
    #[case("tcp://127.0.0.1:10000", Endpoint::Tcp("127.0.0.1:10000".to_owned()))]
    fn both_schemes_count_in_any_case(#[case] text: &str, #[case] endpoint: Endpoint) {
        assert_eq!(text.parse(), Ok(endpoint));
    }

    #[rstest]
    #[case("")]
    #[case("/csi/csi.sock")]
    #[case("unix://")]
    #[case("http://127.0.0.1")]
    fn any_other_endpoint_is_refused_and_named(#[case] text: &str) {
        assert!(text.parse::<Endpoint>().unwrap_err().starts_with(&format!("{text:?}")));
    }
}
