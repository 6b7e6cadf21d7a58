//! The address and the pool that a Service asks for: by its spec, by our annotations, and, where the flag
//! `--annotation-aliases` says so, by those of other programs that mean the same.

mod aliases;

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use controller_kit::{Explanation, PendingEvent};
use harvester_api::{Ipam, annotations};
use k8s_openapi::api::core::v1::Service;

pub use self::aliases::Aliases;
use self::aliases::{Given, given};

/// Field of the Service's spec, named like a key.
pub(crate) const WISH: &str = "spec.loadBalancerIP";
/// A value in an Event has at most so many characters.
const SHOWN: usize = 63;
/// Longest name of a pool.
const NAME_MAX: usize = 253;

/// At most one address of each family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Addresses {
    pub(crate) v4: Option<Ipv4Addr>,
    pub(crate) v6: Option<Ipv6Addr>,
}

impl Addresses {
    /// One address, or one of each family with a comma between them.
    ///
    /// # Errors
    /// What is wrong, after "which".
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut addresses = Self::default();
        for item in text.split(',').map(str::trim) {
            let ip: IpAddr = item.parse().map_err(|_| "is no IP address".to_owned())?;
            if !can_be_announced(ip) {
                return Err(format!("has {ip}, an address that no load balancer can have"));
            }
            let is_second = match ip {
                IpAddr::V4(ip) => addresses.v4.replace(ip).is_some(),
                IpAddr::V6(ip) => addresses.v6.replace(ip).is_some(),
            };
            if is_second {
                return Err("has two addresses of one family".to_owned());
            }
        }
        Ok(addresses)
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = IpAddr> {
        self.v4.map(IpAddr::V4).into_iter().chain(self.v6.map(IpAddr::V6))
    }

    /// Whether these are all among `given`.
    pub(crate) fn are_among(self, given: &[&str]) -> bool {
        let given: Vec<IpAddr> = given.iter().filter_map(|text| text.parse().ok()).collect();
        self.iter().all(|ip| given.contains(&ip))
    }

    /// Whether one of these is among `given`, and no other address of their families is.
    pub(crate) fn fit(self, given: &[&str]) -> bool {
        let is_given = |ip: IpAddr| given.iter().any(|given| given.parse() == Ok(ip));
        self.iter().any(is_given) && !given.iter().any(|given| self.exclude(given))
    }

    /// Whether another address than this one is asked for in its family.
    pub(crate) fn exclude(self, given: &str) -> bool {
        given.parse().is_ok_and(|given| match given {
            IpAddr::V4(given) => self.v4.is_some_and(|ip| ip != given),
            IpAddr::V6(given) => self.v6.is_some_and(|ip| ip != given),
        })
    }

    /// Without the families that the Service does not have, and the first that went. A Service of a server that gave
    /// it none has whatever it asks for.
    fn within(self, families: &[String]) -> (Self, Option<IpAddr>) {
        let has = |family: &str| families.is_empty() || families.iter().any(|other| other == family);
        let kept = Self { v4: self.v4.filter(|_| has("IPv4")), v6: self.v6.filter(|_| has("IPv6")) };
        let gone = self.iter().find(|ip| kept.iter().all(|kept| kept != *ip));
        (kept, gone)
    }
}

/// IPv4 first.
impl fmt::Display for Addresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts: Vec<_> = self.iter().map(|ip| ip.to_string()).collect();
        f.write_str(&texts.join(","))
    }
}

fn can_be_announced(ip: IpAddr) -> bool {
    let local = match ip {
        IpAddr::V4(ip) => ip.is_link_local() || ip.is_broadcast() || ip.octets()[0] == 0,
        IpAddr::V6(ip) => ip.is_unicast_link_local() || ip.to_ipv4_mapped().is_some(),
    };
    !(local || ip.is_loopback() || ip.is_multicast() || ip.is_unspecified())
}

/// An annotation that asks for something.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Asked<T> {
    #[default]
    Nothing,
    For(T),
    /// A fault of the Service. What it asked for before stays asked for.
    Malformed,
}

impl<T> Asked<T> {
    fn of(answer: Option<Result<T, Explanation>>, faults: &mut Vec<Explanation>) -> Self {
        match answer {
            None => Self::Nothing,
            Some(Ok(value)) => Self::For(value),
            Some(Err(fault)) => {
                faults.push(fault);
                Self::Malformed
            }
        }
    }
}

/// What a Service asks for (docs/contract/addresses.md#5).
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Requested {
    /// Only these will do.
    pub(crate) demand: Asked<Addresses>,
    /// Any others will do too.
    pub(crate) wish: Option<Addresses>,
    pub(crate) pool: Asked<String>,
    /// About what is without effect.
    pub(crate) events: Vec<PendingEvent>,
}

impl Requested {
    /// Adds to `faults` what forbids a load balancer.
    pub(crate) fn of(service: &Service, aliases: Aliases, faults: &mut Vec<Explanation>) -> Self {
        let spec = service.spec.as_ref();
        let families = spec.and_then(|spec| spec.ip_families.as_deref()).unwrap_or_default();
        let mut events = Vec::new();

        let demand = given(service, annotations::SERVICE_IP, aliases.address_keys(), &mut events);
        let demand = demand.map(|Given { key, text }| {
            let sentence = |why: &str| {
                let sentence = format!(
                    "annotation {key} is {:?}, which {why}: write an address of a pool, or one of each family as v4,v6",
                    shown(text)
                );
                Explanation::new("InvalidRequestedAddress", sentence)
            };
            let addresses = Addresses::parse(text).map_err(|why| sentence(&why))?;
            match addresses.within(families) {
                (_, Some(gone)) => Err(sentence(&format!("has {gone}, of a family that the Service does not have"))),
                (addresses, None) => Ok(addresses),
            }
        });
        let demand = Asked::of(demand, faults);

        let text = spec.and_then(|spec| spec.load_balancer_ip.as_deref()).unwrap_or_default().trim();
        let mut wish = None;
        if !text.is_empty() {
            let ignored = |why: &str| {
                let sentence = format!(
                    "{WISH} is {:?}, which {why}, so nothing is done with it: write an address of a pool",
                    shown(text)
                );
                PendingEvent::warning("InvalidRequestedAddress", sentence)
            };
            match Addresses::parse(text) {
                Err(why) => events.push(ignored(&why)),
                Ok(addresses) => {
                    let (kept, gone) = addresses.within(families);
                    events.extend(gone.map(|gone| {
                        ignored(&format!("has {gone}, of a family that the Service does not have"))
                    }));
                    wish = (kept != Addresses::default()).then_some(kept);
                }
            }
        }

        let pool = given(service, annotations::SERVICE_IP_POOL, aliases.pool_keys(), &mut events);
        let pool = pool.map(|Given { key, text }| {
            if is_pool_name(text) {
                return Ok(text.to_owned());
            }
            let sentence = format!(
                "annotation {key} is {:?}, which is no name of a pool: write the name of an IPPool in Harvester",
                shown(text)
            );
            Err(Explanation::new("InvalidIPPool", sentence))
        });
        events.extend(aliases.without_effect(service));
        Self { demand, wish, pool: Asked::of(pool, faults), events }
    }

    /// What can be asked for with this IPAM: a DHCP server gives what it likes. Adds a fault for a demand.
    pub(crate) fn with_ipam(
        &self,
        ipam: Ipam,
        faults: &mut Vec<Explanation>,
        events: &mut Vec<PendingEvent>,
    ) -> Self {
        if ipam == Ipam::Pool {
            return self.clone();
        }
        const WHY: &str = "with the IPAM dhcp the DHCP server chooses the address";
        if matches!(self.demand, Asked::For(_)) {
            let sentence = format!(
                "{WHY}, and annotation {} demands one: remove it, or use the IPAM pool on a new Service",
                annotations::SERVICE_IP
            );
            faults.push(Explanation::new("RequestedAddressNotUsed", sentence));
        }
        let wish = self.wish.is_some().then_some(WISH);
        let pool = matches!(self.pool, Asked::For(_)).then_some(annotations::SERVICE_IP_POOL);
        let without_effect: Vec<_> = wish.into_iter().chain(pool).collect();
        if !without_effect.is_empty() {
            let way_out = match wish {
                Some(_) => "; remove that field, from which kube-vip in the guest takes an address by itself",
                None => "",
            };
            let sentence = format!("{WHY}: {} has no effect{way_out}", without_effect.join(", "));
            events.push(PendingEvent::warning("RequestedAddressNotUsed", sentence));
        }
        Self::default()
    }
}

/// So that an Event stays readable.
fn shown(text: &str) -> String {
    text.chars().take(SHOWN).collect()
}

fn is_pool_name(text: &str) -> bool {
    let is_part = |part: &str| {
        let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        !part.is_empty() && part.bytes().all(allowed) && !part.starts_with('-') && !part.ends_with('-')
    };
    text.len() <= NAME_MAX && text.split('.').all(is_part)
}

#[cfg(test)]
mod tests;
