//! The families of addresses that an object asks for. Where it cannot have two (it is for VMs, or the CRD has no fields for a
//! second address) who asks for two is served with the first family, or, where both are required, not at all.

use controller_kit::Explanation;
use harvester_api::{AllocatedAddress, IpFamilyPolicy, Ipam, LoadBalancer, WorkloadType, annotations};
use ipam::Family;
use kube::ResourceExt as _;

/// The reason of an object whose wish cannot be read.
const INVALID: &str = "InvalidIPFamilies";

/// What an object asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Families {
    /// `None`: whichever the pool has.
    pub(crate) first: Option<Family>,
    /// An address of the other family stays where there is one.
    pub(crate) either: bool,
    /// Told to an object that is served with less than it would like.
    pub(crate) note: Option<String>,
    /// Why it is not served.
    pub(crate) obstacle: Option<Explanation>,
    /// It asks for two, and may have them where the CRD has fields for a second. `note` and `obstacle` are for one that may
    /// not.
    pub(crate) two: Option<Two>,
}

/// An object that asks for two addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Two {
    /// One where there is no other.
    Preferred,
    /// Two, or none.
    Required,
}

/// Whether the object asks for two addresses, and may have them.
pub(crate) fn may_have_two(lb: &LoadBalancer) -> bool {
    of(lb).two.is_some()
}

/// Reads the field and the annotations of an object. The field wins.
pub(crate) fn of(lb: &LoadBalancer) -> Families {
    let is_vm = lb.spec.workload() == WorkloadType::Vm;
    // Who makes a vm object and says nothing reaches its VMs by IPv4. A cloud controller manager of this project names the families where they
    // are others than IPv4 alone, and would never publish an IPv6 address otherwise; the Go one takes what the pool has.
    let of_this_project = lb.annotations().contains_key(annotations::CLUSTER_UID);
    let usual = (is_vm || of_this_project).then_some(Family::V4);
    let families = text(lb, annotations::IP_FAMILIES).map(parse);
    let (Ok(families), Ok(policy)) = (families.transpose(), policy(lb)) else {
        let message = format!(
            "annotations {} and {} say IPv4, IPv6, or both with a comma, and SingleStack, PreferDualStack or \
             RequireDualStack",
            annotations::IP_FAMILIES,
            annotations::IP_FAMILY_POLICY
        );
        return refused(usual, INVALID, message);
    };
    let wants_two = families.as_ref().is_some_and(|families| families.len() > 1)
        || policy.is_some_and(|policy| policy != IpFamilyPolicy::SingleStack);
    let may_have_two = wants_two && !is_vm && lb.spec.ipam() == Ipam::Pool;
    let asked = families.and_then(|families| families.first().copied());
    if policy == Some(IpFamilyPolicy::RequireDualStack) {
        let message = format!(
            "two addresses are required, and {}; ask for one with ipFamilyPolicy SingleStack or PreferDualStack",
            why_one(is_vm)
        );
        let refused = refused(asked.or(usual), "DualStackNotSupported", message);
        return Families { two: may_have_two.then_some(Two::Required), ..refused };
    }
    if is_vm && asked == Some(Family::V6) && !wants_two && has_ipv4(lb) {
        let message = "the Service of an object of type vm keeps its family, which is IPv4: delete the object and make it \
                       again, or ask for IPv4";
        return refused(usual, "IPFamilyNotSupported", message.to_owned());
    }
    let first = match asked {
        Some(asked) if !is_vm || !wants_two => Some(asked),
        _ => usual.or_else(|| wants_two.then_some(Family::V4)),
    };
    // what an older version gave stays
    let is_silent = asked.is_none() && !is_vm && of_this_project;
    let one_of_two = || format!("only one of two families: {}", why_one(is_vm));
    Families {
        first,
        either: wants_two || is_silent,
        note: wants_two.then(one_of_two),
        obstacle: None,
        two: may_have_two.then_some(Two::Preferred),
    }
}

fn has_ipv4(lb: &LoadBalancer) -> bool {
    let has = lb.pool_address();
    has.is_some_and(|has| has.ip.parse().is_ok_and(|ip| Family::of(ip) == Family::V4))
}

/// Told to an object with DHCP that asks for other families than IPv4: kube-vip leases no others.
pub(crate) fn not_with_dhcp(lb: &LoadBalancer) -> Option<String> {
    match of(lb) {
        Families { obstacle: Some(why), .. } if why.reason == INVALID => Some(why.message),
        Families { obstacle: None, note: None, first: None | Some(Family::V4), .. } => None,
        _ => Some("with ipam dhcp the address is one of IPv4, whatever families are asked for".to_owned()),
    }
}

/// Told to an object that names a pool for an IPv6 address and asks for none.
pub(crate) fn unused_ipv6_pool(lb: &LoadBalancer) -> Option<String> {
    let is_named = !lb.spec.ipv6_pool.is_empty();
    is_named
        .then(|| "spec.ipv6Pool has no effect: the load balancer does not ask for an IPv6 address".to_owned())
}

/// Both addresses, in the order of the families that the object asks for; none where it has one.
pub(crate) fn both(lb: &LoadBalancer, address: Option<&AllocatedAddress>) -> Vec<String> {
    let pairs = address.and_then(|address| address.primary().zip(address.ipv6()));
    let Some(((_, first), (_, second))) = pairs else { return Vec::new() };
    let mut both = vec![first.to_owned(), second.to_owned()];
    let asked = text(lb, annotations::IP_FAMILIES).and_then(|text| parse(text).ok());
    if asked.is_some_and(|families| families.first() == Some(&Family::V6)) {
        both.reverse();
    }
    both
}

/// Told to an object with two addresses where they are not listed.
pub(crate) const NO_LIST: &str = "the CRD of LoadBalancer objects has no field status.addresses, or may not be read: install that of this project";

/// Why an object that is not of type vm has one address.
pub(crate) const NO_FIELD: &str = "the CRD of LoadBalancer objects has no field status.allocatedAddress.ipv6IP, or may not be read: install that of this project";

/// Why an object has one address.
fn why_one(is_vm: bool) -> &'static str {
    if is_vm { "an object of type vm has one address" } else { NO_FIELD }
}

fn refused(first: Option<Family>, reason: &'static str, message: String) -> Families {
    Families { first, either: true, note: None, obstacle: Some(Explanation::new(reason, message)), two: None }
}

fn text<'a>(lb: &'a LoadBalancer, key: &str) -> Option<&'a str> {
    lb.annotations().get(key).map(|text| text.trim()).filter(|text| !text.is_empty())
}

fn parse(text: &str) -> Result<Vec<Family>, ()> {
    let family = |text: &str| match text.trim() {
        "IPv4" => Ok(Family::V4),
        "IPv6" => Ok(Family::V6),
        _ => Err(()),
    };
    // a third one is wrong, however many follow
    let families: Vec<_> = text.split(',').take(3).map(family).collect::<Result<_, _>>()?;
    match families[..] {
        [_] => Ok(families),
        [one, other] if one != other => Ok(families),
        _ => Err(()),
    }
}

fn policy(lb: &LoadBalancer) -> Result<Option<IpFamilyPolicy>, ()> {
    if lb.spec.ip_family_policy.is_some() {
        return Ok(lb.spec.ip_family_policy);
    }
    text(lb, annotations::IP_FAMILY_POLICY)
        .map(|text| match text {
            "SingleStack" => Ok(IpFamilyPolicy::SingleStack),
            "PreferDualStack" => Ok(IpFamilyPolicy::PreferDualStack),
            "RequireDualStack" => Ok(IpFamilyPolicy::RequireDualStack),
            _ => Err(()),
        })
        .transpose()
}
