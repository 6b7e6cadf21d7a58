//! LoadBalancer objects whose Service is gone: reported, never deleted (docs/contract/addresses.md#4).
//!
//! A program that was stopped in front of its POST and goes on when its successor has cleaned up leaves one behind;
//! so does somebody who takes the finalizer off a Service by hand. Whether anybody still needs the address is for
//! people to say. The report stands where they may look: in the log, in an Event where the Service was, and in an
//! annotation on the object itself, because our role in Harvester grants no Events, and a status is not ours to write.
//!
//! Nothing runs while no object looks abandoned.

use std::{sync::Arc, time::Duration};

use controller_kit::{Action, EventType, ObjectKey, Queue, Recorder, replace};
use harvester_api::{LoadBalancer, annotations, labels};
use k8s_openapi::api::core::v1::{ObjectReference, Service};
use kube::{Api, Client, ResourceExt};
use program::TaskGroup;

use super::{
    HarvesterLoadBalancers,
    lookup::{LiveService, belongs, labelled_service},
    object::ClusterIdentity,
};

/// Two watches report one change at different times: an object must look abandoned for so long.
const ABANDONED_AFTER: Duration = Duration::from_secs(30);

/// The Service that an object says it is for.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Purpose {
    service: ObjectKey,
    /// Objects of the Go program do not say.
    uid: Option<String>,
}

/// The decision about an object.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Report {
    /// The object has its Service, or belongs to another cluster.
    Nothing,
    /// Its Service is gone, and the object says so already.
    Known(Purpose),
    New(Purpose),
}

impl HarvesterLoadBalancers {
    /// Reports objects without Service from now on. `guest` reads Services afresh, `recorder` is for its Events.
    pub fn report_orphans(self: &Arc<Self>, tasks: &TaskGroup, guest: Client, recorder: Recorder) {
        let queue: Queue<ObjectKey> = Queue::new();
        let worker = self.clone();
        queue.run(tasks, 1, move |key| {
            let (load_balancers, guest, recorder) = (worker.clone(), guest.clone(), recorder.clone());
            async move { load_balancers.look(&key, guest, &recorder).await }
        });
        let (woken, this) = (queue.clone(), self.clone());
        self.objects.on_change(move |change| {
            if change.new.as_ref().is_some_and(|object| this.looks_abandoned(object)) {
                woken.add_after(change.key.clone(), ABANDONED_AFTER);
            }
        });
        let this = self.clone();
        self.services.on_change(move |change| {
            let Some(service) = change.old.as_ref().filter(|_| change.new.is_none()) else { return };
            let key = this.key(service);
            if this.objects.get(&key).is_some_and(|object| this.looks_abandoned(&object)) {
                queue.add_after(key, ABANDONED_AFTER);
            }
        });
    }

    fn looks_abandoned(&self, object: &LoadBalancer) -> bool {
        let found = labelled_service(object).and_then(|key| self.services.get(&key));
        decide(object, &self.identity(), found.as_deref()) != Report::Nothing
    }

    async fn look(&self, key: &ObjectKey, guest: Client, recorder: &Recorder) -> Result<Action, kube::Error> {
        let Some(object) = self.objects.get(key).filter(|object| self.looks_abandoned(object)) else {
            return Ok(Action::AwaitChange);
        };
        let Some(service) = labelled_service(&object) else { return Ok(Action::AwaitChange) };
        // the cache may be behind
        let services = Api::<Service>::namespaced(guest, &service.namespace);
        let found = services.get_opt(&service.name).await?;
        let report = decide(&object, &self.identity(), found.as_ref());
        let (Report::Known(purpose) | Report::New(purpose)) = &report else { return Ok(Action::AwaitChange) };
        let sentence = sentence(key, purpose, self.rules.cluster.name());
        tracing::warn!(object = %key, "{sentence}");
        if matches!(report, Report::Known(_)) {
            return Ok(Action::AwaitChange);
        }
        recorder.publish(&about(purpose), EventType::Warning, "LoadBalancerWithoutService", &sentence);
        let marked = object.edited(|json| {
            json["metadata"]["annotations"][annotations::WITHOUT_SERVICE] = sentence.as_str().into();
        });
        let Some(json) = marked else { return Ok(Action::AwaitChange) };
        match replace::<LoadBalancer>(&self.client, &json).await {
            Ok(written) => drop(self.objects.wrote(written)),
            // somebody else writes it: the watch brings us back
            Err(kube::Error::Api(status)) if status.is_conflict() || status.is_not_found() => {}
            Err(error) => return Err(error),
        }
        Ok(Action::AwaitChange)
    }
}

/// `found`: the Service that the object's labels name.
fn decide(object: &LoadBalancer, ours: &ClusterIdentity, found: Option<&Service>) -> Report {
    let Some(purpose) = purpose(object, ours) else { return Report::Nothing };
    let uid = found.map(|service| service.uid().unwrap_or_default());
    let has_its_service = match (uid, &purpose.uid) {
        (None, _) => false,
        (Some(uid), Some(made_for)) => uid == *made_for,
        (Some(uid), None) => {
            belongs(object, &LiveService { key: purpose.service.clone(), uid }, ours, |_| false)
        }
    };
    if has_its_service {
        Report::Nothing
    } else if object.annotations().contains_key(annotations::WITHOUT_SERVICE) {
        Report::Known(purpose)
    } else {
        Report::New(purpose)
    }
}

fn sentence(key: &ObjectKey, purpose: &Purpose, cluster: &str) -> String {
    format!(
        "Service {} of guest cluster {cluster} is gone: delete LoadBalancer {key} in Harvester if nobody needs its address",
        purpose.service
    )
}

/// The Service of the object, if the object is of this cluster and there to stay.
fn purpose(object: &LoadBalancer, ours: &ClusterIdentity) -> Option<Purpose> {
    let notes = object.annotations();
    let of_this_cluster = match notes.get(annotations::CLUSTER_UID) {
        Some(uid) => ours.cluster_uid.as_ref() == Some(uid),
        None => {
            let named = object.labels().get(labels::CLUSTER) == Some(&ours.cluster.label_value());
            named && !ours.cluster.is_anonymous()
        }
    };
    if !of_this_cluster || object.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let service = labelled_service(object)?;
    Some(Purpose { service, uid: notes.get(annotations::SERVICE_UID).cloned() })
}

/// The Service as it was: an Event may be about an object that is gone.
fn about(purpose: &Purpose) -> ObjectReference {
    let ObjectKey { namespace, name } = purpose.service.clone();
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Service".to_owned()),
        namespace: Some(namespace),
        name: Some(name),
        uid: purpose.uid.clone(),
        ..ObjectReference::default()
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;
    use crate::cluster::GuestCluster;

    #[rstest]
    #[case::ours(json!({"cluster-uid": "c1", "service-uid": "s1"}), "blue", Some(Some("s1")))]
    #[case::under_a_former_name(json!({"cluster-uid": "c1", "service-uid": "s1"}), "green", Some(Some("s1")))]
    #[case::of_another_cluster(json!({"cluster-uid": "c2", "service-uid": "s1"}), "blue", None)]
    #[case::of_the_go_program(json!({}), "blue", Some(None))]
    #[case::of_the_go_program_elsewhere(json!({}), "green", None)]
    fn an_object_is_for_a_service_of_this_cluster(
        #[case] notes: Value,
        #[case] label: &str,
        #[case] uid: Option<Option<&str>>,
    ) {
        let notes = notes.as_object().unwrap().iter();
        let notes: serde_json::Map<_, _> = notes
            .map(|(key, value)| (format!("cloudprovider.harvesterhci.io/{key}"), value.clone()))
            .collect();
        let mut object: LoadBalancer = serde_json::from_value(json!({"spec": {},
            "metadata": {"name": "blue-shop-web-1", "annotations": notes, "labels": {labels::CLUSTER: label,
                labels::SERVICE_NAMESPACE: "shop", labels::SERVICE_NAME: "web"}}}))
        .unwrap();
        let ours = ClusterIdentity {
            cluster: GuestCluster::new("blue"),
            cluster_uid: Some("c1".to_owned()),
            management_network: None,
        };
        let service = ObjectKey::new("shop", "web");
        let expected = uid.map(|uid| Purpose { service, uid: uid.map(str::to_owned) });
        assert_eq!(purpose(&object, &ours), expected);
        let nameless = ClusterIdentity { cluster: GuestCluster::new("kubernetes"), ..ours.clone() };
        object.labels_mut().insert(labels::CLUSTER.into(), "kubernetes".into());
        let by_uid = expected.filter(|purpose| purpose.uid.is_some());
        assert_eq!(purpose(&object, &nameless), by_uid, "a name that everybody has tells nothing");

        object.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        assert_eq!(purpose(&object, &ours), None, "it goes already");
    }
    #[rstest]
    #[case::served(Some("s1"), false, false)]
    #[case::gone(None, false, true)]
    #[case::gone_and_told(None, true, true)]
    #[case::made_again_under_the_name(Some("s2"), false, true)]
    fn an_object_without_its_service_is_reported_once(
        #[case] service: Option<&str>,
        #[case] told: bool,
        #[case] abandoned: bool,
    ) {
        let mut notes = json!({annotations::CLUSTER_UID: "c1", annotations::SERVICE_UID: "s1"});
        if told {
            notes[annotations::WITHOUT_SERVICE] = json!("gone");
        }
        let object: LoadBalancer = serde_json::from_value(json!({"spec": {}, "metadata": {"name": "blue-shop-web-1",
            "annotations": notes, "labels": {labels::SERVICE_NAMESPACE: "shop", labels::SERVICE_NAME: "web"}}}))
        .unwrap();
        let ours = ClusterIdentity {
            cluster: GuestCluster::new("blue"),
            cluster_uid: Some("c1".to_owned()),
            management_network: None,
        };
        let found: Option<Service> = service
            .map(|uid| serde_json::from_value(json!({"metadata": {"name": "web", "uid": uid}})).unwrap());
        let report = decide(&object, &ours, found.as_ref());
        assert_eq!(report != Report::Nothing, abandoned);
        assert_eq!(matches!(report, Report::Known(_)), told);
    }
}
