//! A process of the driver whose requests take some time, and which somebody may stop (SIGSTOP) at one of its writes.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use csi_driver::{
    attach::{Attacher, Options},
    controller::{ControllerService, Settings},
    csi::{
        ControllerPublishVolumeRequest, ControllerUnpublishVolumeRequest, VolumeCapability,
        controller_server::Controller,
        volume_capability::{AccessMode, AccessType, MountVolume, access_mode::Mode},
    },
    guest::Guest,
    host::{Host, missing::Missing},
    run::users,
};
use futures::StreamExt;
use http::{Method, Request, Response};
use http_body_util::{BodyExt as _, BodyStream, StreamBody, combinators::UnsyncBoxBody};
use kube::{Client, client::Body};
use program::Clock;
use serde_json::{Value, json};
use sim_apiserver::{ApiServer, User};
use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until, timeout},
};
use tonic::Status;
use tower::BoxError;

use super::bed::{Bed, NAMESPACE, VOLUME};

/// As the external attacher of the chart.
const CALL_LASTS: Duration = Duration::from_secs(110);
/// Milliseconds of a request.
const LATENCY: u64 = 20;

/// A write at which a process is stopped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stop {
    /// So many writes go well before it.
    pub(crate) after: u32,
    /// The write reaches the server at once, and its answer is read late; else the write itself is late.
    pub(crate) is_sent: bool,
    pub(crate) lasts: Duration,
}

/// An addition of the volume to a machine's template.
#[derive(Clone, Debug)]
pub(crate) struct Addition {
    pub(crate) machine: String,
    /// When the process wrote the annotation that allows it.
    pub(crate) claimed_at: Instant,
    /// The version of the machine that has it; by a subresource, one of the host that is not later.
    pub(crate) revision: u64,
}

/// What processes did.
#[derive(Default)]
pub(crate) struct Deeds {
    pub(crate) additions: Vec<Addition>,
    /// The round's beginning.
    pub(crate) begun: Option<Instant>,
    /// All writes and answers, for whoever has to find out what went wrong.
    pub(crate) log: Vec<String>,
    pub(crate) fences: usize,
    pub(crate) stops: usize,
}

#[derive(Clone)]
struct Gate {
    name: Arc<str>,
    state: Arc<Mutex<GateState>>,
    deeds: Arc<Mutex<Deeds>>,
    host: ApiServer,
    /// The role grants to patch machines.
    may_patch: Arc<AtomicBool>,
    takes_requests: Arc<AtomicBool>,
    shows_instances: watch::Receiver<u64>,
}

struct GateState {
    random: fastrand::Rng,
    stop: Option<Stop>,
    stopped_until: Option<Instant>,
    claimed_at: Instant,
}

type Answer = Response<UnsyncBoxBody<Bytes, BoxError>>;

impl Gate {
    async fn goes_on(&self) {
        let until = self.state.lock().unwrap().stopped_until;
        if let Some(until) = until {
            sleep_until(until).await;
        }
    }

    /// Whether the process stops with this request, and how.
    fn stops(&self, is_write: bool) -> Option<Stop> {
        let mut state = self.state.lock().unwrap();
        let stop = state.stop.as_mut().filter(|_| is_write)?;
        if stop.after > 0 {
            stop.after -= 1;
            return None;
        }
        let stop = state.stop.take()?;
        state.stopped_until = Some(Instant::now() + stop.lasts);
        self.deeds.lock().unwrap().stops += 1;
        self.note(&format!("{stop:?}"));
        Some(stop)
    }

    fn note(&self, what: &str) {
        let mut deeds = self.deeds.lock().unwrap();
        let at = Instant::now().duration_since(deeds.begun.unwrap_or_else(Instant::now));
        let line = format!("{:>10.3} {}: {what}", at.as_secs_f64(), self.name);
        deeds.log.push(line);
    }

    /// What this host answers to a write that its role does not grant, or its KubeVirt does not know.
    fn refusal(&self, head: &http::request::Parts) -> Option<Answer> {
        let path = head.uri.path();
        let is_patch = head.method == Method::PATCH && path.contains("/virtualmachines/");
        if is_patch && !self.may_patch.load(Ordering::Relaxed) {
            let why = "virtualmachines.kubevirt.io is forbidden: User \"csi\" cannot patch resource \"virtualmachines\" in \
                       API group \"kubevirt.io\" in the namespace \"shop\"";
            return Some(refused(403, "Forbidden", why));
        }
        let is_request = path.starts_with("/apis/subresources.kubevirt.io/");
        // as it has no gate that it knows while KubeVirt is replaced
        let why = "Unable to Add Volume because HotplugVolumes feature gate is not enabled.";
        (is_request && !self.takes_requests.load(Ordering::Relaxed)).then(|| refused(400, "BadRequest", why))
    }

    async fn send(&self, client: &Client, request: Request<Body>) -> Result<Answer, BoxError> {
        let latency = self.state.lock().unwrap().random.u64(..LATENCY);
        sleep(Duration::from_millis(latency)).await;
        self.goes_on().await;
        let is_write = request.method() != Method::GET;
        let (head, body) = request.into_parts();
        if let Some(refused) = self.refusal(&head) {
            return Ok(refused);
        }
        let body = body.collect_bytes().await?;
        let text = String::from_utf8_lossy(&body).into_owned();
        let path = head.uri.path().to_owned();
        let (is_addition, is_fence) = match path.split_once("/virtualmachines/") {
            Some(_) if head.method == Method::PATCH => {
                (text.contains("hotpluggable") && text.contains("\"add\""), text.contains("fence"))
            }
            Some((_, rest)) => (rest.ends_with("/addvolume"), false),
            None => (false, false),
        };
        if path.contains("/persistentvolumeclaims/") && is_write {
            self.state.lock().unwrap().claimed_at = Instant::now();
        }
        let claimed_at = self.state.lock().unwrap().claimed_at;
        let sent_as = head.method.clone();
        let stop = self.stops(is_write);
        let request = Request::from_parts(head, Body::from(body));
        let (gate, client) = (self.clone(), client.clone());
        let sent = async move {
            if stop.is_some_and(|stop| !stop.is_sent) {
                gate.goes_on().await;
            }
            client.send(request).await
        };
        // a stopped process takes nothing back that is on its way
        let answer = if stop.is_some() { tokio::spawn(sent).await.unwrap()? } else { sent.await? };
        if is_write {
            let sent = &text[..text.len().min(250)];
            self.note(&format!("{} on {path}: {} {sent}", answer.status(), sent_as));
        }
        let (head, body) = answer.into_parts();
        if !is_addition && !is_fence {
            self.goes_on().await;
            let gate = self.clone();
            let is_of_instances = path.ends_with("/virtualmachineinstances");
            let frames = BodyStream::new(body).then(move |frame| {
                let gate = gate.clone();
                async move {
                    gate.goes_on().await;
                    if let (Ok(frame), true) = (&frame, is_of_instances) {
                        let shown = revision(frame.data_ref().map_or(&[][..], Bytes::as_ref));
                        drop(gate.shows_instances.clone().wait_for(|until| shown <= *until).await);
                    }
                    frame.map_err(BoxError::from)
                }
            });
            return Ok(Response::from_parts(head, StreamBody::new(frames).boxed_unsync()));
        }
        let body = body.collect_bytes().await?;
        if head.status.is_success() && is_fence {
            self.deeds.lock().unwrap().fences += 1;
        }
        if head.status.is_success() && is_addition {
            let object: Value = serde_json::from_slice(&body).unwrap_or_default();
            let machine = path.split("/virtualmachines/").nth(1).unwrap_or_default();
            let addition = Addition {
                machine: machine.split('/').next().unwrap_or_default().to_owned(),
                claimed_at,
                revision: object["metadata"]["resourceVersion"]
                    .as_str()
                    .map_or_else(|| self.host.revision(), |text| text.parse().unwrap()),
            };
            self.deeds.lock().unwrap().additions.push(addition);
        }
        self.goes_on().await;
        let body = http_body_util::Full::new(body).map_err(BoxError::from).boxed_unsync();
        Ok(Response::from_parts(head, body))
    }
}

/// The version of the object of a watch's event; 0 where it is none.
fn revision(event: &[u8]) -> u64 {
    let event: Value = serde_json::from_slice(event).unwrap_or_default();
    let version = event["object"]["metadata"]["resourceVersion"].as_str();
    version.map_or(0, |version| version.parse().unwrap())
}

fn refused(code: u16, reason: &str, message: &str) -> Answer {
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason,
        "message": message});
    let body = http_body_util::Full::new(Bytes::from(status.to_string()));
    Response::builder().status(code).body(body.map_err(BoxError::from).boxed_unsync()).unwrap()
}

pub(crate) struct Process {
    service: Arc<ControllerService>,
    pub(crate) attacher: Arc<Attacher>,
    /// Its way to the guest, which stops with it.
    pub(crate) guest: Client,
    /// Its watch of instances shows them up to this version.
    pub(crate) shows_instances: watch::Sender<u64>,
    gate: Gate,
}

impl Process {
    /// A process whose wall clock shows this many minutes more than those of others.
    pub(crate) fn new(bed: &Bed, name: &str, minutes: u64, deeds: &Arc<Mutex<Deeds>>) -> Self {
        let state = GateState {
            random: fastrand::Rng::with_seed(0),
            stop: None,
            stopped_until: None,
            claimed_at: Instant::now(),
        };
        let shows_instances = watch::Sender::new(u64::MAX);
        let (deeds, shown) = (deeds.clone(), shows_instances.subscribe());
        let gate = Gate {
            name: name.into(),
            state: Arc::new(Mutex::new(state)),
            deeds,
            host: bed.server.clone(),
            may_patch: bed.may_patch.clone(),
            takes_requests: bed.takes_requests.clone(),
            shows_instances: shown,
        };
        let tasks = bed.tasks.child();
        let through = |inner: Client| {
            let through = gate.clone();
            tower::service_fn(move |request: Request<Body>| {
                let (gate, client) = (through.clone(), inner.clone());
                async move { gate.send(&client, request).await }
            })
        };
        let guest = Client::new(through(bed.guest()), "kube-system");
        let client = through(bed.server.client(User::named(name).with_group("system:masters")));
        let start = Clock::system().now() + in_minutes(minutes);
        let missing = Missing::new(&tasks, bed.guest(), Clock::starting_at(start), None);
        let host = Host::new(missing.observe(Client::new(client, NAMESPACE), NAMESPACE), NAMESPACE);
        let options = Options { users: users(Guest::new(guest.clone())), ..Options::new(name) };
        let attacher = Arc::new(Attacher::new(host.clone(), &tasks, options));
        let service = ControllerService::new(host, Settings::default(), attacher.clone());
        Self { service: Arc::new(service), attacher, guest, shows_instances, gate }
    }

    /// It is stopped at one of its next writes, and its requests take the times of this seed.
    pub(crate) fn stop_at(&self, stop: Option<Stop>, seed: u64) {
        let mut state = self.gate.state.lock().unwrap();
        (state.stop, state.random) = (stop, fastrand::Rng::with_seed(seed));
    }

    /// What all processes did since the round began.
    pub(crate) fn log(&self) -> String {
        self.gate.deeds.lock().unwrap().log.join("\n")
    }

    /// Calls, and goes away after the time that the attacher waits: the call ends with that.
    pub(crate) async fn call(&self, is_publish: bool, machine: &str) -> Result<(), Status> {
        let (service, gate, machine) = (self.service.clone(), self.gate.clone(), machine.to_owned());
        let of = machine.clone();
        let task = tokio::spawn(async move {
            gate.goes_on().await;
            let answer = if is_publish {
                let capability = VolumeCapability {
                    access_type: Some(AccessType::Mount(MountVolume::default())),
                    access_mode: Some(AccessMode { mode: Mode::SingleNodeWriter.into() }),
                };
                let request = ControllerPublishVolumeRequest {
                    volume_id: VOLUME.to_owned(),
                    node_id: machine,
                    volume_capability: Some(capability),
                    ..ControllerPublishVolumeRequest::default()
                };
                service.controller_publish_volume(with_deadline(request)).await.map(drop)
            } else {
                let request = ControllerUnpublishVolumeRequest {
                    volume_id: VOLUME.to_owned(),
                    node_id: machine,
                    secrets: HashMap::new(),
                };
                service.controller_unpublish_volume(with_deadline(request)).await.map(drop)
            };
            gate.goes_on().await;
            let said = answer.as_ref().err().map(Status::message).map(str::to_owned);
            gate.note(&format!("publish {is_publish} {of}: {said:?}"));
            answer
        });
        let call = task.abort_handle();
        match timeout(CALL_LASTS, task).await {
            Ok(answer) => answer.unwrap(),
            Err(_) => {
                call.abort();
                Err(Status::deadline_exceeded("the caller went away"))
            }
        }
    }
}

fn with_deadline<T>(request: T) -> tonic::Request<T> {
    let mut request = tonic::Request::new(request);
    request.set_timeout(CALL_LASTS);
    request
}

fn in_minutes(minutes: u64) -> Duration {
    Duration::from_secs(minutes * 60)
}
