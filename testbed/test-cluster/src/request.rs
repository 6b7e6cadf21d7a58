//! What was asked of a server: its audit log, as the counts of tests and benchmarks need it.

use crate::user::DRIVER;

/// One request. A watch is one request, made when it starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Name of the user.
    pub user: String,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`.
    pub verb: String,
    /// Path and query.
    pub uri: String,
    /// HTTP status code; 0 if there was no answer.
    pub code: u16,
}

/// What a request counts as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// A request about the work itself.
    Work,
    /// The start of a watch, or the list before it.
    Watch,
    /// A Lease: leader election.
    Lease,
    /// An Event.
    Event,
    /// A question of a program about its own rights, which it asks as long as it runs.
    Rights,
    /// No resource: discovery, health, version.
    Other,
}

impl Request {
    /// The resource with its subresource, such as `services/status`; empty if the path is none of a resource.
    #[must_use]
    pub fn resource(&self) -> String {
        let path = self.uri.split('?').next().unwrap_or_default();
        let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
        let rest = match parts.as_slice() {
            ["api", _, rest @ ..] | ["apis", _, _, rest @ ..] => rest,
            _ => &[],
        };
        match rest {
            ["namespaces", _, "status" | "finalize"] => format!("namespaces/{}", rest[2]),
            ["namespaces", _, plural, _, subresource, ..] => format!("{plural}/{subresource}"),
            ["namespaces", _, plural, ..] => (*plural).to_owned(),
            [plural, _, subresource, ..] => format!("{plural}/{subresource}"),
            [plural, ..] => (*plural).to_owned(),
            [] => String::new(),
        }
    }

    /// Whether it counts as work.
    #[must_use]
    pub fn class(&self) -> Class {
        match (self.resource().split('/').next().unwrap_or_default(), self.verb.as_str()) {
            ("", _) => Class::Other,
            ("leases", _) => Class::Lease,
            ("events", _) => Class::Event,
            ("selfsubjectaccessreviews", _) => Class::Rights,
            (_, "watch" | "list") => Class::Watch,
            _ => Class::Work,
        }
    }

    /// Whether it asked for a change.
    #[must_use]
    pub fn is_write(&self) -> bool {
        matches!(self.verb.as_str(), "create" | "update" | "patch" | "delete" | "deletecollection")
    }

    pub(crate) fn is_drivers(&self) -> bool {
        self.user == DRIVER
    }
}

impl From<sim_apiserver::Record> for Request {
    fn from(record: sim_apiserver::Record) -> Self {
        Self {
            user: record.user.to_string(),
            verb: record.verb.to_string(),
            uri: record.uri,
            code: record.code,
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("get", "/api/v1/namespaces/shop/services/web", "services", Class::Work)]
    #[case(
        "patch",
        "/api/v1/namespaces/shop/services/web/status?fieldManager=x",
        "services/status",
        Class::Work
    )]
    #[case("watch", "/api/v1/services?watch=true", "services", Class::Watch)]
    #[case("list", "/apis/loadbalancer.harvesterhci.io/v1beta1/ippools?limit=500", "ippools", Class::Watch)]
    #[case("update", "/apis/loadbalancer.harvesterhci.io/v1beta1/ippools/default", "ippools", Class::Work)]
    #[case(
        "create",
        "/apis/loadbalancer.harvesterhci.io/v1beta1/namespaces/a/loadbalancers",
        "loadbalancers",
        Class::Work
    )]
    #[case(
        "create",
        "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
        "selfsubjectaccessreviews",
        Class::Rights
    )]
    #[case("update", "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/x", "leases", Class::Lease)]
    #[case("create", "/api/v1/namespaces/shop/events", "events", Class::Event)]
    #[case("get", "/apis", "", Class::Other)]
    #[case("get", "/api/v1/namespaces/shop", "namespaces", Class::Work)]
    #[case("update", "/api/v1/namespaces/shop/finalize", "namespaces/finalize", Class::Work)]
    #[case("get", "/api/v1/nodes/one", "nodes", Class::Work)]
    #[case("patch", "/api/v1/nodes/one/status", "nodes/status", Class::Work)]
    fn a_request_is_classed_by_its_path(
        #[case] verb: &str,
        #[case] uri: &str,
        #[case] resource: &str,
        #[case] class: Class,
    ) {
        let request = Request { user: "u".into(), verb: verb.into(), uri: uri.into(), code: 200 };
        assert_eq!((request.resource().as_str(), request.class()), (resource, class));
    }
}
