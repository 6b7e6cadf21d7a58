//! The destination of a packet: an address, a port, and the protocol that the port is of.

use std::{fmt, net::SocketAddr};

/// The protocol of a port, as Services and slices say it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Protocol {
    Tcp,
    Udp,
    Sctp,
}

impl Protocol {
    /// Reads `protocol` of a port; TCP where nothing is said, nothing where Kubernetes has no such protocol.
    pub(crate) fn of(text: Option<&str>) -> Option<Self> {
        match text {
            None | Some("TCP") => Some(Self::Tcp),
            Some("UDP") => Some(Self::Udp),
            Some("SCTP") => Some(Self::Sctp),
            Some(_) => None,
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Sctp => "SCTP",
        })
    }
}

/// `127.77.0.1:53/UDP`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Destination {
    /// Address and port as objects have them.
    pub at: SocketAddr,
    pub protocol: Protocol,
}

impl Destination {
    pub fn tcp(at: SocketAddr) -> Self {
        Self { at, protocol: Protocol::Tcp }
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}/{}", self.at, self.protocol)
    }
}
