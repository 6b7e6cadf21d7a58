//! Recorded requests to a real server and its answers: the simulated one answers the same.

use http::Request;
use kube::Client;
use serde_json::{Value, json};

use crate::support::cluster;

async fn ask(client: &Client, method: &str, path: &str, body: &Value) -> Result<Value, kube::core::Status> {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", "application/json")
        .body(serde_json::to_vec(body).unwrap())
        .unwrap();
    match client.request::<Value>(request).await {
        Ok(answer) => Ok(answer),
        Err(kube::Error::Api(status)) => Err(*status),
        Err(other) => panic!("{method} {path}: {other}"),
    }
}

/// Code and causes (or, where there are none, the message) of a refusal; code 200 for all that was accepted.
fn shown(code: u64, message: &str, causes: &[Value]) -> Value {
    let mut causes: Vec<_> = causes.iter().map(|c| json!([c["field"], c["reason"], c["message"]])).collect();
    // the order says nothing; on an update a real server checks some metadata twice, and names each fault as often
    causes.sort_by_key(Value::to_string);
    causes.dedup();
    match (code, causes.is_empty()) {
        (..400, _) => json!({"code": 200}),
        (_, true) => json!({"code": code, "message": message}),
        _ => json!({"code": code, "causes": causes}),
    }
}

#[tokio::test(start_paused = true)]
async fn wrong_objects_are_refused_in_the_words_of_a_real_server() {
    let (_server, client) = cluster();
    let vectors: Vec<Value> = serde_json::from_str(include_str!("../vectors/refusals.json")).unwrap();
    let mut others = vec![];
    for case in &vectors {
        let (method, path) = (case["method"].as_str().unwrap(), case["path"].as_str().unwrap());
        let collection = case["collection"].as_str().unwrap_or_default();
        if case["before"].is_object() {
            ask(&client, "POST", collection, &case["before"]).await.unwrap();
        }
        let answer = ask(&client, method, &format!("{path}?dryRun=All"), &case["body"]).await;
        let ours = match &answer {
            Ok(_) => shown(200, "", &[]),
            Err(status) => {
                let causes = status.details.iter().flat_map(|details| &details.causes);
                let causes: Vec<_> = causes.map(|cause| serde_json::to_value(cause).unwrap()).collect();
                shown(status.code.into(), &status.message, &causes)
            }
        };
        let theirs = case["causes"].as_array().map_or(&[][..], Vec::as_slice);
        let message = case["message"].as_str().unwrap_or_default();
        let theirs = shown(case["code"].as_u64().unwrap(), message, theirs);
        if ours != theirs {
            others.push(format!("{method} {}\n  real {theirs}\n  ours {ours}", case["body"]));
        }
        if case["before"].is_object() {
            let name = case["before"]["metadata"]["name"].as_str().unwrap();
            ask(&client, "DELETE", &format!("{collection}/{name}"), &json!({})).await.unwrap();
        }
    }
    assert!(others.is_empty(), "{} of {}:\n{}", others.len(), vectors.len(), others.join("\n"));
    assert!(vectors.len() > 200);
}
