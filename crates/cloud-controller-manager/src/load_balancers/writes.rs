//! Changes of LoadBalancer objects that are there, and their end.
//!
//! The cache takes an answer only while the server that was asked is the one that answers: the cloud-config may lead to
//! another one at any time.

use cloud_provider::Failure;
use controller_kit::{ObjectKey, RawObject, refusal::is_gone, replace};
use harvester_api::LoadBalancer;
use kube::{
    ResourceExt,
    api::{DeleteParams, Preconditions},
};
use serde_json::Value;

use super::{HarvesterLoadBalancers, failed};

impl HarvesterLoadBalancers {
    pub(super) async fn update(&self, json: &Value) -> Result<(), Failure> {
        let name = json["metadata"]["name"].as_str().unwrap_or_default();
        let key = ObjectKey::new(&self.rules.namespace, name);
        let answers = self.objects.answers();
        match replace::<LoadBalancer>(&self.client, json).await {
            Ok(written) => {
                let unchanged = written.metadata.resource_version.as_deref()
                    == json["metadata"]["resourceVersion"].as_str();
                answers.wrote(written);
                if unchanged {
                    let why = "admission there took the change back";
                    let why = format!("update LoadBalancer {key} in Harvester: {why}");
                    return Err(Failure::Failed { why, source: None });
                }
                Ok(())
            }
            Err(kube::Error::Api(status)) if is_gone(&status, name) => {
                answers.gone(&key, json["metadata"]["uid"].as_str().unwrap_or_default());
                Err(Failure::Outdated)
            }
            Err(kube::Error::Api(status)) if status.is_conflict() => Err(Failure::Outdated),
            Err(error) => Err(failed("update", &key, error)),
        }
    }

    /// Deletes the object of the UID that is `known`, or else the one that the server has now, and no other: somebody may
    /// have made one under its name again. Returns the object if it is still there.
    async fn delete_object(
        &self,
        key: &ObjectKey,
        known: Option<String>,
    ) -> kube::Result<Option<RawObject<LoadBalancer>>> {
        let uid = match known {
            Some(uid) => Some(uid),
            None => self.api().get_metadata(&key.name).await?.uid(),
        };
        let Some(uid) = uid else { return Ok(None) };
        let this = Preconditions { uid: Some(uid), ..Preconditions::default() };
        let answer = self.api().delete(&key.name, &DeleteParams::default().preconditions(this)).await?;
        Ok(answer.left().filter(|object| object.metadata.deletion_timestamp.is_some()))
    }

    pub(super) async fn remove(&self, key: &ObjectKey) -> Result<(), Failure> {
        let answers = self.objects.answers();
        // when the answer comes, the cache may show another object that somebody made under this name
        let known = self.objects.get(key).and_then(|object| object.uid());
        let forget = || known.iter().for_each(|uid| answers.gone(key, uid));
        match self.delete_object(key, known.clone()).await {
            Ok(Some(leaving)) => drop(answers.wrote(leaving)),
            Ok(None) => forget(),
            // with any other answer of this code the Service would go, and leave its object
            Err(kube::Error::Api(status)) if is_gone(&status, &key.name) => forget(),
            Err(kube::Error::Api(status)) if status.is_conflict() => return Err(Failure::Outdated),
            Err(error) => return Err(failed("delete", key, error)),
        }
        // else the Service would go, and leave the object that the next server has
        if answers.are_of_this_server() { Ok(()) } else { Err(Failure::Outdated) }
    }
}

#[cfg(test)]
mod tests {
    use cloud_provider::LoadBalancers as _;
    use controller_kit::Cache;
    use http::{Request, Response};
    use kube::{Client, client::Body};
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::load_balancers::{Write, tests::at_harvester};

    fn object(version: &str) -> Value {
        let metadata = json!({"name": "blue", "namespace": "team-a", "uid": "u", "resourceVersion": version});
        json!({"metadata": metadata, "spec": {}})
    }

    fn not_found(name: &str) -> Value {
        json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404, "reason": "NotFound",
            "message": "not found", "details": {"name": name}})
    }

    /// What came of a write that Harvester answers so, and the version that is known then; that was 5 of an object that is
    /// not made by it. `meanwhile` happens before the answer comes.
    async fn after(
        write: Write,
        answer: Value,
        meanwhile: fn(&Cache<RawObject<LoadBalancer>>),
    ) -> (Result<(), Failure>, Option<String>) {
        let objects = Cache::<RawObject<LoadBalancer>>::empty();
        if !matches!(write, Write::Create { .. }) {
            objects.wrote(RawObject::from_json(object("5")).unwrap());
        }
        let under_way = objects.clone();
        let service = tower::service_fn(move |_: Request<Body>| {
            meanwhile(&under_way);
            let code = answer["code"].as_u64().map_or(200, |code| u16::try_from(code).unwrap());
            let body = Body::from(answer.to_string().into_bytes());
            async move { Ok::<_, tower::BoxError>(Response::builder().status(code).body(body)?) }
        });
        let client = Client::new(service, "team-a");
        let (cloud, _) = at_harvester(client, objects.clone(), &Cache::of([]));
        let came = cloud.apply(write).await;
        let known = objects.get(&ObjectKey::new("team-a", "blue"));
        (came, known.and_then(|object| object.metadata.resource_version.clone()))
    }

    #[rstest]
    #[case::made(Write::Create { json: object(""), fingerprint: 0 }, object("6"), Some("6"), None)]
    #[case::changed(Write::Update(object("5")), object("6"), Some("6"), Some("5"))]
    #[case::gone(Write::Update(object("5")), not_found("blue"), None, Some("5"))]
    // such as that of a proxy
    #[case::an_answer_about_something_else(Write::Update(object("5")), not_found(""), Some("5"), Some("5"))]
    #[case::a_deletion_with_such_an_answer(
        Write::Delete(ObjectKey::new("team-a", "blue")),
        not_found(""),
        Some("5"),
        Some("5")
    )]
    #[case::deleted(Write::Delete(ObjectKey::new("team-a", "blue")), not_found("blue"), None, Some("5"))]
    #[tokio::test]
    async fn the_answer_to_a_write_is_known_unless_another_server_answers_by_then(
        #[case] write: Write,
        #[case] answer: Value,
        #[case] expected: Option<&str>,
        #[case] elsewhere: Option<&str>,
    ) {
        let (_, known) = after(write.clone(), answer.clone(), |_| ()).await;
        assert_eq!(known.as_deref(), expected);
        let (_, known) = after(write, answer, Cache::relist_elsewhere).await;
        assert_eq!(known.as_deref(), elsewhere);
    }

    /// Its Service would go, and leave the object of the next server behind.
    #[tokio::test]
    async fn an_object_that_the_former_server_deleted_is_not_deleted_yet() {
        for answer in [not_found("blue"), json!({"kind": "Status", "apiVersion": "v1", "status": "Success"})]
        {
            let delete = Write::Delete(ObjectKey::new("team-a", "blue"));
            let (came, _) = after(delete.clone(), answer.clone(), |_| ()).await;
            assert!(came.is_ok());
            let (came, _) = after(delete, answer, Cache::relist_elsewhere).await;
            assert!(matches!(came, Err(Failure::Outdated)), "{came:?}");
        }
    }

    #[tokio::test]
    async fn an_object_that_is_made_under_the_name_of_a_deleted_one_stays_known_when_the_answer_comes() {
        let delete = Write::Delete(ObjectKey::new("team-a", "blue"));
        let (came, known) = after(delete, not_found("blue"), |objects| {
            let mut next = object("7");
            next["metadata"]["uid"] = Value::from("next");
            objects.wrote(RawObject::from_json(next).unwrap());
        })
        .await;
        assert!(came.is_ok());
        assert_eq!(known.as_deref(), Some("7"));
    }
}
