//! Authorization: RBAC's objects, compiled when one of them changes, and asked for every request.

use std::sync::{Arc, RwLock};

use sim_apimachinery::rbac::{Policy, Request};
use tokio::sync::watch;

use crate::store::Store;
use crate::user::User;

/// The table of the ClusterRoles.
pub(crate) const CLUSTER_ROLES: &str = "clusterroles.rbac.authorization.k8s.io";
const TABLES: [&str; 4] = [
    CLUSTER_ROLES,
    "clusterrolebindings.rbac.authorization.k8s.io",
    "roles.rbac.authorization.k8s.io",
    "rolebindings.rbac.authorization.k8s.io",
];

/// The policy of a server.
#[derive(Debug)]
pub(crate) struct Rights {
    signals: [watch::Receiver<u64>; 4],
    compiled: RwLock<([u64; 4], Arc<Policy>)>,
}

impl Rights {
    pub(crate) fn new(store: &Store) -> Self {
        Self {
            signals: TABLES.map(|table| store.subscribe(&table.into())),
            compiled: RwLock::new(([u64::MAX; 4], Arc::default())),
        }
    }

    /// The rules as they are now.
    pub(crate) fn policy(&self, store: &Store) -> Arc<Policy> {
        let now: [u64; 4] = std::array::from_fn(|i| *self.signals[i].borrow());
        {
            let compiled = self.compiled.read().expect("no panic while rules are compiled");
            if compiled.0 == now {
                return compiled.1.clone();
            }
        }
        let objects: Vec<_> = TABLES.iter().flat_map(|table| store.list(table, None).1).collect();
        let policy = Arc::new(Policy::of(objects.iter().map(|stored| &stored.value)));
        *self.compiled.write().expect("no panic while rules are compiled") = (now, policy.clone());
        policy
    }

    pub(crate) fn allow(&self, store: &Store, user: &User, request: &Request<'_>) -> bool {
        self.policy(store).allows(user, request)
    }
}
