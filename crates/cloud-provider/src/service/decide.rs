//! The decision about one Service.

use std::{collections::BTreeMap, time::Duration};

use controller_kit::PendingEvent;

use crate::{Annotations, IngressAddress, Labels, LoadBalancerState, Publish, Removal, View};

/// A backstop for a lost watch. The watch on what the Service waits for requeues it earlier.
const BACKSTOP: Duration = Duration::from_secs(300);

/// One Service and its load balancer, as the caches show them. `decide` knows nothing else.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    /// The Service asks for a load balancer of ours, and is not being deleted.
    pub(super) wanted: bool,
    /// Its class asks for one of another controller.
    pub(super) foreign: bool,
    pub(super) deleting: bool,
    pub(super) has_finalizer: bool,
    pub(super) annotations: BTreeMap<String, String>,
    pub(super) labels: BTreeMap<String, String>,
    /// Entries of `status.loadBalancer.ingress`.
    pub(super) published: Vec<IngressAddress>,
    /// The cloud accepted a deletion of ours since the Service last wanted a load balancer.
    pub(super) deleted: bool,
    /// The cloud's decision.
    pub(super) view: View,
    /// The cloud has a write to apply.
    pub(super) has_write: bool,
    /// The cloud's Events.
    pub(super) events: Vec<PendingEvent>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Step {
    /// Write the finalizer (if `add_finalizer`), annotations and labels, in one PATCH.
    Prepare {
        add_finalizer: bool,
        annotations: Annotations,
        labels: Labels,
    },
    /// Apply the cloud's write.
    Apply,
    /// Write these addresses to `status.loadBalancer`.
    Publish(Vec<IngressAddress>),
    Delete,
    /// Empty `status.loadBalancer`.
    Unpublish,
    /// Remove the finalizer, our annotations and labels, in one PATCH.
    Release {
        annotations: Annotations,
        labels: Labels,
    },
}

/// The steps to take now, in order, the Events to record, and when to decide again if nothing changes before then.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Plan {
    pub(super) steps: Vec<Step>,
    pub(super) events: Vec<PendingEvent>,
    /// Holds when all steps are done, and not before (docs/contract/cloud-controller-manager.md#L31).
    pub(super) outcome: Option<PendingEvent>,
    pub(super) again: Option<Duration>,
}

pub(super) fn decide(seen: &Seen) -> Plan {
    if seen.wanted { provide(seen) } else { clean_up(seen) }
}

fn provide(seen: &Seen) -> Plan {
    let view = &seen.view;
    let mut plan = Plan { events: seen.events.clone(), again: view.again, ..Plan::default() };
    let annotations = differing(&view.annotations, &seen.annotations);
    let labels = differing(&view.labels, &seen.labels);
    let annotated = annotations.is_empty() && labels.is_empty();
    let prepare = (!seen.has_finalizer || !annotated).then_some(Step::Prepare {
        add_finalizer: !seen.has_finalizer,
        annotations,
        labels,
    });

    let addresses = match &view.load_balancer {
        LoadBalancerState::Unknown(why) => {
            // a Service that has an address goes on with it
            let why = why.as_ref().filter(|_| seen.published.is_empty());
            plan.events.extend(why.map(|why| failed_sync(ENSURE, why)));
            return plan;
        }
        LoadBalancerState::Unreadable(why) => {
            plan.events.push(PendingEvent::warning(FAILED, why.clone()));
            return plan;
        }
        LoadBalancerState::Deleting => {
            let why = "Error syncing load balancer: the former one is still being removed";
            plan.events.push(PendingEvent::normal("WaitingForRemoval", why));
            plan.again = plan.again.or(Some(BACKSTOP));
            return plan;
        }
        LoadBalancerState::Absent => {
            // annotations first: who stops in between finds in the status what was to go
            plan.steps.extend(prepare.filter(|_| seen.has_write));
            plan.steps.extend(withdrawal(seen));
            plan.steps.extend(seen.has_write.then_some(Step::Apply));
            plan.events.extend(view.waiting.as_ref().map(|why| failed_sync(ENSURE, why)));
            return plan;
        }
        LoadBalancerState::Present { addresses } => addresses,
    };
    plan.steps.extend(prepare);
    plan.steps.extend(withdrawal(seen));
    if seen.has_write {
        plan.steps.push(Step::Apply);
    }
    if addresses.is_empty() {
        plan.again = plan.again.or(Some(BACKSTOP));
        plan.events.extend(view.waiting.as_ref().map(|why| failed_sync(ENSURE, why)));
    }
    // the status follows only when our own cache shows the annotations that must precede it
    if let Publish::Addresses(addresses) = &view.publish
        && annotated
        && seen.published != *addresses
    {
        plan.steps.push(Step::Publish(addresses.clone()));
    }
    // recorded when something is written, so that a restart records nothing
    if !addresses.is_empty() && !plan.steps.is_empty() {
        let list: Vec<_> = addresses.iter().map(ToString::to_string).collect();
        let message = format!("Load balancer has address {}", list.join(", "));
        plan.outcome = Some(PendingEvent::normal("EnsuredLoadBalancer", message));
    }
    plan
}

fn withdrawal(seen: &Seen) -> Option<Step> {
    (seen.view.publish == Publish::Withdrawn && !seen.published.is_empty()).then_some(Step::Unpublish)
}

fn clean_up(seen: &Seen) -> Plan {
    let view = &seen.view;
    let mut plan = Plan::default();
    if seen.has_finalizer {
        plan.events.clone_from(&seen.events);
    }
    if let LoadBalancerState::Unknown(why) = &view.load_balancer {
        let why = why.as_ref().filter(|_| seen.has_finalizer && !seen.foreign);
        plan.events.extend(why.map(|why| failed_sync(DELETE, why)));
        return plan;
    }
    let present = matches!(view.load_balancer, LoadBalancerState::Present { .. });
    if !present && (!seen.has_finalizer || seen.foreign && !seen.deleting) {
        return Plan::default();
    }
    if let (Removal::Blocked(why), false) = (&view.removal, seen.deleted) {
        plan.events.push(failed_sync(DELETE, why));
        plan.again = Some(BACKSTOP);
        // it stays for others, and what they no longer need of it goes
        if present && seen.has_write {
            plan.steps.push(Step::Apply);
        }
        return plan;
    }
    // by name too, and before the finalizer goes: a cache may be behind (docs/contract/cloud-controller-manager.md#L1)
    let unseen = matches!(view.load_balancer, LoadBalancerState::Absent | LoadBalancerState::Unreadable(_));
    if present || unseen && !seen.deleted {
        plan.steps.push(Step::Delete);
        return plan;
    }
    if view.removal == Removal::Foreground && view.load_balancer != LoadBalancerState::Absent {
        if let LoadBalancerState::Unreadable(why) = &view.load_balancer {
            plan.events.push(PendingEvent::warning(FAILED, why.clone()));
        }
        plan.again = Some(BACKSTOP);
        return plan;
    }
    if !seen.published.is_empty() && (view.publish != Publish::NotOurs || !seen.deleting) {
        plan.steps.push(Step::Unpublish);
    }
    let ours = |asked: &Annotations, present: &BTreeMap<String, String>| {
        let goes = |(key, value): &(&String, &Option<String>)| {
            value.is_none() && !seen.deleting && present.contains_key(*key)
        };
        asked.iter().filter(goes).map(|(key, _)| (key.clone(), None)).collect()
    };
    let annotations = ours(&view.annotations, &seen.annotations);
    let labels = ours(&view.labels, &seen.labels);
    plan.steps.push(Step::Release { annotations, labels });
    plan.outcome = Some(PendingEvent::normal("DeletedLoadBalancer", "Deleted load balancer"));
    plan
}

const FAILED: &str = "SyncLoadBalancerFailed";
const ENSURE: &str = "failed to ensure load balancer";
const DELETE: &str = "failed to delete load balancer";

/// In the words of Kubernetes' own service controller.
fn failed_sync(what: &str, why: &str) -> PendingEvent {
    PendingEvent::warning(FAILED, format!("Error syncing load balancer: {what}: {why}"))
}

/// The Event for a step that failed.
pub(super) fn failed(step: &Step, why: &str) -> PendingEvent {
    let what = match step {
        Step::Apply => ENSURE,
        Step::Delete => DELETE,
        Step::Prepare { .. } => "failed to write finalizer, annotations or labels",
        Step::Publish(_) | Step::Unpublish => "failed to write the status",
        Step::Release { .. } => "failed to remove the finalizer",
    };
    failed_sync(what, why)
}

/// The part of `asked` that differs from the annotations or labels of the Service.
fn differing(asked: &Annotations, present: &BTreeMap<String, String>) -> Annotations {
    let differs = |(key, value): &(&String, &Option<String>)| present.get(*key) != value.as_ref();
    asked.iter().filter(differs).map(|(key, value)| (key.clone(), value.clone())).collect()
}

#[cfg(test)]
mod tests;
