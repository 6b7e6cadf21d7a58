//! Asks both clusters what the checks need: GETs, questions about rights, and one creation for a trial.

use cloud_config::{CloudConfig, Connection, Options, expiry};
use cloud_controller_manager::rights as of_provider;
use controller_kit::error_message;
use credential_rotation::{InUse, token::Claims};
use csi_driver::host::rights::{GRANTS, Role};
use futures::{StreamExt as _, future::join_all, join, stream};
use harvester_api::load_balancer::API_VERSIONS;
use http::{Request, header};
use jiff::{Timestamp, fmt::rfc2822};
use kube::{Client, client::Body};
use program::capabilities::Right;
use serde_json::{Value, json};

use super::facts::{Answer, Asked, Cluster, Config, Facts, Failed, Rancher, Trouble};
use crate::screen::cut;

pub(crate) const VERSION: &str = "/version";
pub(crate) const NODES: &str = "/api/v1/nodes";
const ONE_NODE: &str = "/api/v1/nodes?limit=1";
pub(crate) const SERVICES: &str = "/api/v1/services";
pub(crate) const DEPLOYMENTS: &str = "/apis/apps/v1/deployments";
pub(crate) const DAEMON_SETS: &str = "/apis/apps/v1/daemonsets";
pub(crate) const CSI_DRIVERS: &str = "/apis/storage.k8s.io/v1/csidrivers";
pub(crate) const CSI_NODES: &str = "/apis/storage.k8s.io/v1/csinodes";
pub(crate) const STORAGE_CLASSES: &str = "/apis/storage.k8s.io/v1/storageclasses";
pub(crate) const ATTACHMENTS: &str = "/apis/storage.k8s.io/v1/volumeattachments";
pub(crate) const VOLUMES: &str = "/api/v1/persistentvolumes";
pub(crate) const BINDINGS: &str = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
pub(crate) const SNAPSHOTS: &str = "/apis/snapshot.storage.k8s.io/v1";
pub(crate) const CCM_LEASE: &str =
    "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/cloud-controller-manager";
pub(crate) const CSI_LEASE: &str =
    "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/harvester-csi-attach";
const OF_GUEST: [&str; 15] = [
    VERSION,
    HARVESTER_KINDS,
    NODES,
    SERVICES,
    DEPLOYMENTS,
    DAEMON_SETS,
    CSI_DRIVERS,
    CSI_NODES,
    STORAGE_CLASSES,
    ATTACHMENTS,
    VOLUMES,
    BINDINGS,
    SNAPSHOTS,
    CCM_LEASE,
    CSI_LEASE,
];

pub(crate) const BALANCER_KINDS: &str = "/apis/loadbalancer.harvesterhci.io/v1beta1";
/// Their schemas. Every account may read this, and few the CRDs.
pub(crate) const BALANCER_SCHEMAS: &str = "/openapi/v3/apis/loadbalancer.harvesterhci.io/v1beta1";
pub(crate) const POOLS: &str = "/apis/loadbalancer.harvesterhci.io/v1beta1/ippools";
/// Kinds that every Harvester has, and no other cluster. Every account may read the list.
pub(crate) const HARVESTER_KINDS: &str = "/apis/harvesterhci.io/v1beta1";
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

const SUBRESOURCES: &str = "subresources.kubevirt.io";
/// Questions about rights that are asked at once.
const AT_ONCE: usize = 8;

/// Every right that is asked for in the guest cluster's namespace of Harvester, and around it.
pub fn rights(namespace: &str) -> Vec<Asked> {
    let of_provider = of_provider::GRANTS.iter().map(|grant| Asked {
        check: if grant.group == of_provider::LOAD_BALANCERS {
            "rights-load-balancers"
        } else {
            "rights-machines"
        },
        right: grant.right(namespace),
        role: of_provider::ROLE,
        since: "",
        off: grant.off,
        is_vital: grant.is_vital,
        allowed: None,
    });
    let of_host = GRANTS.iter().filter(|grant| grant.role != Role::Guest).map(|grant| {
        // a Harvester has one of two ways into a machine, which the check knows
        let is_way =
            grant.group == SUBRESOURCES || (grant.verb, grant.resource) == ("patch", "virtualmachines");
        Asked {
            check: "rights-volumes",
            right: grant.right(namespace),
            role: grant.role.name(),
            since: grant.since,
            off: grant.off,
            is_vital: !is_way && grant.role == Role::CloudProvider && grant.verb != "watch",
            allowed: None,
        }
    });
    of_provider.chain(of_host).collect()
}

/// The guest cluster, or what every question to it is answered with where it could not be opened.
type Guest<'a> = Result<&'a Client, &'a Failed>;

/// Reads everything. `guest`: its client, or why there is none. `used`: the cloud-config, or why there is none.
pub async fn read(
    guest: Result<&Client, String>,
    used: Result<&InUse, String>,
    settings: &Options,
    now: Timestamp,
) -> Facts {
    let opened = used.and_then(|used| {
        let connection = Connection::open(&used.config, settings).map_err(|error| error.to_string())?;
        Ok((used, connection.client()))
    });
    let (config, harvester) = match opened {
        Ok((InUse { config, note, renewal }, client)) => {
            let config = Config {
                file: config.file.clone(),
                server: config.server(),
                namespace: config.namespace.clone(),
                expiry: expiry::of(config, settings).await,
                authorities: expiry::of_authorities(config),
                trusts_everybody: config.trusts_everybody(),
                claims: config.token().and_then(Claims::of),
                note: note.clone(),
                renewal: renewal.clone(),
            };
            (Ok(config), Some(client))
        }
        Err(why) => (Err(why), None),
    };
    let guest = guest.map_err(|why| Failed { trouble: Trouble::NoAnswer, why });
    read_from(guest.as_ref().copied(), config, harvester, now).await
}

/// Rancher's cloud credential: when it ends, and whether it counts.
pub async fn read_rancher(credential: &CloudConfig, settings: &Options) -> Result<Rancher, String> {
    let connection = Connection::open(credential, settings).map_err(|error| error.to_string())?;
    let client = connection.client();
    // Nodes, because everybody may read /version
    let (expiry, answer) = join!(expiry::of(credential, settings), get(&client, ONE_NODE));
    let answer = answer.or_else(|failed| match failed.trouble {
        Trouble::Forbidden => Ok(Value::Null),
        _ => Err(failed),
    });
    Ok(Rancher { server: credential.server(), expiry, answer })
}

/// As [`read`], with clients that somebody made.
pub async fn read_with(
    guest: &Client,
    config: Result<Config, String>,
    harvester: Option<Client>,
    now: Timestamp,
) -> Facts {
    read_from(Ok(guest), config, harvester, now).await
}

async fn read_from(
    guest: Guest<'_>,
    config: Result<Config, String>,
    harvester: Option<Client>,
    now: Timestamp,
) -> Facts {
    let (Ok(found), Some(client)) = (&config, harvester) else {
        let trial = Err(Failed { trouble: Trouble::NoAnswer, why: String::new() });
        let guest_time = time_of_guest(guest).await;
        return Facts {
            now,
            guest: guest_cluster(guest).await,
            config,
            rancher: None,
            harvester: Cluster::default(),
            guest_time,
            harvester_time: None,
            rights: Vec::new(),
            trial,
        };
    };
    let namespace = &found.namespace;
    // before the long lists: they are compared with `now`
    let (guest_time, harvester_time) = join!(time_of_guest(guest), time_of(&client));
    if harvester_time.is_none()
        && let Err(unreached) = get(&client, VERSION).await
        && matches!(unreached.trouble, Trouble::NoAnswer | Trouble::Certificate)
    {
        // every other question would wait as long for the same answer
        let answers = of_harvester(namespace).into_iter().map(|path| (path, Err(unreached.clone())));
        return Facts {
            now,
            guest: guest_cluster(guest).await,
            rights: rights(namespace),
            config,
            rancher: None,
            harvester: Cluster { answers: answers.collect() },
            guest_time,
            harvester_time,
            trial: Err(unreached),
        };
    }
    let rights = rights(namespace)
        .into_iter()
        .map(async |asked| Asked { allowed: is_granted(&client, &asked.right).await, ..asked });
    let rights = stream::iter(rights).buffered(AT_ONCE).collect();
    let asked = async { join!(rights, try_out(&client, namespace)) };
    let ((guest, harvester), (rights, trial)) = join!(both(guest, &client, namespace), asked);
    Facts { now, guest, config, rancher: None, harvester, guest_time, harvester_time, rights, trial }
}

/// Harvester is read before the guest cluster: the Service of each load balancer in the list was made before the Services
/// are read.
async fn both(guest: Guest<'_>, harvester: &Client, namespace: &str) -> (Cluster, Cluster) {
    let harvester = cluster(harvester, of_harvester(namespace)).await;
    (guest_cluster(guest).await, harvester)
}

async fn guest_cluster(guest: Guest<'_>) -> Cluster {
    let paths = OF_GUEST.map(str::to_owned);
    match guest {
        Ok(client) => cluster(client, Vec::from(paths)).await,
        Err(unopened) => {
            let answers = paths.into_iter().map(|path| (path, Err(unopened.clone())));
            Cluster { answers: answers.collect() }
        }
    }
}

async fn time_of_guest(guest: Guest<'_>) -> Option<Timestamp> {
    time_of(guest.ok()?).await
}

fn of_harvester(namespace: &str) -> Vec<String> {
    let fixed = [
        VERSION,
        BALANCER_KINDS,
        BALANCER_SCHEMAS,
        POOLS,
        STORAGE_CLASSES,
        HARVESTER_KINDS,
        HARVESTER_VERSION,
    ]
    .map(str::to_owned);
    let own = [balancers(namespace), former(namespace), machines(namespace), instances(namespace)];
    fixed.into_iter().chain(own).collect()
}

/// Reads the lists again. Rights, the credential's life and the trial stay as they were asked for the first time.
pub(crate) async fn again(guest: &Client, harvester: Option<&Client>, facts: &mut Facts, now: Timestamp) {
    facts.now = now;
    match (&facts.config, harvester) {
        (Ok(config), Some(client)) => {
            (facts.guest_time, facts.harvester_time) = join!(time_of(guest), time_of(client));
            (facts.guest, facts.harvester) = both(Ok(guest), client, &config.namespace).await;
        }
        _ => {
            facts.guest_time = time_of(guest).await;
            facts.guest = guest_cluster(Ok(guest)).await;
        }
    }
}

pub(crate) async fn cluster(client: &Client, paths: Vec<String>) -> Cluster {
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

async fn is_granted(client: &Client, right: &Right) -> Option<bool> {
    let Right { verb, group, resource, subresource, namespace, name } = right;
    let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": {"namespace": namespace, "verb": verb, "group": group,
            "resource": resource, "subresource": subresource, "name": name}}});
    let answer =
        post(client, "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", &review).await.ok()?;
    answer["status"]["allowed"].as_bool()
}

/// Nothing is stored. The definition of the kind allows two listeners of one name, and the webhook of either program refuses
/// them: an acceptance means that no webhook was asked.
async fn try_out(client: &Client, namespace: &str) -> Result<(), Failed> {
    let listener = |port: u16| json!({"name": "twice", "port": port, "protocol": "TCP", "backendPort": port});
    let trial = json!({"apiVersion": API_VERSIONS[0], "kind": "LoadBalancer",
        "metadata": {"generateName": "doctor-", "namespace": namespace},
        "spec": {"workloadType": "vm", "ipam": "pool", "listeners": [listener(80), listener(81)]}});
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
