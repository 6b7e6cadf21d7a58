//! What becomes of values: the Go charts', ours, and those that are none.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{CHARTS, args, array, container, containers, find, helm, object, render, text, try_render};

const CCM: &str = "harvester-cloud-provider";
const CSI: &str = "harvester-csi-driver";
const LB: &str = "harvester-load-balancer";

fn ccm_args(helm: &std::path::Path, options: &[&str]) -> Vec<String> {
    let rendered = render(helm, CCM, options);
    args(container(&rendered, "Deployment", CCM, CCM)).into_iter().map(str::to_owned).collect()
}

#[test]
fn extra_arguments_come_last_and_as_they_stand() {
    let Some(helm) = helm() else { return };
    let recipes = values("tests/charts/values/extra-args.yaml");
    let args = ccm_args(&helm, &[&recipes]);
    assert_eq!(
        args[args.len() - 3..],
        [
            "--controllers=cloud-node-controller,cloud-node-lifecycle-controller,node-route-controller",
            "--management-network=default/vlan-100",
            "--secure-port=10300"
        ]
    );
    let rendered = render(&helm, CCM, &[&recipes]);
    let ccm = container(&rendered, "Deployment", CCM, CCM);
    assert_eq!(ccm["readinessProbe"]["httpGet"]["port"], 10300, "the probes follow the port");
}

/// helm's flag for a file of values.
fn values(path: &str) -> String {
    format!("--values={}", super::root().join(path).display())
}

/// As `helm upgrade --reuse-values` gives them: the defaults of the Go programs' charts, what they do not read included.
#[test]
fn the_values_of_the_go_charts_are_taken() {
    let Some(helm) = helm() else { return };
    for (name, _) in CHARTS {
        let rendered = render(&helm, name, &[&values(&format!("tests/charts/values/go-{name}.yaml"))]);
        let images: BTreeSet<_> =
            containers(&rendered).map(|(_, container)| text(container, "/image")).collect();
        assert!(images.iter().any(|image| image.starts_with(&format!("rancher/{name}:"))), "{images:?}");
    }
}

#[test]
fn kube_vip_is_updated_and_watched_as_its_values_say() {
    let Some(helm) = helm() else { return };
    let strategy = |options: &[&str]| {
        let rendered = render(&helm, CCM, options);
        object(&rendered, "DaemonSet", "kube-vip")["spec"]["updateStrategy"].clone()
    };
    assert_eq!(strategy(&[]), json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}}));
    let changed = ["--set=kube-vip.updateStrategy.type=OnDelete,kube-vip.updateStrategy.rollingUpdate=null"];
    assert_eq!(strategy(&changed), json!({"type": "OnDelete"}));
    let monitored = ["--set=kube-vip.podMonitor.enabled=true,kube-vip.podMonitor.annotations.team=a"];
    let rendered = render(&helm, CCM, &monitored);
    assert_eq!(object(&rendered, "PodMonitor", "kube-vip")["metadata"]["annotations"]["team"], "a");
}

/// Prometheus scrapes of a Pod what its containers name alone. With the network of the node such a port is the node's.
#[test]
fn a_pod_monitor_asks_for_a_port_that_the_container_of_kube_vip_names() {
    let Some(helm) = helm() else { return };
    let monitored = |server: &str| {
        let server = format!("kube-vip.env.prometheus_server={server}");
        render(&helm, CCM, &["kube-vip.podMonitor.enabled=true", &server])
    };
    for (server, port) in [(":2112", 2112), ("0.0.0.0:2113", 2113), ("[::]:2114", 2114)] {
        let rendered = monitored(server);
        let kube_vip = container(&rendered, "DaemonSet", "kube-vip", "kube-vip");
        assert_eq!(kube_vip["ports"], json!([{"name": "metrics", "containerPort": port}]));
        let endpoints = &object(&rendered, "PodMonitor", "kube-vip")["spec"]["podMetricsEndpoints"];
        assert_eq!(*endpoints, json!([{"port": "metrics", "path": "/metrics"}]), "{server}");
    }
    // without metrics there is nothing to ask for, and without a monitor nobody who asks
    for rendered in [monitored(""), monitored("null"), render(&helm, CCM, &[])] {
        assert!(find(&rendered, "PodMonitor", "kube-vip").is_none());
        assert_eq!(container(&rendered, "DaemonSet", "kube-vip", "kube-vip").get("ports"), None);
    }
}

#[test]
fn a_value_of_another_type_is_refused_by_name() {
    let Some(helm) = helm() else { return };
    for (chart, option, value) in [
        (CCM, "dataPath=both", "dataPath"),
        (CCM, "metrics.port=99999", "port"),
        (CSI, "maxVolumesPerNode=300", "maxVolumesPerNode"),
        (LB, "enforceNamedPoolScope=perhaps", "enforceNamedPoolScope"),
        // the tag of a sidecar is none of ours
        (CSI, "image.csi.attacher.tag=", "/image/csi/attacher/tag"),
        // a text is true, whatever it says
        (CCM, "--set-string=kube-vip.podMonitor.enabled=false", "/podMonitor/enabled"),
        (CCM, "kube-vip.image.repository=true", "/image/repository"),
        (CCM, "kube-vip.image=null", "'image'"),
        (CCM, "kube-vip.image.repository=null", "'repository'"),
        (CCM, "kube-vip.env=one", "env"),
    ] {
        let refused = try_render(&helm, chart, &[option]).unwrap_err();
        assert!(refused.contains(value), "{option}: {refused}");
    }
}

/// helm takes a key whose value is null out of the defaults.
#[test]
fn null_takes_a_default_away() {
    let Some(helm) = helm() else { return };
    let pod_keys = ["affinity", "nodeSelector", "tolerations", "priorityClassName"];
    let taken = pod_keys.map(|key| format!("{key}=null"));
    let options: Vec<_> = taken.iter().map(String::as_str).chain(["resources=null"]).collect();
    let rendered = render(&helm, CCM, &options);
    let pod = &object(&rendered, "Deployment", CCM)["spec"]["template"]["spec"];
    let of_pod = |pod: &Value| pod_keys.into_iter().filter(|key| pod.get(key).is_some()).count();
    assert_eq!((of_pod(pod), pod["containers"][0].get("resources")), (0, None), "{pod}");

    for (chart, options) in [
        (CSI, &["nodeTolerations=null", "tolerations=null", "nodeSelector=null", "resources=null"][..]),
        (LB, &["priorityClassName=null", "resources=null", "webhook.resources=null"]),
    ] {
        let rendered = render(&helm, chart, options);
        for (pod, container) in containers(&rendered) {
            assert_eq!(container.get("resources"), None, "{chart}");
            assert!(["nodeSelector", "tolerations"].iter().all(|key| pod.get(key).is_none()), "{chart}");
            assert_eq!(pod.get("priorityClassName").is_none(), chart == LB, "{pod}");
        }
    }

    let kube_vip = ["env", "config", "podMonitor", "tolerations", "affinity", "priorityClassName"];
    let kube_vip = kube_vip.map(|key| format!("kube-vip.{key}=null"));
    let rendered = render(&helm, CCM, &kube_vip.each_ref().map(String::as_str));
    let pod = &object(&rendered, "DaemonSet", "kube-vip")["spec"]["template"]["spec"];
    assert_eq!((of_pod(pod), array(pod, "/containers/0/env").len()), (0, 0), "{pod}");

    for chart in [CCM, CSI] {
        let rendered = render(&helm, chart, &["cloudConfig.rotate=null"]);
        assert!(rendered.iter().all(|object| !object.to_string().contains("rotated")), "{chart}");
    }
    let host = ["cloudConfigPath=null", "cloudConfig.hostPath=/opt/harvester/b"];
    assert_eq!(ccm_args(&helm, &host)[0], "--cloud-config=/etc/kubernetes/cloud-config/b");
    // and where nothing can be meant by it, the default stays
    for options in [["image=null", "metrics=null"], ["replicasCount=null", "podDisruptionBudget=null"]] {
        for (chart, _) in CHARTS {
            assert_eq!(render(&helm, chart, &options), render(&helm, chart, &[]), "{chart}");
        }
    }
}

/// docs/contract/load-balancer.md#CH-1, #CH-3 and #WH-10.
#[test]
fn both_spellings_of_a_value_of_the_load_balancer_are_taken() {
    let Some(helm) = helm() else { return };
    let replicas =
        |options: &[&str]| object(&render(&helm, LB, options), "Deployment", LB)["spec"]["replicas"].clone();
    assert_eq!([replicas(&[]), replicas(&["replicaCount=3"]), replicas(&["replicasCount=2"])], [1, 3, 2]);
    let rendered = render(&helm, LB, &["image.imagePullPolicy=Always", "webhook.httpsPort=9443"]);
    assert_eq!(container(&rendered, "Deployment", LB, LB)["imagePullPolicy"], "Always");
    let name = "harvester-load-balancer-webhook";
    let webhook = container(&rendered, "Deployment", name, name);
    assert!(
        array(webhook, "/env")
            .contains(&json!({"name": "HARVESTER_WEBHOOK_SERVER_HTTPS_PORT", "value": "9443"}))
    );
    let port = &object(&rendered, "Service", name)["spec"]["ports"][0];
    assert_eq!((&port["port"], &port["targetPort"]), (&json!(443), &json!(9443)));
}
