//! Rust types that Go knows, too.
//!
//! | Rust | Go |
//! |---|---|
//! | `bool`, `String`, `f64`, `Vec<u8>` | `bool`, `string`, `float64`, `[]byte` |
//! | `i64`, `i32` / `u64`, `u32` | any signed / unsigned integer |
//! | `Vec<T>` | `[]T` |
//! | `BTreeMap<String, T>` | `map[string]T` |
//! | `()` | `struct{}`, and what a caller discards |
//! | `Option<Interface>` | an interface; `None` is nil |
//! | a struct with [`gob_struct!`](crate::gob_struct) | a struct |

use std::collections::BTreeMap;

use crate::types::Type;
use crate::value::{GoString, Interface, Struct, Typed, Value};

/// A Rust type with a type of Go that it is sent as.
pub trait ToGob {
    /// The type on the wire.
    fn gob_type() -> Type;

    /// The value on the wire; always one of [`Self::gob_type`].
    fn to_value(&self) -> Value;

    /// Value and type.
    fn to_typed(&self) -> Typed {
        Typed { of: Self::gob_type(), value: self.to_value() }
    }
}

/// A Rust type that can be read from what Go sends.
///
/// As in Go, struct fields are matched by name, unknown ones are ignored, and missing ones are zero.
pub trait FromGob: Sized {
    /// Converts.
    ///
    /// # Errors
    /// If the value is something else.
    fn from_value(value: Value) -> Result<Self, Mismatch>;
}

/// A value is not what the receiver wants.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("gob: {}received {found}, want {wanted}", place(path))]
pub struct Mismatch {
    /// Path of the value: field names from the outside, joined by dots; empty for the value itself.
    pub path: String,
    /// The kind that the receiver wants.
    pub wanted: &'static str,
    /// The kind that came.
    pub found: &'static str,
}

fn place(path: &str) -> String {
    if path.is_empty() { String::new() } else { format!("field {path}: ") }
}

impl Mismatch {
    /// `value` came where `wanted` should have been.
    #[must_use]
    pub fn new(wanted: &'static str, value: &Value) -> Self {
        Self { path: String::new(), wanted, found: value.describe() }
    }

    /// The same, seen from the struct around it.
    #[must_use]
    pub fn inside(mut self, field: &str) -> Self {
        self.path = if self.path.is_empty() { field.into() } else { format!("{field}.{}", self.path) };
        self
    }
}

impl Struct {
    /// Takes a field out as a Rust value; one that is not there is zero.
    ///
    /// # Errors
    /// If the field is something else; the error names it.
    pub fn take<T: FromGob + Default>(&mut self, field: &str) -> Result<T, Mismatch> {
        let Some(value) = self.remove(field) else { return Ok(T::default()) };
        T::from_value(value).map_err(|mismatch| mismatch.inside(field))
    }
}

/// Makes a Rust struct a struct of Go. The Rust fields must implement [`ToGob`], [`FromGob`] and `Default`;
/// fields are numbered in the order given.
///
/// ```
/// use go_rpc::{ToGob, FromGob, gob_struct};
///
/// #[derive(Debug, PartialEq)]
/// struct Args { a: i64, names: Vec<String> }
/// gob_struct!(Args as "Args" { a => "A", names => "Names" });
///
/// let args = Args { a: 7, names: vec!["x".into()] };
/// assert_eq!(Args::from_value(args.to_value()), Ok(args));
/// ```
#[macro_export]
macro_rules! gob_struct {
    ($rust:ident as $go:literal { $($field:ident => $name:literal),* $(,)? }) => {
        impl $crate::ToGob for $rust {
            fn gob_type() -> $crate::Type {
                static TYPE: ::std::sync::LazyLock<$crate::Type> = ::std::sync::LazyLock::new(|| {
                    $crate::Type::structure($go, [$(($name, $crate::type_of(|it: &$rust| &it.$field))),*])
                });
                TYPE.clone()
            }

            fn to_value(&self) -> $crate::Value {
                $crate::Struct::new()$(.with($name, $crate::ToGob::to_value(&self.$field)))*.into()
            }
        }

        impl $crate::FromGob for $rust {
            fn from_value(value: $crate::Value) -> ::std::result::Result<Self, $crate::Mismatch> {
                match value {
                    $crate::Value::Struct(mut fields) => Ok(Self { $($field: fields.take($name)?),* }),
                    other => Err($crate::Mismatch::new(concat!("struct ", $go), &other)),
                }
            }
        }
    };
}

/// The wire type of a field, found by the compiler from a closure that picks it ([`gob_struct!`] uses this).
#[must_use]
pub fn type_of<S, T: ToGob>(_: fn(&S) -> &T) -> Type {
    T::gob_type()
}

macro_rules! scalar {
    ($rust:ty, $of:ident, $wanted:literal, $self:ident => $to:expr, $pattern:pat => $from:expr) => {
        impl ToGob for $rust {
            fn gob_type() -> Type {
                Type::$of
            }

            fn to_value(&$self) -> Value {
                $to
            }
        }

        impl FromGob for $rust {
            fn from_value(value: Value) -> Result<Self, Mismatch> {
                match value {
                    $pattern => $from,
                    other => Err(Mismatch::new($wanted, &other)),
                }
            }
        }
    };
}

scalar!(bool, BOOL, "bool", self => Value::Bool(*self), Value::Bool(value) => Ok(value));
scalar!(i64, INT, "int", self => Value::Int(*self), Value::Int(value) => Ok(value));
scalar!(u64, UINT, "uint", self => Value::Uint(*self), Value::Uint(value) => Ok(value));
scalar!(f64, FLOAT, "float", self => Value::Float(*self), Value::Float(value) => Ok(value));
scalar!(i32, INT, "int32", self => Value::Int((*self).into()), Value::Int(value) =>
    value.try_into().map_err(|_| Mismatch { path: "".into(), wanted: "int32", found: "an integer out of range" }));
scalar!(u32, UINT, "uint32", self => Value::Uint((*self).into()), Value::Uint(value) =>
    value.try_into().map_err(|_| Mismatch { path: "".into(), wanted: "uint32", found: "an integer out of range" }));
scalar!(Vec<u8>, BYTES, "[]byte", self => Value::Bytes(self.clone()), Value::Bytes(value) => Ok(value));
scalar!(GoString, STRING, "string", self => Value::String(self.clone()), Value::String(value) => Ok(value));
scalar!(String, STRING, "string", self => Value::from(self.as_str()), Value::String(value) =>
    Self::from_utf8(value.into_bytes())
        .map_err(|_| Mismatch { path: "".into(), wanted: "string", found: "a string that is not UTF-8" }));
scalar!(Option<Interface>, INTERFACE, "interface", self => Value::Interface(self.clone().map(Box::new)),
    Value::Interface(held) => Ok(held.map(|held| *held)));

impl<T: ToGob> ToGob for Vec<T> {
    fn gob_type() -> Type {
        Type::slice(T::gob_type())
    }

    fn to_value(&self) -> Value {
        Value::List(self.iter().map(T::to_value).collect())
    }
}

impl<T: FromGob> FromGob for Vec<T> {
    fn from_value(value: Value) -> Result<Self, Mismatch> {
        match value {
            Value::List(items) => items.into_iter().map(T::from_value).collect(),
            other => Err(Mismatch::new("list", &other)),
        }
    }
}

impl<T: ToGob> ToGob for BTreeMap<String, T> {
    fn gob_type() -> Type {
        Type::map(Type::STRING, T::gob_type())
    }

    fn to_value(&self) -> Value {
        Value::Map(self.iter().map(|(key, element)| (key.to_value(), element.to_value())).collect())
    }
}

impl<T: FromGob> FromGob for BTreeMap<String, T> {
    fn from_value(value: Value) -> Result<Self, Mismatch> {
        let Value::Map(pairs) = value else { return Err(Mismatch::new("map", &value)) };
        let convert = |(key, element)| Ok((String::from_value(key)?, T::from_value(element)?));
        pairs.into_iter().map(convert).collect()
    }
}

impl ToGob for () {
    fn gob_type() -> Type {
        Type::structure("", [])
    }

    fn to_value(&self) -> Value {
        Struct::new().into()
    }
}

/// Takes anything, as Go's client does with a reply that nobody wants.
impl FromGob for () {
    fn from_value(_: Value) -> Result<Self, Mismatch> {
        Ok(())
    }
}

/// Any value, as it is.
impl FromGob for Value {
    fn from_value(value: Value) -> Result<Self, Mismatch> {
        Ok(value)
    }
}
