//! Where gRPC is served: a unix socket as a rule, else TCP.

use std::convert::Infallible;
use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use tokio::net::{TcpListener, UnixListener};
use tokio::sync::oneshot;
use tokio::time::sleep;
use tokio_stream::wrappers::{TcpListenerStream, UnixListenerStream};
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::codegen::http::{Request, Response};
use tonic::transport::Server;

/// How long connections may go on after SIGTERM. Calls have their own, shorter limits; this one is for a caller that
/// does not say what it wants.
const CONNECTIONS_END_WITHIN: Duration = Duration::from_secs(10);
/// Calls of one connection at once.
const STREAMS: u32 = 256;
/// Bytes of a call's headers.
const HEADERS: u32 = 16 << 10;

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
    Unix(UnixListener, Place),
    Tcp(TcpListener),
}

/// The file of a socket. Dropping this removes the file, unless another process has replaced it.
#[derive(Debug)]
struct Place {
    path: PathBuf,
    /// Device and inode.
    id: (u64, u64),
}

impl Listener {
    /// Takes the place of a socket that a former process left. Inside a runtime.
    ///
    /// # Errors
    /// Where there is no folder, no right, another program on the port, or a file that is no socket.
    pub async fn bind(endpoint: Endpoint) -> Result<Self, ServeError> {
        let socket = match &endpoint {
            Endpoint::Unix(path) => Place::bind(path).map(|(socket, place)| Socket::Unix(socket, place)),
            Endpoint::Tcp(address) => TcpListener::bind(address).await.map(Socket::Tcp),
        };
        match socket {
            Ok(socket) => Ok(Self { endpoint, socket }),
            Err(source) => Err(ServeError::Listen { endpoint, source }),
        }
    }

    /// Serves until `stop` ends and the calls under way then are answered, and removes the socket.
    ///
    /// # Errors
    /// When connections can no longer be taken.
    pub async fn serve<S>(self, service: S, stop: impl Future<Output = ()>) -> Result<(), ServeError>
    where
        S: Service<Request<Body>, Response = Response<Body>, Error = Infallible> + Clone + Send + 'static,
        S::Future: Send,
    {
        let server =
            Server::builder().max_concurrent_streams(Some(STREAMS)).http2_max_header_list_size(Some(HEADERS));
        let (stopping, stopped) = oneshot::channel();
        let stop = async move {
            stop.await;
            // nobody waits any more where the server has failed
            stopping.send(()).ok();
        };
        let late = async {
            match stopped.await {
                Ok(()) => sleep(CONNECTIONS_END_WITHIN).await,
                Err(_) => std::future::pending().await,
            }
        };
        let served = async {
            match self.socket {
                Socket::Unix(socket, _place) => {
                    let connections = UnixListenerStream::new(socket);
                    server.serve_with_incoming_shutdown(service, connections, stop).await
                }
                Socket::Tcp(socket) => {
                    let connections = TcpListenerStream::new(socket);
                    server.serve_with_incoming_shutdown(service, connections, stop).await
                }
            }
        };
        tokio::select! {
            served = served => served.map_err(|source| ServeError::Serve { endpoint: self.endpoint, source }),
            () = late => {
                tracing::warn!("connections did not end in time");
                Ok(())
            }
        }
    }
}

impl Place {
    fn bind(path: &Path) -> io::Result<(UnixListener, Self)> {
        match fs::symlink_metadata(path) {
            Ok(found) if found.file_type().is_socket() => fs::remove_file(path)?,
            Ok(_) => {
                return Err(io::Error::new(
                    io::ErrorKind::AlreadyExists,
                    "there is a file that is no socket",
                ));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let socket = UnixListener::bind(path)?;
        Ok((socket, Self { path: path.to_owned(), id: id(path)? }))
    }
}

fn id(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|found| (found.dev(), found.ino()))
}

impl Drop for Place {
    fn drop(&mut self) {
        if id(&self.path).is_ok_and(|found| found == self.id)
            && let Err(error) = fs::remove_file(&self.path)
        {
            tracing::warn!("remove socket {}: {error}", self.path.display());
        }
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
