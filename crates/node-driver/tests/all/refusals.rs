//! Refusals: `PreCreateCheck` reports them before anything is created, and `Create` ends with them after it has deleted
//! what it created.

use cloud_config::expiry::Expiry;
use rstest::rstest;
use serde_json::{Value, json};
use sim_apiserver::faults::{Answer, Rule};

use crate::support::{
    Harvester, MACHINE, NAMESPACE, claims, instance_path, long_user_data, refused, vm_path,
};

/// What `PreCreateCheck` says; and then nothing must have been made, here or there.
async fn pre_flight(harvester: &Harvester, changes: &[(&str, Value)]) -> Result<Vec<String>, String> {
    let store = tempfile::tempdir().unwrap();
    let driver = harvester.driver(store.path()).configured(changes);
    let outcome = driver.pre_create_check().await.map_err(|error| error.to_string());
    assert!(std::fs::read_dir(store.path()).unwrap().next().is_none());
    if let Err(text) = &outcome {
        assert!(
            text.lines().count() == 1 && !text.contains('"'),
            "rancher-machine shows it in quotes: {text}"
        );
    }
    outcome.map(|()| driver.output())
}

#[tokio::test(start_paused = true)]
async fn everything_that_is_missing_is_named_at_once() {
    let harvester = Harvester::start().await;
    let changes = [
        (
            "harvester-disk-info",
            json!(
                r#"{"disks":[{"imageName":"default/no-image","size":40},{"storageClassName":"no-class","size":1}]}"#
            ),
        ),
        ("harvester-network-info", json!(r#"{"interfaces":[{"networkName":"default/no-network"}]}"#)),
        ("harvester-key-pair-name", json!("no-pair")),
    ];
    let text = pre_flight(&harvester, &changes).await.unwrap_err();
    for part in ["no-image", "no-class", "no-network", "no-pair"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(harvester.vm().await.is_null());
}

#[tokio::test(start_paused = true)]
async fn a_namespace_that_is_not_there_is_named() {
    let harvester = Harvester::start().await;
    let text = pre_flight(&harvester, &[("harvester-vm-namespace", json!("nowhere"))]).await.unwrap_err();
    assert!(text.contains("namespace nowhere does not exist in Harvester"), "{text}");
    harvester.server.faults().add(refused("get", "namespaces", 403));
    assert_eq!(pre_flight(&harvester, &[]).await, Ok(vec![]), "what may not be asked is no fault");
}

// docs/contract/node-driver.md#B4: upstream takes any error for a free name
#[rstest]
#[case::vm_401("virtualmachines", 401, "renew the cloud credential")]
#[case::vm_403("virtualmachines", 403, "no right to that (403)")]
#[case::vm_500("virtualmachines", 500, "read VM shop/demo-pool1-x7k2m-9d4tq")]
#[case::setting_401("settings", 401, "renew the cloud credential")]
#[case::setting_404("settings", 404, "read Setting server-version")]
#[case::image_403("virtualmachineimages", 403, "read image default/leap")]
#[tokio::test(start_paused = true)]
async fn an_answer_that_is_no_answer_is_a_failure(
    #[case] resource: &str,
    #[case] code: u16,
    #[case] part: &str,
) {
    let harvester = Harvester::start().await;
    harvester.server.faults().add(refused("get", resource, code));
    let text = pre_flight(&harvester, &[]).await.unwrap_err();
    assert!(text.contains(part), "{text}");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_never_answers_is_named_after_half_a_minute() {
    let harvester = Harvester::start().await;
    let mut rule = Rule::new(Answer::Delay(std::time::Duration::from_secs(3600)));
    (rule.user, rule.resource) = (Some(crate::support::USER.into()), Some("settings".into()));
    harvester.server.faults().add(rule);
    let store = tempfile::tempdir().unwrap();
    let driver = harvester.impatient_driver(store.path()).configured(&[]);
    let text = driver.pre_create_check().await.unwrap_err().to_string();
    assert!(text.contains("read Setting server-version: Harvester does not answer"), "{text}");
    assert!(text.ends_with("no answer within 30 s"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn a_foreign_vm_of_that_name_is_named() {
    let harvester = Harvester::start().await;
    harvester
        .put(json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
        "metadata": {"name": MACHINE, "namespace": NAMESPACE}, "spec": {"runStrategy": "Halted"}}))
        .await;
    let text = pre_flight(&harvester, &[]).await.unwrap_err();
    assert!(
        text.contains(&format!("VM {NAMESPACE}/{MACHINE} exists and was not made by this machine")),
        "{text}"
    );
}

#[tokio::test(start_paused = true)]
async fn rights_that_are_missing_are_named_before_anything_is_made() {
    let harvester = Harvester::start().await;
    harvester.put(json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "reader"},
        "rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "list", "watch"]}]})).await;
    harvester.put(json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "reader"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "reader"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "u-reader"}]})).await;
    let store = tempfile::tempdir().unwrap();
    let driver = harvester.driver_as(store.path(), "u-reader", 1).configured(&[]);
    let text = driver.pre_create_check().await.unwrap_err().to_string();
    for part in [
        "may not create virtualmachines.kubevirt.io in namespace shop",
        "may not delete virtual",
        "may not create secrets",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_review_that_is_refused_denies_nothing() {
    let harvester = Harvester::start().await;
    harvester.server.faults().add(refused("create", "selfsubjectaccessreviews", 403));
    assert_eq!(pre_flight(&harvester, &[]).await, Ok(vec![]));
}

#[tokio::test(start_paused = true)]
async fn a_credential_that_ends_soon_is_warned_about_and_one_that_ended_is_refused() {
    let harvester = Harvester::start().await;
    for (end, expected) in
        [("2026-11-22T12:00:00Z", Ok("expires in 24 hours")), ("2026-11-20T12:00:00Z", Err("has expired"))]
    {
        let store = tempfile::tempdir().unwrap();
        let driver =
            harvester.driver_that_expires(store.path(), Expiry::At(end.parse().unwrap())).configured(&[]);
        let outcome = driver.pre_create_check().await;
        match expected {
            Ok(part) => {
                assert!(outcome.is_ok() && driver.output()[0].contains(part), "{:?}", driver.output());
            }
            Err(part) => assert!(outcome.unwrap_err().to_string().contains(part)),
        }
    }
}

/// The POST is refused for good: the text is the server's, and nothing is left.
#[rstest]
#[case::vm_403("virtualmachines", 403, "no right to that (403)")]
#[case::vm_404("virtualmachines", 404, "make VM")]
#[case::vm_422("virtualmachines", 422, "make VM")]
#[case::vm_500("virtualmachines", 500, "make VM")]
#[case::secret_403("secrets", 403, "make Secret")]
#[case::secret_422("secrets", 422, "make Secret")]
#[case::secret_500("secrets", 500, "make Secret")]
#[tokio::test(start_paused = true)]
async fn what_is_refused_is_taken_back(#[case] resource: &str, #[case] code: u16, #[case] part: &str) {
    let harvester = Harvester::start().await.with_machines().await;
    let store = tempfile::tempdir().unwrap();
    let driver = harvester.driver(store.path()).configured(&[("harvester-user-data", long_user_data())]);
    driver.pre_create_check().await.unwrap();
    harvester.server.faults().add(refused("create", resource, code));
    let text = driver.create().await.unwrap_err().to_string();
    assert!(text.contains(part), "{text}");
    assert!(harvester.vm().await.is_null() && harvester.secret().await.is_null(), "{text}");
}

/// A machine that does not come up, because of what `meanwhile` does; the answer is the error's text and how long it took.
async fn fails(
    harvester: &Harvester,
    changes: &[(&str, Value)],
    meanwhile: impl AsyncFnOnce(&Harvester),
) -> (String, u64) {
    let store = tempfile::tempdir().unwrap();
    let driver = harvester.driver(store.path()).configured(changes);
    let began = tokio::time::Instant::now();
    let making = driver.driver.clone();
    let making = tokio::spawn(async move { making.create().await });
    while harvester.vm().await.is_null() {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    meanwhile(harvester).await;
    let text = making.await.unwrap().unwrap_err().to_string();
    assert!(harvester.vm().await.is_null(), "taken back: {text}");
    (text, began.elapsed().as_secs())
}

#[tokio::test(start_paused = true)]
async fn a_quota_that_is_used_up_ends_the_wait_at_once() {
    let harvester = Harvester::start().await;
    let (text, seconds) = fails(&harvester, &[], async |harvester| {
        let quota = json!({"metadata": {"annotations": {"harvesterhci.io/insufficient-resource-quota": "limits.memory"}},
            "spec": {"runStrategy": "Halted"}});
        harvester.patch(&vm_path(), &quota).await;
    })
    .await;
    assert!(
        text.ends_with("a quota is used up: limits.memory; raise the quota or remove machines"),
        "{text}"
    );
    assert!(seconds < 10, "{seconds}");
}

#[tokio::test(start_paused = true)]
async fn a_vm_that_somebody_deletes_ends_the_wait_at_once() {
    let harvester = Harvester::start().await;
    let (text, seconds) = fails(&harvester, &[], async |harvester| {
        let vms: kube::Api<harvester_api::VirtualMachine> =
            kube::Api::namespaced(harvester.admin(), NAMESPACE);
        vms.delete(MACHINE, &Default::default()).await.unwrap();
    })
    .await;
    assert!(text.contains("was deleted in the meantime"), "{text}");
    assert!(seconds < 10, "{seconds}");
}

#[tokio::test(start_paused = true)]
async fn a_missing_agent_is_named_when_the_time_is_over_and_not_before() {
    let harvester = Harvester::start().await;
    let (text, seconds) =
        fails(&harvester, &[("harvester-create-timeout", json!("420"))], async |harvester| {
            harvester
                .put(json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
            "metadata": {"name": MACHINE, "namespace": NAMESPACE}, "spec": {"networks": [{"name": "nic-0"}]},
            "status": {"phase": "Running", "interfaces": [{"name": "nic-0"}]}}))
                .await;
            assert!(!harvester.get(&instance_path()).await.is_null());
        })
        .await;
    assert!(text.contains("is not up after 420 s of waiting for its address: guest agent missing"), "{text}");
    assert!(
        text.ends_with(
            "{packages: [qemu-guest-agent], runcmd: [[systemctl, enable, --now, qemu-guest-agent.service]]}"
        ),
        "{text}"
    );
    assert!((420..430).contains(&seconds), "{seconds}");
}

#[tokio::test(start_paused = true)]
async fn the_scheduler_is_quoted() {
    let harvester = Harvester::start().await;
    let (text, _) = fails(&harvester, &[("harvester-create-timeout", json!("60"))], async |harvester| {
        let pod = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "virt-launcher-x", "namespace": NAMESPACE, "labels": {"harvesterhci.io/vmName": MACHINE}},
            "spec": {"containers": [{"name": "compute", "image": "x"}]}});
        harvester.put(pod).await;
        let status = json!({"status": {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
            "message": "0/2 nodes are available: 2 Insufficient memory."}]}});
        harvester.patch(&format!("/api/v1/namespaces/{NAMESPACE}/pods/virt-launcher-x/status"), &status).await;
    })
    .await;
    assert!(
        text.ends_with("no host can take the VM: 0/2 nodes are available: 2 Insufficient memory."),
        "{text}"
    );
}

/// Whatever upstream does not ask for may be refused.
#[rstest]
#[case::everything_may_be_watched(&[])]
#[case::no_watches(&["virtualmachines", "virtualmachineinstances", "pods", "persistentvolumeclaims", "resourcequotas", "events"])]
#[tokio::test(start_paused = true)]
async fn without_watches_and_causes_the_machine_comes_up_all_the_same(#[case] unwatched: &[&str]) {
    let harvester = Harvester::start().await.with_machines().await;
    for resource in unwatched {
        harvester.server.faults().add(refused("watch", resource, 403));
        harvester.server.faults().add(refused("list", resource, 403));
    }
    let store = tempfile::tempdir().unwrap();
    let driver = harvester.driver(store.path()).configured(&[]);
    driver.create().await.unwrap();
    driver.remove().await.unwrap();
    assert!(harvester.vm().await.is_null());
}

#[tokio::test(start_paused = true)]
async fn refused_causes_are_left_out() {
    let harvester = Harvester::start().await;
    for resource in ["pods", "persistentvolumeclaims", "resourcequotas", "events"] {
        for verb in ["watch", "list", "get"] {
            harvester.server.faults().add(refused(verb, resource, 403));
        }
    }
    let (text, _) = fails(&harvester, &[("harvester-create-timeout", json!("60"))], async |_| {}).await;
    assert!(
        text.contains(
            "is not up after 60 s of waiting for it to run: VM shop/demo-pool1-x7k2m-9d4tq does not get on"
        ),
        "{text}"
    );
}

/// The same from Harvester's own quota, by the simulation of it.
#[tokio::test(start_paused = true)]
async fn a_quota_of_the_namespace_is_named_by_harvesters_own_words() {
    let harvester = Harvester::start().await.with_machines().await;
    harvester
        .put(json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "default", "namespace": NAMESPACE},
            "spec": {"hard": {"limits.memory": "1Gi"}}}))
        .await;
    let store = tempfile::tempdir().unwrap();
    let driver = harvester.driver(store.path()).configured(&[]);
    let began = tokio::time::Instant::now();
    let text = driver.create().await.unwrap_err().to_string();
    assert!(text.contains("quota") && text.contains("limits.memory"), "{text}");
    assert!(began.elapsed().as_secs() < 60, "{:?}", began.elapsed());
    assert!(harvester.vm().await.is_null());
}

#[tokio::test(start_paused = true)]
async fn what_a_user_should_know_is_said_while_waiting_and_once() {
    let harvester = Harvester::start().await;
    let store = tempfile::tempdir().unwrap();
    let driver = harvester.driver(store.path()).configured(&[("harvester-create-timeout", json!("300"))]);
    let making = driver.driver.clone();
    let making = tokio::spawn(async move { making.create().await });
    while harvester.vm().await.is_null() {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    for phase in ["Scheduling", "Running"] {
        tokio::time::sleep(std::time::Duration::from_secs(30)).await;
        assert!(
            driver.output().is_empty(),
            "every machine looks like that for a while: {:?}",
            driver.output()
        );
        let status = json!({"status": {"printableStatus": phase}});
        harvester.patch(&format!("{}/status", vm_path()), &status).await;
    }
    let status = json!({"status": {"printableStatus": "ErrorUnschedulable"}});
    for _ in 0..3 {
        harvester.patch(&format!("{}/status", vm_path()), &status).await;
        tokio::time::sleep(std::time::Duration::from_secs(30)).await;
    }
    assert_eq!(driver.output(), [format!("waiting for VM {NAMESPACE}/{MACHINE}: no host can take the VM")]);
    making.await.unwrap().unwrap_err();
}

/// A machine that will not be up in time. As the sandbox offers it to try: its agent is silent from the start.
fn silent_agent() -> [(&'static str, Value); 2] {
    [
        ("harvester-vm-labels", json!(r#"{"sim.harvesterhci.io/agent":"silent"}"#)),
        ("harvester-create-timeout", json!("30")),
    ]
}

#[tokio::test(start_paused = true)]
async fn a_silent_agent_is_named_when_the_time_is_over() {
    let harvester = Harvester::start().await.with_machines().await;
    let store = tempfile::tempdir().unwrap();
    let driver = harvester.driver(store.path()).configured(&silent_agent());
    let text = driver.create().await.unwrap_err().to_string();
    assert!(text.contains("is not up after 30 s of waiting for its address: guest agent missing"), "{text}");
    assert!(harvester.vm().await.is_null());
}

/// Rancher's form offers devices that are on no host: one line beforehand instead of a machine that cannot start.
#[tokio::test(start_paused = true)]
async fn devices_that_no_host_has_are_named_beforehand() {
    let harvester = Harvester::start().await.with_machines().await;
    let changes = [(
        "harvester-host-device-info",
        json!(r#"{"hostDevices":[{"name":"hostdevice-1","deviceName":"example.com/nic"}]}"#),
    )];
    let text = pre_flight(&harvester, &changes).await.unwrap_err();
    assert_eq!(
        text,
        "no host of Harvester offers 1 x example.com/nic: enable the devices on a host, or ask for others"
    );
    harvester.server.faults().add(refused("list", "nodes", 403));
    assert_eq!(pre_flight(&harvester, &changes).await, Ok(vec![]), "what may not be asked is no fault");
}

/// What is taken back is the VM with its volumes, as in a removal.
#[rstest]
#[case::everything_may_be_written(&[])]
#[case::no_patch(&["patch"])]
#[case::no_write_at_all(&["patch", "update"])]
#[tokio::test(start_paused = true)]
async fn volumes_are_taken_back_too(#[case] verbs: &[&str]) {
    let harvester = Harvester::start().await.with_machines().await;
    for verb in verbs {
        harvester.server.faults().add(refused(verb, "virtualmachines", 403));
    }
    let store = tempfile::tempdir().unwrap();
    let driver = harvester.driver(store.path()).configured(&silent_agent());
    let text = driver.create().await.unwrap_err().to_string();
    assert!(
        text.starts_with(&format!("VM {NAMESPACE}/{MACHINE} is not up after 30 s")),
        "nothing is left: {text}"
    );
    assert!(harvester.vm().await.is_null());
    let claims = harvester.get(&format!("/api/v1/namespaces/{NAMESPACE}/persistentvolumeclaims")).await;
    let stays = |claim: &&Value| claim["metadata"]["deletionTimestamp"].is_null();
    assert_eq!(claims["items"].as_array().unwrap().iter().find(stays), None);
}

/// The stored UID of the VM is what allows the removal to delete volumes that have only their names.
#[tokio::test(start_paused = true)]
async fn volumes_that_could_not_be_taken_back_go_with_the_machine() {
    let harvester = Harvester::start().await.with_machines().await;
    for (verb, resource) in
        [("patch", "virtualmachines"), ("update", "virtualmachines"), ("delete", "persistentvolumeclaims")]
    {
        harvester.server.faults().add(refused(verb, resource, 422));
    }
    let store = tempfile::tempdir().unwrap();
    let driver = harvester.driver(store.path()).configured(&silent_agent());
    let text = driver.create().await.unwrap_err().to_string();
    assert!(text.starts_with("remove the machine to end what is left of it"), "{text}");
    assert!(!driver.config().vm_uid.is_empty() && harvester.vm().await.is_null());
    harvester.server.faults().clear();

    let next = harvester.driver(store.path());
    next.set_config_raw(&driver.config().to_json()).unwrap();
    next.remove().await.unwrap();
    let stays = |claim: &Value| claim["metadata"]["deletionTimestamp"].is_null();
    assert!(!claims(&harvester).await.iter().any(stays));
}

/// As behind a proxy that takes watches, or the nth of each, and says nothing, for ever.
fn no_watch_answers(harvester: &Harvester, nth: Option<u64>) {
    for resource in ["virtualmachines", "virtualmachineinstances"] {
        let mut rule = Rule::new(Answer::Delay(std::time::Duration::from_secs(86_400)));
        (rule.verb, rule.resource, rule.nth) = (Some("watch".into()), Some(resource.into()), nth);
        harvester.server.faults().add(rule);
    }
}

#[tokio::test(start_paused = true)]
async fn watches_that_never_answer_stop_nothing() {
    let harvester = Harvester::start().await.with_machines().await;
    no_watch_answers(&harvester, None);
    let store = tempfile::tempdir().unwrap();
    let driver = harvester.driver(store.path()).configured(&[]);
    driver.create().await.unwrap();
    driver.stop().await.unwrap();
    driver.start().await.unwrap();
    driver.remove().await.unwrap();
    assert!(harvester.vm().await.is_null());
}

/// An instance that came up, as KubeVirt writes it.
async fn put_instance(harvester: &Harvester) {
    harvester
        .put(json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
            "metadata": {"name": MACHINE, "namespace": NAMESPACE}, "spec": {"networks": [{"name": "nic-0"}]},
            "status": {"phase": "Running", "interfaces": [{"name": "nic-0", "ipAddress": "192.0.2.9"}]}}))
        .await;
}

#[rstest]
#[case::until_the_time_is_over(None, 600)]
#[case::for_as_long_as_a_watch_lasts(Some(1), 71)]
#[tokio::test(start_paused = true)]
async fn a_machine_that_no_watch_tells_of_is_up_all_the_same(
    #[case] dead_watch: Option<u64>,
    #[case] expected: u64,
) {
    let harvester = Harvester::start().await;
    no_watch_answers(&harvester, dead_watch);
    let store = tempfile::tempdir().unwrap();
    let driver =
        harvester.impatient_driver(store.path()).configured(&[("harvester-create-timeout", json!("600"))]);
    let making = driver.driver.clone();
    let began = tokio::time::Instant::now();
    let making = tokio::spawn(async move { making.create().await });
    tokio::time::sleep(std::time::Duration::from_secs(30)).await;
    put_instance(&harvester).await;
    making.await.unwrap().unwrap();
    assert_eq!(driver.config().ip_address, "192.0.2.9");
    assert!(!harvester.vm().await.is_null());
    let seconds = began.elapsed().as_secs();
    assert!((expected..expected + 5).contains(&seconds), "{seconds}");
}

/// An instance in this phase, with this address.
async fn set_instance(harvester: &Harvester, phase: &str, address: &str) {
    let status = json!({"phase": phase, "interfaces": [{"name": "nic-0", "ipAddress": address}]});
    if harvester.get(&instance_path()).await.is_null() {
        harvester
            .put(json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
                "metadata": {"name": MACHINE, "namespace": NAMESPACE}, "spec": {"networks": [{"name": "nic-0"}]}}))
            .await;
    }
    harvester.patch(&instance_path(), &json!({"status": status})).await;
}

/// Ten minutes for the copy of the image, and ten more for the guest and its agent.
#[tokio::test(start_paused = true)]
async fn a_slow_image_and_a_slow_agent_have_ten_minutes_each() {
    let harvester = Harvester::start().await;
    let store = tempfile::tempdir().unwrap();
    let driver = harvester.driver(store.path()).configured(&[]);
    let creating = driver.driver.clone();
    let creating = tokio::spawn(async move { creating.create().await });
    while harvester.vm().await.is_null() {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    set_instance(&harvester, "Scheduling", "").await;
    tokio::time::sleep(std::time::Duration::from_secs(590)).await;
    set_instance(&harvester, "Running", "").await;
    tokio::time::sleep(std::time::Duration::from_secs(590)).await;
    set_instance(&harvester, "Running", "192.0.2.9").await;
    creating.await.unwrap().unwrap();
    assert_eq!(driver.config().ip_address, "192.0.2.9");
}

#[rstest]
#[case::never_runs("Scheduling", "is not up after 600 s of waiting for it to run: ", 600)]
#[case::runs_without_address(
    "Running",
    "is not up after 600 s of waiting for its address: guest agent missing",
    690
)]
#[tokio::test(start_paused = true)]
async fn the_phase_in_which_the_time_was_over_stands_in_the_message(
    #[case] phase: &'static str,
    #[case] part: &str,
    #[case] expected: u64,
) {
    let harvester = Harvester::start().await;
    let (text, seconds) = fails(&harvester, &[], async |harvester| {
        set_instance(harvester, "Scheduling", "").await;
        tokio::time::sleep(std::time::Duration::from_secs(90)).await;
        set_instance(harvester, phase, "").await;
    })
    .await;
    assert!(text.contains(part), "{text}");
    assert!((expected..expected + 5).contains(&seconds), "{seconds}");
}
