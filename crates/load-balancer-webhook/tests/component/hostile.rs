//! Reviews that a tenant can make large.

use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use load_balancer_webhook::fixtures::{load_balancer_with_listeners, review_with_listeners};
use program::TaskGroup;
use serde_json::{Value, json};
use test_cluster::{Rights, TestCluster, User};

use super::fixtures::{WRITER, bundle, load_balancers, object, reachable, refusal, start, unregister};
use super::reviews::{answer, ask, trusting};

#[tokio::test]
async fn four_thousand_equal_listeners_get_one_short_refusal() {
    let cluster = TestCluster::simulated(Rights::Ours).await;
    let tasks = TaskGroup::new();
    let port = start(&cluster, &tasks);
    let client = trusting(port, &bundle(&cluster, port).await);
    for path in ["validation", "mutation"] {
        let (code, text) = ask(&client, path, review_with_listeners(4_000)).await;
        assert_eq!(code, 200, "{text}");
        // the sentence twice: kubectl edit shows none but that of a cause
        assert!(text.len() < 600, "{} bytes", text.len());
        let answer: Value = serde_json::from_str(&text).unwrap();
        let message = "create loadbalancer team-a/web failed: spec.listeners has 4000 entries, at most 100 are allowed: \
                       spread them over several load balancers";
        assert_eq!(answer["response"]["status"]["message"], message);
        assert_eq!(answer["response"]["uid"], "u1");
    }
    // the rules still run for the largest object that is allowed
    let denied = answer(&client, "validation", review_with_listeners(100)).await;
    let message = denied["response"]["status"]["message"].as_str().unwrap();
    assert!(message.ends_with("; and 277 more"), "{message}");

    let deep = [&b"{\"request\": {\"object\": "[..], &b"{\"a\":".repeat(1_000_000)].concat();
    assert_eq!(ask(&client, "mutation", deep).await.0, 400);
    let many_fields = format!(
        "{{\"kind\": \"AdmissionReview\", \"request\": {{\"kind\": {{\"group\": \
        \"loadbalancer.harvesterhci.io\", \"kind\": \"LoadBalancer\"}}, \"object\": {{\"status\": [0{}]}}}}}}",
        ",0".repeat(1_000_000)
    );
    let (code, text) = ask(&client, "mutation", many_fields).await;
    assert!(code == 200 && text.contains("the object has 1000002 fields and list entries"), "{text}");
    tasks.end().await;
}

#[tokio::test]
async fn a_hundred_reviews_at_once_are_all_answered() {
    let cluster = TestCluster::simulated(Rights::Ours).await;
    let tasks = TaskGroup::new();
    let port = start(&cluster, &tasks);
    let client = trusting(port, &bundle(&cluster, port).await);
    let reviews = (0..100).map(|_| answer(&client, "validation", review_with_listeners(100)));
    for answer in futures::future::join_all(reviews).await {
        assert_eq!(answer["response"]["allowed"], false);
    }
    tasks.end().await;
}

test_cluster::component_tests! {
    async fn the_api_server_passes_the_refusal_of_too_many_listeners_on(cluster: TestCluster) {
        let tasks = TaskGroup::new();
        reachable(&cluster, &tasks, WRITER).await;
        let api = load_balancers(cluster.harvester.client(User::Driver));
        for dry_run in [true, false] {
            let post = PostParams { dry_run, ..PostParams::default() };
            let (code, message) = refusal(api.create(&post, &object(load_balancer_with_listeners(4_000))).await);
            assert_eq!(code, 422, "{message}");
            assert!(message.contains("spec.listeners has 4000 entries, at most 100 are allowed"), "{message}");
            assert!(message.len() < 500, "{message}");
        }
        tasks.end().await;
        unregister(&cluster).await;
    }

    async fn an_object_that_stands_with_too_many_listeners_can_be_changed_but_not_grow(cluster: TestCluster) {
        let listeners = |count: u32| -> Vec<Value> {
            (1..=count).map(|n| json!({"name": format!("l{n}"), "port": n, "protocol": "TCP", "backendPort": n})).collect()
        };
        let mut old = load_balancer_with_listeners(0);
        old["spec"]["listeners"] = listeners(150).into();
        let api = load_balancers(cluster.harvester.client(User::Driver));
        api.create(&PostParams::default(), &object(old)).await.unwrap();
        let tasks = TaskGroup::new();
        reachable(&cluster, &tasks, WRITER).await;

        let patch = |spec: Value| Patch::Merge(json!({"spec": spec}));
        let params = PatchParams::default();
        api.patch("web", &params, &patch(json!({"ipPool": "edge"}))).await.unwrap();
        let (code, message) = refusal(api.patch("web", &params, &patch(json!({"listeners": listeners(151)}))).await);
        assert_eq!(code, 422, "{message}");
        assert!(message.contains("spec.listeners has 151 entries"), "{message}");
        let made = api.patch("web", &params, &patch(json!({"listeners": listeners(149)}))).await.unwrap();
        assert_eq!(made.data["spec"]["listeners"].as_array().unwrap().len(), 149);
        tasks.end().await;
        unregister(&cluster).await;
    }

    async fn an_object_that_stands_with_too_many_fields_can_be_changed_and_deleted_but_not_grow(cluster: TestCluster) {
        let mut old = load_balancer_with_listeners(1);
        old["metadata"]["finalizers"] = json!(["team-a/keep"]);
        old["metadata"]["annotations"] = (0..5_000).map(|n| (format!("n{n}"), json!(""))).collect();
        let api = load_balancers(cluster.harvester.client(User::Driver));
        api.create(&PostParams::default(), &object(old)).await.unwrap();
        let tasks = TaskGroup::new();
        reachable(&cluster, &tasks, WRITER).await;

        let patch = |metadata: Value| Patch::Merge(json!({"metadata": metadata}));
        let params = PatchParams::default();
        api.patch("web", &params, &patch(json!({"annotations": {"n0": "changed"}}))).await.unwrap();
        let (code, message) = refusal(api.patch("web", &params, &patch(json!({"annotations": {"more": ""}}))).await);
        assert_eq!(code, 422, "{message}");
        let expected = "fields and list entries beside status and metadata.managedFields, at most 3000 are allowed";
        assert!(message.contains(expected), "{message}");
        api.delete("web", &DeleteParams::default()).await.unwrap();
        api.patch("web", &params, &patch(json!({"finalizers": null}))).await.unwrap();
        assert!(api.get_opt("web").await.unwrap().is_none());
        tasks.end().await;
        unregister(&cluster).await;
    }
}
