//! A process of the driver that dies at one of its writes, before or after the host has it: another process, which is called
//! again, brings the host to where one that lives brings it.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use harvester_api::annotations::{CSI_ATTACH, CSI_FENCE, CSI_FORMER_GROWTH};
use http::{Method, Request};
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DynamicObject, ListParams},
    client::Body,
    core::GroupVersionKind,
};
use program::TaskGroup;
use serde_json::{Value, json};
use test_cluster::{TestCluster, User};
use tokio::{sync::watch, time::Instant};
use tonic::Code;
use tower::BoxError;

use super::bed::{Bed, Call, process_called};

/// Whoever calls again has a good answer by then.
const WITHIN: Duration = Duration::from_secs(130);
/// The host has done its part by then.
const DONE_IN: Duration = Duration::from_secs(20);
/// Codes after which the provisioner calls again, and does not take the volume for one that was never made.
const UNDER_WAY: [Code; 4] =
    [Code::Aborted, Code::DeadlineExceeded, Code::ResourceExhausted, Code::Unavailable];

/// The kinds of objects that a call may change.
const KINDS: [(&str, &str, &str); 7] = [
    ("", "v1", "PersistentVolumeClaim"),
    ("snapshot.storage.k8s.io", "v1", "VolumeSnapshot"),
    ("harvesterhci.io", "v1beta1", "VolumeRemoteBackup"),
    ("harvesterhci.io", "v1beta1", "VolumeRemoteRestore"),
    ("harvesterhci.io", "v1beta1", "NetworkFilesystem"),
    ("kubevirt.io", "v1", "VirtualMachine"),
    ("kubevirt.io", "v1", "VirtualMachineInstance"),
];

/// Which of its writes a process dies at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    None,
    Before(usize),
    After(usize),
}

/// What a process sends, until it dies.
struct Life {
    at: At,
    writes: AtomicUsize,
    has_died: watch::Sender<bool>,
}

impl Life {
    fn until(at: At) -> Arc<Self> {
        Arc::new(Self { at, writes: AtomicUsize::new(0), has_died: watch::Sender::new(false) })
    }

    /// Nothing is sent any more, and no answer is read.
    async fn ends(&self) {
        drop(self.has_died.subscribe().wait_for(|died| *died).await);
    }

    async fn dies<T>(&self) -> T {
        self.has_died.send_replace(true);
        std::future::pending().await
    }

    fn client(self: &Arc<Self>, cluster: &TestCluster) -> Client {
        let (life, inner) = (self.clone(), cluster.harvester.client(User::CsiDriver));
        let service = tower::service_fn(move |request: Request<Body>| {
            let (life, inner) = (life.clone(), inner.clone());
            async move {
                if *life.has_died.borrow() {
                    return life.dies().await;
                }
                let is_write = request.method() != Method::GET;
                let nth = life.writes.fetch_add(usize::from(is_write), Ordering::Relaxed) + 1;
                if is_write && life.at == At::Before(nth) {
                    return life.dies().await;
                }
                let answer = inner.send(request).await.map_err(BoxError::from);
                if *life.has_died.borrow() || (is_write && life.at == At::After(nth)) {
                    return life.dies().await;
                }
                answer
            }
        });
        Client::new(service, "default")
    }
}

/// Everything of the host that a call may change, without what differs from one run to the next.
async fn state(bed: &Bed<'_>, cluster: &TestCluster) -> BTreeMap<String, String> {
    let mut objects = vec![];
    for (group, version, kind) in KINDS {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        let api = Api::<DynamicObject>::all_with(cluster.harvester.client(User::Driver), &resource);
        for object in api.list(&ListParams::default()).await.unwrap() {
            let key = format!("{kind} {}/{}", object.namespace().unwrap_or_default(), object.name_any());
            objects.push((key, serde_json::to_value(&object).unwrap()));
        }
    }
    let mut own = vec![(bed.size().to_string(), "SIZE".to_owned())];
    own.push((format!("{}Mi", bed.size() >> 20), "SIZE".to_owned()));
    for (key, object) in &objects {
        if let Some(volume) = object["spec"]["volumeName"].as_str() {
            own.push((volume.to_owned(), format!("volume of {key}")));
        }
    }
    let of_all_runs = |text: String| own.iter().fold(text, |text, (from, to)| text.replace(from, to));
    let objects = objects.into_iter().map(|(key, mut object)| {
        forget_writers(&mut object["metadata"]["annotations"]);
        forget(&mut object);
        (of_all_runs(key), of_all_runs(object.to_string()))
    });
    objects.collect()
}

fn forget_writers(annotations: &mut Value) {
    for key in [CSI_FENCE, CSI_FORMER_GROWTH] {
        drop(annotations.as_object_mut().and_then(|all| all.remove(key)));
    }
    if let Some(text) = annotations[CSI_ATTACH].as_str() {
        let mut record: Value = serde_json::from_str(text).unwrap();
        record["holder"] = json!("");
        annotations[CSI_ATTACH] = record.to_string().into();
    }
}

/// Removes what each run has of its own.
fn forget(value: &mut Value) {
    const OWN: [&str; 8] = [
        "handle",
        "resourceVersion",
        "uid",
        "generation",
        "managedFields",
        "attachPodName",
        "attachPodUID",
        "boundVolumeSnapshotContentName",
    ];
    match value {
        Value::Object(map) => {
            map.retain(|key, value| {
                let is_time = key.ends_with("Time") || key.ends_with("Timestamp");
                !(is_time || OWN.contains(&&**key) || value.is_null() || *value == json!({}))
            });
            map.values_mut().for_each(forget);
        }
        Value::Array(list) => list.iter_mut().for_each(forget),
        _ => {}
    }
}

/// One call that a process begins and, where it dies, another one completes. Returns the host as it is then, and how many
/// writes the first one began.
async fn run(
    bed: &Bed<'_>,
    cluster: &TestCluster,
    call: Call,
    at: At,
) -> Result<(BTreeMap<String, String>, usize), String> {
    bed.prepare_for(call).await;
    let (tasks, life) = (TaskGroup::new(), Life::until(at));
    let first = process_called("first", cluster, life.client(cluster), &tasks);
    let has_ended = tokio::select! {
        answer = bed.act(&first, call) => Some(answer),
        () = life.ends() => None,
    };
    tasks.stop.cancel();
    let (tasks, begun) = (TaskGroup::new(), Instant::now());
    match has_ended {
        Some(answer) => answer.map_err(|status| format!("it is refused: {status}"))?,
        None => {
            let second = process_called("second", cluster, cluster.harvester.client(User::CsiDriver), &tasks);
            while let Err(status) = bed.act(&second, call).await {
                if !UNDER_WAY.contains(&status.code()) {
                    return Err(format!("that is final for the caller: {status}"));
                }
                if begun.elapsed() > WITHIN {
                    return Err(format!("it has no good answer after {WITHIN:?}: {status}"));
                }
                cluster.advance(Duration::from_secs(1)).await;
            }
        }
    }
    cluster.advance(DONE_IN).await;
    tasks.end().await;
    let state = state(bed, cluster).await;
    bed.clean_up().await;
    Ok((state, life.writes.load(Ordering::Relaxed)))
}

async fn check(cluster: &TestCluster, calls: &[Call]) {
    let bed = Bed::start(cluster, "v1.9.0").await;
    let mut wrong = vec![];
    for call in calls {
        let (expected, writes) = run(&bed, cluster, *call, At::None).await.unwrap();
        assert!(writes > 0, "{call:?} writes nothing");
        for at in (1..=writes).flat_map(|nth| [At::Before(nth), At::After(nth)]) {
            match run(&bed, cluster, *call, at).await {
                Err(why) => {
                    wrong.push(format!("{call:?}, {at:?}: {why}"));
                    bed.clean_up().await;
                }
                Ok((state, _)) => wrong.extend(
                    expected
                        .keys()
                        .chain(state.keys().filter(|key| !expected.contains_key(*key)))
                        .filter(|key| expected.get(*key) != state.get(*key))
                        .map(|key| {
                            let [wanted, is] = [&expected, &state].map(|all| all.get(key));
                            format!(
                                "{call:?}, {at:?}: {key}\n    is {is:?}\n    and {wanted:?} without a death"
                            )
                        }),
                ),
            }
        }
    }
    bed.tasks.end().await;
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

test_cluster::component_tests! {
    #[simulated_only("every write is cut by time")]
    async fn a_volume_whose_process_dies_at_any_write_is_made_by_the_next_one(cluster: TestCluster) {
        check(&cluster, &[Call::Create, Call::CreateOnDefault, Call::CreateExport, Call::Restore, Call::Clone]).await;
    }

    #[simulated_only("every write is cut by time")]
    async fn a_restore_of_a_backup_whose_process_dies_at_any_write_is_made_by_the_next_one(cluster: TestCluster) {
        check(&cluster, &[Call::RestoreBackup]).await;
    }

    #[simulated_only("every write is cut by time")]
    async fn a_deletion_whose_process_dies_at_any_write_is_completed_by_the_next_one(cluster: TestCluster) {
        let calls = [Call::Delete, Call::DeleteExport, Call::DeleteRestored, Call::DeleteSnapshot, Call::DeleteBackup];
        check(&cluster, &calls).await;
    }

    #[simulated_only("every write is cut by time")]
    async fn a_snapshot_or_growth_whose_process_dies_at_any_write_is_completed_by_the_next_one(cluster: TestCluster) {
        check(&cluster, &[Call::Snapshot, Call::Backup, Call::Expand]).await;
    }

    #[simulated_only("every write is cut by time")]
    async fn a_disk_or_export_whose_process_dies_at_any_write_comes_and_goes_by_the_next_one(cluster: TestCluster) {
        check(&cluster, &[Call::Publish, Call::Unpublish, Call::PublishExport, Call::UnpublishExport]).await;
    }
}
