//! Services share one address, each with ports of its own.

use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use harvester_api::{LoadBalancer, annotations, labels};
use kube::{Api, api::ListParams};

use super::{
    Observer, Tour,
    addresses::{create_with, service},
    observer::published,
};
use crate::{curl::curl, environment::wire_port, manifests::plain};

const PRIMARY: &str = "plain";
const SECOND_PORT: u16 = 8081;

/// Service `second` gets the address of Service `plain`, and no object of its own; `rival` wants a port that is taken.
pub(super) async fn one_address(tour: &Tour<'_>) -> Result<String> {
    let observer = tour.observer();
    let address = observer.address(PRIMARY).await?;
    ask(&observer, "second", SECOND_PORT).await?;
    ask(&observer, "rival", 80).await?;
    ensure!(observer.address("second").await? == address, "the two have not one address");
    observer.answers(address, SECOND_PORT).await?;
    observer.answers(address, 80).await?;
    let objects = Api::<LoadBalancer>::all(observer.harvester.clone());
    let of_second = ListParams::default().labels(&format!("{}=second", labels::SERVICE_NAME));
    let count = objects.list(&of_second).await.map_err(plain)?.items.len();
    ensure!(count == 0, "Service second has {count} LoadBalancer objects");

    let refusal = observer.told("rival", "PortConflict").await?;
    ensure!(published(&observer.service("rival").await?).is_none(), "Service rival has an address");
    observer.delete(&["second", "rival"]).await?;
    curl(SocketAddr::new(address, wire_port(80))).await.context("the primary, afterwards")?;
    Ok(format!(
        "http://{address} is Service {PRIMARY}, http://{address}:{SECOND_PORT} Service second; of a third one: {refusal:?}"
    ))
}

/// A Service that asks for the address of `plain`.
async fn ask(observer: &Observer, name: &str, port: u16) -> Result<()> {
    let mut json = service(name, &[(annotations::PRIMARY_SERVICE, PRIMARY)]);
    json["spec"]["ports"][0]["port"] = port.into();
    json["spec"]["ports"][0]["targetPort"] = 80.into();
    create_with(observer, json).await
}
