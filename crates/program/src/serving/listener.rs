//! Sockets that are listened on.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener},
};

use socket2::{Domain, Protocol, Socket, Type};

/// Connections that may wait to be accepted; the number of tokio.
const WAITING: i32 = 1_024;

/// Listens without blocking. `[::]`, which `flags::listen_address` makes of `:PORT`, and `0.0.0.0` are all addresses of both
/// families, as in Go, or those of IPv4 on a machine without IPv6.
///
/// # Errors
/// When the port is taken.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let bound = if address.ip().is_unspecified() {
        match in_both_families(address.port()) {
            // whoever has the port in one family would get the requests of that one
            Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
                TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port()))
            }
            bound => bound,
        }
    } else {
        TcpListener::bind(address)
    };
    let listener = bound?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

fn in_both_families(port: u16) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::IPV6, Type::STREAM, Some(Protocol::TCP))?;
    // else the machine's setting net.ipv6.bindv6only decides
    socket.set_only_v6(false)?;
    // else connections that a former process closed hold the port for a minute
    socket.set_reuse_address(true)?;
    socket.bind(&SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)).into())?;
    socket.listen(WAITING)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    #[test]
    fn a_port_that_somebody_has_in_one_family_is_taken() {
        for own in [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()] {
            // a machine may have no IPv6
            let Ok(others) = TcpListener::bind((own, 0)) else { continue };
            let address = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), others.local_addr().unwrap().port());
            assert_eq!(listen(address).unwrap_err().kind(), io::ErrorKind::AddrInUse, "{own}");
        }
    }
}
