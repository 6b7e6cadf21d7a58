//! ConfigMaps, Secrets and storage classes.

use serde_json::Value;

use super::{entries, named, names, text};
use crate::json::is_unset;
use crate::status::Cause;

/// More than this in all values together is refused (1 MiB).
const MAX_SIZE: usize = 1 << 20;

pub(super) fn config_map(old: Option<&Value>, map: &Value, causes: &mut Vec<Cause>) {
    immutable(old, map, &["data", "binaryData"], causes);
    let mut size = 0_usize;
    for (key, value) in entries(&map["data"]) {
        named(&format!("data[{key}]"), key, names::config_key(key), causes);
        if map["binaryData"].get(key).is_some() {
            let detail = "duplicate of key present in binaryData";
            causes.push(Cause::invalid(&format!("data[{key}]"), &key.into(), detail));
        }
        size = size.saturating_add(text(value).len());
    }
    for (key, value) in entries(&map["binaryData"]) {
        named(&format!("binaryData[{key}]"), key, names::config_key(key), causes);
        size = size.saturating_add(decoded_len(text(value)));
    }
    if size > MAX_SIZE {
        causes.push(Cause::too_long("", MAX_SIZE));
    }
}

pub(super) fn secret(old: Option<&Value>, secret: &Value, causes: &mut Vec<Cause>) {
    immutable(old, secret, &["data"], causes);
    if old.is_some_and(|old| old["type"] != secret["type"]) {
        causes.push(Cause::invalid("type", &secret["type"], "field is immutable"));
    }
    let mut size = 0_usize;
    for (key, value) in entries(&secret["data"]) {
        named(&format!("data[{key}]"), key, names::config_key(key), causes);
        size = size.saturating_add(decoded_len(text(value)));
    }
    if size > MAX_SIZE {
        causes.push(Cause::too_long("data", MAX_SIZE));
    }
    let has = |key: &str| secret["data"].get(key).is_some() || secret["stringData"].get(key).is_some();
    let mut need = |key: &str| {
        if !has(key) {
            causes.push(Cause::required(&format!("data[{key}]"), ""));
        }
    };
    match text(&secret["type"]) {
        "kubernetes.io/service-account-token" => {
            const NAME: &str = "kubernetes.io/service-account.name";
            if text(&secret["metadata"]["annotations"][NAME]).is_empty() {
                causes.push(Cause::required(&format!("metadata.annotations[{NAME}]"), ""));
            }
        }
        "kubernetes.io/dockercfg" => need(".dockercfg"),
        "kubernetes.io/dockerconfigjson" => need(".dockerconfigjson"),
        "kubernetes.io/basic-auth" if !has("username") && !has("password") => {
            need("username");
            need("password");
        }
        "kubernetes.io/ssh-auth" => need("ssh-privatekey"),
        "kubernetes.io/tls" => {
            need("tls.crt");
            need("tls.key");
        }
        _ => {}
    }
}

pub(super) fn class(old: Option<&Value>, class: &Value, causes: &mut Vec<Cause>) {
    match text(&class["provisioner"]).to_lowercase().as_str() {
        "" => causes.push(Cause::required("provisioner", "")),
        name => named("provisioner", name, names::label_key(name), causes),
    }
    for (field, allowed) in [
        ("reclaimPolicy", ["Delete", "Retain"]),
        ("volumeBindingMode", ["Immediate", "WaitForFirstConsumer"]),
    ] {
        if !is_unset(&class[field]) && !allowed.contains(&text(&class[field])) {
            causes.push(Cause::not_supported(field, &class[field], &allowed));
        }
    }
    let Some(old) = old else { return };
    for field in ["parameters", "provisioner", "reclaimPolicy", "volumeBindingMode"] {
        if old[field] != class[field] {
            causes.push(Cause::invalid(field, &class[field], "field is immutable"));
        }
    }
}

fn immutable(old: Option<&Value>, new: &Value, fields: &[&str], causes: &mut Vec<Cause>) {
    let Some(old) = old.filter(|old| old["immutable"] == true) else { return };
    let detail = "field is immutable when `immutable` is set";
    if new["immutable"] != true {
        causes.push(Cause::forbidden("immutable", detail));
    }
    for field in fields.iter().filter(|field| old[**field] != new[**field]) {
        causes.push(Cause::forbidden(field, detail));
    }
}

/// Returns the number of bytes that the base64 text stands for.
fn decoded_len(text: &str) -> usize {
    text.trim_end_matches('=').len() * 3 / 4
}
