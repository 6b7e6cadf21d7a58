//! What a server answers to requests that make no sense, and to who gives what he does not hold: one table, for both
//! kinds of server. Who may do what is in `allow_and_deny.rs`.
#![cfg(test)]

use http::Request;
use serde::Deserialize;
use serde_json::Value;
use test_cluster::{TestCluster, User, component_tests};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    user: String,
    ask: String,
    body: Option<Value>,
    answer: u16,
    /// A part of what the server says.
    says: Option<String>,
}

/// The status code, and what the server said.
async fn ask(cluster: &TestCluster, line: &Line) -> (u16, String) {
    let user = match line.user.as_str() {
        "driver" => User::Driver,
        "nobody" => User::Nobody,
        other => panic!("who is {other}?"),
    };
    let (verb, path) = line.ask.split_once(' ').expect("a line names a verb and a path");
    let (method, media) = match verb {
        "MERGE" => ("PATCH", "application/merge-patch+json"),
        "STRATEGIC" => ("PATCH", "application/strategic-merge-patch+json"),
        "JSON" => ("PATCH", "application/json-patch+json"),
        "APPLY" => ("PATCH", "application/apply-patch+yaml"),
        other => (other, "application/json"),
    };
    let body = line.body.as_ref().map(|body| body.to_string().into_bytes()).unwrap_or_default();
    let request = Request::builder().method(method).uri(path).header("content-type", media).body(body.into());
    let answer = cluster.guest.client(user).send(request.unwrap()).await.unwrap();
    let code = answer.status().as_u16();
    let said = answer.into_body().collect_bytes().await.unwrap();
    (code, String::from_utf8_lossy(&said).into_owned())
}

component_tests! {
    async fn requests_are_answered_as_the_table_says(cluster: TestCluster) {
        let table: Vec<Line> = serde_saphyr::from_str(include_str!("answers.yaml")).unwrap();
        let mut wrong = vec![];
        for line in &table {
            let (code, said) = ask(&cluster, line).await;
            if code != line.answer || line.says.as_ref().is_some_and(|part| !said.contains(part)) {
                let said: String = said.chars().take(300).collect();
                wrong.push(format!("{}: {}: {code} instead of {}: {said}", line.user, line.ask, line.answer));
            }
            // a real server's authorizer watches what was written
            if line.ask.starts_with("POST /apis/rbac") && code == 201 {
                cluster.settle().await;
            }
        }
        assert!(wrong.is_empty(), "{} of {} lines:\n{}", wrong.len(), table.len(), wrong.join("\n"));
    }
}
