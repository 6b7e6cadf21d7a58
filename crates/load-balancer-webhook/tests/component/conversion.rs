//! LoadBalancer objects of v1alpha1 behind both API servers: docs/contract/load-balancer.md#9.5.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, Response, StatusCode};
use harvester_api::{IPPool, LoadBalancer};
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, ResourceExt as _};
use load_balancer_webhook::fixtures::conversion_review;
use program::TaskGroup;
use serde_json::{Value, json};
use sim_apiserver::faults::{Answer, Rule};
use test_cluster::addresses::create_pool;
use test_cluster::{Rights, Side, TestCluster, User};

use super::fixtures::{
    DEFINITION, NAME, WRITER, bundle, http, object, reachable, refusal, start, unregister, web,
};
use super::reviews::{ask, trusting};

const BETA: &str = "loadbalancer.harvesterhci.io/v1beta1";
const ALPHA: &str = "loadbalancer.harvesterhci.io/v1alpha1";
const BEGINNING: &str =
    "conversion webhook for loadbalancer.harvesterhci.io/v1beta1, Kind=LoadBalancer failed: ";

/// An authority that signed no certificate of ours, in Base64.
fn foreign() -> Value {
    let certificate = rcgen::generate_simple_self_signed(vec!["other".to_owned()]).unwrap().cert;
    serde_json::to_value(ByteString(certificate.pem().into_bytes())).unwrap()
}

fn former(cluster: &TestCluster) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("loadbalancer.harvesterhci.io", "v1alpha1", "LoadBalancer");
    let resource = ApiResource::from_gvk_with_plural(&kind, "loadbalancers");
    Api::namespaced_with(cluster.harvester.client(User::Driver), "team-a", &resource)
}

fn definitions(cluster: &TestCluster) -> Api<CustomResourceDefinition> {
    Api::all(cluster.harvester.client(User::Driver))
}

async fn change(cluster: &TestCluster, change: Value) -> CustomResourceDefinition {
    let patch = Patch::Merge(change);
    definitions(cluster).patch(DEFINITION, &PatchParams::default(), &patch).await.unwrap()
}

/// The stanza as the Go program leaves it; `bundle` in Base64.
fn stanza(bundle: &Value) -> Value {
    let service =
        json!({"namespace": "harvester-system", "name": NAME, "path": "/v1/webhook/conversion", "port": 443});
    json!({"spec": {"conversion": {"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v1"],
        "clientConfig": {"url": null, "service": service, "caBundle": bundle}}}}})
}

async fn trusted(cluster: &TestCluster) -> Value {
    let definition = definitions(cluster).get(DEFINITION).await.unwrap();
    serde_json::to_value(definition).unwrap()["spec"]["conversion"]["webhook"]["clientConfig"]["caBundle"]
        .take()
}

/// What `kubectl get --raw` prints.
async fn raw(cluster: &TestCluster, path: &str) -> Result<Value, String> {
    let request = Request::get(path).body(Vec::new()).unwrap();
    let client = cluster.harvester.client(User::Driver);
    client.request(request).await.map_err(|error| match error {
        kube::Error::Api(status) => status.message.clone(),
        other => panic!("{other}"),
    })
}

async fn both(cluster: &TestCluster, name: &str) -> [Result<Value, String>; 2] {
    let path = |version: &str| format!("/apis/{version}/namespaces/team-a/loadbalancers{name}");
    [raw(cluster, &path(BETA)).await, raw(cluster, &path(ALPHA)).await]
}

/// Looks again until the API server goes by a changed definition.
async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    for _ in 0..200 {
        if let Some(seen) = look().await {
            return seen;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("{what}");
}

fn of_alpha(name: &str, spec: &Value) -> DynamicObject {
    object(
        json!({"apiVersion": ALPHA, "kind": "LoadBalancer", "metadata": {"name": name, "namespace": "team-a"}, "spec": spec}),
    )
}

/// The API server lets the webhook convert.
pub(crate) async fn converting(cluster: &TestCluster) {
    let probe = of_alpha("probe", &json!({"ipam": "dhcp", "listeners": http()}));
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    until("no conversion", async || former(cluster).create(&dry_run, &probe).await.ok()).await;
}

/// The API server calls nobody who answers.
async fn away(cluster: &TestCluster, tasks: TaskGroup) {
    tasks.end().await;
    if let Some(server) = cluster.harvester.simulated() {
        let nobody = tower::service_fn(|_: Request<Body>| async {
            let mut response = Response::new(Body::from("no endpoints available"));
            *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
            Ok::<_, Infallible>(response)
        });
        server.webhook("harvester-system", NAME, nobody);
    }
}

test_cluster::component_tests! {
    /// An object that no schema allows would break the list of a program that reads all of them, such as the Go programs.
    #[each_role]
    async fn what_no_schema_allows_does_not_come_in_by_the_annotation_of_the_former_version(cluster: TestCluster) {
        let tasks = TaskGroup::new();
        change(&cluster, stanza(&foreign())).await;
        reachable(&cluster, &tasks, WRITER).await;
        converting(&cluster).await;
        let spec = json!({"ipam": "dhcp", "listeners": http()});
        former(&cluster).create(&PostParams::default(), &of_alpha("web", &spec)).await.unwrap();
        let kept = json!({"metadata": {"finalizers": ["team-a/keep"]}});
        former(&cluster).patch("web", &PatchParams::default(), &Patch::Merge(kept)).await.unwrap();
        for is_deleting in [false, true] {
            if is_deleting {
                former(&cluster).delete("web", &DeleteParams::default()).await.unwrap();
            }
            let before = both(&cluster, "/web").await.map(Result::unwrap)[0]["spec"].clone();
            let mut alpha = former(&cluster).get("web").await.unwrap();
            let annotation = alpha.annotations_mut().get_mut("loadbalancer.harvesterhci.io/v1beta1").unwrap();
            let mut says: Value = serde_json::from_str(annotation).unwrap();
            says["spec"]["workloadType"] = json!({"x": 1});
            says["spec"]["healthCheck"] = json!({"periodSeconds": "7"});
            *annotation = says.to_string();
            // refused, or taken without what was forged
            drop(former(&cluster).replace("web", &PostParams::default(), &alpha).await);
            let after = both(&cluster, "/web").await.map(Result::unwrap)[0]["spec"].clone();
            assert_eq!(after["healthCheck"].get("periodSeconds"), before["healthCheck"].get("periodSeconds"));
            assert_eq!(after.get("workloadType"), before.get("workloadType"), "{after}");
        }
        former(&cluster)
            .patch("web", &PatchParams::default(), &Patch::Merge(json!({"metadata": {"finalizers": null}})))
            .await
            .unwrap();
        tasks.end().await;
    }

    #[each_role]
    async fn an_object_of_the_former_version_is_stored_and_read_in_both_while_the_webhook_is_there(cluster: TestCluster) {
        let foreign = foreign();
        change(&cluster, stanza(&foreign)).await;
        let tasks = TaskGroup::new();
        reachable(&cluster, &tasks, WRITER).await;
        converting(&cluster).await;
        assert_ne!(trusted(&cluster).await, foreign, "the keeper took the stanza over");

        let listeners = json!([{"name": "http", "port": 80, "protocol": "TCP", "backendPort": 8080}]);
        let check = json!({"port": 8080, "successThreshold": 1, "failureThreshold": 3, "PeriodSeconds": 5, "timeoutSeconds": 3});
        let spec = json!({"description": "d", "ipam": "dhcp", "listeners": listeners, "healthCheck": check});
        let made = former(&cluster).create(&PostParams::default(), &of_alpha("web", &spec)).await.unwrap();
        assert_eq!(made.data["spec"], spec);
        let [beta, alpha] = both(&cluster, "/web").await.map(Result::unwrap);
        assert_eq!((&alpha["apiVersion"], &alpha["spec"]), (&json!(ALPHA), &spec));
        assert_eq!(beta["apiVersion"], BETA);
        assert_eq!(beta["spec"], json!({"description": "d", "ipam": "dhcp", "listeners": listeners, "healthCheck": {
            "port": 8080, "successThreshold": 1, "failureThreshold": 3, "periodSeconds": 5, "timeoutSeconds": 3}}));
        assert_eq!(beta["metadata"]["annotations"].get("loadbalancer.harvesterhci.io/v1beta1"), None, "it is not stored");

        // an edit in the former version keeps what only today's can say
        let today = json!({"spec": {"ipPool": "lab", "backendServerSelector": {"app": ["web"]}}});
        cluster.harvester.patch::<LoadBalancer>("team-a/web", today).await;
        let mut edited = former(&cluster).get("web").await.unwrap();
        edited.data["spec"]["listeners"][0]["port"] = 81.into();
        former(&cluster).replace("web", &PostParams::default(), &edited).await.unwrap();
        let patch = Patch::Merge(json!({"spec": {"description": "other"}}));
        former(&cluster).patch("web", &PatchParams::default(), &patch).await.unwrap();
        let [beta, alpha] = both(&cluster, "/web").await.map(Result::unwrap);
        for object in [&beta, &alpha] {
            assert_eq!((&object["spec"]["description"], &object["spec"]["listeners"][0]["port"]), (&json!("other"), &json!(81)));
        }
        assert_eq!((&beta["spec"]["ipPool"], &beta["spec"]["backendServerSelector"]), (&json!("lab"), &json!({"app": ["web"]})));

        // without the webhook today's version is read on, and the former one says why not
        away(&cluster, tasks).await;
        let why = until("read without a webhook", async || {
            let [beta, alpha] = both(&cluster, "/web").await;
            beta.unwrap();
            alpha.err()
        }).await;
        assert!(why.starts_with(BEGINNING), "{why}");
        let tasks = TaskGroup::new();
        reachable(&cluster, &tasks, WRITER).await;
        let back = until("not back", async || both(&cluster, "/web").await[1].clone().ok()).await;
        assert_eq!(back["spec"], alpha["spec"]);
        tasks.end().await;
        unregister(&cluster).await;
    }

    async fn objects_that_were_stored_in_either_version_are_listed_in_both_and_migrated_by_a_write(cluster: TestCluster) {
        let versions = definitions(&cluster).get(DEFINITION).await.unwrap().spec.versions;
        let stored_as = |name: &str| {
            let mut versions = versions.clone();
            versions.iter_mut().for_each(|version| version.storage = version.name == name);
            json!({"spec": {"versions": versions}})
        };
        change(&cluster, stored_as("v1alpha1")).await;
        create_pool(&cluster, "lab", 7, 20).await;
        let record = json!({"status": {"total": 14, "available": 13, "lastAllocated": "192.0.2.7",
            "allocated": {"192.0.2.7": "team-a/old"}}});
        cluster.harvester.patch::<IPPool>("lab", record).await;
        let spec = json!({"ipam": "pool", "listeners": http(), "backendServers": ["10.0.0.1"]});
        let mut old = of_alpha("old", &spec);
        old.data["status"] = json!({"address": "192.0.2.7"});
        // what only the former version says is there while it is stored
        until("v1alpha1 is not stored", async || {
            former(&cluster).create(&PostParams::default(), &old).await.unwrap();
            let made = former(&cluster).get("old").await.unwrap();
            if made.data["spec"]["backendServers"].is_array() {
                return Some(());
            }
            cluster.harvester.delete::<LoadBalancer>("team-a/old").await;
            None
        }).await;
        change(&cluster, stored_as("v1beta1")).await;
        change(&cluster, stanza(&foreign())).await;
        let tasks = TaskGroup::new();
        reachable(&cluster, &tasks, WRITER).await;
        converting(&cluster).await;
        let new = object({
            let mut new = web(&http());
            new["metadata"]["name"] = "new".into();
            new
        });
        super::fixtures::load_balancers(cluster.harvester.client(User::Driver)).create(&PostParams::default(), &new).await.unwrap();

        let [beta, alpha] = until("no list", async || {
            let [beta, alpha] = both(&cluster, "").await;
            Some([beta.ok()?, alpha.ok()?])
        }).await;
        let names = |list: &Value| list["items"].as_array().unwrap().iter().map(|item| item["metadata"]["name"].clone()).collect::<Vec<_>>();
        assert_eq!((names(&beta), names(&alpha)), (vec![json!("new"), json!("old")], vec![json!("new"), json!("old")]));
        let [new, old] = [&beta["items"][0], &beta["items"][1]];
        assert_eq!(new["spec"]["backendServerSelector"], json!({"harvesterhci.io/vmName": ["web-1", "web-2"]}));
        assert_eq!((&old["spec"]["ipPool"], &old["spec"]["listeners"]), (&json!("lab"), &http()));
        assert_eq!(old["status"], json!({"address": "192.0.2.7", "backendServers": ["10.0.0.1"],
            "allocatedAddress": {"ipPool": "lab", "ip": "192.0.2.7"}}));
        let [new, old] = [&alpha["items"][0], &alpha["items"][1]];
        assert_eq!((&new["spec"]["ipam"], &new["spec"]["listeners"]), (&json!("dhcp"), &http()));
        assert_eq!((&old["spec"], &old["status"]), (&spec, &json!({"address": "192.0.2.7"})));

        // as the log tells: each object is written as it is read, and the definition lets the former version go
        let today = super::fixtures::load_balancers(cluster.harvester.client(User::Driver));
        let before = today.get("old").await.unwrap();
        let after = today.replace("old", &PostParams::default(), &before).await.unwrap();
        assert_ne!(after.metadata.resource_version, before.metadata.resource_version, "it was written");
        assert_eq!((&after.data, after.metadata.generation), (&before.data, before.metadata.generation));
        let migrated = Patch::Merge(json!({"status": {"storedVersions": ["v1beta1"]}}));
        definitions(&cluster).patch_status(DEFINITION, &PatchParams::default(), &migrated).await.unwrap();
        away(&cluster, tasks).await;
        assert_eq!(today.get("old").await.unwrap().data, before.data, "nobody converts it any more");
        unregister(&cluster).await;
    }

    #[simulated_only("the API server fails on purpose")]
    async fn an_object_that_cannot_be_converted_says_why_and_is_read_when_it_can(cluster: TestCluster) {
        let tasks = TaskGroup::new();
        reachable(&cluster, &tasks, WRITER).await;
        create_pool(&cluster, "lab", 7, 20).await;
        cluster.settle().await;
        let server = cluster.harvester.simulated().unwrap();
        let mut rule = Rule::new(Answer::Code(500));
        (rule.user, rule.resource) = (Some(User::Webhook.account(Side::Harvester, cluster.guest_cluster()).name.clone()), Some("ippools".to_owned()));
        server.faults().add(rule);
        let mut old = of_alpha("old", &json!({"ipam": "pool", "listeners": http()}));
        old.data["status"] = json!({"address": "192.0.2.7"});
        let create = async || former(&cluster).create(&PostParams::default(), &old).await;
        let (code, message) = refusal(create().await);
        assert_eq!(code, 500);
        assert!(message.contains("conversion webhook for loadbalancer.harvesterhci.io/v1alpha1, Kind=LoadBalancer failed: "), "{message}");
        assert!(message.contains("cannot decide now: read IPPools"), "{message}");
        server.faults().clear();
        create().await.unwrap();
        tasks.end().await;
        unregister(&cluster).await;
    }

    #[simulated_only("the API server fails on purpose")]
    async fn an_object_is_not_converted_without_its_backends_while_virtual_machines_are_not_listed(cluster: TestCluster) {
        let tasks = TaskGroup::new();
        let server = cluster.harvester.simulated().unwrap();
        let mut rule = Rule::new(Answer::Code(500));
        let webhook = User::Webhook.account(Side::Harvester, cluster.guest_cluster()).name.clone();
        (rule.user, rule.resource) = (Some(webhook), Some("virtualmachineinstances".to_owned()));
        server.faults().add(rule);
        reachable(&cluster, &tasks, WRITER).await;
        let with_backends = of_alpha("old", &json!({"ipam": "dhcp", "listeners": http(), "backendServers": ["10.0.0.1"]}));
        let create = async |object| former(&cluster).create(&PostParams::default(), object).await;
        let (code, message) = refusal(create(&with_backends).await);
        assert_eq!(code, 500);
        assert!(message.contains("are not listed yet: try again"), "{message}");
        // one that needs none goes on
        let without = of_alpha("new", &json!({"ipam": "dhcp", "listeners": http()}));
        create(&without).await.unwrap();
        server.faults().clear();
        cluster.advance(Duration::from_mins(1)).await;
        create(&with_backends).await.unwrap();
        tasks.end().await;
        unregister(&cluster).await;
    }

    #[simulated_only("the API server fails on purpose, and time goes by")]
    async fn a_configuration_that_may_not_be_written_keeps_no_other_from_it_and_is_tried_rarely(cluster: TestCluster) {
        let tasks = TaskGroup::new();
        let server = cluster.harvester.simulated().unwrap();
        let mut rule = Rule::new(Answer::Code(403));
        let resource = "mutatingwebhookconfigurations";
        let webhook = User::Webhook.account(Side::Harvester, cluster.guest_cluster()).name.clone();
        (rule.user, rule.resource, rule.verb) = (Some(webhook), Some(resource.to_owned()), Some("create".to_owned()));
        server.faults().add(rule);
        reachable(&cluster, &tasks, WRITER).await;
        converting(&cluster).await;
        cluster.harvester.forget_requests();
        cluster.advance(Duration::from_mins(30)).await;
        let tried = cluster.harvester.work_of(User::Webhook).iter().filter(|request| request.is_write()).count();
        assert!((1..=5).contains(&tried), "{tried}");
        server.faults().clear();
        cluster.advance(Duration::from_mins(10)).await;
        assert!(cluster.harvester.get::<MutatingWebhookConfiguration>(NAME).await.is_some());
        tasks.end().await;
        unregister(&cluster).await;
    }

    #[simulated_only("the keeper waits for minutes")]
    async fn a_definition_that_may_not_be_written_keeps_no_review_from_its_answer_and_is_tried_rarely(cluster: TestCluster) {
        let tasks = TaskGroup::new();
        let server = cluster.harvester.simulated().unwrap();
        let mut rule = Rule::new(Answer::Code(403));
        let webhook = User::Webhook.account(Side::Harvester, cluster.guest_cluster()).name.clone();
        let resource = "customresourcedefinitions".to_owned();
        (rule.user, rule.resource, rule.verb) = (Some(webhook), Some(resource), Some("update".to_owned()));
        server.faults().add(rule);
        reachable(&cluster, &tasks, WRITER).await;
        cluster.advance(Duration::from_mins(10)).await;
        cluster.harvester.forget_requests();
        cluster.advance(Duration::from_mins(30)).await;
        let tried = cluster.harvester.work_of(User::Webhook).iter().filter(|request| request.is_write()).count();
        assert!((1..=5).contains(&tried), "{tried}");
        assert_eq!(trusted(&cluster).await, Value::Null);
        server.faults().clear();
        cluster.advance(Duration::from_mins(10)).await;
        converting(&cluster).await;
        tasks.end().await;
        unregister(&cluster).await;
    }

    #[simulated_only("the keeper leaves what came back for ten minutes")]
    async fn two_keepers_of_the_definition_write_once_each_and_the_later_one_stays(cluster: TestCluster) {
        let tasks = TaskGroup::new();
        reachable(&cluster, &tasks, WRITER).await;
        let (ours, foreign) = (trusted(&cluster).await, foreign());
        cluster.harvester.forget_requests();
        let written = || cluster.harvester.work_of(User::Webhook).iter().filter(|request| request.is_write()).count();
        for expected in [&ours, &foreign] {
            change(&cluster, stanza(&foreign)).await;
            cluster.settle().await;
            assert_eq!((&trusted(&cluster).await, written()), (expected, 1));
        }
        // a way back that was given up again
        cluster.advance(Duration::from_mins(10)).await;
        assert_eq!((trusted(&cluster).await, written()), (ours.clone(), 2));
        // another replica, or an admin, ends the contest: afterwards nobody is busy
        change(&cluster, stanza(&foreign)).await;
        cluster.settle().await;
        assert_eq!(trusted(&cluster).await, foreign);
        change(&cluster, stanza(&ours)).await;
        cluster.advance(Duration::from_mins(30)).await;
        assert_eq!(trusted(&cluster).await, ours);
        // what names nobody is no other keeper's
        for _ in 0..2 {
            change(&cluster, json!({"spec": {"conversion": {"strategy": "None", "webhook": null}}})).await;
            cluster.settle().await;
            assert_eq!(trusted(&cluster).await, ours);
        }
        tasks.end().await;
        unregister(&cluster).await;
    }
}

#[tokio::test]
async fn a_review_of_ten_megabytes_is_answered_and_a_hostile_one_is_refused_with_a_sentence() {
    let cluster = TestCluster::simulated(Rights::Ours).await;
    let tasks = TaskGroup::new();
    let port = start(&cluster, &tasks);
    let client = trusting(port, &bundle(&cluster, port).await);
    let review = conversion_review(ALPHA, 20_000);
    assert!(review.len() > 10 << 20, "{}", review.len());
    let (code, text) = ask(&client, "conversion", review).await;
    assert_eq!(code, 200, "{text}");
    let answer: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(answer["response"]["convertedObjects"].as_array().unwrap().len(), 20_000);

    let review =
        |objects: Value| json!({"request": {"uid": "u", "desiredAPIVersion": ALPHA, "objects": objects}});
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x".repeat(1 << 20)}});
    for (objects, part) in [
        (json!([web(&http()), pod]), "kind \"Pod\""),
        (json!([7]), "not converted"),
        (json!(["x".repeat(10 << 20)]), "at most 4194304 are converted"),
        (json!(vec![0; 10 << 20]), "10485760 objects are asked for"),
        (json!([vec![0; 10 << 20]]), "bytes"),
        (json!([vec![0; 1 << 20]]), "1048576 fields and list entries"),
    ] {
        let (code, text) = ask(&client, "conversion", review(objects).to_string()).await;
        assert!(code == 200 && text.len() < 500 && text.contains("Failure"), "{code} {}", text.len());
        let answer: Value = serde_json::from_str(&text).unwrap();
        let message = answer["response"]["result"]["message"].as_str().unwrap();
        assert!(message.contains(part), "{message}");
    }
    tasks.end().await;
}
