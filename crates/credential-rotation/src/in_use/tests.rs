use std::sync::{Arc, Mutex};

use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
};
use cloud_config::proxy::Environment;
use http::{Request, Response};
use kube::client::Body;
use rstest::rstest;
use serde_json::{Value, json};

use super::*;

const DAY: i64 = 24 * 3600;

fn token(account: &str, ends: i64) -> String {
    let claims = json!({"sub": format!("system:serviceaccount:vms:{account}"), "iat": 0, "exp": ends,
        "kubernetes.io": {"secret": {"name": format!("{account}-credentials")}}});
    format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(claims.to_string()))
}

fn kubeconfig(token: &str) -> String {
    format!(
        "{{current-context: a, clusters: [{{name: a, cluster: {{server: 'https://harvester.example'}}}}],
           users: [{{name: a, user: {{token: '{token}'}}}}],
           contexts: [{{name: a, context: {{cluster: a, user: a, namespace: vms}}}}]}}"
    )
}

fn config(text: &str) -> CloudConfig {
    CloudConfig::parse(text, "cloud-config", &Environment::default()).unwrap()
}

fn answer(code: u16, body: &Value) -> Response<Body> {
    Response::builder().status(code).body(Body::from(body.to_string().into_bytes())).unwrap()
}

fn status(code: u16, reason: &str) -> Response<Body> {
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason,
        "message": reason, "code": code});
    answer(code, &status)
}

const DEPLOYMENTS: &str = "/apis/apps/v1/deployments";
const BINDINGS: &str = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";

/// A guest cluster with these Secrets, as content or as an answer's code, and with nothing else; and what was asked for.
fn guest(secrets: [(&'static str, Result<String, u16>); 2]) -> (Client, Arc<Mutex<Vec<String>>>) {
    guest_with(secrets, Ok([json!({"items": [], "metadata": {}}), json!({"items": [], "metadata": {}})]))
}

/// The same with Deployments and ClusterRoleBindings, or with none that may be read.
fn guest_with(
    secrets: [(&'static str, Result<String, u16>); 2],
    lists: Result<[Value; 2], u16>,
) -> (Client, Arc<Mutex<Vec<String>>>) {
    let asked: Arc<Mutex<Vec<String>>> = Arc::default();
    let seen = asked.clone();
    let service = tower::service_fn(move |request: Request<Body>| {
        let path = request.uri().path().to_owned();
        let named = |name: &str| {
            let (namespace, name) = name.split_once('/').unwrap_or(("kube-system", name));
            path == format!("/api/v1/namespaces/{namespace}/secrets/{name}")
        };
        let found = secrets.iter().find(|(name, _)| named(name));
        let answer = match found {
            None if path == DEPLOYMENTS || path == BINDINGS => match &lists {
                Ok([deployments, _]) if path == DEPLOYMENTS => answer(200, deployments),
                Ok([_, bindings]) => answer(200, bindings),
                Err(_) => status(403, "Forbidden"),
            },
            Some((name, Ok(text))) => {
                let data =
                    if text.is_empty() { json!({}) } else { json!({"cloud-config": STANDARD.encode(text)}) };
                answer(
                    200,
                    &json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": data}),
                )
            }
            Some((_, Err(403))) => status(403, "Forbidden"),
            _ => status(404, "NotFound"),
        };
        seen.lock().unwrap().push(path);
        async { Ok::<_, std::io::Error>(answer) }
    });
    (Client::new(service, "default"), asked)
}

/// A Harvester that refuses tokens that end on this day.
fn harvester(refused: Option<i64>) -> Arc<Connect> {
    Arc::new(move |config: &CloudConfig| {
        let ends = config.token().and_then(Claims::of).and_then(|claims| claims.ends);
        let is_refused = ends.map(jiff::Timestamp::as_second) == refused.map(|day| day * DAY);
        let service = tower::service_fn(move |_: Request<Body>| {
            let version = json!({"major": "1", "minor": "33", "gitVersion": "v1.33.0", "gitCommit": "",
                "gitTreeState": "", "buildDate": "", "goVersion": "", "compiler": "", "platform": ""});
            let answer = if is_refused { status(401, "Unauthorized") } else { answer(200, &version) };
            async { Ok::<_, std::io::Error>(answer) }
        });
        Ok(Client::new(service, "default"))
    })
}

const PROVIDER: &str = "harvester-cloud-provider-rotated";
const DRIVER: &str = "harvester-csi-driver-rotated";

/// The copy of `given` whose token ends on this day.
fn copy(given: &str, day: i64) -> String {
    places::copy(given, &kubeconfig(&token("demo", day * DAY)))
}

fn end(config: &CloudConfig) -> i64 {
    Claims::of(config.token().unwrap()).unwrap().ends.unwrap().as_second() / DAY
}

// what the two Secrets hold, a token that Harvester refuses, the end of the token in use, who renews it, and words of the note
#[rstest]
#[case::rotated(|of: &str| [Ok(copy(of, 60)), Err(404)], None, 60, Some(PROVIDER), "rotated has a newer token")]
#[case::by_the_driver(|of: &str| [Err(404), Ok(copy(of, 60))], None, 60, Some(DRIVER), "driver-rotated has a newer")]
#[case::one_release_is_gone(|of: &str| [Ok(copy(of, 40)), Ok(copy(of, 60))], None, 60, Some(DRIVER), "has a newer token")]
#[case::not_yet(|_: &str| [Ok(String::new()), Err(404)], None, 30, Some(PROVIDER), "no newer token yet")]
#[case::of_another(|_: &str| [Err(404), Ok(copy("other", 60))], None, 30, None, "copy of another cloud-config")]
#[case::more_than_a_copy(|of: &str| [Ok(copy(of, 60) + "\nx: y"), Err(404)], None, 30, None, "copy of another")]
#[case::itself(|of: &str| [Ok(of.to_owned()), Err(404)], None, 30, Some(PROVIDER), "it is the copy in Secret")]
#[case::forged(|of: &str| [Ok(copy(of, 60)), Err(404)], Some(60), 30, Some(PROVIDER), "refuses the newer token")]
#[case::forbidden(|_: &str| [Err(403), Err(403)], None, 30, None, "cannot be read (Forbidden)")]
#[case::one_may_be_read(|of: &str| [Err(403), Ok(copy(of, 60))], None, 60, Some(DRIVER), "has a newer token")]
#[case::no_chart(|_: &str| [Err(404), Err(404)], None, 30, None, "no part renews the token")]
#[tokio::test]
async fn a_copy_counts_where_it_counts_for_the_parts_and_the_note_says_which_token_is_used(
    #[case] held: fn(&str) -> [Result<String, u16>; 2],
    #[case] refused: Option<i64>,
    #[case] ends: i64,
    #[case] renewed_in: Option<&str>,
    #[case] words: &str,
) {
    let given = kubeconfig(&token("demo", 30 * DAY));
    let [provider, driver] = held(&given);
    let (guest, _) = guest([(PROVIDER, provider), (DRIVER, driver)]);
    let InUse { config, note, renewal } = in_use(config(&given), Ok(&guest), &*harvester(refused)).await;
    assert_eq!(end(&config), ends);
    let note = note.unwrap();
    assert!(note.contains(words), "{note}");
    assert!(!note.contains("e30."), "no token is in it: {note}");
    assert_eq!(renewal.as_ref().map(|renewal| renewal.secret.name.as_str()), renewed_in);
    assert_eq!(config.source(), given);
}

/// A Deployment whose leader is told to keep its copy in this Secret.
fn deployment(namespace: &str, account: &str, secret: &str) -> Value {
    json!({"metadata": {"namespace": namespace, "name": "provider"}, "spec": {"selector": {}, "template": {"spec": {
        "serviceAccountName": account, "containers": [{"name": "a", "args": [
            "--rotated-cloud-config=/run/rotated-cloud-config", format!("--rotated-credential-secret={secret}")]}]}}}})
}

fn binding(namespace: &str, account: &str) -> Value {
    json!({"metadata": {"name": "b"}, "roleRef": {"apiGroup": "", "kind": "ClusterRole", "name": "r"},
        "subjects": [{"kind": "ServiceAccount", "namespace": namespace, "name": account}]})
}

const ELSEWHERE: &str = "harvester/harvester-cloud-provider-rotated";

// the release's namespace and account, and whose binding there is; words of the note
#[rstest]
#[case::of_a_release("harvester", "provider", Ok(("harvester", "provider")), 60, "harvester/harvester-cloud-provider-rotated has a newer token")]
#[case::of_kube_system_to_another("kube-system", "any", Ok(("x", "y")), 60, "has a newer token")]
#[case::of_a_user("harvester", "users", Ok(("harvester", "provider")), 30, "no part renews the token")]
#[case::of_another_namespaces_account("harvester", "provider", Ok(("kube-system", "provider")), 30, "no part renews the token")]
#[case::unread(
    "harvester",
    "provider",
    Err(403),
    30,
    "whether a release is outside of kube-system is not known (Forbidden)"
)]
#[tokio::test]
async fn a_copy_is_found_where_the_release_is_installed(
    #[case] namespace: &str,
    #[case] account: &str,
    #[case] bound: Result<(&str, &str), u16>,
    #[case] ends: i64,
    #[case] words: &str,
) {
    let given = kubeconfig(&token("demo", 30 * DAY));
    let secrets = [(ELSEWHERE, Ok(copy(&given, 60))), (DRIVER, Err(404))];
    let lists = bound.map(|(of, name)| {
        [vec![deployment(namespace, account, ELSEWHERE)], vec![binding(of, name)]]
            .map(|items| json!({"items": items, "metadata": {}}))
    });
    let (guest, _) = guest_with(secrets, lists);
    let used = in_use(config(&given), Ok(&guest), &*harvester(None)).await;
    assert_eq!(end(&used.config), ends);
    let note = used.note.unwrap();
    assert!(note.contains(words), "{note}");
    assert_eq!(used.renewal.map(|it| it.secret.to_string()), (ends == 60).then(|| ELSEWHERE.to_owned()));
}

#[tokio::test]
async fn nothing_is_asked_about_a_token_that_no_part_renews() {
    for token in ["kubeconfig-u:secret".to_owned(), token("demo", DAY).replace("e30.", "e30.x")] {
        let (guest, asked) = guest([(PROVIDER, Err(403)), (DRIVER, Err(403))]);
        let used = in_use(config(&kubeconfig(&token)), Ok(&guest), &*harvester(None)).await;
        assert_eq!((used.note, used.renewal), (None, None));
        assert_eq!(*asked.lock().unwrap(), [""; 0]);
    }
}

#[tokio::test]
async fn without_a_guest_cluster_the_given_token_is_used_and_the_note_says_why() {
    let given = config(&kubeconfig(&token("demo", DAY)));
    let used = in_use(given, Err("no kubeconfig".to_owned()), &*harvester(None)).await;
    assert_eq!((end(&used.config), used.renewal), (1, None));
    assert!(used.note.unwrap().contains("(no kubeconfig)"));
}

#[rstest]
#[case::before_it_is_due(11, true)]
#[case::while_it_is_renewed(8, true)]
#[case::nobody_renewed_it(7, false)]
fn an_end_need_not_be_told_until_three_quarters_of_the_life_are_over(
    #[case] days: i64,
    #[case] expected: bool,
) {
    let claims = Claims::of(&token("demo", 30 * DAY)).unwrap();
    let renewal = Renewal { claims, secret: SecretName::read("kube-system/rotated").unwrap() };
    assert_eq!(renewal.is_in_time(SignedDuration::from_secs(days * DAY)), expected);
}
