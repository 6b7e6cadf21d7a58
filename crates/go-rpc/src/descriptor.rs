//! Type descriptors: how a sender tells what its type ids mean.
//!
//! A descriptor is itself a gob struct with exactly one field set, which says what is described:
//!
//! | field | kind | its fields |
//! |---|---|---|
//! | 0 | array | common, element, length |
//! | 1 | slice | common, element |
//! | 2 | struct | common, list of { name, id } |
//! | 3 | map | common, key, element |
//! | 4 to 6 | self-writing | common |
//!
//! *common* is a struct { name, id }. Fields that are zero are left out, as everywhere in gob.

use std::collections::{HashMap, HashSet};
use std::mem::size_of;
use std::str::from_utf8;

use crate::decode::DecodeError;
use crate::types::{Basic, Definition, Graph, Link, Marshaler, Name, Repr, Type};
use crate::wire::{Cursor, put_bytes, put_int, put_uint};

/// The first id that a sender may give; below are the predefined types and those of descriptors.
pub(crate) const FIRST_ID: i64 = 64;

/// Writes the contents of a descriptor message: negative id, then the definition.
pub(crate) fn put(out: &mut Vec<u8>, id: i64, definition: &Definition<i64>) {
    put_int(out, -id);
    let field: u64 = match definition {
        Definition::Array { .. } => 0,
        Definition::Slice { .. } => 1,
        Definition::Struct { .. } => 2,
        Definition::Map { .. } => 3,
        Definition::Opaque { marshaler: Marshaler::Gob, .. } => 4,
        Definition::Opaque { marshaler: Marshaler::Binary, .. } => 5,
        Definition::Opaque { marshaler: Marshaler::Text, .. } => 6,
    };
    put_uint(out, field + 1);
    put_uint(out, 1);
    put_name_and_id(out, definition.name(), id);
    match definition {
        Definition::Slice { element, .. } => put_field(out, *element),
        Definition::Array { element, length, .. } => {
            put_field(out, *element);
            if *length > 0 {
                // Go's length is an `int`; a length from a descriptor has been one
                put_field(out, length.cast_signed());
            }
        }
        Definition::Struct { fields, .. } if fields.is_empty() => {}
        Definition::Struct { fields, .. } => {
            put_uint(out, 1);
            put_uint(out, fields.len() as u64);
            for (name, id) in fields {
                put_name_and_id(out, name, *id);
            }
        }
        Definition::Map { key, element, .. } => {
            put_field(out, *key);
            put_field(out, *element);
        }
        Definition::Opaque { .. } => {}
    }
    put_uint(out, 0);
    put_uint(out, 0);
}

/// The next field, which holds an integer other than zero.
fn put_field(out: &mut Vec<u8>, value: i64) {
    put_uint(out, 1);
    put_int(out, value);
}

fn put_name_and_id(out: &mut Vec<u8>, name: &str, id: i64) {
    if name.is_empty() {
        put_uint(out, 2);
    } else {
        put_uint(out, 1);
        put_bytes(out, name.as_bytes());
        put_uint(out, 1);
    }
    put_int(out, id);
    put_uint(out, 0);
}

/// The field numbers of a struct on the wire: each is sent as the distance from the one before.
struct Fields(Option<u64>);

impl Fields {
    fn new() -> Self {
        Self(None)
    }

    /// The number of the next field that is there; none at the end of the struct.
    fn next(&mut self, cursor: &mut Cursor<'_>) -> Result<Option<u64>, DecodeError> {
        let delta = cursor.uint()?;
        if delta == 0 {
            return Ok(None);
        }
        let number = match self.0 {
            None => delta - 1,
            Some(previous) => previous.checked_add(delta).ok_or(DecodeError::Descriptor("field number"))?,
        };
        self.0 = Some(number);
        Ok(self.0)
    }
}

/// The descriptors of one sender, and the types built from them.
#[derive(Debug, Default)]
pub(crate) struct Described {
    definitions: HashMap<i64, Definition<i64>>,
    built: HashMap<i64, Type>,
    /// Bytes of memory that all this may have taken.
    taken: usize,
}

impl Described {
    /// Reads the definition of `id`; all that this stream describes may take `limit` bytes.
    pub(crate) fn read(&mut self, id: i64, cursor: &mut Cursor<'_>, limit: usize) -> Result<(), DecodeError> {
        if id < FIRST_ID || self.definitions.contains_key(&id) {
            return Err(DecodeError::DuplicateType { id });
        }
        let definition = read_definition(cursor)?;
        self.take(&definition, limit)?;
        self.definitions.insert(id, definition);
        Ok(())
    }

    /// The type behind an id: everything that it refers to must have been described.
    pub(crate) fn get(&mut self, id: i64, limit: usize) -> Result<Type, DecodeError> {
        if let Some(basic) = Basic::from_id(id) {
            return Ok(Type(Repr::Basic(basic)));
        }
        if let Some(built) = self.built.get(&id) {
            return Ok(built.clone());
        }
        let mut places = HashMap::from([(id, 0)]);
        let mut order = vec![id];
        let mut done = 0;
        while let Some(&next) = order.get(done) {
            done += 1;
            let definition = self.definitions.get(&next).ok_or(DecodeError::UnknownType { id: next })?;
            for link in definition.links() {
                if Basic::from_id(link).is_none() && !places.contains_key(&link) {
                    places.insert(link, order.len());
                    order.push(link);
                }
            }
        }
        let mut graph = Vec::new();
        for id in &order {
            let definition = self.definitions[id].clone();
            self.take(&definition, limit)?;
            graph.push(definition.relink(|link| match Basic::from_id(link) {
                Some(basic) => Link::Basic(basic),
                None => Link::Node(places[&link]),
            }));
        }
        let built = Type(Repr::Defined(Graph::from(graph), 0));
        self.built.insert(id, built.clone());
        Ok(built)
    }

    fn take<L: Copy>(&mut self, definition: &Definition<L>, limit: usize) -> Result<(), DecodeError> {
        let mut size = 4 * size_of::<Definition<i64>>() + definition.name().len();
        if let Definition::Struct { fields, .. } = definition {
            // twice: a growing list holds its old self while it moves
            size +=
                fields.iter().map(|(name, _)| 2 * size_of::<(Name, i64)>() + name.len() + 16).sum::<usize>();
        }
        self.taken += size;
        if self.taken > limit {
            return Err(DecodeError::TooManyTypes { limit });
        }
        Ok(())
    }
}

fn read_definition(cursor: &mut Cursor<'_>) -> Result<Definition<i64>, DecodeError> {
    let mut outer = Fields::new();
    let kind = outer.next(cursor)?.ok_or(DecodeError::Descriptor("no kind"))?;
    let mut common = None;
    let mut numbers = [0, 0];
    let mut fields = Vec::new();
    let mut inner = Fields::new();
    while let Some(field) = inner.next(cursor)? {
        match (kind, field) {
            (0..=6, 0) => common = Some(read_name_and_id(cursor)?),
            (0 | 3, 1 | 2) | (1, 1) => numbers[if field == 1 { 0 } else { 1 }] = cursor.int()?,
            (2, 1) => fields = read_fields(cursor)?,
            _ => return Err(DecodeError::Descriptor("unknown field")),
        }
    }
    if outer.next(cursor)?.is_some() {
        return Err(DecodeError::Descriptor("two kinds in one"));
    }
    let (name, _) = common.unwrap_or_default();
    let [first, second] = numbers;
    Ok(match kind {
        0 => Definition::Array {
            name,
            element: first,
            length: u64::try_from(second).map_err(|_| DecodeError::Descriptor("negative length"))?,
        },
        1 => Definition::Slice { name, element: first },
        2 => Definition::Struct { name, fields },
        3 => Definition::Map { name, key: first, element: second },
        4 => Definition::Opaque { name, marshaler: Marshaler::Gob },
        5 => Definition::Opaque { name, marshaler: Marshaler::Binary },
        6 => Definition::Opaque { name, marshaler: Marshaler::Text },
        _ => return Err(DecodeError::Descriptor("unknown kind")),
    })
}

fn read_fields(cursor: &mut Cursor<'_>) -> Result<Vec<(Name, i64)>, DecodeError> {
    let count = cursor.uint()?;
    if count > cursor.left() as u64 {
        return Err(DecodeError::Truncated);
    }
    let mut fields = Vec::new();
    let mut names = HashSet::new();
    for _ in 0..count {
        let (name, id) = read_name_and_id(cursor)?;
        if !names.insert(name.clone()) {
            return Err(DecodeError::Descriptor("two fields of one name"));
        }
        fields.push((name, id));
    }
    Ok(fields)
}

fn read_name_and_id(cursor: &mut Cursor<'_>) -> Result<(Name, i64), DecodeError> {
    let mut name = Name::default();
    let mut id = 0;
    let mut fields = Fields::new();
    while let Some(field) = fields.next(cursor)? {
        match field {
            0 => name = from_utf8(cursor.bytes()?).map_err(|_| DecodeError::Name)?.into(),
            1 => id = cursor.int()?,
            _ => return Err(DecodeError::Descriptor("unknown field")),
        }
    }
    Ok((name, id))
}
