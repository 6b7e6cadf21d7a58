//! What a cloud that has load balancers implements.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use controller_kit::ObjectKey;
use k8s_openapi::api::core::v1::{Node, Service};

use crate::{Failure, Notice};

/// A cloud's load balancers, one for each Service that wants one.
pub trait LoadBalancers: Send + Sync + 'static {
    /// The `loadBalancerClass` that is served besides Services without one.
    fn class(&self) -> Option<&str> {
        None
    }

    /// What there is and what should be, from caches: called often, must not wait.
    fn view(&self, service: &Service, nodes: &[Arc<Node>]) -> View;

    /// Makes the balancer as it should be. Called after the Service's finalizer and [`View::before`] were written.
    fn ensure(
        &self,
        service: &Service,
        nodes: &[Arc<Node>],
    ) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Removes the balancer; that there is none is no failure. It need not be gone when this returns.
    fn delete(&self, service: &Service) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Calls `wake` from now on whenever a [`View`] may have changed.
    fn subscribe(&self, wake: Wake);
}

/// Wakes the service controller.
pub type Wake = Arc<dyn Fn(Whom) + Send + Sync>;

/// Which Services to look at again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Whom {
    /// This one, now.
    One(ObjectKey),
    /// All that want a balancer, within a second: changes of many machines are joined.
    All,
}

/// What a cloud says about one Service.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct View {
    pub balancer: Balancer,
    /// Annotations of the Service before a balancer may be made: a value, or `None` for absent.
    pub before: BTreeMap<String, Option<String>>,
    /// Annotations that hand the result over.
    pub after: BTreeMap<String, Option<String>>,
    /// Annotations to take away when the Service wants no balancer any more.
    pub own_annotations: Vec<String>,
    pub publish: Publish,
    /// Why no balancer is made, or none is changed that exists. Empty: nothing speaks against it.
    pub refusals: Vec<Notice>,
    /// No balancer is made yet, because the cloud does not know everything that it must know; it wakes the
    /// controller when it does.
    pub held: bool,
    /// What the user should know besides.
    pub notices: Vec<Notice>,
    /// What the balancer waits for; told as a failed sync while there is no address.
    pub waiting: Option<String>,
    /// On deletion: the finalizer stays until the balancer is gone.
    pub outlives: bool,
    /// Look again then, even if nothing changes.
    pub again: Option<Duration>,
}

/// The cloud's object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Balancer {
    /// There is none.
    #[default]
    Absent,
    /// `in_step`: it is as it should be. `address`: it works, by this name or number.
    Present { in_step: bool, address: Option<String> },
    /// Told to go, still there.
    Leaving,
    /// Something is there and cannot be read; the text says why.
    Unreadable(String),
}

/// Who writes `status.loadBalancer` of the Service while it wants a balancer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Publish {
    /// Somebody in the cluster.
    #[default]
    NotOurs,
    /// We, and not yet: what stands there stays.
    Nothing,
    /// We: this address, and no other.
    Address(String),
    /// Whoever wrote what stands there: it was taken back, and goes.
    Withdrawn,
}
