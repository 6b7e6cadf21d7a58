//! What the driver tells Prometheus. Each metric has a row in docs/storage.md.

use credential_rotation::{RotationMetrics, life::Life};
use prometheus_client::registry::Registry;

use crate::{calls::Calls, leading::Leading};

/// Registers them; those of the renewal where this process may renew the token.
pub(crate) fn register(
    registry: &mut Registry,
    calls: &Calls,
    leading: &Leading,
    life: &Life,
    rotations: Option<&RotationMetrics>,
) {
    calls.register(registry);
    leading.register(registry);
    registry.register_collector(Box::new(life.clone()));
    if let Some(rotations) = rotations {
        rotations.register(registry);
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs};

    use cloud_config::expiry::Expiry;
    use program::{Clock, TaskGroup};
    use prometheus_client::encoding::text::encode;
    use tonic::{
        body::Body,
        codegen::http::{Request, Response},
    };
    use tower::ServiceExt as _;

    use super::*;

    /// The metrics in the table of the driver, wherever in docs/ it is.
    fn documented() -> BTreeSet<String> {
        let folder = fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs")).unwrap();
        let pages = folder.map(|entry| entry.unwrap().path()).filter(|path| path.is_file());
        let pages: String = pages.filter_map(|page| fs::read_to_string(page).ok()).collect();
        let (_, table) = pages.split_once("| Metric of `harvester-csi-driver` |").expect("a table");
        let first = |row: &str| row.strip_prefix("| ")?.split('|').next().map(str::to_owned);
        let cells: Vec<_> = table.lines().skip(2).map_while(first).collect();
        let names = cells.iter().flat_map(|cell| cell.split('`').skip(1).step_by(2));
        names.map(str::to_owned).collect()
    }

    #[tokio::test]
    async fn every_metric_is_documented_and_every_documented_metric_is_there() {
        let clock = Clock::starting_at("2026-01-01T00:00:00Z".parse().unwrap());
        let (calls, leading, life) = (Calls::new(&TaskGroup::new()), Leading::default(), Life::new(clock));
        let answers =
            calls.of(tower::service_fn(|_: Request<Body>| async { Ok(Response::new(Body::empty())) }));
        let mut request = Request::new(Body::empty());
        *request.uri_mut() = "/csi.v1.Identity/GetPluginInfo".parse().unwrap();
        answers.oneshot(request).await.unwrap();
        leading.stands_by("lease");
        life.set(Expiry::At("2026-01-02T00:00:00Z".parse().unwrap()));
        let (mut registry, mut text) = (Registry::default(), String::new());
        register(&mut registry, &calls, &leading, &life, Some(&RotationMetrics::default()));
        encode(&mut text, &registry).unwrap();
        let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
        let name = |(name, of): (&str, &str)| {
            if of == "counter" { format!("{name}_total") } else { name.to_owned() }
        };
        let registered: BTreeSet<_> = types.map(name).collect();
        let mut documented = documented();
        // those of crate `program`
        documented.retain(|name| !name.starts_with("process_"));
        assert_eq!(registered, documented);
    }
}
