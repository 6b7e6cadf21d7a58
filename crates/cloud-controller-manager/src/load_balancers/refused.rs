//! Services whose objects Harvester refuses to make. Each is tried again and again; but the pool may have given the
//! address of its former object to another, so the Service stops announcing it.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use controller_kit::refusal::is_lasting;
use kube::core::Status;
use tokio::time::Instant;

use super::decide::ANSWER;

/// Longer than back-off, queue and a slow try together: an answer that comes so late is the first of a row.
const ROW_ENDS_AFTER: Duration = Duration::from_secs(180);

/// By Service UID, where each try gets an answer that says no for good.
#[derive(Debug, Default)]
pub(super) struct RefusedCreations(Mutex<HashMap<String, Refusals>>);

/// When Harvester refused in a row.
#[derive(Debug)]
struct Refusals {
    first: Instant,
    latest: Instant,
}

impl RefusedCreations {
    /// Harvester answered so in place of making the object of this Service.
    pub(super) fn note_if_lasting(&self, service_uid: &str, answer: &Status) {
        if is_lasting(answer) {
            let now = Instant::now();
            let mut all = self.all();
            let refusals = all.entry(service_uid.to_owned()).or_insert(Refusals { first: now, latest: now });
            if now.duration_since(refusals.latest) > ROW_ENDS_AFTER {
                refusals.first = now;
            }
            refusals.latest = now;
        } else {
            self.forget(service_uid);
        }
    }

    /// Whether the answers have said no for a while: an API server that has just started, or whose quotas and rights
    /// somebody writes anew, refuses for a moment what it takes at the next try. The tries may be far apart, so the time
    /// since one refusal says nothing.
    pub(super) fn has(&self, service_uid: &str) -> bool {
        self.all().get(service_uid).is_some_and(|it| it.latest.duration_since(it.first) >= ANSWER)
    }

    /// The object is there, or none is made now, or another answer came.
    pub(super) fn forget(&self, service_uid: &str) {
        self.all().remove(service_uid);
    }

    /// Another server answers.
    pub(super) fn forget_all(&self) {
        self.all().clear();
    }

    fn all(&self) -> MutexGuard<'_, HashMap<String, Refusals>> {
        self.0.lock().expect("no panic while remembering")
    }
}

#[cfg(test)]
mod tests {
    use cloud_provider::LoadBalancers as _;
    use controller_kit::{Cache, RawObject};
    use k8s_openapi::api::core::v1::Service;
    use rstest::rstest;
    use serde_json::{Value, json};
    use tokio::time::sleep;

    use super::*;
    use crate::load_balancers::{Write, tests::denied};

    fn service() -> Service {
        serde_json::from_value(json!({
            "metadata": {"name": "web", "namespace": "shop", "uid": "u"},
            "spec": {"type": "LoadBalancer", "ports": [{"port": 80, "nodePort": 30080}]}}))
        .unwrap()
    }

    #[rstest]
    #[case::no_right_or_no_quota(403, "loadbalancers is forbidden", true)]
    #[case::invalid(422, "LoadBalancer \"blue\" is invalid: spec", true)]
    #[case::a_webhook_with_a_code_of_its_own(500, "admission webhook \"v\" denied the request: no", true)]
    #[case::a_policy(401, "ValidatingAdmissionPolicy 'freeze' with binding 'all' denied request: no", true)]
    #[case::expired_credentials(401, "Unauthorized", false)]
    #[case::no_such_kind(404, "the server could not find the requested resource", false)]
    #[case::busy(429, "too many requests", false)]
    #[case::a_webhook_that_is_away(500, "failed calling webhook \"v\": connection refused", false)]
    #[case::away(503, "the server is currently unable to handle the request", false)]
    #[tokio::test(start_paused = true)]
    async fn an_object_is_refused_where_the_next_try_gets_the_same_answer(
        #[case] code: u16,
        #[case] message: &str,
        #[case] expected: bool,
    ) {
        let refused = RefusedCreations::default();
        refused.note_if_lasting("1", &Status::failure(message, "").with_code(code));
        sleep(ANSWER).await;
        assert!(!refused.has("1"), "once, however long ago");
        refused.note_if_lasting("1", &Status::failure(message, "").with_code(code));
        assert_eq!((refused.has("1"), refused.has("2")), (expected, false));
        refused.forget("1");
        assert!(!refused.has("1"));
    }

    #[tokio::test(start_paused = true)]
    async fn refusals_with_another_answer_between_them_are_counted_from_the_later_one() {
        let refused = RefusedCreations::default();
        let no = Status::failure("loadbalancers is forbidden", "").with_code(403);
        refused.note_if_lasting("1", &no);
        sleep(ANSWER).await;
        refused.note_if_lasting("1", &Status::failure("starting", "").with_code(503));
        refused.note_if_lasting("1", &no);
        assert!(!refused.has("1"));
        sleep(ANSWER).await;
        refused.note_if_lasting("1", &no);
        assert!(refused.has("1"));
    }

    #[tokio::test(start_paused = true)]
    async fn what_one_server_refused_is_not_held_against_the_next() {
        let service = service();
        let (cloud, nodes) = denied(&Cache::of([service.clone()]));
        let write = cloud.decide(&service, &nodes).write.expect("an object to make");
        assert!(cloud.apply(write.clone()).await.is_err());
        sleep(ANSWER).await;
        assert!(cloud.apply(write.clone()).await.is_err() && cloud.see(&service, &nodes).creation_refused);
        cloud.outage.moved();
        assert!(!cloud.see(&service, &nodes).creation_refused);
        assert!(cloud.apply(write).await.is_err() && !cloud.see(&service, &nodes).creation_refused);
    }

    /// Such as where no machine is known for hours.
    #[tokio::test(start_paused = true)]
    async fn refusals_that_lie_far_apart_are_no_row() {
        let refused = RefusedCreations::default();
        let no = Status::failure("loadbalancers is forbidden", "").with_code(403);
        for _ in 0..3 {
            refused.note_if_lasting("1", &no);
            assert!(!refused.has("1"));
            sleep(ROW_ENDS_AFTER + Duration::from_secs(1)).await;
        }
    }

    /// It waits for its first answer.
    #[tokio::test(start_paused = true)]
    async fn an_object_that_is_made_after_all_is_refused_no_more_at_the_first_look() {
        let service = service();
        let (cloud, nodes) = denied(&Cache::of([service.clone()]));
        let write = cloud.decide(&service, &nodes).write.expect("an object to make");
        assert!(cloud.apply(write.clone()).await.is_err() && !cloud.see(&service, &nodes).creation_refused);
        let mut of_another_type = service.clone();
        of_another_type.spec.as_mut().unwrap().type_ = Some("ClusterIP".to_owned());
        assert_eq!(cloud.decide(&of_another_type, &nodes).write, None);
        sleep(ANSWER).await;
        assert!(cloud.apply(write.clone()).await.is_err());
        assert!(!cloud.see(&service, &nodes).creation_refused, "nothing was tried for a while");
        sleep(ANSWER + Duration::from_secs(1)).await;
        assert!(cloud.apply(write.clone()).await.is_err() && cloud.see(&service, &nodes).creation_refused);
        let Write::Create { json: mut made, .. } = write else { panic!("{write:?}") };
        made["metadata"]["uid"] = Value::from("o");
        cloud.objects.wrote(RawObject::from_json(made).unwrap());
        assert!(!cloud.see(&service, &nodes).creation_refused);
    }
}
