//! docs/messages.md explains the reason of every Event and condition that people see, and docs/storage.md every code
//! of a refused CSI call.

use std::{collections::BTreeSet, fs};

use super::{names::literals, product, root};

/// The crates that publish Events and write conditions.
const CRATES: &[&str] =
    &["load-balancer", "cloud-controller-manager", "cloud-provider", "credential-rotation", "guest-vms"];

/// Words of Kubernetes and KubeVirt in the same spelling.
const NO_REASONS: &[&str] = &[
    "AgentConnected",
    "ConfigMap",
    "CustomResourceDefinition",
    "EndpointSlice",
    "ExternalIP",
    "InternalIP",
    "LoadBalancer",
    "LoadBalancers",
    "NoSchedule",
    "RerunOnFailure",
    "ServiceAccount",
    "SingleStack",
    "ToBeDeletedByClusterAutoscaler",
    "TokenRequest",
    "VirtualMachine",
    "VirtualMachineInstance",
    "VirtualMachineInstances",
    "VirtualMachines",
];

/// Whether a text is spelt as a reason of several words.
fn is_reason(text: &str) -> bool {
    text.chars().all(|c| c.is_ascii_alphabetic())
        && text.starts_with(|c: char| c.is_ascii_uppercase())
        && text.chars().skip(2).any(|c| c.is_ascii_uppercase())
        && text.chars().any(|c| c.is_ascii_lowercase())
}

#[test]
fn every_reason_of_an_event_or_a_condition_is_explained() {
    let page = |name: &str| fs::read_to_string(root().join(format!("docs/{name}.md"))).unwrap();
    // words of fields and modes are with what a user writes
    let document: String = ["messages", "pools", "load-balancing"].map(page).concat();
    let (mut found, mut missing) = (BTreeSet::new(), Vec::new());
    for line in product::lines() {
        if !line.place.split('/').nth(1).is_some_and(|of| CRATES.contains(&of)) {
            continue;
        }
        for text in literals(&line.text) {
            let is_new = is_reason(text) && !NO_REASONS.contains(&text) && found.insert(text.to_owned());
            if is_new && !document.contains(&format!("`{text}`")) {
                missing.push(format!("{}: {text}", line.place));
            }
        }
    }
    assert!(found.len() > 50, "the reasons are found: {}", found.len());
    assert!(missing.is_empty(), "explain these in docs/messages.md: {missing:#?}");
}

/// The reason that begins this part of a line, in quotation marks.
fn leading(text: &str) -> Option<&str> {
    text.trim_start().strip_prefix('"')?.split('"').next()
}

#[test]
fn every_reason_that_the_code_gives_to_an_event_is_in_the_reference() {
    let reference = fs::read_to_string(root().join("docs/reference/events.md")).unwrap();
    let lines = product::lines();
    let (mut found, mut missing) = (0, Vec::new());
    for pair in lines.windows(2) {
        let made = ["PendingEvent::warning(", "PendingEvent::normal("];
        let rest = made.iter().find_map(|made| pair[0].text.split_once(made)).map(|(_, rest)| rest);
        let Some(rest) = rest else { continue };
        let Some(reason) = leading(if rest.is_empty() { &pair[1].text } else { rest }) else { continue };
        found += 1;
        if !reference.contains(&format!("| `{reason}` |")) {
            missing.push(format!("{}: {reason}", pair[0].place));
        }
    }
    assert!(found > 40, "the Events are found: {found}");
    assert!(missing.is_empty(), "add these to EVENT_REASONS of their crates: {missing:#?}");
}

#[test]
fn a_reason_is_told_from_other_words() {
    assert!(is_reason("PoolNotFound") && is_reason("InvalidIPAM"));
    assert_eq!(leading(" \"Synced\", \"Node\")"), Some("Synced"));
    assert_eq!(leading("REASON, message)"), None);
    assert!(!is_reason("Ready") && !is_reason("TCP") && !is_reason("metadata") && !is_reason("no Reason"));
}

/// The codes that a line of the CSI driver names, as gRPC writes them: `Code::NotFound` and `Status::not_found(` are both
/// NOT_FOUND.
fn codes(line: &str) -> impl Iterator<Item = String> {
    // that of HTTP is another one
    let line = &line.replace("StatusCode::", "");
    // the driver has a table of the names that the log has for all codes
    let is_name = line.contains("=> \"");
    let word = |rest: &str| rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>();
    let named = line.split("Code::").skip(1).map(word);
    // `Status::new` and `from_error` take a code from elsewhere
    let made = line.split("Status::").skip(1).map(word);
    let made = made.filter(|name| name != "new" && !name.starts_with("from_"));
    let all: Vec<_> = named.chain(made).filter(|name| name != "Ok" && !is_name).collect();
    all.into_iter().map(|name| {
        let words = name.char_indices().flat_map(|(at, c)| {
            let gap = (c.is_ascii_uppercase() && at > 0).then_some('_');
            gap.into_iter().chain([c.to_ascii_uppercase()])
        });
        words.collect()
    })
}

#[test]
fn every_code_that_the_csi_driver_answers_is_explained_and_no_other() {
    let document = fs::read_to_string(root().join("docs/storage.md")).unwrap();
    let (_, table) = document.split_once("| Code | Means | To do |\n").expect("it has the table");
    let rows = table.lines().skip(1).map_while(|line| line.strip_prefix("| "));
    let explained: BTreeSet<_> = rows.map(|row| row.split([' ', '|']).next().unwrap().to_owned()).collect();
    let lines = product::lines().into_iter().filter(|line| line.place.starts_with("crates/csi-driver/src/"));
    let answered: BTreeSet<_> = lines.flat_map(|line| codes(&line.text).collect::<Vec<_>>()).collect();
    assert!(answered.len() > 10, "the codes are found: {answered:?}");
    assert_eq!(explained, answered, "left what docs/storage.md explains, right what the driver answers");
}

#[test]
fn a_code_is_read_from_both_of_its_spellings() {
    let read = |line: &str| codes(line).collect::<Vec<_>>();
    assert_eq!(read("401 => Code::Unauthenticated,"), ["UNAUTHENTICATED"]);
    assert_eq!(read("StatusCode::FORBIDDEN => refused,"), [""; 0]);
    assert_eq!(read("Err(Status::deadline_exceeded(text))"), ["DEADLINE_EXCEEDED"]);
    assert_eq!(read("Code::NotFound | Code::Aborted"), ["NOT_FOUND", "ABORTED"]);
    assert_eq!(read("Code::DataLoss => \"DataLoss\","), [""; 0]);
    assert_eq!(read("Self::new(refusal.code, refusal.message), Status::from_error(e), Code::Ok"), [""; 0]);
}
