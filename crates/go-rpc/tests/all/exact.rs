//! Our server answers the recorded requests byte for byte: with what the simple encoder of vector 11 wrote, and,
//! where no interface is in it, with what Go wrote.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};

use go_rpc::{GoString, Interface, Limits, Server, Service, Struct, ToGob, Type, Typed, Value};
use rstest::rstest;
use serde_json::Value as Json;
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
use tokio::sync::Notify;

use crate::corpus::{file, unhex};

/// The 32 flags of vector 03 as Go's plugin returns them.
fn flags() -> Typed {
    let session = file("03-session-flags.json");
    let flags = session[1]["result"]["flags"].as_array().unwrap().clone();
    assert_eq!(flags.len(), 32);
    let names = ["Name", "Usage", "EnvVar"];
    let flag = |flag: &Json| {
        let mut fields = Struct::new();
        for name in names {
            fields.set(name, flag[name].as_str().unwrap());
        }
        let mut of: Vec<(&str, Type)> = names.map(|name| (name, Type::STRING)).into();
        let kind = match &flag["Value"] {
            Json::Null => "BoolFlag",
            Json::String(value) => {
                of.push(("Value", Type::STRING));
                fields.set("Value", value.as_str());
                "StringFlag"
            }
            value => {
                of.push(("Value", Type::INT));
                fields.set("Value", Value::Int(value.as_i64().unwrap()));
                "IntFlag"
            }
        };
        Some(Interface::new(format!("*mcnflag.{kind}"), Type::structure(kind, of), fields))
    };
    flags.iter().map(flag).collect::<Vec<_>>().to_typed()
}

/// Returns the method's answer according to the vector; none where the server itself has to know.
fn outcome(step: &Json) -> Option<Result<Typed, String>> {
    if let Some(error) = step.get("result_error") {
        let error = error.as_str().unwrap();
        return (!error.starts_with("rpc: ")).then(|| Err(error.into()));
    }
    Some(Ok(match &step["result"] {
        Json::Number(number) => number.as_i64().unwrap().to_typed(),
        Json::String(text) if text.starts_with("no value") => ().to_typed(),
        Json::String(text) => GoString::from(text.as_str()).to_typed(),
        Json::Object(result) if result.contains_key("flags") => flags(),
        Json::Object(result) => result["bytes_utf8"].as_str().unwrap().as_bytes().to_vec().to_typed(),
        other => panic!("a vector of a new kind: {other}"),
    }))
}

/// A server that answers what the vector says, in its order.
fn canned(session: &[Json]) -> Server {
    let mut answers: HashMap<(String, String), VecDeque<Result<Typed, String>>> = HashMap::new();
    for step in session.iter().filter(|step| step.get("call").is_some()) {
        if let (Some(outcome), Some((service, method))) =
            (outcome(step), step["call"].as_str().unwrap().rsplit_once('.'))
        {
            answers.entry((service.into(), method.into())).or_default().push_back(outcome);
        }
    }
    let mut services: HashMap<String, Service> = HashMap::new();
    for ((service, method), answers) in answers {
        let answers = Arc::new(Mutex::new(answers));
        let slot = services.entry(service).or_default();
        *slot = std::mem::take(slot).typed_method(&method, move |_| {
            let answer = answers.lock().unwrap().pop_front().unwrap();
            async move { answer }
        });
    }
    Server::new(Limits::default(), services.iter().map(|(name, service)| (name.as_str(), service.clone())))
}

#[rstest]
#[case::simple_encoder("11-session-simple-encoder.json")]
#[case::getters_of_go("05-session-getters.json")]
#[case::remove_of_go("06-session-rm.json")]
#[case::errors_of_go("07-session-errors.json")]
#[tokio::test]
async fn a_session_is_answered_byte_for_byte(#[case] name: &str) {
    let session = file(name);
    let server = canned(&session);
    let (mut ours, theirs) = duplex(1 << 16);
    let serving = tokio::spawn(async move { server.serve(theirs).await });
    for step in session.iter().filter(|step| step.get("request").is_some()) {
        ours.write_all(&unhex(&step["request"])).await.unwrap();
        let expected = unhex(&step["response"]);
        let mut answer = vec![0; expected.len()];
        ours.read_exact(&mut answer).await.unwrap();
        assert_eq!(answer, expected, "{name}: {step}");
    }
    ours.shutdown().await.unwrap();
    let mut rest = Vec::new();
    ours.read_to_end(&mut rest).await.unwrap();
    assert!(rest.is_empty());
    serving.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_waiting_call_does_not_hold_up_others_and_is_answered_byte_for_byte() {
    let session = file("08-session-concurrent.json");
    let created = Arc::new(Notify::new());
    let finish = created.clone();
    let driver = Service::new()
        .method("GetVersion", async |()| Ok::<_, String>(1_i64))
        .method("GetState", async |()| Ok::<_, String>(0_i64))
        .method("Heartbeat", async |()| Ok::<_, String>(()))
        .method("Close", async |()| Ok::<_, String>(()))
        .method("Create", move |()| {
            let created = created.clone();
            async move {
                created.notified().await;
                Ok::<_, String>(())
            }
        });
    let server = Server::new(Limits::default(), [("RPCServerDriver", driver)]);
    let (mut ours, theirs) = duplex(1 << 16);
    let serving = tokio::spawn(async move { server.serve(theirs).await });
    let mut steps = Vec::new();
    for step in &session {
        if let Some(chunks) = step.get("chronological") {
            for chunk in chunks.as_array().unwrap() {
                steps.push((chunk["dir"] == "client->plugin", unhex(&chunk["hex"])));
            }
        } else if step.get("request").is_some() {
            steps.push((true, unhex(&step["request"])));
            steps.push((false, unhex(&step["response"])));
        }
    }
    assert_eq!(steps.len(), 12);
    // Create's own reply is the last before Close
    let last = 9;
    for (number, (to_server, bytes)) in steps.into_iter().enumerate() {
        if to_server {
            ours.write_all(&bytes).await.unwrap();
            continue;
        }
        if number == last {
            finish.notify_one();
        }
        let mut answer = vec![0; bytes.len()];
        ours.read_exact(&mut answer).await.unwrap();
        assert_eq!(answer, bytes);
    }
    drop(ours);
    serving.await.unwrap().unwrap();
}
