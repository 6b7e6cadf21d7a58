//! Secondaries that move from the primary `shop/web` to the primary `shop/docs`, whose object Harvester may refuse to
//! change.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use harvester_api::LoadBalancer;
use http::{Method, Request};
use k8s_openapi::api::core::v1::Service;
use kube::{Api, Client, ResourceExt, api::ListParams, client::Body};
use serde_json::{Value, json};
use test_cluster::{TestCluster, User};

use super::{
    harness::{
        Ccm, announce, announced_service, create_service, harvester_says, ingress, join, service, until,
    },
    host_datapath::CHECKED,
    sharing::{
        ON_HOST, PRIMARY, allocated, ask, ask_again, at, given, is, object_of, says_about, shared, told_about,
    },
};

const WEB: &str = "127.9.0.1";
const DOCS: &str = "127.9.0.2";

/// The listeners of each object by its Service, and the addresses of the other Services, whenever they change.
#[derive(Default)]
struct History {
    now: String,
    before: Vec<String>,
}

/// Between the program and its clusters.
#[derive(Clone, Default)]
struct Between {
    /// The Service whose object nobody may change; empty: any.
    refused: Arc<Mutex<Option<&'static str>>>,
    /// Held from a write until its outcome is read: each outcome is seen, and in its order.
    history: Arc<tokio::sync::Mutex<History>>,
}

impl Between {
    /// The program, with a Service `shop/web` and a Service `shop/docs` on the host datapath.
    async fn start(cluster: &TestCluster) -> (Ccm, Self) {
        let between = Self::default();
        let ours = |cluster: &test_cluster::Cluster| cluster.client(User::CloudControllerManager);
        let guest = between.client(cluster, ours(&cluster.guest));
        let harvester = between.client(cluster, ours(&cluster.harvester));
        let ccm = Ccm::start_between(cluster, guest, harvester, |_| ()).await;
        join(cluster, "worker-1", "worker-1", "").await;
        create_service(cluster, CHECKED, "").await;
        harvester_says(cluster, given(WEB)).await;
        ask(cluster, "docs", 82, "''", ON_HOST).await;
        says_about(cluster, "docs", given(DOCS)).await;
        (ccm, between)
    }

    fn refuse(&self, service: Option<&'static str>) {
        *self.refused.lock().expect("no panic while it is set") = service;
    }

    /// What changed since the last call.
    async fn history(&self) -> Vec<String> {
        std::mem::take(&mut self.history.lock().await.before)
    }

    /// What stands now: it is no news later.
    async fn now(&self, cluster: &TestCluster) -> String {
        let mut history = self.history.lock().await;
        let (guest, harvester) = (cluster.guest.client(User::Driver), cluster.harvester.client(User::Driver));
        history.now = state(guest, harvester).await;
        history.now.clone()
    }

    fn client(&self, cluster: &TestCluster, ours: Client) -> Client {
        let nobody = cluster.harvester.client(User::Nobody);
        let (guest, harvester) = (cluster.guest.client(User::Driver), cluster.harvester.client(User::Driver));
        let (namespace, this) = (ours.default_namespace().to_owned(), self.clone());
        let service = tower::service_fn(move |request: Request<Body>| {
            let refused = this.refused.lock().expect("no panic while it is set");
            let is_put = request.method() == Method::PUT;
            let is_refused = refused.is_some_and(|service| {
                is_put && request.uri().path().contains(&format!("/loadbalancers/blue-shop-{service}"))
            });
            drop(refused);
            let is_write = request.method() != Method::GET;
            let client = if is_refused { nobody.clone() } else { ours.clone() };
            let (guest, harvester, history) = (guest.clone(), harvester.clone(), this.history.clone());
            async move {
                if !is_write {
                    return client.send(request).await.map_err(tower::BoxError::from);
                }
                let mut history = history.lock().await;
                let answer = client.send(request).await.map_err(tower::BoxError::from);
                let now = state(guest, harvester).await;
                if history.now != now {
                    history.now.clone_from(&now);
                    history.before.push(now);
                }
                answer
            }
        });
        Client::new(service, namespace)
    }
}

/// Such as `web: 80 81, docs: 82; api at 127.9.0.1`; without the Services that have objects.
async fn state(guest: Client, harvester: Client) -> String {
    let all = ListParams::default();
    let objects =
        Api::<LoadBalancer>::namespaced(harvester, "team-a").list(&all).await.expect("they are read");
    let services = Api::<Service>::namespaced(guest, "shop").list(&all).await.expect("they are read");
    let label = |object: &LoadBalancer| {
        object.labels().get("cloudprovider.harvesterhci.io/serviceName").cloned().unwrap_or_default()
    };
    let objects: BTreeMap<_, _> = objects.iter().map(|object| (label(object), object)).collect();
    let listeners = objects.iter().map(|(service, object)| {
        let mut ports: Vec<_> = object.spec.listeners.iter().map(|listener| listener.port).collect();
        ports.sort_unstable();
        format!("{service}: {ports:?}")
    });
    let secondaries = services.iter().filter(|service| !objects.contains_key(&service.name_any()));
    let addresses =
        secondaries.map(|service| format!("{} at {}", service.name_any(), ingress(service).concat()));
    [listeners.collect::<Vec<_>>().join(", "), addresses.collect::<Vec<_>>().join(", ")].join("; ")
}

async fn delete(cluster: &TestCluster, name: &str) {
    cluster.guest.delete::<Service>(&format!("shop/{name}")).await;
    cluster.settle().await;
}

async fn is_gone(cluster: &TestCluster, name: &str) -> bool {
    cluster.guest.get::<Service>(&format!("shop/{name}")).await.is_none()
        && object_of(cluster, name).await.is_none()
}

async fn is_at(cluster: &TestCluster, name: &str, address: &str) {
    let key = format!("shop/{name}");
    let what = format!("{name} is at {address}");
    until(cluster, &what, async || ingress(&at(cluster, &key).await) == [address]).await;
}

async fn set_port(cluster: &TestCluster, name: &str, port: u16) {
    let ports = json!({"spec": {"ports": [{"name": "http", "port": port}]}});
    cluster.guest.patch::<Service>(&format!("shop/{name}"), ports).await;
    cluster.settle().await;
}

/// `shop/api` and `shop/admin`, which had to leave for addresses of their own and have none, are at the address of
/// `shop/web`, which itself is at that of `shop/docs`.
async fn leave_and_be_left(cluster: &TestCluster) -> (Ccm, Between) {
    let (ccm, between) = Between::start(cluster).await;
    for (name, port) in [("api", 81), ("admin", 84)] {
        ask(cluster, name, port, "web", ON_HOST).await;
        between.refuse(Some("docs"));
        let key = format!("shop/{name}");
        ask_again(cluster, &key, json!("docs")).await;
        ask_again(cluster, &key, Value::Null).await;
        assert_eq!(shared(cluster, &key).await.1.as_deref(), Some(""));
        between.refuse(None);
    }
    ask_again(cluster, "shop/web", json!("docs")).await;
    is_at(cluster, "web", DOCS).await;
    assert_eq!(ingress(&at(cluster, "shop/api").await), [WEB]);
    (ccm, between)
}

test_cluster::component_tests! {
    /// The DHCP server gave its lease to another Service, whose address a third one uses. kube-vip takes nothing out of a
    /// status, and the object says what the status says.
    async fn a_primary_whose_lease_ended_waits_for_nobody_who_uses_the_address_by_its_next_holder(cluster: TestCluster) {
        let ccm = Ccm::start(&cluster).await;
        let leased = json!({"status": {"allocatedAddress": {"ip": "0.0.0.0"}}});
        create_service(&cluster, "{cloudprovider.harvesterhci.io/ipam: dhcp}", "").await;
        harvester_says(&cluster, leased.clone()).await;
        announce(&cluster, "127.9.0.7").await;
        ask(&cluster, "docs", 82, "''", "cloudprovider.harvesterhci.io/ipam: dhcp").await;
        says_about(&cluster, "docs", leased).await;
        let show = async |key: &str, ip: &str| {
            let status = json!({"status": {"loadBalancer": {"ingress": [{"ip": ip}]}}});
            cluster.guest.patch_status::<Service>(key, status).await;
            cluster.settle().await;
        };
        show("shop/docs", "127.9.0.7").await;
        ask(&cluster, "api", 81, "docs", "").await;
        assert_eq!(shared(&cluster, "shop/api").await, is("127.9.0.7", "shop.docs"));
        show("shop/api", "127.9.0.7").await;
        assert_eq!(object_of(&cluster, "web").await.unwrap().status.unwrap().address, "127.9.0.7");
        for key in ["shop/web", "shop/docs"] {
            cluster.guest.delete::<Service>(key).await;
            cluster.settle().await;
        }
        assert_eq!((service(&cluster).await, object_of(&cluster, "web").await), (None, None));
        assert!(object_of(&cluster, "docs").await.unwrap().metadata.deletion_timestamp.is_none(), "it is used");
        cluster.guest.delete::<Service>("shop/api").await;
        cluster.settle().await;
        assert_eq!(object_of(&cluster, "docs").await, None);
        ccm.stop().await;
    }

    /// No DHCP server gives an address of a pool: until `docs` has its lease, kube-vip may announce for it what it had before.
    async fn a_primary_waits_for_who_shows_its_address_before_a_lease_has_come(cluster: TestCluster) {
        let ccm = Ccm::start(&cluster).await;
        announced_service(&cluster, "{}").await;
        let show = async |key: &str, ip: &str| {
            let status = json!({"status": {"loadBalancer": {"ingress": [{"ip": ip}]}}});
            cluster.guest.patch_status::<Service>(key, status).await;
            cluster.settle().await;
        };
        ask(&cluster, "docs", 82, "web", "").await;
        show("shop/docs", WEB).await;
        let of_its_own = json!({PRIMARY: null, "cloudprovider.harvesterhci.io/ipam": "dhcp"});
        cluster.guest.patch::<Service>("shop/docs", json!({"metadata": {"annotations": of_its_own}})).await;
        cluster.settle().await;
        says_about(&cluster, "docs", json!({"status": {"allocatedAddress": {"ip": "0.0.0.0"}}})).await;
        ask(&cluster, "api", 81, "docs", "").await;
        assert_eq!(shared(&cluster, "shop/api").await, is(WEB, "shop.docs"));
        show("shop/api", WEB).await;
        cluster.guest.delete::<Service>("shop/web").await;
        cluster.settle().await;
        for key in ["shop/docs", "shop/api"] {
            let object = object_of(&cluster, "web").await.expect("its address may be announced");
            assert!(object.metadata.deletion_timestamp.is_none());
            show(key, "127.9.0.7").await;
        }
        assert_eq!((service(&cluster).await, object_of(&cluster, "web").await), (None, None));
        ccm.stop().await;
    }

    /// docs/contract/data-paths.md#row-10: its port is in an object at every time.
    async fn a_secondary_keeps_the_listener_of_its_primary_until_the_next_primary_carries_it(cluster: TestCluster) {
        let (ccm, between) = Between::start(&cluster).await;
        ask(&cluster, "api", 81, "web", ON_HOST).await;
        between.history().await;
        between.refuse(Some("docs"));
        ask_again(&cluster, "shop/api", json!("docs")).await;
        assert!(!told_about(&cluster, "docs", "SyncLoadBalancerFailed").await.is_empty());
        assert_eq!(between.history().await, [""; 0]);
        assert_eq!(between.now(&cluster).await, "docs: [82], web: [80, 81]; api at 127.9.0.1");
        // it follows its node port, and another Service does not get its port
        set_port(&cluster, "api", 83).await;
        ask(&cluster, "admin", 83, "web", ON_HOST).await;
        let told = told_about(&cluster, "admin", "PortConflict").await;
        assert!(told.len() == 1 && told[0].contains("service shop/api still has port 83/TCP"), "{told:?}");
        delete(&cluster, "admin").await;
        assert_eq!(between.now(&cluster).await, "docs: [82], web: [80, 83]; api at 127.9.0.1");
        between.history().await;
        between.refuse(None);
        until(&cluster, "the port is let go", async || between.now(&cluster).await.contains("web: [80];")).await;
        assert_eq!(between.history().await, [
            "docs: [82, 83], web: [80, 83]; api at 127.9.0.1",
            "docs: [82, 83], web: [80, 83]; api at 127.9.0.2",
            "docs: [82, 83], web: [80]; api at 127.9.0.2",
        ]);
        ccm.stop().await;
    }

    /// Whatever it asks for in the meantime.
    async fn a_secondary_that_moves_on_before_it_arrived_keeps_its_listener(cluster: TestCluster) {
        let (ccm, between) = Between::start(&cluster).await;
        ask(&cluster, "api", 81, "web", ON_HOST).await;
        between.refuse(Some("docs"));
        ask_again(&cluster, "shop/api", json!("docs")).await;
        for wish in [json!("nobody"), json!("api"), Value::Null] {
            ask_again(&cluster, "shop/api", wish.clone()).await;
            assert_eq!(ingress(&at(&cluster, "shop/api").await), [WEB], "{wish}");
            let listeners = object_of(&cluster, "web").await.unwrap().spec.listeners;
            assert_eq!(listeners.len(), 2, "{wish}");
            assert_eq!(shared(&cluster, "shop/api").await.1.as_deref(), Some(""), "{wish}: docs may go");
        }
        says_about(&cluster, "api", given("127.9.0.3")).await;
        assert_eq!(ingress(&at(&cluster, "shop/api").await), ["127.9.0.3"]);
        assert_eq!(object_of(&cluster, "web").await.unwrap().spec.listeners.len(), 1);
        ccm.stop().await;
    }

    async fn a_secondary_that_turns_back_loses_nothing(cluster: TestCluster) {
        let (ccm, between) = Between::start(&cluster).await;
        ask(&cluster, "api", 81, "web", ON_HOST).await;
        between.refuse(Some("docs"));
        ask_again(&cluster, "shop/api", json!("docs")).await;
        between.history().await;
        ask_again(&cluster, "shop/api", json!("web")).await;
        assert_eq!(shared(&cluster, "shop/api").await.1.as_deref(), Some("shop.web"));
        assert_eq!(between.history().await, [""; 0]);
        ccm.stop().await;
    }

    async fn a_primary_goes_when_those_that_leave_it_have_arrived_elsewhere(cluster: TestCluster) {
        let (ccm, between) = Between::start(&cluster).await;
        ask(&cluster, "api", 81, "web", ON_HOST).await;
        between.refuse(Some("docs"));
        ask_again(&cluster, "shop/api", json!("docs")).await;
        delete(&cluster, "web").await;
        assert_eq!(object_of(&cluster, "web").await.unwrap().spec.listeners.len(), 2);
        assert!(service(&cluster).await.is_some());
        between.refuse(None);
        is_at(&cluster, "api", DOCS).await;
        until(&cluster, "web is gone", async || is_gone(&cluster, "web").await).await;
        ccm.stop().await;
    }

    /// Nobody waits for it, neither the primary that it leaves nor the one that cannot carry it.
    async fn a_secondary_that_is_deleted_in_a_move_is_carried_by_nobody(cluster: TestCluster) {
        let (ccm, between) = Between::start(&cluster).await;
        ask(&cluster, "api", 81, "web", ON_HOST).await;
        between.refuse(Some("docs"));
        ask_again(&cluster, "shop/api", json!("docs")).await;
        delete(&cluster, "api").await;
        assert_eq!(cluster.guest.get::<Service>("shop/api").await, None);
        assert_eq!(object_of(&cluster, "web").await.unwrap().spec.listeners.len(), 1);
        between.refuse(None);
        delete(&cluster, "web").await;
        delete(&cluster, "docs").await;
        for name in ["web", "docs"] {
            assert!(is_gone(&cluster, name).await, "{name}");
        }
        ccm.stop().await;
    }

    async fn a_port_is_free_when_the_secondary_that_leaves_has_arrived_elsewhere(cluster: TestCluster) {
        let (ccm, between) = Between::start(&cluster).await;
        ask(&cluster, "api", 81, "web", ON_HOST).await;
        between.refuse(Some("docs"));
        ask_again(&cluster, "shop/api", json!("docs")).await;
        ask(&cluster, "admin", 81, "web", ON_HOST).await;
        assert_eq!(told_about(&cluster, "admin", "PortConflict").await.len(), 1);
        between.refuse(None);
        is_at(&cluster, "admin", WEB).await;
        is_at(&cluster, "api", DOCS).await;
        ccm.stop().await;
    }

    /// Its object follows those that leave it, and waits for no one that is deleted.
    async fn a_primary_that_becomes_a_secondary_lets_go_of_a_secondary_that_is_deleted(cluster: TestCluster) {
        let (ccm, between) = Between::start(&cluster).await;
        ask(&cluster, "api", 81, "web", ON_HOST).await;
        between.refuse(Some("docs"));
        ask_again(&cluster, "shop/web", json!("docs")).await;
        set_port(&cluster, "api", 83).await;
        assert_eq!(between.now(&cluster).await, "docs: [82], web: [80, 83]; api at 127.9.0.1");
        delete(&cluster, "api").await;
        assert_eq!(cluster.guest.get::<Service>("shop/api").await, None);
        assert_eq!(between.now(&cluster).await, "docs: [82], web: [80]; ");
        between.refuse(None);
        is_at(&cluster, "web", DOCS).await;
        assert_eq!(object_of(&cluster, "web").await, None);
        ccm.stop().await;
    }

    /// There nothing carries it: kube-proxy in the guest leads to the Service whose status shows the address.
    async fn a_port_on_the_guest_datapath_is_free_when_kube_vip_shows_the_next_address(cluster: TestCluster) {
        let ccm = Ccm::start(&cluster).await;
        announced_service(&cluster, "{}").await;
        ask(&cluster, "docs", 82, "''", "").await;
        says_about(&cluster, "docs", allocated(DOCS)).await;
        ask(&cluster, "api", 81, "web", "").await;
        let shows = async |ip: &str| {
            let status = json!({"status": {"loadBalancer": {"ingress": [{"ip": ip}]}}});
            cluster.guest.patch_status::<Service>("shop/api", status).await;
            cluster.settle().await;
        };
        shows(WEB).await;
        ask_again(&cluster, "shop/api", json!("docs")).await;
        assert_eq!(shared(&cluster, "shop/api").await, is(DOCS, "shop.docs"));
        ask(&cluster, "admin", 81, "web", "").await;
        let told = told_about(&cluster, "admin", "PortConflict").await;
        assert!(told.len() == 1 && told[0].contains("service shop/api still has port 81/TCP"), "{told:?}");
        shows(DOCS).await;
        assert_eq!(shared(&cluster, "shop/admin").await, is(WEB, "shop.web"));
        ccm.stop().await;
    }

    /// No order of writes changes two listeners in two objects at once: each keeps its place, and is told who has the other.
    async fn two_secondaries_that_want_each_others_port_keep_their_own_until_one_gives_in(cluster: TestCluster) {
        let (ccm, between) = Between::start(&cluster).await;
        ask(&cluster, "api", 81, "web", ON_HOST).await;
        ask(&cluster, "admin", 81, "docs", ON_HOST).await;
        between.history().await;
        ask_again(&cluster, "shop/api", json!("docs")).await;
        ask_again(&cluster, "shop/admin", json!("web")).await;
        for (name, other) in [("api", "admin"), ("admin", "api")] {
            let told = told_about(&cluster, name, "PortConflict").await.concat();
            assert!(told.contains(&format!("service shop/{other} has port 81/TCP")), "{told}");
        }
        assert_eq!(between.history().await, [""; 0]);
        set_port(&cluster, "admin", 84).await;
        is_at(&cluster, "admin", WEB).await;
        is_at(&cluster, "api", DOCS).await;
        ccm.stop().await;
    }

    /// Their labels name the primaries that they move to, which cannot have both.
    async fn a_port_that_two_secondaries_get_in_a_ring_of_moves_leaves_each_where_it_is(cluster: TestCluster) {
        let (ccm, between) = Between::start(&cluster).await;
        ask(&cluster, "api", 81, "web", ON_HOST).await;
        ask(&cluster, "admin", 84, "docs", ON_HOST).await;
        between.refuse(Some(""));
        ask_again(&cluster, "shop/api", json!("docs")).await;
        ask_again(&cluster, "shop/admin", json!("web")).await;
        set_port(&cluster, "admin", 81).await;
        between.refuse(None);
        until(&cluster, "the objects follow", async || {
            object_of(&cluster, "docs").await.unwrap().spec.listeners.iter().any(|it| it.port == 81)
        }).await;
        let expected = "docs: [81, 82], web: [80, 81]; admin at 127.9.0.2, api at 127.9.0.1";
        assert_eq!(between.now(&cluster).await, expected);
        delete(&cluster, "admin").await;
        is_at(&cluster, "api", DOCS).await;
        ccm.stop().await;
    }

    /// docs/contract/data-paths.md#row-12: its node port may be another's.
    async fn a_fault_of_a_primary_keeps_no_port_from_a_secondary_that_the_primary_has_no_more(cluster: TestCluster) {
        let (ccm, _between) = Between::start(&cluster).await;
        // a port keeps its node port by its name
        let ports = json!({"spec": {"ports": [{"name": "other", "port": 8080}]}});
        cluster.guest.patch::<Service>("shop/web", ports).await;
        cluster.settle().await;
        assert_eq!(told_about(&cluster, "web", "InvalidHealthCheck").await.len(), 1);
        until(&cluster, "it leads to no VM", async || {
            object_of(&cluster, "web").await.unwrap().spec.backend_server_selector.is_empty()
        }).await;
        ask(&cluster, "api", 80, "web", ON_HOST).await;
        is_at(&cluster, "api", WEB).await;
        let object = object_of(&cluster, "web").await.unwrap();
        let node_port = at(&cluster, "shop/api").await.spec.unwrap().ports.unwrap()[0].node_port.unwrap();
        assert_eq!((object.spec.listeners[0].backend_port, object.spec.backend_server_selector.len()), (node_port, 1));
        ccm.stop().await;
    }

    /// Its port there is another's by now, or the address itself is.
    async fn a_secondary_that_loses_its_place_while_it_moves_shows_the_address_no_more(cluster: TestCluster) {
        let (ccm, between) = Between::start(&cluster).await;
        for loss in ["own port", "port of another", "type", "address"] {
            ask(&cluster, "admin", 84, "web", ON_HOST).await;
            ask(&cluster, "api", 81, "web", ON_HOST).await;
            is_at(&cluster, "api", WEB).await;
            between.refuse(Some("docs"));
            ask_again(&cluster, "shop/api", json!("docs")).await;
            assert_eq!(ingress(&at(&cluster, "shop/api").await), [WEB], "{loss}");
            match loss {
                "own port" => set_port(&cluster, "api", 80).await,
                "port of another" => set_port(&cluster, "admin", 81).await,
                "type" => {
                    for spec_type in ["ClusterIP", "LoadBalancer"] {
                        cluster.guest.patch::<Service>("shop/api", json!({"spec": {"type": spec_type}})).await;
                        cluster.settle().await;
                    }
                }
                _ => {
                    let ready = json!({"type": "Ready", "status": "False"});
                    let status = json!({"allocatedAddress": null, "address": "", "conditions": [ready]});
                    says_about(&cluster, "web", json!({"status": status})).await;
                }
            }
            assert_eq!(ingress(&at(&cluster, "shop/api").await), [""; 0], "{loss}");
            if loss.contains("port") {
                let told = told_about(&cluster, "api", "PortConflict").await.concat();
                assert!(told.contains("lost 127.9.0.1, which it shared"), "{loss}: {told}");
            }
            // and its former primary waits for it no more
            delete(&cluster, "admin").await;
            if loss == "address" {
                delete(&cluster, "web").await;
                assert!(is_gone(&cluster, "web").await);
            }
            delete(&cluster, "api").await;
            between.refuse(None);
        }
        ccm.stop().await;
    }

    /// It has another address already, and with a port that it has no more nothing leads there.
    async fn a_service_arrives_at_its_next_primary_although_nobody_may_change_the_object_that_it_leaves(
        cluster: TestCluster,
    ) {
        let (ccm, between) = Between::start(&cluster).await;
        between.refuse(Some("web"));
        let port = json!([{"name": "http", "port": 85}]);
        let patch = json!({"metadata": {"annotations": {PRIMARY: "docs"}}, "spec": {"ports": port}});
        cluster.guest.patch::<Service>("shop/web", patch).await;
        is_at(&cluster, "web", DOCS).await;
        until(&cluster, "its object goes", async || object_of(&cluster, "web").await.is_none()).await;
        ccm.stop().await;
    }

    async fn an_address_of_its_own_stays_in_the_status_when_the_next_primary_loses_its_own_before_it_carries_the_ports(
        cluster: TestCluster,
    ) {
        let (ccm, between) = Between::start(&cluster).await;
        between.refuse(Some("docs"));
        ask_again(&cluster, "shop/web", json!("docs")).await;
        assert_eq!(shared(&cluster, "shop/web").await.1.as_deref(), Some("shop.docs"));
        let ready = json!({"type": "Ready", "status": "False"});
        let status = json!({"allocatedAddress": null, "address": "", "conditions": [ready]});
        says_about(&cluster, "docs", json!({"status": status})).await;
        assert_eq!(ingress(&at(&cluster, "shop/web").await), [WEB]);
        says_about(&cluster, "docs", given("127.9.0.3")).await;
        between.refuse(None);
        is_at(&cluster, "web", "127.9.0.3").await;
        ccm.stop().await;
    }

    /// Somebody takes them off in Harvester; the Service whose object it is puts them back.
    async fn labels_taken_off_the_object_of_a_former_primary_cost_a_secondary_that_moves_nothing(cluster: TestCluster) {
        let (ccm, between) = Between::start(&cluster).await;
        ask(&cluster, "api", 81, "web", ON_HOST).await;
        between.refuse(Some("docs"));
        ask_again(&cluster, "shop/api", json!("docs")).await;
        for wish in ["nobody", "docs"] {
            ask_again(&cluster, "shop/api", json!(wish)).await;
            between.history().await;
            let labels = ["serviceName", "serviceNamespace"];
            let labels: Value =
                labels.into_iter().map(|key| (format!("cloudprovider.harvesterhci.io/{key}"), Value::Null)).collect();
            says_about(&cluster, "web", json!({"metadata": {"labels": labels}})).await;
            until(&cluster, "the labels are back", async || object_of(&cluster, "web").await.is_some()).await;
            cluster.settle().await;
            assert_eq!(ingress(&at(&cluster, "shop/api").await), [WEB], "{wish}");
            assert_eq!(object_of(&cluster, "web").await.unwrap().spec.listeners.len(), 2, "{wish}");
        }
        between.refuse(None);
        is_at(&cluster, "api", DOCS).await;
        ccm.stop().await;
    }

    /// Its object stays for others, and its own status says nothing of the address any more.
    async fn a_secondary_without_wish_hears_what_becomes_of_an_address_that_its_primary_itself_has_left(
        cluster: TestCluster,
    ) {
        let (ccm, _between) = leave_and_be_left(&cluster).await;
        let ready = json!({"type": "Ready", "status": "False"});
        let status = json!({"allocatedAddress": null, "address": "", "conditions": [ready]});
        says_about(&cluster, "web", json!({"status": status})).await;
        assert_eq!(ingress(&at(&cluster, "shop/api").await), [""; 0]);
        ccm.stop().await;
    }

    async fn a_secondary_without_wish_goes_as_soon_as_its_listener_went(cluster: TestCluster) {
        let (ccm, between) = leave_and_be_left(&cluster).await;
        between.refuse(Some("web"));
        delete(&cluster, "api").await;
        assert!(cluster.guest.get::<Service>("shop/api").await.is_some());
        between.refuse(None);
        until(&cluster, "the port is let go", async || {
            object_of(&cluster, "web").await.unwrap().spec.listeners.len() == 2
        }).await;
        cluster.settle().await;
        assert_eq!(cluster.guest.get::<Service>("shop/api").await, None);
        ccm.stop().await;
    }
}
