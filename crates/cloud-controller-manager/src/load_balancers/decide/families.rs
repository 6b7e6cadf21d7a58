//! The IP families of a Service: which it asks Harvester for, and which of the addresses that Harvester gave it uses.
//!
//! ```text
//! one family    the address of that family
//! prefers two   what there is
//! requires two  both; while one is missing, only what the Service has already
//! ```
//! A load balancer that knows nothing of families gives every Service an IPv4 address. Families are asked for in
//! annotations of the object, and only by a Service that wants something else: objects of others stay as they were.

use std::{net::IpAddr, time::Duration};

use controller_kit::{Explanation, PendingEvent};
use harvester_api::{IpFamilyPolicy, Ipam, LoadBalancer, annotations};
use k8s_openapi::api::core::v1::Service;
use serde_json::{Map, Value, json};

use super::{ANSWER, Seen, allocated, handover::given, is_leased, not_ready};
use crate::datapath::Datapath;

/// An IP family, in the order of its version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Family {
    V4,
    V6,
}

impl Family {
    /// Text that is no address counts as IPv4: Harvester gave nothing else before it knew families.
    pub(crate) fn of(address: &str) -> Self {
        match address.parse() {
            Ok(IpAddr::V6(_)) => Self::V6,
            Ok(IpAddr::V4(_)) | Err(_) => Self::V4,
        }
    }

    /// In the words of `spec.ipFamilies`.
    fn word(self) -> &'static str {
        match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        }
    }
}

/// `spec.ipFamilies` and `spec.ipFamilyPolicy` of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Families {
    order: Vec<Family>,
    /// Both, or nothing.
    both_required: bool,
}

impl Families {
    pub(crate) fn of(service: &Service) -> Self {
        let spec = service.spec.as_ref();
        let mut order = Vec::new();
        for text in spec.and_then(|spec| spec.ip_families.as_deref()).unwrap_or_default() {
            let family = if text == "IPv6" { Family::V6 } else { Family::V4 };
            if !order.contains(&family) {
                order.push(family);
            }
        }
        if order.is_empty() {
            order.push(Family::V4);
        }
        let policy = spec.and_then(|spec| spec.ip_family_policy.as_deref());
        Self { both_required: order.len() > 1 && policy == Some("RequireDualStack"), order }
    }

    pub(crate) fn are_only(&self, family: Family) -> bool {
        self.order == [family]
    }

    /// Both, or nothing.
    pub(crate) fn are_required(&self) -> bool {
        self.both_required
    }

    /// Both, or one of them.
    pub(crate) fn are_preferred(&self) -> bool {
        self.order.len() > 1 && !self.both_required
    }

    /// The addresses of these families, in their order.
    pub(crate) fn pick<'a>(&self, addresses: &[&'a str]) -> Vec<&'a str> {
        let mut picked = Vec::new();
        for family in &self.order {
            picked.extend(addresses.iter().filter(|address| Family::of(address) == *family));
        }
        picked
    }

    /// The families of which there is no address here, and without which the Service is not served.
    pub(crate) fn lacking(&self, addresses: &[&str]) -> Vec<Family> {
        let lacks = |family: &Family| !addresses.iter().any(|address| Family::of(address) == *family);
        let lacking: Vec<_> = self.order.iter().copied().filter(lacks).collect();
        let is_enough = self.are_preferred() && lacking.len() < self.order.len();
        if is_enough { Vec::new() } else { lacking }
    }

    /// Writes the request into the annotations of an object for the guest datapath, or takes a former one away.
    pub(crate) fn mark(&self, object_annotations: &mut Map<String, Value>) {
        if self.are_only(Family::V4) {
            object_annotations.remove(annotations::IP_FAMILIES);
            object_annotations.remove(annotations::IP_FAMILY_POLICY);
            return;
        }
        let words: Vec<_> = self.order.iter().map(|family| family.word()).collect();
        let policy = match self.order.len() {
            1 => IpFamilyPolicy::SingleStack,
            _ if self.both_required => IpFamilyPolicy::RequireDualStack,
            _ => IpFamilyPolicy::PreferDualStack,
        };
        object_annotations.insert(annotations::IP_FAMILIES.into(), json!(words.join(",")));
        object_annotations.insert(annotations::IP_FAMILY_POLICY.into(), json!(policy));
    }
}

/// The addresses of the object by which the Service is served on the guest datapath, in the order of its families. One
/// that it has already stays its own while the other of two required ones is missing: to take it away would help nobody.
pub(crate) fn served<'a>(service: &Service, object: &'a LoadBalancer) -> Vec<&'a str> {
    let families = Families::of(service);
    let mut served = families.pick(&allocated(object));
    if families.are_required() && !families.lacking(&served).is_empty() {
        let given = given(service, Some(object)).unwrap_or_default();
        served.retain(|address| listed(&given).any(|before| same(before, address)));
    }
    served
}

/// The families without which the Service is not served, and of which Harvester gave it no address though it gave one.
pub(super) fn lacking(service: &Service, object: &LoadBalancer) -> Vec<Family> {
    let allocated = allocated(object);
    if allocated.is_empty() { Vec::new() } else { Families::of(service).lacking(&allocated) }
}

/// The addresses in a list with commas.
pub(crate) fn listed(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|address| !address.is_empty())
}

/// Whether two texts are one address.
pub(crate) fn same(one: &str, other: &str) -> bool {
    let parse = |text: &str| text.parse::<IpAddr>().ok();
    one == other || parse(one).is_some_and(|ip| Some(ip) == parse(other))
}

/// The Event about families that the Service lacks on the guest datapath. What it requires may come within the time in
/// which Harvester answers; an address of the wrong family is an answer.
pub(super) fn told(seen: &Seen<'_>, object: &LoadBalancer, path: Datapath) -> Option<PendingEvent> {
    let lacking = lacking(seen.service, object);
    if path == Datapath::Host || lacking.is_empty() {
        return None;
    }
    let families = Families::of(seen.service);
    let answer = not_ready(object).map(|ready| ready.message.as_str()).filter(|message| !message.is_empty());
    if families.are_required() && answer.is_none() && seen.waited < ANSWER {
        return None;
    }
    let why = match answer {
        Some(answer) => answer.to_owned(),
        None if object.spec.ipam() == Ipam::Dhcp => {
            "DHCP gives IPv4 addresses alone: use the IPAM pool".to_owned()
        }
        None => "a pool with such addresses may be missing, or its load balancer does not know families"
            .to_owned(),
    };
    let words: Vec<_> = lacking.iter().map(|family| family.word()).collect();
    let (wants, way_out) = if families.are_required() {
        ("requires both families", "; PreferDualStack takes what there is")
    } else {
        ("has that family alone", "")
    };
    let served = served(seen.service, object);
    let now = if served.is_empty() {
        "it gets no address".to_owned()
    } else {
        format!("it goes on with {}", served.join(", "))
    };
    let gave = if is_leased(object) { "an address of DHCP".to_owned() } else { allocated(object).join(", ") };
    let sentence = format!(
        "Harvester gave {gave} and no {} address, and the Service {wants}: {why}{way_out}; until then {now}",
        words.join(" or ")
    );
    Some(PendingEvent::warning(REASON, sentence))
}

/// When to look again at a Service that lacks a family that it requires.
pub(super) fn again(seen: &Seen<'_>) -> Option<Duration> {
    ANSWER.checked_sub(seen.waited).filter(|rest| !rest.is_zero())
}

/// What the host datapath says to families that it does not carry: a fault, or an Event about a Service that it serves.
pub(super) fn on_host(service: &Service, exists: bool) -> Result<Option<PendingEvent>, Explanation> {
    let families = Families::of(service);
    let only = "the data path host has IPv4 addresses only";
    if families.are_only(Family::V6) {
        return Err(Explanation::new(REASON, only));
    }
    if families.are_required() {
        let sentence = format!(
            "{only}, and the Service requires both families: use PreferDualStack, or data-path: guest"
        );
        // an object that serves already follows its Service
        return if exists {
            Ok(Some(PendingEvent::warning(REASON, sentence)))
        } else {
            Err(Explanation::new(REASON, sentence))
        };
    }
    Ok(families.are_preferred().then(|| {
        PendingEvent::normal(REASON, format!("{only}, so the Service has one of the two that it prefers"))
    }))
}

/// The addresses of a primary that one of its secondaries uses. `uses`: it shares the address already.
///
/// # Errors
/// What it lacks.
pub(crate) fn of_secondary(service: &Service, primary: &str, uses: bool) -> Result<String, String> {
    let families = Families::of(service);
    let picked = families.pick(&listed(primary).collect::<Vec<_>>());
    let lacking = families.lacking(&picked);
    if picked.is_empty() || !uses && !lacking.is_empty() {
        let words: Vec<_> = lacking.iter().map(|family| family.word()).collect();
        return Err(words.join(" or "));
    }
    Ok(picked.join(","))
}

const REASON: &str = "IPFamilyNotSupported";

#[cfg(test)]
mod tests;
