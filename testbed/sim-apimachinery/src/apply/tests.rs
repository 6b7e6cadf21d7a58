use serde_json::json;

use super::*;
use crate::{builtin, managed_fields::track, schema, strategic_merge};

/// A server around these functions, as far as the vectors need it.
struct Server {
    kind: Kind,
    schema: std::sync::Arc<Schema>,
}

impl Server {
    fn step(&self, live: Option<&Value>, step: &Value) -> Result<Value, Status> {
        let subresource = step["sub"].as_str().unwrap_or_default();
        let writer = Writer {
            manager: step["manager"].as_str().unwrap(),
            api_version: &self.kind.api_version(),
            subresource,
            now: "2026-01-01T00:00:00Z",
        };
        let body = &step["body"];
        let mut new = match (step["do"].as_str().unwrap(), live) {
            ("apply", _) => apply(&self.kind, &self.schema, live, body, &writer, step["force"] == true)?,
            ("merge", Some(live)) => {
                let mut new = live.clone();
                json_patch::merge(&mut new, body);
                new
            }
            ("strategic", Some(live)) => strategic_merge::patch(&self.schema, live, body)?,
            _ => body.clone(),
        };
        if let Some(live) = live {
            // what belongs to the other path stays, identity stays
            let keep = if subresource == "status" { "spec" } else { "status" };
            new[keep] = live[keep].clone();
            if new[keep].is_null() {
                new.as_object_mut().unwrap().remove(keep);
            }
            if new["metadata"].get("managedFields").is_none() && step["do"] != "apply" {
                new["metadata"]["managedFields"] = live["metadata"]["managedFields"].clone();
            }
        }
        self.complete(&mut new);
        let causes = self.schema.validate(&new);
        if self.kind.origin == Origin::Custom && !causes.is_empty() {
            return Err(Status::invalid(&self.kind, "x", &causes));
        }
        if new["status"]["loadBalancer"]["ingress"].is_array() {
            return Err(Status::bad_request("not for headless Services"));
        }
        if step["do"] != "apply" {
            track(&self.schema, live, &mut new, &writer);
        }
        if self.kind.kind == "Service" {
            // filled in by the real server after it looked at the fields
            let spec = &mut new["spec"];
            spec["clusterIPs"] = json!(["None"]);
            spec["ipFamilies"] = json!(["IPv4"]);
            spec["ipFamilyPolicy"] = json!("SingleStack");
        }
        Ok(new)
    }

    /// Defaults.
    fn complete(&self, object: &mut Value) {
        self.schema.default_object(object);
        if self.kind.kind == "Service" {
            for (key, value) in
                [("type", "ClusterIP"), ("sessionAffinity", "None"), ("internalTrafficPolicy", "Cluster")]
            {
                object["spec"][key] = value.into();
            }
            for port in object["spec"]["ports"].as_array_mut().into_iter().flatten() {
                if port["targetPort"].is_null() {
                    port["targetPort"] = port["port"].clone();
                }
            }
            if object["status"].is_null() {
                object["status"] = json!({"loadBalancer": {}});
            }
        }
    }
}

/// Removes the server's own fields, and the times.
fn comparable(mut object: Value) -> Value {
    let metadata = object["metadata"].as_object_mut().unwrap();
    metadata.remove("generation");
    metadata.remove("namespace");
    for entry in metadata.get_mut("managedFields").and_then(Value::as_array_mut).into_iter().flatten() {
        entry.as_object_mut().unwrap().remove("time");
    }
    object
}

#[test]
fn writers_come_and_go_as_on_the_real_server() {
    let vectors: Value = serde_json::from_str(include_str!("../../tests/vectors/apply.json")).unwrap();
    let mut compared = 0;
    for sequence in vectors["sequences"].as_array().unwrap() {
        let server = match sequence["resource"].as_str().unwrap() {
            "gadgets" => {
                let crd = json!({"spec": {"group": "sim.example.com", "names": {"kind": "Gadget", "plural": "gadgets"},
                    "versions": [{"name": "v1", "served": true, "subresources": {"status": {}}}]}});
                let schema = Schema::of_crd(&vectors["gadget"], "").unwrap().into();
                Server { kind: Kind::of_crd(&crd).remove(0), schema }
            }
            plural => {
                let kind = builtin::kinds().iter().find(|k| k.plural == plural).unwrap().clone();
                let schema = schema::builtin(&kind.group, &kind.kind).unwrap();
                Server { kind, schema }
            }
        };
        let mut live: Option<Value> = None;
        for step in sequence["steps"].as_array().unwrap() {
            // the real server stumbles over the null that it leaves for a container that became empty; ours drops it
            if step["code"] == 422 && step["do"] == "apply" {
                continue;
            }
            match server.step(live.as_ref(), step) {
                Ok(new) => {
                    assert_eq!(step["message"], Value::Null, "{step}\n{new}");
                    let (ours, theirs) = (comparable(new.clone()), comparable(step["answer"].clone()));
                    assert_eq!(ours, theirs, "\n{step}\n{ours}");
                    live = Some(new);
                }
                Err(status) => {
                    assert_ne!(step["message"], Value::Null, "{status} {step}");
                    if step["code"] == 409 {
                        assert_eq!(status.message, step["message"].as_str().unwrap());
                        assert_eq!(status.details["causes"], step["causes"]);
                    }
                }
            }
            compared += 1;
        }
    }
    assert!(compared > 30, "{compared}");
}
