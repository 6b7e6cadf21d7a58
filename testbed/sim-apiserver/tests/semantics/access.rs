//! Access: RBAC, reviews, tokens, the audit log, aggregated APIs.

use std::convert::Infallible;
use std::pin::pin;

use axum::body::Body;
use futures::StreamExt as _;
use http::{Request, Response};
use k8s_openapi::api::authentication::v1::{SelfSubjectReview, TokenRequest, TokenReview};
use k8s_openapi::api::authorization::v1::{SelfSubjectAccessReview, SelfSubjectRulesReview};
use k8s_openapi::api::core::v1::{ConfigMap, Secret, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, Role, RoleBinding};
use kube::api::{DeleteParams, ListParams, PostParams, WatchEvent, WatchParams};
use kube::{Api, Client};
use rstest::rstest;
use serde_json::{Value, json};
use sim_apiserver::{ApiServer, User};

use crate::support::{cluster, config_map, object, refusal};

const CCM: &str = "system:serviceaccount:kube-system:ccm";

async fn grant(client: &Client, rules: Value) {
    let roles: Api<Role> = Api::namespaced(client.clone(), "shop");
    let role = object(json!({"metadata": {"name": "ccm"}, "rules": rules}));
    roles.create(&PostParams::default(), &role).await.unwrap();
    let bindings: Api<RoleBinding> = Api::namespaced(client.clone(), "shop");
    let binding = object(json!({
        "metadata": {"name": "ccm"}, "roleRef": {"kind": "Role", "name": "ccm"},
        "subjects": [{"kind": "ServiceAccount", "namespace": "kube-system", "name": "ccm"}],
    }));
    bindings.create(&PostParams::default(), &binding).await.unwrap();
}

fn maps(client: &Client) -> Api<ConfigMap> {
    Api::namespaced(client.clone(), "shop")
}

#[tokio::test(start_paused = true)]
async fn nothing_is_allowed_that_no_rule_allows() {
    let (server, admin) = cluster();
    let ccm = server.client(CCM);
    let status = refusal(maps(&ccm).list(&ListParams::default()).await);
    assert_eq!(status.code, 403);
    assert_eq!(
        status.message,
        "configmaps is forbidden: User \"system:serviceaccount:kube-system:ccm\" cannot list resource \"configmaps\" in API group \"\" in the namespace \"shop\""
    );
    grant(&admin, json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list"]}])).await;
    maps(&ccm).list(&ListParams::default()).await.unwrap();
    assert_eq!(refusal(maps(&ccm).get("a").await).code, 403);
    assert_eq!(refusal(Api::<ConfigMap>::all(ccm).list(&ListParams::default()).await).code, 403);
}

#[tokio::test(start_paused = true)]
async fn a_write_that_would_create_needs_the_right_to_create() {
    let (server, admin) = cluster();
    let ccm = server.client(CCM);
    grant(&admin, json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["patch"]}])).await;
    let apply =
        kube::api::Patch::Apply(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}));
    let params = kube::api::PatchParams::apply("ccm");
    let status = refusal(maps(&ccm).patch("a", &params, &apply).await);
    assert!(status.message.contains("cannot create resource"), "{}", status.message);
    maps(&admin).create(&PostParams::default(), &config_map("a", "1")).await.unwrap();
    maps(&ccm).patch("a", &params, &apply).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn rights_end_with_their_binding() {
    let (server, admin) = cluster();
    let ccm = server.client(CCM);
    grant(&admin, json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["*"]}])).await;
    maps(&ccm).create(&PostParams::default(), &config_map("a", "1")).await.unwrap();
    let bindings: Api<RoleBinding> = Api::namespaced(admin, "shop");
    bindings.delete("ccm", &DeleteParams::default()).await.unwrap();
    assert_eq!(refusal(maps(&ccm).get("a").await).code, 403);
}

#[tokio::test(start_paused = true)]
async fn a_rule_can_name_objects_and_subresources() {
    let (server, admin) = cluster();
    let ccm = server.client(CCM);
    grant(
        &admin,
        json!([
            {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["a"], "verbs": ["get"]},
            {"apiGroups": [""], "resources": ["services/status"], "verbs": ["patch"]},
        ]),
    )
    .await;
    for name in ["a", "b"] {
        maps(&admin).create(&PostParams::default(), &config_map(name, "1")).await.unwrap();
    }
    maps(&ccm).get("a").await.unwrap();
    assert_eq!(refusal(maps(&ccm).get("b").await).code, 403);
    let review = async |resource: &str, subresource: &str| {
        let reviews: Api<SelfSubjectAccessReview> = Api::all(ccm.clone());
        let review = object(json!({"spec": {"resourceAttributes": {
            "verb": "patch", "resource": resource, "subresource": subresource, "namespace": "shop",
        }}}));
        reviews.create(&PostParams::default(), &review).await.unwrap().status.unwrap().allowed
    };
    assert!(review("services", "status").await);
    assert!(!review("services", "").await);
}

/// The real server takes the name from the field selector, of lists and watches alone.
#[tokio::test(start_paused = true)]
async fn a_rule_for_one_object_lets_list_and_watch_that_one_by_its_name() {
    let (server, admin) = cluster();
    let ccm = server.client(CCM);
    let one = json!([{"apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["a"],
        "verbs": ["list", "watch", "deletecollection"]}]);
    grant(&admin, one).await;
    for name in ["a", "b"] {
        maps(&admin).create(&PostParams::default(), &config_map(name, "1")).await.unwrap();
    }
    let of = |fields: &str| ListParams::default().fields(fields);
    for fields in ["metadata.name=a", "metadata.namespace=shop,metadata.name==a"] {
        let found = maps(&ccm).list(&of(fields)).await.unwrap();
        assert_eq!(found.items.len(), 1, "{fields}");
    }
    let only = WatchParams::default().fields("metadata.name=a");
    let mut events = pin!(maps(&ccm).watch(&only, "0").await.unwrap());
    assert!(matches!(events.next().await, Some(Ok(WatchEvent::Added(_)))));
    for fields in ["", "metadata.name!=a", "metadata.namespace=shop"] {
        assert_eq!(refusal(maps(&ccm).list(&of(fields)).await).code, 403, "{fields}");
    }
    let status = refusal(maps(&ccm).list(&of("metadata.name=b")).await);
    assert!(status.message.starts_with("configmaps \"b\" is forbidden: "), "{}", status.message);
    let all = maps(&ccm).delete_collection(&DeleteParams::default(), &of("metadata.name=a")).await;
    assert_eq!(refusal(all).code, 403);
}

#[tokio::test(start_paused = true)]
async fn everybody_may_ask_about_himself() {
    let (server, _admin) = cluster();
    let ccm = server.client(CCM);
    let whoami: Api<SelfSubjectReview> = Api::all(ccm.clone());
    let me = whoami.create(&PostParams::default(), &SelfSubjectReview::default()).await.unwrap();
    let me = me.status.unwrap().user_info.unwrap();
    assert_eq!(me.username.as_deref(), Some(CCM));
    assert!(me.groups.unwrap().contains(&"system:serviceaccounts:kube-system".to_owned()));
    let rules: Api<SelfSubjectRulesReview> = Api::all(ccm);
    let review = object(json!({"spec": {"namespace": "shop"}}));
    let status = rules.create(&PostParams::default(), &review).await.unwrap().status.unwrap();
    assert!(!status.incomplete && !status.resource_rules.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_token_of_a_service_account_is_known_to_the_server() {
    let (_server, admin) = cluster();
    let accounts: Api<ServiceAccount> = Api::namespaced(admin.clone(), "kube-system");
    let account = object(json!({"metadata": {"name": "ccm"}}));
    accounts.create(&PostParams::default(), &account).await.unwrap();
    let request: TokenRequest = object(json!({"spec": {"audiences": []}}));
    let token = accounts.create_token_request("ccm", &PostParams::default(), &request).await.unwrap();
    let token = token.status.unwrap().token;
    let reviews: Api<TokenReview> = Api::all(admin);
    let review = async |token: &str| {
        let review = object(json!({"spec": {"token": token}}));
        reviews.create(&PostParams::default(), &review).await.unwrap().status.unwrap()
    };
    assert_eq!(review(&token).await.user.unwrap().username.as_deref(), Some(CCM));
    assert_ne!(review("wrong").await.authenticated, Some(true));
}

/// An account of namespace `kube-system`, a way to ask whose a token is, and the namespace's Secrets.
async fn account(admin: &Client) -> (ServiceAccount, Api<ServiceAccount>, Api<Secret>) {
    let accounts: Api<ServiceAccount> = Api::namespaced(admin.clone(), "kube-system");
    let account = object(json!({"metadata": {"name": "ccm"}}));
    let account = accounts.create(&PostParams::default(), &account).await.unwrap();
    (account, accounts, Api::namespaced(admin.clone(), "kube-system"))
}

async fn is_known(admin: &Client, token: &str) -> bool {
    let reviews: Api<TokenReview> = Api::all(admin.clone());
    let review = object(json!({"spec": {"token": token}}));
    let answer = reviews.create(&PostParams::default(), &review).await.unwrap().status.unwrap();
    answer.authenticated == Some(true) && answer.user.unwrap().username.as_deref() == Some(CCM)
}

#[tokio::test(start_paused = true)]
async fn a_secret_of_an_account_gets_its_token_and_takes_it_along() {
    let (_server, admin) = cluster();
    let (account, accounts, secrets) = account(&admin).await;
    let secret = |name: &str, uid: &str| {
        object(
            json!({"type": "kubernetes.io/service-account-token", "metadata": {"name": name, "annotations": {
            "kubernetes.io/service-account.name": "ccm", "kubernetes.io/service-account.uid": uid}}}),
        )
    };
    let uid = account.metadata.uid.unwrap();
    secrets.create(&PostParams::default(), &secret("ccm-token", &uid)).await.unwrap();
    secrets.create(&PostParams::default(), &secret("of-another", "7")).await.unwrap();
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    let data = secrets.get("ccm-token").await.unwrap().data.unwrap();
    let token = String::from_utf8(data["token"].0.clone()).unwrap();
    assert!(data["ca.crt"].0.starts_with(b"-----BEGIN CERTIFICATE"));
    assert!(is_known(&admin, &token).await);
    assert!(secrets.get_opt("of-another").await.unwrap().is_none());
    secrets.delete("ccm-token", &DeleteParams::default()).await.unwrap();
    assert!(!is_known(&admin, &token).await);
    drop(accounts);
}

#[tokio::test(start_paused = true)]
async fn a_token_that_was_asked_for_ends_by_time_and_with_what_it_is_bound_to() {
    let (_server, admin) = cluster();
    let (_, accounts, secrets) = account(&admin).await;
    let anchor = object(json!({"metadata": {"name": "anchor"}}));
    secrets.create(&PostParams::default(), &anchor).await.unwrap();
    let ask = async |spec: Value| {
        let request: TokenRequest = object(json!({"spec": spec}));
        accounts.create_token_request("ccm", &PostParams::default(), &request).await
    };
    let bound = json!({"audiences": [], "expirationSeconds": 1200,
        "boundObjectRef": {"kind": "Secret", "apiVersion": "v1", "name": "anchor"}});
    let first = ask(bound.clone()).await.unwrap().status.unwrap().token;
    assert!(is_known(&admin, &first).await);
    tokio::time::advance(std::time::Duration::from_secs(1201)).await;
    assert!(!is_known(&admin, &first).await);
    let second = ask(bound.clone()).await.unwrap().status.unwrap().token;
    assert!(is_known(&admin, &second).await);
    secrets.delete("anchor", &DeleteParams::default()).await.unwrap();
    assert!(!is_known(&admin, &second).await);
    assert_eq!(refusal(ask(bound).await).code, 404);
    assert_eq!(refusal(ask(json!({"audiences": [], "expirationSeconds": 599})).await).code, 400);
}

#[tokio::test(start_paused = true)]
async fn every_request_is_recorded_with_its_user_and_answer() {
    let (server, admin) = cluster();
    let before = server.audit().total();
    maps(&admin).create(&PostParams::default(), &config_map("a", "1")).await.unwrap();
    assert!(maps(&server.client("eve")).delete("a", &DeleteParams::default()).await.is_err());
    let seen: Vec<_> = server
        .audit()
        .since(before)
        .into_iter()
        .map(|record| (record.user, record.verb, record.uri, record.code))
        .collect();
    let path = "/api/v1/namespaces/shop/configmaps";
    let record = |user: &str, verb: &str, uri: String, code| (user.to_owned(), verb.to_owned(), uri, code);
    assert_eq!(
        seen,
        [
            record("admin", "create", format!("{path}?"), 201),
            record("eve", "delete", format!("{path}/a?"), 403)
        ]
    );
}

#[test]
fn the_audit_log_can_be_a_file_too() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit.log");
    let server = ApiServer::builder().audit_file(&path).try_build().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { server.client("admin").apiserver_version().await.unwrap() });
    let lines = std::fs::read_to_string(path).unwrap();
    let line: Value = serde_json::from_str(lines.lines().next().unwrap()).unwrap();
    assert_eq!(
        (&line["user"], &line["uri"], &line["code"]),
        (&json!("admin"), &json!("/version"), &json!(200))
    );
    assert!(ApiServer::builder().audit_file("/nowhere/audit.log").try_build().is_err());
}

#[rstest]
#[case(User::admin(), "", 200)]
#[case(User::named("eve"), "", 403)]
#[case(User::named("eve"), "/x", 403)]
#[tokio::test(start_paused = true)]
async fn an_aggregated_api_answers_after_the_servers_own_checks(
    #[case] user: User,
    #[case] rest: &str,
    #[case] code: u16,
) {
    let (server, _admin) = cluster();
    let service = tower::service_fn(|request: Request<Body>| async move {
        let user = request.headers()["x-remote-user"].to_str().unwrap();
        let answer = json!({"path": request.uri().path(), "user": user});
        Ok::<_, Infallible>(Response::new(Body::from(answer.to_string())))
    });
    server.aggregate("subresources.kubevirt.io", service);
    let path = format!("/apis/subresources.kubevirt.io/v1/namespaces/shop/virtualmachines/vm/start{rest}");
    let request = Request::put(&path).body(vec![]).unwrap();
    match server.client(user).request::<Value>(request).await {
        Ok(answer) => assert_eq!((answer, code), (json!({"path": path, "user": "admin"}), 200)),
        refused => assert_eq!(refusal(refused).code, code),
    }
}

#[tokio::test(start_paused = true)]
async fn a_cluster_role_bound_in_a_namespace_holds_there() {
    let (server, admin) = cluster();
    let roles: Api<ClusterRole> = Api::all(admin.clone());
    let role = object(json!({
        "metadata": {"name": "example.com:cloud-provider"},
        "rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list"]}],
    }));
    roles.create(&PostParams::default(), &role).await.unwrap();
    let bindings: Api<RoleBinding> = Api::namespaced(admin, "shop");
    let binding = object(json!({
        "metadata": {"name": "ccm"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "example.com:cloud-provider"},
        "subjects": [{"kind": "ServiceAccount", "namespace": "shop", "name": "ccm"}],
    }));
    bindings.create(&PostParams::default(), &binding).await.unwrap();
    let ccm = server.client(User::service_account("shop", "ccm"));
    maps(&ccm).list(&ListParams::default()).await.unwrap();
    let elsewhere: Api<ConfigMap> = Api::namespaced(ccm, "default");
    assert_eq!(refusal(elsewhere.list(&ListParams::default()).await).code, 403);
}

#[tokio::test(start_paused = true)]
async fn acting_as_another_needs_the_right_to_and_gives_his_rights() {
    let (server, admin) = cluster();
    let list = |user: &str| {
        Request::get("/api/v1/namespaces/shop/configmaps")
            .header("impersonate-user", user)
            .body(vec![])
            .unwrap()
    };
    let status = refusal(admin.request::<Value>(list("eve")).await);
    assert!(status.message.contains("User \"eve\" cannot list"), "{}", status.message);
    let status = refusal(server.client("eve").request::<Value>(list("admin")).await);
    assert!(
        status.message.contains("User \"eve\" cannot impersonate resource \"users\""),
        "{}",
        status.message
    );
}
