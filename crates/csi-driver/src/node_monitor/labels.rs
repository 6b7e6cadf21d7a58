//! The cluster's label on the claims of its volumes.
//!
//! The node driver removes all claims that carry the label when it removes the last machines of a cluster whose user asked
//! for it, so the label says "this may go with the cluster": it follows the reclaim policy of the PersistentVolume
//! (docs/contract/csi-driver.md#cluster-label). Whoever writes PersistentVolumes can name the claim of another cluster in
//! one, so a claim that a machine of somebody else has gets no label, nor one whose export is on for somebody else.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Mutex},
};

use controller_kit::{Action, Cache, ObjectKey, Queue};
use harvester_api::{VirtualMachine, labels};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::{
    Api, Client, ResourceExt,
    api::{ListParams, Patch, PatchParams},
};
use program::TaskGroup;
use serde_json::json;
use tokio::{sync::watch, time::Instant};

use harvester_api::names::CSI_DRIVER;

use crate::{
    attach::{LOOK_AGAIN, hotplug, on_for, ownership::Recorded, recorded},
    host::{Host, PAGE, bound_volume, is_absent, kinds::NetworkFilesystem},
    node_id::OwnMachine,
    refusal::error_message,
    volume::{access::Reach, name::HostName, record},
};

/// The name that the cloud controller manager has for a cluster that nobody named: every such cluster's.
pub(crate) const NOBODYS: &str = "kubernetes";
const DELETE: &str = "Delete";

/// What the label of a claim is to become.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Label {
    Keep,
    Set(String),
    Remove,
}

/// `cluster` is the label of the machine that this runs in, `policies` are the reclaim policies of all
/// PersistentVolumes that are this claim's volume.
fn decide(cluster: Option<&str>, policies: &[&str], claim: &PersistentVolumeClaim) -> Label {
    let Some(cluster) = cluster.filter(|name| !name.is_empty() && *name != NOBODYS && labels::is_value(name))
    else {
        return Label::Keep;
    };
    let present = claim.metadata.labels.as_ref().and_then(|labels| labels.get(labels::GUEST_CLUSTER));
    let may_go = !policies.is_empty() && policies.iter().all(|policy| *policy == DELETE);
    match present {
        // of a volume without PersistentVolume nobody knows what its owner wants
        _ if policies.is_empty() || !record::is_volume(claim) => Label::Keep,
        None if may_go => Label::Set(cluster.to_owned()),
        Some(value) if value == cluster && !may_go => Label::Remove,
        // another cluster's, or as it should be
        _ => Label::Keep,
    }
}

/// A machine of the namespace.
struct Machine {
    name: String,
    /// Its label.
    cluster: Option<String>,
    /// Of which it, or its instance, has something.
    claims: BTreeSet<String>,
}

/// Whether a machine has the volume, or is to have it by the annotation, that is not one of this cluster.
fn is_of_others(cluster: &str, claim: &str, recorded: &Recorded, machines: &[Machine]) -> bool {
    let vm = match recorded {
        Recorded::Nothing => None,
        Recorded::Ownership(ownership) => Some(&ownership.vm),
        Recorded::Unreadable => return true,
    };
    let mut others = machines.iter().filter(|machine| machine.cluster.as_deref() != Some(cluster));
    others.any(|machine| Some(&machine.name) == vm || machine.claims.contains(claim))
}

/// What both clusters show.
#[derive(Clone)]
pub struct Sources {
    pub volumes: Cache<PersistentVolume>,
    pub claims: Cache<PersistentVolumeClaim>,
    pub machines: Cache<VirtualMachine>,
    /// The machine that this process runs in.
    pub machine: watch::Receiver<OwnMachine>,
}

struct Labels {
    guest: Client,
    host: Host,
    sources: Sources,
    by_claim: ByClaim,
    /// As they were read last, for the many claims of a cluster whose first label this is.
    machines: Mutex<Option<(Instant, Arc<[Machine]>)>>,
}

/// Names of PersistentVolumes, by the claim that is their volume: a guest may have thousands, and each is looked at for its
/// own claim alone.
#[derive(Default)]
struct ByClaim(Mutex<Index>);

#[derive(Default)]
struct Index {
    volumes: HashMap<String, BTreeSet<String>>,
    claims: HashMap<String, HostName>,
}

impl ByClaim {
    /// Changes may be told in another order than they came in, so the volume is looked up again.
    fn note(&self, volume: &str, look_up: impl FnOnce() -> Option<HostName>) {
        let Index { volumes, claims } = &mut *self.0.lock().expect("no panic while a name is added");
        let claim = look_up();
        let former = match &claim {
            Some(claim) => claims.insert(volume.to_owned(), claim.clone()),
            None => claims.remove(volume),
        };
        if let Some(former) = former
            && let Some(names) = volumes.get_mut(former.as_str())
        {
            names.remove(volume);
            if names.is_empty() {
                volumes.remove(former.as_str());
            }
        }
        if let Some(claim) = claim {
            volumes.entry(claim.to_string()).or_default().insert(volume.to_owned());
        }
    }

    fn of(&self, claim: &str) -> BTreeSet<String> {
        let all = self.0.lock().expect("no panic while a name is added");
        all.volumes.get(claim).cloned().unwrap_or_default()
    }
}

#[derive(Debug, thiserror::Error)]
#[error("{claim}: {doing}")]
struct Error {
    claim: String,
    doing: &'static str,
    source: kube::Error,
}

/// Starts the controller; it works until `tasks` ends.
pub fn start(tasks: &TaskGroup, guest: Client, host: Host, sources: Sources) {
    let controller =
        Arc::new(Labels { guest, host, sources, by_claim: ByClaim::default(), machines: Mutex::default() });
    let queue = Queue::<ObjectKey>::new();
    let worker = controller.clone();
    queue.run(tasks, 1, move |key| {
        let controller = worker.clone();
        async move { controller.reconcile(&key).await }
    });
    let Sources { volumes, claims, machines, machine } = &controller.sources;
    let (changed, namespace) = (queue.clone(), controller.host.namespace().to_owned());
    let noted = controller.clone();
    volumes.on_change(move |change| {
        noted
            .by_claim
            .note(&change.key.name, || noted.sources.volumes.get(&change.key).and_then(|one| handle(&one)));
        for handle in [&change.old, &change.new].into_iter().flatten().filter_map(|volume| handle(volume)) {
            changed.add(ObjectKey::new(&namespace, handle.as_str()));
        }
    });
    let changed = queue.clone();
    claims.on_change(move |change| changed.add(change.key.clone()));
    let (claims, own) = (claims.clone(), controller.clone());
    let everything = move || claims.list().iter().for_each(|claim| queue.add(ObjectKey::of(&**claim)));
    let (again, mut machine) = (everything.clone(), machine.clone());
    machines.on_change(move |change| {
        let label = |vm: &Option<Arc<VirtualMachine>>| {
            vm.as_ref().and_then(|vm| vm.labels().get(labels::GUEST_CLUSTER).cloned())
        };
        if own.is_own(&change.key.name) && label(&change.old) != label(&change.new) {
            again();
        }
    });
    tasks.spawn_until_stop(async move {
        while machine.changed().await.is_ok() {
            everything();
        }
    });
}

impl Labels {
    fn is_own(&self, name: &str) -> bool {
        self.sources.machine.borrow().name() == Some(name)
    }

    /// The label of the machine that this runs in.
    fn cluster(&self) -> Option<String> {
        let name = self.sources.machine.borrow().name()?.to_owned();
        let vm = self.sources.machines.get(&ObjectKey::new(self.host.namespace(), name))?;
        vm.labels().get(labels::GUEST_CLUSTER).cloned()
    }

    /// All machines of the namespace with what they have.
    async fn machines(&self) -> Result<Arc<[Machine]>, kube::Error> {
        let known = || self.machines.lock().expect("no panic while it is replaced");
        if let Some((at, machines)) = &*known()
            && at.elapsed() < LOOK_AGAIN
        {
            return Ok(machines.clone());
        }
        let now = Instant::now();
        let (vms, vmis) = tokio::try_join!(all(self.host.machines()), all(self.host.instances()))?;
        let mut machines: HashMap<String, Machine> = HashMap::new();
        let mut note = |name: String, labels: &BTreeMap<String, String>, claims: BTreeSet<String>| {
            let cluster = labels.get(labels::GUEST_CLUSTER).cloned();
            let machine = Machine { name: name.clone(), cluster, claims: BTreeSet::new() };
            // the machine's label counts for its instance
            machines.entry(name).or_insert(machine).claims.extend(claims);
        };
        for vm in vms {
            note(vm.name_any(), vm.labels(), hotplug::claims(Some(&vm), None).map(str::to_owned).collect());
        }
        for vmi in vmis {
            note(
                vmi.name_any(),
                vmi.labels(),
                hotplug::claims(None, Some(&vmi)).map(str::to_owned).collect(),
            );
        }
        let machines: Arc<[Machine]> = machines.into_values().collect();
        *known() = Some((now, machines.clone()));
        Ok(machines)
    }

    /// The export of the claim's volume, which is in no machine.
    async fn export(&self, claim: &PersistentVolumeClaim) -> Result<Option<NetworkFilesystem>, kube::Error> {
        let volume = bound_volume(claim).filter(|_| record::reach_of(claim) != Some(Reach::Disk));
        let Some(volume) = volume else { return Ok(None) };
        match self.host.network_filesystems().get_opt(volume).await {
            // the kind came with Harvester 1.4, and the right to it
            Err(error) if is_absent(&error) => Ok(None),
            read => read,
        }
    }

    async fn reconcile(&self, key: &ObjectKey) -> Result<Action, Error> {
        let Sources { volumes, claims, .. } = &self.sources;
        let (Some(mut claim), Some(cluster)) = (claims.get(key), self.cluster()) else {
            return Ok(Action::AwaitChange);
        };
        // of one volume there may be several PersistentVolumes, and one that is not listed yet may retain it
        if !volumes.is_ready() {
            volumes.ready().await;
        }
        let own = self.by_claim.of(&key.name).into_iter();
        let own: Vec<_> = own.filter_map(|name| volumes.get(&ObjectKey::new("", name))).collect();
        let policies: Vec<_> = own.iter().map(|volume| policy(volume)).collect();
        let failed = |doing| {
            let claim = self.host.claim_name(&key.name);
            move |source| Error { claim, doing, source }
        };
        let label = match decide(Some(&cluster), &policies, &claim) {
            Label::Keep => return Ok(Action::AwaitChange),
            Label::Remove => None,
            Label::Set(value) => {
                // a cache may be old, and a claim that is labelled by mistake may be lost
                let api = Api::<PersistentVolume>::all(self.guest.clone());
                for volume in &own {
                    let read = api.get_opt(&volume.name_any()).await;
                    let read = read.map_err(failed("read its PersistentVolume"))?;
                    if read.is_none_or(|read| policy(&read) != DELETE) {
                        return Ok(Action::AwaitChange);
                    }
                }
                let read = self.host.claims().get_opt(&key.name).await.map_err(failed("read it"))?;
                let Some(read) = read else { return Ok(Action::AwaitChange) };
                if decide(Some(&cluster), &policies, &read) == Label::Keep {
                    return Ok(Action::AwaitChange);
                }
                let machines = self.machines().await.map_err(failed("list the machines"))?;
                if is_of_others(&cluster, &key.name, &recorded(&read), &machines) {
                    return Ok(Action::AwaitChange);
                }
                let export = self.export(&read).await.map_err(failed("read its NetworkFilesystem"))?;
                let has_others = machines.iter().any(|machine| machine.cluster.as_ref() != Some(&cluster));
                if export.is_some_and(|export| on_for::is_of_others(&cluster, &export, has_others)) {
                    return Ok(Action::AwaitChange);
                }
                claim = Arc::new(read);
                Some(value)
            }
        };
        let patch = json!({"metadata": {"resourceVersion": claim.resource_version(),
            "labels": {labels::GUEST_CLUSTER: label}}});
        let patched =
            self.host.claims().patch(&key.name, &PatchParams::default(), &Patch::Merge(patch)).await;
        match patched {
            Ok(claim) => {
                claims.wrote(claim);
                Ok(Action::AwaitChange)
            }
            // the watch tells who wrote first
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(Action::AwaitChange),
            Err(source) => {
                tracing::warn!(
                    claim = key.name,
                    "the label {} was not written: {}",
                    labels::GUEST_CLUSTER,
                    error_message(&source)
                );
                Err(failed("write its label")(source))
            }
        }
    }
}

/// All objects of a kind, page by page.
async fn all<K>(api: Api<K>) -> Result<Vec<K>, kube::Error>
where
    K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let (mut objects, mut page) = (Vec::new(), ListParams::default().limit(PAGE));
    loop {
        let list = api.list(&page).await?;
        objects.extend(list.items);
        match list.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => return Ok(objects),
        }
    }
}

/// The claim of a PersistentVolume of ours.
fn handle(volume: &PersistentVolume) -> Option<HostName> {
    let csi = volume.spec.as_ref()?.csi.as_ref().filter(|csi| csi.driver == CSI_DRIVER)?;
    HostName::from_handle(&csi.volume_handle)
}

/// Kubernetes' default is to retain.
fn policy(volume: &PersistentVolume) -> &str {
    let spec = volume.spec.as_ref();
    spec.and_then(|spec| spec.persistent_volume_reclaim_policy.as_deref()).unwrap_or("Retain")
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::attach::ownership::Ownership;

    const UID: &str = "pvc-6f0b2c9e-9f0e-4a6e-8c1d-2b8f6d0a4c11";

    // docs/contract/csi-driver.md#cluster-label
    #[rstest]
    #[case::a_volume_of_the_cluster(Some("demo"), &["Delete"], None, Label::Set("demo".to_owned()))]
    #[case::labelled(Some("demo"), &["Delete"], Some("demo"), Label::Keep)]
    #[case::retained(Some("demo"), &["Retain"], None, Label::Keep)]
    #[case::retained_from_now_on(Some("demo"), &["Retain"], Some("demo"), Label::Remove)]
    #[case::recycled(Some("demo"), &["Recycle"], Some("demo"), Label::Remove)]
    #[case::retained_by_one_of_two(Some("demo"), &["Delete", "Retain"], Some("demo"), Label::Remove)]
    #[case::retained_by_one_of_two_and_bare(Some("demo"), &["Delete", "Retain"], None, Label::Keep)]
    #[case::of_another_cluster(Some("demo"), &["Delete"], Some("shop"), Label::Keep)]
    #[case::of_another_cluster_and_retained(Some("demo"), &["Retain"], Some("shop"), Label::Keep)]
    #[case::without_a_volume_here(Some("demo"), &[], Some("demo"), Label::Keep)]
    #[case::without_a_volume_here_and_bare(Some("demo"), &[], None, Label::Keep)]
    #[case::a_machine_without_the_label(None, &["Delete"], None, Label::Keep)]
    #[case::a_machine_with_an_empty_label(Some(""), &["Delete"], None, Label::Keep)]
    #[case::a_name_that_all_have(Some("kubernetes"), &["Delete"], None, Label::Keep)]
    #[case::a_name_that_no_label_has(Some("my cluster"), &["Delete"], None, Label::Keep)]
    fn a_claim_has_the_label_of_its_cluster_while_its_volume_may_go_with_it(
        #[case] cluster: Option<&str>,
        #[case] policies: &[&str],
        #[case] present: Option<&str>,
        #[case] expected: Label,
    ) {
        let labels = present.map(|value| json!({labels::GUEST_CLUSTER: value}));
        let claim = json!({"metadata": {"name": UID, "labels": labels}});
        let claim = serde_json::from_value(claim).unwrap();
        assert_eq!(decide(cluster, policies, &claim), expected);
    }

    fn machine(name: &str, cluster: Option<&str>, claims: &[&str]) -> Machine {
        let claims = claims.iter().map(|&claim| claim.to_owned()).collect();
        Machine { name: name.to_owned(), cluster: cluster.map(str::to_owned), claims }
    }

    fn in_machine(vm: &str) -> Recorded {
        let text = json!({"vm": vm, "vmUid": "u", "op": "attach"}).to_string();
        Ownership::parse(&text).map_or(Recorded::Unreadable, Recorded::Ownership)
    }

    #[rstest]
    #[case::nowhere(Recorded::Nothing, &[], false)]
    #[case::in_ours(in_machine("ours"), &[UID], false)]
    #[case::on_its_way_to_theirs(in_machine("theirs"), &[], true)]
    #[case::on_its_way_to_one_without_a_label(in_machine("bare"), &[], true)]
    #[case::of_a_machine_that_is_gone(in_machine("gone"), &[], false)]
    #[case::strange_text(Recorded::Unreadable, &[], true)]
    fn a_volume_is_of_others_where_one_of_their_machines_is_to_have_it(
        #[case] recorded: Recorded,
        #[case] ours: &[&str],
        #[case] expected: bool,
    ) {
        let machines = [
            machine("ours", Some("demo"), ours),
            machine("theirs", Some("shop"), &[]),
            machine("bare", None, &[]),
        ];
        assert_eq!(is_of_others("demo", UID, &recorded, &machines), expected);
        // the Go driver writes no annotation
        let with = |cluster| [machine("m", cluster, &[UID])];
        assert!(is_of_others("demo", UID, &recorded, &with(Some("shop"))));
        assert!(is_of_others("demo", UID, &recorded, &with(None)));
    }

    #[test]
    fn the_volumes_of_a_claim_are_known_by_its_name() {
        let all = ByClaim::default();
        let note =
            |volume: &str, claim: Option<&str>| all.note(volume, || claim.and_then(HostName::from_handle));
        note("pv-a", Some("pvc-1"));
        note("pv-b", Some("pvc-1"));
        note("pv-b", Some("pvc-1"));
        assert_eq!(all.of("pvc-1"), BTreeSet::from(["pv-a".to_owned(), "pv-b".to_owned()]));
        note("pv-a", Some("pvc-2"));
        assert_eq!(all.of("pvc-1"), BTreeSet::from(["pv-b".to_owned()]));
        note("pv-a", None);
        note("pv-b", None);
        let index = all.0.lock().unwrap();
        assert!(index.volumes.is_empty() && index.claims.is_empty());
    }

    #[test]
    fn the_disk_of_a_machine_never_gets_it() {
        let claim = serde_json::from_value(json!({"metadata": {"name": "worker-1-disk-0"}})).unwrap();
        assert_eq!(decide(Some("demo"), &["Delete"], &claim), Label::Keep);
    }
}
