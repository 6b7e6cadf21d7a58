//! The tour: everything that the sandbox shows, walked through with real requests over loopback sockets, one line a
//! step. It is what `--check` runs, and it knows the clusters only as a user does: through their API servers, and
//! through the addresses that Services get.

mod addresses;
mod crash;
mod doctor;
mod families;
mod http_check;
mod limits;
mod load;
mod nodes;
mod observer;
mod outage;
mod pools;
mod requested;
mod sharing;
mod storage;
mod versions;
mod vms;

use std::collections::BTreeSet;

use anyhow::{Context, Result, bail};
use harvester_api::names::NETWORKS_CONFIG_MAP;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client, api::DeleteParams};
use tokio::time::Instant;

use crate::{environment::Environment, manifests::plain, output::Output, snapshot};
pub(crate) use observer::Observer;

/// What the steps show, in their order; `docs/sandbox.md` says more of each.
const STEPS: [&str; 23] = [
    "pools, as IPPool and as legacy ConfigMap",
    "a Service with health check gets an address and all VMs",
    "a backend stops answering, and comes back",
    "VMs are asked by HTTP, and by HTTPS where nobody speaks it",
    "a Service without health check takes the guest path",
    "two Services share one address, a third one wants a taken port",
    "a pool by name, an address on demand, and one that waits for it",
    "a LoadBalancer object is read and written back in both versions",
    "a range of a pool drains, and goes when nobody has an address of it",
    "a quota lets a guest cluster have one address, and the next one waits",
    "a Service prefers both families, another has IPv6 alone",
    "a Service requires both families, and has an address of each",
    "DHCP: a lease outlives renewals and restarts",
    "a node has the addresses of its VM, and none of a Service",
    "region and zone follow a migrating VM",
    "a VM is stopped and started: its node is tainted meanwhile",
    "a fourth VM through the node driver, lost with its node and replaced",
    "a claim gets a volume of Harvester, and a pod writes into it",
    "the volume moves to another node, and a pod finds what was written",
    "a snapshot is taken and restored, and the volume grows in use",
    "a node is lost, and its volume serves on another one",
    "both controllers are killed during 50 creations",
    "everything is deleted, and nothing stays behind",
];

/// The state that the steps share.
pub(crate) struct Tour<'a> {
    pub(crate) environment: &'a mut Environment,
    pub(crate) guest: Client,
    pub(crate) harvester: Client,
    /// Both clusters as they were before the first step.
    before: [BTreeSet<String>; 2],
}

/// Walks through all steps; the first one that fails ends the tour.
///
/// # Errors
/// Returns the first error, with its step.
pub(crate) async fn walk(environment: &mut Environment, output: &Output) -> Result<()> {
    let (guest, harvester) = (environment.guest.clone(), environment.harvester.clone());
    let before = [snapshot::snapshot(&guest).await?, snapshot::snapshot(&harvester).await?];
    let mut tour = Tour { environment, guest, harvester, before };
    let started = Instant::now();

    macro_rules! step {
        ($number:literal, $step:expr) => {{
            let begun = Instant::now();
            let outcome = $step.await;
            // a part that ended is the reason for whatever else went wrong
            let outcome = match tour.environment.parts_still_run() {
                Ok(()) => outcome,
                Err(ended) => Err(match outcome {
                    Ok(_) => ended,
                    Err(error) => error.context(ended),
                }),
            };
            let title = STEPS[$number - 1];
            output.step($number, title, begun.elapsed(), outcome.as_deref());
            outcome.with_context(|| format!("step {}: {title}", $number))?;
        }};
    }
    step!(1, pools::both_ways(&tour));
    step!(2, addresses::host_path(&tour));
    step!(3, outage::one_backend(&tour));
    step!(4, http_check::by_status(&tour));
    step!(5, addresses::guest_path(&tour));
    step!(6, sharing::one_address(&tour));
    step!(7, requested::addresses(&tour));
    step!(8, versions::both(&tour));
    step!(9, limits::drain(&tour));
    step!(10, limits::quota(&tour));
    step!(11, families::one_of_two(&tour));
    step!(12, families::both(&tour));
    step!(13, addresses::dhcp(&mut tour));
    step!(14, nodes::addresses(&tour));
    step!(15, pools::topology(&tour));
    step!(16, nodes::stop_and_start(&tour));
    step!(17, vms::through_the_driver(&tour));
    step!(18, storage::writes(&mut tour));
    step!(19, storage::moves(&mut tour));
    step!(20, storage::snapshot(&mut tour));
    step!(21, storage::lost(&mut tour));
    step!(22, crash::during_a_burst(&mut tour));
    step!(23, tour.clean_up());
    output.note(&format!("the tour took {:.1} s", started.elapsed().as_secs_f64()));
    Ok(())
}

impl Tour<'_> {
    pub(crate) fn observer(&self) -> Observer {
        Observer { guest: self.guest.clone(), harvester: self.harvester.clone() }
    }

    /// Both clusters hold exactly what they held before the tour, and no pool has an address given away.
    async fn clean_up(&self) -> Result<String> {
        let observer = self.observer();
        observer.delete_services().await?;
        storage::clean_up(self).await?;
        self.forget_networks().await?;
        observer
            .wait("both clusters to hold what they held before", || async {
                let guest = snapshot::snapshot(&self.guest).await?;
                let harvester = snapshot::snapshot(&self.harvester).await?;
                let mut left = snapshot::difference(&self.before[0], &guest);
                left.extend(snapshot::difference(&self.before[1], &harvester));
                if left.is_empty() { Ok(()) } else { bail!("{}", left.join(", ")) }
            })
            .await?;
        let objects = self.before[0].len() + self.before[1].len();
        Ok(format!("{objects} objects, as before"))
    }

    /// The cloud controller manager keeps for Rancher which interface has which network, also when the VM of the node
    /// driver is gone: it hears of that network if the guest agent speaks before the VM goes.
    async fn forget_networks(&self) -> Result<()> {
        if self.before[0].contains(&format!("ConfigMap kube-system/{NETWORKS_CONFIG_MAP}")) {
            return Ok(());
        }
        let maps = Api::<ConfigMap>::namespaced(self.guest.clone(), "kube-system");
        match maps.delete(NETWORKS_CONFIG_MAP, &DeleteParams::default()).await {
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
            answer => answer.map(drop).map_err(plain),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documentation_has_every_step_in_its_order() {
        let rows = include_str!("../../../docs/sandbox.md").lines();
        let cells = rows.filter_map(|row| row.strip_prefix("| ")?.split_once(" | "));
        let steps = cells.filter(|(number, _)| number.parse::<usize>().is_ok());
        let titles: Vec<_> = steps.filter_map(|(_, rest)| Some(rest.split_once(" | ")?.0)).collect();
        assert_eq!(titles, STEPS);
    }
}
