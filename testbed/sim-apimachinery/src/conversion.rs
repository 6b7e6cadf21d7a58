//! Conversion of a custom resource by a webhook: the review that it is asked with, and what its answer must be like.
//!
//! A real server asks for one object at a time, because it reads its storage object by object. Of the metadata an answer
//! changes labels and annotations alone.

use serde_json::{Map, Value, json};

use crate::json::text;
use crate::validate::metadata::{annotation_faults, label_faults};

const API_VERSION: &str = "apiextensions.k8s.io/v1";
const KIND: &str = "ConversionReview";

/// The review that asks for `object` in another version; nothing where the webhook reads no version that we write.
pub fn review(webhook: &Value, uid: &str, to: &str, object: &Value) -> Option<Value> {
    let reads = webhook["conversionReviewVersions"].as_array()?.iter().any(|version| version == "v1");
    reads.then(|| {
        json!({"apiVersion": API_VERSION, "kind": KIND,
            "request": {"uid": uid, "desiredAPIVersion": to, "objects": [object]}})
    })
}

/// The beginning of every sentence about the conversion of an object.
pub fn subject(object: &Value) -> String {
    format!("conversion webhook for {}", kind_of(object))
}

fn kind_of(object: &Value) -> String {
    format!("{}, Kind={}", text(&object["apiVersion"]), text(&object["kind"]))
}

/// The object in an answer to the review with this UID.
///
/// # Errors
/// What the client of the server is told: the webhook's own words, or what is wrong with its answer.
pub fn converted(object: &Value, uid: &str, to: &str, mut answer: Value) -> Result<Value, String> {
    let subject = subject(object);
    let failed = |why: String| format!("{subject} failed: {why}");
    if answer["apiVersion"] != API_VERSION || answer["kind"] != KIND {
        let why =
            format!("expected webhook response of {API_VERSION}, Kind={KIND}, got {}", kind_of(&answer));
        return Err(failed(why));
    }
    let response = &mut answer["response"];
    if response.is_null() {
        return Err(failed("no response provided".to_owned()));
    }
    if response["uid"] != uid {
        return Err(failed(format!("expected response.uid={uid:?}, got {:?}", text(&response["uid"]))));
    }
    let result = &response["result"];
    if result["status"] != "Success" {
        return Err(failed(match text(&result["message"]) {
            "" => format!("response.result.status was '{}', not 'Success'", text(&result["status"])),
            message => message.to_owned(),
        }));
    }
    let mut objects = match response["convertedObjects"].take() {
        Value::Array(objects) => objects,
        _ => vec![],
    };
    if objects.len() != 1 {
        return Err(format!("{subject} returned {} objects, expected 1", objects.len()));
    }
    let converted = objects.remove(0);
    let at_first = |what: &str, expected: &str, received: &str| {
        Err(format!(
            "{subject} returned invalid object at index 0: invalid {what} (expected {expected}, received {received})"
        ))
    };
    if converted["apiVersion"] != to {
        return at_first("groupVersion", to, text(&converted["apiVersion"]));
    }
    if converted["kind"] != object["kind"] {
        return at_first("kind", text(&object["kind"]), text(&converted["kind"]));
    }
    same_object(object, &converted).map_err(|why| format!("{subject} returned invalid object: {why}"))?;
    with_metadata(object, converted).map_err(|why| format!("{subject} returned invalid metadata: {why}"))
}

fn same_object(object: &Value, converted: &Value) -> Result<(), String> {
    for (field, name) in [("name", "name"), ("namespace", "namespace"), ("uid", "UID")] {
        let [was, is] = [object, converted].map(|object| text(&object["metadata"][field]));
        if was != is {
            return Err(format!("must have the same {name}: {was} != {is}"));
        }
    }
    Ok(())
}

/// The metadata of the object as it was, with labels and annotations of the answer.
fn with_metadata(object: &Value, mut converted: Value) -> Result<Value, String> {
    let mut metadata = object["metadata"].as_object().cloned().unwrap_or_default();
    let given = match converted["metadata"].take() {
        Value::Object(given) => given,
        Value::Null => return Err("missing metadata in converted object".to_owned()),
        _ => return Err("invalid metadata in converted object".to_owned()),
    };
    for field in ["labels", "annotations"] {
        match given.get(field) {
            None | Some(Value::Null) => {
                metadata.remove(field);
            }
            Some(Value::Object(texts)) => {
                check(field, texts)?;
                metadata.insert(field.to_owned(), texts.clone().into());
            }
            Some(_) => return Err(format!("invalid metadata.{field} in converted object")),
        }
    }
    converted["metadata"] = metadata.into();
    Ok(converted)
}

fn check(field: &str, texts: &Map<String, Value>) -> Result<(), String> {
    if let Some((key, _)) = texts.iter().find(|(_, value)| !value.is_string()) {
        return Err(format!("metadata.{field}[{key}] must be a string in converted object"));
    }
    let texts = Value::Object(texts.clone());
    let causes = if field == "labels" {
        label_faults("metadata.labels", &texts)
    } else {
        let (faults, too_long) = annotation_faults("metadata.annotation", &texts);
        faults.into_iter().chain(too_long).collect()
    };
    let causes: Vec<String> =
        causes.into_iter().map(|cause| format!("{}: {}", cause.field, cause.message)).collect();
    match causes.len() {
        0 => Ok(()),
        1 => Err(causes.concat()),
        _ => Err(format!("[{}]", causes.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn kept() -> Value {
        json!({"apiVersion": "example.com/v1", "kind": "Widget", "spec": {"size": 1}, "metadata": {
            "name": "a", "namespace": "shop", "uid": "u-1", "resourceVersion": "7", "labels": {"x": "y"}}})
    }

    fn of_another_version() -> Value {
        json!({"apiVersion": "example.com/v2", "kind": "Widget", "spec": {"length": 1}, "metadata": {
            "name": "a", "namespace": "shop", "uid": "u-1", "annotations": {"was": "1"}}})
    }

    fn answer(response: &Value) -> Value {
        let mut answer = json!({"apiVersion": API_VERSION, "kind": KIND, "response": {"uid": "r-1",
            "result": {"status": "Success"}, "convertedObjects": [of_another_version()]}});
        json_patch::merge(&mut answer["response"], response);
        answer
    }

    fn outcome(answer: Value) -> Result<Value, String> {
        converted(&kept(), "r-1", "example.com/v2", answer)
    }

    #[test]
    fn an_answer_changes_everything_but_the_metadata_beside_labels_and_annotations() {
        let expected = json!({"apiVersion": "example.com/v2", "kind": "Widget", "spec": {"length": 1}, "metadata": {
            "name": "a", "namespace": "shop", "uid": "u-1", "resourceVersion": "7", "annotations": {"was": "1"}}});
        assert_eq!(outcome(answer(&json!({}))), Ok(expected));
    }

    // the sentences of kube-apiserver 1.36
    #[rstest]
    #[case::refusal(json!({"result": {"status": "Failure", "message": "no"}}), "failed: no")]
    #[case::refusal_in_silence(json!({"result": {"status": "Failure"}}), "failed: response.result.status was 'Failure', not 'Success'")]
    #[case::of_another_review(json!({"uid": "r-2"}), r#"failed: expected response.uid="r-1", got "r-2""#)]
    #[case::too_few(json!({"convertedObjects": null}), "returned 0 objects, expected 1")]
    #[case::too_many(json!({"convertedObjects": [1, 2]}), "returned 2 objects, expected 1")]
    #[case::version(json!({"convertedObjects": [kept()]}),
        "returned invalid object at index 0: invalid groupVersion (expected example.com/v2, received example.com/v1)")]
    fn what_is_wrong_with_an_answer_is_said(#[case] response: Value, #[case] expected: &str) {
        let expected = format!("conversion webhook for example.com/v1, Kind=Widget {expected}");
        assert_eq!(outcome(answer(&response)), Err(expected));
    }

    #[rstest]
    #[case::kind("/kind", json!("Gadget"), "object at index 0: invalid kind (expected Widget, received Gadget)")]
    #[case::name("/metadata/name", json!("b"), "object: must have the same name: a != b")]
    #[case::namespace("/metadata/namespace", json!("x"), "object: must have the same namespace: shop != x")]
    #[case::uid("/metadata/uid", json!("u-2"), "object: must have the same UID: u-1 != u-2")]
    #[case::annotation("/metadata/annotations/was", json!(1),
        "metadata: metadata.annotations[was] must be a string in converted object")]
    #[case::annotations("/metadata/annotations/was", json!("x".repeat(262_144)),
        "metadata: metadata.annotation: Too long: may not be more than 262144 bytes")]
    fn an_answer_makes_no_other_object(#[case] at: &str, #[case] value: Value, #[case] expected: &str) {
        let mut object = of_another_version();
        *object.pointer_mut(at).unwrap() = value;
        let expected =
            format!("conversion webhook for example.com/v1, Kind=Widget returned invalid {expected}");
        assert_eq!(outcome(answer(&json!({"convertedObjects": [object]}))), Err(expected));
    }

    #[test]
    fn a_webhook_that_reads_no_version_of_ours_is_not_asked() {
        let webhook = |versions: &[&str]| json!({"conversionReviewVersions": versions});
        assert!(review(&webhook(&["v1beta1"]), "r", "example.com/v2", &kept()).is_none());
        let review = review(&webhook(&["v2", "v1"]), "r", "example.com/v2", &kept()).unwrap();
        assert_eq!(
            review["request"],
            json!({"uid": "r", "desiredAPIVersion": "example.com/v2", "objects": [kept()]})
        );
    }
}
