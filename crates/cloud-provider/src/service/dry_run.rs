//! The controller's decision about one Service, for a program that explains it and writes nothing.

use controller_kit::PendingEvent;
use k8s_openapi::api::core::v1::Service;

use super::{
    decide::{Seen, Step, decide},
    see,
};
use crate::{Decision, View};

/// The next things that a running controller does about a Service.
#[derive(Clone, Debug, PartialEq)]
pub struct DryRun {
    /// The Service asks for a load balancer of the cloud's class or of none, and nobody has deleted it.
    pub wanted: bool,
    /// It asks for a load balancer of another class.
    pub foreign: bool,
    /// It has the controller's finalizer.
    pub has_finalizer: bool,
    pub view: View,
    /// The writes that are due, in their order, as sentences without a subject.
    pub steps: Vec<&'static str>,
    /// The Events that hold now.
    pub events: Vec<PendingEvent>,
}

/// Decides as the controller does, from the cloud's decision. `class`: the `loadBalancerClass` that the cloud serves.
pub fn dry_run<W>(service: &Service, class: Option<&str>, decision: Decision<W>) -> DryRun {
    let Decision { view, write, events } = decision;
    let seen = Seen { has_write: write.is_some(), view, events, ..see(service, class, false) };
    let plan = decide(&seen);
    let word = |step: &Step| match step {
        Step::Prepare { add_finalizer: true, .. } => {
            "writes its finalizer, annotations and labels on the Service"
        }
        Step::Prepare { .. } => "writes annotations and labels on the Service",
        Step::Apply => "writes the load balancer",
        Step::Publish(_) => "writes the address to the Service's status",
        Step::Unpublish => "empties the Service's status",
        Step::Delete => "deletes the load balancer",
        Step::Release { .. } => "removes its finalizer, annotations and labels from the Service",
    };
    DryRun {
        wanted: seen.wanted,
        foreign: seen.foreign,
        has_finalizer: seen.has_finalizer,
        steps: plan.steps.iter().map(word).collect(),
        events: plan.events,
        view: seen.view,
    }
}
