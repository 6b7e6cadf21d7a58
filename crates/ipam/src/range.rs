//! One range of a pool: a stretch of a subnet, less its gateway.
//!
//! The rules are those of the existing admission webhook, whose totals users see: host bits of the subnet are
//! ignored, the defaults leave out network and broadcast address, and the gateway (by default the subnet's first
//! address) is never given out.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr},
};

use ipnet::IpNet;

use crate::family;

/// A range as the user wrote it; empty text means absent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeSpec {
    /// CIDR, host bits allowed.
    pub subnet: String,
    pub start: String,
    pub end: String,
    pub gateway: String,
    /// Nothing new is given out of it.
    pub drain: bool,
}

impl RangeSpec {
    /// A whole subnet with every default.
    pub fn subnet(cidr: impl Into<String>) -> Self {
        Self { subnet: cidr.into(), ..Self::default() }
    }
}

/// As in messages: `192.168.1.0/24`, or `192.168.1.0/24 (192.168.1.5-192.168.1.9)`.
impl fmt::Display for RangeSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.subnet)?;
        if !self.start.is_empty() || !self.end.is_empty() {
            write!(f, " ({}-{})", self.start, self.end)?;
        }
        Ok(())
    }
}

/// A checked range. `start <= end`, both in `subnet`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    subnet: IpNet,
    start: IpAddr,
    end: IpAddr,
    gateway: Option<IpAddr>,
    drains: bool,
}

/// A fault of a range. The text says what to write instead where that is not obvious.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RangeError {
    #[error("subnet {0:?} is not a CIDR such as 192.168.1.0/24")]
    NotACidr(String),
    #[error("subnet {0} is IPv4 written as IPv6: write it as IPv4")]
    MappedSubnet(IpNet),
    #[error(
        "0.0.0.0 stands for DHCP and is no address: use ipam dhcp on the load balancer instead of a pool"
    )]
    DhcpSentinel,
    #[error("{field} {text:?} is not an IP address")]
    NotAnAddress { field: &'static str, text: String },
    #[error("{field} {address} is outside of subnet {subnet}")]
    OutsideSubnet { field: &'static str, address: IpAddr, subnet: IpNet },
    #[error("{field} {address} is the network address of {subnet}")]
    NetworkAddress { field: &'static str, address: IpAddr, subnet: IpNet },
    #[error("{field} {address} is the broadcast address of {subnet}")]
    BroadcastAddress { field: &'static str, address: IpAddr, subnet: IpNet },
}

/// A network as `10.0.0.0/24`; `None` where the text is none. To some programs `010` is 8, so it is refused, as the Go programs
/// refuse it.
fn network(text: &str) -> Option<IpNet> {
    let (address, _) = text.split_once('/')?;
    address.parse::<IpAddr>().ok()?;
    text.parse().ok()
}

impl Range {
    /// Checks a range and fills its defaults.
    ///
    /// # Errors
    /// Every fault of the range, not only the first.
    pub fn parse(spec: &RangeSpec) -> Result<Self, Vec<RangeError>> {
        let Some(subnet) = network(&spec.subnet) else {
            return Err(vec![RangeError::NotACidr(spec.subnet.clone())]);
        };
        let subnet = subnet.trunc();
        if matches!(subnet, IpNet::V6(v6) if v6.addr().to_ipv4_mapped().is_some()) {
            return Err(vec![RangeError::MappedSubnet(subnet)]);
        }
        let mut faults = Vec::new();
        let mut explicit = |field, text: &str| match within(subnet, field, text) {
            Ok(address) => address,
            Err(fault) => {
                faults.push(fault);
                None
            }
        };
        let start = explicit("rangeStart", &spec.start);
        let end = explicit("rangeEnd", &spec.end);
        let gateway = explicit("gateway", &spec.gateway);
        if subnet.network() == IpAddr::V4(Ipv4Addr::UNSPECIFIED) && subnet.prefix_len() >= 31 {
            faults.push(RangeError::DhcpSentinel);
        }
        if !faults.is_empty() {
            return Err(faults);
        }

        let network = subnet.network();
        if subnet.prefix_len() == subnet.max_prefix_len() {
            let drains = spec.drain;
            return Ok(Self { subnet, start: network, end: network, gateway: None, drains });
        }
        let first = family::address(family::number(network) + 1, network);
        let last = match subnet {
            IpNet::V4(v4) => family::address(family::number(v4.broadcast().into()) - 1, network),
            IpNet::V6(v6) => v6.broadcast().into(),
        };
        let (start, end) = (start.unwrap_or(first), end.unwrap_or(last));
        // a /31 arrives here with start above end, and some users write them the wrong way round
        Ok(Self {
            subnet,
            start: start.min(end),
            end: start.max(end),
            gateway: Some(gateway.unwrap_or(first)),
            drains: spec.drain,
        })
    }

    /// The subnet, host bits cleared.
    pub fn subnet(&self) -> IpNet {
        self.subnet
    }

    pub fn start(&self) -> IpAddr {
        self.start
    }

    pub fn end(&self) -> IpAddr {
        self.end
    }

    /// None for a single address (/32, /128).
    pub fn gateway(&self) -> Option<IpAddr> {
        self.gateway
    }

    /// The subnet's mask, e.g. `255.255.255.0`.
    pub fn mask(&self) -> IpAddr {
        self.subnet.netmask()
    }

    /// Whether the address lies in start..=end, be it the gateway or not.
    pub fn covers(&self, address: IpAddr) -> bool {
        family::same(self.start, address) && self.start <= address && address <= self.end
    }

    /// Whether nothing new is given out of the range: what is held stays with its holders.
    pub fn drains(&self) -> bool {
        self.drains
    }

    /// Whether the address may be held: it may be given out, unless the range drains.
    pub fn offers(&self, address: IpAddr) -> bool {
        self.covers(address) && self.gateway != Some(address)
    }

    /// How many addresses may be held.
    pub fn total(&self) -> u128 {
        let gateway_inside = self.gateway.is_some_and(|gateway| self.covers(gateway));
        self.span().saturating_sub(u128::from(gateway_inside))
    }

    /// How many addresses lie in start..=end.
    pub(crate) fn span(&self) -> u128 {
        (family::number(self.end) - family::number(self.start)).saturating_add(1)
    }

    /// Whether two ranges have an address in common. Subnets may be the same as long as the stretches differ.
    pub fn overlaps(&self, other: &Self) -> bool {
        family::same(self.start, other.start) && self.start <= other.end && other.start <= self.end
    }
}

/// As in messages: `192.168.1.5-192.168.1.9`, or `192.168.1.5-192.168.1.9 (drains)`.
impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}{}", self.start, self.end, if self.drains { " (drains)" } else { "" })
    }
}

fn within(subnet: IpNet, field: &'static str, text: &str) -> Result<Option<IpAddr>, RangeError> {
    if text.is_empty() {
        return Ok(None);
    }
    let address: IpAddr =
        text.parse().map_err(|_| RangeError::NotAnAddress { field, text: text.to_owned() })?;
    let address = address.to_canonical();
    if !subnet.contains(&address) {
        return Err(RangeError::OutsideSubnet { field, address, subnet });
    }
    if address == subnet.network() {
        return Err(RangeError::NetworkAddress { field, address, subnet });
    }
    if address == subnet.broadcast() {
        return Err(RangeError::BroadcastAddress { field, address, subnet });
    }
    Ok(Some(address))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::{Ranges, Record, record::Request};

    fn spec(subnet: &str, start: &str, end: &str, gateway: &str) -> RangeSpec {
        RangeSpec {
            subnet: subnet.into(),
            start: start.into(),
            end: end.into(),
            gateway: gateway.into(),
            ..RangeSpec::default()
        }
    }

    #[rstest]
    #[case::whole_subnet(
        spec("192.168.100.0/24", "", "", ""),
        253,
        "192.168.100.1-192.168.100.254",
        "192.168.100.2"
    )]
    #[case::host_bits_are_ignored(
        spec("192.168.100.77/24", "", "", ""),
        253,
        "192.168.100.1-192.168.100.254",
        "192.168.100.2"
    )]
    #[case::gateway_outside(
        spec("192.168.100.0/24", "192.168.100.1", "192.168.100.10", "192.168.100.11"),
        10,
        "192.168.100.1-192.168.100.10",
        "192.168.100.1"
    )]
    #[case::default_gateway_inside(
        spec("192.168.100.0/24", "192.168.100.1", "192.168.100.10", ""),
        9,
        "192.168.100.1-192.168.100.10",
        "192.168.100.2"
    )]
    #[case::start_only(
        spec("192.168.100.0/24", "192.168.100.251", "", ""),
        4,
        "192.168.100.251-192.168.100.254",
        "192.168.100.251"
    )]
    #[case::end_only(
        spec("192.168.100.0/24", "", "192.168.100.10", ""),
        9,
        "192.168.100.1-192.168.100.10",
        "192.168.100.2"
    )]
    #[case::start_and_end_swapped(
        spec("192.168.100.0/24", "192.168.100.20", "192.168.100.10", ""),
        11,
        "192.168.100.10-192.168.100.20",
        "192.168.100.10"
    )]
    #[case::one_address(
        spec("192.168.100.10/32", "", "", ""),
        1,
        "192.168.100.10-192.168.100.10",
        "192.168.100.10"
    )]
    // docs/contract/load-balancer.md#IP-9
    #[case::a_31_has_one(
        spec("192.168.100.0/31", "", "", ""),
        1,
        "192.168.100.0-192.168.100.1",
        "192.168.100.0"
    )]
    #[case::a_30_has_one(
        spec("192.168.100.0/30", "", "", ""),
        1,
        "192.168.100.1-192.168.100.2",
        "192.168.100.2"
    )]
    #[case::documented(
        spec("192.168.0.200/29", "", "", ""),
        5,
        "192.168.0.201-192.168.0.206",
        "192.168.0.202"
    )]
    #[case::only_the_gateway(spec("10.0.0.0/24", "10.0.0.1", "10.0.0.1", ""), 0, "10.0.0.1-10.0.0.1", "")]
    #[case::ipv6_reaches_the_last(spec("fd00::/126", "", "", ""), 2, "fd00::1-fd00::3", "fd00::2")]
    #[case::ipv6_one_address(spec("fd00::7/128", "", "", ""), 1, "fd00::7-fd00::7", "fd00::7")]
    #[case::half_of_all_ipv6(
        spec("8000::/1", "", "", ""),
        (1 << 127) - 2,
        "8000::1-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "8000::2"
    )]
    fn a_range_has_this_many_addresses(
        #[case] spec: RangeSpec,
        #[case] total: u128,
        #[case] stretch: &str,
        #[case] first: &str,
    ) {
        let range = Range::parse(&spec).unwrap();
        assert_eq!((range.total(), range.to_string().as_str()), (total, stretch));
        let ranges = Ranges::parse(&[spec]).unwrap();
        let request = Request {
            holder: "shop/web",
            family: None,
            known: None,
            lost: &[],
            among: None,
            exactly: None,
            resting: None,
        };
        let claimed = Record::default().claim(&ranges, request, |_| false);
        assert_eq!(claimed.map(|it| it.address().to_string()).unwrap_or_default(), first);
    }

    #[rstest]
    #[case::no_prefix(spec("192.168.100.0", "", "", ""), &["is not a CIDR"])]
    #[case::prefix_too_long(spec("192.168.100.0/100", "", "", ""), &["is not a CIDR"])]
    #[case::no_address(spec("192.168.300.0/24", "", "", ""), &["is not a CIDR"])]
    #[case::leading_zeros(spec("010.9.0.0/24", "", "", ""), &["is not a CIDR"])]
    #[case::single_with_start_elsewhere(spec("192.168.100.10/32", "192.168.101.10", "", ""), &["outside of subnet"])]
    #[case::single_with_its_own_start(spec("192.168.100.10/32", "192.168.100.10", "", ""), &["network address"])]
    #[case::starts_at_network(spec("192.168.100.0/24", "192.168.100.0", "", ""), &["rangeStart 192.168.100.0 is the network"])]
    #[case::ends_at_broadcast(spec("192.168.100.0/24", "", "192.168.100.255", ""), &["rangeEnd 192.168.100.255 is the broadcast"])]
    #[case::last_of_ipv6(spec("fd00::/120", "", "fd00::ff", ""), &["broadcast address"])]
    #[case::gateway_elsewhere(spec("192.168.100.0/24", "", "", "10.0.0.1"), &["gateway 10.0.0.1 is outside"])]
    #[case::family_mixed(spec("192.168.100.0/24", "fd00::1", "", ""), &["outside of subnet"])]
    #[case::legacy_dhcp(spec("0.0.0.0/32", "", "", ""), &["stands for DHCP"])]
    #[case::mapped(spec("::ffff:192.168.1.0/120", "", "", ""), &["written as IPv6"])]
    #[case::three_faults_at_once(
        spec("192.168.100.0/24", "x", "192.168.101.1", "192.168.100.255"),
        &["rangeStart \"x\"", "rangeEnd 192.168.101.1 is outside", "gateway 192.168.100.255 is the broadcast"]
    )]
    fn a_faulty_range_names_every_fault(#[case] spec: RangeSpec, #[case] reasons: &[&str]) {
        let faults = Range::parse(&spec).unwrap_err();
        assert_eq!(faults.len(), reasons.len(), "{faults:?}");
        for (fault, reason) in faults.iter().zip(reasons) {
            assert!(fault.to_string().contains(reason), "{fault}");
        }
    }

    #[test]
    fn the_gateway_is_covered_but_not_offered() {
        let range = Range::parse(&RangeSpec::subnet("10.0.0.0/24")).unwrap();
        let gateway = "10.0.0.1".parse().unwrap();
        assert_eq!(
            (range.covers(gateway), range.offers(gateway), range.gateway()),
            (true, false, Some(gateway))
        );
        assert_eq!(range.mask().to_string(), "255.255.255.0");
    }
}
