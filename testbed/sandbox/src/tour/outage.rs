//! One backend stops answering. Until the verdict, which is due in time, only connections sent to it may fail;
//! from then on none fails and none reaches it, until it has answered enough probes to be served again.

mod account;

use std::time::Duration;

use anyhow::{Result, ensure};
use harvester_api::{VirtualMachine, annotations};
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::json;
use tokio::time::Instant;

use super::{Tour, load::Load};
use crate::{environment::GuestVm, manifests::plain};
use account::{Moments, account};

/// How long the state after a verdict is looked at.
const LOOK: Duration = Duration::from_secs(2);

/// The health check of the Service of step 2.
pub(super) const CHECK: HealthCheck = HealthCheck { success: 4, failure: 3, period: 1, time_out: 1 };

/// A health check as annotations ask for it; times in seconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct HealthCheck {
    /// Good probes in a row for the verdict "ready".
    success: u32,
    /// Bad ones for the other verdict.
    failure: u32,
    period: u64,
    time_out: u64,
}

impl HealthCheck {
    pub(super) fn annotations(self) -> [(&'static str, String); 5] {
        [
            (annotations::HEALTH_CHECK_PORT, "80".to_owned()),
            (annotations::HEALTH_CHECK_SUCCESS_THRESHOLD, self.success.to_string()),
            (annotations::HEALTH_CHECK_FAILURE_THRESHOLD, self.failure.to_string()),
            (annotations::HEALTH_CHECK_PERIOD_SECONDS, self.period.to_string()),
            (annotations::HEALTH_CHECK_TIMEOUT_SECONDS, self.time_out.to_string()),
        ]
    }

    /// A backend that stopped answering has its verdict then at the latest.
    fn down_within(self) -> Duration {
        Duration::from_secs(self.period * u64::from(self.failure) + self.time_out)
    }

    /// The same for one that answers again: a probe that is under way may still fail.
    fn up_within(self) -> Duration {
        Duration::from_secs(self.period * u64::from(self.success) + self.time_out)
    }

    /// Enough good probes take so long at least: the first may have been begun, and been due, a time-out earlier.
    fn up_after(self) -> Duration {
        Duration::from_secs((self.period * u64::from(self.success - 1)).saturating_sub(self.time_out))
    }
}

pub(super) async fn one_backend(tour: &Tour<'_>) -> Result<String> {
    let observer = tour.observer();
    let address = observer.address("checked").await?;
    let balancer = observer.balancer("checked").await?;
    let vm = tour.environment.vms[0].clone();
    let load = Load::on(address, 80);
    let ready = |wanted: bool| {
        let (observer, balancer, vm) = (observer.clone(), balancer.clone(), vm.clone());
        async move {
            let what = format!("the verdict ready={wanted} on {}", vm.name);
            observer
                .wait(&what, || async {
                    ensure!(observer.is_ready(&balancer, &vm.address).await? == wanted, "not yet");
                    Ok(Instant::now())
                })
                .await
        }
    };

    set_backend(tour, &vm, Some("stopped")).await?;
    let stopped = Instant::now();
    let down = ready(false).await?;
    tokio::time::sleep(LOOK).await;
    let healed = Instant::now();
    set_backend(tour, &vm, None).await?;
    let up = ready(true).await?;
    observer
        .wait("the backend to serve again", || async {
            ensure!(load.has_reached(&vm.name, up), "not yet");
            Ok(())
        })
        .await?;
    let moments = Moments { stopped, down, healed, up };
    let account = account(&load.end().await, &moments, CHECK, &vm.name, tour.environment.vms.len())?;
    Ok(format!("{}: {account}", vm.name))
}

async fn set_backend(tour: &Tour<'_>, vm: &GuestVm, state: Option<&str>) -> Result<()> {
    let patch = json!({"metadata": {"annotations": {"sim.harvesterhci.io/backend": state}}});
    let api = Api::<VirtualMachine>::namespaced(tour.harvester.clone(), crate::VM_NAMESPACE);
    api.patch(&vm.name, &PatchParams::default(), &Patch::Merge(patch)).await.map_err(plain)?;
    Ok(())
}
