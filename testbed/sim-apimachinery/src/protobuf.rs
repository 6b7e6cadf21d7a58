//! Bodies in Kubernetes' protobuf, which kubectl's `create` and typed Go clients send: decoded to JSON.
//!
//! ```text
//! "k8s\0" ─► Unknown{typeMeta = 1 {apiVersion = 1, kind = 2}, raw = 2} ─► the object, by the table of crate::types
//! ```
//! Only reading: whoever sends protobuf accepts JSON in the answer. The work and the result are linear in the length of
//! the body; depth is bounded. What Go leaves out of its JSON (empty texts, zeros, nulls) is left out here.

use base64::Engine;
use serde_json::{Map, Value};

use crate::{
    kind::group_version,
    types::{Field, Message, MessageId, Type, types},
};

use wire::{Fault, Reader, Scalar};

mod wire;

/// Content type of such bodies.
pub const MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf";

/// Maximum depth of nested messages.
const MAX_DEPTH: usize = 64;

/// Why a body could not be decoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The four bytes at the beginning are missing.
    #[error("the body is no Kubernetes protobuf: it does not begin with k8s and a zero byte")]
    NotKubernetes,
    /// The object is of a kind that has no table.
    #[error("no protobuf form of kind {kind:?} in {api_version:?} is known; send JSON")]
    UnknownKind {
        /// As the body says.
        api_version: String,
        /// As the body says.
        kind: String,
    },
    /// The bytes are no such message.
    #[error("the protobuf body is malformed: {0}")]
    Malformed(&'static str),
    /// A field whose protobuf form is not read here.
    #[error("field {0} cannot be read from protobuf; send JSON")]
    Unsupported(&'static str),
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        Self::Malformed(fault.0)
    }
}

/// Decodes a body to the object as JSON, with `apiVersion` and `kind`.
///
/// # Errors
/// If it is no such body, or of a kind that is not known.
pub fn decode(body: &[u8]) -> Result<Value, Error> {
    let unknown = body.strip_prefix(b"k8s\0").ok_or(Error::NotKubernetes)?;
    let (mut api_version, mut kind, mut raw) = (String::new(), String::new(), &[][..]);
    let mut reader = Reader(unknown);
    while let Some((number, scalar)) = reader.next()? {
        match number {
            1 => {
                let mut meta = Reader(scalar.bytes()?);
                while let Some((number, scalar)) = meta.next()? {
                    match number {
                        1 => api_version = scalar.text()?.to_owned(),
                        2 => kind = scalar.text()?.to_owned(),
                        _ => {}
                    }
                }
            }
            2 => raw = scalar.bytes()?,
            _ => {}
        }
    }
    let Some(id) = types().of_kind(group_version(&api_version).0, &kind) else {
        return Err(Error::UnknownKind { api_version, kind });
    };
    let mut object = Map::new();
    object.insert("apiVersion".to_owned(), api_version.into());
    object.insert("kind".to_owned(), kind.into());
    fill(&mut object, types().get(id), raw, 0)?;
    Ok(Value::Object(object))
}

fn message(id: MessageId, bytes: &[u8], depth: usize) -> Result<Value, Error> {
    let mut object = Map::new();
    fill(&mut object, types().get(id), bytes, depth)?;
    Ok(Value::Object(object))
}

/// Reads the fields of a message into the object.
fn fill(object: &mut Map<String, Value>, message: &Message, bytes: &[u8], depth: usize) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(Error::Malformed("too deep"));
    }
    let mut reader = Reader(bytes);
    while let Some((number, scalar)) = reader.next()? {
        // a newer client's fields are unknown ones
        let Some(field) = message.fields.iter().find(|field| field.number == number) else { continue };
        add(object, field, scalar, depth + 1)?;
    }
    Ok(())
}

fn add(
    object: &mut Map<String, Value>,
    field: &Field,
    scalar: Scalar<'_>,
    depth: usize,
) -> Result<(), Error> {
    match &field.r#type {
        Type::List(item) => {
            let list = object.entry(field.name).or_insert_with(|| Value::Array(Vec::new()));
            let Value::Array(items) = list else { return Err(Error::Malformed("a field in two forms")) };
            match (&**item, scalar) {
                // numbers may come packed
                (Type::Int32 | Type::Int64, Scalar::Bytes(packed)) => {
                    let mut reader = Reader(packed);
                    while !reader.0.is_empty() {
                        items.push(signed(reader.varint()?).into());
                    }
                }
                (item, scalar) => items.push(value(field.name, item, scalar, depth)?),
            }
        }
        Type::Map(inner) => {
            let map = object.entry(field.name).or_insert_with(|| Value::Object(Map::new()));
            let Value::Object(map) = map else { return Err(Error::Malformed("a field in two forms")) };
            let (mut key, mut entry) = (String::new(), None);
            let mut reader = Reader(scalar.bytes()?);
            while let Some((number, scalar)) = reader.next()? {
                match number {
                    1 => key = scalar.text()?.to_owned(),
                    2 => entry = Some(map_value(field.name, inner, scalar, depth)?),
                    _ => {}
                }
            }
            map.insert(key, entry.unwrap_or_else(|| absent(inner)));
        }
        Type::Message(id) if field.inline => fill(object, types().get(*id), scalar.bytes()?, depth)?,
        Type::Message(id) => {
            // a message in two parts is merged
            match object.get_mut(field.name) {
                Some(Value::Object(known)) => fill(known, types().get(*id), scalar.bytes()?, depth)?,
                _ => {
                    object.insert(field.name.to_owned(), message(*id, scalar.bytes()?, depth)?);
                }
            }
        }
        other => {
            let value = value(field.name, other, scalar, depth)?;
            if field.pointer || field.required || !is_zero(&value) {
                object.insert(field.name.to_owned(), value);
            }
        }
    }
    Ok(())
}

/// Returns whether Go's `omitempty` leaves the value out.
fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(flag) => !flag,
        Value::Number(n) => n.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(_) => false,
    }
}

fn absent(r#type: &Type) -> Value {
    match r#type {
        Type::String | Type::Bytes => "".into(),
        Type::List(_) => Value::Array(Vec::new()),
        Type::Message(_) => Value::Object(Map::new()),
        _ => Value::Null,
    }
}

/// Lists as values of maps have a message of their own around them.
fn map_value(name: &'static str, r#type: &Type, scalar: Scalar<'_>, depth: usize) -> Result<Value, Error> {
    let Type::List(item) = r#type else { return value(name, r#type, scalar, depth) };
    let mut items = Vec::new();
    let mut reader = Reader(scalar.bytes()?);
    while let Some((number, scalar)) = reader.next()? {
        if number == 1 {
            items.push(value(name, item, scalar, depth)?);
        }
    }
    Ok(Value::Array(items))
}

fn value(name: &'static str, r#type: &Type, scalar: Scalar<'_>, depth: usize) -> Result<Value, Error> {
    Ok(match r#type {
        Type::String => scalar.text()?.into(),
        Type::Bool => (scalar.number()? != 0).into(),
        Type::Int32 | Type::Int64 => signed(scalar.number()?).into(),
        Type::Double => f64::from_bits(scalar.number()?).into(),
        Type::Bytes => base64::engine::general_purpose::STANDARD.encode(scalar.bytes()?).into(),
        Type::Time => time(scalar.bytes()?, 0)?,
        Type::MicroTime => time(scalar.bytes()?, 6)?,
        Type::Quantity => match wire::field(scalar.bytes()?, 1)? {
            Some(text) => text.text()?.into(),
            None => "0".into(),
        },
        Type::IntOrString => int_or_string(scalar.bytes()?)?,
        Type::Any => match wire::field(scalar.bytes()?, 1)? {
            Some(raw) => {
                serde_json::from_slice(raw.bytes()?).map_err(|_| Error::Malformed("no JSON inside"))?
            }
            None => Value::Null,
        },
        Type::Union | Type::List(_) | Type::Map(_) => return Err(Error::Unsupported(name)),
        Type::Message(id) => message(*id, scalar.bytes()?, depth)?,
    })
}

fn signed(number: u64) -> i64 {
    number.cast_signed()
}

/// `Time{seconds = 1, nanos = 2}`; Go's zero time is null.
fn time(bytes: &[u8], precision: u8) -> Result<Value, Error> {
    let (mut seconds, mut nanos) = (0, 0);
    let mut reader = Reader(bytes);
    while let Some((number, scalar)) = reader.next()? {
        match number {
            1 => seconds = signed(scalar.number()?),
            2 => nanos = signed(scalar.number()?),
            _ => {}
        }
    }
    const YEAR_1: i64 = -62_135_596_800;
    if (seconds == 0 && nanos == 0) || seconds == YEAR_1 {
        return Ok(Value::Null);
    }
    let time = i32::try_from(nanos).ok().and_then(|nanos| jiff::Timestamp::new(seconds, nanos).ok());
    let time = time.ok_or(Error::Malformed("a time out of range"))?;
    let cut = if precision == 0 { jiff::Unit::Second } else { jiff::Unit::Microsecond };
    let cut = jiff::TimestampRound::new().smallest(cut).mode(jiff::RoundMode::Trunc);
    let time = time.round(cut).map_err(|_| Error::Malformed("a time out of range"))?;
    Ok(format!("{time:.*}", usize::from(precision)).into())
}

/// `IntOrString{type = 1, intVal = 2, strVal = 3}`.
fn int_or_string(bytes: &[u8]) -> Result<Value, Error> {
    let (mut is_text, mut number, mut text) = (false, 0, "");
    let mut reader = Reader(bytes);
    while let Some((field, scalar)) = reader.next()? {
        match field {
            1 => is_text = scalar.number()? == 1,
            2 => number = signed(scalar.number()?),
            3 => text = scalar.text()?,
            _ => {}
        }
    }
    Ok(if is_text { text.into() } else { number.into() })
}

#[cfg(test)]
mod tests;
