use guest_vms::VmSettings;

use super::*;

fn silent(vms: Option<GuestVms>, client: &Client) -> Networks {
    Networks {
        client: client.clone(),
        vms,
        nodes: Cache::of([]),
        capabilities: Capabilities::assumed([]),
        config_map: OnceLock::new(),
        is_mapping_known: AtomicBool::new(false),
        is_one_look: false,
        nics: Mutex::default(),
        changes: AtomicU64::new(0),
        subscribers: Subscribers::default(),
    }
}

fn nobody() -> Client {
    let service = tower::service_fn(async |_: http::Request<kube::client::Body>| {
        Ok::<_, std::io::Error>(http::Response::new(kube::client::Body::empty()))
    });
    Client::new(service, "default")
}

/// `explain` with the rights of a reader who may not list VMs.
#[tokio::test]
async fn one_look_without_vms_takes_the_mapping_and_waits_for_nothing() {
    let vms = GuestVms::of(&nobody(), VmSettings::default(), Cache::empty(), Cache::empty());
    let node = json!({"metadata": {"name": "worker-1"}, "spec": {"providerID": "harvester://1"}});
    let nodes = [Arc::new(serde_json::from_value(node).unwrap())];
    let config_map = json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"namespace": NAMESPACE, "name": NETWORKS_CONFIG_MAP}, "data": {KEY: r#"{"a/b": "eth1"}"#}});
    let config_map = RawObject::from_json(config_map).unwrap();
    for (config_map, expected) in
        [(Some(config_map), Interface::Named("eth1".to_owned())), (None, Interface::Unknown)]
    {
        let networks = Networks::of(nobody(), Some(vms.clone()), &nodes, config_map);
        assert_eq!(networks.interface("a/b", false), expected);
    }
}

#[tokio::test]
async fn nothing_is_said_of_an_interface_until_the_mapping_is_known() {
    let networks = silent(None, &nobody());
    assert_eq!(networks.interface("", false), Interface::NotAsked);
    assert_eq!(networks.interface("a/b", false), Interface::NotYetKnown);
    let told = Arc::new(AtomicBool::new(false));
    let into = told.clone();
    networks.on_change(move || into.store(true, Ordering::SeqCst));
    networks.tell_mapping_known();
    assert!(told.load(Ordering::SeqCst), "Services wait for it");
    assert_eq!(networks.interface("a/b", false), Interface::Unknown);
}

#[tokio::test]
async fn a_look_during_which_a_vm_changes_is_not_kept() {
    let networks = silent(None, &nobody());
    let known = || networks.nics.lock().unwrap().is_some();
    networks.keep(&Arc::default(), 0);
    assert!(known());
    networks.forget();
    networks.keep(&Arc::default(), 0);
    assert!(!known(), "it began before the change");
    networks.keep(&Arc::default(), 1);
    assert!(known());
}
