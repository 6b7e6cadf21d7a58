//! The load balancer in a cluster, with backends that answer as they are told and a kube-vip that announces.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt as _;
use harvester_api::{Condition, IPPool, LoadBalancer, condition};
use health_check::{Dial, DialError, Probe};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use serde_json::json;
use test_cluster::TestCluster;

use super::fixtures::{Controller, work};

/// How often the cluster may come to rest without showing what is waited for: thresholds and leases take time.
const RESTS: usize = 80;

pub(crate) struct Lab {
    pub(crate) cluster: TestCluster,
    answers: Arc<Mutex<BTreeMap<SocketAddr, Answer>>>,
    /// How often each address was dialled.
    dials: Arc<Mutex<BTreeMap<SocketAddr, usize>>>,
    controller: Option<Controller>,
}

/// A backend's answer to a health check. Backends without one refuse the connection.
#[derive(Clone, Copy, Debug)]
enum Answer {
    Yes,
    Silence,
    /// To an HTTP request; it takes every connection.
    Status(u16),
    /// Our own side cannot even try.
    NoDial,
}

impl Lab {
    /// A pool `edge` with 203.0.113.2 to .254, and the load balancer.
    pub(crate) async fn start(cluster: TestCluster) -> Self {
        cluster
            .harvester
            .apply(
                "{apiVersion: loadbalancer.harvesterhci.io/v1beta1, kind: IPPool, metadata: {name: edge},
                  spec: {ranges: [{subnet: 203.0.113.0/24}],
                         selector: {scope: [{namespace: '*', project: '*', guestCluster: '*'}]}}}",
            )
            .await;
        drop(tracing_subscriber::fmt().with_max_level(tracing::Level::WARN).with_test_writer().try_init());
        let mut lab = Self { cluster, answers: Arc::default(), dials: Arc::default(), controller: None };
        lab.start_controller();
        lab
    }

    /// With one VM behind `web`, which serves.
    pub(crate) async fn serving(cluster: TestCluster) -> Self {
        let lab = Self::start(cluster).await;
        lab.vm("api-1", "api", "192.168.7.11").await;
        lab.web("{}").await;
        lab.until_endpoints(&["192.168.7.11+"]).await;
        lab.announce().await;
        lab.until_ready_says("").await;
        lab
    }

    pub(crate) fn start_controller(&mut self) {
        let (answers, dials) = (self.answers.clone(), self.dials.clone());
        let dial: Dial = Arc::new(move |Probe { address, http }| {
            *dials.lock().unwrap().entry(address).or_default() += 1;
            let answer = answers.lock().unwrap().get(&address).copied();
            async move {
                match answer {
                    Some(Answer::Yes) => Ok(()),
                    Some(Answer::Status(status)) if http.is_some() => Err(DialError::Status(status)),
                    Some(Answer::Status(_)) => Ok(()),
                    Some(Answer::Silence) => std::future::pending().await,
                    Some(Answer::NoDial) => Err(DialError::Local("no file descriptor is left".to_owned())),
                    None => Err(DialError::Refused),
                }
            }
            .boxed()
        });
        self.controller = Some(Controller::dialling(&self.cluster, "lab", dial));
    }

    pub(crate) async fn stop_controller(&mut self) {
        self.controller.take().expect("it runs").stop().await;
    }

    /// A VM with label `tier: <tier>` and one address.
    pub(crate) async fn vm(&self, name: &str, tier: &str, address: &str) {
        self.vm_with(name, tier, &format!("{{name: vlan, ipAddress: {address}}}")).await;
    }

    /// A VM with label `tier: <tier>` and no address.
    pub(crate) async fn vm_without_address(&self, name: &str, tier: &str) {
        self.vm_with(name, tier, "").await;
    }

    async fn vm_with(&self, name: &str, tier: &str, interfaces: &str) {
        self.cluster
            .harvester
            .apply(&format!(
                "{{apiVersion: kubevirt.io/v1, kind: VirtualMachineInstance,
                   metadata: {{name: {name}, namespace: team-a, labels: {{tier: {tier}}}}}, spec: {{domain: {{devices: {{}}}}}},
                   status: {{interfaces: [{interfaces}]}}}}"
            ))
            .await;
    }

    /// A load balancer `web` for the VMs of tier `api`, port 80 to 8080; `check` is the text of its health check.
    pub(crate) async fn web(&self, check: &str) {
        self.web_with(check, "pool").await;
    }

    pub(crate) async fn web_with(&self, check: &str, ipam: &str) {
        self.cluster
            .harvester
            .apply(&format!(
                "{{apiVersion: loadbalancer.harvesterhci.io/v1beta1, kind: LoadBalancer,
                   metadata: {{name: web, namespace: team-a}},
                   spec: {{workloadType: vm, ipam: {ipam}, healthCheck: {check},
                          listeners: [{{name: http, port: 80, protocol: TCP, backendPort: 8080}}],
                          backendServerSelector: {{tier: [api]}}}}}}"
            ))
            .await;
    }

    pub(crate) fn answer(&self, address: &str) {
        self.answers.lock().unwrap().insert(port_of(address), Answer::Yes);
    }

    pub(crate) fn refuse(&self, address: &str) {
        self.answers.lock().unwrap().remove(&port_of(address));
    }

    pub(crate) fn silence(&self, address: &str) {
        self.answers.lock().unwrap().insert(port_of(address), Answer::Silence);
    }

    pub(crate) fn status(&self, address: &str, status: u16) {
        self.answers.lock().unwrap().insert(port_of(address), Answer::Status(status));
    }

    /// Dials to it fail on our own side.
    pub(crate) fn no_dial(&self, address: &str) {
        self.answers.lock().unwrap().insert(port_of(address), Answer::NoDial);
    }

    /// Waits until it was dialled so often again.
    pub(crate) async fn until_dialled(&self, address: &str, times: usize) {
        let dialled = || self.dials.lock().unwrap().get(&port_of(address)).copied().unwrap_or_default();
        let before = dialled();
        for _ in 0..RESTS {
            self.cluster.settle().await;
            if dialled() >= before + times {
                return self.cluster.settle().await;
            }
        }
        panic!("{address} was dialled {} times", dialled() - before);
    }

    /// Announces what the Service asks for, as kube-vip does.
    pub(crate) async fn announce(&self) {
        let service = self.service().await.expect("there is something to announce");
        let ip = service.spec.and_then(|spec| spec.load_balancer_ip).expect("it asks for an address");
        self.announce_as(&ip).await;
    }

    pub(crate) async fn announce_as(&self, ip: &str) {
        let status = json!({"status": {"loadBalancer": {"ingress": [{"ip": ip}]}}});
        self.cluster.harvester.patch_status::<Service>("team-a/web", status).await;
    }

    pub(crate) async fn service(&self) -> Option<Service> {
        self.cluster.harvester.get("team-a/web").await
    }

    pub(crate) async fn slice(&self) -> Option<EndpointSlice> {
        self.cluster.harvester.get("team-a/web").await
    }

    pub(crate) async fn load_balancer(&self) -> LoadBalancer {
        self.cluster.harvester.get("team-a/web").await.expect("the load balancer is there")
    }

    /// Endpoints with their readiness, the dummy as `dummy`.
    pub(crate) async fn endpoints(&self) -> Vec<(String, bool)> {
        let endpoints = self.slice().await.map(|slice| slice.endpoints).unwrap_or_default();
        let mut endpoints: Vec<_> = endpoints
            .into_iter()
            .map(|endpoint| {
                let ready =
                    endpoint.conditions.and_then(|conditions| conditions.ready).expect("always written");
                let address = endpoint.addresses.into_iter().next().expect("exactly one");
                let dummy = address == "10.52.0.255";
                (if dummy { "dummy".to_owned() } else { address }, ready)
            })
            .collect();
        endpoints.sort();
        endpoints
    }

    /// Waits until the endpoints are these: `192.168.7.11+` ready, `192.168.7.11-` not.
    pub(crate) async fn until_endpoints(&self, expected: &[&str]) {
        let mut seen = Vec::new();
        for _ in 0..RESTS {
            self.cluster.settle().await;
            let endpoints = self.endpoints().await;
            seen = endpoints
                .iter()
                .map(|(name, ready)| format!("{name}{}", if *ready { '+' } else { '-' }))
                .collect();
            if seen == expected {
                return;
            }
        }
        panic!("expected {expected:?}, they stay {seen:?}; {:#?}", self.load_balancer().await.status);
    }

    /// Waits until the Ready condition says this; an empty text: is true.
    pub(crate) async fn until_ready_says(&self, expected: &str) {
        let mut seen = None;
        for _ in 0..RESTS {
            self.cluster.settle().await;
            seen = self.ready().await;
            let message = seen.as_ref().map(|ready| ready.message.as_str());
            let ready =
                seen.as_ref().is_some_and(|ready| ready.status == harvester_api::ConditionStatus::True);
            if message == Some(expected) && ready == expected.is_empty() {
                return;
            }
        }
        panic!("expected {expected:?}, it stays {seen:#?}");
    }

    /// Waits until Service, slice and record of `web` are gone.
    pub(crate) async fn until_gone(&self) {
        for _ in 0..100 {
            self.cluster.settle().await;
            let pool = self.cluster.harvester.get::<IPPool>("edge").await.expect("it stays");
            let held = !pool.status.unwrap_or_default().allocated.is_empty();
            if self.service().await.is_none() && self.slice().await.is_none() && !held {
                return;
            }
        }
        panic!("there is something left");
    }

    pub(crate) async fn until_address(&self, expected: &str) {
        for _ in 0..RESTS {
            self.cluster.settle().await;
            if self.load_balancer().await.status.unwrap_or_default().address == expected {
                return;
            }
        }
        panic!("expected {expected}, it stays {:#?}", self.load_balancer().await.status);
    }

    /// Waits until the status gives this error for its only backend.
    pub(crate) async fn until_error(&self, expected: &str) {
        for _ in 0..RESTS {
            self.cluster.settle().await;
            let backends = self.load_balancer().await.status.unwrap_or_default().backends;
            if backends.iter().map(|backend| backend.last_error.as_str()).eq([expected]) {
                return;
            }
        }
        panic!("expected {expected:?}, it stays {:#?}", self.load_balancer().await.status);
    }

    pub(crate) async fn ready(&self) -> Option<Condition> {
        condition::ready(&self.load_balancer().await.status?.conditions).cloned()
    }

    /// Verb and resource of what the load balancer wrote since the last look, in order.
    pub(crate) fn writes(&self) -> Vec<String> {
        let work = work(&self.cluster);
        self.cluster.harvester.forget_requests();
        let writes = work.iter().filter(|request| request.is_write());
        writes.map(|request| format!("{} {} {}", request.verb, request.resource(), request.code)).collect()
    }
}

fn port_of(address: &str) -> SocketAddr {
    format!("{address}:8080").parse().unwrap()
}

/// Long enough for thresholds of a few seconds.
pub(crate) const A_WHILE: Duration = Duration::from_secs(30);
