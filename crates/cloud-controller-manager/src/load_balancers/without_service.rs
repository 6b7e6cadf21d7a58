//! LoadBalancer objects whose Service is gone: reported, never deleted (docs/contract/addresses.md#4).
//!
//! A program that was stopped in front of its POST and goes on when its successor has cleaned up leaves one behind;
//! so does somebody who takes the finalizer off a Service by hand. Whether anybody still needs the address is for
//! people to say. The report stands where they may look: in the log, in an Event where the Service was, and in an
//! annotation on the object itself, because our role in Harvester grants no Events, and a status is not ours to write.
//!
//! Nothing runs while no object looks abandoned.

use std::{collections::HashMap, sync::Arc, time::Duration};

use controller_kit::{Action, ObjectKey, PendingEvent, Queue, Recorder, replace};
use harvester_api::{LoadBalancer, annotations, labels};
use k8s_openapi::api::core::v1::{ObjectReference, Service};
use kube::{Api, Client, ResourceExt};
use program::TaskGroup;

use super::{
    HarvesterLoadBalancers,
    lookup::{LiveService, belongs, labelled_service, was_made_for},
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

/// An object that serves no Service.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Abandoned {
    purpose: Purpose,
    /// The name of the object that the Service has instead; `None`: the Service is gone.
    instead: Option<String>,
    /// The object says so already.
    told: bool,
}

impl HarvesterLoadBalancers {
    /// Reports objects without Service from now on. `guest` reads Services afresh, `recorder` is for its Events.
    pub fn report_objects_without_service(
        self: &Arc<Self>,
        tasks: &TaskGroup,
        guest: Client,
        recorder: Recorder,
    ) {
        let queue: Queue<ObjectKey> = Queue::new();
        let worker = self.clone();
        queue.run(tasks, 1, move |key| {
            let (load_balancers, guest, recorder) = (worker.clone(), guest.clone(), recorder.clone());
            async move { load_balancers.look(&key, guest, &recorder).await }
        });
        let (woken, this) = (queue.clone(), self.clone());
        self.objects.on_change(move |change| {
            let Some(object) = &change.new else { return };
            if this.looks_abandoned(object) {
                woken.add_after(change.key.clone(), ABANDONED_AFTER);
            }
            if let Some(service) = labelled_service(object).and_then(|key| this.services.get(&key)) {
                this.wake_others(&service, &woken);
            }
        });
        let this = self.clone();
        self.services.on_change(move |change| match (&change.old, &change.new) {
            (Some(gone), None) => {
                let key = this.key(gone);
                if this.objects.get(&key).is_some_and(|object| this.looks_abandoned(&object)) {
                    queue.add_after(key, ABANDONED_AFTER);
                }
            }
            (_, Some(service)) => this.wake_others(service, &queue),
            (None, None) => {}
        });
    }

    /// Of several objects for one Service, those that the Service does not have will be looked at.
    fn wake_others(&self, service: &Service, queue: &Queue<ObjectKey>) {
        let names = self.index.objects_of(&LiveService::of(service));
        if names.len() < 2 {
            return;
        }
        let ours = self.identity();
        // a neighbour in the namespace may label any number of objects: each Service is looked up once
        let mut objects_had: HashMap<ObjectKey, Option<ObjectKey>> = HashMap::new();
        for key in names.iter().map(|name| self.key_of(name)) {
            let Some(object) = self.objects.get(&key) else { continue };
            let found = labelled_service(&object).and_then(|key| self.services.get(&key));
            let has = found.as_deref().and_then(|found| {
                objects_had.entry(ObjectKey::of(found)).or_insert_with(|| self.object_of(found)).as_ref()
            });
            if decide(&object, &ours, found.as_deref(), has.map(|key| key.name.as_str())).is_some() {
                queue.add_after(key, ABANDONED_AFTER);
            }
        }
    }

    fn looks_abandoned(&self, object: &LoadBalancer) -> bool {
        let found = labelled_service(object).and_then(|key| self.services.get(&key));
        self.decide_about(object, found.as_deref()).is_some()
    }

    /// `found`: the Service that the object's labels name.
    fn decide_about(&self, object: &LoadBalancer, found: Option<&Service>) -> Option<Abandoned> {
        let has = found.and_then(|service| self.object_of(service));
        decide(object, &self.identity(), found, has.as_ref().map(|key| key.name.as_str()))
    }

    /// The object that the Service has, if it wants one and one is there.
    fn object_of(&self, service: &Service) -> Option<ObjectKey> {
        let key = self.is_wanted(service).then(|| self.key(service))?;
        self.objects.get(&key).is_some().then_some(key)
    }

    async fn look(&self, key: &ObjectKey, guest: Client, recorder: &Recorder) -> Result<Action, kube::Error> {
        let Some(object) = self.objects.get(key).filter(|object| self.looks_abandoned(object)) else {
            return Ok(Action::AwaitChange);
        };
        let Some(service) = labelled_service(&object) else { return Ok(Action::AwaitChange) };
        // the cache may be behind
        let services = Api::<Service>::namespaced(guest, &service.namespace);
        let found = services.get_opt(&service.name).await?;
        let Some(abandoned) = self.decide_about(&object, found.as_ref()) else {
            return Ok(Action::AwaitChange);
        };
        let sentence = sentence(key, &abandoned, self.rules.cluster.name());
        tracing::warn!(object = %key, "{sentence}");
        if abandoned.told {
            return Ok(Action::AwaitChange);
        }
        let about = about(&abandoned.purpose, found.as_ref());
        recorder.publish(&about, &PendingEvent::warning("LoadBalancerWithoutService", sentence.as_str()));
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

/// `found`: the Service that the object's labels name; `has`: the name of the object that this Service has.
fn decide(
    object: &LoadBalancer,
    ours: &ClusterIdentity,
    found: Option<&Service>,
    has: Option<&str>,
) -> Option<Abandoned> {
    let live = found.map(LiveService::of);
    let purpose = purpose(object, ours, live.as_ref())?;
    let is_its_service = live.is_some_and(|live| match &purpose.uid {
        Some(made_for) => live.uid == *made_for,
        None => belongs(object, &live, ours, |_| false),
    });
    let instead = has.filter(|has| is_its_service && **has != object.name_any()).map(str::to_owned);
    let told = object.annotations().contains_key(annotations::WITHOUT_SERVICE);
    (!is_its_service || instead.is_some()).then_some(Abandoned { purpose, instead, told })
}

fn sentence(key: &ObjectKey, abandoned: &Abandoned, cluster: &str) -> String {
    let Abandoned { purpose, instead, .. } = abandoned;
    let why = match instead {
        None => "is gone".to_owned(),
        Some(name) => format!("has LoadBalancer {name}"),
    };
    format!(
        "Service {} of guest cluster {cluster} {why}: delete LoadBalancer {key} in Harvester if nobody needs its address",
        purpose.service
    )
}

/// The Service of the object, if the object is of this cluster and there to stay.
/// `live`: the Service that its labels name.
fn purpose(object: &LoadBalancer, ours: &ClusterIdentity, live: Option<&LiveService>) -> Option<Purpose> {
    let annotations = object.annotations();
    let of_this_cluster = match annotations.get(annotations::CLUSTER_UID) {
        Some(uid) => ours.cluster_uid.as_ref() == Some(uid),
        None => {
            let named = object.labels().get(labels::CLUSTER) == Some(&ours.cluster.label_value());
            named && !ours.cluster.is_anonymous() || live.is_some_and(|live| was_made_for(object, live))
        }
    };
    if !of_this_cluster || object.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let service = labelled_service(object)?;
    Some(Purpose { service, uid: annotations.get(annotations::SERVICE_UID).cloned() })
}

/// The Service, or as it was: an Event may be about an object that is gone.
fn about(purpose: &Purpose, found: Option<&Service>) -> ObjectReference {
    let ObjectKey { namespace, name } = purpose.service.clone();
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Service".to_owned()),
        namespace: Some(namespace),
        name: Some(name),
        uid: purpose.uid.clone().or_else(|| found?.uid()),
        ..ObjectReference::default()
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;
    use crate::{cluster::GuestCluster, load_balancers::lookup::computed};

    #[rstest]
    #[case::ours(json!({"cluster-uid": "c1", "service-uid": "s1"}), "blue", Some(Some("s1")))]
    #[case::under_a_former_name(json!({"cluster-uid": "c1", "service-uid": "s1"}), "green", Some(Some("s1")))]
    #[case::of_another_cluster(json!({"cluster-uid": "c2", "service-uid": "s1"}), "blue", None)]
    #[case::of_the_go_program(json!({}), "blue", Some(None))]
    #[case::of_the_go_program_elsewhere(json!({}), "green", None)]
    fn an_object_is_for_a_service_of_this_cluster(
        #[case] annotations: Value,
        #[case] label: &str,
        #[case] uid: Option<Option<&str>>,
    ) {
        let annotations = annotations.as_object().unwrap().iter();
        let annotations: serde_json::Map<_, _> = annotations
            .map(|(key, value)| (format!("cloudprovider.harvesterhci.io/{key}"), value.clone()))
            .collect();
        let mut object: LoadBalancer = serde_json::from_value(json!({"spec": {},
            "metadata": {"name": "blue-shop-web-1", "annotations": annotations, "labels": {labels::CLUSTER: label,
                labels::SERVICE_NAMESPACE: "shop", labels::SERVICE_NAME: "web"}}}))
        .unwrap();
        let ours = ClusterIdentity {
            cluster: GuestCluster::new("blue"),
            cluster_uid: Some("c1".to_owned()),
            management_network: None,
        };
        let service = ObjectKey::new("shop", "web");
        let expected = uid.map(|uid| Purpose { service, uid: uid.map(str::to_owned) });
        assert_eq!(purpose(&object, &ours, None), expected);
        let nameless = ClusterIdentity { cluster: GuestCluster::new("kubernetes"), ..ours.clone() };
        object.labels_mut().insert(labels::CLUSTER.into(), "kubernetes".into());
        let by_uid = expected.filter(|purpose| purpose.uid.is_some());
        assert_eq!(purpose(&object, &nameless, None), by_uid, "a name that everybody has tells nothing");

        object.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        assert_eq!(purpose(&object, &ours, None), None, "it goes already");
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
        let mut annotations = json!({annotations::CLUSTER_UID: "c1", annotations::SERVICE_UID: "s1"});
        if told {
            annotations[annotations::WITHOUT_SERVICE] = json!("gone");
        }
        let object: LoadBalancer = serde_json::from_value(json!({"spec": {}, "metadata": {"name": "blue-shop-web-1",
            "annotations": annotations, "labels": {labels::SERVICE_NAMESPACE: "shop", labels::SERVICE_NAME: "web"}}}))
        .unwrap();
        let ours = ClusterIdentity {
            cluster: GuestCluster::new("blue"),
            cluster_uid: Some("c1".to_owned()),
            management_network: None,
        };
        let found: Option<Service> = service
            .map(|uid| serde_json::from_value(json!({"metadata": {"name": "web", "uid": uid}})).unwrap());
        let report = decide(&object, &ours, found.as_ref(), None);
        assert_eq!(report.map(|report| report.told), abandoned.then_some(told));
    }

    // the Go program made one object under each name that the cluster had, and left the former ones
    #[rstest]
    #[case::the_one_in_use("prod", "prod", None)]
    #[case::under_a_former_name("kubernetes", "prod", Some("prod"))]
    #[case::under_the_name_of_now("prod", "kubernetes", Some("kubernetes"))]
    fn of_two_objects_for_a_service_the_one_that_it_does_not_have_is_reported(
        #[case] object: &str,
        #[case] has: &str,
        #[case] instead: Option<&str>,
    ) {
        let service: Service =
            serde_json::from_value(json!({"metadata": {"name": "web", "namespace": "shop", "uid": "s1"}}))
                .unwrap();
        let name = |cluster: &str| computed(&GuestCluster::new(cluster), &LiveService::of(&service));
        let of_go: LoadBalancer = serde_json::from_value(json!({"spec": {}, "metadata": {"name": name(object),
            "labels": {labels::CLUSTER: object, labels::SERVICE_NAMESPACE: "shop", labels::SERVICE_NAME: "web"}}}))
        .unwrap();
        let ours = ClusterIdentity {
            cluster: GuestCluster::new("prod"),
            cluster_uid: Some("c1".to_owned()),
            management_network: None,
        };
        let report = decide(&of_go, &ours, Some(&service), Some(&name(has)));
        assert_eq!(report.map(|report| report.instead), instead.map(|cluster| Some(name(cluster))));
    }
}
