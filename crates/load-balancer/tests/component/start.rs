//! What a leader that starts asks for, and in which order.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, Ordering},
};

use http::{Request, header::ACCEPT};
use kube::{Client, client::Body};
use test_cluster::{TestCluster, User};

use super::fixtures::{Controller, address_of, in_step, load_balancer, pool};
use super::vms::{RESTS, without};

const VMS: &str = "/apis/kubevirt.io/v1/virtualmachines";
const HOST_SERVICES: &str = "/api/v1/namespaces/kube-system/services";

/// The path of each request, and the form in which the answer is wanted.
#[derive(Default)]
struct Asked(Arc<Mutex<Vec<(String, String)>>>);

impl Asked {
    /// A client whose requests are noted.
    fn by(&self, client: Client) -> Client {
        let asked = self.0.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let form = request.headers().get(ACCEPT).and_then(|form| form.to_str().ok());
            let one = (request.uri().path().to_owned(), form.unwrap_or_default().to_owned());
            asked.lock().unwrap().push(one);
            let client = client.clone();
            async move { client.send(request).await }
        });
        Client::new(service, "default")
    }

    /// The forms in which this path was asked for.
    fn forms_of(&self, path: &str) -> Vec<String> {
        let asked = self.0.lock().unwrap();
        asked.iter().filter(|(of, _)| of == path).map(|(_, form)| form.clone()).collect()
    }
}

test_cluster::component_tests! {
    async fn of_vms_the_metadata_alone_is_listed_and_watched(cluster: TestCluster) {
        cluster.harvester.apply(
            "{apiVersion: kubevirt.io/v1, kind: VirtualMachine, metadata: {name: blue-1, namespace: team-a},
              spec: {runStrategy: Always, template: {spec: {domain: {devices: {}}}}}}",
        ).await;
        let asked = Asked::default();
        let _running = Controller::asking(&cluster, asked.by(cluster.harvester.client(User::LoadBalancer)));
        cluster.settle().await;
        let forms = asked.forms_of(VMS);
        assert!(
            forms.len() > 1 && forms.iter().all(|form| form.contains("as=PartialObjectMetadata")),
            "{forms:?}"
        );
    }

    async fn the_hosts_addresses_are_asked_for_at_once_and_vms_after_the_lists_that_addresses_need(cluster: TestCluster) {
        let (asked, open) = (Asked::default(), Arc::new(AtomicBool::new(false)));
        let refused = |request: &Request<Body>| request.uri().path().ends_with("/loadbalancers");
        let client = without(cluster.harvester.client(User::LoadBalancer), open.clone(), refused);
        let _running = Controller::asking(&cluster, asked.by(client));
        cluster.settle().await;
        assert!(!asked.forms_of(HOST_SERVICES).is_empty());
        assert_eq!(asked.forms_of(VMS), Vec::<String>::new());

        open.store(true, Ordering::Relaxed);
        let mut rests = 0;
        while asked.forms_of(VMS).is_empty() {
            assert!(rests < RESTS, "they are not listed");
            rests += 1;
            cluster.settle().await;
        }
    }

    async fn no_address_is_given_before_those_of_the_host_are_known(cluster: TestCluster) {
        let open = Arc::new(AtomicBool::new(false));
        let refused = |request: &Request<Body>| request.uri().path() == HOST_SERVICES;
        let client = without(cluster.harvester.client(User::LoadBalancer), open.clone(), refused);
        let _running = Controller::asking(&cluster, client);
        pool(&cluster, "edge", 10, 20).await;
        load_balancer(&cluster, "web", "").await;
        cluster.settle().await;
        assert_eq!(address_of(&cluster, "web").await, "");

        open.store(true, Ordering::Relaxed);
        let mut rests = 0;
        while address_of(&cluster, "web").await.is_empty() {
            assert!(rests < RESTS, "it goes on waiting");
            rests += 1;
            cluster.settle().await;
        }
        in_step(&cluster).await;
    }
}
