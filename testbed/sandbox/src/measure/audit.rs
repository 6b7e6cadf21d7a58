//! Requests, counted from the audit logs. Leases, Events and watches are apart.

use std::{
    fs::File,
    io::{BufRead, BufReader, Seek, SeekFrom},
    path::PathBuf,
    time::Duration,
};

use anyhow::{Context, Result};
use serde::Deserialize;
use tokio::time::Instant;

use crate::clusters::RANCHER;

/// The two logs.
pub(crate) struct AuditFiles {
    pub(crate) guest: PathBuf,
    pub(crate) harvester: PathBuf,
}

#[derive(Debug, Deserialize)]
struct Line {
    user: String,
    verb: String,
    uri: String,
}

/// Requests of the parts since counting began, and of Rancher.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Count {
    pub(super) all: usize,
    pub(super) writes: usize,
    pub(super) ccm_in_harvester: usize,
    /// Those of them that are no questions about rights.
    pub(super) ccm_in_harvester_of_its_own: usize,
    pub(super) load_balancer_writes: usize,
    pub(super) balancers_deleted: usize,
    /// Those of the CSI driver's processes, in both clusters.
    pub(super) csi_driver: usize,
    /// Those of them in Harvester.
    pub(super) csi_driver_in_harvester: usize,
    /// Writes of the parts, Events among them.
    pub(super) writes_with_events: usize,
    /// Those of the node driver, watches among them; they are in no other figure.
    pub(super) rancher: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Guest,
    Harvester,
}

impl Count {
    fn add(&mut self, side: Side, line: &Line) {
        self.rancher += usize::from(line.user == RANCHER);
        let csi_driver = line.user.contains(":harvester-csi-driver");
        let ours = csi_driver
            || line.user.contains("harvester-load-balancer")
            || line.user.contains("harvester-cloud");
        // a question about rights is posted, and writes nothing
        let asks = line.uri.starts_with("/apis/authorization.k8s.io/");
        let writes = !matches!(line.verb.as_str(), "get" | "list" | "watch") && !asks;
        self.writes_with_events += usize::from(ours && writes && !line.uri.contains("/leases"));
        let apart = line.verb == "watch" || line.uri.contains("/leases") || line.uri.contains("/events");
        if apart || !ours {
            return;
        }
        let balancer = line.user.ends_with(":harvester-load-balancer");
        self.all += 1;
        self.csi_driver += usize::from(csi_driver);
        self.csi_driver_in_harvester += usize::from(csi_driver && side == Side::Harvester);
        self.writes += usize::from(writes);
        let ccm_in_harvester = side == Side::Harvester && line.user.contains("harvester-cloud-provider");
        self.ccm_in_harvester += usize::from(ccm_in_harvester);
        self.ccm_in_harvester_of_its_own += usize::from(ccm_in_harvester && !asks);
        self.load_balancer_writes += usize::from(balancer && writes);
        self.balancers_deleted += usize::from(line.verb == "delete" && line.uri.contains("/loadbalancers/"));
    }
}

/// Reads what was added to the logs since it was made, or since it last read.
pub(super) struct Tally {
    files: AuditFiles,
    at: [u64; 2],
    total: Count,
}

impl Tally {
    pub(super) fn new(files: AuditFiles) -> Self {
        let end = |path: &PathBuf| path.metadata().map_or(0, |metadata| metadata.len());
        let at = [end(&files.guest), end(&files.harvester)];
        Self { files, at, total: Count::default() }
    }

    /// Everything since this tally was made.
    pub(super) fn total(&self) -> Count {
        self.total
    }

    /// Reads on, and answers what came since the last time.
    pub(super) fn count(&mut self) -> Result<Count> {
        let before = self.total;
        for (index, side) in [Side::Guest, Side::Harvester].into_iter().enumerate() {
            let path = if side == Side::Guest { &self.files.guest } else { &self.files.harvester };
            let file = File::open(path).with_context(|| format!("open {}", path.display()))?;
            let mut lines = BufReader::new(file);
            lines.seek(SeekFrom::Start(self.at[index])).context("read on in an audit log")?;
            let mut text = String::new();
            // a line without its end is still being written
            while lines.read_line(&mut text).context("read an audit log")? > 0 && text.ends_with('\n') {
                self.at[index] += text.len() as u64;
                if let Ok(line) = serde_json::from_str::<Line>(&text) {
                    self.total.add(side, &line);
                }
                text.clear();
            }
        }
        Ok(Count {
            all: self.total.all - before.all,
            writes: self.total.writes - before.writes,
            ccm_in_harvester: self.total.ccm_in_harvester - before.ccm_in_harvester,
            ccm_in_harvester_of_its_own: self.total.ccm_in_harvester_of_its_own
                - before.ccm_in_harvester_of_its_own,
            load_balancer_writes: self.total.load_balancer_writes - before.load_balancer_writes,
            balancers_deleted: self.total.balancers_deleted - before.balancers_deleted,
            csi_driver: self.total.csi_driver - before.csi_driver,
            csi_driver_in_harvester: self.total.csi_driver_in_harvester - before.csi_driver_in_harvester,
            writes_with_events: self.total.writes_with_events - before.writes_with_events,
            rancher: self.total.rancher - before.rancher,
        })
    }

    /// Waits until something is asked.
    pub(super) async fn first(&mut self) -> Result<()> {
        while self.count()?.all == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    }

    /// Waits until nothing was asked for `quiet`, and answers when the last request was seen.
    pub(super) async fn quiet(&mut self, quiet: Duration) -> Result<Instant> {
        let mut last = Instant::now();
        loop {
            tokio::time::sleep(Duration::from_millis(10)).await;
            if self.count()?.all > 0 {
                last = Instant::now();
            }
            if last.elapsed() > quiet {
                return Ok(last);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use test_cluster::{GuestCluster, User};

    use super::*;

    fn count(lines: &[(Side, &str, &str, &str)]) -> Count {
        let mut count = Count::default();
        for (side, user, verb, uri) in lines {
            count.add(*side, &Line { user: (*user).into(), verb: (*verb).into(), uri: (*uri).into() });
        }
        count
    }

    #[test]
    fn leases_events_watches_and_other_users_do_not_count() {
        let lb = "system:serviceaccount:harvester-system:harvester-load-balancer";
        let ccm = "system:serviceaccount:default:harvester-cloud-provider-demo";
        let webhooks = "system:serviceaccount:harvester-system:harvester-webhook";
        let counted = count(&[
            (Side::Harvester, lb, "update", "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/x"),
            (Side::Harvester, lb, "create", "/api/v1/namespaces/default/events"),
            (
                Side::Harvester,
                lb,
                "watch",
                "/apis/loadbalancer.harvesterhci.io/v1beta1/loadbalancers?watch=true",
            ),
            (
                Side::Harvester,
                "admin",
                "delete",
                "/apis/loadbalancer.harvesterhci.io/v1beta1/namespaces/a/loadbalancers/b",
            ),
            (Side::Harvester, lb, "create", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews?"),
            (Side::Harvester, ccm, "create", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews?"),
            (Side::Guest, ccm, "patch", "/api/v1/nodes/demo-1"),
            (Side::Harvester, RANCHER, "watch", "/apis/kubevirt.io/v1/virtualmachines?watch=true"),
            (Side::Harvester, webhooks, "list", "/apis/kubevirt.io/v1/namespaces/default/virtualmachines"),
            (Side::Harvester, lb, "update", "/apis/loadbalancer.harvesterhci.io/v1beta1/ippools/edge"),
            (
                Side::Harvester,
                ccm,
                "create",
                "/apis/loadbalancer.harvesterhci.io/v1beta1/namespaces/a/loadbalancers",
            ),
        ]);
        let wanted = Count {
            all: 5,
            writes: 3,
            ccm_in_harvester: 2,
            ccm_in_harvester_of_its_own: 1,
            load_balancer_writes: 1,
            balancers_deleted: 0,
            csi_driver: 0,
            csi_driver_in_harvester: 0,
            writes_with_events: 4,
            rancher: 1,
        };
        assert_eq!(counted, wanted);
    }
    #[test]
    fn requests_of_the_csi_driver_count_in_both_clusters_by_the_accounts_that_it_has_there() {
        let guest =
            GuestCluster { name: crate::GUEST_CLUSTER.into(), vm_namespace: crate::VM_NAMESPACE.into() };
        let account = |user: User, side| user.account(side, &guest).name.clone();
        let [here, there] = [test_cluster::Side::Guest, test_cluster::Side::Harvester]
            .map(|side| account(User::CsiDriver, side));
        let counted = count(&[
            (
                Side::Harvester,
                &there,
                "patch",
                "/apis/kubevirt.io/v1/namespaces/default/virtualmachines/demo-1",
            ),
            (Side::Harvester, &there, "get", "/api/v1/namespaces/default/persistentvolumeclaims/pvc-1"),
            (Side::Harvester, &there, "watch", "/apis/kubevirt.io/v1/virtualmachines?watch=true"),
            (Side::Guest, &here, "get", "/apis/storage.k8s.io/v1/csinodes/demo-1"),
            (Side::Guest, &here, "update", "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/x"),
            (Side::Guest, &here, "create", "/api/v1/namespaces/default/events"),
            (Side::Guest, &account(User::Driver, test_cluster::Side::Guest), "get", "/api/v1/nodes/demo-1"),
        ]);
        assert_eq!((counted.csi_driver, counted.csi_driver_in_harvester, counted.all), (3, 2, 3));
        assert_eq!((counted.writes, counted.ccm_in_harvester, counted.load_balancer_writes), (1, 0, 0));
    }
}
