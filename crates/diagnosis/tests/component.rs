//! `explain` beside a running cloud controller manager and load balancer, on the simulated servers and on real ones.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::sync::Arc;

use cloud_provider::Duties;
use controller_kit::ObjectKey;
use diagnosis::{
    doctor::{Finding, Occasion, Verdict, decide, facts::Config, read::read_with},
    explain::{
        Assumed, Clusters, Error, explain, render,
        report::{Report, State},
    },
};
use futures::FutureExt as _;
use health_check::DialError;
use http::{Request, Response};
use k8s_openapi::api::core::v1::Service;
use kube::{Client, client::Body};
use program::{Clock, TaskGroup, health::Health};
use serde_json::json;
use test_cluster::{TestCluster, User, addresses::create_pool, component_tests};
use tokio::task::JoinHandle;

#[expect(dead_code, reason = "not all of it is asked for here")]
#[path = "../../cloud-controller-manager/tests/component/harness.rs"]
mod harness;

use harness::{Ccm, interposed, join, rules};

/// A cloud controller manager and a load balancer at work.
struct System {
    cluster: TestCluster,
    clock: Clock,
    ccm: Ccm,
    /// `explain` is asked without `--disable-hostname-lookup`.
    host_names: bool,
    /// Of the load balancer.
    tasks: TaskGroup,
    lb: JoinHandle<()>,
}

impl System {
    async fn start(cluster: TestCluster) -> Self {
        let (clock, tasks) = (Clock::starting_at(cluster.start()), TaskGroup::new());
        let ccm = Ccm::start_with(&cluster, |settings| {
            settings.host_names = false;
            settings.nodes = Duties { initialise: false, follow_topology: false };
            settings.node_lifecycle = false;
        });
        let ccm = ccm.await;
        let parts = load_balancer::Parts {
            client: cluster.harvester.client(User::LoadBalancer),
            clock,
            dial: Arc::new(|_| async { Err(DialError::Refused) }.boxed()),
            seed: 1,
            identity: "one".into(),
            metrics: None,
            health: Health::default(),
        };
        let config = load_balancer::Config::default();
        let of_lb = tasks.clone();
        let lb = async move {
            let times = load_balancer::ElectionTimes::default();
            Box::pin(load_balancer::run(parts, times, config, of_lb)).await.unwrap();
        };
        let lb = tokio::spawn(lb);
        cluster.settle().await;
        Self { cluster, clock, ccm, host_names: true, tasks, lb }
    }

    async fn stop(self) {
        self.ccm.stop().await;
        self.tasks.end().await;
        self.lb.await.unwrap();
    }

    /// A Service `shop/<name>` with this port; `annotations` as a YAML map.
    async fn service(&self, name: &str, port: u16, annotations: &str) {
        let yaml = format!(
            "{{apiVersion: v1, kind: Namespace, metadata: {{name: shop}}}}
---
apiVersion: v1
kind: Service
metadata: {{name: {name}, namespace: shop, annotations: {annotations}}}
spec: {{type: LoadBalancer, selector: {{app: web}}, ports: [{{name: http, port: {port}}}]}}
"
        );
        self.cluster.guest.apply(&yaml).await;
        self.cluster.settle().await;
    }

    /// kube-vip in the guest announces what it is asked for.
    async fn announce(&self, key: &str) {
        let service: Service = self.cluster.guest.get(key).await.unwrap();
        let asked = service.metadata.annotations.unwrap()["kube-vip.io/loadbalancerIPs"].clone();
        let host = json!({"metadata": {"annotations": {"kube-vip.io/vipHost": "worker-1"}}});
        self.cluster.guest.patch::<Service>(key, host).await;
        let status = json!({"status": {"loadBalancer": {"ingress": [{"ip": asked}]}}});
        self.cluster.guest.patch_status::<Service>(key, status).await;
        self.cluster.settle().await;
    }

    /// With every right.
    async fn explain(&self, key: &str) -> Report {
        let harvester = Ok(self.cluster.harvester.client(User::Driver));
        self.explain_with(self.cluster.guest.client(User::Driver), harvester, key).await.unwrap()
    }

    async fn explain_with(
        &self,
        guest: Client,
        harvester: Result<Client, String>,
        key: &str,
    ) -> Result<Report, Error> {
        let clusters = Clusters { guest, guest_name: "--kubeconfig guest".to_owned(), harvester };
        let key = ObjectKey::parse(key).unwrap();
        let assumed = Assumed {
            rules: rules(&self.cluster),
            host_names: self.host_names,
            follows_vms: true,
            pool_choice: load_balancer::PoolChoice::default(),
        };
        explain(&clusters, assumed, &key, self.clock.now()).await
    }
}

/// `client`, but the guest agent of each VM answers with this host name.
fn with_agents(client: Client, host_name: &'static str) -> Client {
    interposed(client, move |_, path| async move {
        path.ends_with("/guestosinfo").then(|| json!({"hostname": host_name}))
    })
}

/// A client without a server.
fn away() -> Client {
    let service = tower::service_fn(|_: Request<Body>| async {
        Err::<Response<Body>, _>(tower::BoxError::from("connection refused"))
    });
    Client::new(service, "default")
}

/// `client`, but requests for this path go there without any right.
fn refused(client: Client, nobody: Client, path: &'static str) -> Client {
    let service = tower::service_fn(move |request: Request<Body>| {
        let client = if request.uri().path() == path { nobody.clone() } else { client.clone() };
        async move { client.send(request).await.map_err(tower::BoxError::from) }
    });
    Client::new(service, "default")
}

fn resources(report: &Report) -> Vec<&str> {
    report.not_read.iter().map(|refused| refused.resource).collect()
}

component_tests! {
    /// docs/contract/addresses.md#6
    async fn a_service_that_no_pool_serves_is_explained_with_every_pool(cluster: TestCluster) {
        let system = System::start(cluster).await;
        create_pool(&system.cluster, "lab", 2, 9).await;
        let other = json!({"spec": {"selector": {"scope": [{"project": "*", "namespace": "team-b", "guestCluster": "*"}]}}});
        system.cluster.harvester.patch::<harvester_api::IPPool>("lab", other).await;
        system.service("web", 80, "{}").await;
        let report = system.explain("shop/web").await;
        assert_eq!(report.state, State::Waiting, "{}", report.headline);
        let ready = report.object.ready.as_ref().unwrap();
        assert_eq!(ready.reason, "NoMatchingPool");
        assert_eq!(report.address.sentence, format!("none: {}", ready.message), "the load balancer says the same");
        let pools = report.address.pools.as_ref().unwrap();
        assert_eq!((pools.len(), pools[0].verdict), (1, "rejected"));
        assert!(report.events.iter().any(|event| event.reason == "SyncLoadBalancerFailed"), "{:?}", report.events);
        assert_eq!((report.controller.runs, report.controller.due.len()), (Some(true), 0), "{:?}", report.controller);
        assert_eq!(resources(&report), [""; 0]);
        system.stop().await;
    }

    async fn a_served_service_and_its_secondary_are_explained(cluster: TestCluster) {
        let system = System::start(cluster).await;
        create_pool(&system.cluster, "lab", 2, 9).await;
        system.service("web", 80, "{}").await;
        system.announce("shop/web").await;
        system.service("api", 81, "{cloudprovider.harvesterhci.io/primary-service: web}").await;
        system.announce("shop/api").await;
        let web = system.explain("shop/web").await;
        assert_eq!((web.state, web.object.secondaries.join(" ").as_str()), (State::Served, "shop/api"), "{}", render(&web));
        assert_eq!(web.address.sentence, "192.0.2.2 of pool lab");
        assert_eq!(web.address.pools.as_ref().unwrap()[0].verdict, "holds");
        let api = system.explain("shop/api").await;
        assert_eq!(api.state, State::Served, "{}", render(&api));
        let sharing = api.sharing.as_ref().unwrap();
        assert_eq!((sharing.primary.as_deref(), sharing.shares), (Some("shop/web"), true));
        assert_eq!((api.object.state, api.address.shown.join(" ").as_str()), ("absent", "192.0.2.2"));
        system.stop().await;
    }

    async fn a_wrong_annotation_is_explained_as_its_event_tells_it(cluster: TestCluster) {
        let system = System::start(cluster).await;
        system.service("web", 80, "{cloudprovider.harvesterhci.io/ipam: static}").await;
        let report = system.explain("shop/web").await;
        assert_eq!(report.state, State::Refused, "{}", report.headline);
        let event = report.events.iter().find(|event| event.reason == "InvalidIPAM").unwrap();
        assert!(report.findings.iter().any(|finding| finding.message == event.message), "{:?}", report.findings);
        system.stop().await;
    }

    /// docs/contract/addresses.md#6
    async fn without_rights_on_pools_the_load_balancers_sentence_is_shown_and_nothing_is_written(cluster: TestCluster) {
        let system = System::start(cluster).await;
        system.service("web", 80, "{}").await;
        for side in [&system.cluster.guest, &system.cluster.harvester] {
            side.forget_requests();
        }
        let user = User::CloudControllerManager;
        let (guest, harvester) = (system.cluster.guest.client(user), system.cluster.harvester.client(user));
        let report = system.explain_with(guest, Ok(harvester), "shop/web").await.unwrap();
        assert_eq!((report.state, report.address.pools.is_none()), (State::Waiting, true), "{}", report.headline);
        assert!(resources(&report).contains(&"ippools"), "{:?}", report.not_read);
        let text = render(&report);
        assert!(text.contains("without the right to list ippools") && text.contains("no matched IPPool"), "{text}");
        for side in [&system.cluster.guest, &system.cluster.harvester] {
            let writes: Vec<_> = side.work_of(user).into_iter().filter(|request| {
                request.is_write() && !["leases", "selfsubjectaccessreviews"].contains(&request.resource().as_str())
            }).collect();
            assert!(writes.is_empty(), "{writes:?}");
        }
        system.stop().await;
    }

    async fn while_harvester_is_away_the_guests_half_is_explained(cluster: TestCluster) {
        let system = System::start(cluster).await;
        create_pool(&system.cluster, "lab", 2, 9).await;
        system.service("web", 80, "{}").await;
        system.announce("shop/web").await;
        for harvester in [Ok(away()), Err("no cloud-config found".to_owned())] {
            let guest = system.cluster.guest.client(User::Driver);
            let why = harvester.as_ref().err().cloned().unwrap_or_else(|| "connection refused".to_owned());
            let report = system.explain_with(guest, harvester, "shop/web").await.unwrap();
            assert_eq!(report.state, State::Unknown);
            assert!(report.headline.contains("shows 192.0.2.2") && report.headline.contains(&why), "{}", report.headline);
            assert!(report.class.ours && report.traffic.sentence.contains("worker-1"), "{}", render(&report));
            assert!(!report.not_read.is_empty() && report.not_read.iter().all(|it| it.cluster == "Harvester"));
        }
        system.stop().await;
    }

    /// docs/explain.md shows this page. `UPDATE_DOCS=1` writes it there anew.
    #[simulated_only("names and times of a real server are others each time")]
    async fn the_example_in_the_documentation_is_what_the_program_prints(cluster: TestCluster) {
        let system = System::start(cluster).await;
        create_pool(&system.cluster, "edge", 2, 9).await;
        create_pool(&system.cluster, "lab", 12, 99).await;
        for name in ["worker-1", "worker-2"] {
            join(&system.cluster, name, name, "").await;
        }
        system.service("far", 80, "{cloudprovider.harvesterhci.io/network: team-a/vlan99}").await;
        let page = render(&system.explain("shop/far").await);
        // of the Service's UID, which is another one with each set of rights
        let digest = page.split_once("blue-shop-far-").unwrap().1[..8].to_owned();
        let page = page.replace(&digest, "3878f059");
        system.stop().await;
        let shown: String = page.lines().map(|line| format!("{}\n", format!("    {line}").trim_end())).collect();
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/explain.md");
        let document = std::fs::read_to_string(path).unwrap();
        let start = document.find("    Service shop/far ").unwrap();
        let end = start + document[start..].find("\n\n|").unwrap() + 1;
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(path, format!("{}{shown}{}", &document[..start], &document[end..])).unwrap();
            return;
        }
        assert_eq!(document[start..end], shown, "run this test with UPDATE_DOCS=1");
    }

    async fn each_node_is_told_with_the_sign_by_which_its_vm_was_found(cluster: TestCluster) {
        let system = System::start(cluster).await;
        for (vm, node) in [("vm-a", "worker-1"), ("worker-2", "worker-2")] {
            let yaml = format!(
                "{{apiVersion: kubevirt.io/v1, kind: VirtualMachine, metadata: {{name: {vm}, namespace: team-a}},
                   spec: {{runStrategy: Always, template: {{metadata: {{}}, spec: {{}}}}}}}}
---
{{apiVersion: kubevirt.io/v1, kind: VirtualMachineInstance, metadata: {{name: {vm}, namespace: team-a}},
  spec: {{domain: {{devices: {{}}}}}}, status: {{conditions: [{{type: AgentConnected, status: 'True'}}]}}}}
"
            );
            system.cluster.harvester.apply(&yaml).await;
            system.cluster.guest.apply(&format!("{{apiVersion: v1, kind: Node, metadata: {{name: {node}}}}}")).await;
        }
        system.service("web", 80, "{}").await;
        let harvester = with_agents(system.cluster.harvester.client(User::Driver), "worker-1");
        let guest = system.cluster.guest.client(User::Driver);
        let report = system.explain_with(guest, Ok(harvester), "shop/web").await.unwrap();
        let nodes = report.traffic.nodes.iter().map(|node| (node.vm.as_deref(), node.because)).collect::<Vec<_>>();
        let by_host_name = "by the host name that its guest agent reports";
        assert_eq!(nodes, [(Some("vm-a"), by_host_name), (Some("worker-2"), "by name")], "{}", render(&report));
        let mut system = system;
        system.host_names = false;
        let harvester = with_agents(system.cluster.harvester.client(User::Driver), "worker-1");
        let guest = system.cluster.guest.client(User::Driver);
        let report = system.explain_with(guest, Ok(harvester), "shop/web").await.unwrap();
        assert_eq!(report.traffic.nodes[0].vm, None, "as with --disable-hostname-lookup: {}", render(&report));
        system.stop().await;
    }

    async fn a_service_that_cannot_be_read_is_an_error_and_a_list_that_cannot_be_read_is_none(cluster: TestCluster) {
        let system = System::start(cluster).await;
        create_pool(&system.cluster, "lab", 2, 9).await;
        system.service("web", 80, "{}").await;
        system.announce("shop/web").await;
        let (guest, nobody) = (system.cluster.guest.client(User::Driver), system.cluster.guest.client(User::Nobody));
        let harvester = || Ok(system.cluster.harvester.client(User::Driver));
        let error = system.explain_with(guest.clone(), harvester(), "shop/nobody").await.unwrap_err();
        assert!(matches!(error, Error::NotFound { .. }) && error.to_string().contains("shop/nobody"), "{error}");
        let error = system.explain_with(nobody.clone(), harvester(), "shop/web").await.unwrap_err();
        assert!(matches!(error, Error::Refused { .. }) && error.to_string().contains("forbidden"), "{error}");
        let error = system.explain_with(away(), harvester(), "shop/web").await.unwrap_err();
        assert!(error.to_string().contains("connection refused"), "{error}");
        let limited = refused(guest.clone(), nobody.clone(), "/api/v1/nodes");
        let report = system.explain_with(limited, harvester(), "shop/web").await.unwrap();
        assert_eq!(resources(&report), ["nodes"]);
        let no_nodes = |report: &Report| report.findings.iter().any(|it| it.reason == "UnAvailableLoadBalancer");
        assert!(!no_nodes(&report) && no_nodes(&system.explain("shop/web").await), "unread is not absent");
        let limited = refused(guest, nobody, "/api/v1/services");
        let report = system.explain_with(limited, harvester(), "shop/web").await.unwrap();
        assert_eq!((report.state, resources(&report)), (State::Served, vec!["services"]), "{}", render(&report));
        system.stop().await;
    }

    async fn the_doctor_finds_nothing_in_a_system_at_work_but_its_empty_pools_and_stores_nothing(cluster: TestCluster) {
        let system = System::start(cluster).await;
        let harvester = || Some(system.cluster.harvester.client(User::CloudControllerManager));
        let before = system.cluster.harvester.list::<harvester_api::LoadBalancer>().await.len();
        let findings = examined(&system, harvester()).await;
        for id in ["guest-api", "harvester-endpoint", "harvester-login", "rights-load-balancers", "rights-machines", "ccm"] {
            assert_eq!(verdict(&findings, id).verdict, Verdict::Green, "{findings:#?}");
        }
        let pools = verdict(&findings, "pools").verdict;
        assert!(matches!(pools, Verdict::Amber | Verdict::NotAsked), "{findings:#?}");
        assert_eq!(red(&findings), ["webhook"], "none is registered here");
        assert_eq!(system.cluster.harvester.list::<harvester_api::LoadBalancer>().await.len(), before);
        create_pool(&system.cluster, "lab", 2, 9).await;
        assert_eq!(red(&examined(&system, harvester()).await), ["webhook"]);
        system.stop().await;
    }

    async fn the_doctor_tells_a_credential_without_rights_from_a_harvester_that_is_away(cluster: TestCluster) {
        let system = System::start(cluster).await;
        create_pool(&system.cluster, "lab", 2, 9).await;
        let nobody = system.cluster.harvester.client(User::Nobody);
        let findings = examined(&system, Some(nobody)).await;
        assert_eq!(red(&findings), ["rights-load-balancers"], "{findings:#?}");
        assert_eq!(verdict(&findings, "rights-machines").because, Some("rights-load-balancers"));
        let rights = verdict(&findings, "rights-load-balancers");
        assert!(rights.sentence.contains("list loadbalancers"), "{rights:?}");
        let findings = examined(&system, Some(away())).await;
        assert_eq!(red(&findings), ["harvester-endpoint"], "{findings:#?}");
        assert_eq!(verdict(&findings, "pools").because, Some("harvester-endpoint"));
        system.stop().await;
    }
}

/// What `doctor` finds in a system, by its cloud-config's rights.
async fn examined(system: &System, harvester: Option<Client>) -> Vec<Finding> {
    let config = Config {
        file: "cloud-config".to_owned(),
        server: "https://harvester.test:6443".to_owned(),
        namespace: "team-a".to_owned(),
        expiry: cloud_config::expiry::Expiry::Never,
        authorities: Vec::new(),
        trusts_everybody: false,
        claims: None,
        note: None,
        renewal: None,
    };
    let guest = system.cluster.guest.client(User::Driver);
    decide(&read_with(&guest, Ok(config), harvester, system.clock.now()).await, Occasion::Daily)
}

fn verdict<'a>(findings: &'a [Finding], id: &str) -> &'a Finding {
    findings.iter().find(|finding| finding.id == id).unwrap()
}

fn red(findings: &[Finding]) -> Vec<&'static str> {
    let red = findings.iter().filter(|finding| finding.verdict == Verdict::Red);
    red.map(|finding| finding.id).collect()
}

#[tokio::test]
async fn a_client_that_only_reads_sends_no_write() {
    let client = diagnosis::read_only(away());
    let services: kube::Api<Service> = kube::Api::namespaced(client, "shop");
    let told = |error: kube::Error| controller_kit::error_message(&error);
    let read = services.get("web").await.unwrap_err();
    assert!(told(read).contains("connection refused"));
    let written = services.delete("web", &kube::api::DeleteParams::default()).await.unwrap_err();
    assert!(told(written).contains("only reads"));
}
