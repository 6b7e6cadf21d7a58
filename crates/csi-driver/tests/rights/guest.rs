//! Each right in the guest cluster that a call or a node at its start needs, refused in turn. The others are in
//! [`super::leaders`].

use std::{collections::HashMap, time::Duration};

use controller_kit::PendingEvent;
use csi_driver::{
    attach::{Attacher, Options, moved},
    controller::{ControllerService, Settings},
    csi::{
        CreateVolumeRequest, NodeGetInfoRequest, Topology, TopologyRequirement, VolumeCapability,
        controller_server::Controller,
        node_server::Node,
        volume_capability::{AccessMode, AccessType, BlockVolume, access_mode::Mode},
    },
    guest::Guest,
    host::{
        Host,
        missing::{Missing, REASON},
        rights::{GRANTS, Grant, Role},
    },
    node::{self, NodeService},
    node_id::{Finder, Told},
    run::users,
};
use k8s_openapi::api::core::v1::{Event, ObjectReference};
use program::{Clock, TaskGroup, health::Health, pod::OwnPod};
use test_cluster::{
    Side, TestCluster, User,
    grants::{all_but, of},
};
use tokio::sync::watch;
use tonic::Request;

/// Within so long after a grant everything works again.
const BACK_WITHIN: Duration = Duration::from_secs(60);
const ZONE: &str = "topology.kubernetes.io/zone";
const OBJECTS: &str = "
apiVersion: v1
kind: Node
metadata: {name: node-a, labels: {topology.kubernetes.io/zone: east}}
---
apiVersion: storage.k8s.io/v1
kind: CSINode
metadata: {name: node-a}
spec: {drivers: [{name: driver.harvesterhci.io, nodeID: vm-1, topologyKeys: null}]}
";

/// What calls and the start of a node need.
const OF_CALLS: [(&str, &str); 6] = [
    ("get", "csinodes"),
    ("list", "persistentvolumes"),
    ("list", "volumeattachments"),
    ("get", "nodes"),
    ("list", "nodes"),
    ("create", "events"),
];

/// What of the driver asks for a right, and lasts.
struct Driver<'a> {
    cluster: &'a TestCluster,
    /// Of its Pod.
    name: String,
    tasks: TaskGroup,
    node_id: watch::Receiver<Option<Told>>,
    health: Health,
    events: Missing,
}

impl<'a> Driver<'a> {
    fn start(cluster: &'a TestCluster, name: &str) -> Self {
        let (tasks, health, (found, node_id)) = (TaskGroup::new(), Health::default(), watch::channel(None));
        let (host, folder) =
            (watch::channel(Err("the host is away".to_owned())).1, tempfile::tempdir().unwrap());
        std::fs::create_dir(folder.path().join("enp1s0")).unwrap();
        std::fs::write(folder.path().join("enp1s0/address"), "52:54:00:00:00:01").unwrap();
        let clock = Clock::starting_at(cluster.start());
        let name_of_pod = name.replace(' ', "-");
        let pod = OwnPod {
            namespace: "kube-system".into(),
            name: name_of_pod.clone(),
            uid: Some("uid-1".to_owned()),
        };
        let events = Missing::new(&tasks, cluster.guest.client(User::CsiDriver), clock, Some(pod));
        let finder = Finder {
            node: "node-a".to_owned(),
            guest: Guest::new(events.observe_guest(cluster.guest.client(User::CsiDriver))),
            host,
            interfaces: folder.path().to_owned(),
        };
        let readiness = Some(health.readiness("node-id"));
        tasks.spawn_until_stop(async move {
            finder.find(found, watch::Sender::default(), readiness).await;
            drop(folder);
        });
        Self { cluster, name: name_of_pod, tasks, node_id, health, events }
    }

    /// The Events about rights on its Pod.
    async fn told(&self) -> Vec<String> {
        let events = self.cluster.guest.list::<Event>().await.into_iter();
        let ours = events.filter(|event| {
            event.reason.as_deref() == Some(REASON) && event.involved_object.name.as_ref() == Some(&self.name)
        });
        ours.filter_map(|event| event.message).collect()
    }

    /// What is off without this right says why.
    async fn says(&self, grant: &Grant) -> Result<(), String> {
        let guest = Guest::new(self.events.observe_guest(self.cluster.guest.client(User::CsiDriver)));
        match (grant.verb, grant.resource) {
            ("get", "csinodes") => match &*self.node_id.borrow() {
                Some(told) => {
                    assert_eq!(told.name, "vm-1");
                    Ok(())
                }
                None => Err(self.health.readiness_report()),
            },
            ("list", "persistentvolumes" | "volumeattachments") => users(guest)("pvc-1").await.map(drop),
            ("get", "nodes") => {
                let node_id = watch::channel(Some(Told::named("vm-1"))).1;
                let service = NodeService::new(node::Settings::default(), node_id);
                let service = service.with_topology(guest, "node-a", self.events.clone());
                let answer = service.node_get_info(Request::new(NodeGetInfoRequest {})).await;
                answer.map(drop).map_err(|status| status.message().to_owned())
            }
            ("list", "nodes") => self.create(guest).await,
            ("create", "events") => {
                let about = ObjectReference {
                    kind: Some("PersistentVolumeClaim".to_owned()),
                    namespace: Some("default".to_owned()),
                    name: Some("data".to_owned()),
                    ..ObjectReference::default()
                };
                self.events.recorder().publish(&about, &PendingEvent::warning(moved::REASON, "all is told"));
                self.cluster.settle().await;
                let events = self.cluster.guest.list::<Event>().await;
                let is_told = events.iter().any(|event| event.reason.as_deref() == Some(moved::REASON));
                if is_told { Ok(()) } else { Err(String::new()) }
            }
            other => panic!("nothing asks for {other:?} here: add it"),
        }
    }

    async fn create(&self, guest: Guest) -> Result<(), String> {
        let host = Host::new(self.cluster.harvester.client(User::CsiDriver), "team-a");
        let settings = Settings { topology: Some(guest), ..Settings::default() };
        let attacher = Attacher::new(host.clone(), &self.tasks, Options::new("pod-a"));
        let east = Topology { segments: HashMap::from([(ZONE.to_owned(), "east".to_owned())]) };
        let request = CreateVolumeRequest {
            name: "in-the-east".to_owned(),
            volume_capabilities: vec![VolumeCapability {
                access_type: Some(AccessType::Block(BlockVolume {})),
                access_mode: Some(AccessMode { mode: Mode::SingleNodeWriter.into() }),
            }],
            accessibility_requirements: Some(TopologyRequirement {
                requisite: vec![east],
                preferred: vec![],
            }),
            ..CreateVolumeRequest::default()
        };
        let service = ControllerService::new(host, settings, attacher);
        let answer = service.create_volume(Request::new(request)).await;
        answer.map(drop).map_err(|status| status.message().to_owned())
    }
}

test_cluster::component_tests! {
    // docs/contract/csi-driver.md#rights
    #[simulated_only("the table of rights is walked by time")]
    async fn each_right_of_calls_in_the_guest_cluster_is_named_when_it_is_refused_and_back_after_the_grant(
        cluster: TestCluster,
    ) {
        cluster.guest.apply(OBJECTS).await;
        let granted = of(&cluster, Side::Guest, &[Role::Guest.name()]);
        let mut wrong = vec![];
        for key in OF_CALLS {
            let is_it = |grant: &&Grant| grant.role == Role::Guest && (grant.verb, grant.resource) == key;
            let grant = GRANTS.iter().find(is_it).unwrap();
            let name = format!("{} {}", grant.verb, grant.resource);
            let refused = granted.iter().find(|granted| granted.key() == key).unwrap();
            all_but(&cluster, Side::Guest, &granted, Some(refused)).await;
            let driver = Driver::start(&cluster, &name);
            cluster.settle().await;
            let refusal = format!("cannot {} resource \"{}\"", grant.verb, grant.resource);
            match driver.says(grant).await {
                Ok(()) => wrong.push(format!("{name}: nothing is refused")),
                // that is in the log alone
                Err(_) if grant.resource == "events" => {}
                Err(text) if text.contains(&refusal) && text.contains(&grant.next_step()) => {}
                Err(text) => wrong.push(format!("{name}: says {text}")),
            }
            cluster.advance(Duration::from_secs(5)).await;
            let told = driver.told().await;
            let is_told = match &*told {
                [only] => only.contains(&grant.next_step()) && only.starts_with("the guest cluster refuses to"),
                none => none.is_empty() && grant.resource == "events",
            };
            if !is_told {
                wrong.push(format!("{name}: told {told:?}"));
            }
            all_but(&cluster, Side::Guest, &granted, None).await;
            cluster.advance(BACK_WITHIN).await;
            if let Err(text) = driver.says(grant).await {
                wrong.push(format!("{name} is not back: {text}"));
            }
            driver.tasks.end().await;
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}
