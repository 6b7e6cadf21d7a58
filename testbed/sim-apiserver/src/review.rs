//! Questions that look like objects: who am I, may I, whose token is this, give me a token.

use axum::body::Body;
use http::{Response, StatusCode};
use jiff::SignedDuration;
use serde_json::{Value, json};
use sim_apimachinery::rbac::Request;
use sim_apimachinery::validate::review;

use crate::Failure;
use crate::kind::Behaviour;
use crate::request::Verb;
use crate::server::{ApiServer, Ask, value_response};
use crate::store::Key;
use crate::user::User;

/// Lifetime in seconds of a token that names no end.
const TOKEN_LIFE: i64 = 3600;
const SHORTEST_LIFE: i64 = 600;

/// Whether a request asks something instead of keeping something.
pub(crate) fn is_question(ask: &Ask) -> bool {
    ask.kind.behaviour == Behaviour::Review || asks_for_a_token(ask)
}

fn asks_for_a_token(ask: &Ask) -> bool {
    ask.kind.plural == "serviceaccounts" && ask.subresource() == "token" && ask.verb == Verb::Create
}

/// Answers the question: the object with a status.
pub(crate) fn answer(server: &ApiServer, ask: &Ask) -> Result<Response<Body>, Failure> {
    if ask.verb != Verb::Create {
        return Err(Failure::method_not_allowed());
    }
    let mut review = ask.media.document(&ask.body)?;
    if !review.is_object() {
        return Err(Failure::bad_request("the object provided is unrecognized: it is no JSON object"));
    }
    let token = asks_for_a_token(ask);
    if !token {
        check(ask, &review["spec"])?;
    }
    review["apiVersion"] =
        if token { "authentication.k8s.io/v1".into() } else { ask.api().api_version().into() };
    review["kind"] = if token { "TokenRequest".into() } else { ask.kind.kind.clone().into() };
    let status = match ask.kind.kind.as_str() {
        _ if token => issue(server, ask, &review)?,
        "SelfSubjectAccessReview" => access(server, &ask.user, &review["spec"]),
        "SubjectAccessReview" | "LocalSubjectAccessReview" => {
            let mut user = User::named(review["spec"]["user"].as_str().unwrap_or_default());
            for group in review["spec"]["groups"].as_array().into_iter().flatten().filter_map(Value::as_str) {
                user = user.with_group(group);
            }
            access(server, &user, &review["spec"])
        }
        "SelfSubjectRulesReview" => {
            let namespace = review["spec"]["namespace"].as_str().unwrap_or_default();
            server.0.rights.policy(&server.0.store).rules(&ask.user, namespace)
        }
        "SelfSubjectReview" => json!({"userInfo": user_info(&ask.user)}),
        "TokenReview" => match server.user_of(review["spec"]["token"].as_str().unwrap_or_default()) {
            Some(user) => json!({"authenticated": true, "user": user_info(&user)}),
            None => json!({"error": "invalid bearer token", "user": {}}),
        },
        _ => return Err(Failure::no_such_path()),
    };
    review["status"] = status;
    Ok(value_response(StatusCode::CREATED, &review))
}

/// Refuses a question that cannot be answered.
fn check(ask: &Ask, spec: &Value) -> Result<(), Failure> {
    let lacks = |field: &str| spec[field].as_str().unwrap_or_default().is_empty();
    let kind = ask.kind.kind.as_str();
    match kind {
        "SelfSubjectAccessReview" | "SubjectAccessReview" | "LocalSubjectAccessReview" => {
            let faults = review::faults(kind, ask.namespace(), spec);
            if faults.is_empty() {
                Ok(())
            } else {
                Err(Failure::invalid_kind(&ask.kind.group, "", "", &faults))
            }
        }
        "SelfSubjectRulesReview" if lacks("namespace") => {
            Err(Failure::bad_request("no namespace on request"))
        }
        "TokenReview" if lacks("token") => {
            Err(Failure::bad_request("token is required for TokenReview in authentication"))
        }
        _ => Ok(()),
    }
}

fn user_info(user: &User) -> Value {
    json!({"username": user.name, "groups": user.groups})
}

fn access(server: &ApiServer, user: &User, spec: &Value) -> Value {
    let text = |value: &'_ Value| value.as_str().unwrap_or_default().to_owned();
    let resource = &spec["resourceAttributes"];
    let path = &spec["nonResourceAttributes"];
    let field = |name: &str| text(&resource[name]);
    let (verb, group, plural, subresource, namespace, name) = (
        field("verb"),
        field("group"),
        field("resource"),
        field("subresource"),
        field("namespace"),
        field("name"),
    );
    let (path_verb, path) = (text(&path["verb"]), text(&path["path"]));
    let request = if resource.is_object() {
        Request::Resource {
            verb: &verb,
            group: &group,
            resource: &plural,
            subresource: &subresource,
            namespace: &namespace,
            name: &name,
        }
    } else {
        Request::Path { verb: &path_verb, path: &path }
    };
    json!({"allowed": server.0.rights.allow(&server.0.store, user, &request)})
}

/// A token for a service account.
fn issue(server: &ApiServer, ask: &Ask, request: &Value) -> Result<Value, Failure> {
    let key = Key::new(ask.namespace(), ask.name());
    if server.0.store.get(&ask.kind.table, &key).is_none() {
        return Err(Failure::not_found(ask.api(), ask.name()));
    }
    let life = request["spec"]["expirationSeconds"].as_i64().unwrap_or(TOKEN_LIFE);
    if life < SHORTEST_LIFE {
        return Err(Failure::bad_request(
            "spec.expirationSeconds: may not specify a duration less than 10 minutes",
        ));
    }
    let bound = bound(server, ask, &request["spec"]["boundObjectRef"])?;
    let now = server.0.clock.now();
    let end = now.checked_add(SignedDuration::from_secs(life)).unwrap_or(now);
    let token = server.issue_token(ask.namespace(), ask.name(), bound, Some(end));
    Ok(json!({"token": token, "expirationTimestamp": end.to_string()}))
}

/// Name and UID of the Secret that a token is bound to.
fn bound(server: &ApiServer, ask: &Ask, reference: &Value) -> Result<Option<(String, String)>, Failure> {
    if reference["kind"] != "Secret" {
        return Ok(None);
    }
    let name = reference["name"].as_str().unwrap_or_default();
    let kind = sim_apimachinery::builtin::find("v1", "Secret").expect("every cluster has Secrets");
    let found = server.0.store.get("secrets", &Key::new(ask.namespace(), name));
    let Some(found) = found else { return Err(Failure::not_found(kind, name)) };
    if reference["uid"].as_str().is_some_and(|uid| !uid.is_empty() && uid != found.uid()) {
        return Err(Failure::bad_request(
            "the UID in the bound object reference does not match the UID in record",
        ));
    }
    Ok(Some((name.to_owned(), found.uid().to_owned())))
}
