//! Asks what to delete, writes it down, and deletes it if it is still the same object.

use std::fmt::Write as _;

use controller_kit::error_message;
use harvester_api::load_balancer::API_VERSIONS;
use http::{Request, header};
use kube::Client;
use serde_json::{Value, json};

use super::{Deletion, Kind, Orphan, Report};
use crate::explain::cut;

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
        let count = proved.len();
        let question = format!(
            "Delete {count} LoadBalancers of this guest cluster, whose addresses become free? Type yes: "
        );
        if count > 0 && ask(&question) == "yes" {
            chosen.extend(proved);
        }
    }
    let mut by_name = |orphan: &&Orphan, what: &str| {
        let (kind, name) = (orphan.kind.word(), &orphan.name);
        let question =
            format!("{kind} {name} of cluster {}: {what}. Type its name to delete it: ", orphan.of);
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
# It brings no data back: a PersistentVolumeClaim will be a new, empty volume. A LoadBalancer gets an address from its
# pool, which may be another one than before.
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
            // the volume is gone: a claim that names it would wait for ever
            spec.remove("volumeName");
        }
        if let Some(notes) = notes.as_object_mut() {
            notes.retain(|key, _| !key.starts_with("pv.kubernetes.io/"));
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

/// Deletes each that `again`, a newer report, still calls an orphan of the same UID that may be deleted so.
pub async fn delete(client: &Client, chosen: &[&Orphan], again: &Report) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    for orphan in chosen {
        let title = format!("{} {}", orphan.kind.word(), orphan.name);
        let uid = |orphan: &Orphan| orphan.object["metadata"]["uid"].clone();
        let is_same = |other: &&Orphan| {
            (other.kind, &other.name, uid(other), other.delete)
                == (orphan.kind, &orphan.name, uid(orphan), orphan.delete)
        };
        let outcome = match again.orphans.iter().find(is_same) {
            None => Err("somebody may need it now, or it is another object".to_owned()),
            Some(fresh) => request(client, fresh).await.map_err(|error| cut(&error_message(&error))),
        };
        outcomes.push(match outcome {
            Ok(()) => Outcome { is_deleted: true, sentence: format!("{title} is deleted") },
            Err(why) => Outcome { is_deleted: false, sentence: format!("{title} stays: {why}") },
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
