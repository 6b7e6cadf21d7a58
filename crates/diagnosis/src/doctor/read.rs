//! Asks both clusters what the checks need: GETs, questions about rights, and one creation for a trial.

use cloud_config::{CloudConfig, Connection, Options, expiry};
use controller_kit::error_message;
use futures::{future::join_all, join};
use harvester_api::load_balancer::API_VERSIONS;
use http::{Request, header};
use jiff::{Timestamp, fmt::rfc2822};
use kube::{Client, client::Body};
use serde_json::{Value, json};

use super::facts::{Answer, Cluster, Config, Facts, Failed, Grant, Trouble};
use crate::explain::cut;

pub(crate) const VERSION: &str = "/version";
pub(crate) const NODES: &str = "/api/v1/nodes";
pub(crate) const SERVICES: &str = "/api/v1/services";
pub(crate) const DEPLOYMENTS: &str = "/apis/apps/v1/deployments";
pub(crate) const DAEMON_SETS: &str = "/apis/apps/v1/daemonsets";
pub(crate) const CSI_DRIVERS: &str = "/apis/storage.k8s.io/v1/csidrivers";
pub(crate) const CSI_NODES: &str = "/apis/storage.k8s.io/v1/csinodes";
pub(crate) const STORAGE_CLASSES: &str = "/apis/storage.k8s.io/v1/storageclasses";
pub(crate) const SNAPSHOTS: &str = "/apis/snapshot.storage.k8s.io";
pub(crate) const CCM_LEASE: &str =
    "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/cloud-controller-manager";
pub(crate) const CSI_LEASE: &str =
    "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/harvester-csi-attach";
const OF_GUEST: [&str; 11] = [
    VERSION,
    NODES,
    SERVICES,
    DEPLOYMENTS,
    DAEMON_SETS,
    CSI_DRIVERS,
    CSI_NODES,
    STORAGE_CLASSES,
    SNAPSHOTS,
    CCM_LEASE,
    CSI_LEASE,
];

pub(crate) const BALANCER_GROUP: &str = "/apis/loadbalancer.harvesterhci.io";
pub(crate) const POOLS: &str = "/apis/loadbalancer.harvesterhci.io/v1beta1/ippools";
pub(crate) const HARVESTER_VERSION: &str = "/apis/harvesterhci.io/v1beta1/settings/server-version";

/// Objects of the guest cluster's namespace.
pub(crate) fn balancers(namespace: &str) -> String {
    format!("/apis/loadbalancer.harvesterhci.io/v1beta1/namespaces/{namespace}/loadbalancers")
}

/// One object in the former version.
pub(crate) fn former(namespace: &str) -> String {
    format!("/apis/loadbalancer.harvesterhci.io/v1alpha1/namespaces/{namespace}/loadbalancers?limit=1")
}

pub(crate) fn machines(namespace: &str) -> String {
    format!("/apis/kubevirt.io/v1/namespaces/{namespace}/virtualmachines")
}

pub(crate) fn instances(namespace: &str) -> String {
    format!("/apis/kubevirt.io/v1/namespaces/{namespace}/virtualmachineinstances")
}

const BALANCERS: &str = "loadbalancer.harvesterhci.io";
const KUBEVIRT: &str = "kubevirt.io";
const SUBRESOURCES: &str = "subresources.kubevirt.io";

const fn grant(
    check: &'static str,
    verb: &'static str,
    group: &'static str,
    [resource, subresource]: [&'static str; 2],
) -> Grant {
    Grant { check, verb, group, resource, subresource }
}

/// What the guest cluster's credential must be allowed in its namespace of Harvester.
pub const GRANTS: &[Grant] = &[
    grant("rights-load-balancers", "get", BALANCERS, ["loadbalancers", ""]),
    grant("rights-load-balancers", "list", BALANCERS, ["loadbalancers", ""]),
    grant("rights-load-balancers", "watch", BALANCERS, ["loadbalancers", ""]),
    grant("rights-load-balancers", "create", BALANCERS, ["loadbalancers", ""]),
    grant("rights-load-balancers", "update", BALANCERS, ["loadbalancers", ""]),
    grant("rights-load-balancers", "delete", BALANCERS, ["loadbalancers", ""]),
    grant("rights-machines", "get", KUBEVIRT, ["virtualmachines", ""]),
    grant("rights-machines", "list", KUBEVIRT, ["virtualmachines", ""]),
    grant("rights-machines", "watch", KUBEVIRT, ["virtualmachines", ""]),
    grant("rights-machines", "get", KUBEVIRT, ["virtualmachineinstances", ""]),
    grant("rights-machines", "list", KUBEVIRT, ["virtualmachineinstances", ""]),
    grant("rights-machines", "watch", KUBEVIRT, ["virtualmachineinstances", ""]),
    grant("rights-volumes", "get", "", ["persistentvolumeclaims", ""]),
    grant("rights-volumes", "list", "", ["persistentvolumeclaims", ""]),
    grant("rights-volumes", "create", "", ["persistentvolumeclaims", ""]),
    grant("rights-volumes", "patch", "", ["persistentvolumeclaims", ""]),
    grant("rights-volumes", "delete", "", ["persistentvolumeclaims", ""]),
    grant("rights-volumes", "update", SUBRESOURCES, ["virtualmachines", "addvolume"]),
    grant("rights-volumes", "update", SUBRESOURCES, ["virtualmachines", "removevolume"]),
];

/// Reads everything. `config`: the cloud-config, or why there is none.
pub async fn read(
    guest: &Client,
    config: Result<&CloudConfig, String>,
    settings: &Options,
    now: Timestamp,
) -> Facts {
    let opened = match &config {
        Ok(config) => Connection::open(config, settings).map_err(|error| error.to_string()),
        Err(why) => Err(why.clone()),
    };
    let (config, harvester) = match (config, opened) {
        (Ok(config), Ok(connection)) => {
            let expiry = expiry::of(config, settings).await;
            let [file, server, namespace] = [config.file.clone(), config.server(), config.namespace.clone()];
            (Ok(Config { file, server, namespace, expiry }), Some(connection.client()))
        }
        (Err(why), _) | (_, Err(why)) => (Err(why), None),
    };
    read_with(guest, config, harvester, now).await
}

/// As [`read`], with a client for Harvester that somebody made.
pub async fn read_with(
    guest: &Client,
    config: Result<Config, String>,
    harvester: Option<Client>,
    now: Timestamp,
) -> Facts {
    let guest = cluster(guest, OF_GUEST.map(str::to_owned).to_vec());
    let (Ok(found), Some(client)) = (&config, harvester) else {
        let trial = Err(Failed { trouble: Trouble::NoAnswer, why: String::new() });
        let (guest, harvester) = (guest.await, Cluster::default());
        return Facts { now, guest, config, harvester, harvester_time: None, grants: Vec::new(), trial };
    };
    let namespace = &found.namespace;
    let fixed = [VERSION, BALANCER_GROUP, POOLS, STORAGE_CLASSES, HARVESTER_VERSION].map(str::to_owned);
    let own = [balancers(namespace), former(namespace), machines(namespace), instances(namespace)];
    let paths = fixed.into_iter().chain(own).collect();
    let grants = join_all(GRANTS.iter().map(|grant| is_granted(&client, namespace, grant)));
    let (guest, harvester, harvester_time, grants, trial) =
        join!(guest, cluster(&client, paths), time_of(&client), grants, try_out(&client, namespace));
    let grants = GRANTS.iter().copied().zip(grants).collect();
    Facts { now, guest, config, harvester, harvester_time, grants, trial }
}

async fn cluster(client: &Client, paths: Vec<String>) -> Cluster {
    let answers = join_all(paths.iter().map(|path| get(client, path))).await;
    Cluster { answers: paths.into_iter().zip(answers).collect() }
}

async fn get(client: &Client, path: &str) -> Answer {
    let request = Request::get(path).body(Vec::new()).map_err(|error| unsent(&error))?;
    client.request::<Value>(request).await.map_err(|error| failed(&error))
}

async fn post(client: &Client, path: &str, body: &Value) -> Answer {
    let request = Request::post(path).header(header::CONTENT_TYPE, "application/json");
    let request = request.body(body.to_string().into_bytes()).map_err(|error| unsent(&error))?;
    client.request::<Value>(request).await.map_err(|error| failed(&error))
}

async fn is_granted(client: &Client, namespace: &str, grant: &Grant) -> Option<bool> {
    let Grant { verb, group, resource, subresource, .. } = grant;
    let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": {"namespace": namespace, "verb": verb, "group": group,
            "resource": resource, "subresource": subresource}}});
    let answer =
        post(client, "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", &review).await.ok()?;
    answer["status"]["allowed"].as_bool()
}

/// Nothing is stored, and the webhooks are asked.
async fn try_out(client: &Client, namespace: &str) -> Result<(), Failed> {
    let trial = json!({"apiVersion": API_VERSIONS[0], "kind": "LoadBalancer",
        "metadata": {"generateName": "doctor-", "namespace": namespace},
        "spec": {"workloadType": "cluster", "ipam": "pool",
            "listeners": [{"name": "http", "port": 80, "protocol": "TCP", "backendPort": 80}]}});
    post(client, &format!("{}?dryRun=All", balancers(namespace)), &trial).await.map(|_| ())
}

async fn time_of(client: &Client) -> Option<Timestamp> {
    let request = Request::get(VERSION).body(Body::empty()).ok()?;
    let answer = client.send(request).await.ok()?;
    let text = answer.headers().get(header::DATE)?.to_str().ok()?.to_owned();
    rfc2822::parse(&text).ok().map(|time| time.timestamp())
}

fn unsent(error: &http::Error) -> Failed {
    Failed { trouble: Trouble::Refused, why: cut(&error.to_string()) }
}

fn failed(error: &kube::Error) -> Failed {
    let why = error_message(error);
    let trouble = match error {
        kube::Error::Api(status) => match status.code {
            401 => Trouble::Unauthorized,
            403 => Trouble::Forbidden,
            404 => Trouble::NotFound,
            _ => Trouble::Refused,
        },
        _ if why.contains("certificate") => Trouble::Certificate,
        _ => Trouble::NoAnswer,
    };
    Failed { trouble, why: cut(&why) }
}
