//! The pools of kube-vip-cloud-provider: keys `cidr-<name>` and `range-<name>` of ConfigMap `kube-system/kubevip`.
//!
//! Everything that can be understood is, piece by piece; the rest is reported. Where an address lies on the edge of
//! what a range of ours can offer (network, broadcast, first of a subnet), it becomes a range of its own (`/32`) if the
//! text of a range begins or ends with it, or if somebody has it already.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use ipnet::IpNet;

use crate::{
    family,
    range::{Range, RangeError, RangeSpec},
};

/// The ranges that were read, by the name of their pool, and what could not be taken over.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Legacy {
    pub pools: BTreeMap<String, Vec<RangeSpec>>,
    /// The edges of ranges that are in the text of a pool and that nobody has: these ranges do not offer them.
    pub left_out: BTreeSet<(String, IpAddr)>,
    pub faults: Vec<LegacyFault>,
}

/// An entry that could not be imported.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {entry:?} {reason}")]
pub struct LegacyFault {
    pub key: String,
    pub entry: String,
    pub reason: LegacyReason,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LegacyReason {
    #[error("names no pool: keys are cidr-<namespace> or range-<namespace>")]
    NoName,
    #[error("names no address: write 192.168.0.0/24 or 192.168.0.10-192.168.0.20")]
    Empty,
    #[error("is not a range: write start-end")]
    NotARange,
    #[error("goes from one address family to the other")]
    MixedFamilies,
    #[error("is not usable: {0}")]
    Range(#[from] RangeError),
    #[error("overlaps {0}, which was imported")]
    Overlap(RangeSpec),
}

/// Keys of kube-vip-cloud-provider that mean something else and are passed over in silence.
const OTHER_PREFIXES: [&str; 5] = ["search", "interface", "allow", "skip", "kubevip"];

impl Legacy {
    /// Reads the data of the ConfigMap. Both keys of one name make one pool. `is_held` answers whether somebody has an
    /// address of a pool already: the old allocator gave out network, broadcast and first addresses too.
    pub fn read<'a>(
        data: impl IntoIterator<Item = (&'a String, &'a String)>,
        is_held: impl Fn(&str, IpAddr) -> bool,
    ) -> Self {
        let mut legacy = Self::default();
        for (key, value) in data {
            let Some((kind, name)) = pool_entry(key) else {
                let kind = key.split_once('-').map_or(&**key, |(kind, _)| kind);
                if !OTHER_PREFIXES.contains(&kind) {
                    legacy.fault(key, key, LegacyReason::NoName);
                }
                continue;
            };
            let pieces: Vec<_> = value.split(',').map(str::trim).filter(|piece| !piece.is_empty()).collect();
            if pieces.is_empty() {
                legacy.fault(key, value, LegacyReason::Empty);
            }
            for piece in pieces {
                match read_piece(kind, piece) {
                    Ok(specs) => {
                        for spec in specs {
                            legacy.add(key, name, piece, spec, &is_held);
                        }
                    }
                    Err(reason) => legacy.fault(key, piece, reason),
                }
            }
        }
        legacy
    }

    fn add(
        &mut self,
        key: &str,
        name: &str,
        piece: &str,
        spec: RangeSpec,
        is_held: &impl Fn(&str, IpAddr) -> bool,
    ) {
        let (held, left_out): (BTreeSet<_>, BTreeSet<_>) =
            edges(&spec).into_iter().partition(|address| is_held(name, *address));
        self.left_out.extend(left_out.into_iter().map(|address| (name.to_owned(), address)));
        for spec in with_edges(spec, &held) {
            match self.free(&spec) {
                Ok(()) => self.pools.entry(name.to_owned()).or_default().push(spec),
                Err(reason) => self.fault(key, piece, reason),
            }
        }
    }

    /// Whether the range is good and overlaps nothing that was read before, of whatever pool.
    fn free(&self, spec: &RangeSpec) -> Result<(), LegacyReason> {
        let range = Range::parse(spec).map_err(first)?;
        let mut earlier = self.pools.values().flatten();
        let taken = earlier.find(|other| Range::parse(other).is_ok_and(|other| other.overlaps(&range)));
        taken.map_or(Ok(()), |other| Err(LegacyReason::Overlap(other.clone())))
    }

    fn fault(&mut self, key: &str, entry: &str, reason: LegacyReason) {
        self.faults.push(LegacyFault { key: key.to_owned(), entry: entry.to_owned(), reason });
    }
}

/// The kind of a pool's entry, `cidr` or `range`, and the name of the pool. Other keys are none of a pool.
pub fn pool_entry(key: &str) -> Option<(&str, &str)> {
    key.split_once('-').filter(|(kind, name)| matches!(*kind, "cidr" | "range") && !name.is_empty())
}

fn first(mut errors: Vec<RangeError>) -> LegacyReason {
    LegacyReason::Range(errors.swap_remove(0))
}

/// A piece is read as what it looks like: Harvester wrote a list that mixes both forms under `range-`.
fn read_piece(kind: &str, piece: &str) -> Result<Vec<RangeSpec>, LegacyReason> {
    match (piece.contains('/'), piece.contains('-')) {
        (true, false) => cidr(piece),
        (false, true) => range(piece),
        _ if kind == "cidr" => cidr(piece),
        _ => range(piece),
    }
}

fn cidr(piece: &str) -> Result<Vec<RangeSpec>, LegacyReason> {
    let spec = RangeSpec::subnet(piece);
    Range::parse(&spec).map_err(first)?;
    Ok(vec![spec])
}

/// `a-b` as the smallest subnet around it. A range of ours cannot begin at its subnet's first address or end at its
/// last: those become ranges of their own.
fn range(piece: &str) -> Result<Vec<RangeSpec>, LegacyReason> {
    let (start, end) = piece.split_once('-').ok_or(LegacyReason::NotARange)?;
    let parse = |text: &str| text.trim().parse::<IpAddr>().map_err(|_| LegacyReason::NotARange);
    let (start, end) = (parse(start)?, parse(end)?);
    if !family::same(start, end) {
        return Err(LegacyReason::MixedFamilies);
    }
    let (start, end) = (start.min(end), start.max(end));
    let width: u8 = if start.is_ipv4() { 32 } else { 128 };
    let differing = 128 - (family::number(start) ^ family::number(end)).leading_zeros();
    let prefix = width - u8::try_from(differing).unwrap_or(width).min(width);
    let subnet = IpNet::new(start, prefix).expect("the prefix is at most the width").trunc();
    if start == end {
        return Ok(vec![single(start)]);
    }

    let mut specs = Vec::new();
    let (mut low, mut high) = (family::number(start), family::number(end));
    if start == subnet.network() {
        specs.push(single(start));
        low += 1;
    }
    let last = (end == subnet.broadcast()).then(|| single(end));
    high -= u128::from(last.is_some());
    if low <= high {
        let (start, end) = (family::address(low, start), family::address(high, start));
        let (start, end) = (start.to_string(), end.to_string());
        specs.push(RangeSpec { subnet: subnet.to_string(), start, end, ..RangeSpec::default() });
    }
    specs.extend(last);
    Ok(specs)
}

fn single(address: IpAddr) -> RangeSpec {
    RangeSpec::subnet(IpNet::from(address).to_string())
}

/// The addresses that the text of a range stands for and that the range does not offer: network and broadcast address of a
/// whole subnet, and the first address, which is the gateway.
fn edges(spec: &RangeSpec) -> BTreeSet<IpAddr> {
    let Ok(range) = Range::parse(spec) else { return BTreeSet::new() };
    let subnet = range.subnet();
    let outermost = spec.start.is_empty().then(|| [subnet.network(), subnet.broadcast()]);
    let gateway = range.gateway().filter(|gateway| range.covers(*gateway));
    outermost.into_iter().flatten().chain(gateway).filter(|address| !range.offers(*address)).collect()
}

/// The range, and a range of its own for each of these edges of it.
fn with_edges(spec: RangeSpec, edges: &BTreeSet<IpAddr>) -> Vec<RangeSpec> {
    let Ok(range) = Range::parse(&spec) else { return vec![spec] };
    if edges.is_empty() {
        return vec![spec];
    }
    // a range of ours offers one address of a /31 at most
    if range.subnet().prefix_len() + 1 == range.subnet().max_prefix_len() {
        return range.subnet().hosts().map(single).collect();
    }
    let gateway = range.gateway().filter(|gateway| edges.contains(gateway));
    let mut specs: Vec<_> =
        edges.iter().filter(|address| Some(**address) != gateway).map(|address| single(*address)).collect();
    match gateway {
        None => specs.push(spec),
        Some(gateway) => {
            specs.push(single(gateway));
            // a range of one address has no gateway, and those of a /31 were split above
            let start = family::address(family::number(gateway) + 1, gateway).to_string();
            specs.push(RangeSpec { start, end: range.end().to_string(), ..spec });
        }
    }
    specs
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::Ranges;

    fn read(data: &[(&str, &str)], in_use: &[&str]) -> Legacy {
        let data: BTreeMap<String, String> =
            data.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let in_use: Vec<IpAddr> = in_use.iter().map(|address| address.parse().unwrap()).collect();
        Legacy::read(&data, |_, address| in_use.contains(&address))
    }

    /// Ranges as `subnet` or `subnet (start-end)`.
    fn texts(legacy: &Legacy, pool: &str) -> Vec<String> {
        Ranges::parse(&legacy.pools[pool]).expect("what is imported is valid");
        legacy.pools[pool].iter().map(ToString::to_string).collect()
    }

    #[rstest]
    #[case("cidr-default", "192.168.10.0/24", &["192.168.10.0/24"])]
    #[case("cidr-ns1", "192.168.20.0/24,192.168.30.0/24", &["192.168.20.0/24", "192.168.30.0/24"])]
    #[case(
        "range-ns-2",
        "192.168.40.1-192.168.40.10,192.168.50.10-192.168.50.20",
        &["192.168.40.0/28 (192.168.40.1-192.168.40.10)", "192.168.50.0/27 (192.168.50.10-192.168.50.20)"]
    )]
    #[case::host_bits("cidr-default", "192.168.0.200/29", &["192.168.0.200/29"])]
    // each of these ended the Go program: docs/contract/load-balancer.md#IM-1
    #[case::blanks("cidr-default", " 192.168.10.0/24 , 192.168.20.0/24,", &["192.168.10.0/24", "192.168.20.0/24"])]
    #[case::one_address("range-default", "10.0.0.7-10.0.0.7", &["10.0.0.7/32"])]
    #[case::two_addresses("range-default", "10.0.0.6-10.0.0.7", &["10.0.0.6/32", "10.0.0.7/32"])]
    #[case::edges("range-default", "10.0.0.0-10.0.0.15", &["10.0.0.0/32", "10.0.0.0/28 (10.0.0.1-10.0.0.14)", "10.0.0.15/32"])]
    #[case::lower_edge("range-default", "10.0.0.0 - 10.0.0.9", &["10.0.0.0/32", "10.0.0.0/28 (10.0.0.1-10.0.0.9)"])]
    #[case::backwards("range-default", "10.0.0.9-10.0.0.5", &["10.0.0.0/28 (10.0.0.5-10.0.0.9)"])]
    // docs/contract/load-balancer.md#8.5: the setting vip-pools becomes one key, whatever its entries look like
    #[case::mixed("range-demo", "10.0.0.0/29,10.0.1.5-10.0.1.9", &["10.0.0.0/29", "10.0.1.0/28 (10.0.1.5-10.0.1.9)"])]
    #[case::mixed("cidr-demo", "10.0.1.5-10.0.1.9", &["10.0.1.0/28 (10.0.1.5-10.0.1.9)"])]
    // docs/contract/load-balancer.md#IM-6: the prefix was computed with 32-bit masks
    #[case::ipv6("range-default", "fd00::5-fd00::9", &["fd00::/124 (fd00::5-fd00::9)"])]
    fn entries_become_ranges(#[case] key: &str, #[case] value: &str, #[case] ranges: &[&str]) {
        let legacy = read(&[(key, value)], &[]);
        let name = key.split_once('-').unwrap().1;
        assert_eq!(
            (texts(&legacy, name), legacy.faults.clone()),
            (ranges.iter().map(|&r| r.into()).collect(), vec![])
        );
    }

    #[rstest]
    #[case("nodash", "10.0.0.0/24", &["nodash: \"nodash\" names no pool: keys are cidr-<namespace> or range-<namespace>"])]
    #[case("cidr-", "10.0.0.0/24", &["cidr-: \"cidr-\" names no pool: keys are cidr-<namespace> or range-<namespace>"])]
    #[case("cidr-default", "10.0.0.0/33,x", &[
        "cidr-default: \"10.0.0.0/33\" is not usable: subnet \"10.0.0.0/33\" is not a CIDR such as 192.168.1.0/24",
        "cidr-default: \"x\" is not usable: subnet \"x\" is not a CIDR such as 192.168.1.0/24",
    ])]
    #[case("cidr-default", "0.0.0.0/32", &[
        "cidr-default: \"0.0.0.0/32\" is not usable: 0.0.0.0 stands for DHCP and is no address: use ipam dhcp on the \
         load balancer instead of a pool",
    ])]
    #[case("cidr-default", " , ", &["cidr-default: \" , \" names no address: write 192.168.0.0/24 or 192.168.0.10-192.168.0.20"])]
    #[case("range-default", "10.0.0.1", &["range-default: \"10.0.0.1\" is not a range: write start-end"])]
    #[case("range-default", "10.0.0.1-fd00::1", &["range-default: \"10.0.0.1-fd00::1\" goes from one address family to the other"])]
    fn what_cannot_be_read_is_named(#[case] key: &str, #[case] value: &str, #[case] faults: &[&str]) {
        let legacy = read(&[(key, value)], &[]);
        assert_eq!(legacy.pools, BTreeMap::new());
        assert_eq!(legacy.faults.iter().map(ToString::to_string).collect::<Vec<_>>(), faults);
    }

    #[test]
    fn a_bad_entry_does_not_keep_the_good_ones_out() {
        let legacy = read(&[("cidr-a", "bad,10.0.1.0/24"), ("cidr-b", "10.0.2.0/24"), ("x", "y")], &[]);
        assert_eq!((legacy.pools.len(), legacy.faults.len()), (2, 2));
    }

    // docs/contract/load-balancer.md#IM-2: one of the two was lost, which one was left to chance
    #[test]
    fn both_keys_of_one_name_make_one_pool() {
        let legacy = read(&[("range-ns1", "10.0.2.5-10.0.2.9"), ("cidr-ns1", "10.0.1.0/24")], &[]);
        assert_eq!(texts(&legacy, "ns1"), ["10.0.1.0/24", "10.0.2.0/28 (10.0.2.5-10.0.2.9)"]);
    }

    #[test]
    fn an_overlap_is_reported_and_the_first_one_stays() {
        let legacy = read(&[("cidr-a", "10.0.0.0/24"), ("cidr-b", "10.0.0.0/25,10.0.1.0/24")], &[]);
        assert_eq!(texts(&legacy, "b"), ["10.0.1.0/24"]);
        assert_eq!(
            legacy.faults.iter().map(ToString::to_string).collect::<Vec<_>>(),
            ["cidr-b: \"10.0.0.0/25\" overlaps 10.0.0.0/24, which was imported"]
        );
    }

    #[test]
    fn keys_with_another_meaning_are_passed_over() {
        let other =
            ["search-order", "interface-global", "allow-share-x", "skip-end-ips-in-cidr", "kubevip-services"];
        assert_eq!(read(&other.map(|key| (key, "whatever")), &[]), Legacy::default());
    }

    // docs/contract/load-balancer.md#IM-3: load balancers on the first address of a CIDR lost it
    #[test]
    fn addresses_in_use_stay_reachable() {
        let legacy =
            read(&[("cidr-a", "192.168.0.200/29")], &["192.168.0.201", "192.168.0.207", "192.168.0.203"]);
        assert_eq!(
            texts(&legacy, "a"),
            ["192.168.0.207/32", "192.168.0.201/32", "192.168.0.200/29 (192.168.0.202-192.168.0.206)"]
        );
        let ranges = Ranges::parse(&legacy.pools["a"]).unwrap();
        for address in ["192.168.0.201", "192.168.0.203", "192.168.0.207"] {
            assert!(ranges.offers(address.parse().unwrap()), "{address}");
        }
        assert_eq!(ranges.total(), 7);
        let first_of_range = read(&[("range-a", "192.168.40.1-192.168.40.10")], &["192.168.40.1"]);
        assert!(Ranges::parse(&first_of_range.pools["a"]).unwrap().offers("192.168.40.1".parse().unwrap()));
    }

    #[test]
    fn an_address_is_in_use_in_the_pool_of_its_holder_only() {
        let data = [("cidr-a", "10.0.0.0/24"), ("range-b", "10.0.1.1-10.0.1.9")];
        let data: BTreeMap<_, _> = data.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        let legacy =
            Legacy::read(&data, |pool, address| pool == "b" || address == IpAddr::from([10, 0, 0, 255]));
        assert_eq!(texts(&legacy, "a"), ["10.0.0.255/32", "10.0.0.0/24"]);
        assert_eq!(texts(&legacy, "b"), ["10.0.1.1/32", "10.0.1.0/28 (10.0.1.2-10.0.1.9)"]);
        let left_out: Vec<_> =
            legacy.left_out.iter().map(|(pool, address)| format!("{pool} {address}")).collect();
        assert_eq!(left_out, ["a 10.0.0.0", "a 10.0.0.1"]);
    }

    #[rstest]
    #[case::another_subnet("cidr-a", "10.0.0.6/31", "10.9.9.9", "10.0.0.6/31")]
    #[case::an_edge_outside_of_the_range(
        "range-a",
        "10.0.0.5-10.0.0.9",
        "10.0.0.0",
        "10.0.0.0/28 (10.0.0.5-10.0.0.9)"
    )]
    #[case::the_gateway_outside_of_the_range(
        "range-a",
        "10.0.0.5-10.0.0.9",
        "10.0.0.1",
        "10.0.0.0/28 (10.0.0.5-10.0.0.9)"
    )]
    fn an_address_in_use_that_the_text_does_not_name_changes_nothing(
        #[case] key: &str,
        #[case] value: &str,
        #[case] in_use: &str,
        #[case] expected: &str,
    ) {
        assert_eq!(texts(&read(&[(key, value)], &[in_use]), "a"), [expected]);
    }

    #[rstest]
    #[case::ipv4("10.0.0.6/31", &["10.0.0.6", "10.0.0.7"])]
    #[case::ipv6("fd00::6/127", &["fd00::6", "fd00::7"])]
    fn a_pool_of_two_addresses_that_are_both_in_use_loses_none(#[case] cidr: &str, #[case] in_use: &[&str]) {
        let legacy = read(&[("cidr-a", cidr)], in_use);
        assert_eq!(legacy.faults, []);
        let ranges = Ranges::parse(&legacy.pools["a"]).unwrap();
        for address in in_use {
            assert!(ranges.offers(address.parse().unwrap()), "{address} of {ranges}");
        }
        assert_eq!(texts(&read(&[("cidr-a", cidr)], &[]), "a"), [cidr], "nobody has an address to lose");
    }
}
