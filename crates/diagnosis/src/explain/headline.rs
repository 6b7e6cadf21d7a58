//! The state of a Service, and its sentence.

use cloud_controller_manager::load_balancers::dry_run::{DryRun, Object, Sharing};
use cloud_provider::LoadBalancerState;
use controller_kit::EventType;

use super::report::State;

/// Reasons of the Events about an address that should have been announced by now.
const OVERDUE: [&str; 2] = ["AddressNotPublished", "HostNotAnnouncing"];

/// What the sentence rests on.
pub(crate) struct Seen<'a> {
    /// `namespace/name`.
    pub(crate) service: &'a str,
    pub(crate) service_type: &'a str,
    pub(crate) class: Option<&'a str>,
    /// The Service is being deleted.
    pub(crate) is_deleted: bool,
    /// The addresses in the Service's status.
    pub(crate) shown: &'a [String],
    pub(crate) dry_run: &'a DryRun,
    /// Why kube-vip waits for a Pod, if it does.
    pub(crate) unbacked: Option<&'a str>,
    /// Why the object could not be listed.
    pub(crate) unlisted: Option<&'a str>,
}

/// Decides.
pub(crate) fn headline(seen: &Seen<'_>) -> (State, String) {
    let Seen { service, service_type, class, is_deleted, shown, dry_run, unbacked, unlisted } = seen;
    let decision = &dry_run.decision;
    let said = |state, words: String| (state, format!("service {service} {words}"));
    if decision.foreign {
        let class = class.unwrap_or_default();
        return said(
            State::NotOurs,
            format!("asks for load balancer class {class}, which another controller serves"),
        );
    }
    if !decision.wanted {
        if decision.has_finalizer {
            let why = if *is_deleted { "is being deleted" } else { "gives its load balancer up" };
            let blocked = decision.events.iter().find(|event| event.event_type == EventType::Warning);
            let blocked = blocked.map(|event| format!(": {}", event.message)).unwrap_or_default();
            return said(State::Leaving, format!("{why}{blocked}"));
        }
        if *is_deleted {
            return said(State::Leaving, "is being deleted".to_owned());
        }
        return said(State::NotOurs, format!("is of type {service_type} and asks for no load balancer"));
    }
    let with = |words: &str, why: Option<String>| match why {
        Some(why) => format!("{words}: {why}"),
        None => words.to_owned(),
    };
    let until = || dry_run.waits_until.as_ref().map(|until| format!("it waits until {until}"));
    let faults: Vec<_> = decision.view.refused.iter().map(|fault| fault.message.as_str()).collect();
    let fault = || match &faults[..] {
        [] => {
            let last = decision.events.iter().rfind(|event| event.event_type == EventType::Warning);
            last.map(|event| event.message.clone())
        }
        faults => Some(faults.join("; ")),
    };
    let overdue = || {
        let told = decision.events.iter().find(|event| OVERDUE.contains(&event.reason))?;
        Some(told.message.clone())
    };
    match &decision.view.load_balancer {
        LoadBalancerState::Unknown(_) => {
            let why = unlisted.map(|why| format!(": {why}")).unwrap_or_default();
            let now = match shown {
                [] => "has no address".to_owned(),
                shown => format!("shows {}", shown.join(", ")),
            };
            said(State::Unknown, format!("{now}, and its load balancer in Harvester could not be read{why}"))
        }
        LoadBalancerState::Unreadable(why) => {
            said(State::Unknown, format!("has a load balancer that cannot be read: {why}"))
        }
        LoadBalancerState::Deleting => {
            said(State::Waiting, "waits until its former load balancer in Harvester is gone".to_owned())
        }
        LoadBalancerState::Present { addresses } if addresses.is_empty() => {
            said(State::Waiting, with("waits for an address", decision.view.waiting.clone().or_else(until)))
        }
        LoadBalancerState::Present { addresses } => {
            let texts: Vec<_> = addresses.iter().map(ToString::to_string).collect();
            let (path, list) = (dry_run.choice.path.word(), texts.join(", "));
            if texts.iter().any(|text| shown.contains(text)) {
                let shared = match &dry_run.sharing {
                    Sharing::With { primary, .. } => format!(", the address of service {primary}"),
                    _ => String::new(),
                };
                return said(State::Served, format!("is served at {list}{shared}, on the data path {path}"));
            }
            let words = format!("has the address {list}, which its status does not show yet");
            // an address that is overdue may have another reason than the missing Pod
            let why: Vec<_> = overdue().into_iter().chain(unbacked.map(str::to_owned)).collect();
            let why = (!why.is_empty()).then(|| why.join("; "));
            said(State::Waiting, with(&words, why.or_else(until)))
        }
        LoadBalancerState::Absent => match (&dry_run.sharing, &dry_run.object) {
            (Sharing::Waits { why, .. }, _) => said(State::Waiting, format!("waits: {why}")),
            (Sharing::Refused { why: Some(why), .. }, _) => {
                said(State::Refused, format!("shares no address: {why}"))
            }
            (_, Object::Absent) if !decision.steps.is_empty() => said(
                State::Waiting,
                "waits for the cloud controller manager to make its load balancer".to_owned(),
            ),
            (_, Object::Absent) if decision.view.waiting.is_some() => {
                said(State::Waiting, with("waits", decision.view.waiting.clone()))
            }
            _ if dry_run.backends.is_none() && faults.is_empty() => {
                let words = "has no load balancer; whether it gets one is not known without the lists of Nodes and VMs";
                said(State::Unknown, words.to_owned())
            }
            _ => said(State::Refused, with("gets no load balancer", fault())),
        },
    }
}
