//! Disks that come into VMs that run, on simulated and on real servers; what KubeVirt and Harvester refuse; growth.

use std::collections::BTreeMap;

use futures::StreamExt;
use http::StatusCode;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, WatchEvent, WatchParams},
};
use serde_json::{Value, json};

use harvester_api::{VirtualMachine, VirtualMachineInstance};
use program::TaskGroup;
use sim_harvester::host_objects;
use test_cluster::{TestCluster, User};

use crate::{
    servers::{start, until},
    webhooks,
};

pub(crate) const HOST: &str = "{apiVersion: v1, kind: Node, metadata: {name: host-1}}";

pub(crate) fn vm(name: &str) -> String {
    json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"name": name, "namespace": "default"},
        "spec": {"runStrategy": "Always", "template": {"spec": {
            "domain": {"devices": {"disks": []}}, "volumes": []}}}})
    .to_string()
}

pub(crate) fn claim(name: &str, class: &str, mode: &str) -> String {
    json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name, "namespace": "default"},
        "spec": {"accessModes": ["ReadWriteMany"], "volumeMode": mode, "storageClassName": class,
            "resources": {"requests": {"storage": "1Gi"}}}})
    .to_string()
}

/// A template's spec with these volumes plugged in.
fn plugged(names: &[&str]) -> Value {
    let volumes: Vec<_> = names
        .iter()
        .map(|name| json!({"name": name, "persistentVolumeClaim": {"claimName": name, "hotpluggable": true}}))
        .collect();
    let disks: Vec<_> = names.iter().map(|name| json!({"name": name, "disk": {"bus": "scsi"}})).collect();
    json!({"spec": {"template": {"spec": {"volumes": volumes, "domain": {"devices": {"disks": disks}}}}}})
}

pub(crate) async fn plug(client: &Client, vm: &str, names: &[&str]) -> kube::Result<VirtualMachine> {
    let vms: Api<VirtualMachine> = Api::namespaced(client.clone(), "default");
    vms.patch(vm, &PatchParams::default(), &Patch::Merge(plugged(names))).await
}

fn phases(instance: &VirtualMachineInstance) -> BTreeMap<String, String> {
    let statuses =
        instance.status.as_ref().and_then(|status| status.rest.get("volumeStatus")?.as_array().cloned());
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    statuses
        .unwrap_or_default()
        .iter()
        .map(|status| (text(&status["name"]), text(&status["phase"])))
        .collect()
}

pub(crate) fn phase<'a>(of: &'a str, phase: &'a str) -> impl Fn(&VirtualMachineInstance) -> bool + 'a {
    move |instance| phases(instance).get(of).map_or(phase.is_empty(), |known| known == phase)
}

pub(crate) fn bound(claim: &PersistentVolumeClaim) -> bool {
    claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound")
}

/// A Harvester of this release with its webhooks, and the VM `guest-1` that runs.
async fn harvester(cluster: &TestCluster, tasks: &TaskGroup, version: &str) -> Client {
    let harvester = cluster.harvester.client(User::Driver);
    sim_harvester::crds::apply(&harvester).await.unwrap();
    host_objects::apply(&harvester, version).await.unwrap();
    webhooks::serve(cluster, &harvester, tasks).await;
    start(cluster, tasks);
    cluster.harvester.apply(HOST).await;
    cluster.harvester.apply(&vm("guest-1")).await;
    until::<VirtualMachine>(&harvester, "guest-1", |vm| {
        vm.status.as_ref().is_some_and(|status| status.ready)
    })
    .await;
    harvester
}

async fn bound_claim(cluster: &TestCluster, harvester: &Client, name: &str, mode: &str) {
    cluster.harvester.apply(&claim(name, host_objects::STORAGE_CLASS, mode)).await;
    let claim = until::<PersistentVolumeClaim>(harvester, name, bound).await;
    let driver = &claim.annotations()["volume.kubernetes.io/storage-provisioner"];
    assert_eq!(driver, "driver.longhorn.io");
}

/// Asks for a change of the volumes of `guest-1` by a subresource.
async fn ask(harvester: &Client, path: &str, body: &Value) -> (StatusCode, String) {
    let request = http::Request::put(format!("/apis/subresources.kubevirt.io/v1/namespaces/default/{path}"))
        .header("content-type", "application/json")
        .body(kube::client::Body::from(body.to_string().into_bytes()))
        .unwrap();
    let answer = harvester.send(request).await.unwrap();
    let code = answer.status();
    let body = answer.into_body().collect_bytes().await.unwrap();
    (code, String::from_utf8(body.to_vec()).unwrap())
}

fn add(name: &str) -> Value {
    json!({"name": name, "disk": {"disk": {"bus": "scsi"}}, "volumeSource": {"persistentVolumeClaim": {"claimName": name}}})
}

fn code(refused: kube::Result<impl std::fmt::Debug>) -> (u16, String) {
    match refused {
        Err(kube::Error::Api(status)) => (status.code, status.message.clone()),
        other => panic!("a refusal, not {other:?}"),
    }
}

test_cluster::component_tests! {
    /// docs/contract/csi-driver.md#hot-plug
    async fn watchers_see_every_phase_of_a_volume_that_comes_and_goes(cluster: TestCluster) {
        let tasks = TaskGroup::new();
        let harvester = harvester(&cluster, &tasks, "v1.8.0").await;
        bound_claim(&cluster, &harvester, "a", "Block").await;
        let instances: Api<VirtualMachineInstance> = Api::namespaced(harvester.clone(), "default");
        let now = instances.get("guest-1").await.unwrap().resource_version().unwrap();
        let mut changes = instances.watch(&WatchParams::default(), &now).await.unwrap().boxed();
        plug(&harvester, "guest-1", &["a"]).await.unwrap();
        let ready = until(&harvester, "guest-1", phase("a", "Ready")).await;
        let status = &ready.status.unwrap().rest["volumeStatus"][0];
        assert_eq!(status["target"], "sda");
        assert!(!status["hotplugVolume"]["attachPodUID"].as_str().unwrap().is_empty(), "{status}");
        assert_eq!(ready.spec.rest["domain"]["devices"]["disks"][0]["name"], "a");
        plug(&harvester, "guest-1", &[]).await.unwrap();
        let mut seen = vec![];
        while seen.last().is_none_or(|last| last != "gone") {
            let Some(Ok(WatchEvent::Modified(instance))) = changes.next().await else { panic!("after {seen:?}") };
            let phases = phases(&instance);
            let word = phases.get("a").cloned().unwrap_or_else(|| if seen.is_empty() { "asked" } else { "gone" }.to_owned());
            if seen.last() != Some(&word) && !(word == "gone" && seen == ["asked"]) {
                seen.push(word);
            }
        }
        let way = ["asked", "Bound", "AttachedToNode", "MountedToPod", "Ready", "UnMountedFromPod", "Detaching", "gone"];
        assert_eq!(seen, way);
        cluster.settle().await;
        tasks.end().await;
    }

    async fn a_volume_waits_for_its_claim_and_one_that_is_stuck_for_virt_handler(cluster: TestCluster) {
        let tasks = TaskGroup::new();
        let harvester = harvester(&cluster, &tasks, "v1.8.0").await;
        cluster.harvester.apply(&claim("late", "gold", "Block")).await;
        bound_claim(&cluster, &harvester, "a", "Block").await;
        plug(&harvester, "guest-1", &["a"]).await.unwrap();
        until(&harvester, "guest-1", phase("a", "Ready")).await;
        plug(&harvester, "guest-1", &["late", "a"]).await.unwrap();
        until(&harvester, "guest-1", phase("late", "AttachedToNode")).await;
        cluster.harvester.apply("{apiVersion: storage.k8s.io/v1, kind: StorageClass, metadata: {name: gold},
            provisioner: lvm.example.com}").await;
        until(&harvester, "guest-1", phase("late", "Ready")).await;
        let annotate = |value: &str| json!({"metadata": {"annotations": {"sim.harvesterhci.io/hotplug": value}}});
        cluster.harvester.patch::<VirtualMachine>("default/guest-1", annotate("stuck")).await;
        bound_claim(&cluster, &harvester, "b", "Block").await;
        plug(&harvester, "guest-1", &["late", "b"]).await.unwrap();
        until(&harvester, "guest-1", phase("b", "AttachedToNode")).await;
        cluster.settle().await;
        let stuck = until::<VirtualMachineInstance>(&harvester, "guest-1", |_| true).await;
        assert_eq!((&*phases(&stuck)["a"], &*phases(&stuck)["b"]), ("Ready", "AttachedToNode"));
        cluster.harvester.patch::<VirtualMachine>("default/guest-1", annotate("ok")).await;
        until(&harvester, "guest-1", phase("b", "Ready")).await;
        until(&harvester, "guest-1", phase("a", "")).await;
        tasks.end().await;
    }

    async fn a_vm_that_is_stopped_keeps_its_template_and_has_the_volume_at_its_next_start(cluster: TestCluster) {
        let tasks = TaskGroup::new();
        let harvester = harvester(&cluster, &tasks, "v1.8.0").await;
        bound_claim(&cluster, &harvester, "a", "Block").await;
        let strategy = |strategy: &str| json!({"spec": {"runStrategy": strategy}});
        cluster.harvester.patch::<VirtualMachine>("default/guest-1", strategy("Halted")).await;
        until::<VirtualMachine>(&harvester, "guest-1", |vm| vm.status.as_ref().unwrap().printable_status == "Stopped").await;
        plug(&harvester, "guest-1", &["a"]).await.unwrap();
        cluster.settle().await;
        assert!(cluster.harvester.get::<VirtualMachineInstance>("default/guest-1").await.is_none());
        cluster.harvester.patch::<VirtualMachine>("default/guest-1", strategy("Always")).await;
        until(&harvester, "guest-1", phase("a", "Ready")).await;
        tasks.end().await;
    }

    /// docs/contract/csi-driver.md#hot-plug-refused
    async fn what_kubevirt_and_harvester_refuse(cluster: TestCluster) {
        let tasks = TaskGroup::new();
        let harvester = harvester(&cluster, &tasks, "v1.8.0").await;
        for name in ["a", "files"] {
            bound_claim(&cluster, &harvester, name, if name == "a" { "Block" } else { "Filesystem" }).await;
        }
        let vms: Api<VirtualMachine> = Api::namespaced(harvester.clone(), "default");
        let merge = async |patch: Value| vms.patch("guest-1", &PatchParams::default(), &Patch::Merge(patch)).await;
        let mut lone = plugged(&["a"]);
        lone["spec"]["template"]["spec"]["domain"] = json!({"devices": {"disks": []}});
        let (refused, why) = code(merge(lone).await);
        assert!(refused == 422 && why.contains("volumes[0].name 'a' not found"), "{why}");
        assert_eq!(code(merge(plugged(&["a", "a"])).await).0, 422);
        let many: Vec<_> = (0..257).map(|number| format!("disk-{number}")).collect();
        let many: Vec<_> = many.iter().map(String::as_str).collect();
        assert_eq!(code(merge(plugged(&many)).await).0, 422);

        plug(&harvester, "guest-1", &["a", "files"]).await.unwrap();
        until(&harvester, "guest-1", phase("files", "Ready")).await;
        cluster.harvester.apply(&vm("guest-2")).await;
        let (refused, why) = code(plug(&harvester, "guest-2", &["a"]).await);
        assert!(refused == 422 && why.contains("the volume a is already used by VM default/guest-1"), "{why}");

        let claims: Api<PersistentVolumeClaim> = Api::namespaced(harvester.clone(), "default");
        assert_eq!(code(claims.delete("a", &DeleteParams::default()).await).0, 409);
        let grow = async |name: &str| {
            let patch = json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}});
            claims.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await
        };
        let (refused, why) = code(grow("files").await);
        assert!(refused == 422 && why.contains("PVC_EXPAND"), "{why}");
        grow("a").await.unwrap();
        let capacity = |claim: &PersistentVolumeClaim| {
            Some(claim.status.as_ref()?.capacity.as_ref()?.get("storage")?.0.clone())
        };
        until::<PersistentVolumeClaim>(&harvester, "a", |claim| capacity(claim).as_deref() == Some("2Gi")).await;

        plug(&harvester, "guest-1", &["files"]).await.unwrap();
        until(&harvester, "guest-1", phase("a", "")).await;
        claims.delete("a", &DeleteParams::default()).await.unwrap();
        cluster.settle().await;
        assert!(claims.get_opt("a").await.unwrap().is_none());
        tasks.end().await;
    }

    async fn a_claim_grows_only_when_it_is_bound_and_its_class_says_so(cluster: TestCluster) {
        let tasks = TaskGroup::new();
        let harvester = harvester(&cluster, &tasks, "v1.8.0").await;
        cluster.harvester.apply("{apiVersion: storage.k8s.io/v1, kind: StorageClass, metadata: {name: fixed},
            provisioner: lvm.example.com}").await;
        cluster.harvester.apply(&claim("unbound", "gold", "Block")).await;
        cluster.harvester.apply(&claim("fixed", "fixed", "Block")).await;
        until::<PersistentVolumeClaim>(&harvester, "fixed", bound).await;
        bound_claim(&cluster, &harvester, "a", "Block").await;
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(harvester.clone(), "default");
        let resize = async |name: &str, size: &str| {
            let patch = json!({"spec": {"resources": {"requests": {"storage": size}}}});
            code(claims.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await)
        };
        for (name, size, expected, part) in [
            ("unbound", "2Gi", 422, "spec is immutable after creation"),
            ("fixed", "2Gi", 403, "must support resize"),
            ("a", "512Mi", 422, "field can not be less than status.capacity"),
        ] {
            let (refused, why) = resize(name, size).await;
            assert!(refused == expected && why.contains(part), "{name}: {refused} {why}");
        }
        tasks.end().await;
    }

    /// Of two VMs with one volume neither can be changed, but for the change that gives it up.
    async fn a_volume_in_two_vms_blocks_both_until_one_gives_it_up(cluster: TestCluster) {
        let tasks = TaskGroup::new();
        let harvester = harvester(&cluster, &tasks, "v1.8.0").await;
        cluster.harvester.apply(&vm("guest-2")).await;
        // nobody knows yet that the claim will be Longhorn's
        plug(&harvester, "guest-1", &["a"]).await.unwrap();
        plug(&harvester, "guest-2", &["a"]).await.unwrap();
        bound_claim(&cluster, &harvester, "a", "Block").await;
        let vms: Api<VirtualMachine> = Api::namespaced(harvester.clone(), "default");
        let label = Patch::Merge(json!({"metadata": {"labels": {"a": "b"}}}));
        for vm in ["guest-1", "guest-2"] {
            assert_eq!(code(vms.patch(vm, &PatchParams::default(), &label).await).0, 422);
        }
        plug(&harvester, "guest-2", &[]).await.unwrap();
        vms.patch("guest-1", &PatchParams::default(), &label).await.unwrap();
        tasks.end().await;
    }

    #[simulated_only("a real server gets KubeVirt's subresources from the sandbox alone")]
    async fn from_1_8_on_a_request_changes_the_template_and_none_is_taken_for_the_instance(cluster: TestCluster) {
        let tasks = TaskGroup::new();
        let harvester = harvester(&cluster, &tasks, "v1.8.0").await;
        let router = sim_harvester::subresources::router(harvester.clone());
        cluster.harvester.simulated().unwrap().aggregate("subresources.kubevirt.io", router);
        bound_claim(&cluster, &harvester, "a", "Block").await;
        let (code, why) = ask(&harvester, "virtualmachineinstances/guest-1/addvolume", &add("a")).await;
        assert_eq!(code, StatusCode::BAD_REQUEST, "{why}");
        let dry = json!({"dryRun": ["All"]});
        let mut dry_run = add("a");
        json_merge(&mut dry_run, &dry);
        assert_eq!(ask(&harvester, "virtualmachines/guest-1/addvolume", &dry_run).await.0, StatusCode::ACCEPTED);
        assert_eq!(ask(&harvester, "virtualmachines/guest-1/addvolume", &add("a")).await, (StatusCode::ACCEPTED, String::new()));
        assert_eq!(ask(&harvester, "virtualmachines/guest-1/addvolume", &add("a")).await.0, StatusCode::CONFLICT);
        let vm = cluster.harvester.get::<VirtualMachine>("default/guest-1").await.unwrap();
        assert_eq!(vm.spec.rest["template"]["spec"]["volumes"].as_array().unwrap().len(), 1);
        until(&harvester, "guest-1", phase("a", "Ready")).await;
        cluster.harvester.apply(&self::vm("guest-2")).await;
        let (code, why) = ask(&harvester, "virtualmachines/guest-2/addvolume", &add("a")).await;
        assert_eq!(code, StatusCode::UNPROCESSABLE_ENTITY, "{why}");
        let remove = json!({"name": "a"});
        assert_eq!(ask(&harvester, "virtualmachines/guest-1/removevolume", &remove).await.0, StatusCode::ACCEPTED);
        until(&harvester, "guest-1", phase("a", "")).await;
        assert_eq!(ask(&harvester, "virtualmachines/guest-1/removevolume", &remove).await.0, StatusCode::CONFLICT);
        assert_eq!(ask(&harvester, "virtualmachines/guest-9/removevolume", &remove).await.0, StatusCode::NOT_FOUND);
        assert_eq!(ask(&harvester, "virtualmachines/guest-1/addvolume", &json!({})).await.0, StatusCode::BAD_REQUEST);
        tasks.end().await;
    }

    #[simulated_only("a real server gets KubeVirt's subresources from the sandbox alone")]
    async fn up_to_1_7_a_vm_that_runs_obeys_requests_alone(cluster: TestCluster) {
        let tasks = TaskGroup::new();
        let harvester = harvester(&cluster, &tasks, "v1.7.1").await;
        let router = sim_harvester::subresources::router(harvester.clone());
        cluster.harvester.simulated().unwrap().aggregate("subresources.kubevirt.io", router);
        for name in ["a", "b"] {
            bound_claim(&cluster, &harvester, name, "Block").await;
        }
        plug(&harvester, "guest-1", &["b"]).await.unwrap();
        cluster.settle().await;
        let instance = cluster.harvester.get::<VirtualMachineInstance>("default/guest-1").await.unwrap();
        assert_eq!(phases(&instance), BTreeMap::new(), "it waits for the next start");
        assert_eq!(ask(&harvester, "virtualmachines/guest-1/addvolume", &add("a")).await.0, StatusCode::ACCEPTED);
        until(&harvester, "guest-1", phase("a", "Ready")).await;
        until::<VirtualMachine>(&harvester, "guest-1", |vm| {
            let volumes = vm.spec.rest["template"]["spec"]["volumes"].as_array().map_or(0, Vec::len);
            volumes == 2 && !vm.status.as_ref().unwrap().rest.contains_key("volumeRequests")
        }).await;
        // as the Go driver detaches: from the instance, and then from the VM
        let remove = json!({"name": "a"});
        assert_eq!(ask(&harvester, "virtualmachineinstances/guest-1/removevolume", &remove).await.0, StatusCode::ACCEPTED);
        until(&harvester, "guest-1", phase("a", "")).await;
        assert_eq!(ask(&harvester, "virtualmachineinstances/guest-1/removevolume", &remove).await.0, StatusCode::CONFLICT);
        assert_eq!(ask(&harvester, "virtualmachines/guest-1/removevolume", &remove).await.0, StatusCode::ACCEPTED);
        cluster.settle().await;
        let vm = cluster.harvester.get::<VirtualMachine>("default/guest-1").await.unwrap();
        assert_eq!(vm.spec.rest["template"]["spec"]["volumes"].as_array().unwrap().len(), 1);
        // an upgrade: from then on it follows its template
        cluster.harvester.apply("{apiVersion: harvesterhci.io/v1beta1, kind: Setting, metadata: {name: server-version}, value: v1.8.0}").await;
        until(&harvester, "guest-1", phase("b", "Ready")).await;
        tasks.end().await;
    }
}

fn json_merge(object: &mut Value, more: &Value) {
    for (key, value) in more.as_object().unwrap() {
        object[key] = value.clone();
    }
}
