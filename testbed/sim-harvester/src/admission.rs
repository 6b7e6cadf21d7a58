//! What KubeVirt and Harvester refuse of VMs and PersistentVolumeClaims: admission webhooks, so the same rules hold on the
//! simulated server, which calls [`router`] in this process, and on a real one, which calls it over TLS.
//!
//! ```text
//! VirtualMachine create, update          KubeVirt: volumes and disks belong together by name, 256 at most
//!                                        Harvester: a PersistentVolumeClaim belongs to one VM
//! PersistentVolumeClaim delete, update   Harvester: not while a VM lists it; growth under a running VM
//!                                        Kubernetes: growth of bound claims alone, as a real server says by itself
//! ```
//! Harvester asks its webhook about the status of a VM too. That is left out: the simulation itself would be refused.

mod claim;
mod vm;

use std::collections::{BTreeMap, BTreeSet};

use axum::{Json, Router, extract::State, routing::post};
use k8s_openapi::{
    ByteString,
    api::{
        admissionregistration::v1::ValidatingWebhookConfiguration, core::v1::PersistentVolumeClaim,
        storage::v1::StorageClass,
    },
};
use kube::{
    Api, Client, ResourceExt,
    api::{ListParams, PostParams},
};
use serde_json::{Value, json};

use controller_kit::RawObject;
use harvester_api::VirtualMachine;

use crate::harvester_version::{self, SERVER_VERSION};

/// Namespace and name of the Service that the simulated server finds the webhooks behind.
pub const SERVICE: (&str, &str) = ("harvester-system", "harvester-webhook");
const VMS: &str = "/virtualmachines";
const CLAIMS: &str = "/persistentvolumeclaims";
/// The API server's own controllers delete what nobody owns any more.
const COLLECTORS: [&str; 3] = [
    "system:kube-controller-manager",
    "system:serviceaccount:kube-system:generic-garbage-collector",
    "system:serviceaccount:kube-system:namespace-controller",
];
/// Harvester's Setting with the drivers whose volumes grow under a VM that runs.
const EXPAND: &str = "csi-online-expand-validation";
pub(crate) const LONGHORN: &str = "driver.longhorn.io";

/// Where the API server reaches the webhooks.
#[derive(Clone, Copy, Debug)]
pub enum Place<'a> {
    /// At [`SERVICE`]: `ApiServer::webhook` of the simulated server.
    Service,
    /// At this URL, by certificates of this authority (PEM).
    Url { root: &'a str, authority: &'a str },
}

/// A rule says no.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Refusal {
    code: u16,
    message: String,
}

impl Refusal {
    fn invalid(message: impl Into<String>) -> Self {
        Self { code: 422, message: message.into() }
    }
}

/// The webhooks.
pub fn router(harvester: Client) -> Router {
    Router::new().route(VMS, post(review_vm)).route(CLAIMS, post(review_claim)).with_state(harvester)
}

/// The object that tells the API server of the webhooks.
///
/// # Panics
/// Never: it is a constant but for the place.
pub fn configuration(place: Place<'_>) -> ValidatingWebhookConfiguration {
    let webhook = |name: &str, path: &str, group: &str, resource: &str, operations: [&str; 2]| {
        let client = match place {
            Place::Service => {
                json!({"service": {"namespace": SERVICE.0, "name": SERVICE.1, "path": path, "port": 443}})
            }
            Place::Url { root, authority } => {
                json!({"url": format!("{}{path}", root.trim_end_matches('/')),
                    "caBundle": ByteString(authority.as_bytes().to_vec())})
            }
        };
        json!({"name": name, "clientConfig": client, "sideEffects": "None", "admissionReviewVersions": ["v1"],
            "failurePolicy": "Fail", "rules": [{"apiGroups": [group], "apiVersions": ["v1"], "resources": [resource],
                "operations": operations, "scope": "Namespaced"}]})
    };
    let json = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
    "metadata": {"name": "harvester-validator"},
    "webhooks": [
        webhook("virtualmachine-validator.kubevirt.io", VMS, "kubevirt.io", "virtualmachines", ["CREATE", "UPDATE"]),
        webhook("validator.harvesterhci.io", CLAIMS, "", "persistentvolumeclaims", ["UPDATE", "DELETE"]),
    ]});
    serde_json::from_value(json).expect("a constant configuration")
}

/// Tells the API server of the webhooks. A real one asks them a moment later.
///
/// # Errors
/// The server's.
pub async fn register(harvester: &Client, place: Place<'_>) -> kube::Result<()> {
    let api: Api<ValidatingWebhookConfiguration> = Api::all(harvester.clone());
    api.create(&PostParams::default(), &configuration(place)).await.map(drop)
}

async fn review_vm(State(harvester): State<Client>, Json(review): Json<Value>) -> Json<Value> {
    let request = &review["request"];
    let refusal = async {
        let vm = &request["object"];
        // whoever removes finalizers is not to be kept from it
        if !vm["metadata"]["deletionTimestamp"].is_null() {
            return Ok(None);
        }
        if let Some(why) = vm::faults(&vm["spec"]["template"]["spec"]) {
            return Ok(Some(Refusal::invalid(why)));
        }
        let cluster = Cluster::read(&harvester, namespace(request)).await?;
        Ok(vm::occupied(vm, &cluster))
    };
    answer(request, refusal.await)
}

async fn review_claim(State(harvester): State<Client>, Json(review): Json<Value>) -> Json<Value> {
    let request = &review["request"];
    let refusal = async {
        let user = request["userInfo"]["username"].as_str().unwrap_or_default();
        if COLLECTORS.contains(&user) {
            return Ok(None);
        }
        let (old, new) = (&request["oldObject"], &request["object"]);
        if request["operation"] == "DELETE" {
            let cluster = Cluster::read(&harvester, namespace(request)).await?;
            return Ok(claim::deletion(old, &cluster));
        }
        if !claim::resizes(old, new) {
            return Ok(None);
        }
        let cluster = Cluster::read(&harvester, namespace(request)).await?;
        let refusal = claim::by_kubernetes(old, new, &cluster);
        Ok(refusal.or_else(|| claim::grows(old, new).then(|| claim::growth(new, &cluster)).flatten()))
    };
    answer(request, refusal.await)
}

fn namespace(request: &Value) -> &str {
    request["namespace"].as_str().unwrap_or_default()
}

fn answer(request: &Value, refusal: kube::Result<Option<Refusal>>) -> Json<Value> {
    let refusal = refusal.unwrap_or_else(|error| Some(Refusal { code: 500, message: error.to_string() }));
    let mut response = json!({"uid": request["uid"], "allowed": refusal.is_none()});
    if let Some(Refusal { code, message }) = refusal {
        let reason = match code {
            403 => "Forbidden",
            409 => "Conflict",
            _ => "Invalid",
        };
        response["status"] = json!({"code": code, "reason": reason, "message": message});
    }
    Json(json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}))
}

/// What the rules look at besides the object itself.
#[derive(Clone, Debug, Default)]
struct Cluster {
    /// The VMs of the namespace, every field of them.
    vms: Vec<Value>,
    claims: BTreeMap<String, PersistentVolumeClaim>,
    /// The driver of each storage class.
    drivers: BTreeMap<String, String>,
    /// The storage classes whose volumes may grow.
    growing_classes: BTreeSet<String>,
    /// Harvester's release; empty where nobody says.
    version: String,
    /// The drivers whose volumes grow under a VM that runs.
    expand: BTreeMap<String, bool>,
}

impl Cluster {
    async fn read(harvester: &Client, namespace: &str) -> kube::Result<Self> {
        let vms: Api<RawObject<VirtualMachine>> = Api::namespaced(harvester.clone(), namespace);
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(harvester.clone(), namespace);
        let classes: Api<StorageClass> = Api::all(harvester.clone());
        let all = ListParams::default();
        let mut expand = BTreeMap::from([(LONGHORN.to_owned(), true)]);
        if let Some(setting) = harvester_version::setting(harvester, EXPAND).await? {
            for field in ["default", "value"] {
                let text = setting.data[field].as_str().unwrap_or_default();
                expand.extend(serde_json::from_str::<BTreeMap<String, bool>>(text).unwrap_or_default());
            }
        }
        let version = harvester_version::setting(harvester, SERVER_VERSION).await?;
        let classes = classes.list(&all).await?.items;
        let growing = classes.iter().filter(|class| class.allow_volume_expansion == Some(true));
        Ok(Self {
            vms: vms.list(&all).await?.iter().map(RawObject::json).collect(),
            claims: claims.list(&all).await?.into_iter().map(|claim| (claim.name_any(), claim)).collect(),
            growing_classes: growing.map(ResourceExt::name_any).collect(),
            drivers: classes.into_iter().map(|class| (class.name_any(), class.provisioner)).collect(),
            version: version.map(|setting| harvester_version::text(&setting).to_owned()).unwrap_or_default(),
            expand,
        })
    }

    /// The driver of a claim's volume; empty where its class is unknown.
    fn driver(&self, claim: &PersistentVolumeClaim) -> &str {
        let class = claim.spec.as_ref().and_then(|spec| spec.storage_class_name.as_ref());
        class.and_then(|class| self.drivers.get(class)).map_or("", String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_servers_are_told_of_the_same_rules() {
        let service = configuration(Place::Service).webhooks.unwrap();
        let url = Place::Url { root: "https://127.0.0.1:9443/", authority: "PEM" };
        let url = configuration(url).webhooks.unwrap();
        let rules = |webhooks: &[k8s_openapi::api::admissionregistration::v1::ValidatingWebhook]| {
            webhooks.iter().map(|webhook| webhook.rules.clone()).collect::<Vec<_>>()
        };
        assert_eq!(rules(&service), rules(&url));
        assert_eq!(url[0].client_config.url.as_deref(), Some("https://127.0.0.1:9443/virtualmachines"));
        assert_eq!(url[1].client_config.ca_bundle, Some(ByteString(b"PEM".to_vec())));
    }
}
