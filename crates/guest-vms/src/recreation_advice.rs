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

/// What helps Nodes that have to be made anew. `which`: all of them, in words; `servers`: those on which etcd may run, a name or
/// "each of" some names; `then`: what follows for each Node.
pub fn recreation_advice(which: &str, servers: &str, then: &str) -> String {
    let mend = format!("drain {which}, delete it and {then}, one Node at a time");
    if servers.is_empty() {
        return mend;
    }
    format!(
        "replace {servers} by a new server where RKE2 or K3s runs etcd on it, because its etcd member goes with the Node; where \
         none runs, {mend}"
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
        for (label, expected) in
            SERVER_ROLES.map(|label| (label, true)).into_iter().chain([("worker", false)])
        {
            assert_eq!(may_run_etcd(|role| role == label), expected, "{label}");
        }
    }
}
