//! Building a server: what differs from one cluster to another.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Value, json};
use sim_apimachinery::kind::qualified;
use sim_apimachinery::rbac;

use crate::admission::Resolver;
use crate::clock::Clock;
use crate::server::{ApiServer, Shared};
use crate::store::Store;
use crate::store::addresses::{Addresses, NODE_PORTS};
use crate::user::User;

/// So many changes of each kind of objects are kept for watchers that fall behind.
const HISTORY: usize = 4096;
const RBAC: &str = "rbac.authorization.k8s.io";

/// Makes an [`ApiServer`]. Start with [`ApiServer::builder`].
pub struct Builder {
    service_network: (Ipv4Addr, u8),
    ipv6_service_network: Option<(Ipv6Addr, u8)>,
    node_ports: RangeInclusive<u16>,
    history: usize,
    seed: u64,
    clock: Option<Clock>,
    tokens: Vec<(String, User)>,
    audit_file: Option<PathBuf>,
    release: (u32, u32),
    namespaces: Vec<String>,
    resolver: Option<Resolver>,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            service_network: (Ipv4Addr::new(10, 96, 0, 0), 16),
            ipv6_service_network: None,
            node_ports: NODE_PORTS,
            history: HISTORY,
            seed: 0,
            clock: None,
            tokens: vec![],
            audit_file: None,
            release: (1, 33),
            namespaces: vec![],
            resolver: None,
        }
    }
}

impl Builder {
    /// Network of the cluster addresses, as an address in it and the length of its prefix (default `10.96.0.0/16`).
    #[must_use]
    pub fn service_network(mut self, network: Ipv4Addr, prefix: u8) -> Self {
        self.service_network = (network, prefix.min(30));
        self
    }

    /// Network of further cluster addresses, of IPv6 (default none): Services may have an address of each family, and
    /// those that ask for nothing have IPv4. A prefix shorter than 108 is taken for 108.
    #[must_use]
    pub fn ipv6_service_network(mut self, network: Ipv6Addr, prefix: u8) -> Self {
        self.ipv6_service_network = Some((network, prefix.clamp(108, 126)));
        self
    }

    /// Range of the node ports (default 30000 to 32767).
    #[must_use]
    pub fn node_ports(mut self, ports: RangeInclusive<u16>) -> Self {
        self.node_ports = ports;
        self
    }

    /// Sets the number of changes that the server keeps of each kind; a watch that is further behind must list again.
    #[must_use]
    pub fn history(mut self, changes: usize) -> Self {
        self.history = changes.max(1);
        self
    }

    /// Seed of everything random: uids, generated names, addresses, fault schedules.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Wall clock of the server at its start; it runs on with tokio's clock, also when that is paused.
    #[must_use]
    pub fn starting_at(mut self, start: Timestamp) -> Self {
        self.clock = Some(Clock::starting_at(start));
        self
    }

    /// A bearer token and whose it is.
    #[must_use]
    pub fn token(mut self, token: impl Into<String>, user: impl Into<User>) -> Self {
        self.tokens.push((token.into(), user.into()));
        self
    }

    /// A file that gets one JSON object a line for each request.
    #[must_use]
    pub fn audit_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.audit_file = Some(path.into());
        self
    }

    /// The Kubernetes release that `/version` names (default 1.33).
    #[must_use]
    pub fn release(mut self, major: u32, minor: u32) -> Self {
        self.release = (major, minor);
        self
    }

    /// Sets the addresses at which the Services of webhooks listen: from namespace, name and port of a `clientConfig.service`.
    #[must_use]
    pub fn webhook_resolver(
        mut self,
        resolve: impl Fn(&str, &str, u16) -> Option<SocketAddr> + Send + Sync + 'static,
    ) -> Self {
        self.resolver = Some(Arc::new(resolve));
        self
    }

    /// A namespace that is there from the start, besides `default`, `kube-system`, `kube-public` and `kube-node-lease`.
    #[must_use]
    pub fn namespace(mut self, name: impl Into<String>) -> Self {
        self.namespaces.push(name.into());
        self
    }

    /// The server, with its first objects: namespaces and the Service `default/kubernetes`.
    ///
    /// # Errors
    /// When the audit file cannot be opened.
    pub fn try_build(self) -> std::io::Result<ApiServer> {
        let (network, prefix) = self.service_network;
        let mut addresses = Addresses::new(network, prefix, self.node_ports);
        if let Some((network, prefix)) = self.ipv6_service_network {
            addresses = addresses.with_ipv6(network, prefix);
        }
        addresses.seed(fastrand::Rng::with_seed(self.seed).u32(..));
        let store = Store::new(self.history, addresses);
        let clock = self.clock.unwrap_or_else(Clock::system);
        let shared = Shared::new(store, clock, self.seed, self.release, self.resolver);
        let server = ApiServer(Arc::new(shared));
        for (token, user) in self.tokens {
            server.0.tokens.add(token, user);
        }
        if let Some(path) = &self.audit_file {
            server.0.audit.write_to(path)?;
        }
        let names = ["default", "kube-system", "kube-public", "kube-node-lease"];
        for name in names.into_iter().chain(self.namespaces.iter().map(String::as_str)) {
            server.bootstrap("namespaces", namespace(name));
        }
        for object in rbac::bootstrap() {
            let plural = match object["kind"].as_str() {
                Some("ClusterRole") => "clusterroles",
                Some("ClusterRoleBinding") => "clusterrolebindings",
                Some("Role") => "roles",
                _ => "rolebindings",
            };
            server.bootstrap(&qualified(plural, RBAC), object);
        }
        let address = server.0.store.transact(|inner| inner.addresses.first());
        server.bootstrap("services", kubernetes(&address.to_string()));
        Ok(server)
    }

    /// [`Builder::try_build`] for servers without an audit file.
    ///
    /// # Panics
    /// When an audit file was asked for and cannot be opened.
    #[must_use]
    pub fn build(self) -> ApiServer {
        self.try_build().expect("the audit file can be opened")
    }
}

fn namespace(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": name, "labels": {"kubernetes.io/metadata.name": name}},
        "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"},
    })
}

/// The Service through which pods reach the server: it is there in every cluster, with the network's first address.
fn kubernetes(address: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {
            "name": "kubernetes", "namespace": "default",
            "labels": {"component": "apiserver", "provider": "kubernetes"},
        },
        "spec": {
            "clusterIP": address, "clusterIPs": [address],
            "internalTrafficPolicy": "Cluster", "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack",
            "ports": [{"name": "https", "port": 443, "protocol": "TCP", "targetPort": 6443}],
            "sessionAffinity": "None", "type": "ClusterIP",
        },
        "status": {"loadBalancer": {}},
    })
}
