//! The webhook behind both API servers.

use std::time::Duration;

use harvester_api::IPPool;
use ip_pools::managers;
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use load_balancer_webhook::{Address, Metrics, prepare};
use program::{Clock, TaskGroup};
use prometheus_client::{encoding::text::encode, registry::Registry};
use serde_json::json;
use test_cluster::addresses::{create_pool, record_of};
use test_cluster::{TestCluster, User};

use super::fixtures::{
    Controller, WRITER, config, controller, global_pool, http, load_balancers, object, policy, pools,
    reachable, refusal, unregister, web,
};

test_cluster::component_tests! {
    async fn the_api_server_refuses_and_completes_by_the_rules(cluster: TestCluster) {
        let tasks = TaskGroup::new();
        reachable(&cluster, &tasks, WRITER).await;
        let (driver, writer) =
            (cluster.harvester.client(User::Driver), cluster.harvester.client(User::LoadBalancer));
        let post = PostParams::default();

        let answer = load_balancers(driver.clone()).create(&post, &object(web(&json!([])))).await;
        let (code, message) = refusal(answer);
        assert_eq!(code, 422, "{message}");
        assert!(
            message
                .contains("create loadbalancer team-a/web failed: the load balancer needs at least one listener"),
            "{message}"
        );

        // an object as the UI makes it, with a forged status
        let mut forged = web(&http());
        forged["status"] = json!({"allocatedAddress": {"ip": "203.0.113.1"}, "address": "203.0.113.1"});
        let made = load_balancers(driver.clone()).create(&post, &object(forged)).await.unwrap();
        assert_eq!(
            made.metadata.annotations.clone().unwrap()["loadbalancer.harvesterhci.io/namespace"],
            "team-a"
        );
        assert_eq!(
            made.data["spec"]["healthCheck"],
            json!({"port": 8080, "successThreshold": 2, "failureThreshold": 2, "periodSeconds": 1, "timeoutSeconds": 1})
        );
        assert!(made.data["status"].is_null(), "{}", made.data);

        // its controller gives it an address; a replace without status does not take it away
        let mut given = made.clone();
        let status =
            json!({"allocatedAddress": {"ip": "203.0.113.9", "ipPool": "edge"}, "address": "203.0.113.9"});
        given.data["status"] = status.clone();
        let given = load_balancers(writer.clone()).replace("web", &post, &given).await.unwrap();
        assert_eq!(given.data["status"], status);
        let mut wiped = given.clone();
        wiped.data.as_object_mut().unwrap().remove("status");
        let kept = load_balancers(driver.clone()).replace("web", &post, &wiped).await.unwrap();
        assert_eq!(kept.data["status"], status);
        let change = Patch::Merge(json!({"spec": {"ipam": "pool"}}));
        let (code, message) =
            refusal(load_balancers(driver.clone()).patch("web", &PatchParams::default(), &change).await);
        assert_eq!(code, 422);
        assert!(message.contains("can't change the IPAM from dhcp to pool"), "{message}");

        // pools: labels, overlap, the record
        let made = pools(driver.clone()).create(&post, &global_pool("edge", "203.0.113.0/24")).await.unwrap();
        assert_eq!(made.metadata.labels.clone().unwrap()["loadbalancer.harvesterhci.io/global-ip-pool"], "true");
        let (code, message) =
            refusal(pools(driver.clone()).create(&post, &global_pool("other", "203.0.113.128/25")).await);
        assert_eq!(code, 422);
        assert!(
            message.contains("can't create IP pool other because the ranges overlap with other pools"),
            "{message}"
        );
        assert!(message.contains("; there is already a global IP pool: edge"), "{message}");
        let mut recorded = made;
        let record = json!({"total": 253, "available": 252, "lastAllocated": "203.0.113.9", "allocated": {"203.0.113.9": "team-a/web"}});
        recorded.data["status"] = record.clone();
        let mut robbed = pools(writer).replace("edge", &post, &recorded).await.unwrap();
        robbed.data["status"]["allocated"]["203.0.113.9"] = "evil/lb".into();
        let kept = pools(driver.clone()).replace("edge", &post, &robbed).await.unwrap();
        assert_eq!(kept.data["status"], record);
        let (code, message) = refusal(pools(driver).delete("edge", &Default::default()).await);
        assert_eq!(code, 403);
        assert!(
            message.contains("can't delete IP pool edge because can't delete pool before releasing"),
            "{message}"
        );
        tasks.end().await;
        unregister(&cluster).await;
    }

    async fn the_end_of_the_certificate_is_told_to_prometheus(cluster: TestCluster) {
        let (tasks, metrics) = (TaskGroup::new(), Metrics::default());
        let told = || {
            let (mut registry, mut text) = (Registry::default(), String::new());
            metrics.register(&mut registry);
            encode(&mut text, &registry).unwrap();
            let line = "harvester_load_balancer_webhook_certificate_expiration_timestamp_seconds ";
            text.lines().find_map(|of| of.strip_prefix(line)?.parse::<i64>().ok()).unwrap()
        };
        assert_eq!(told(), 0);
        let (client, clock) = (cluster.harvester.client(User::Webhook), Clock::starting_at(cluster.start()));
        let config = config(Address::Service, policy(WRITER));
        let _served = prepare(client, clock, config, &metrics, &tasks).await.unwrap();
        cluster.settle().await;
        // a year, in days that begin at midnight
        let days = (told() - cluster.start().as_second()) / 86_400;
        assert!((363..=366).contains(&days), "{days}");
        tasks.end().await;
        unregister(&cluster).await;
    }

    async fn the_maker_of_a_record_is_known_after_a_replace_without_status(cluster: TestCluster) {
        // docs/contract/addresses.md#8: providers of Cluster API hold addresses for machines, and only they may release
        // them
        let tasks = TaskGroup::new();
        reachable(&cluster, &tasks, WRITER).await;
        let (driver, writer) =
            (pools(cluster.harvester.client(User::Driver)), pools(cluster.harvester.client(User::LoadBalancer)));
        let by = |manager: &str| PostParams { field_manager: Some(manager.to_owned()), ..PostParams::default() };
        let makers = |pool: &DynamicObject| {
            let pool: IPPool = serde_json::from_value(serde_json::to_value(pool).unwrap()).unwrap();
            [[203, 0, 113, 9], [203, 0, 113, 10]].map(|address| managers::foreign(&pool, address.into()))
        };
        let expected = [None, Some("capi".to_owned())];

        let mut pool = driver.create(&by("kubectl"), &global_pool("edge", "203.0.113.0/24")).await.unwrap();
        pool.data["status"] = json!({"total": 253, "available": 252, "lastAllocated": "203.0.113.9",
            "allocated": {"203.0.113.9": "team-a/web"}});
        let mut pool = writer.replace("edge", &by(managers::OURS), &pool).await.unwrap();
        pool.data["status"]["allocated"]["203.0.113.10"] = "machines/node-1".into();
        let pool = driver.replace("edge", &by("capi"), &pool).await.unwrap();
        assert_eq!(makers(&pool), expected);
        let status = pool.data["status"].clone();

        let mut wiped = pool.clone();
        wiped.data.as_object_mut().unwrap().remove("status");
        wiped.metadata.managed_fields = None;
        let kept = driver.replace("edge", &by("kubectl-replace"), &wiped).await.unwrap();
        assert_eq!((&kept.data["status"], makers(&kept)), (&status, expected.clone()));
        // a user who tries to take a record does not become its maker, who might remove it
        let mut robbed = kept.clone();
        for address in ["203.0.113.9", "203.0.113.10"] {
            robbed.data["status"]["allocated"][address] = "evil/lb".into();
        }
        let kept = driver.replace("edge", &by("evil"), &robbed).await.unwrap();
        assert_eq!((&kept.data["status"], makers(&kept)), (&status, expected));
        // another program may remove its own records, and nothing else
        let mut removed = kept;
        removed.data["status"]["allocated"] = json!({});
        let left = driver.replace("edge", &by("capi"), &removed).await.unwrap();
        assert_eq!(left.data["status"]["allocated"], json!({"203.0.113.9": "team-a/web"}));
        tasks.end().await;
        unregister(&cluster).await;
    }

    #[simulated_only("the record garbage collector waits half a minute")]
    async fn a_foreign_record_outlives_a_replace_without_status_and_a_restart(cluster: TestCluster) {
        let tasks = TaskGroup::new();
        reachable(&cluster, &tasks, WRITER).await;
        let running = controller(&cluster).await;
        create_pool(&cluster, "edge", 10, 20).await;
        cluster.settle().await;
        let foreign = json!({"status": {"allocated": {"192.0.2.19": "machines/node-1"}}});
        cluster.harvester.patch::<IPPool>("edge", foreign).await;
        let pools = pools(cluster.harvester.client(User::Driver));
        let mut wiped = pools.get("edge").await.unwrap();
        wiped.data.as_object_mut().unwrap().remove("status");
        wiped.metadata.managed_fields = None;
        pools.replace("edge", &PostParams::default(), &wiped).await.unwrap();
        running.stop().await;
        let _again = Controller::start(&cluster, "two");
        cluster.advance(Duration::from_secs(300)).await;
        assert_eq!(record_of(&cluster, "edge").await.allocated["192.0.2.19"], "machines/node-1");
        tasks.end().await;
        unregister(&cluster).await;
    }
}
