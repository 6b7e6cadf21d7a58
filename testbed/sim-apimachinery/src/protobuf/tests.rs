use serde_json::json;

use super::*;

fn vectors() -> Vec<Value> {
    serde_json::from_str(include_str!("../../tests/vectors/protobuf.json")).unwrap()
}

fn body(vector: &Value) -> Vec<u8> {
    base64::engine::general_purpose::STANDARD.decode(vector["body"].as_str().unwrap()).unwrap()
}

/// Go prints some empty parts and leaves others out; nobody can tell from the bytes.
fn without_empty(value: &Value) -> Value {
    let kept = |value: &Value| {
        !value.is_null()
            && value != ""
            && !value.as_object().is_some_and(Map::is_empty)
            && !value.as_array().is_some_and(Vec::is_empty)
    };
    match value {
        Value::Object(map) => {
            map.iter().map(|(k, v)| (k.clone(), without_empty(v))).filter(|(_, v)| kept(v)).collect()
        }
        Value::Array(items) => items.iter().map(without_empty).collect(),
        scalar => scalar.clone(),
    }
}

#[test]
fn bodies_of_kubectl_and_of_the_real_server_decode_to_their_json() {
    let mut compared = 0;
    for vector in vectors() {
        let object = decode(&body(&vector)).unwrap_or_else(|error| panic!("{} {error}", vector["name"]));
        if vector["json"].is_object() {
            let (mut ours, mut theirs) = (without_empty(&object), without_empty(&vector["json"]));
            if vector["name"].as_str().unwrap().starts_with("kubectl") {
                // a status of nothing but zeros, which no client means
                for object in [&mut ours, &mut theirs] {
                    object.as_object_mut().unwrap().remove("status");
                }
            }
            assert_eq!(ours, theirs, "{}", vector["name"]);
            compared += 1;
        }
    }
    assert!(compared > 35, "{compared}");
}

#[test]
fn questions_about_rights_are_read() {
    let find = |path: &str| {
        decode(&body(vectors().iter().find(|v| v["name"].as_str().unwrap().contains(path)).unwrap()))
    };
    let review = find("selfsubjectaccessreviews").unwrap();
    assert_eq!(
        review["spec"]["resourceAttributes"],
        json!({"namespace": "default", "verb": "get", "resource": "pods"})
    );
    assert_eq!(find("selfsubjectrulesreviews").unwrap()["spec"]["namespace"], "default");
    assert_eq!(find("serviceaccounts/ksa/token").unwrap()["spec"]["expirationSeconds"], 600);
    assert_eq!(find("selfsubjectreviews").unwrap()["kind"], "SelfSubjectReview");
}

#[test]
fn what_is_no_such_body_is_refused_with_its_reason() {
    assert_eq!(decode(b"{}"), Err(Error::NotKubernetes));
    assert!(matches!(decode(b"k8s\0"), Err(Error::UnknownKind { .. })));
    assert_eq!(decode(b"k8s\0\x12\x05a"), Err(Error::Malformed("it ends too early")));
    assert_eq!(decode(b"k8s\0\x0b"), Err(Error::Malformed("an unknown wire type")));
    assert_eq!(
        decode(b"k8s\0\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"),
        Err(Error::Malformed("a number that does not end"))
    );
}

/// Returns the size of a value; each field of a message costs at least two bytes of the body.
fn size(value: &Value) -> usize {
    1 + match value {
        Value::Object(map) => map.values().map(size).sum(),
        Value::Array(items) => items.iter().map(size).sum(),
        Value::String(text) => text.len() / 2,
        _ => 0,
    }
}

fn of_kind(api_version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
    let mut body = b"k8s\0".to_vec();
    let field = |number: u8, bytes: &[u8]| {
        let mut field = vec![number << 3 | 2];
        let mut length = bytes.len();
        while length > 127 {
            field.push((length & 127) as u8 | 128);
            length >>= 7;
        }
        field.push(length as u8);
        field.extend(bytes);
        field
    };
    let meta = [field(1, api_version.as_bytes()), field(2, kind.as_bytes())].concat();
    body.extend(field(1, &meta));
    body.extend(field(2, raw));
    body
}

proptest::proptest! {
    #[test]
    fn no_bytes_break_it(raw: Vec<u8>, at in 0_usize..400, flip: u8, which in 0_usize..60) {
        drop(decode(&raw));
        for (api_version, kind) in [("v1", "Service"), ("apps/v1", "Deployment"), ("v1", "Event"), ("apiextensions.k8s.io/v1", "CustomResourceDefinition")] {
            let body = of_kind(api_version, kind, &raw);
            if let Ok(object) = decode(&body) {
                proptest::prop_assert!(size(&object) <= 8 + 4 * body.len());
            }
        }
        let vectors = vectors();
        let mut body = body(&vectors[which % vectors.len()]);
        let at = at % body.len();
        body[at] ^= flip;
        drop(decode(&body));
    }
}
