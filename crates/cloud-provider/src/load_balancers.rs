//! The trait of a cloud that has load balancers.

use std::{collections::BTreeMap, fmt, net::IpAddr, sync::Arc, time::Duration};

use controller_kit::{Explanation, ObjectKey, PendingEvent};
use k8s_openapi::api::core::v1::{Node, Service};

use crate::Failure;

/// A cloud's load balancers. One may serve one Service or several: the controller only speaks of Services, and a cloud
/// that shares load balancers names the Services that depend on each other ([`LoadBalancers::dependents`]).
pub trait LoadBalancers: Send + Sync + 'static {
    /// A write that the cloud decided on. The controller hands it back to [`LoadBalancers::apply`] and never looks
    /// inside.
    type Write: Send;

    /// The `loadBalancerClass` that the cloud serves besides Services without one.
    fn class(&self) -> Option<&str> {
        None
    }

    /// The one decision about a Service, from caches: the controller calls this often, so it must not wait. The cloud
    /// is also asked about a Service that wants no load balancer any more, to have the old one removed.
    fn decide(&self, service: &Service, nodes: &[Arc<Node>]) -> Decision<Self::Write>;

    /// Carries out the write of a decision. The controller calls this after it wrote the finalizer and the annotations
    /// of that decision.
    fn apply(&self, write: Self::Write) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Deletes the Service's load balancer. A load balancer that does not exist is no failure, and it may still exist
    /// when this returns.
    fn delete(&self, service: &Service) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Other Services whose decision reads this one. The controller requeues them when this one changes or goes.
    fn dependents(&self, _service: &Service) -> Vec<ObjectKey> {
        Vec::new()
    }

    /// The cloud calls `requeue` from now on whenever a [`Decision`] may have changed.
    fn subscribe(&self, requeue: RequeueFn);
}

/// Puts Services into the controller's queue.
pub type RequeueFn = Arc<dyn Fn(Requeue) + Send + Sync>;

/// The Services to look at again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Requeue {
    /// This one, now.
    One(ObjectKey),
    /// All that the controller serves, within a second: changes of many instances are joined.
    All,
}

/// A cloud's decision about one Service.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision<W> {
    pub view: View,
    /// The write that makes the load balancer what the Service asks for. `None`: nothing is to be written, because the
    /// load balancer is as it should be, or because the Service is refused (then an Event says so).
    pub write: Option<W>,
    /// Events about the Service. The controller records each once in half an hour, however often the cloud decides it.
    pub events: Vec<PendingEvent>,
}

impl<W> Default for Decision<W> {
    fn default() -> Self {
        Self { view: View::default(), write: None, events: Vec::new() }
    }
}

/// The part of a decision that the controller acts on.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct View {
    pub load_balancer: LoadBalancerState,
    /// Annotations that the cloud wants on the Service. While the Service wants a load balancer, the controller writes
    /// those that differ, before it applies the write or publishes an address; when the Service gives it up, it removes
    /// those that are `None`.
    pub annotations: Annotations,
    /// Labels, as above and in the same write.
    pub labels: Labels,
    pub publish: Publish,
    /// Why the load balancer has no address yet. The Service gets it as a failed sync.
    pub waiting: Option<String>,
    /// Why the Service gets no load balancer, or keeps the one that it has as it is. The Events say the
    /// same; a program that explains the decision reads it here.
    pub refused: Vec<Explanation>,
    pub removal: Removal,
    /// Decide again after this time, even if nothing changes.
    pub again: Option<Duration>,
}

/// Annotations by key: a value, or `None` for absent.
pub type Annotations = BTreeMap<String, Option<String>>;

/// Labels by key: a value, or `None` for absent.
pub type Labels = BTreeMap<String, Option<String>>;

/// The load balancer of a Service, as the cloud sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LoadBalancerState {
    /// The cloud has not read its own lists, so it cannot say that there is none. The sentence, where there is one,
    /// says why it cannot read them; a Service that waits gets it as a failed sync.
    Unknown(Option<String>),
    #[default]
    Absent,
    /// `addresses`: clients reach the Service there. Empty: there is none yet.
    Present { addresses: Vec<IngressAddress> },
    /// Its deletion began, and it is still there.
    Deleting,
    /// It exists, and the cloud cannot read it; the sentence says why.
    Unreadable(String),
}

/// One entry of `status.loadBalancer.ingress`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IngressAddress {
    Ip(IpAddr),
    Hostname(String),
}

impl IngressAddress {
    /// An IP address where `text` is one, else a host name.
    pub fn parse(text: &str) -> Self {
        text.parse().map_or_else(|_| Self::Hostname(text.to_owned()), Self::Ip)
    }
}

impl fmt::Display for IngressAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(ip) => ip.fmt(f),
            Self::Hostname(name) => f.write_str(name),
        }
    }
}

/// The writer of `status.loadBalancer` of a Service that wants a load balancer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Publish {
    /// Another program in the cluster; the controller leaves it alone.
    #[default]
    NotOurs,
    /// The controller, and the cloud has no address for it yet: it leaves `status.loadBalancer` as it is.
    Unchanged,
    /// The controller: these addresses, in this order, and no others.
    Addresses(Vec<IngressAddress>),
    /// The Service has lost the address, so the controller empties `status.loadBalancer`, whoever wrote it, also while
    /// there is no load balancer.
    Withdrawn,
}

/// How a load balancer goes when its Service gives it up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Removal {
    /// The Service is released as soon as the cloud has accepted the deletion.
    #[default]
    Background,
    /// The Service is released when the load balancer is gone.
    Foreground,
    /// The load balancer stays for now, and so does the Service's finalizer; the sentence says why.
    Blocked(String),
}
