//! The Leases by which kubelets say that they live: `kube-node-lease/<node>`, which `kubectl describe node` shows.
//! Nobody here decides by them, so they are renewed only where there are people to look: on real sockets.

use std::time::Duration;

use controller_kit::{Action, ObjectKey, Queue};
use k8s_openapi::api::{coordination::v1::Lease, core::v1::Node};
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use program::{Clock, TaskGroup};
use serde_json::{Value, json};

use super::controller::Kubelets;
use crate::machine::Machine;

/// As the kubelet does by default.
const LEASE: Duration = Duration::from_secs(40);
const EVERY: Duration = Duration::from_secs(10);
/// Namespace of the Leases.
const NAMESPACE: &str = "kube-node-lease";

/// The Lease of a Node whose kubelet lives.
fn decide(node: Option<&Node>, machine: Option<&Machine>, now: &str) -> Option<Value> {
    let (node, machine) = (node?, machine?);
    (machine.running.is_some() && machine.behaviour.ready).then(|| {
        json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": machine.node, "namespace": NAMESPACE, "ownerReferences": [
                {"apiVersion": "v1", "kind": "Node", "name": machine.node, "uid": node.metadata.uid}]},
            "spec": {"holderIdentity": machine.node, "leaseDurationSeconds": LEASE.as_secs(), "renewTime": now}})
    })
}

/// Renews the Leases of all kubelets until `tasks` ends.
pub(crate) fn start(tasks: &TaskGroup, guest: &Client, kubelets: &Kubelets, clock: Clock) {
    let queue = Queue::<ObjectKey>::new();
    let add = queue.clone();
    kubelets.nodes.on_change(move |change| add.add(change.key.clone()));
    let (add, nodes) = (queue.clone(), kubelets.nodes.clone());
    kubelets.on_machines(move || nodes.list().iter().for_each(|node| add.add(ObjectKey::of(&**node))));
    let (leases, kubelets) = (Api::<Lease>::namespaced(guest.clone(), NAMESPACE), kubelets.clone());
    queue.run(tasks, 1, move |key| {
        let (leases, kubelets) = (leases.clone(), kubelets.clone());
        async move {
            let (node, machine) = (kubelets.nodes.get(&key), kubelets.machine_of(&key.name));
            let now = clock.now().strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string();
            let Some(lease) = decide(node.as_deref(), machine.as_ref(), &now) else {
                return Ok(Action::AwaitChange);
            };
            let how = PatchParams::apply("kubelet").force();
            leases.patch(&key.name, &how, &Patch::Apply(lease)).await.map(|_| Action::RequeueAfter(EVERY))
        }
    });
}

#[cfg(test)]
mod tests {
    use super::{super::tests::machine, *};
    use crate::settings::Backend;

    #[test]
    fn a_lease_is_renewed_while_its_kubelet_lives() {
        let node: Node =
            serde_json::from_value(json!({"metadata": {"name": "guest-1", "uid": "u"}})).unwrap();
        let decide = |node, machine: Machine| decide(node, Some(&machine), "2026-11-21T12:00:00.000000Z");
        let lease = decide(Some(&node), machine(true, Backend::Stopped, true)).unwrap();
        assert_eq!(lease["spec"]["holderIdentity"], "guest-1");
        assert_eq!(lease["metadata"]["ownerReferences"][0]["uid"], "u", "it goes with its Node");
        assert_eq!(decide(Some(&node), machine(false, Backend::Ok, true)), None, "halted");
        assert_eq!(decide(Some(&node), machine(true, Backend::Ok, false)), None, "not ready");
        assert_eq!(decide(None, machine(true, Backend::Ok, true)), None, "no Node");
    }
}
