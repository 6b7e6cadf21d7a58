//! What is read of both clusters, before anybody judges it.

use jiff::Timestamp;
use kube::Client;
use serde_json::Value;

pub(super) use crate::doctor::read::VOLUMES;
use crate::{
    doctor::{
        facts::{Cluster, Failed, Trouble},
        read::{self, cluster},
    },
    screen::cut,
};

pub(super) fn claims(namespace: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/persistentvolumeclaims")
}

pub(super) fn pods(namespace: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/pods")
}

pub(super) fn snapshots(namespace: &str) -> String {
    format!("/apis/snapshot.storage.k8s.io/v1/namespaces/{namespace}/{SNAPSHOTS}")
}

const SNAPSHOTS: &str = "volumesnapshots";

/// Exports of volumes for many nodes, of all clusters.
pub(super) const EXPORTS: &str =
    "/apis/harvesterhci.io/v1beta1/namespaces/harvester-system/networkfilesystems";

/// Whether not every Harvester has the kind.
fn is_optional(path: &str) -> bool {
    path.ends_with(SNAPSHOTS) || path == EXPORTS
}

/// Everything that is looked at.
#[derive(Clone, Debug)]
pub struct Facts {
    pub now: Timestamp,
    /// The guest cluster's namespace in Harvester. Nothing of other namespaces is an orphan.
    pub namespace: String,
    /// Or why there is no kubeconfig of a guest cluster. One that cannot be read has answers, which are errors.
    pub guest: Result<Cluster, String>,
    pub harvester: Cluster,
}

impl Facts {
    pub(super) fn of_guest(&self, path: &str) -> Result<&[Value], String> {
        self.guest.as_ref().map_err(Clone::clone).and_then(|guest| items(guest, path))
    }

    pub(super) fn of_harvester(&self, path: &str) -> Result<&[Value], String> {
        items(&self.harvester, path)
    }

    /// Lists that are not known.
    pub(super) fn not_read(&self) -> Vec<String> {
        let of = |name: &'static str, cluster: &Cluster| -> Vec<String> {
            let unread = cluster.answers.keys().filter_map(|path| items(cluster, path).err());
            unread.map(|why| format!("{name}: {why}")).collect()
        };
        let guest = match &self.guest {
            Ok(guest) => of("guest", guest),
            Err(why) => vec![format!("guest: {}", cut(why))],
        };
        [guest, of("Harvester", &self.harvester)].concat()
    }

    /// Whether a list is not known without which load balancers cannot be judged: those of the guest cluster, where a
    /// kubeconfig was given, the objects themselves, and machines. A cloud-config may list neither pools nor pods.
    pub(super) fn is_incomplete(&self) -> bool {
        let of_guest = self
            .guest
            .as_ref()
            .is_ok_and(|guest| guest.answers.keys().any(|path| items(guest, path).is_err()));
        let needed = [read::balancers(&self.namespace), read::machines(&self.namespace)];
        of_guest || needed.iter().any(|path| self.of_harvester(path).is_err())
    }
}

/// A list that cannot be read may have anything in it. An answer 404 says nothing of a list: Rancher's proxy gives it for
/// each path once it knows the cluster no more (harvester#53642). Only of a kind that not every Harvester has it means that
/// there are none.
fn items<'a>(cluster: &'a Cluster, path: &str) -> Result<&'a [Value], String> {
    match cluster.answers.get(path) {
        Some(Ok(list)) => {
            list["items"].as_array().map(Vec::as_slice).ok_or_else(|| format!("{path} is no list"))
        }
        Some(Err(Failed { trouble: Trouble::NotFound, why }))
            if is_optional(path) && !why.contains("clusters.management") =>
        {
            Ok(&[])
        }
        Some(Err(failed)) => Err(cut(&format!("GET {path} failed: {}", failed.why))),
        None => Err(format!("GET {path} was not sent")),
    }
}

/// Reads Harvester, then the guest cluster. `guest` may be missing, as for a cluster that is gone.
pub async fn read_both(
    guest: Result<&Client, String>,
    harvester: &Client,
    namespace: &str,
    now: Timestamp,
) -> Facts {
    let own = [
        read::balancers(namespace),
        read::machines(namespace),
        read::instances(namespace),
        claims(namespace),
        pods(namespace),
        snapshots(namespace),
        EXPORTS.to_owned(),
    ];
    // before the load balancers: a record that is there then has its load balancer in the list
    let pools = cluster(harvester, vec![read::POOLS.to_owned()]).await;
    let mut harvester = cluster(harvester, own.to_vec()).await;
    harvester.answers.extend(pools.answers);
    let paths = [read::NODES, read::SERVICES, VOLUMES].map(str::to_owned).to_vec();
    let guest = match guest {
        Ok(client) => Ok(cluster(client, paths).await),
        Err(why) => Err(why),
    };
    Facts { now, namespace: namespace.to_owned(), guest, harvester }
}
