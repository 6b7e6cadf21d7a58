//! Services share one address, each with ports of its own.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context, Result, ensure};
use harvester_api::{LoadBalancer, annotations, labels};
use k8s_openapi::api::core::v1::{Event, Service};
use kube::{
    Api, ResourceExt,
    api::{ListParams, PostParams},
};

use super::{
    Observer, Tour,
    addresses::service,
    observer::{NAMESPACE, published},
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

    let refusal =
        observer.wait("an Event that Service rival cannot have port 80", || refusal(&observer)).await?;
    ensure!(published(&observer.service("rival").await?).is_none(), "Service rival has an address");
    leave(tour, address).await?;
    Ok(format!(
        "http://{address} is Service {PRIMARY}, http://{address}:{SECOND_PORT} Service second; of a third one: {refusal:?}"
    ))
}

/// A Service that asks for the address of `plain`.
async fn ask(observer: &Observer, name: &str, port: u16) -> Result<()> {
    let mut json = service(name, &[(annotations::PRIMARY_SERVICE, PRIMARY)]);
    json["spec"]["ports"][0]["port"] = port.into();
    json["spec"]["ports"][0]["targetPort"] = 80.into();
    let service: Service = serde_json::from_value(json).context("describe a Service")?;
    let services = Api::namespaced(observer.guest.clone(), NAMESPACE);
    services.create(&PostParams::default(), &service).await.map_err(plain).map(drop)
}

async fn refusal(observer: &Observer) -> Result<String> {
    let events = Api::<Event>::namespaced(observer.guest.clone(), NAMESPACE);
    let events = events.list(&ListParams::default()).await.map_err(plain)?;
    let about = |event: &&Event| {
        event.involved_object.name.as_deref() == Some("rival")
            && event.reason.as_deref() == Some("PortConflict")
    };
    let event = events.iter().find(about).context("there is none")?;
    Ok(event.message.clone().unwrap_or_default())
}

/// The secondaries go; the address stays with its primary.
async fn leave(tour: &Tour<'_>, address: IpAddr) -> Result<()> {
    let observer = tour.observer();
    let services = Api::<Service>::namespaced(observer.guest.clone(), NAMESPACE);
    for name in ["second", "rival"] {
        services.delete(name, &Default::default()).await.map_err(plain)?;
    }
    observer
        .wait("the secondaries to go", || async {
            let left = services.list(&ListParams::default()).await.map_err(plain)?;
            let left: Vec<_> = left.iter().map(ResourceExt::name_any).collect();
            let left: Vec<_> =
                left.iter().filter(|name| ["second", "rival"].contains(&name.as_str())).collect();
            ensure!(left.is_empty(), "{left:?} are there");
            Ok(())
        })
        .await?;
    curl(SocketAddr::new(address, wire_port(80))).await.context("the primary, afterwards")?;
    Ok(())
}
