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
use crate::vm::VmState;

/// As the kubelet does by default.
const LEASE: Duration = Duration::from_secs(40);
const EVERY: Duration = Duration::from_secs(10);
/// Namespace of the Leases.
const NAMESPACE: &str = "kube-node-lease";

/// The Lease of a Node whose kubelet lives.
fn decide(node: Option<&Node>, vm: Option<&VmState>, now: &str) -> Option<Value> {
    let (node, vm) = (node?, vm?);
    (vm.running.is_some() && vm.behaviour.ready).then(|| {
        json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": vm.node, "namespace": NAMESPACE, "ownerReferences": [
                {"apiVersion": "v1", "kind": "Node", "name": vm.node, "uid": node.metadata.uid}]},
            "spec": {"holderIdentity": vm.node, "leaseDurationSeconds": LEASE.as_secs(), "renewTime": now}})
    })
}

/// Renews the Leases of all kubelets until `tasks` ends.
pub(crate) fn start(tasks: &TaskGroup, guest: &Client, kubelets: &Kubelets, clock: Clock) {
    let queue = Queue::<ObjectKey>::new();
    let add = queue.clone();
    kubelets.nodes.on_change(move |change| add.add(change.key.clone()));
    let (add, nodes) = (queue.clone(), kubelets.nodes.clone());
    kubelets.on_vms(move || nodes.list().iter().for_each(|node| add.add(ObjectKey::of(&**node))));
    let (leases, kubelets) = (Api::<Lease>::namespaced(guest.clone(), NAMESPACE), kubelets.clone());
    queue.run(tasks, 1, move |key| {
        let (leases, kubelets) = (leases.clone(), kubelets.clone());
        async move {
            let (node, vm) = (kubelets.nodes.get(&key), kubelets.vm_of(&key.name));
            let now = clock.now().strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string();
            let Some(lease) = decide(node.as_deref(), vm.as_ref(), &now) else {
                return Ok(Action::AwaitChange);
            };
            let how = PatchParams::apply("kubelet").force();
            leases.patch(&key.name, &how, &Patch::Apply(lease)).await.map(|_| Action::RequeueAfter(EVERY))
        }
    });
}

#[cfg(test)]
mod tests {
    use super::{super::tests::vm, *};
    use crate::settings::Backend;

    #[test]
    fn a_lease_is_renewed_while_its_kubelet_lives() {
        let node: Node =
            serde_json::from_value(json!({"metadata": {"name": "guest-1", "uid": "u"}})).unwrap();
        let decide = |node, vm: VmState| decide(node, Some(&vm), "2026-11-21T12:00:00.000000Z");
        let lease = decide(Some(&node), vm(true, Backend::Stopped, true)).unwrap();
        assert_eq!(lease["spec"]["holderIdentity"], "guest-1");
        assert_eq!(lease["metadata"]["ownerReferences"][0]["uid"], "u", "it goes with its Node");
        assert_eq!(decide(Some(&node), vm(false, Backend::Ok, true)), None, "halted");
        assert_eq!(decide(Some(&node), vm(true, Backend::Ok, false)), None, "not ready");
        assert_eq!(decide(None, vm(true, Backend::Ok, true)), None, "no Node");
    }
}
