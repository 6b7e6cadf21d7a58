//! Values: what a gob holds once its type is known.

use std::borrow::Cow;
use std::fmt;
use std::str::{Utf8Error, from_utf8};

use crate::types::{Name, Type};

/// A value without its type: which integer size, which slice and which struct it is, says a [`Type`].
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A bool.
    Bool(bool),
    /// A signed integer of any size.
    Int(i64),
    /// An unsigned integer of any size.
    Uint(u64),
    /// A float of any size.
    Float(f64),
    /// Real and imaginary part.
    Complex(f64, f64),
    /// `[]byte`.
    Bytes(Vec<u8>),
    /// A string.
    String(GoString),
    /// The elements of a slice or an array.
    List(Vec<Value>),
    /// Keys and elements, in the order of the wire (Go's order is random).
    Map(Vec<(Value, Value)>),
    /// The fields of a struct.
    Struct(Struct),
    /// The bytes that a self-writing type wrote ([`Type::opaque`]).
    Opaque(Vec<u8>),
    /// An interface; none is Go's nil.
    Interface(Option<Box<Interface>>),
}

impl Value {
    /// Returns the name of the value's kind, for errors.
    #[must_use]
    pub fn describe(&self) -> &'static str {
        match self {
            Self::Bool(_) => "bool",
            Self::Int(_) => "int",
            Self::Uint(_) => "uint",
            Self::Float(_) => "float",
            Self::Complex(..) => "complex",
            Self::Bytes(_) => "[]byte",
            Self::String(_) => "string",
            Self::List(_) => "list",
            Self::Map(_) => "map",
            Self::Struct(_) => "struct",
            Self::Opaque(_) => "opaque bytes",
            Self::Interface(None) => "nil interface",
            Self::Interface(Some(_)) => "interface",
        }
    }

    /// Whether Go leaves this out of a struct. A map that is there but empty, a struct and a self-written
    /// value are always sent.
    pub(crate) fn is_zero(&self) -> bool {
        match self {
            Self::Bool(value) => !value,
            Self::Int(value) => *value == 0,
            Self::Uint(value) => *value == 0,
            Self::Float(value) => *value == 0.0,
            Self::Complex(re, im) => *re == 0.0 && *im == 0.0,
            Self::Bytes(bytes) => bytes.is_empty(),
            Self::String(text) => text.as_bytes().is_empty(),
            Self::List(items) => items.is_empty(),
            Self::Interface(held) => held.is_none(),
            Self::Map(_) | Self::Struct(_) | Self::Opaque(_) => false,
        }
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::String(text.into())
    }
}

/// A string of Go: mostly UTF-8, but nothing in Go makes sure of it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct GoString(Vec<u8>);

impl GoString {
    /// The bytes as they are.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The text, if it is UTF-8.
    ///
    /// # Errors
    /// The place at which the bytes stop being UTF-8.
    pub fn to_str(&self) -> Result<&str, Utf8Error> {
        from_utf8(&self.0)
    }

    /// The text, with a replacement character for what is not UTF-8.
    #[must_use]
    pub fn to_lossy(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.0)
    }

    /// The bytes as they are.
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

impl From<&str> for GoString {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

impl From<String> for GoString {
    fn from(text: String) -> Self {
        Self(text.into_bytes())
    }
}

impl From<Vec<u8>> for GoString {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }
}

impl fmt::Debug for GoString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

/// The fields of a struct that are not zero, by name. Setting a field to zero removes it: on the wire the two
/// are the same.
///
/// ```
/// use go_rpc::{Struct, Value};
///
/// let request = Struct::new().with("ServiceMethod", "Arith.Add").with("Seq", Value::Uint(0));
/// assert_eq!(request.get("ServiceMethod"), Some(&Value::from("Arith.Add")));
/// assert_eq!(request.get("Seq"), None);
/// ```
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Struct(Vec<(Name, Value)>); // sorted by name

impl Struct {
    /// All fields zero.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// From fields without two of the same name.
    pub(crate) fn of(mut fields: Vec<(Name, Value)>) -> Self {
        fields.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        Self(fields)
    }

    /// With this field set.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.set(name, value);
        self
    }

    /// Sets a field.
    pub fn set(&mut self, name: &str, value: impl Into<Value>) {
        let value = value.into();
        match (self.find(name), value.is_zero()) {
            (Ok(at), false) => self.0[at].1 = value,
            (Ok(at), true) => drop(self.0.remove(at)),
            (Err(at), false) => self.0.insert(at, (name.into(), value)),
            (Err(_), true) => {}
        }
    }

    /// A field that is not zero.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.find(name).ok().map(|at| &self.0[at].1)
    }

    /// Takes a field out, leaving zero.
    pub fn remove(&mut self, name: &str) -> Option<Value> {
        self.find(name).ok().map(|at| self.0.remove(at).1)
    }

    /// The fields that are not zero, by name.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Value)> {
        self.0.iter().map(|(name, value)| (&**name, value))
    }

    fn find(&self, name: &str) -> Result<usize, usize> {
        self.0.binary_search_by(|(field, _)| (**field).cmp(name))
    }
}

impl From<Struct> for Value {
    fn from(fields: Struct) -> Self {
        Self::Struct(fields)
    }
}

/// A value with its type.
#[derive(Clone, Debug, PartialEq)]
pub struct Typed {
    /// The type.
    pub of: Type,
    /// A value of that type.
    pub value: Value,
}

/// The value in an interface.
#[derive(Clone, Debug, PartialEq)]
pub struct Interface {
    /// The name under which both sides registered the concrete type: the bare package and type name, with a
    /// star if the pointer was registered (`*mcnflag.StringFlag`); predefined types by their Go name.
    pub name: String,
    /// The concrete value.
    pub holds: Typed,
}

impl Interface {
    /// An interface value that holds `value` under the registered `name`.
    pub fn new(name: impl Into<String>, of: Type, value: impl Into<Value>) -> Self {
        Self { name: name.into(), holds: Typed { of, value: value.into() } }
    }
}

impl From<Interface> for Value {
    fn from(interface: Interface) -> Self {
        Self::Interface(Some(Box::new(interface)))
    }
}
