//! The users of a test: the service accounts under which the parts run, by the names that RBAC and the audit log know.

use sim_apiserver::User as Account;

/// Which of the two clusters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// The Kubernetes cluster in the VMs.
    Guest,
    /// The cluster that runs the VMs.
    Harvester,
}

impl Side {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Guest, Self::Harvester];

    /// `guest` or `harvester`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Guest => "guest",
            Self::Harvester => "harvester",
        }
    }
}

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum User {
    /// The test itself: may do everything, and is in no count.
    Driver,
    /// The load balancer.
    LoadBalancer,
    /// The webhook of the load balancer.
    Webhook,
    /// The cloud controller manager: another account in each of the clusters.
    CloudControllerManager,
    /// The CSI driver: another account in each of the clusters.
    CsiDriver,
    /// Somebody without any right of their own.
    Nobody,
}

/// Name of the test's own user, and of whoever sits before a sandbox.
pub(crate) const DRIVER: &str = "admin";

impl User {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Driver,
        Self::LoadBalancer,
        Self::Webhook,
        Self::CloudControllerManager,
        Self::CsiDriver,
        Self::Nobody,
    ];

    /// The user's name and groups on `side`; `guest` says whose cloud controller manager or CSI driver it is.
    #[must_use]
    pub fn account(self, side: Side, guest: &GuestCluster) -> Account {
        match (self, side) {
            (Self::Driver, _) => Account::named(DRIVER).with_group("system:masters"),
            (Self::LoadBalancer, _) => {
                Account::service_account("harvester-system", "harvester-load-balancer")
            }
            (Self::Webhook, _) => {
                Account::service_account("harvester-system", "harvester-load-balancer-webhook")
            }
            (Self::CloudControllerManager, Side::Guest) => {
                Account::service_account("kube-system", "harvester-cloud-controller-manager")
            }
            (Self::CloudControllerManager, Side::Harvester) => {
                Account::service_account(&guest.vm_namespace, &guest.account())
            }
            (Self::CsiDriver, Side::Guest) => Account::service_account("kube-system", "harvester-csi-driver"),
            (Self::CsiDriver, Side::Harvester) => {
                Account::service_account(&guest.vm_namespace, &guest.csi_account())
            }
            (Self::Nobody, _) => Account::named("nobody"),
        }
    }
}

/// A guest cluster as Harvester knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestCluster {
    /// Its name, as in `--cluster-name`.
    pub name: String,
    /// Namespace of its VMs in Harvester, and of its account there.
    pub vm_namespace: String,
}

impl GuestCluster {
    /// Name of the service account of its cloud controller manager in Harvester.
    #[must_use]
    pub fn account(&self) -> String {
        format!("harvester-cloud-provider-{}", self.name)
    }

    /// Name of the service account of its CSI driver in Harvester.
    #[must_use]
    pub fn csi_account(&self) -> String {
        format!("harvester-csi-driver-{}", self.name)
    }
}

/// The guest cluster of the tests: `blue`, with its VMs in `team-a`.
impl Default for GuestCluster {
    fn default() -> Self {
        Self { name: "blue".to_owned(), vm_namespace: "team-a".to_owned() }
    }
}
