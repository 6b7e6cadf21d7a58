//! What the containers of ours are told by their environment.

use serde_json::{Value, json};

use super::{array, containers, helm, render, text};

/// A guest cluster may reach Harvester through a proxy alone; sidecars speak with nobody outside.
#[test]
fn a_proxy_on_the_way_to_harvester_is_for_every_container_of_ours_and_for_no_other() {
    let Some(helm) = helm() else { return };
    let proxy = [
        json!({"name": "HTTPS_PROXY", "value": "http://proxy.example:3128"}),
        json!({"name": "NO_PROXY", "value": "10.43.0.1,.svc"}),
    ];
    let values = format!("--set-json=extraEnv={}", Value::from(proxy.to_vec()));
    for (chart, ours) in [("harvester-cloud-provider", 1), ("harvester-csi-driver", 2)] {
        let mut found = 0;
        for (says, options) in [("without", &[][..]), ("with", &[&*values][..])] {
            for (_, container) in containers(&render(&helm, chart, options)) {
                let environment = array(container, "/env");
                let is_told = proxy.iter().all(|entry| environment.contains(entry));
                let is_ours = !text(container, "/command/0").is_empty();
                assert_eq!(is_told, is_ours && says == "with", "{chart} {says}: {container}");
                found += usize::from(is_told);
                // what it has of its own comes first and stays
                let own = environment.iter().filter(|entry| !proxy.contains(entry)).count();
                assert!(environment[own..].iter().all(|entry| proxy.contains(entry)), "{container}");
            }
        }
        assert_eq!(found, ours, "{chart}");
    }
}
