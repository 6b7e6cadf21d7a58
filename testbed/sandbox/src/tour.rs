//! The tour: everything that the sandbox shows, walked through with real requests over loopback sockets, one line a
//! step. It is what `--check` runs, and it knows the clusters only as a user does: through their API servers, and
//! through the addresses that Services get.

mod addresses;
mod crash;
mod load;
mod nodes;
mod observer;
mod outage;
mod pools;
mod sharing;
mod vms;

use std::collections::BTreeSet;

use anyhow::{Context, Result, bail};
use kube::Client;
use tokio::time::Instant;

use crate::{environment::Environment, output::Output, snapshot};
pub(crate) use observer::Observer;

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
        ($number:literal, $title:literal, $step:expr) => {{
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
            output.step($number, $title, begun.elapsed(), outcome.as_deref());
            outcome.with_context(|| format!("step {}: {}", $number, $title))?;
        }};
    }
    step!(1, "pools, as IPPool and as legacy ConfigMap", pools::both_ways(&tour));
    step!(2, "a Service with health check gets an address and all VMs", addresses::host_path(&tour));
    step!(3, "a backend stops answering, and comes back", outage::one_backend(&tour));
    step!(4, "a Service without health check takes the guest path", addresses::guest_path(&tour));
    step!(5, "two Services share one address, a third one wants a taken port", sharing::one_address(&tour));
    step!(6, "DHCP: a lease outlives renewals and restarts", addresses::dhcp(&mut tour));
    step!(7, "a node has the addresses of its VM, and none of a Service", nodes::addresses(&tour));
    step!(8, "region and zone follow a migrating VM", pools::topology(&tour));
    step!(9, "a VM is stopped and started: its node is tainted meanwhile", nodes::stop_and_start(&tour));
    step!(
        10,
        "a fourth VM through the node driver, lost with its node and replaced",
        vms::through_the_driver(&tour)
    );
    step!(11, "both controllers are killed during 50 creations", crash::during_a_burst(&mut tour));
    step!(12, "everything is deleted, and nothing stays behind", tour.clean_up());
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
}
