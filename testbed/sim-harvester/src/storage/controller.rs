//! Carries out what VMs and claims need.

use std::{fmt, sync::Arc};

use k8s_openapi::api::{core::v1::PersistentVolumeClaim, storage::v1::StorageClass};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::json;

use controller_kit::{Action, Cache, ObjectKey, PendingEvent, Queue, RawObject, Recorder};
use harvester_api::VirtualMachine;
use program::{Clock, TaskGroup};

use super::{
    ClaimStep, Step, export, is_bound, longhorn, of_claim, of_vm, remote,
    snapshot::{self, VolumeSnapshot},
};
use crate::{
    refused::{Error, unless_gone, unless_there},
    vm::controller::VmController,
    volumes,
};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Item {
    Vm(ObjectKey),
    Claim(ObjectKey),
}

impl fmt::Display for Item {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Vm(key) => write!(out, "volumes of VM {key}"),
            Self::Claim(key) => write!(out, "claim {key}"),
        }
    }
}

#[derive(Clone)]
struct Storage {
    harvester: Client,
    vm_controller: VmController,
    classes: Cache<StorageClass>,
    snapshots: Cache<VolumeSnapshot>,
    events: Recorder,
}

/// Keeps volumes until `tasks` ends.
pub(crate) fn start(
    tasks: &TaskGroup,
    harvester: &Client,
    vm_controller: &VmController,
    clock: Clock,
    events: &Recorder,
) {
    export::start(tasks, harvester, &vm_controller.claims);
    longhorn::start(tasks, harvester, &vm_controller.claims);
    let storage = Storage {
        harvester: harvester.clone(),
        vm_controller: vm_controller.clone(),
        classes: Cache::start(tasks, Api::all(harvester.clone()), Default::default()),
        snapshots: snapshot::start(tasks, harvester, &vm_controller.claims, clock, events),
        events: events.clone(),
    };
    let Storage { snapshots, classes, .. } = &storage;
    remote::start(tasks, harvester, snapshots, &vm_controller.claims, classes, clock);
    let queue = Queue::new();
    storage.subscribe(&queue);
    let in_life = tasks.clone();
    tasks.spawn_until_stop(async move {
        storage.vm_controller.ready().await;
        storage.classes.ready().await;
        storage.snapshots.ready().await;
        queue.run(&in_life, 1, move |item| {
            let storage = storage.clone();
            async move { storage.reconcile(item).await.map(|()| Action::AwaitChange) }
        });
    });
}

impl Storage {
    fn subscribe(&self, queue: &Queue<Item>) {
        let add = queue.clone();
        self.vm_controller.vms.on_change(move |change| add.add(Item::Vm(change.key.clone())));
        let (add, this) = (queue.clone(), self.clone());
        self.vm_controller.instances.on_change(move |change| {
            add.add(Item::Vm(change.key.clone()));
            // a claim that was only held by it may go, and one that waited for it is bound
            let claims = this.vm_controller.claims.list().into_iter();
            claims
                .filter(|claim| claim.metadata.deletion_timestamp.is_some() || !is_bound(claim))
                .for_each(|claim| add.add(Item::Claim(ObjectKey::of(&*claim))));
        });
        let (add, this) = (queue.clone(), self.clone());
        self.vm_controller.claims.on_change(move |change| {
            add.add(Item::Claim(change.key.clone()));
            this.add_claims_with_source(&add);
            if change.new.is_none() {
                // a VM whose claim somebody deleted gets it anew
                let vms = this.vm_controller.vms.list().into_iter().map(|vm| ObjectKey::of(&*vm));
                vms.filter(|key| key.namespace == change.key.namespace)
                    .for_each(|key| add.add(Item::Vm(key)));
            }
        });
        let (add, this) = (queue.clone(), self.clone());
        self.classes.on_change(move |_| this.add_claims(&add));
        let (add, this) = (queue.clone(), self.clone());
        self.snapshots.on_change(move |_| this.add_claims_with_source(&add));
    }

    fn add_claims(&self, queue: &Queue<Item>) {
        for claim in self.vm_controller.claims.list() {
            queue.add(Item::Claim(ObjectKey::of(&*claim)));
        }
    }

    /// Those that wait for what they are to be made of.
    fn add_claims_with_source(&self, queue: &Queue<Item>) {
        let has_source = |claim: &PersistentVolumeClaim| {
            claim
                .spec
                .as_ref()
                .is_some_and(|spec| spec.data_source.is_some() || spec.data_source_ref.is_some())
        };
        let claims = self.vm_controller.claims.list().into_iter();
        claims
            .filter(|claim| !is_bound(claim) && has_source(claim))
            .for_each(|claim| queue.add(Item::Claim(ObjectKey::of(&*claim))));
    }

    async fn reconcile(&self, item: Item) -> Result<(), Error> {
        match item {
            Item::Vm(key) => {
                let Some(vm) = self.vm_controller.vms.get(&key) else { return Ok(()) };
                let claims = self.vm_controller.claims.list();
                let known: Vec<_> = claims
                    .iter()
                    .filter(|claim| claim.metadata.namespace.as_ref() == Some(&key.namespace))
                    .map(|claim| &**claim)
                    .collect();
                let runs = self.vm_controller.instances.get(&key).is_some();
                for step in of_vm(&vm, &known, runs) {
                    self.act(&key, &vm, step).await?;
                }
                Ok(())
            }
            Item::Claim(key) => {
                let Some(claim) = self.vm_controller.claims.get(&key) else { return Ok(()) };
                let classes = self.classes.list();
                let classes: Vec<_> = classes.iter().map(|class| &**class).collect();
                let of = |name: &str| ObjectKey::new(&key.namespace, name);
                let obstacle = snapshot::obstacle(
                    &claim,
                    |name| self.snapshots.get(&of(name)),
                    |name| self.vm_controller.claims.get(&of(name)),
                );
                match of_claim(&claim, &classes, self.is_used(&key), obstacle) {
                    Some(step) => self.act_on_claim(&key, &claim, step).await,
                    None => Ok(()),
                }
            }
        }
    }

    /// Whether an instance has the claim, or lets it go only now.
    fn is_used(&self, key: &ObjectKey) -> bool {
        let instances = self.vm_controller.instances.list().into_iter().map(|instance| instance.json());
        let mut here = instances.filter(|instance| instance["metadata"]["namespace"] == *key.namespace);
        here.any(|instance| volumes::claims_in_use(&instance).any(|claim| claim == key.name))
    }

    async fn act(&self, key: &ObjectKey, vm: &RawObject<VirtualMachine>, step: Step) -> Result<(), Error> {
        let error = |what| Error::of(what, key);
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.harvester.clone(), &key.namespace);
        match step {
            Step::SetFinalizers(finalizers) => {
                let vms: Api<RawObject<VirtualMachine>> =
                    Api::namespaced(self.harvester.clone(), &key.namespace);
                // with the version that was read: finalizers of others are not to be lost
                let patch =
                    json!({"metadata": {"finalizers": finalizers, "resourceVersion": vm.resource_version()}});
                match vms.patch(&key.name, &PatchParams::default(), &Patch::Merge(patch)).await {
                    // a newer version is on its way to us
                    Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => {}
                    answer => drop(self.vm_controller.vms.wrote(answer.map_err(error("hold or let go VM"))?)),
                }
            }
            Step::CreateClaim(claim) => {
                let answer = claims.create(&PostParams::default(), &claim).await;
                if let Some(claim) = unless_there(answer).map_err(error("make a volume of VM"))? {
                    self.vm_controller.claims.wrote(claim);
                }
            }
            Step::DeleteClaim(name) => {
                let answer = claims.delete(&name, &DeleteParams::default()).await;
                unless_gone(answer).map_err(error("delete a volume of VM"))?;
            }
            Step::Warn(message) => {
                let event = PendingEvent::warning("InvalidVolumeClaimTemplates", message);
                self.events.publish(&vm.object_ref(&()), &event);
            }
        }
        Ok(())
    }

    async fn act_on_claim(
        &self,
        key: &ObjectKey,
        claim: &Arc<PersistentVolumeClaim>,
        step: ClaimStep,
    ) -> Result<(), Error> {
        let api: Api<PersistentVolumeClaim> = Api::namespaced(self.harvester.clone(), &key.namespace);
        let params = PatchParams::default();
        let answer = match step {
            ClaimStep::Warn(reason, message) => {
                self.events.publish(&claim.object_ref(&()), &PendingEvent::warning(reason, message));
                return Ok(());
            }
            ClaimStep::Bind { spec, status } => {
                match api.patch(&key.name, &params, &Patch::Merge(spec)).await {
                    Ok(_) => api.patch_status(&key.name, &params, &Patch::Merge(status)).await,
                    refused => refused,
                }
            }
            ClaimStep::Grow(status) => api.patch_status(&key.name, &params, &Patch::Merge(status)).await,
            ClaimStep::LetGo(patch) => api.patch(&key.name, &params, &Patch::Merge(patch)).await,
        };
        if let Some(claim) = unless_gone(answer).map_err(Error::of("write claim", key))? {
            self.vm_controller.claims.wrote(claim);
        }
        Ok(())
    }
}
