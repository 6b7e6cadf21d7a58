//! What the program has to say about itself: in the log, and as an Event on its own Pod, where whoever runs it looks.
//!
//! Its role grants no reading of Pods, so nobody checks that the Pod is there. What is wrong with one Service or Node is
//! told there instead.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, Ordering},
};

use controller_kit::{CREATE_EVENTS, EventType, PATCH_EVENTS, PendingEvent, Recorder};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use program::{
    Clock, TaskGroup,
    capabilities::{Capabilities, Wanted},
    pod::OwnPod,
};

/// Source of the Events.
pub(crate) const COMPONENT: &str = "cloud-controller-manager";

/// Where notices go: to the log, until a Pod is known. Clones are the same place.
#[derive(Clone, Default)]
pub struct Notices(Arc<OnceLock<OnPod>>);

struct OnPod {
    pod: ObjectReference,
    recorder: Recorder,
    capabilities: Capabilities,
    told_of_the_right: AtomicBool,
}

impl Notices {
    /// From now on also to `pod` in the cluster of `guest`.
    pub fn write_to(&self, tasks: &TaskGroup, guest: Client, clock: Clock, pod: Option<OwnPod>) {
        let Some(OwnPod { namespace, name, uid }) = pod else {
            tracing::info!(
                "this program does not know its Pod (POD_NAME and POD_NAMESPACE are not set): notices about it are in \
                 this log alone"
            );
            return;
        };
        let wanted = Wanted { rights: vec![CREATE_EVENTS, PATCH_EVENTS], fields: Vec::new() };
        let capabilities = Capabilities::start(tasks, guest.clone(), wanted);
        let recorder = Recorder::start(tasks, guest, COMPONENT, clock, &capabilities);
        let pod = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            namespace: Some(namespace),
            name: Some(name),
            uid,
            ..ObjectReference::default()
        };
        let on = OnPod { pod, recorder, capabilities, told_of_the_right: AtomicBool::new(false) };
        assert!(self.0.set(on).is_ok(), "a program has one Pod");
    }

    /// Says it. Whoever calls does so once for each thing.
    pub fn tell(&self, event: &PendingEvent) {
        let PendingEvent { event_type, reason, message } = event;
        match event_type {
            EventType::Warning => tracing::warn!(reason, "{message}"),
            EventType::Normal => tracing::info!(reason, "{message}"),
        }
        let Some(on) = self.0.get() else { return };
        if !on.capabilities.allows(&CREATE_EVENTS) && !on.told_of_the_right.swap(true, Ordering::Relaxed) {
            let right = CREATE_EVENTS.to_string();
            tracing::warn!(
                right,
                "the role in the guest cluster does not grant Events: notices about this program are in this log alone"
            );
        }
        on.recorder.publish(&on.pod, event);
    }
}
