//! From messages to values.
//!
//! A stream is a row of messages. A value mostly is one message, but Go's encoder describes the concrete
//! type of an interface where it meets it, in the middle of the value, and begins a new message there. So
//! the decoder is a machine that can stop wherever a type is due, and go on with the next message:
//!
//! ```text
//! message ──► type due ──descriptor──► type due ──id──► value ──► ... interface ──► type due ...
//!                │ message used up: wait                  └──► done: Typed
//! ```
//! It keeps its own stack, so no input can exhaust the thread's, and it counts what it allocates.

use std::mem::size_of;
use std::str::from_utf8;

use crate::descriptor::Described;
use crate::types::{Basic, Definition, Name, Repr, Type};
use crate::value::{GoString, Interface, Struct, Typed, Value};
use crate::wire::Cursor;

mod error;

pub use error::{DecodeError, Limits};

/// Go refuses longer names of registered types, too.
pub(crate) const LONGEST_NAME: usize = 1024;

/// Decodes one stream. Type ids are the stream's own: a new connection or direction needs a new decoder.
///
/// ```
/// use go_rpc::{Decoder, Limits, Value};
///
/// let mut decoder = Decoder::new(Limits::default());
/// let typed = decoder.push(&[0x0c, 0, 2, b'h', b'i'])?.expect("one message is enough for a string");
/// assert_eq!(typed.value, Value::from("hi"));
/// # Ok::<(), go_rpc::DecodeError>(())
/// ```
#[derive(Debug)]
pub struct Decoder {
    limits: Limits,
    types: Described,
    /// The values that are being built, outermost first. Empty: the next message begins a value.
    stack: Vec<Frame>,
    /// The type of the value being built; none while it is still to come.
    top: Option<Type>,
    received: usize,
    allocated: usize,
}

#[derive(Debug)]
enum Frame {
    Struct { of: Type, field: usize, fields: Vec<(Name, Value)> },
    List { element: Type, left: u64, items: Vec<Value> },
    Map { key: Type, element: Type, left: u64, pairs: Vec<(Value, Value)>, at: Option<Value> },
    Interface { name: String, of: Option<Type> },
}

enum Step {
    Begin(Type),
    Done(Value),
    TypeDue,
}

impl Decoder {
    /// A decoder for a new stream.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        let types = Described::default();
        Self { limits, types, stack: Vec::new(), top: None, received: 0, allocated: 0 }
    }

    /// Whether a value has begun and needs further messages.
    #[must_use]
    pub fn is_inside(&self) -> bool {
        self.received > 0
    }

    /// Takes the contents of the next message (without its length). Returns the value if that completes one;
    /// what is left of the message then is ignored, as in Go.
    ///
    /// # Errors
    /// The value is dropped, and the next message is taken as the begin of another one.
    pub fn push(&mut self, message: &[u8]) -> Result<Option<Typed>, DecodeError> {
        let result = self.run(message);
        if !matches!(result, Ok(None)) {
            self.stack.clear();
            self.top = None;
            self.received = 0;
            self.allocated = 0;
        }
        result
    }

    fn run(&mut self, message: &[u8]) -> Result<Option<Typed>, DecodeError> {
        // one more for the length, so that not even empty messages are free
        self.received = self.received.saturating_add(message.len()).saturating_add(1);
        if self.received > self.limits.value {
            return Err(DecodeError::ValueTooLong { limit: self.limits.value });
        }
        let mut cursor = Cursor::new(message);
        if message.is_empty() {
            return Err(DecodeError::Truncated);
        }
        loop {
            let Some(of) = self.type_sequence(&mut cursor)? else { return Ok(None) };
            match self.stack.last_mut() {
                Some(Frame::Interface { of: holds, .. }) => {
                    *holds = Some(of.clone());
                    cursor.uint()?; // a byte count that ends at the next descriptor: of no use
                }
                _ => self.top = Some(of.clone()),
            }
            if !matches!(of.definition(), Some(Definition::Struct { .. })) && cursor.uint()? != 0 {
                return Err(DecodeError::Singleton);
            }
            let mut step = Step::Begin(of);
            loop {
                step = match step {
                    Step::Begin(of) => self.begin(of, &mut cursor)?,
                    Step::Done(value) => match self.stack.pop() {
                        Some(frame) => self.fill(frame, value, &mut cursor)?,
                        None => {
                            let of = self.top.take().expect("a value begins with its type");
                            return Ok(Some(Typed { of, value }));
                        }
                    },
                    Step::TypeDue => break,
                }
            }
        }
    }

    /// Reads descriptors up to the id of the value's type; none if the message ends before.
    fn type_sequence(&mut self, cursor: &mut Cursor<'_>) -> Result<Option<Type>, DecodeError> {
        while cursor.left() > 0 {
            let id = cursor.int()?;
            if id >= 0 {
                return self.types.get(id, self.limits.types).map(Some);
            }
            let id = id.checked_neg().ok_or(DecodeError::Descriptor("id"))?;
            self.types.read(id, cursor, self.limits.types)?;
            if cursor.left() > 0 {
                if self.stack.is_empty() {
                    return Err(DecodeError::ExtraData);
                }
                cursor.uint()?; // the byte count of the interface's value
            }
        }
        Ok(None)
    }

    fn begin(&mut self, of: Type, cursor: &mut Cursor<'_>) -> Result<Step, DecodeError> {
        let definition = match &of.0 {
            Repr::Basic(basic) => return self.begin_basic(*basic, cursor),
            Repr::Defined(graph, at) => &graph[*at],
        };
        if self.stack.len() >= self.limits.depth {
            return Err(DecodeError::TooDeep { limit: self.limits.depth });
        }
        match definition {
            Definition::Opaque { .. } => Ok(Step::Done(Value::Opaque(self.bytes(cursor)?))),
            Definition::Struct { .. } => self.next_field(of, None, Vec::new(), cursor),
            Definition::Slice { element, .. } | Definition::Array { element, .. } => {
                let count = cursor.uint()?;
                if let Definition::Array { length, .. } = definition
                    && *length != count
                {
                    return Err(DecodeError::ArrayLength { of: of.to_string(), count });
                }
                let items = self.room(count, 1, cursor)?;
                let element = of.linked(*element);
                Ok(self.next_item(element, count, items))
            }
            Definition::Map { key, element, .. } => {
                let count = cursor.uint()?;
                let pairs = self.room(count, 2, cursor)?;
                let (key, element) = (of.linked(*key), of.linked(*element));
                Ok(self.next_pair(key, element, count, pairs))
            }
        }
    }

    fn begin_basic(&mut self, of: Basic, cursor: &mut Cursor<'_>) -> Result<Step, DecodeError> {
        Ok(Step::Done(match of {
            Basic::Bool => Value::Bool(cursor.uint()? != 0),
            Basic::Int => Value::Int(cursor.int()?),
            Basic::Uint => Value::Uint(cursor.uint()?),
            Basic::Float => Value::Float(cursor.float()?),
            Basic::Complex => Value::Complex(cursor.float()?, cursor.float()?),
            Basic::Bytes => Value::Bytes(self.bytes(cursor)?),
            Basic::String => Value::String(GoString::from(self.bytes(cursor)?)),
            Basic::Interface => {
                let name = cursor.bytes()?;
                if name.is_empty() {
                    return Ok(Step::Done(Value::Interface(None)));
                }
                if self.stack.len() >= self.limits.depth {
                    return Err(DecodeError::TooDeep { limit: self.limits.depth });
                }
                if name.len() > LONGEST_NAME {
                    return Err(DecodeError::Name);
                }
                let name = from_utf8(name).map_err(|_| DecodeError::Name)?;
                self.charge(size_of::<Interface>() + name.len())?;
                self.stack.push(Frame::Interface { name: name.into(), of: None });
                return Ok(Step::TypeDue);
            }
        }))
    }

    /// Puts a finished value where it belongs.
    fn fill(&mut self, frame: Frame, value: Value, cursor: &mut Cursor<'_>) -> Result<Step, DecodeError> {
        match frame {
            Frame::Struct { of, field, mut fields } => {
                if !value.is_zero() {
                    // a growing list holds its old self while it moves, and room for as many again
                    self.charge(4 * size_of::<(Name, Value)>())?;
                    let Some(Definition::Struct { fields: known, .. }) = of.definition() else {
                        unreachable!("a struct's frame has a struct's type")
                    };
                    let name = known[field].0.clone();
                    fields.push((name, value));
                }
                self.next_field(of, Some(field), fields, cursor)
            }
            Frame::List { element, left, mut items } => {
                items.push(value);
                Ok(self.next_item(element, left - 1, items))
            }
            Frame::Map { key, element, left, mut pairs, at } => match at {
                None => {
                    let next = element.clone();
                    self.stack.push(Frame::Map { key, element, left, pairs, at: Some(value) });
                    Ok(Step::Begin(next))
                }
                Some(at) => {
                    pairs.push((at, value));
                    Ok(self.next_pair(key, element, left - 1, pairs))
                }
            },
            Frame::Interface { name, of } => {
                let of = of.expect("the value of an interface begins with its type");
                Ok(Step::Done(Interface { name, holds: Typed { of, value } }.into()))
            }
        }
    }

    fn next_field(
        &mut self,
        of: Type,
        previous: Option<usize>,
        fields: Vec<(Name, Value)>,
        cursor: &mut Cursor<'_>,
    ) -> Result<Step, DecodeError> {
        let delta = cursor.uint()?;
        if delta == 0 {
            return Ok(Step::Done(Struct::of(fields).into()));
        }
        let number = previous.map_or(0, |previous| previous as u64 + 1).saturating_add(delta - 1);
        let Some(Definition::Struct { fields: known, .. }) = of.definition() else {
            unreachable!("a struct's frame has a struct's type")
        };
        let field = usize::try_from(number).unwrap_or(usize::MAX);
        let Some((_, link)) = known.get(field) else {
            return Err(DecodeError::FieldNumber { of: of.to_string(), number, fields: known.len() });
        };
        let next = of.linked(*link);
        self.stack.push(Frame::Struct { of, field, fields });
        Ok(Step::Begin(next))
    }

    fn next_item(&mut self, element: Type, left: u64, items: Vec<Value>) -> Step {
        if left == 0 {
            return Step::Done(Value::List(items));
        }
        let next = element.clone();
        self.stack.push(Frame::List { element, left, items });
        Step::Begin(next)
    }

    fn next_pair(&mut self, key: Type, element: Type, left: u64, pairs: Vec<(Value, Value)>) -> Step {
        if left == 0 {
            return Step::Done(Value::Map(pairs));
        }
        let next = key.clone();
        self.stack.push(Frame::Map { key, element, left, pairs, at: None });
        Step::Begin(next)
    }

    fn bytes(&mut self, cursor: &mut Cursor<'_>) -> Result<Vec<u8>, DecodeError> {
        let bytes = cursor.bytes()?;
        self.charge(bytes.len())?;
        Ok(bytes.into())
    }

    /// A list for `count` items of at least `least` bytes each, if limits allow for so many.
    fn room<T>(&mut self, count: u64, least: usize, cursor: &Cursor<'_>) -> Result<Vec<T>, DecodeError> {
        let to_come = self.limits.value - self.received + cursor.left();
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        if count > to_come / least {
            return Err(DecodeError::ValueTooLong { limit: self.limits.value });
        }
        let here = count.min(cursor.left() / least);
        let size = count.saturating_mul(size_of::<T>());
        // items of later messages make the list grow: it then holds its old self, and room for as many again
        self.charge(if count > here { size.saturating_mul(3) } else { size })?;
        Ok(Vec::with_capacity(here))
    }

    fn charge(&mut self, bytes: usize) -> Result<(), DecodeError> {
        self.allocated = self.allocated.saturating_add(bytes);
        if self.allocated > self.limits.memory {
            return Err(DecodeError::ValueTooBig { limit: self.limits.memory });
        }
        Ok(())
    }
}

/// The length of the message at the front of `bytes` and where its contents begin; none while the length
/// itself is not complete.
///
/// # Errors
/// If the length is none, or above the limit for a value.
pub(crate) fn message_length(bytes: &[u8], limits: &Limits) -> Result<Option<(usize, usize)>, DecodeError> {
    let mut cursor = Cursor::new(bytes);
    match cursor.uint() {
        Err(DecodeError::Truncated) => Ok(None),
        Err(error) => Err(error),
        Ok(length) => match usize::try_from(length) {
            Ok(length) if length <= limits.value => Ok(Some((length, bytes.len() - cursor.left()))),
            _ => Err(DecodeError::ValueTooLong { limit: limits.value }),
        },
    }
}

/// Decodes the first value of `bytes`, which hold whole messages, and moves them behind it; none at the end.
///
/// # Errors
/// As [`Decoder::push`], and if the bytes end inside a message or a value.
pub fn next_value(decoder: &mut Decoder, bytes: &mut &[u8]) -> Result<Option<Typed>, DecodeError> {
    if bytes.is_empty() {
        return Ok(None);
    }
    loop {
        let (length, start) = message_length(bytes, &decoder.limits)?.ok_or(DecodeError::Truncated)?;
        let (message, rest) = bytes[start..].split_at_checked(length).ok_or(DecodeError::Truncated)?;
        *bytes = rest;
        if let Some(typed) = decoder.push(message)? {
            return Ok(Some(typed));
        }
    }
}
