//! `--measure`: the figures of `cargo xtask bench`, one line `figure <name> <value>` each. Everything is measured from
//! outside: by watching the two API servers, by reading their audit logs, and by asking the kernel for the parts'
//! memory.

mod audit;
mod balancers;
mod ccm;
mod cpu;
mod dashboard;
mod direct;
mod driver;
mod first_use;
mod hostile;
mod probes;
mod rotation;
mod same_pod;
mod service_batch;
mod storage;
mod tools;

use std::time::Duration;

use anyhow::{Context, Result};
use tokio::time::Instant;

use crate::{commands, environment::Environment, options::Only, output::Output};
pub(crate) use audit::AuditFiles;
use audit::Tally;
use direct::Direct;
use service_batch::ServiceBatch;

/// Services created one after the other on idle clusters.
const ONE_BY_ONE: usize = 50;
/// LoadBalancers that are posted directly.
const DIRECT: usize = 4_000;
/// Nothing was asked for so long: the parts are in step.
const QUIET: Duration = Duration::from_millis(500);
/// Between two of them: what the one before left to do (Events, kube-vip's status, slices) is done by then.
const IDLE: Duration = Duration::from_millis(200);
/// The time over which the steady state is watched.
const MINUTE: Duration = Duration::from_secs(60);

/// Measures what is asked for, or everything but storage and tools, and prints it.
///
/// # Errors
/// When something does not happen in time, or a file cannot be read.
pub(crate) async fn figures(
    only: Option<Only>,
    environment: &mut Environment,
    output: &Output,
) -> Result<()> {
    match only {
        None => all(environment, output).await,
        Some(Only::Creation) => creation(environment, output).await,
        Some(Only::Ccm) => cloud_controller_manager(environment, output).await,
        Some(Only::Probes) => health_checks(environment, output).await,
        Some(Only::Balancers) => {
            environment.end_webhook().await?;
            balancers::all(environment, &Told(output)).await
        }
        Some(Only::Dashboard) => {
            environment.end_webhook().await?;
            dashboard::all(environment, |name, value| output.note(&format!("figure {name} {value:.4}"))).await
        }
        Some(Only::Storage) => storage::all(environment, &Told(output)).await,
        // with the webhook: `doctor` looks at it too
        Some(Only::Tools) => tools::all(environment, &Told(output)).await,
    }
}

/// What is told of figures.
struct Told<'a>(&'a Output);

impl Told<'_> {
    fn figure(&self, name: &str, value: f64) {
        self.0.note(&format!("figure {name} {value:.4}"));
    }

    fn left_out(&self, names: &[&str], why: &str) {
        for name in names {
            self.0.note(&format!("figure {name} not measured: {why}"));
        }
    }

    /// What explains a figure.
    fn remark(&self, text: &str) {
        self.0.note(text);
    }
}

async fn all(environment: &mut Environment, output: &Output) -> Result<()> {
    let say = |name: &str, value: f64| output.note(&format!("figure {name} {value:.4}"));
    let tally = |environment: &Environment| Tally::new(environment.audit_files());

    say("sandbox-first-curl-s", first_use::first_curl(environment.server()).await?.as_secs_f64());
    let hostile = hostile::cost(&environment.harvester, environment.pid(commands::WEBHOOK)?)
        .await
        .context("a hostile write")?;
    say("webhook-hostile-ms", hostile.milliseconds);
    say("webhook-hostile-mib", hostile.mebibytes);
    say("conversion-1000-ms", hostile::conversion(&environment.harvester).await.context("a conversion")?);
    environment.end_webhook().await?;
    tally(environment).quiet(QUIET).await?;
    say("rss-ccm-idle-mib", environment.resident_mib(commands::CLOUD_CONTROLLER_MANAGER)?);
    say("rss-lb-idle-mib", environment.resident_mib(commands::LOAD_BALANCER)?);

    driver::all(environment, say).await.context("measure the node driver")?;

    let mut service_batch =
        ServiceBatch::watch(environment.guest.clone(), environment.harvester.clone()).await?;
    one_by_one(&mut service_batch, say).await?;

    let mut counted = tally(environment);
    let burst = service_batch.create("hundred", 100).await?;
    let mut times: Vec<_> = burst.one_by_one.iter().map(Duration::as_secs_f64).collect();
    say("burst-100-p99-s", percentile(&mut times, 0.99));
    counted.quiet(QUIET).await?;
    say("writes-per-service", counted.total().writes_with_events as f64 / 100.0);
    say("delete-100-total-s", service_batch.delete_all().await?.as_secs_f64());
    counted.quiet(QUIET).await?;
    let count = counted.total();
    say("ccm-harvester-requests-per-service", count.ccm_in_harvester as f64 / 100.0);
    say("lb-writes-per-service", count.load_balancer_writes as f64 / 100.0);

    let mut counted = tally(environment);
    let parts = |environment: &Environment| -> Result<f64> {
        let of = |name| cpu::seconds(environment.pid(name)?);
        Ok(of(commands::CLOUD_CONTROLLER_MANAGER)? + of(commands::LOAD_BALANCER)?)
    };
    let (parts_before, all_before) = (parts(environment)?, cpu::of_all()?);
    let burst = service_batch.create("thousand", 1_000).await?;
    let (parts_then, all_then) = (parts(environment)?, cpu::of_all()?);
    say("burst-1000-total-s", burst.total.as_secs_f64());
    say("burst-1000-testbed-cpu-s", (all_then - all_before) - (parts_then - parts_before));
    counted.quiet(QUIET).await?;
    say("burst-1000-cpu-s", parts(environment)? - parts_before);
    let surfaced = service_batch.conflict_events().await?;
    say("burst-1000-conflicts-surfaced", surfaced as f64);
    say("burst-1000-lbs-deleted", counted.total().balancers_deleted as f64);
    say("rss-ccm-1000-mib", environment.resident_mib(commands::CLOUD_CONTROLLER_MANAGER)?);
    say("rss-lb-1000-mib", environment.resident_mib(commands::LOAD_BALANCER)?);

    let mut steady = tally(environment);
    steady.count()?;
    tokio::time::sleep(MINUTE).await;
    say("steady-requests-per-minute", steady.count()?.all as f64);

    environment.stop_controllers().await?;
    let mut restart = tally(environment);
    let begun = Instant::now();
    environment.start_controllers_again()?;
    restart.first().await?;
    let last = restart.quiet(QUIET).await?;
    say("restart-1000-services-s", last.duration_since(begun).as_secs_f64());
    say("restart-1000-services-writes", restart.total().writes as f64);
    service_batch.delete_all().await.context("after the restart")?;
    let failed = rotation::failed_requests(environment, &mut service_batch).await.context("a rotation")?;
    say("rotate-failed-requests", failed);
    service_batch.delete_all().await.context("after the rotation")?;

    let mut direct = Direct::prepare(environment.harvester.clone(), "bench-direct").await?;
    say("direct-4000-total-s", direct.create("direct", DIRECT).await?.as_secs_f64());
    direct.remove().await.context("after the LoadBalancers that were posted directly")?;
    dashboard::all(environment, say).await.context("measure the dashboard")?;
    let folder = environment.folder().to_owned();
    say(
        "restart-same-pod-s",
        same_pod::restart(environment, &folder).await.context("a restart in the same Pod")?,
    );
    drop(service_batch);
    ccm::all(environment, say).await.context("measure the cloud controller manager")?;
    balancers::all(environment, &Told(output)).await.context("measure load balancers")?;
    probes::all(environment, say).await.context("measure health checks")
}

/// Measures health checks alone.
async fn health_checks(environment: &mut Environment, output: &Output) -> Result<()> {
    environment.end_webhook().await?;
    probes::all(environment, |name, value| output.note(&format!("figure {name} {value:.4}"))).await
}

/// Measures the cloud controller manager alone.
async fn cloud_controller_manager(environment: &mut Environment, output: &Output) -> Result<()> {
    environment.end_webhook().await?;
    ccm::all(environment, |name, value| output.note(&format!("figure {name} {value:.4}"))).await
}

/// Measures single Services alone, to compare two builds in the same hour.
async fn creation(environment: &mut Environment, output: &Output) -> Result<()> {
    environment.end_webhook().await?;
    let mut service_batch =
        ServiceBatch::watch(environment.guest.clone(), environment.harvester.clone()).await?;
    one_by_one(&mut service_batch, |name, value| output.note(&format!("figure {name} {value:.4}"))).await
}

async fn one_by_one(service_batch: &mut ServiceBatch, say: impl Fn(&str, f64)) -> Result<()> {
    let mut times = Vec::new();
    for index in 0..ONE_BY_ONE {
        times.push(
            service_batch.create(&format!("single-{index}"), 1).await?.one_by_one[0].as_secs_f64() * 1_000.0,
        );
        tokio::time::sleep(IDLE).await;
    }
    say("service-create-p50-ms", percentile(&mut times, 0.50));
    say("service-create-p99-ms", percentile(&mut times, 0.99));
    service_batch.delete_all().await.map(drop)
}

/// The value below which a share of the values lies; nearest rank.
fn percentile(values: &mut [f64], share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an index of a short list")]
    let rank = (share * values.len() as f64).ceil() as usize;
    values.get(rank.saturating_sub(1)).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_a_value_that_was_measured() {
        let mut values: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        assert_eq!(percentile(&mut values, 0.50), 50.0);
        assert_eq!(percentile(&mut values, 0.99), 99.0);
        assert_eq!(percentile(&mut [7.0], 0.99), 7.0);
    }
}
