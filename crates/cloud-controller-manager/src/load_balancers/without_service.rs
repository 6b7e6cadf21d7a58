//! LoadBalancer objects whose Service is gone: reported, never deleted (docs/contract/addresses.md#4).
//!
//! A program that was stopped in front of its POST and goes on when its successor has cleaned up leaves one behind;
//! so does somebody who takes the finalizer off a Service by hand. Whether anybody still needs the address is for
//! people to say. The report stands where they may look: in the log, in an Event where the Service was, and in an
//! annotation on the object itself, because our role in Harvester grants no Events, and a status is not ours to write.
//!
//! Nothing runs while no object looks abandoned.

mod reports;

use std::{collections::HashMap, fmt, sync::Arc, time::Duration};

use controller_kit::{Action, ObjectKey, PendingEvent, Queue, Recorder, replace};
use guest_vms::is_uid;
use harvester_api::{LoadBalancer, annotations, labels};
use k8s_openapi::api::core::v1::{ObjectReference, Service};
use kube::{Api, Client, ResourceExt, core::Status};
use program::TaskGroup;

use self::reports::Reports;
use super::{
    DENIED, HarvesterLoadBalancers,
    lookup::{LiveService, belongs, computed, labelled_service, was_made_for},
    object::ClusterIdentity,
};
use crate::cluster::GuestCluster;

/// Two watches report one change at different times: an object must look abandoned for so long.
const ABANDONED_AFTER: Duration = Duration::from_secs(30);
/// The objects of one Service are gone through once in this time, however often they change …
const JOIN: Duration = Duration::from_secs(5);
/// … and so many of them before others have their turn.
const AT_ONCE: usize = 100;

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

/// What waits for a look.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Work {
    Object(ObjectKey),
    /// All objects for this Service, but for the one that it has.
    ObjectsOf(ObjectKey),
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Object(key) => write!(f, "LoadBalancer {key}"),
            Self::ObjectsOf(service) => write!(f, "LoadBalancers of Service {service}"),
        }
    }
}

impl HarvesterLoadBalancers {
    /// Reports objects without Service from now on. `guest` reads Services afresh, `recorder` is for its Events.
    pub fn report_objects_without_service(
        self: &Arc<Self>,
        tasks: &TaskGroup,
        guest: Client,
        recorder: Recorder,
    ) {
        let queue: Queue<Work> = Queue::new();
        let (worker, found, reports) = (self.clone(), queue.clone(), Arc::new(Reports::new()));
        queue.run(tasks, 1, move |work| {
            let (load_balancers, guest, recorder) = (worker.clone(), guest.clone(), recorder.clone());
            let (found, reports) = (found.clone(), reports.clone());
            async move {
                match work {
                    Work::Object(key) => load_balancers.look(&key, guest, &recorder, &reports).await,
                    Work::ObjectsOf(service) => {
                        load_balancers.wake_others(&service, &found).await;
                        Ok(Action::AwaitChange)
                    }
                }
            }
        });
        let (woken, this) = (queue.clone(), self.clone());
        self.objects.on_change(move |change| {
            let Some(object) = &change.new else { return };
            this.wake_if_without_service(object, &woken);
            if let Some(service) = labelled_service(object).and_then(|key| this.services.get(&key)) {
                this.wake_if_several(&service, &woken);
            }
        });
        let this = self.clone();
        self.services.on_change(move |change| match (&change.old, &change.new) {
            (Some(gone), None) => {
                let live = LiveService::of(gone);
                let mut names = this.index.objects_of(&live);
                names.extend(this.computed(&live));
                for object in names.iter().filter_map(|name| this.objects.get(&this.key_of(name))) {
                    this.wake_if_without_service(&object, &queue);
                }
            }
            (_, Some(service)) => this.wake_if_several(service, &queue),
            (None, None) => {}
        });
    }

    /// Whichever object its Service has. Each change comes here, and a neighbour in the namespace may label any number of
    /// objects: they are not gone through.
    fn wake_if_without_service(&self, object: &LoadBalancer, queue: &Queue<Work>) {
        let found = labelled_service(object).and_then(|key| self.services.get(&key));
        if decide(object, &self.identity(), found.as_deref(), None).is_some() {
            queue.add_after(Work::Object(ObjectKey::of(object)), ABANDONED_AFTER);
        }
    }

    fn wake_if_several(&self, service: &Service, queue: &Queue<Work>) {
        let live = LiveService::of(service);
        let mut named = self.computed(&live).to_vec();
        named.retain(|name| self.objects.get(&self.key_of(name)).is_some());
        if self.index.has_several(&live, &named) {
            queue.add_after(Work::ObjectsOf(live.key), JOIN);
        }
    }

    /// The names that the Go program and we give the object of a Service.
    fn computed(&self, service: &LiveService) -> [String; 2] {
        [&self.rules.cluster, &GuestCluster::default_name()].map(|cluster| computed(cluster, service))
    }

    /// Of several objects for one Service, those that the Service does not have will be looked at.
    async fn wake_others(&self, service: &ObjectKey, queue: &Queue<Work>) {
        let Some(service) = self.services.get(service) else { return };
        let ours = self.identity();
        // a neighbour in the namespace may label any number of objects: each Service is looked up once
        let mut objects_had: HashMap<ObjectKey, Option<ObjectKey>> = HashMap::new();
        for (n, name) in self.index.objects_of(&LiveService::of(&service)).iter().enumerate() {
            if n % AT_ONCE == AT_ONCE - 1 {
                tokio::task::yield_now().await;
            }
            let key = self.key_of(name);
            let Some(object) = self.objects.get(&key) else { continue };
            let found = labelled_service(&object).and_then(|key| self.services.get(&key));
            let has = found.as_deref().and_then(|found| {
                objects_had.entry(ObjectKey::of(found)).or_insert_with(|| self.object_of(found)).as_ref()
            });
            let abandoned = decide(&object, &ours, found.as_deref(), has.map(|key| key.name.as_str()));
            if abandoned.is_some_and(|abandoned| !abandoned.told) {
                queue.add_after(Work::Object(key), ABANDONED_AFTER);
            }
        }
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

    async fn look(
        &self,
        key: &ObjectKey,
        guest: Client,
        recorder: &Recorder,
        reports: &Reports,
    ) -> Result<Action, kube::Error> {
        let Some(object) = self.objects.get(key) else { return Ok(Action::AwaitChange) };
        let Some(service) = labelled_service(&object) else { return Ok(Action::AwaitChange) };
        // it was told: after a restart it takes no turn of one that was not
        if object.annotations().contains_key(annotations::WITHOUT_SERVICE) {
            reports.done(key);
            return Ok(Action::AwaitChange);
        }
        if let Some(wait) = reports.wait(key) {
            return Ok(Action::RequeueAfter(wait));
        }
        let cached = self.services.get(&service);
        if self.decide_about(&object, cached.as_deref()).is_none() {
            return Ok(Action::AwaitChange);
        }
        // the cache may be behind
        let services = Api::<Service>::namespaced(guest, &service.namespace);
        let found = services.get_opt(&service.name).await?;
        let Some(abandoned) = self.decide_about(&object, found.as_ref()) else {
            return Ok(Action::AwaitChange);
        };
        let sentence = sentence(key, &abandoned, self.rules.cluster.name());
        if reports.tell(key) {
            tracing::warn!(object = %key, "{sentence}");
            let event = PendingEvent::warning("LoadBalancerWithoutService", sentence.as_str());
            recorder.publish(&about(&abandoned.purpose, found.as_ref()), &event);
        }
        let marked = object.edited(|json| {
            json["metadata"]["annotations"][annotations::WITHOUT_SERVICE] = sentence.as_str().into();
        });
        let Some(json) = marked else { return Ok(Action::AwaitChange) };
        let answers = self.objects.answers();
        match replace::<LoadBalancer>(&self.client, &json).await {
            Ok(written) => {
                answers.wrote(written);
                reports.done(key);
            }
            // somebody else writes it: the watch brings us back
            Err(kube::Error::Api(status)) if status.is_conflict() || status.is_not_found() => {}
            // its annotations may be as long as the server allows: the same mark would be refused again
            Err(kube::Error::Api(status)) if is_refused_as_it_is(&status) => {
                tracing::debug!(object = %key, "it cannot be marked: {}", status.message);
                reports.done(key);
            }
            Err(error) => return Err(error),
        }
        Ok(Action::AwaitChange)
    }
}

/// Whether the server refuses what the object would be, and not the request.
fn is_refused_as_it_is(status: &Status) -> bool {
    matches!(status.code, 400 | 413 | 422) || status.message.contains(DENIED)
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
    // it goes into an Event: anybody may write anything there
    let uid = annotations.get(annotations::SERVICE_UID).filter(|uid| is_uid(uid));
    Some(Purpose { service, uid: uid.cloned() })
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
    use controller_kit::{Cache, RawObject};
    use http::{Request, Response};
    use kube::client::Body;
    use program::{Clock, capabilities::Capabilities};
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;
    use crate::load_balancers::{lookup::FINDS, tests::denied};

    const S1: &str = "00000000-0000-4000-8000-000000000001";
    const S2: &str = "00000000-0000-4000-8000-000000000002";

    #[rstest]
    #[case::ours(json!({"cluster-uid": "c1", "service-uid": S1}), "blue", Some(Some(S1)))]
    #[case::under_a_former_name(json!({"cluster-uid": "c1", "service-uid": S1}), "green", Some(Some(S1)))]
    #[case::of_another_cluster(json!({"cluster-uid": "c2", "service-uid": S1}), "blue", None)]
    // anybody who may write an object may write anything there
    #[case::of_no_uid(json!({"cluster-uid": "c1", "service-uid": "x".repeat(240_000)}), "blue", Some(None))]
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
        let by_uid = expected.filter(|_| object.annotations().contains_key(annotations::CLUSTER_UID));
        assert_eq!(purpose(&object, &nameless, None), by_uid, "a name that everybody has tells nothing");

        object.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        assert_eq!(purpose(&object, &ours, None), None, "it goes already");
    }

    #[rstest]
    #[case::served(Some(S1), false, false)]
    #[case::gone(None, false, true)]
    #[case::gone_and_told(None, true, true)]
    #[case::made_again_under_the_name(Some(S2), false, true)]
    fn an_object_without_its_service_is_reported_once(
        #[case] service: Option<&str>,
        #[case] told: bool,
        #[case] abandoned: bool,
    ) {
        let mut annotations = json!({annotations::CLUSTER_UID: "c1", annotations::SERVICE_UID: S1});
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
            serde_json::from_value(json!({"metadata": {"name": "web", "namespace": "shop", "uid": S1}}))
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

    // a neighbour in the namespace may label any number of objects, and all of them are told at the start
    #[tokio::test(start_paused = true)]
    async fn thousands_of_objects_for_one_service_are_gone_through_at_a_pace() {
        let service = |name: &str, uid: &str| -> Service {
            serde_json::from_value(json!({"metadata": {"name": name, "namespace": "shop", "uid": uid},
                "spec": {"type": "LoadBalancer"}}))
            .unwrap()
        };
        let (cloud, _) = denied(&Cache::of([service("web", S1), service("api", S2)]));
        let label = |name: &str| json!({labels::SERVICE_NAMESPACE: "shop", labels::SERVICE_NAME: name, labels::CLUSTER: "blue"});
        for n in 0..2_000 {
            let metadata = json!({"name": format!("a{n}"), "namespace": "team-a", "labels": label("web")});
            cloud.objects.wrote(RawObject::from_json(json!({"metadata": metadata, "spec": {}})).unwrap());
        }
        let nothing = tower::service_fn(|_: Request<Body>| async {
            let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404,
                "reason": "NotFound", "message": "not found"});
            let body = Body::from(status.to_string().into_bytes());
            Ok::<_, tower::BoxError>(Response::builder().status(404).body(body)?)
        });
        let (tasks, client) = (TaskGroup::new(), Client::new(nothing, "shop"));
        let clock = Clock::system();
        let recorder = Recorder::start(&tasks, client.clone(), "test", clock, &Capabilities::assumed([]));
        FINDS.set(0);
        cloud.report_objects_without_service(&tasks, client, recorder);
        assert_eq!(FINDS.get(), 0, "nothing is gone through in the subscribers");
        let mut before = 0;
        for _ in 0..10 {
            tokio::time::sleep(Duration::from_secs(60)).await;
            let finds = FINDS.replace(0);
            assert!(finds < 60, "{finds} of 2000");
            before += finds;
        }
        assert!(before > 25, "they are looked at");
        tasks.end().await;
    }
}
