//! An address that does not answer: a client waits until its own time-out, as with a VM that hangs.
//!
//! Linux drops the SYN for a listener whose queue of unaccepted connections is full. So we listen with the shortest
//! queue there is, never accept, and fill the queue ourselves.

use std::{io, net::SocketAddr};

use socket2::{Domain, Protocol, Socket, Type};

/// More than fit into the shortest queue.
const FILLERS: usize = 3;

/// Held for as long as the address should stay silent.
#[derive(Debug)]
pub(crate) struct Blackhole {
    _listener: Socket,
    _fillers: Vec<Socket>,
}

impl Blackhole {
    /// # Errors
    /// When the address cannot be bound.
    pub(crate) fn open(at: SocketAddr) -> io::Result<Self> {
        let socket = || {
            let socket = Socket::new(Domain::for_address(at), Type::STREAM, Some(Protocol::TCP))?;
            socket.set_nonblocking(true)?;
            io::Result::Ok(socket)
        };
        let listener = socket()?;
        listener.set_reuse_address(true)?;
        listener.bind(&at.into())?;
        listener.listen(0)?;
        let mut fillers = Vec::new();
        for _ in 0..FILLERS {
            let filler = socket()?;
            match filler.connect(&at.into()) {
                Ok(()) => {}
                Err(error) if error.raw_os_error() == Some(rustix::io::Errno::INPROGRESS.raw_os_error()) => {}
                Err(error) => return Err(error),
            }
            fillers.push(filler);
        }
        Ok(Self { _listener: listener, _fillers: fillers })
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::net::{Ipv4Addr, TcpListener, TcpStream};
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_connection_attempt_gets_no_answer_until_the_address_is_free_again() {
        let free = TcpListener::bind((Ipv4Addr::new(127, 18, 255, 1), 0)).unwrap();
        let at = free.local_addr().unwrap();
        drop(free);
        let hole = Blackhole::open(at).unwrap();
        let error = TcpStream::connect_timeout(&at, Duration::from_millis(200)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        drop(hole);
        let _again = TcpListener::bind(at).unwrap();
        TcpStream::connect_timeout(&at, Duration::from_secs(5)).unwrap();
    }
}
