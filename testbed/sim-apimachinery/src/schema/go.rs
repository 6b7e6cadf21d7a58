//! The Go types behind built-in kinds, as far as decoding errors show them.

use std::sync::LazyLock;

use base64::Engine;
use serde_json::Value;

use super::{Schema, Type};

const QUANTITY: &str = "^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$";
static QUANTITIES: LazyLock<regex::Regex> =
    LazyLock::new(|| regex::Regex::new(QUANTITY).expect("the pattern of quantities is one"));

impl Schema {
    pub(crate) fn holds_object(&self) -> bool {
        self.r#type == Type::Object
    }

    pub(crate) fn holds_list(&self) -> bool {
        self.r#type == Type::Array
    }

    pub(crate) fn is_go_integer(&self) -> bool {
        matches!(self.r#type, Type::Integer | Type::IntOrString)
    }

    /// The name of the struct that holds the fields.
    pub(crate) fn go_struct(&self) -> Option<&'static str> {
        Some(self.go).filter(|name| !name.is_empty() && self.holds_object())
    }

    /// The type as Go prints it.
    pub(crate) fn go_type(&self) -> String {
        match (self.r#type, &self.items, &self.additional) {
            (Type::Object, _, Some(value)) => format!("map[string]{}", value.go_type()),
            (Type::Object, ..) => format!("v1.{}", self.go),
            (Type::Array, Some(item), _) => format!("[]{}", item.go_type()),
            (Type::String, ..) if self.go == "bytes" => "[]uint8".to_owned(),
            (Type::String, ..) => "string".to_owned(),
            _ => self.go.to_owned(),
        }
    }

    /// Why Go could not decode the scalar: an empty text for a type mismatch, its own words for a bad form.
    pub(crate) fn go_scalar_fault(&self, value: &Value) -> Option<String> {
        let mismatch = || Some(String::new());
        match (self.r#type, self.go, value) {
            (Type::Any, "quantity", Value::String(text)) => {
                let fault = format!("quantities must match the regular expression '{QUANTITY}'");
                (!QUANTITIES.is_match(text)).then_some(fault)
            }
            (Type::Any, ..)
            | (Type::String, "string", Value::String(_))
            | (Type::Number, _, Value::Number(_)) => None,
            (Type::String, "bytes", Value::String(text)) => base64::engine::general_purpose::STANDARD
                .decode(text)
                .err()
                .map(|error| format!("illegal base64 data at input byte {}", fault_at(&error))),
            (Type::String, "time" | "microtime", Value::String(text)) => {
                let layout = if self.go == "time" { "" } else { ".000000" };
                (!text.is_empty() && text.parse::<jiff::Timestamp>().is_err()).then(|| {
                    format!(
                        "parsing time {text:?} as \"2006-01-02T15:04:05{layout}Z07:00\": cannot parse {text:?} as \
                         \"2006\""
                    )
                })
            }
            (Type::Integer, "int32", Value::Number(n)) => {
                if n.as_i64().is_some_and(|n| i32::try_from(n).is_ok()) { None } else { mismatch() }
            }
            (Type::Integer, _, Value::Number(n)) if n.is_i64() => None,
            (Type::IntOrString, _, Value::String(_)) => None,
            (Type::IntOrString, _, Value::Number(n))
                if n.as_i64().is_some_and(|n| i32::try_from(n).is_ok()) =>
            {
                None
            }
            (Type::Boolean, _, Value::Bool(_)) => None,
            (_, "", Value::String(_)) if self.r#type == Type::String => None,
            _ => mismatch(),
        }
    }
}

fn fault_at(error: &base64::DecodeError) -> usize {
    match error {
        base64::DecodeError::InvalidByte(at, _) | base64::DecodeError::InvalidLastSymbol(at, _) => *at,
        base64::DecodeError::InvalidLength(length) => *length,
        base64::DecodeError::InvalidPadding => 0,
    }
}
