//! `docs/reference/` is made from the tables of the code. `UPDATE_DOCS=1 cargo test --test reference` writes it anew.

mod annotations;
mod values;

use std::collections::BTreeMap;
use std::{env, fs, path::Path};

use controller_kit::{EventReason, EventType};

/// Writes a document where that is asked for, and compares it.
fn compare(document: &str, text: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/reference").join(document);
    if env::var_os("UPDATE_DOCS").is_some() {
        fs::create_dir_all(file.parent().expect("it is in a folder")).expect("docs can be written");
        fs::write(&file, text).expect("docs can be written");
    }
    let found = fs::read_to_string(&file).unwrap_or_default();
    assert!(
        found == text,
        "docs/reference/{document} is out of date: run UPDATE_DOCS=1 cargo test --test reference"
    );
}

const EVENTS: &str = "\
# Events

<!-- made by `UPDATE_DOCS=1 cargo test --test reference` from the tables `EVENT_REASONS` of the crates -->

Every Event that the programs write, by the component that says it (FROM in `kubectl describe`, `source.component` in the
object). The message of an Event names the object, the cause and the next step; this is the list to look a reason up in.

    kubectl get events -A --field-selector reason=SyncLoadBalancerFailed

Each reason here was seen in a test of the programs: `cargo xtask test` fails where one was not, and where a test sees one
that is not here. Where a role grants no Events they are in the log alone, under the same reasons.
";

/// What people know of a component.
const COMPONENTS: [(&str, &str); 7] = [
    ("service-controller", "The cloud controller manager, about Services ([messages.md](../messages.md))."),
    ("cloud-node-controller", "The cloud controller manager, about Nodes ([nodes.md](../nodes.md))."),
    ("cloud-node-lifecycle-controller", "The cloud controller manager, about Nodes that are not ready."),
    ("cloud-controller-manager", "The cloud controller manager, about itself, on its own Pod."),
    ("harvester-load-balancer", "The load balancer, in Harvester."),
    ("harvester-csi-driver", "The CSI driver ([storage.md](../storage.md))."),
    ("harvester-csi-node-monitor", "The CSI driver that leads, about Nodes whose machines are lost."),
];

fn row(reason: &EventReason) -> String {
    let types: Vec<_> = reason.event_types.iter().map(|it: &EventType| it.name()).collect();
    let EventReason { reason, about, meaning, help, .. } = reason;
    format!("| `{reason}` | {} | {} | {meaning} | {help} |\n", types.join(", "), about.join(", "))
}

#[test]
fn the_document_of_events_is_what_the_crates_say() {
    let tables = [
        cloud_provider::EVENT_REASONS,
        cloud_controller_manager::EVENT_REASONS,
        load_balancer::EVENT_REASONS,
        csi_driver::EVENT_REASONS,
    ];
    let mut rows: BTreeMap<&str, BTreeMap<&str, String>> = BTreeMap::new();
    for table in tables.into_iter().flatten() {
        for reason in table.reasons {
            let of_component = rows.entry(table.component).or_default();
            let twice = of_component.insert(reason.reason, row(reason));
            assert!(twice.is_none(), "{} has {} twice", table.component, reason.reason);
        }
    }
    let mut text = EVENTS.to_owned();
    for (component, about) in COMPONENTS {
        let rows = rows.remove(component).expect("the component says something");
        text += &format!(
            "\n## `{component}`\n\n{about}\n\n| Reason | Type | On | What is so | What helps |\n|---|---|---|---|---|\n"
        );
        text.extend(rows.into_values());
    }
    assert!(rows.is_empty(), "nobody knows these components: {rows:?}");
    compare("events.md", &text);
}
