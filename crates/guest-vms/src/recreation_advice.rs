//! What people do with a Node that has to go, in words for Events and for tools.
//!
//! Kubernetes ends the Pods of a deleted Node at once, past every PodDisruptionBudget, and they may still run there: it is drained
//! first. RKE2 and K3s take the etcd member of a deleted Node away too, and its server does not join again (k3s issues 3973 and
//! 13498).

/// Labels of Nodes on which etcd may run. The first one is RKE2's and K3s'.
const SERVER_ROLES: [&str; 2] = ["node-role.kubernetes.io/etcd", "node-role.kubernetes.io/control-plane"];

/// Whether etcd may run on the Node that has these labels.
pub fn may_run_etcd(has_label: impl Fn(&str) -> bool) -> bool {
    SERVER_ROLES.into_iter().any(has_label)
}

/// What helps a Node that has to be made anew, or some of which none may run etcd. `which`: all of them, in words; `server`: the
/// name of the one Node, where etcd may run on it; `then`: what follows for each Node.
pub fn recreation_advice(which: &str, server: &str, then: &str) -> String {
    let mend = format!("drain {which}, delete it and {then}, one Node at a time");
    if server.is_empty() {
        return mend;
    }
    format!("{}{mend}", replacement(server, ""))
}

/// The same for some Nodes. `servers`: those on which etcd may run, also such as `which` does not mean. Which Nodes are meant, and
/// that they go one at a time, comes first: whoever replaces two of three servers at once has no quorum.
pub fn recreation_advice_of_some(which: &str, servers: &str, then: &str) -> String {
    if servers.is_empty() {
        return recreation_advice(which, "", then);
    }
    let replacement = replacement("it", &format!(" (perhaps on {servers})"));
    format!("one Node at a time, with {which}: {replacement}drain it, delete it and {then}")
}

fn replacement(node: &str, on_which: &str) -> String {
    format!(
        "replace {node} by a new server where RKE2 or K3s runs etcd on it{on_which}, because its etcd member goes with the Node; \
         where none runs, "
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_drained_before_it_is_deleted_and_a_server_with_etcd_is_replaced() {
        let drained = "drain node a, delete it and restart its kubelet, one Node at a time";
        assert_eq!(recreation_advice("node a", "", "restart its kubelet"), drained);
        let replaced = recreation_advice("node a", "a", "restart its kubelet");
        assert!(
            replaced.starts_with("replace a by a new server where RKE2 or K3s runs etcd on it, "),
            "{replaced}"
        );
        assert!(replaced.ends_with(&format!("; where none runs, {drained}")), "{replaced}");
        assert_eq!(recreation_advice_of_some("node a", "", "restart its kubelet"), drained);
        for (label, expected) in
            SERVER_ROLES.map(|label| (label, true)).into_iter().chain([("worker", false)])
        {
            assert_eq!(may_run_etcd(|role| role == label), expected, "{label}");
        }
    }
}
