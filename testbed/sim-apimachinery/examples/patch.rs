//! Patches an object from files, as `kubectl patch --type strategic` would on a server, and says what is wrong with the result.
//!
//!     cargo run -p sim-apimachinery --example patch -- service.json patch.json
//!
//! Without arguments it moves the target port of a Service.
#![expect(clippy::print_stdout, reason = "an example prints")]

use std::error::Error;

use serde_json::{Value, json};
use sim_apimachinery::{builtin, schema, strategic_merge};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (object, patch) = match &*arguments {
        [object, patch] => (read(object)?, read(patch)?),
        [] => (
            json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"},
                "spec": {"ports": [{"name": "http", "port": 80, "protocol": "TCP", "targetPort": 8080}]}}),
            json!({"spec": {"ports": [{"port": 80, "protocol": "TCP", "targetPort": 9090}]}}),
        ),
        _ => return Err("usage: patch [object.json patch.json]".into()),
    };
    let text = |field: &str| object[field].as_str().unwrap_or_default();
    let kind = builtin::find(text("apiVersion"), text("kind")).ok_or("no built-in kind")?;
    let schema = schema::builtin(&kind.group, &kind.kind).ok_or("a kind without schema")?;
    let patched =
        strategic_merge::patch(&schema, &object, &patch).map_err(|status| status.to_value().to_string())?;
    println!("{patched:#}");
    for cause in schema.validate(&patched) {
        println!("{cause:?}");
    }
    Ok(())
}

fn read(path: &str) -> Result<Value, Box<dyn Error>> {
    Ok(serde_json::from_str(&std::fs::read_to_string(path)?)?)
}
