//! Each right in the guest cluster that healing, the node monitor and their Leases need, taken away in turn: what is off then
//! and nothing else, one Event that names the right, and all of it back after the grant.

use std::{
    collections::{BTreeMap, BTreeSet},
    slice,
    sync::Arc,
    time::Duration,
};

use csi_driver::{
    attach::{Attacher, Options},
    healing::lead::{self, Candidate},
    host::{
        Host,
        missing::{Missing, REASON},
        rights::{GRANTS, Grant, Role},
    },
    leading::Leading,
    lease::{HEALING, NODE_MONITOR},
    node_id::OwnMachine,
    node_monitor::{NodeMonitor, decide::OUT_OF_SERVICE},
};
use harvester_api::{annotations, labels};
use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{Event, Node, PersistentVolumeClaim},
    storage::v1::VolumeAttachment,
};
use program::{Clock, TaskGroup, capabilities::denied, pod::OwnPod};
use serde_json::json;
use test_cluster::{
    Rights, Side, TestCluster, User,
    grants::{self, all_but, of},
};
use tokio::sync::watch;

/// Within so long after a grant everything works again.
const BACK_WITHIN: Duration = Duration::from_secs(60);
/// A machine is lost for a minute before its Node gets the taint.
const LOST: Duration = Duration::from_secs(65);
const A_WHILE: Duration = Duration::from_secs(100);
/// Rights that [`super::guest`] takes away: without the first nothing of what is looked at here can be seen.
const ELSEWHERE: [(&str, &str); 2] = [("create", "events"), ("get", "csinodes")];
/// Of the account beside the sidecars, whose Event is `CredentialNotRotated`.
const OF_CREDENTIAL: &str = "harvester-csi-driver-credential";

/// What the two leaders do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Feature {
    /// What hinders a volume is told.
    Healing,
    /// The external attacher is woken.
    Waking,
    Taint,
    Label,
}

const ALL: [Feature; 4] = [Feature::Healing, Feature::Waking, Feature::Taint, Feature::Label];

/// What is off without a right.
fn off(grant: &Grant) -> &'static [Feature] {
    use Feature::{Healing, Label, Taint, Waking};
    match (grant.verb, grant.resource, grant.name) {
        ("list" | "watch", "csinodes", _) => &[Healing, Waking, Taint],
        ("get", "persistentvolumes", _) => &[Label],
        ("list" | "watch", "persistentvolumes", _) => &[Healing, Waking, Label],
        ("list" | "watch", "volumeattachments", _) | ("get" | "update", "leases", Some(HEALING)) => {
            &[Healing, Waking]
        }
        ("patch", "volumeattachments", _) => &[Waking],
        (_, "nodes", _) => &[Taint],
        ("get" | "update", "leases", Some(NODE_MONITOR)) => &[Taint, Label],
        ("create", "leases", _) => &ALL,
        _ => &[],
    }
}

/// The rows of the table that one grant of a role is: a rule may name both Leases.
fn rows(granted: &grants::Grant) -> Vec<&'static Grant> {
    let is_it = |row: &&Grant| {
        let is_named = |name: &str| granted.names.iter().any(|one| one == name);
        row.role == Role::Guest
            && (row.verb, row.group, row.resource) == (&*granted.verb, &*granted.group, &*granted.resource)
            && (granted.names.is_empty() || row.name.is_some_and(is_named))
    };
    GRANTS.iter().filter(is_it).collect()
}

/// The machine of the driver's own Node.
const OWN: &str = "
apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata: {name: vm-0, namespace: team-a, labels: {guestcluster.harvesterhci.io/name: demo}}
spec: {runStrategy: Always, template: {spec: {domain: {devices: {}}}}}
";

/// The volume of this number, by a name that only the provisioner gives.
fn handle(n: usize) -> String {
    format!("pvc-6f0b2c9e-9f0e-4a6e-8c1d-{n:012}")
}

/// A machine that does not run, one that has a volume, and the volume's claim.
fn on_the_host(n: usize) -> String {
    let handle = handle(n);
    let volumes =
        format!("[{{name: {handle}, persistentVolumeClaim: {{claimName: {handle}, hotpluggable: true}}}}]");
    let devices = format!("{{devices: {{disks: [{{name: {handle}, disk: {{bus: scsi}}}}]}}}}");
    format!(
        "
apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata: {{name: lost-{n}, namespace: team-a, labels: {{guestcluster.harvesterhci.io/name: demo}}}}
spec: {{runStrategy: Always, template: {{spec: {{domain: {{devices: {{}}}}}}}}}}
---
apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata: {{name: kept-{n}, namespace: team-a, labels: {{guestcluster.harvesterhci.io/name: demo}}}}
spec: {{runStrategy: Always, template: {{spec: {{domain: {devices}, volumes: {volumes}}}}}}}
---
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata: {{name: kept-{n}, namespace: team-a}}
spec: {{domain: {devices}, volumes: {volumes}}}
status: {{phase: Running, nodeName: host-1, volumeStatus: [{{name: {handle}, target: sda, phase: Ready, hotplugVolume: {{}}}}]}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: {handle}, namespace: team-a}}
spec: {{accessModes: [ReadWriteMany], resources: {{requests: {{storage: 1Gi}}}}}}
"
    )
}

/// Their Nodes, the volume, and one whose claim is gone; the attacher has noted neither of the two attachments.
fn in_the_guest(n: usize) -> String {
    let csi_node = |name: &str| {
        format!(
            "
apiVersion: storage.k8s.io/v1
kind: CSINode
metadata: {{name: {name}-{n}}}
spec: {{drivers: [{{name: driver.harvesterhci.io, nodeID: {name}-{n}, topologyKeys: null}}]}}
---"
        )
    };
    let volume = |name: &str, handle: &str| {
        format!(
            "
apiVersion: v1
kind: PersistentVolume
metadata: {{name: {name}-{n}}}
spec:
  capacity: {{storage: 1Gi}}
  accessModes: [ReadWriteOnce]
  persistentVolumeReclaimPolicy: Delete
  csi: {{driver: driver.harvesterhci.io, volumeHandle: {handle}}}
---
apiVersion: storage.k8s.io/v1
kind: VolumeAttachment
metadata: {{name: of-{name}-{n}}}
spec: {{attacher: driver.harvesterhci.io, nodeName: kept-{n}, source: {{persistentVolumeName: {name}-{n}}}}}
---"
        )
    };
    let node = format!("\napiVersion: v1\nkind: Node\nmetadata: {{name: lost-{n}}}\n");
    [
        csi_node("lost"),
        csi_node("kept"),
        volume("kept", &handle(n)),
        volume("gone", &format!("pvc-gone-{n}")),
        node,
    ]
    .concat()
}

/// A process that leads both, on a Pod of this name.
fn start(cluster: &TestCluster, pod: &str) -> TaskGroup {
    let (tasks, clock) = (TaskGroup::new(), Clock::starting_at(cluster.start()));
    let guest = cluster.guest.client(User::CsiDriver);
    let place =
        OwnPod { namespace: "kube-system".into(), name: pod.to_owned(), uid: Some("uid-1".to_owned()) };
    // as `run` has it: one client, so that a right is told once
    let guest = Missing::new(&tasks, guest.clone(), clock, Some(place)).observe_guest(guest);
    let host = Host::new(cluster.harvester.client(User::CsiDriver), "team-a");
    let attacher = Arc::new(Attacher::new(host.clone(), &tasks, Options::new(pod)));
    let ((calls, called), (attachers, attacher)) = (watch::channel(true), watch::channel(attacher));
    let (hosts, host) = watch::channel(Ok(host));
    let (machines, machine) = watch::channel(OwnMachine::Confirmed("vm-0".to_owned()));
    let (identity, leading) = (pod.to_owned(), Leading::default());
    let candidate = Candidate {
        guest: guest.clone(),
        clock,
        identity: identity.clone(),
        called,
        attacher,
        leading: leading.clone(),
        credential: None,
    };
    let monitor = NodeMonitor { guest, host, node: String::new(), machine, identity, clock, leading };
    let (healing, monitoring) = (lead::stand(candidate, tasks.clone()), monitor.run(tasks.clone()));
    tasks.spawn(async move {
        let _senders = (calls, attachers, hosts, machines);
        tokio::join!(healing, monitoring);
    });
    tasks
}

/// Which of its work the leader has done for the objects of this number.
async fn done(cluster: &TestCluster, n: usize) -> BTreeSet<Feature> {
    let attachment = |name: &str| format!("of-{name}-{n}");
    let blocked = attachment("gone");
    let events = cluster.guest.list::<Event>().await;
    let is_told = events.iter().any(|event| {
        event.reason.as_deref() == Some("VolumeNotAttached")
            && event.involved_object.name.as_ref() == Some(&blocked)
    });
    let woken: VolumeAttachment = cluster.guest.get(&attachment("kept")).await.unwrap();
    let is_woken = woken.metadata.annotations.unwrap_or_default().contains_key(annotations::CSI_NUDGE);
    let node: Node = cluster.guest.get(&format!("lost-{n}")).await.unwrap();
    let taints = node.spec.and_then(|spec| spec.taints).unwrap_or_default();
    let is_tainted = taints.iter().any(|taint| taint.key == OUT_OF_SERVICE);
    let claim: PersistentVolumeClaim = cluster.harvester.get(&format!("team-a/{}", handle(n))).await.unwrap();
    let is_labelled = claim.metadata.labels.unwrap_or_default().contains_key(labels::GUEST_CLUSTER);
    let all = ALL.into_iter().zip([is_told, is_woken, is_tainted, is_labelled]);
    all.filter_map(|(feature, is_done)| is_done.then_some(feature)).collect()
}

/// What the Pod of this name was told of rights.
async fn told(cluster: &TestCluster, pod: &str) -> Vec<String> {
    let events = cluster.guest.list::<Event>().await.into_iter();
    let ours = events.filter(|event| {
        event.reason.as_deref() == Some(REASON) && event.involved_object.name.as_deref() == Some(pod)
    });
    ours.filter_map(|event| event.message).collect()
}

async fn soon(mut is_so: impl AsyncFnMut() -> bool) {
    for _ in 0..300 {
        if is_so().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    panic!("not in a minute");
}

/// What is wrong when the role lacks one grant and then has it.
async fn wrong(
    cluster: &TestCluster,
    all: &[grants::Grant],
    n: usize,
    refused: &grants::Grant,
) -> Option<String> {
    let (rows, pod) = (rows(refused), format!("csi-{n}"));
    all_but(cluster, Side::Guest, all, Some(refused)).await;
    let tasks = start(cluster, &pod);
    cluster.settle().await;
    cluster.harvester.apply(&on_the_host(n)).await;
    cluster.guest.apply(&in_the_guest(n)).await;
    let silent = json!([{"type": "Ready", "status": "Unknown", "reason": "", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:01Z"}]);
    let silent = json!({"status": {"conditions": silent}});
    cluster.guest.patch_status::<Node>(&format!("lost-{n}"), silent).await;
    cluster.advance(A_WHILE).await;
    let (done_without, told) = (done(cluster, n).await, told(cluster, &pod).await);
    all_but(cluster, Side::Guest, all, None).await;
    cluster.advance(BACK_WITHIN).await;
    let mut back = done(cluster, n).await;
    // its minute may have begun with the grant
    back.insert(Feature::Taint);
    cluster.advance(LOST).await;
    let after = done(cluster, n).await;
    tasks.end().await;

    let whole = BTreeSet::from(ALL);
    let off: BTreeSet<_> = rows.iter().flat_map(|row| off(row)).copied().collect();
    let off_now: BTreeSet<_> = whole.difference(&done_without).copied().collect();
    let is_named = |row: &Grant| {
        let of_row =
            |text: &&String| text.contains(&row.next_step()) && text.contains(&row.right("").to_string());
        told.iter().filter(of_row).count() == 1
    };
    let is_told = told.len() == rows.len() && rows.iter().all(|row| is_named(row));
    let is_right = off_now == off && is_told && back == whole && after == whole;
    (!is_right).then(|| {
        format!(
            "{}: off {off_now:?}, expected {off:?}; told {told:?}; back {back:?}, then {after:?}",
            refused.text()
        )
    })
}

test_cluster::component_tests! {
    // docs/contract/csi-driver.md#rights
    #[simulated_only("the table of rights is walked by time")]
    async fn each_right_of_the_leaders_is_named_when_it_is_refused_and_back_after_the_grant(cluster: TestCluster) {
        cluster.harvester.apply(OWN).await;
        let all = of(&cluster, Side::Guest, &[Role::Guest.name()]);
        let asked = all.iter().filter(|granted| {
            !ELSEWHERE.contains(&granted.key()) && !rows(granted).is_empty()
        });
        let mut all_wrong = vec![];
        for (n, refused) in asked.enumerate() {
            all_wrong.extend(wrong(&cluster, &all, n, refused).await);
        }
        assert!(all_wrong.is_empty(), "{}", all_wrong.join("\n"));
    }

    // docs/contract/csi-driver.md#rights
    #[each_role]
    async fn a_right_that_a_leader_asks_about_is_told_before_anything_is_refused(cluster: TestCluster) {
        let all = of(&cluster, Side::Guest, &[Role::Guest.name()]);
        let refused = all.iter().find(|granted| granted.key() == ("create", "leases")).unwrap();
        all_but(&cluster, Side::Guest, &all, Some(refused)).await;
        // a real API server hears of a changed role a moment later
        let (client, right) = (cluster.guest.client(User::CsiDriver), rows(refused)[0].right(""));
        soon(async || !denied(&client, "kube-system", slice::from_ref(&right)).await.is_empty()).await;
        let tasks = start(&cluster, "csi-0");
        soon(async || !told(&cluster, "csi-0").await.is_empty()).await;
        let told = told(&cluster, "csi-0").await;
        assert!(matches!(&*told, [only] if only.contains(&rows(refused)[0].next_step())), "{told:?}");
        for name in [HEALING, NODE_MONITOR] {
            assert_eq!(cluster.guest.get::<Lease>(&format!("kube-system/{name}")).await, None);
        }
        tasks.end().await;
    }

    // docs/contract/csi-driver.md#rights
    #[simulated_only("compares two tables")]
    async fn the_guests_role_grants_what_the_driver_asks_for_and_ours_nothing_more(cluster: TestCluster) {
        let roles: &[&str] = match cluster.rights() {
            Rights::Ours => &[Role::Guest.name(), OF_CREDENTIAL],
            Rights::Existing => &[Role::Guest.name()],
        };
        let granted = of(&cluster, Side::Guest, roles);
        let mut counts = BTreeMap::new();
        for row in granted.iter().flat_map(rows) {
            *counts.entry((row.verb, row.resource, row.name)).or_insert(0) += 1;
        }
        let of_guest = GRANTS.iter().filter(|row| row.role == Role::Guest);
        let expected: BTreeMap<_, _> =
            of_guest.map(|row| ((row.verb, row.resource, row.name), 1)).collect();
        assert_eq!(counts, expected, "each right is granted once");
        if cluster.rights() == Rights::Ours {
            let unasked = granted.iter().filter(|one| rows(one).len() != one.names.len().max(1));
            let unasked: Vec<_> = unasked.map(|one| (one.text(), one.names.join(" "))).collect();
            let secret = |verb: &str| (format!("{verb} secrets"), "harvester-csi-driver-rotated".to_owned());
            assert_eq!(unasked, [secret("get"), secret("update")]);
        }
    }
}
