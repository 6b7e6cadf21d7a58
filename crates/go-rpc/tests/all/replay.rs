//! Every vector decodes to the value beside it, and comes back equal after encoding and decoding.

use go_rpc::{
    DecodeError, Decoder, Encoder, FromGob, Interface, Kind, Limits, Mismatch, Type, Typed, Value,
    gob_struct, next_value,
};
use serde_json::{Map, Value as Json, json};

use crate::corpus::{SESSIONS, decode, file, streams, unhex};

/// The value as JSON, with the zero fields that the wire leaves out.
fn to_json(of: &Type, value: &Value) -> Json {
    match value {
        Value::Bool(value) => json!(value),
        Value::Int(value) => json!(value),
        Value::Uint(value) => json!(value),
        Value::Float(value) => json!(value),
        Value::Bytes(bytes) => json!(String::from_utf8(bytes.clone()).unwrap()),
        Value::String(text) => json!(text.to_str().unwrap()),
        Value::List(items) => {
            let element = of.element().unwrap();
            items.iter().map(|item| to_json(&element, item)).collect()
        }
        Value::Map(pairs) => {
            let (key, element) = (String::from_value, of.element().unwrap());
            let pair = |(k, v): &(Value, Value)| (key(k.clone()).unwrap(), to_json(&element, v));
            Json::Object(pairs.iter().map(pair).collect())
        }
        Value::Struct(fields) => {
            let all = of.fields().map(|(name, of)| {
                let value = fields.get(name).map_or_else(|| zero(&of), |value| to_json(&of, value));
                (name.to_owned(), value)
            });
            Json::Object(all.collect::<Map<_, _>>())
        }
        Value::Interface(None) => Json::Null,
        Value::Interface(Some(held)) => to_json(&held.holds.of, &held.holds.value),
        Value::Complex(..) | Value::Opaque(_) => panic!("no vector has {value:?}"),
    }
}

fn zero(of: &Type) -> Json {
    match of.kind() {
        Kind::Bool => json!(false),
        Kind::Int | Kind::Uint => json!(0),
        Kind::String => json!(""),
        Kind::Map => json!({}),
        Kind::Slice => json!([]),
        kind => panic!("no vector leaves out a {kind:?}"),
    }
}

fn again(typed: &Typed) -> Typed {
    let mut bytes = Vec::new();
    Encoder::new().encode_typed(typed, &mut bytes).unwrap();
    let (mut values, error) = decode(Limits::default(), &bytes);
    assert_eq!((values.len(), error), (1, None));
    values.remove(0)
}

#[test]
fn every_value_of_every_vector_comes_back_equal() {
    let mut seen = 0;
    for stream in streams() {
        let (values, _) = decode(Limits::default(), &stream);
        // also on one stream, where later values find their types described
        let (mut encoder, mut bytes) = (Encoder::new(), Vec::new());
        for typed in &values {
            assert_eq!(&again(typed), typed);
            encoder.encode_typed(typed, &mut bytes).unwrap();
        }
        seen += values.len();
        assert_eq!(decode(Limits::default(), &bytes), (values, None));
    }
    assert!(seen > 300, "{seen} values");
}

#[test]
fn single_values_decode_to_what_stands_beside_them() {
    for vector in file("02-values.json") {
        let calls = vector["encode_calls"].as_array().unwrap();
        let stream: Vec<u8> = calls.iter().flat_map(unhex).collect();
        let (values, error) = decode(Limits::default(), &stream);
        assert_eq!((values.len(), error), (calls.len(), None), "{}", vector["name"]);
        if let Some(expected) = vector.get("decoded") {
            let found = to_json(&values[0].of, &values[0].value);
            let found =
                if vector["name"].as_str().unwrap().starts_with("opts-") { &found["Values"] } else { &found };
            assert_eq!(found, expected, "{}", vector["name"]);
        }
    }
}

#[derive(Debug, Default, PartialEq)]
struct StringFlag {
    name: String,
    usage: String,
    env_var: String,
    value: String,
}
gob_struct!(StringFlag as "StringFlag" {
    name => "Name", usage => "Usage", env_var => "EnvVar", value => "Value",
});

#[derive(Debug, Default, PartialEq)]
struct IntFlag {
    name: String,
    usage: String,
    env_var: String,
    value: i64,
}
gob_struct!(IntFlag as "IntFlag" { name => "Name", usage => "Usage", env_var => "EnvVar", value => "Value" });

#[derive(Debug, Default, PartialEq)]
struct BoolFlag {
    name: String,
    usage: String,
    env_var: String,
}
gob_struct!(BoolFlag as "BoolFlag" { name => "Name", usage => "Usage", env_var => "EnvVar" });

#[derive(Debug, Default, PartialEq)]
struct Response {
    service_method: String,
    seq: u64,
    error: String,
}
gob_struct!(Response as "Response" { service_method => "ServiceMethod", seq => "Seq", error => "Error" });

#[derive(Debug)]
enum Refused {
    Bytes,
    Value,
}

impl From<DecodeError> for Refused {
    fn from(_: DecodeError) -> Self {
        Self::Bytes
    }
}

impl From<Mismatch> for Refused {
    fn from(_: Mismatch) -> Self {
        Self::Value
    }
}

/// Receives a list of flags as a Go program would that has registered three kinds.
fn flags(value: Value) -> Result<Json, Refused> {
    let flags = Vec::<Option<Interface>>::from_value(value)?;
    let flag = |flag: Option<Interface>| {
        let flag = flag.ok_or(Refused::Value)?;
        let value = flag.holds.value;
        Ok(match flag.name.as_str() {
            "*mcnflag.StringFlag" => {
                let f = StringFlag::from_value(value)?;
                json!({"Name": f.name, "Usage": f.usage, "EnvVar": f.env_var, "Value": f.value})
            }
            "*mcnflag.IntFlag" => {
                let f = IntFlag::from_value(value)?;
                json!({"Name": f.name, "Usage": f.usage, "EnvVar": f.env_var, "Value": f.value})
            }
            "*mcnflag.BoolFlag" => {
                let f = BoolFlag::from_value(value)?;
                json!({"Name": f.name, "Usage": f.usage, "EnvVar": f.env_var})
            }
            _ => return Err(Refused::Value),
        })
    };
    flags.into_iter().map(flag).collect()
}

fn received(name: &str, bytes: &[u8]) -> Result<Json, Refused> {
    let mut decoder = Decoder::new(Limits::default());
    let typed = next_value(&mut decoder, &mut &*bytes)?.expect("every vector has bytes");
    let value = typed.value;
    Ok(match name.split('-').next().unwrap() {
        "flag" | "flags" | "slice" | "duplicate" | "descriptor" | "uint" => flags(value)?,
        "response" => {
            let r = Response::from_value(value)?;
            json!({"ServiceMethod": r.service_method, "Seq": r.seq, "Error": r.error})
        }
        "discarded" => {
            <()>::from_value(value)?;
            json!("discarded")
        }
        "opts" => {
            let options = Option::<Interface>::from_value(value)?.ok_or(Refused::Value)?;
            assert_eq!(options.name, "*rpcdriver.RPCFlags");
            to_json(&options.holds.of, &options.holds.value)
        }
        "body" => match name {
            "body-string" => json!(String::from_value(value)?),
            "body-bytes" | "body-bytes-as-string" => {
                use base64::Engine;
                json!(base64::engine::general_purpose::STANDARD.encode(Vec::<u8>::from_value(value)?))
            }
            _ => json!(i64::from_value(value)?),
        },
        _ => panic!("a vector of a new kind: {name}"),
    })
}

#[test]
fn what_gos_decoder_accepts_and_refuses_so_does_ours() {
    for vector in file("09-accepted-by-go.json") {
        let name = vector["name"].as_str().unwrap();
        let result = received(name, &unhex(&vector["hex"]));
        if vector["go_decoder"].as_str().unwrap().starts_with("rejects") {
            result.expect_err(name);
            continue;
        }
        let found = result.expect(name);
        if let Some(expected) = vector.get("decoded").filter(|expected| !expected.is_null()) {
            assert_eq!(&found, expected, "{name}");
        }
        if let Some(count) = vector.get("decoded_count") {
            assert_eq!(found.as_array().unwrap().len() as u64, count.as_u64().unwrap(), "{name}");
        }
    }
}

fn check_session(name: &str) {
    let session = file(name);
    let calls: Vec<&Json> = session.iter().filter(|step| step.get("call").is_some()).collect();
    let (mut to, mut from) = (Decoder::new(Limits::default()), Decoder::new(Limits::default()));
    for (seq, step) in calls.iter().enumerate() {
        let call = &step["call"];
        let request = unhex(&step["request"]);
        let mut request = &request[..];
        let header = next_value(&mut to, &mut request).unwrap().unwrap();
        assert_eq!(to_json(&header.of, &header.value), json!({"ServiceMethod": call, "Seq": seq}));
        let argument = next_value(&mut to, &mut request).unwrap().unwrap();
        if let Some(expected) = step.get("argument") {
            assert_eq!(&to_json(&argument.of, &argument.value)["Values"], expected, "{name} {call}");
        }
        assert_eq!(request.len(), 0);

        let response = unhex(&step["response"]);
        let mut response = &response[..];
        let header = next_value(&mut from, &mut response).unwrap().unwrap();
        let error = step.get("result_error").cloned().unwrap_or(json!(""));
        assert_eq!(
            to_json(&header.of, &header.value),
            json!({"ServiceMethod": call, "Seq": seq, "Error": error}),
            "{name}"
        );
        let body = next_value(&mut from, &mut response).unwrap().unwrap();
        assert_eq!(response.len(), 0);
        match step.get("result") {
            None => {}
            Some(Json::Object(result)) if result.contains_key("bytes_utf8") => {
                assert_eq!(to_json(&body.of, &body.value), result["bytes_utf8"], "{name} {call}");
            }
            Some(Json::Object(result)) if result["flags"].is_number() => {
                let count = flags(body.value).unwrap().as_array().unwrap().len();
                assert_eq!(json!(count), result["flags"], "{name} {call}");
            }
            Some(Json::Object(result)) => assert_eq!(flags(body.value).unwrap(), result["flags"]),
            Some(Json::String(text)) if text.starts_with("no value") => {
                assert_eq!(to_json(&body.of, &body.value), json!({}), "{name} {call}");
            }
            Some(result) => assert_eq!(&to_json(&body.of, &body.value), result, "{name} {call}"),
        }
    }
}

#[test]
fn sessions_decode_to_what_stands_beside_them() {
    for name in SESSIONS {
        check_session(name);
    }
}
