//! Where an address of an object is found on the wire.
//!
//! A real API server refuses loopback addresses in EndpointSlices, and only loopback addresses exist on a laptop
//! without asking anybody. So VMs and pods carry addresses of 198.18.0.0/16 (set aside for benchmarks, routed
//! nowhere) in every object, and every dialler and listener maps them to 127.18.0.0/16. Nobody may demand a loopback
//! address for a Service: 198.19.0.0/16 is for those, at 127.22.0.0/16. Other addresses, most VIPs among them, are
//! themselves.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};

use ipnet::Ipv4Net;

/// An IPv6 address of `fd18::/96` stands for the IPv4 address in its last four bytes: loopback has one IPv6 address for
/// all.
const IPV6: u128 = 0xfd18 << 112;

/// The IPv6 address that stands for an IPv4 address, such as a pod's second one.
#[must_use]
pub fn ipv6(address: Ipv4Addr) -> Ipv6Addr {
    Ipv6Addr::from(IPV6 | u128::from(u32::from(address)))
}

/// The IPv4 address for which an IPv6 address stands; other addresses are themselves.
pub(crate) fn meant(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(v6) => match u32::try_from(u128::from(v6) ^ IPV6) {
            Ok(v4) => IpAddr::V4(Ipv4Addr::from(v4)),
            Err(_) => address,
        },
        IpAddr::V4(_) => address,
    }
}

/// The number that is added to a port below 1024 that may not be bound.
const LOW_PORT_SHIFT: u16 = 8000;

/// The map from objects to the wire, an argument of everything that dials or listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WireMap {
    objects: Ipv4Net,
    wire: Ipv4Net,
    services: Ipv4Net,
    services_on_wire: Ipv4Net,
    low_ports: LowPorts,
}

/// Where ports below 1024 are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LowPorts {
    /// Where they are.
    InPlace,
    /// At port + 8000, because an ordinary user may not bind them.
    Shifted,
}

/// A stretch is held by a socket on this port of its last address.
const HOLD: u16 = 39_172;
/// The number of stretches to try.
const STRETCHES: u8 = 200;

/// A /24 of 198.18.0.0/16 for VMs and pods that no other simulation on this machine has, until it is dropped.
#[derive(Debug)]
pub struct Stretch {
    number: u8,
    _held: UdpSocket,
}

impl Stretch {
    /// Takes the first one that nobody holds.
    ///
    /// # Errors
    /// When all are taken, or this system does not let 127.0.0.0/8 be used (another system than Linux).
    pub fn take() -> io::Result<Self> {
        let mut last = None;
        for number in 1..=STRETCHES {
            match UdpSocket::bind((Ipv4Addr::new(127, 18, number, 254), HOLD)) {
                Ok(held) => return Ok(Self { number, _held: held }),
                Err(error) => last = Some(error),
            }
        }
        Err(last.expect("at least one was tried"))
    }

    /// Its third byte, for other networks that go with it.
    #[must_use]
    pub fn number(&self) -> u8 {
        self.number
    }

    /// The addresses of VMs and pods, as objects have them.
    #[must_use]
    pub fn vms(&self) -> Ipv4Net {
        Ipv4Net::new(Ipv4Addr::new(198, 18, self.number, 0), 24).expect("24 is a prefix length")
    }
}

impl WireMap {
    /// 198.18.0.0/16 is found at 127.18.0.0/16, and 198.19.0.0/16 at 127.22.0.0/16.
    pub fn loopback(low_ports: LowPorts) -> Self {
        let net = |a, b| Ipv4Net::new(Ipv4Addr::new(a, b, 0, 0), 16).expect("16 is at most 32");
        Self {
            objects: net(198, 18),
            wire: net(127, 18),
            services: net(198, 19),
            services_on_wire: net(127, 22),
            low_ports,
        }
    }

    /// Like [`WireMap::loopback`], after having tried whether this process may bind a port below 1024.
    pub fn for_this_process() -> Self {
        // port 1 (tcpmux) on an address of our own: nobody else listens there
        let low_ports = match TcpListener::bind((Ipv4Addr::new(127, 18, 255, 254), 1)) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => LowPorts::Shifted,
            _ => LowPorts::InPlace,
        };
        Self::loopback(low_ports)
    }

    /// Where ports below 1024 are served.
    pub fn low_ports(&self) -> LowPorts {
        self.low_ports
    }

    /// The address on the wire of an address in an object.
    pub fn address(&self, address: IpAddr) -> IpAddr {
        let meant = meant(address);
        let IpAddr::V4(v4) = meant else { return meant };
        let nets = [(self.objects, self.wire), (self.services, self.services_on_wire)];
        let Some((from, to)) = nets.into_iter().find(|(from, _)| from.contains(&v4)) else { return meant };
        let host = u32::from(v4) & u32::from(from.hostmask());
        IpAddr::V4(Ipv4Addr::from(u32::from(to.network()) | host))
    }

    /// The port on the wire.
    pub fn port(&self, port: u16) -> u16 {
        match self.low_ports {
            LowPorts::Shifted if port < 1024 => port + LOW_PORT_SHIFT,
            _ => port,
        }
    }

    /// Address and port on the wire: what to dial, and what to listen on.
    pub fn socket(&self, object: SocketAddr) -> SocketAddr {
        SocketAddr::new(self.address(object.ip()), self.port(object.port()))
    }

    /// Whether an address belongs to a VM or a pod of this sandbox.
    pub fn is_of_a_vm(&self, address: IpAddr) -> bool {
        matches!(address, IpAddr::V4(v4) if self.objects.contains(&v4))
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::vm("198.18.7.11:30080", "127.18.7.11:30080")]
    #[case::vip_is_itself("127.77.3.1:80", "127.77.3.1:80")]
    #[case::dummy_is_itself("10.52.0.255:80", "10.52.0.255:80")]
    #[case::demanded_vip("198.19.7.11:80", "127.22.7.11:80")]
    #[case::next_net_is_itself("198.20.7.11:80", "198.20.7.11:80")]
    #[case::ipv6_of_a_pod("[fd18::198.18.7.131]:80", "127.18.7.131:80")]
    #[case::ipv6_vip("[fd18::127.23.7.1]:80", "127.23.7.1:80")]
    #[case::other_ipv6_is_itself("[::1]:80", "[::1]:80")]
    fn maps(#[case] object: &str, #[case] wire: &str) {
        let map = WireMap::loopback(LowPorts::InPlace);
        assert_eq!(map.socket(object.parse().unwrap()), wire.parse().unwrap());
    }

    #[test]
    fn the_ipv6_address_of_an_ipv4_address_means_that() {
        let v4 = Ipv4Addr::new(198, 18, 7, 131);
        assert_eq!(ipv6(v4).to_string(), "fd18::c612:783");
        assert_eq!(meant(ipv6(v4).into()), IpAddr::V4(v4));
    }

    #[rstest]
    #[case(80, 8080)]
    #[case(1023, 9023)]
    #[case(1024, 1024)]
    #[case(30080, 30080)]
    fn low_ports_are_shifted_where_they_may_not_be_bound(#[case] port: u16, #[case] wire: u16) {
        assert_eq!(WireMap::loopback(LowPorts::Shifted).port(port), wire);
        assert_eq!(WireMap::loopback(LowPorts::InPlace).port(port), port);
    }
}
