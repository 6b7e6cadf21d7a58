//! Both controllers are killed at a random moment during a burst, and started again.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::Service;
use kube::{
    Api, ResourceExt,
    api::{ListParams, PostParams},
};
use tokio::time::Instant;

use super::{
    Tour,
    addresses::service,
    load::{Load, Request},
    observer::{NAMESPACE, published},
};
use crate::manifests::plain;

/// Services created at once.
const BURST: usize = 50;
/// The kill comes at a random moment within this time.
const MOMENT: Duration = Duration::from_millis(200);

pub(super) async fn during_a_burst(tour: &mut Tour<'_>) -> Result<String> {
    let observer = tour.observer();
    let begun = Instant::now();
    let mut loads = Vec::new();
    for service in ["checked", "plain"] {
        loads.push((service, Load::on(observer.address(service).await?, 80)));
    }

    let services = Api::<Service>::namespaced(tour.guest.clone(), NAMESPACE);
    let creations = async {
        for index in 0..BURST {
            let service = service(&format!("burst-{index}"), &[]);
            let service: Service = serde_json::from_value(service).context("describe a Service")?;
            services.create(&PostParams::default(), &service).await.map_err(plain)?;
        }
        anyhow::Ok(())
    };
    let moment = MOMENT.mul_f64(fastrand::f64());
    let environment = &mut *tour.environment;
    let crash = async {
        tokio::time::sleep(moment).await;
        environment.kill_controllers().await?;
        environment.start_controllers_again()
    };
    tokio::try_join!(creations, crash)?;

    let addresses = observer
        .wait("an address for each Service", || async {
            let all = services.list(&ListParams::default()).await.map_err(plain)?;
            let burst = all.iter().filter(|service| service.name_any().starts_with("burst-"));
            let addresses: Vec<_> = burst.filter_map(published).collect();
            ensure!(addresses.len() == BURST, "{} of {BURST} have one", addresses.len());
            Ok(addresses)
        })
        .await?;
    let distinct: BTreeSet<_> = addresses.iter().collect();
    ensure!(distinct.len() == BURST, "only {} of {BURST} addresses are distinct", distinct.len());

    let mut requests = 0;
    for (service, load) in loads {
        let made = load.end().await;
        ensure!(!made.is_empty(), "nobody asked Service {service} meanwhile");
        let failures: Vec<_> = made.iter().filter(|request| request.answer.is_err()).collect();
        if let Some(Request { begun: at, answer: Err(why) }) =
            failures.iter().min_by_key(|request| request.begun)
        {
            let (when, kill) = ((*at - begun).as_secs_f64(), moment.as_secs_f64());
            bail!(
                "{} of {} requests of Service {service} failed, the first {when:.2} s after the beginning, the kill \
                 came after {kill:.2} s: {why}",
                failures.len(),
                made.len()
            );
        }
        requests += made.len();
    }

    // exactly the Services that hold an address of the pool are in its record
    let held = services.list(&ListParams::default()).await.map_err(plain)?;
    let pools = tour.environment.address_plan.vips();
    let held: BTreeSet<String> = held
        .iter()
        .filter_map(published)
        .filter(|ip| matches!(ip, std::net::IpAddr::V4(v4) if pools.contains(v4)))
        .map(|ip| ip.to_string())
        .collect();
    let recorded = observer.pool("edge").await?.status.unwrap_or_default().allocated;
    let foreign: Vec<_> = recorded.keys().filter(|ip| !held.contains(*ip)).collect();
    ensure!(foreign.is_empty(), "leaked: {foreign:?}");
    Ok(format!(
        "{BURST} distinct addresses, none leaked, killed {:.2} s after the first; {requests} requests meanwhile, \
         none failed",
        moment.as_secs_f64()
    ))
}
