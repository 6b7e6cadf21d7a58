//! The cluster addresses and node ports that Services hold, and the next free ones.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;

use serde_json::Value;
use sim_apimachinery::json::elements;

/// The default range of node ports.
pub(crate) const NODE_PORTS: RangeInclusive<u16> = 30_000..=32_767;

/// The networks of cluster addresses, IPv4 and perhaps IPv6, and the range of node ports.
#[derive(Debug)]
pub(crate) struct Addresses {
    network: Network,
    ipv6: Option<Network>,
    node_ports: RangeInclusive<u16>,
    held: HashMap<IpAddr, String>,
    ports: HashMap<(u16, String), String>,
    next_port: u32,
}

/// A network of cluster addresses, and where the next free one is looked for.
#[derive(Debug)]
struct Network {
    base: IpAddr,
    prefix: u8,
    /// Offset in the network.
    next: u32,
}

impl Network {
    fn new(address: IpAddr, prefix: u8) -> Self {
        let base = match address {
            IpAddr::V4(v4) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
                IpAddr::V4(Ipv4Addr::from(u32::from(v4) & mask))
            }
            IpAddr::V6(v6) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0);
                IpAddr::V6(Ipv6Addr::from(u128::from(v6) & mask))
            }
        };
        Self { base, prefix, next: 1 }
    }

    /// One more than the last offset that can be given.
    fn end(&self) -> u32 {
        match self.base {
            // the last one is for broadcasts
            IpAddr::V4(_) => self.size() - 1,
            IpAddr::V6(_) => self.size(),
        }
    }

    fn size(&self) -> u32 {
        let bits = if self.base.is_ipv4() { 32 } else { 128 };
        1u32.checked_shl(bits - u32::from(self.prefix)).unwrap_or(u32::MAX)
    }

    fn at(&self, offset: u32) -> IpAddr {
        match self.base {
            IpAddr::V4(v4) => IpAddr::V4(Ipv4Addr::from(u32::from(v4) + offset)),
            IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from(u128::from(v6) + u128::from(offset))),
        }
    }

    /// Whether the address is one that can be given.
    fn contains(&self, address: IpAddr) -> bool {
        let offset = match (self.base, address) {
            (IpAddr::V4(base), IpAddr::V4(v4)) => u32::from(v4).checked_sub(u32::from(base)),
            (IpAddr::V6(base), IpAddr::V6(v6)) => {
                u128::from(v6).checked_sub(u128::from(base)).and_then(|offset| u32::try_from(offset).ok())
            }
            _ => None,
        };
        offset.is_some_and(|offset| (1..self.end()).contains(&offset))
    }
}

impl Default for Addresses {
    fn default() -> Self {
        Self::new(Ipv4Addr::new(10, 96, 0, 0), 16, NODE_PORTS)
    }
}

/// Why a wanted address or port cannot be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unavailable {
    Taken,
    OutOfRange,
    Exhausted,
}

impl Addresses {
    pub(crate) fn new(network: Ipv4Addr, prefix: u8, node_ports: RangeInclusive<u16>) -> Self {
        Self {
            network: Network::new(network.into(), prefix),
            ipv6: None,
            node_ports,
            held: HashMap::new(),
            ports: HashMap::new(),
            next_port: 0,
        }
    }

    /// Adds a network of IPv6 addresses: Services may have two.
    pub(crate) fn with_ipv6(mut self, network: Ipv6Addr, prefix: u8) -> Self {
        self.ipv6 = Some(Network::new(network.into(), prefix));
        self
    }

    /// Starts to look for free addresses and ports somewhere else, so that runs with other seeds get others.
    pub(crate) fn seed(&mut self, random: u32) {
        for network in [Some(&mut self.network), self.ipv6.as_mut()].into_iter().flatten() {
            network.next = 2 + random % network.size().saturating_sub(4).max(1);
        }
        self.next_port = random % (u32::from(*self.node_ports.end() - self.node_ports.start()) + 1);
    }

    /// The first address, which is that of the Service `default/kubernetes`.
    pub(crate) fn first(&self) -> IpAddr {
        self.network.at(1)
    }

    /// In the words of `spec.ipFamilies`, the default first.
    pub(crate) fn families(&self) -> Vec<&'static str> {
        if self.ipv6.is_some() { vec!["IPv4", "IPv6"] } else { vec!["IPv4"] }
    }

    /// The network of a family, such as `10.96.0.0/16`.
    pub(crate) fn network(&self, ipv6: bool) -> Option<String> {
        let network = if ipv6 { self.ipv6.as_ref()? } else { &self.network };
        Some(format!("{}/{}", network.base, network.prefix))
    }

    pub(crate) fn node_ports(&self) -> &RangeInclusive<u16> {
        &self.node_ports
    }

    /// A free cluster address.
    pub(crate) fn free(&mut self, ipv6: bool) -> Result<IpAddr, Unavailable> {
        let network = if ipv6 { self.ipv6.as_mut() } else { Some(&mut self.network) };
        let network = network.ok_or(Unavailable::Exhausted)?;
        let usable = network.end() - 1;
        for _ in 0..usable {
            let offset = 1 + (network.next - 1) % usable;
            network.next = offset + 1;
            let address = network.at(offset);
            // the first one is kept for `default/kubernetes`
            if offset != 1 && !self.held.contains_key(&address) {
                return Ok(address);
            }
        }
        Err(Unavailable::Exhausted)
    }

    /// Whether `holder` may have this very address.
    pub(crate) fn check(&self, address: IpAddr, holder: &str) -> Result<(), Unavailable> {
        let mut networks = [Some(&self.network), self.ipv6.as_ref()].into_iter().flatten();
        if !networks.any(|network| network.contains(address)) {
            return Err(Unavailable::OutOfRange);
        }
        match self.held.get(&address) {
            Some(other) if other != holder => Err(Unavailable::Taken),
            _ => Ok(()),
        }
    }

    /// A free node port for a protocol, also not among `chosen`.
    pub(crate) fn free_port(&mut self, protocol: &str, chosen: &[(u16, String)]) -> Result<u16, Unavailable> {
        let count = u32::from(*self.node_ports.end() - *self.node_ports.start()) + 1;
        for _ in 0..count {
            let offset = self.next_port % count;
            self.next_port = offset + 1;
            let port = self.node_ports.start() + u16::try_from(offset).expect("less than the count of ports");
            let wanted = (port, protocol.to_owned());
            if !self.ports.contains_key(&wanted) && !chosen.contains(&wanted) {
                return Ok(port);
            }
        }
        Err(Unavailable::Exhausted)
    }

    /// Whether `holder` may have this very port.
    pub(crate) fn check_port(&self, port: u16, protocol: &str, holder: &str) -> Result<(), Unavailable> {
        if !self.node_ports.contains(&port) {
            return Err(Unavailable::OutOfRange);
        }
        match self.ports.get(&(port, protocol.to_owned())) {
            Some(other) if other != holder => Err(Unavailable::Taken),
            _ => Ok(()),
        }
    }

    /// Takes note of a Service that was written or removed.
    pub(crate) fn observe(&mut self, before: Option<&Value>, after: Option<&Value>) {
        if let Some(service) = before {
            for address in addresses(service) {
                self.held.remove(&address);
            }
            for port in ports(service) {
                self.ports.remove(&port);
            }
        }
        if let Some(service) = after {
            let holder = holder(service);
            self.held.extend(addresses(service).map(|address| (address, holder.clone())));
            self.ports.extend(ports(service).map(|port| (port, holder.clone())));
        }
    }
}

/// Returns the holder of an address or a port: the Service's uid.
pub(crate) fn holder(service: &Value) -> String {
    service["metadata"]["uid"].as_str().unwrap_or_default().to_owned()
}

fn addresses(service: &Value) -> impl Iterator<Item = IpAddr> {
    let all = elements(&service["spec"]["clusterIPs"]).iter();
    all.filter_map(|address| address.as_str()?.parse().ok())
}

fn ports(service: &Value) -> impl Iterator<Item = (u16, String)> {
    let spec = &service["spec"];
    let node_ports = elements(&spec["ports"]).iter().filter_map(|port| {
        let protocol = port["protocol"].as_str().unwrap_or("TCP").to_owned();
        Some((u16::try_from(port["nodePort"].as_u64()?).ok()?, protocol))
    });
    let health = spec["healthCheckNodePort"].as_u64().and_then(|port| u16::try_from(port).ok());
    node_ports.chain(health.map(|port| (port, "TCP".to_owned())))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn service(uid: &str, address: &str, port: u16) -> Value {
        json!({"metadata": {"uid": uid}, "spec": {"clusterIPs": [address], "ports": [{"nodePort": port}]}})
    }

    #[test]
    fn an_address_is_given_once_and_again_when_its_service_is_gone() {
        let mut addresses = Addresses::new(Ipv4Addr::new(10, 0, 0, 0), 29, 30_000..=30_001);
        let given: Vec<String> = (0..5)
            .map(|i| {
                let address = addresses.free(false).unwrap();
                addresses.observe(None, Some(&service(&i.to_string(), &address.to_string(), 0)));
                address.to_string()
            })
            .collect();
        assert_eq!(given, ["10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5", "10.0.0.6"]);
        assert_eq!(addresses.free(false), Err(Unavailable::Exhausted));
        addresses.observe(Some(&service("1", "10.0.0.3", 0)), None);
        assert_eq!(addresses.free(false).unwrap().to_string(), "10.0.0.3");
    }

    #[test]
    fn a_wanted_address_must_be_free_and_in_the_network() {
        let mut addresses = Addresses::new(Ipv4Addr::new(10, 0, 0, 0), 24, NODE_PORTS);
        addresses.observe(None, Some(&service("web", "10.0.0.9", 30_080)));
        let check = |address: &str, holder| addresses.check(address.parse().unwrap(), holder);
        assert_eq!(check("10.0.0.9", "web"), Ok(()));
        assert_eq!(check("10.0.0.9", "mail"), Err(Unavailable::Taken));
        assert_eq!(check("10.0.0.0", "web"), Err(Unavailable::OutOfRange));
        assert_eq!(check("10.0.0.255", "web"), Err(Unavailable::OutOfRange));
        assert_eq!(check("10.0.1.9", "web"), Err(Unavailable::OutOfRange));
        assert_eq!(addresses.check_port(30_080, "TCP", "mail"), Err(Unavailable::Taken));
        assert_eq!(addresses.check_port(30_080, "UDP", "mail"), Ok(()));
        assert_eq!(addresses.check_port(80, "TCP", "mail"), Err(Unavailable::OutOfRange));
    }
}
