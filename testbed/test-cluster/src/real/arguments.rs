//! What the processes are told.

use std::path::Path;

use serde_json::json;
use sim_apiserver::User as Account;

use super::Server;
use crate::user::{DRIVER, Side};

pub(super) fn etcd(folder: &Path, client: u16, peer: u16) -> Vec<String> {
    let (client, peer) = (format!("http://127.0.0.1:{client}"), format!("http://127.0.0.1:{peer}"));
    vec![
        "--name=test".to_owned(),
        format!("--data-dir={}", folder.join("etcd").display()),
        format!("--listen-client-urls={client}"),
        format!("--advertise-client-urls={client}"),
        format!("--listen-peer-urls={peer}"),
        format!("--initial-advertise-peer-urls={peer}"),
        format!("--initial-cluster=test={peer}"),
        "--unsafe-no-fsync".to_owned(),
        "--log-level=warn".to_owned(),
    ]
}

pub(super) fn apiserver(server: &Server, etcd: u16) -> Vec<String> {
    let file = |name: &str| server.file(name).display().to_string();
    vec![
        format!("--etcd-servers=http://127.0.0.1:{etcd}"),
        format!("--etcd-prefix=/{}", server.side.name()),
        "--bind-address=127.0.0.1".to_owned(),
        "--advertise-address=127.0.0.1".to_owned(),
        "--endpoint-reconciler-type=none".to_owned(),
        format!("--secure-port={}", server.port),
        format!("--cert-dir={}", server.folder.display()),
        format!("--tls-cert-file={}", file("tls.crt")),
        format!("--tls-private-key-file={}", file("tls.key")),
        format!("--service-cluster-ip-range={}", service_network(server.side)),
        "--authorization-mode=RBAC".to_owned(),
        format!("--token-auth-file={}", file("tokens.csv")),
        "--anonymous-auth=false".to_owned(),
        "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
        format!("--service-account-key-file={}", file("tls.crt")),
        format!("--service-account-signing-key-file={}", file("tls.key")),
        "--disable-admission-plugins=ServiceAccount".to_owned(),
        "--allow-privileged".to_owned(),
        format!("--audit-policy-file={}", file("audit-policy.json")),
        format!("--audit-log-path={}", file("audit.log")),
        "--audit-log-mode=blocking".to_owned(),
        "--profiling=false".to_owned(),
    ]
}

/// Of each cluster its own, and large enough for the benchmark's thousand Services. Services of the guest may have both
/// families; the server itself needs IPv4 alone, also of the kernel.
fn service_network(side: Side) -> &'static str {
    match side {
        Side::Guest => "10.43.0.0/16,fd43::/112",
        Side::Harvester => "10.53.0.0/16",
    }
}

pub(super) fn controller_manager(server: &Server) -> Vec<String> {
    vec![
        format!("--kubeconfig={}", server.file("controller-manager.kubeconfig").display()),
        "--controllers=clusterrole-aggregation-controller,garbage-collector-controller,namespace-controller,\
         endpointslice-controller"
            .to_owned(),
        "--leader-elect=false".to_owned(),
        "--use-service-account-credentials=false".to_owned(),
        "--secure-port=0".to_owned(),
        "--kube-api-qps=500".to_owned(),
        "--kube-api-burst=1000".to_owned(),
    ]
}

/// Who kube-controller-manager is.
pub(super) fn controller_manager_account() -> Account {
    Account::named("system:kube-controller-manager").with_group("system:masters")
}

/// Everything but what the test itself asks and what the server asks of itself.
pub(super) fn audit_policy() -> String {
    json!({
        "apiVersion": "audit.k8s.io/v1", "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [{"level": "None", "users": [DRIVER, "system:apiserver"]}, {"level": "Metadata"}],
    })
    .to_string()
}

/// A line of the token file: token, user, uid, groups. The token is the user's name, as good as any on loopback.
pub(super) fn token_line(account: &Account) -> String {
    format!("{0},{0},{0},\"{1}\"\n", account.name, account.groups.join(","))
}
