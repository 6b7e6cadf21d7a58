//! Definitions: what one descriptor says, and how it refers to other types.

use std::sync::Arc;

use super::{Kind, Marshaler};

/// A name of a type or a field: short, and shared by all values of the type.
pub(crate) type Name = Arc<str>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Basic {
    Bool = 1,
    Int = 2,
    Uint = 3,
    Float = 4,
    Bytes = 5,
    String = 6,
    Complex = 7,
    Interface = 8,
}

impl Basic {
    pub(crate) fn from_id(id: i64) -> Option<Self> {
        let all = [
            Self::Bool,
            Self::Int,
            Self::Uint,
            Self::Float,
            Self::Bytes,
            Self::String,
            Self::Complex,
            Self::Interface,
        ];
        all.into_iter().find(|basic| basic.id() == id)
    }

    pub(crate) fn id(self) -> i64 {
        self as i64
    }

    pub(super) fn kind(self) -> Kind {
        match self {
            Self::Bool => Kind::Bool,
            Self::Int => Kind::Int,
            Self::Uint => Kind::Uint,
            Self::Float => Kind::Float,
            Self::Bytes => Kind::Bytes,
            Self::String => Kind::String,
            Self::Complex => Kind::Complex,
            Self::Interface => Kind::Interface,
        }
    }

    pub(super) fn go_name(self) -> &'static str {
        match self {
            Self::Bool => "bool",
            Self::Int => "int",
            Self::Uint => "uint",
            Self::Float => "float",
            Self::Bytes => "[]byte",
            Self::String => "string",
            Self::Complex => "complex",
            Self::Interface => "interface {}",
        }
    }
}

/// One described type. `L` is how it refers to others: by the sender's id on the wire, by place in a graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Definition<L> {
    Array { name: Name, element: L, length: u64 },
    Slice { name: Name, element: L },
    Struct { name: Name, fields: Vec<(Name, L)> },
    Map { name: Name, key: L, element: L },
    Opaque { name: Name, marshaler: Marshaler },
}

impl<L: Copy> Definition<L> {
    pub(crate) fn name(&self) -> &Name {
        match self {
            Self::Array { name, .. }
            | Self::Slice { name, .. }
            | Self::Struct { name, .. }
            | Self::Map { name, .. }
            | Self::Opaque { name, .. } => name,
        }
    }

    pub(super) fn kind(&self) -> Kind {
        match self {
            Self::Array { .. } => Kind::Array,
            Self::Slice { .. } => Kind::Slice,
            Self::Struct { .. } => Kind::Struct,
            Self::Map { .. } => Kind::Map,
            Self::Opaque { marshaler, .. } => Kind::Opaque(*marshaler),
        }
    }

    /// The types that this one refers to, in the order in which they are described.
    pub(crate) fn links(&self) -> Vec<L> {
        match self {
            Self::Array { element, .. } | Self::Slice { element, .. } => vec![*element],
            Self::Struct { fields, .. } => fields.iter().map(|(_, link)| *link).collect(),
            Self::Map { key, element, .. } => vec![*key, *element],
            Self::Opaque { .. } => vec![],
        }
    }

    pub(crate) fn relink<M>(&self, mut to: impl FnMut(L) -> M) -> Definition<M> {
        let name = self.name().clone();
        match self {
            Self::Array { element, length, .. } => {
                Definition::Array { name, element: to(*element), length: *length }
            }
            Self::Slice { element, .. } => Definition::Slice { name, element: to(*element) },
            Self::Struct { fields, .. } => Definition::Struct {
                name,
                fields: fields.iter().map(|(field, link)| (field.clone(), to(*link))).collect(),
            },
            Self::Map { key, element, .. } => {
                let key = to(*key);
                Definition::Map { name, key, element: to(*element) }
            }
            Self::Opaque { marshaler, .. } => Definition::Opaque { name, marshaler: *marshaler },
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    Basic(Basic),
    Node(usize),
}

pub(crate) type Graph = Arc<[Definition<Link>]>;
