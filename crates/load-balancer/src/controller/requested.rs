//! The address that an object asks for in its annotations: a wish, in place of which any other will do, or a demand.
//!
//! An object that has an address follows a wish when the wish is new. That it was answered stands in the message of the
//! Ready condition, so that no address changes because one came free that somebody once wished for.

use std::net::IpAddr;

use controller_kit::ObjectKey;
use harvester_api::{AllocatedAddress, LoadBalancer, annotations, condition};
use ipam::Family;
use kube::ResourceExt as _;
use program::text;

use super::address::dual::named_pool;

/// More than two addresses with blanks around them.
const LONGEST: usize = 120;
/// The most that a sentence says of why a wish is refused: names fit, and so do the sentences about two families.
const WHY_MAX: usize = 360;
/// The longest name of a pool.
const NAME_MAX: usize = 253;

/// What an object asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Requested {
    Nothing,
    /// At most one address of each family, in the order of the annotation.
    Addresses {
        addresses: Vec<IpAddr>,
        is_demand: bool,
    },
    Unreadable {
        why: String,
        is_demand: bool,
    },
}

impl Requested {
    pub(crate) fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        let addresses = match self {
            Self::Addresses { addresses, .. } => &addresses[..],
            Self::Nothing | Self::Unreadable { .. } => &[],
        };
        addresses.iter().copied()
    }
}

/// Reads the annotations of an object. A demand counts before a wish, and blanks are nothing.
pub(crate) fn of(lb: &LoadBalancer) -> Requested {
    let keys = [(annotations::REQUESTED_IP_STRICT, true), (annotations::REQUESTED_IP, false)];
    let text = |key: &str| lb.annotations().get(key).map(|text| text.trim()).filter(|text| !text.is_empty());
    let asked = keys.into_iter().find_map(|(key, is_demand)| Some((key, text(key)?, is_demand)));
    let Some((key, text, is_demand)) = asked else { return Requested::Nothing };
    let fault = match parse(text) {
        Some(addresses) if addresses.iter().copied().any(is_nobodys) => "is no address that anybody can have",
        Some(addresses) => return Requested::Addresses { addresses, is_demand },
        None => "is no address",
    };
    let shown: String = text.chars().take(60).collect();
    let why = format!(
        "annotation {key}: {shown:?} {fault}; write an IPv4 address, an IPv6 address, or both with a comma between them"
    );
    Requested::Unreadable { why, is_demand }
}

/// No pool of whatever ranges serves it, so nobody waits for one.
fn is_nobodys(address: IpAddr) -> bool {
    let is_broadcast = matches!(address, IpAddr::V4(v4) if v4.is_broadcast());
    address.is_unspecified() || address.is_loopback() || address.is_multicast() || is_broadcast
}

/// The part of an annotation's text that is about this family. What cannot be read is about both.
pub(crate) fn of_family(text: String, family: Family) -> Option<String> {
    match parse(&text) {
        Some(addresses) => {
            addresses.into_iter().find(|ip| Family::of(*ip) == family).map(|ip| ip.to_string())
        }
        None => Some(text),
    }
}

/// Whether the object demands an address of this family, and none of the other. A demand that cannot be read counts for
/// each of the two.
pub(crate) fn demands_only(lb: &LoadBalancer, family: Family) -> bool {
    match of(lb) {
        Requested::Addresses { addresses, is_demand: true } => {
            addresses.iter().all(|ip| Family::of(*ip) == family)
        }
        Requested::Unreadable { is_demand, .. } => is_demand,
        Requested::Addresses { .. } | Requested::Nothing => false,
    }
}

fn parse(text: &str) -> Option<Vec<IpAddr>> {
    if text.len() > LONGEST {
        return None;
    }
    let addresses = text.split(',').map(|part| part.trim().parse::<IpAddr>().map(|ip| ip.to_canonical()));
    let addresses: Vec<_> = addresses.collect::<Result<_, _>>().ok()?;
    match addresses[..] {
        [_] => Some(addresses),
        [one, other] if Family::of(one) != Family::of(other) => Some(addresses),
        _ => None,
    }
}

/// Why an address is not to be had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Obstacle {
    /// `namespace/name` of the holder, where it is known.
    InUse(Option<String>),
    /// The pool that the specification names, if it names one.
    NotInPool(Option<String>),
    /// Only its former holder gets it before this time.
    Resting(String),
    /// Nothing new is given out of its range.
    Draining,
    /// The object asks for addresses of the other family.
    OtherFamily,
    /// The pool cannot give anything: reason and sentence.
    Pool(&'static str, String),
}

impl Obstacle {
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::InUse(_) | Self::Resting(_) => "AddressInUse",
            Self::NotInPool(_) | Self::Draining | Self::OtherFamily => "AddressNotInPool",
            Self::Pool(reason, _) => reason,
        }
    }

    /// For the owner of `own`, who may know only of holders in the same namespace. What it says stays true when the
    /// holder changes: nobody writes it again.
    fn why(&self, own: &ObjectKey) -> String {
        match self {
            Self::InUse(holder) => {
                let key = holder.as_deref().and_then(ObjectKey::parse);
                match key.filter(|key| key.namespace == own.namespace) {
                    Some(key) => format!("load balancer {key} had it when this one asked"),
                    None => "it is in use".to_owned(),
                }
            }
            Self::NotInPool(None) => "no pool that may serve this load balancer gives it".to_owned(),
            Self::NotInPool(Some(pool)) => format!("pool {pool} does not give it"),
            Self::Resting(until) => {
                format!(
                    "it rested until {until} when this one asked, and only its former holder gets it before"
                )
            }
            Self::Draining => "the range that it is of drains, so nothing new is given out of it".to_owned(),
            Self::OtherFamily => "the load balancer asks for an address of the other family".to_owned(),
            Self::Pool(_, why) => why.clone(),
        }
    }
}

const RELEASED: &str = "; waiting until it is released";
const RESTED: &str = "; waiting until then";

/// The sentence about a demand that waits.
pub(crate) fn demand_waits(lb: &LoadBalancer, address: IpAddr, obstacle: &Obstacle, stays: &str) -> String {
    let until = match obstacle {
        Obstacle::InUse(_) => RELEASED,
        Obstacle::Resting(_) => RESTED,
        Obstacle::NotInPool(_) | Obstacle::Draining => "; waiting for a pool that gives it",
        Obstacle::OtherFamily | Obstacle::Pool(..) => "",
    };
    let begin = format!("requested address {address} is not to be had: ");
    // thousands who demand one address write nothing when its holder changes, or when it begins to rest; with two addresses
    // there is more in the message
    let is_anothers = matches!(obstacle, Obstacle::InUse(_) | Obstacle::Resting(_));
    let told = shown(lb).filter(|_| is_anothers).and_then(|shown| {
        let sentence = &shown.message[shown.message.find(&begin)?..];
        let stop = [RELEASED, RESTED].into_iter().find_map(|until| {
            let end = format!("{until}{stays}");
            Some(sentence.find(&end)? + end.len())
        });
        Some(sentence[..stop?].to_owned())
    });
    told.unwrap_or_else(|| format!("{begin}{}{until}{stays}", obstacle.why(&ObjectKey::of(lb))))
}

/// The sentence about a wish that is answered with another address.
pub(crate) fn wish_refused(lb: &LoadBalancer, address: IpAddr, obstacle: &Obstacle) -> String {
    begin_of_refused_wish(address) + &text::cut(&obstacle.why(&ObjectKey::of(lb)), WHY_MAX)
}

/// The sentence, if the condition has it: the wish was answered.
pub(crate) fn refused_wish(lb: &LoadBalancer, address: IpAddr) -> Option<String> {
    let message = &shown(lb)?.message;
    let sentence = &message[message.find(&begin_of_refused_wish(address))?..];
    // that about the address of the other family may follow
    Some(sentence.split("; requested address ").next().unwrap_or(sentence).to_owned())
}

fn begin_of_refused_wish(address: IpAddr) -> String {
    format!("{ASKED}{address}{REFUSED}")
}

const ASKED: &str = "requested address ";
const REFUSED: &str = " is not used: ";

/// Where the sentences about refused wishes begin that end a note; the end of the note where there is none.
pub(crate) fn refused_wishes_at(note: &str) -> usize {
    const JOINT: &str = "; ";
    let behind_joints = note.match_indices(JOINT).map(|(at, joint)| at + joint.len());
    let is_refused_wish = |at: &usize| {
        let sentence = note[*at..].split(JOINT).next().unwrap_or_default();
        sentence.starts_with(ASKED) && sentence.contains(REFUSED)
    };
    std::iter::once(0).chain(behind_joints).find(is_refused_wish).unwrap_or(note.len())
}

/// The sentence about an IPv6 address that stays, if the object asks for another one or for one of another pool.
pub(crate) fn ipv6_stays(lb: &LoadBalancer, has: &AllocatedAddress) -> Option<String> {
    let asked = of(lb).addresses().find(|ip| Family::of(*ip) == Family::V6);
    let other = asked.filter(|asked| has.ip.parse() != Ok(*asked)).map(|ip| ip.to_string());
    let pool = named_pool(lb, Some(Family::V6));
    let of_other_pool = || {
        (!pool.is_empty() && pool != has.ip_pool).then(|| format!("of pool {}", text::cut(pool, NAME_MAX)))
    };
    // it begins like a wish that is refused, which ends that of the other family
    let what = other.or_else(of_other_pool)?;
    Some(format!("{ASKED}{what}{REFUSED}an IPv6 address stays until the object is deleted"))
}

/// The sentence about an object with DHCP.
pub(crate) fn not_with_dhcp(requested: &Requested) -> Option<String> {
    let is_asked = *requested != Requested::Nothing;
    is_asked.then(|| "a requested address is not used: with ipam dhcp the DHCP server chooses".to_owned())
}

fn shown(lb: &LoadBalancer) -> Option<&harvester_api::Condition> {
    condition::ready(&lb.status.as_ref()?.conditions)
}

#[cfg(test)]
mod tests;
