use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use k8s_openapi::{
    api::rbac::v1::{ClusterRole, ClusterRoleBinding},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use sim_apiserver::{
    ApiServer, User,
    faults::{Answer, Rule},
};
use tokio::time::{Instant, sleep};

use super::*;

const EVENTS: Right = Right::new("create", "", "events");
const SERVICES: Right = Right::new("delete", "", "services");
const CRD: &str = "loadbalancers.example.com";
const BACKENDS: Field = Field { crd: CRD, version: "v1", path: &["status", "backends"] };

/// A server, a user without rights, and its capabilities.
struct Fixture {
    server: ApiServer,
    tasks: TaskGroup,
}

impl Fixture {
    fn new() -> Self {
        Self { server: ApiServer::builder().build(), tasks: TaskGroup::new() }
    }

    fn start(&self, wanted: Wanted) -> Capabilities {
        let user = User::service_account("kube-system", "part");
        Capabilities::start(&self.tasks, self.server.client(user), wanted)
    }

    fn rights(rights: &[Right]) -> Wanted {
        Wanted { rights: rights.to_vec(), ..Wanted::default() }
    }

    /// The role grants these rules and no others.
    async fn grant(&self, rules: Value) {
        let admin = self.server.client("admin");
        let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": {"name": "part"}, "rules": rules});
        let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": {"name": "part"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "part"},
            "subjects": [{"kind": "ServiceAccount", "namespace": "kube-system", "name": "part"}]});
        let how = PatchParams::apply("test").force();
        Api::<ClusterRole>::all(admin.clone()).patch("part", &how, &Patch::Apply(role)).await.unwrap();
        Api::<ClusterRoleBinding>::all(admin).patch("part", &how, &Patch::Apply(binding)).await.unwrap();
    }

    fn questions(&self) -> usize {
        let records = self.server.audit().records();
        records.iter().filter(|record| record.uri.contains("selfsubjectaccessreviews")).count()
    }

    async fn define(&self, status: Value) -> CustomResourceDefinition {
        let crd = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": CRD},
            "spec": {"group": "example.com", "scope": "Namespaced",
                "names": {"plural": "loadbalancers", "singular": "loadbalancer", "kind": "LoadBalancer", "listKind": "LoadBalancerList"},
                "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                    "type": "object", "properties": {"status": {"type": "object", "properties": status}}}}}]}});
        let api = Api::<CustomResourceDefinition>::all(self.server.client("admin"));
        api.patch(CRD, &PatchParams::apply("test").force(), &Patch::Apply(crd)).await.unwrap()
    }
}

fn create_events() -> Value {
    json!([{"apiGroups": [""], "resources": ["events"], "verbs": ["create"]}])
}

fn backends() -> Value {
    json!({"backends": {"type": "array", "items": {"type": "string"}}})
}

#[tokio::test(start_paused = true)]
async fn rights_are_known_after_one_question_for_each() {
    let fixture = Fixture::new();
    fixture.grant(create_events()).await;
    let capabilities = fixture.start(Fixture::rights(&[EVENTS, SERVICES]));
    capabilities.known().await;
    assert!(capabilities.allows(&EVENTS) && !capabilities.allows(&SERVICES));
    assert_eq!(capabilities.state().lost(), Vec::<String>::new(), "a right that never was is not lost");
    assert_eq!(fixture.questions(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_feature_is_back_within_sixty_seconds_of_its_grant() {
    let fixture = Fixture::new();
    let capabilities = fixture.start(Fixture::rights(&[EVENTS]));
    capabilities.known().await;
    assert!(!capabilities.allows(&EVENTS));
    let changes = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&changes);
    capabilities.on_change(move || {
        counted.fetch_add(1, Ordering::Relaxed);
    });
    fixture.grant(create_events()).await;
    sleep(Duration::from_secs(60)).await;
    assert!(capabilities.allows(&EVENTS));
    assert_eq!(changes.load(Ordering::Relaxed), 1, "subscribers hear of it once");
}

#[tokio::test(start_paused = true)]
async fn a_granted_right_costs_one_question_in_ten_minutes() {
    let fixture = Fixture::new();
    fixture.grant(create_events()).await;
    let capabilities = fixture.start(Fixture::rights(&[EVENTS]));
    capabilities.known().await;
    sleep(Duration::from_secs(3600 - 1)).await;
    assert_eq!(fixture.questions(), 6);
}

#[tokio::test(start_paused = true)]
async fn a_right_that_is_taken_away_is_told_and_comes_back() {
    let fixture = Fixture::new();
    fixture.grant(create_events()).await;
    let capabilities = fixture.start(Fixture::rights(&[EVENTS]));
    capabilities.known().await;
    fixture.grant(json!([])).await;
    sleep(GRANTED_PERIOD + Duration::from_secs(1)).await;
    assert!(!capabilities.allows(&EVENTS));
    let lost = capabilities.state().lost();
    assert!(lost.len() == 1 && lost[0].contains("create events"), "{lost:?}");
    fixture.grant(create_events()).await;
    sleep(Duration::from_secs(60)).await;
    assert!(capabilities.allows(&EVENTS));
    assert_eq!(capabilities.state().lost(), Vec::<String>::new());
}

// the role names objects, or a quota refuses: the review says yes and the request gets no
#[tokio::test(start_paused = true)]
async fn a_refusal_that_a_caller_saw_is_remembered_and_asked_about_within_thirty_seconds() {
    let fixture = Fixture::new();
    fixture.grant(create_events()).await;
    let capabilities = fixture.start(Fixture::rights(&[EVENTS]));
    capabilities.known().await;
    capabilities.refused(&EVENTS);
    assert!(!capabilities.allows(&EVENTS));
    assert_eq!(capabilities.state().lost().len(), 1);
    sleep(REFUSED_PERIOD - Duration::from_secs(1)).await;
    assert!(!capabilities.allows(&EVENTS), "not tried again at once");
    sleep(Duration::from_secs(2)).await;
    assert!(capabilities.allows(&EVENTS));
}

#[tokio::test(start_paused = true)]
async fn a_right_that_nobody_wanted_is_granted_until_a_caller_is_refused() {
    let fixture = Fixture::new();
    let capabilities = fixture.start(Wanted::default());
    capabilities.known().await;
    let there = SERVICES.within("shop");
    assert!(capabilities.allows(&there));
    capabilities.refused(&there);
    assert!(!capabilities.allows(&there) && capabilities.allows(&SERVICES));
    sleep(REFUSED_PERIOD + Duration::from_secs(1)).await;
    assert_eq!(fixture.questions(), 1);
    assert!(!capabilities.allows(&there), "the server was asked and confirmed it");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_answer_refuses_nothing() {
    let fixture = Fixture::new();
    fixture.server.faults().add(Rule::new(Answer::Code(503)));
    let capabilities = fixture.start(Wanted { rights: vec![EVENTS], fields: vec![BACKENDS] });
    capabilities.known().await;
    assert!(capabilities.allows(&EVENTS));
    assert!(!capabilities.has_field(CRD, "v1", BACKENDS.path));
    fixture.server.faults().clear();
    sleep(REFUSED_PERIOD + Duration::from_secs(1)).await;
    assert!(!capabilities.allows(&EVENTS), "told otherwise");
}

// a leader that took its fields for absent wrote that into every object
#[tokio::test(start_paused = true)]
async fn a_crd_is_known_by_an_answer_and_not_by_the_first_failure() {
    let fixture = Fixture::new();
    fixture
        .grant(json!([{"apiGroups": ["apiextensions.k8s.io"], "resources": ["customresourcedefinitions"],
        "verbs": ["get"]}]))
        .await;
    fixture.define(backends()).await;
    let of_crds = |answer| Rule { resource: Some("customresourcedefinitions".into()), ..Rule::new(answer) };
    fixture.server.faults().add(of_crds(Answer::Code(503)));
    let capabilities = fixture.start(Wanted { fields: vec![BACKENDS], ..Wanted::default() });
    let some_seconds = sleep(Duration::from_secs(3));
    tokio::select! {
        () = capabilities.fields_known() => panic!("nobody has answered"),
        () = some_seconds => {}
    }
    fixture.server.faults().clear();
    capabilities.fields_known().await;
    assert!(capabilities.has_field(CRD, "v1", BACKENDS.path));

    // a refusal is an answer
    fixture.server.faults().add(of_crds(Answer::Code(403)));
    let refused = fixture.start(Wanted { fields: vec![BACKENDS], ..Wanted::default() });
    let began = Instant::now();
    refused.fields_known().await;
    assert!(began.elapsed() < Duration::from_secs(1) && !refused.has_field(CRD, "v1", BACKENDS.path));
}

// fault 9: the answer went to and fro every 30 s, and everybody was told each time
#[tokio::test(start_paused = true)]
async fn where_nobody_answers_for_a_right_its_callers_hear_of_a_refusal_once() {
    let fixture = Fixture::new();
    let unanswerable =
        Rule { resource: Some("selfsubjectaccessreviews".into()), ..Rule::new(Answer::Code(403)) };
    fixture.server.faults().add(unanswerable);
    let capabilities = fixture.start(Fixture::rights(&[EVENTS]));
    capabilities.known().await;
    assert!(capabilities.allows(&EVENTS), "granted until told otherwise");
    let changes = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&changes);
    capabilities.on_change(move || {
        counted.fetch_add(1, Ordering::Relaxed);
    });
    for _ in 0..600 {
        // each request of a caller that believes in the right gets 403
        if capabilities.allows(&EVENTS) {
            capabilities.refused(&EVENTS);
        }
        sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(changes.load(Ordering::Relaxed), 1);
    fixture.server.faults().clear();
    fixture.grant(create_events()).await;
    sleep(Duration::from_secs(60)).await;
    assert!(capabilities.allows(&EVENTS), "the server answers now");
}

// row 9 of docs/contract/data-paths.md: the refusal stayed for ever
#[tokio::test(start_paused = true)]
async fn where_nobody_answers_for_a_right_a_request_is_tried_within_sixty_seconds_of_its_grant() {
    let fixture = Fixture::new();
    let unanswerable =
        Rule { resource: Some("selfsubjectaccessreviews".into()), ..Rule::new(Answer::Code(403)) };
    fixture.server.faults().add(unanswerable);
    let capabilities = fixture.start(Fixture::rights(&[EVENTS]));
    capabilities.known().await;
    let changes = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&changes);
    capabilities.on_change(move || {
        counted.fetch_add(1, Ordering::Relaxed);
    });
    let (mut tries, mut works_at) = (0, None);
    for second in 0..180 {
        if capabilities.allows(&EVENTS) {
            tries += 1;
            // somebody grants the right after two minutes
            if second < 120 {
                capabilities.refused(&EVENTS);
            } else {
                capabilities.worked(&EVENTS);
                works_at = works_at.or(Some(second));
            }
        }
        let told = capabilities.state().lost().len();
        assert_eq!(told, usize::from(works_at.is_none()), "told until a request succeeds");
        sleep(Duration::from_secs(1)).await;
    }
    assert!(tries > 0 && works_at.is_some_and(|second| second < 180), "{works_at:?}");
    assert_eq!(changes.load(Ordering::Relaxed), 2, "subscribers hear of the refusal and of the grant");
}

// who waited for the right heard of no try, and asked for nothing any more
#[tokio::test(start_paused = true)]
async fn where_nobody_answers_for_a_right_its_callers_hear_every_thirty_seconds_that_a_request_is_to_be_tried()
 {
    let fixture = Fixture::new();
    let unanswerable =
        Rule { resource: Some("selfsubjectaccessreviews".into()), ..Rule::new(Answer::Code(403)) };
    fixture.server.faults().add(unanswerable);
    let capabilities = fixture.start(Fixture::rights(&[EVENTS, SERVICES]));
    capabilities.known().await;
    let (tries, is_granted) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let (counted, granted, asked) = (tries.clone(), is_granted.clone(), capabilities.clone());
    // a caller that does nothing by itself
    capabilities.on_try(move |right| {
        assert_eq!(*right, EVENTS);
        assert!(asked.allows(right));
        counted.fetch_add(1, Ordering::Relaxed);
        if granted.load(Ordering::Relaxed) {
            asked.worked(right);
        } else {
            asked.refused(right);
        }
    });
    sleep(GRANTED_PERIOD / 2).await;
    assert_eq!(tries.load(Ordering::Relaxed), 0, "nobody was refused");
    capabilities.refused(&EVENTS);
    sleep(4 * REFUSED_PERIOD + Duration::from_secs(1)).await;
    assert_eq!(tries.load(Ordering::Relaxed), 4);
    is_granted.store(true, Ordering::Relaxed);
    sleep(Duration::from_secs(60)).await;
    assert_eq!(capabilities.state().lost(), Vec::<String>::new());
    assert_eq!(tries.load(Ordering::Relaxed), 5, "one that succeeds is the last");
}

#[tokio::test(start_paused = true)]
async fn refused_credentials_are_told_until_they_are_taken_again() {
    let fixture = Fixture::new();
    fixture.grant(create_events()).await;
    let capabilities = fixture.start(Fixture::rights(&[EVENTS]));
    capabilities.known().await;
    fixture.server.faults().add(Rule::new(Answer::Code(401)));
    sleep(GRANTED_PERIOD + Duration::from_secs(1)).await;
    let lost = capabilities.state().lost();
    assert!(lost.len() == 1 && lost[0].contains("credentials"), "{lost:?}");
    assert!(capabilities.allows(&EVENTS), "a right is another matter");
    fixture.server.faults().clear();
    sleep(REFUSED_PERIOD + Duration::from_secs(1)).await;
    assert_eq!(capabilities.state().lost(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_crd_that_gains_a_field_is_noticed_at_once() {
    let fixture = Fixture::new();
    fixture
        .grant(json!([{"apiGroups": ["apiextensions.k8s.io"], "resources": ["customresourcedefinitions"],
        "verbs": ["get", "list", "watch"]}]))
        .await;
    fixture.define(json!({})).await;
    let capabilities = fixture.start(Wanted { fields: vec![BACKENDS], ..Wanted::default() });
    capabilities.known().await;
    assert!(!capabilities.has_field(CRD, "v1", BACKENDS.path));
    let began = Instant::now();
    sleep(Duration::from_secs(1)).await;
    fixture.define(backends()).await;
    sleep(Duration::from_secs(1)).await;
    assert!(capabilities.has_field(CRD, "v1", BACKENDS.path));
    assert!(!capabilities.has_field(CRD, "v2", BACKENDS.path));
    let api = Api::<CustomResourceDefinition>::all(fixture.server.client("admin"));
    api.delete(CRD, &DeleteParams::default()).await.unwrap();
    sleep(Duration::from_secs(1)).await;
    assert!(!capabilities.has_field(CRD, "v1", BACKENDS.path));
    assert!(began.elapsed() < REFUSED_PERIOD);
}

#[tokio::test(start_paused = true)]
async fn a_role_that_may_only_get_a_crd_reads_it_every_thirty_seconds() {
    let fixture = Fixture::new();
    fixture
        .grant(json!([{"apiGroups": ["apiextensions.k8s.io"], "resources": ["customresourcedefinitions"],
        "verbs": ["get"]}]))
        .await;
    let capabilities = fixture.start(Wanted { fields: vec![BACKENDS], ..Wanted::default() });
    capabilities.known().await;
    assert!(!capabilities.has_field(CRD, "v1", BACKENDS.path));
    fixture.define(backends()).await;
    sleep(REFUSED_PERIOD + Duration::from_secs(1)).await;
    assert!(capabilities.has_field(CRD, "v1", BACKENDS.path));
}

#[tokio::test(start_paused = true)]
async fn assumed_capabilities_are_known_and_believe_their_callers() {
    let capabilities = Capabilities::assumed([BACKENDS]);
    capabilities.known().await;
    assert!(capabilities.allows(&EVENTS) && capabilities.has_field(CRD, "v1", BACKENDS.path));
    capabilities.refused(&EVENTS);
    assert!(!capabilities.allows(&EVENTS));
}

#[tokio::test(start_paused = true)]
async fn rights_that_are_denied_are_named_and_a_server_that_does_not_answer_denies_none() {
    let fixture = Fixture::new();
    fixture.grant(create_events()).await;
    let client = fixture.server.client(User::service_account("kube-system", "part"));
    let table = [EVENTS, SERVICES];
    assert_eq!(denied(&client, "shop", &table).await, [SERVICES.within("shop")]);
    fixture.server.faults().add(Rule::new(Answer::Code(503)));
    assert_eq!(denied(&client, "shop", &table).await, []);
}

#[test]
fn a_right_is_named_as_kubectl_auth_can_i_names_it() {
    assert_eq!(SERVICES.on("status").within("shop").to_string(), "delete services/status in namespace shop");
    assert_eq!(
        Right::new("list", "kubevirt.io", "virtualmachines").to_string(),
        "list virtualmachines.kubevirt.io"
    );
    let one = Right::new("watch", "", "configmaps").named("mapping").within("kube-system");
    assert_eq!(one.to_string(), "watch configmaps mapping in namespace kube-system");
}
