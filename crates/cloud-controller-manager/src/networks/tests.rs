use super::*;

fn silent(vms: Option<GuestVms>, client: &Client) -> Networks {
    Networks {
        client: client.clone(),
        vms,
        nodes: Cache::of([]),
        capabilities: Capabilities::assumed([]),
        config_map: OnceLock::new(),
        is_mapping_known: AtomicBool::new(false),
        nics: Mutex::default(),
        subscribers: Subscribers::default(),
    }
}

#[tokio::test]
async fn nothing_is_said_of_an_interface_until_the_mapping_is_known() {
    let service = tower::service_fn(async |_: http::Request<kube::client::Body>| {
        Ok::<_, std::io::Error>(http::Response::new(kube::client::Body::empty()))
    });
    let networks = silent(None, &Client::new(service, "default"));
    assert_eq!(networks.interface("", false), Interface::NotAsked);
    assert_eq!(networks.interface("a/b", false), Interface::Unlisted);
    let told = Arc::new(AtomicBool::new(false));
    let into = told.clone();
    networks.on_change(move || into.store(true, Ordering::SeqCst));
    networks.tell_mapping_known();
    assert!(told.load(Ordering::SeqCst), "Services wait for it");
    assert_eq!(networks.interface("a/b", false), Interface::Unknown);
}
