//! From values to messages.
//!
//! All descriptors that a value needs go before it, each as a message of its own; Go's decoder accepts that
//! (its own encoder puts some of them into the middle of the value).

use crate::decode::LONGEST_NAME;
use crate::descriptor::{FIRST_ID, put};
use crate::types::{Basic, Definition, Link, Name, Repr, Type};
use crate::value::{Interface, Struct, Typed, Value};
use crate::wire::{put_bytes, put_float, put_int, put_uint};

/// Why a value cannot be sent. Nothing of it is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// The value is not of the type.
    #[error("gob: a {found} is no value of type {of}")]
    Mismatch {
        /// The type.
        of: String,
        /// Kind of the value.
        found: &'static str,
    },
    /// The value has a field that its type has not.
    #[error("gob: struct {of} has no field {field}")]
    UnknownField {
        /// The struct.
        of: String,
        /// The field.
        field: String,
    },
    /// An array with another number of elements than its type says.
    #[error("gob: {count} elements for array {of}")]
    ArrayLength {
        /// The array.
        of: String,
        /// The elements of the value.
        count: usize,
    },
    /// The name of an interface's concrete type is empty or longer than 1024 bytes.
    #[error("gob: {0:?} cannot be the registered name of a type")]
    InterfaceName(String),
}

/// Encodes one stream: it remembers which types the other side has been told of.
///
/// ```
/// use go_rpc::{Encoder, Type, Value};
///
/// let mut out = Vec::new();
/// Encoder::new().encode(&Type::STRING, &Value::from("hi"), &mut out)?;
/// assert_eq!(out, [5, 0x0c, 0, 2, b'h', b'i']);
/// # Ok::<(), go_rpc::EncodeError>(())
/// ```
#[derive(Debug, Default)]
pub struct Encoder {
    /// The described types; the first has [`FIRST_ID`].
    described: Vec<Type>,
}

impl Encoder {
    /// An encoder for a new stream.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends the value's messages to `out`, with the descriptors that the other side does not know yet.
    ///
    /// # Errors
    /// If the value is not of that type; `out` and the encoder then are as before.
    pub fn encode(&mut self, of: &Type, value: &Value, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        let (described, start) = (self.described.len(), out.len());
        let mut message = Vec::new();
        let result = Messages { described: &mut self.described, out }.whole(of, value, &mut message);
        match result {
            Ok(()) => put_bytes(out, &message),
            Err(_) => {
                self.described.truncate(described);
                out.truncate(start);
            }
        }
        result
    }

    /// Returns a mark of the types described so far. [`Self::forget`] returns to it if the encoded bytes are not sent.
    pub(crate) fn mark(&self) -> usize {
        self.described.len()
    }

    pub(crate) fn forget(&mut self, mark: usize) {
        self.described.truncate(mark);
    }

    /// [`Self::encode`] for a value with its type.
    ///
    /// # Errors
    /// If the two do not fit.
    pub fn encode_typed(&mut self, typed: &Typed, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        self.encode(&typed.of, &typed.value, out)
    }
}

/// One value on its way: descriptors go to `out` at once, the value into a buffer of its own.
struct Messages<'a> {
    described: &'a mut Vec<Type>,
    out: &'a mut Vec<u8>,
}

impl Messages<'_> {
    fn whole(&mut self, of: &Type, value: &Value, message: &mut Vec<u8>) -> Result<(), EncodeError> {
        put_int(message, self.id(of));
        self.top(of, value, message)
    }

    /// Structs as they are, everything else behind a zero byte.
    fn top(&mut self, of: &Type, value: &Value, message: &mut Vec<u8>) -> Result<(), EncodeError> {
        if !matches!(of.definition(), Some(Definition::Struct { .. })) {
            put_uint(message, 0);
        }
        self.put(of, value, message)
    }

    fn put(&mut self, of: &Type, value: &Value, message: &mut Vec<u8>) -> Result<(), EncodeError> {
        match (&of.0, value) {
            (Repr::Basic(basic), value) => return self.put_basic(*basic, value, message),
            (Repr::Defined(graph, at), value) => match (&graph[*at], value) {
                (Definition::Opaque { .. }, Value::Opaque(bytes)) => put_bytes(message, bytes),
                (Definition::Struct { fields, .. }, Value::Struct(value)) => {
                    return self.put_struct(of, fields, value, message);
                }
                (Definition::Slice { element, .. }, Value::List(items)) => {
                    self.put_items(&of.linked(*element), items, message)?;
                }
                (Definition::Array { element, length, .. }, Value::List(items)) => {
                    if items.len() as u64 != *length {
                        return Err(EncodeError::ArrayLength { of: of.to_string(), count: items.len() });
                    }
                    self.put_items(&of.linked(*element), items, message)?;
                }
                (Definition::Map { key, element, .. }, Value::Map(pairs)) => {
                    let (key_of, element_of) = (of.linked(*key), of.linked(*element));
                    put_uint(message, pairs.len() as u64);
                    for (key, element) in pairs {
                        self.put(&key_of, key, message)?;
                        self.put(&element_of, element, message)?;
                    }
                }
                _ => return Err(mismatch(of, value)),
            },
        }
        Ok(())
    }

    fn put_basic(&mut self, of: Basic, value: &Value, message: &mut Vec<u8>) -> Result<(), EncodeError> {
        match (of, value) {
            (Basic::Bool, Value::Bool(value)) => put_uint(message, (*value).into()),
            (Basic::Int, Value::Int(value)) => put_int(message, *value),
            (Basic::Uint, Value::Uint(value)) => put_uint(message, *value),
            (Basic::Float, Value::Float(value)) => put_float(message, *value),
            (Basic::Complex, Value::Complex(re, im)) => {
                put_float(message, *re);
                put_float(message, *im);
            }
            (Basic::Bytes, Value::Bytes(bytes)) => put_bytes(message, bytes),
            (Basic::String, Value::String(text)) => put_bytes(message, text.as_bytes()),
            (Basic::Interface, Value::Interface(None)) => put_uint(message, 0),
            (Basic::Interface, Value::Interface(Some(held))) => {
                let Interface { name, holds } = &**held;
                if name.is_empty() || name.len() > LONGEST_NAME {
                    return Err(EncodeError::InterfaceName(name.clone()));
                }
                put_bytes(message, name.as_bytes());
                put_int(message, self.id(&holds.of));
                let mut inner = Vec::new();
                self.top(&holds.of, &holds.value, &mut inner)?;
                put_bytes(message, &inner);
            }
            _ => return Err(mismatch(&Type(Repr::Basic(of)), value)),
        }
        Ok(())
    }

    fn put_items(
        &mut self,
        element: &Type,
        items: &[Value],
        message: &mut Vec<u8>,
    ) -> Result<(), EncodeError> {
        put_uint(message, items.len() as u64);
        items.iter().try_for_each(|item| self.put(element, item, message))
    }

    fn put_struct(
        &mut self,
        of: &Type,
        fields: &[(Name, Link)],
        value: &Struct,
        message: &mut Vec<u8>,
    ) -> Result<(), EncodeError> {
        let mut sent = 0;
        let mut delta = 1;
        for (name, link) in fields {
            if let Some(value) = value.get(name) {
                put_uint(message, delta);
                self.put(&of.linked(*link), value, message)?;
                sent += 1;
                delta = 0;
            }
            delta += 1;
        }
        put_uint(message, 0);
        if sent == value.iter().len() {
            return Ok(());
        }
        let unknown = value.iter().map(|(name, _)| name).find(|name| of.field(name).is_none());
        let field = unknown.expect("a field that was not sent is none of the type's").into();
        Err(EncodeError::UnknownField { of: of.to_string(), field })
    }

    /// The type's id on this stream; describes it, and all that it refers to, if the other side does not know it.
    fn id(&mut self, of: &Type) -> i64 {
        if let Repr::Basic(basic) = of.0 {
            return basic.id();
        }
        if let Some(known) = self.known(of) {
            return known;
        }
        let first = self.described.len();
        self.described.push(of.clone());
        let mut at = first;
        while let Some(of) = self.described.get(at).cloned() {
            let definition = of.definition().expect("only described types are here");
            let definition = definition.relink(|link| match of.linked(link) {
                Type(Repr::Basic(basic)) => basic.id(),
                linked => self.known(&linked).unwrap_or_else(|| {
                    self.described.push(linked);
                    FIRST_ID + self.described.len() as i64 - 1
                }),
            });
            let mut message = Vec::new();
            put(&mut message, FIRST_ID + at as i64, &definition);
            put_bytes(self.out, &message);
            at += 1;
        }
        FIRST_ID + first as i64
    }

    fn known(&self, of: &Type) -> Option<i64> {
        self.described.iter().position(|known| known == of).map(|at| FIRST_ID + at as i64)
    }
}

fn mismatch(of: &Type, value: &Value) -> EncodeError {
    EncodeError::Mismatch { of: of.to_string(), found: value.describe() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_that_does_not_fit_leaves_no_trace() {
        let pair = Type::structure("Pair", [("A", Type::INT), ("B", Type::slice(Type::INT))]);
        let mut encoder = Encoder::new();
        let mut out = vec![7];
        let wrong = Struct::new().with("A", Value::Int(1)).with("B", "text");
        assert_eq!(
            encoder.encode(&pair, &wrong.into(), &mut out),
            Err(EncodeError::Mismatch { of: "[]int".into(), found: "string" })
        );
        let unknown = Struct::new().with("C", Value::Int(1));
        assert_eq!(
            encoder.encode(&pair, &unknown.into(), &mut out),
            Err(EncodeError::UnknownField { of: "Pair".into(), field: "C".into() })
        );
        assert_eq!(out, [7]);
        let mut afresh = Vec::new();
        let right = Value::from(Struct::new().with("A", Value::Int(1)));
        encoder.encode(&pair, &right, &mut out).unwrap();
        Encoder::new().encode(&pair, &right, &mut afresh).unwrap();
        assert_eq!(out[1..], afresh);
    }
}
