//! Rights that a cluster refuses: told once each, in the log and as an Event on the driver's Pod, until they are granted.
//!
//! Nothing is switched off for a refusal: each call tries anew, so that a grant takes effect with the next one. The cluster
//! is asked about a right every 30 seconds, and only after it refused it: a hundred nodes that do their work ask nothing.
//! Whoever leads asks beforehand, and what its client hears is told as well. Events and the questions of this module go by
//! the clients as they were given: their own refusals are not told, which would have no end.

use std::sync::{Arc, OnceLock};

use controller_kit::{CREATE_EVENTS, EventType, PATCH_EVENTS, PendingEvent, Recorder};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use program::{
    Clock, TaskGroup,
    capabilities::{Capabilities, Wanted},
    pod::OwnPod,
};

use super::{observed, rights::Grant};
use crate::cli::PROGRAM;

/// Reason of the Events.
pub const REASON: &str = "MissingRight";

/// Where refused rights are told. Clones are the same place.
#[derive(Clone)]
pub struct Missing(Arc<Inner>);

struct Inner {
    tasks: TaskGroup,
    guest: Client,
    clock: Clock,
    pod: Option<ObjectReference>,
    recorder: OnceLock<Recorder>,
}

impl Missing {
    /// Told in the log, and in the cluster of `guest` on `pod`, where it is known. Nothing is asked before something is
    /// refused.
    pub fn new(tasks: &TaskGroup, guest: Client, clock: Clock, pod: Option<OwnPod>) -> Self {
        let pod = pod.map(|OwnPod { namespace, name, uid }| ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            namespace: Some(namespace),
            name: Some(name),
            uid,
            ..ObjectReference::default()
        });
        Self(Arc::new(Inner { tasks: tasks.clone(), guest, clock, pod, recorder: OnceLock::new() }))
    }

    /// A client for the host, whose machines are in this namespace, that tells what it is refused.
    pub fn observe(&self, client: Client, namespace: &str) -> Client {
        self.observe_cluster(client, namespace, "Harvester")
    }

    /// The same for the guest cluster.
    pub fn observe_guest(&self, client: Client) -> Client {
        self.observe_cluster(client, "", "the guest cluster")
    }

    fn observe_cluster(&self, client: Client, namespace: &str, cluster: &'static str) -> Client {
        let (this, namespace, asking) = (self.clone(), namespace.to_owned(), client.clone());
        let capabilities = OnceLock::new();
        let tell = move |grant: &'static Grant| {
            let start = || Capabilities::start(&this.0.tasks, asking.clone(), Wanted::default());
            let (capabilities, right) = (capabilities.get_or_init(start), grant.right(&namespace));
            if capabilities.allows(&right) {
                capabilities.refused(&right);
                this.tell(&format!("{cluster} refuses to {right}: {}", grant.next_step()));
            }
        };
        observed::client(client, cluster, Arc::new(tell))
    }

    fn tell(&self, message: &str) {
        self.notice(&PendingEvent::warning(REASON, message));
    }

    /// Says something about this process, in the log and on its Pod.
    pub(crate) fn notice(&self, event: &PendingEvent) {
        let PendingEvent { event_type, reason, message } = event;
        match event_type {
            EventType::Warning => tracing::warn!(reason, "{message}"),
            EventType::Normal => tracing::info!(reason, "{message}"),
        }
        let Some(pod) = &self.0.pod else { return };
        self.recorder().publish(pod, event);
    }

    /// Writes Events in the guest cluster; begins with the first use.
    pub fn recorder(&self) -> &Recorder {
        let Inner { tasks, guest, clock, recorder, .. } = &*self.0;
        let start = || {
            let wanted = Wanted { rights: vec![CREATE_EVENTS, PATCH_EVENTS], fields: Vec::new() };
            let capabilities = Capabilities::start(tasks, guest.clone(), wanted);
            Recorder::start(tasks, guest.clone(), PROGRAM, *clock, &capabilities)
        };
        recorder.get_or_init(start)
    }
}
