//! Asks what to delete, leaves what has changed meanwhile, writes the rest down, and deletes it.

use std::fmt::Write as _;

use controller_kit::error_message;
use harvester_api::{annotations::CSI_ATTACH, load_balancer::API_VERSIONS};
use http::{Request, header};
use kube::Client;
use serde_json::{Value, json};

use super::{Deletion, Kind, Orphan, Report};
use crate::screen::cut;

/// Which orphans to delete. `ask` shows a question and returns the line that was typed. Load balancers are asked for where
/// `balancers` says so, volumes where `volumes` does.
pub fn choose<'a>(
    report: &'a Report,
    balancers: bool,
    volumes: bool,
    ask: &mut dyn FnMut(&str) -> String,
) -> Vec<&'a Orphan> {
    let of = |kind: Kind, delete: Deletion| {
        report.orphans.iter().filter(move |orphan| orphan.kind == kind && orphan.delete == delete)
    };
    let mut chosen = Vec::new();
    if balancers {
        let proved: Vec<_> = of(Kind::LoadBalancer, Deletion::Asked).collect();
        // all of them: the table may have left some out
        let names: String = proved.iter().map(|orphan| format!("  {}\n", orphan.name)).collect();
        let question = format!(
            "LoadBalancers of this guest cluster, whose addresses become free:\n{names}Delete these {}? Type yes: ",
            proved.len()
        );
        if !proved.is_empty() && ask(&question) == "yes" {
            chosen.extend(proved);
        }
    }
    let mut by_name = |orphan: &&Orphan, what: &str| {
        let (kind, name, of) = (orphan.kind.word(), &orphan.name, &orphan.of);
        let question = format!(
            "{kind} {name} of cluster {of}: {}; {what}. Type its name to delete it: ",
            orphan.because()
        );
        ask(&question) == *name
    };
    if balancers {
        let unproved = of(Kind::LoadBalancer, Deletion::Typed);
        chosen.extend(unproved.filter(|it| by_name(it, "nothing proves whose it is")));
    }
    if volumes {
        let claims = of(Kind::PersistentVolumeClaim, Deletion::Typed);
        chosen.extend(claims.filter(|it| by_name(it, "its data will be gone, and nothing brings it back")));
    }
    chosen
}

/// What `kubectl create -f` makes objects of the same names and specs from.
pub fn undo(orphans: &[&Orphan]) -> String {
    let mut text = "\
# What `orphans` deleted. `kubectl create -f` on this file makes objects of these names and specs again.
# It brings no data back: a PersistentVolumeClaim will be a new, empty volume, also one that was made from a snapshot or
# from another volume. A LoadBalancer gets an address from its pool, which may be another one than before.
"
    .to_owned();
    for orphan in orphans {
        writeln!(text, "---\n{}", remade(orphan)).expect("a String takes any text");
    }
    text
}

/// The object as somebody would create it.
fn remade(orphan: &Orphan) -> Value {
    let object = &orphan.object;
    let mut spec = object["spec"].clone();
    let mut notes = object["metadata"]["annotations"].clone();
    if orphan.kind == Kind::PersistentVolumeClaim {
        if let Some(spec) = spec.as_object_mut() {
            // the volume is gone, and the source may be: a claim that names one of these would wait for ever
            spec.retain(|key, _| !["volumeName", "dataSource", "dataSourceRef"].contains(&key.as_str()));
        }
        if let Some(notes) = notes.as_object_mut() {
            // the new volume is in no machine
            notes.retain(|key, _| !key.starts_with("pv.kubernetes.io/") && key != CSI_ATTACH);
        }
    }
    let (version, kind) = identity(orphan.kind);
    json!({"apiVersion": version, "kind": kind, "metadata": {"namespace": orphan.namespace, "name": orphan.name,
        "labels": object["metadata"]["labels"], "annotations": notes}, "spec": spec})
}

fn identity(kind: Kind) -> (&'static str, &'static str) {
    match kind {
        Kind::PersistentVolumeClaim => ("v1", kind.word()),
        _ => (API_VERSIONS[0], kind.word()),
    }
}

/// What became of one orphan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    pub is_deleted: bool,
    pub sentence: String,
}

/// What was chosen and is unchanged in `again`, a newer report that still calls it an orphan which may be deleted so; and
/// what becomes of the rest.
pub fn unchanged<'a>(chosen: &[&Orphan], again: &'a Report) -> (Vec<&'a Orphan>, Vec<Outcome>) {
    let version = |orphan: &Orphan| {
        let metadata = &orphan.object["metadata"];
        (metadata["uid"].clone(), metadata["resourceVersion"].clone())
    };
    let (mut same, mut rest) = (Vec::new(), Vec::new());
    for orphan in chosen {
        let is_same = |other: &&Orphan| {
            let what = |it: &Orphan| (it.kind, it.name.clone(), it.delete, version(it));
            // what speaks against it now, its question said
            what(other) == what(orphan) && (other.doubt.is_none() || other.doubt == orphan.doubt)
        };
        match again.orphans.iter().find(is_same) {
            Some(fresh) => same.push(fresh),
            None => rest.push(Outcome {
                is_deleted: false,
                sentence: format!(
                    "{} {} stays: it has changed since it was shown, or somebody may need it now",
                    orphan.kind.word(),
                    orphan.name
                ),
            }),
        }
    }
    (same, rest)
}

/// Deletes each, unless it has changed.
pub async fn delete(client: &Client, orphans: &[&Orphan]) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    for orphan in orphans {
        let title = format!("{} {}", orphan.kind.word(), orphan.name);
        outcomes.push(match request(client, orphan).await {
            Ok(()) => Outcome { is_deleted: true, sentence: format!("{title} is deleted") },
            Err(error) => {
                let why = cut(&error_message(&error));
                Outcome { is_deleted: false, sentence: format!("{title} stays: {why}") }
            }
        });
    }
    outcomes
}

async fn request(client: &Client, orphan: &Orphan) -> kube::Result<()> {
    let (version, _) = identity(orphan.kind);
    let (root, plural) = match orphan.kind {
        Kind::PersistentVolumeClaim => ("api", "persistentvolumeclaims"),
        _ => ("apis", "loadbalancers"),
    };
    let namespace = orphan.namespace.as_deref().unwrap_or_default();
    let path = format!("/{root}/{version}/namespaces/{namespace}/{plural}/{}", orphan.name);
    let metadata = &orphan.object["metadata"];
    let options = json!({"apiVersion": "v1", "kind": "DeleteOptions", "preconditions":
        {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}});
    let request = Request::delete(path).header(header::CONTENT_TYPE, "application/json");
    let request = request.body(options.to_string().into_bytes()).map_err(kube::Error::HttpError)?;
    client.request::<Value>(request).await.map(|_| ())
}
