//! An unmodified kubectl at the socket: what people type at the sandbox.

use outside_tools::kubectl::Kubectl;
use sim_apiserver::{ApiServer, User};
use tokio::net::TcpListener;

use crate::support::cluster;

/// A server, and kubectl as its administrator in namespace `shop`; none where the machine has no kubectl.
async fn open() -> Option<(ApiServer, Kubectl)> {
    let kubectl = Kubectl::find("shop")?;
    let (server, _client) = cluster();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    kubectl.file("kubeconfig", &server.kubeconfig(User::admin(), listener.local_addr().unwrap()));
    let serving = server.clone();
    tokio::spawn(async move { serving.serve(listener).await });
    Some((server, kubectl))
}

#[tokio::test]
async fn what_kubectl_prints_as_a_list_it_reads_again() {
    let Some((_server, kubectl)) = open().await else { return };
    kubectl.works("create configmap settings --from-literal=size=3").await;
    let list = kubectl.works("get configmaps -o yaml").await;
    assert!(list.contains("kind: List"), "{list}");
    kubectl.file("list.yaml", &list);
    assert_eq!(kubectl.works("replace -f list.yaml").await, "configmap/settings replaced\n");
    kubectl.works("apply -f list.yaml").await;
    assert_eq!(kubectl.works("diff -f list.yaml").await, "");
    kubectl.works("delete -f list.yaml").await;
    assert_eq!(kubectl.works("create -f list.yaml").await, "configmap/settings created\n");
    let typed = list.replace("  data:", "  dta:");
    kubectl.file("list.yaml", &typed);
    let told = kubectl.fails("apply -f list.yaml").await;
    assert!(told.contains("unknown field \"dta\""), "{told}");
}

#[tokio::test]
async fn a_misspelt_kind_is_named() {
    let Some((_server, kubectl)) = open().await else { return };
    kubectl.file("object.yaml", "{apiVersion: v1, kind: Servise, metadata: {name: web}}");
    for verb in ["apply", "create"] {
        let told = kubectl.fails(&format!("{verb} -f object.yaml")).await;
        assert!(told.contains("no matches for kind \"Servise\" in version \"v1\""), "{told}");
    }
}

#[tokio::test]
async fn a_node_is_drained_and_its_pods_are_debugged() {
    let Some((server, kubectl)) = open().await else { return };
    kubectl.file(
        "objects.yaml",
        "{apiVersion: v1, kind: List, items: [
            {apiVersion: v1, kind: Node, metadata: {name: n1}},
            {apiVersion: v1, kind: Pod, metadata: {name: web},
             spec: {nodeName: n1, containers: [{name: web, image: web}]}}]}",
    );
    kubectl.works("create -f objects.yaml").await;
    kubectl.works("debug web --image=tools").await;
    let added = kubectl.works("get pod web -o jsonpath={.spec.ephemeralContainers[*].image}").await;
    assert_eq!(added, "tools");
    kubectl.works("debug node/n1 --image=tools").await;
    let told = kubectl.works("drain n1 --force").await;
    assert!(told.contains("pod/web evicted") && told.contains("node/n1 drained"), "{told}");
    assert_eq!(kubectl.works("get pods -o name").await, "");
    let evictions = server.audit().records();
    let evictions = evictions.iter().filter(|r| r.uri.contains("/eviction")).map(|r| (&*r.verb, r.code));
    assert_eq!(evictions.collect::<Vec<_>>(), [("create", 201), ("create", 201)]);
    kubectl
        .file("empty.yaml", "{apiVersion: v1, kind: Pod, metadata: {name: empty}, spec: {containers: []}}");
    let told = kubectl.fails("create -f empty.yaml").await;
    assert!(told.contains("spec.containers: Required value"), "{told}");
}

#[tokio::test]
async fn an_edit_that_makes_no_sense_is_shown_again() {
    let Some((_server, kubectl)) = open().await else { return };
    kubectl.works("create service clusterip web --tcp=80").await;
    kubectl.editor("port: 80$", "port: wrong", "port: 81");
    kubectl.works("edit service web").await;
    let told = kubectl.told();
    assert!(told.contains("# services \"web\" was not valid:"), "{told}");
    assert_eq!(kubectl.works("get service web -o jsonpath={.spec.ports[0].port}").await, "81");
}

#[tokio::test]
async fn the_roles_for_people_give_what_they_give_everywhere() {
    let Some((_server, kubectl)) = open().await else { return };
    for (role, user) in [("view", "vera"), ("edit", "edith"), ("admin", "adam")] {
        kubectl.works(&format!("create rolebinding {role} --clusterrole={role} --user={user}")).await;
    }
    for (user, right, answer) in [
        ("vera", "list services", true),
        ("vera", "list secrets", false),
        ("vera", "create services", false),
        ("edith", "create services", true),
        ("edith", "create rolebindings", false),
        ("adam", "create rolebindings", true),
        ("adam", "list nodes", false),
    ] {
        let (can, told) = kubectl.run(&format!("auth can-i {right} --as {user}")).await;
        assert_eq!(can, answer, "{user} {right}: {told}");
    }
    kubectl.works("create rolebinding also --clusterrole=edit --user=joe --as adam").await;
    let told =
        kubectl.fails("create rolebinding root --clusterrole=cluster-admin --user=adam --as adam").await;
    assert!(told.contains("attempting to grant RBAC permissions not currently held"), "{told}");
}
