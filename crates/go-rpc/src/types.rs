//! Types as the wire knows them.
//!
//! Eight types are predefined; all others are described by the sender before the first value that needs
//! them. A described type may refer to itself (Go: `type Node struct { Next *Node }`), so a type is a place
//! in a small graph of definitions:
//!
//! ```text
//! Type ──► [ struct RPCFlags { Values: ●──┐ }, map[string]interface {} ]
//!                                         └────────────▲
//! ```
//! Pointers do not exist on the wire: Go sends what they point at, and leaves a nil one out.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

mod definition;

pub(crate) use definition::{Basic, Definition, Graph, Link, Name};

/// The kind of value that a type describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Go's `bool`.
    Bool,
    /// Every signed integer of Go (`int`, `int8` to `int64`, and named ones such as `time.Duration`).
    Int,
    /// Every unsigned integer of Go.
    Uint,
    /// `float32` and `float64`.
    Float,
    /// `[]byte`.
    Bytes,
    /// `string`.
    String,
    /// `complex64` and `complex128`.
    Complex,
    /// Any interface type; the value names its concrete type.
    Interface,
    /// `[n]T`.
    Array,
    /// `[]T`.
    Slice,
    /// `map[K]V`.
    Map,
    /// A struct.
    Struct,
    /// A type that writes its own bytes, such as `time.Time`.
    Opaque(Marshaler),
}

/// Which of Go's interfaces a self-writing type implements. The receiver's type must implement the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Marshaler {
    /// `gob.GobEncoder`.
    Gob,
    /// `encoding.BinaryMarshaler`.
    Binary,
    /// `encoding.TextMarshaler`.
    Text,
}

/// A type. Cheap to clone; two types are equal if everything that the wire says of them is.
///
/// ```
/// use go_rpc::Type;
///
/// let flags = Type::structure("RPCFlags", [("Values", Type::map(Type::STRING, Type::INTERFACE))]);
/// assert_eq!(flags.to_string(), "RPCFlags");
/// assert_eq!(flags.field("Values").unwrap().to_string(), "map[string]interface {}");
/// ```
#[derive(Clone)]
pub struct Type(pub(crate) Repr);

#[derive(Clone)]
pub(crate) enum Repr {
    Basic(Basic),
    Defined(Graph, usize),
}

impl Type {
    /// Go's `bool`.
    pub const BOOL: Self = Self(Repr::Basic(Basic::Bool));
    /// Go's signed integers.
    pub const INT: Self = Self(Repr::Basic(Basic::Int));
    /// Go's unsigned integers.
    pub const UINT: Self = Self(Repr::Basic(Basic::Uint));
    /// Go's floats.
    pub const FLOAT: Self = Self(Repr::Basic(Basic::Float));
    /// Go's `[]byte`.
    pub const BYTES: Self = Self(Repr::Basic(Basic::Bytes));
    /// Go's `string`.
    pub const STRING: Self = Self(Repr::Basic(Basic::String));
    /// Go's complex numbers.
    pub const COMPLEX: Self = Self(Repr::Basic(Basic::Complex));
    /// Any interface of Go.
    pub const INTERFACE: Self = Self(Repr::Basic(Basic::Interface));

    /// `[]element`. Go knows slices without a name of their own by no name.
    #[must_use]
    pub fn slice(element: Self) -> Self {
        Self::build(|graph| Definition::Slice { name: "".into(), element: graph.add(element) })
    }

    /// `[length]element`.
    #[must_use]
    pub fn array(element: Self, length: u64) -> Self {
        Self::build(|graph| Definition::Array { name: "".into(), element: graph.add(element), length })
    }

    /// `map[key]element`.
    #[must_use]
    pub fn map(key: Self, element: Self) -> Self {
        Self::build(|graph| {
            let key = graph.add(key);
            Definition::Map { name: "".into(), key, element: graph.add(element) }
        })
    }

    /// A struct; `name` is its bare Go name, empty for an anonymous one. Fields are numbered as given.
    ///
    /// # Panics
    /// If two fields have the same name.
    #[must_use]
    pub fn structure<'a>(name: &str, fields: impl IntoIterator<Item = (&'a str, Self)>) -> Self {
        Self::build(|graph| {
            let mut names = HashSet::new();
            let mut add = |(field, of): (&'a str, Self)| {
                assert!(names.insert(field), "struct {name} has two fields called {field}");
                (Name::from(field), graph.add(of))
            };
            Definition::Struct { name: name.into(), fields: fields.into_iter().map(&mut add).collect() }
        })
    }

    /// A type that writes its own bytes; `Type::opaque("Time", Marshaler::Gob)` is `time.Time`.
    #[must_use]
    pub fn opaque(name: &str, marshaler: Marshaler) -> Self {
        Self::build(|_| Definition::Opaque { name: name.into(), marshaler })
    }

    /// Returns the kind of value that the type describes.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match &self.0 {
            Repr::Basic(basic) => basic.kind(),
            Repr::Defined(graph, at) => graph[*at].kind(),
        }
    }

    /// The name in the description; empty if there is none.
    #[must_use]
    pub fn name(&self) -> &str {
        match &self.0 {
            Repr::Basic(basic) => basic.go_name(),
            Repr::Defined(graph, at) => graph[*at].name(),
        }
    }

    /// The element of a slice, an array or a map.
    #[must_use]
    pub fn element(&self) -> Option<Self> {
        match self.definition()? {
            Definition::Array { element, .. }
            | Definition::Slice { element, .. }
            | Definition::Map { element, .. } => Some(self.linked(*element)),
            Definition::Struct { .. } | Definition::Opaque { .. } => None,
        }
    }

    /// The fields of a struct in their order; none for everything else.
    pub fn fields(&self) -> impl Iterator<Item = (&str, Self)> {
        let fields = match self.definition() {
            Some(Definition::Struct { fields, .. }) => fields.as_slice(),
            _ => &[],
        };
        fields.iter().map(|(name, link)| (&**name, self.linked(*link)))
    }

    /// The type of the struct's field of this name.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<Self> {
        self.fields().find_map(|(field, of)| (field == name).then_some(of))
    }

    pub(crate) fn definition(&self) -> Option<&Definition<Link>> {
        match &self.0 {
            Repr::Basic(_) => None,
            Repr::Defined(graph, at) => Some(&graph[*at]),
        }
    }

    /// The type behind a link of this type's definition.
    pub(crate) fn linked(&self, link: Link) -> Self {
        match (link, &self.0) {
            (Link::Basic(basic), _) => Self(Repr::Basic(basic)),
            (Link::Node(at), Repr::Defined(graph, _)) => Self(Repr::Defined(graph.clone(), at)),
            (Link::Node(_), Repr::Basic(_)) => unreachable!("predefined types have no links"),
        }
    }

    fn build(define: impl FnOnce(&mut Builder) -> Definition<Link>) -> Self {
        let mut builder = Builder::default();
        let definition = define(&mut builder);
        let at = builder.0.len();
        builder.0.push(definition);
        Self(Repr::Defined(builder.0.into(), at))
    }

    fn describe(&self, f: &mut fmt::Formatter<'_>, depth: usize) -> fmt::Result {
        let Some(definition) = self.definition() else { return f.write_str(self.name()) };
        if !definition.name().is_empty() {
            return f.write_str(definition.name());
        }
        if depth == 0 {
            return f.write_str("…"); // the sender may describe an endless type
        }
        match definition {
            Definition::Array { element, length, .. } => {
                write!(f, "[{length}]")?;
                self.linked(*element).describe(f, depth - 1)
            }
            Definition::Slice { element, .. } => {
                f.write_str("[]")?;
                self.linked(*element).describe(f, depth - 1)
            }
            Definition::Map { key, element, .. } => {
                f.write_str("map[")?;
                self.linked(*key).describe(f, depth - 1)?;
                f.write_str("]")?;
                self.linked(*element).describe(f, depth - 1)
            }
            Definition::Struct { .. } => f.write_str("struct"),
            Definition::Opaque { .. } => f.write_str("opaque"),
        }
    }
}

/// A graph that grows from the leaves; equal types are kept once.
#[derive(Default)]
struct Builder(Vec<Definition<Link>>);

impl Builder {
    fn add(&mut self, of: Type) -> Link {
        let (graph, root) = match of.0 {
            Repr::Basic(basic) => return Link::Basic(basic),
            Repr::Defined(graph, at) => (graph, at),
        };
        if let Some(there) = (0..self.0.len()).find(|at| same((&self.0, *at), (&graph, root))) {
            return Link::Node(there);
        }
        let start = self.0.len();
        let moved = graph.iter().map(|definition| {
            definition.relink(|link| match link {
                Link::Basic(basic) => Link::Basic(basic),
                Link::Node(at) => Link::Node(start + at),
            })
        });
        self.0.extend(moved);
        Link::Node(start + root)
    }
}

impl PartialEq for Type {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Repr::Basic(a), Repr::Basic(b)) => a == b,
            (Repr::Defined(a, at_a), Repr::Defined(b, at_b)) => {
                (Arc::ptr_eq(a, b) && at_a == at_b) || same((a, *at_a), (b, *at_b))
            }
            _ => false,
        }
    }
}

/// Whether two places in two graphs describe the same: no walk along equal links ends at a difference.
fn same(a: (&[Definition<Link>], usize), b: (&[Definition<Link>], usize)) -> bool {
    let mut seen = HashSet::from([(a.1, b.1)]);
    let mut open = vec![(a.1, b.1)];
    while let Some((at_a, at_b)) = open.pop() {
        let (here, there) = (&a.0[at_a], &b.0[at_b]);
        if here.relink(|_| ()) != there.relink(|_| ()) {
            return false;
        }
        for links in here.links().into_iter().zip(there.links()) {
            match links {
                (Link::Basic(a), Link::Basic(b)) if a == b => {}
                (Link::Node(a), Link::Node(b)) => {
                    if seen.insert((a, b)) {
                        open.push((a, b));
                    }
                }
                _ => return false,
            }
        }
    }
    true
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.describe(f, 8)
    }
}

impl fmt::Debug for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Type({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_equal_by_what_they_describe() {
        let strings = || Type::slice(Type::STRING);
        assert_eq!(strings(), strings());
        assert_ne!(strings(), Type::slice(Type::INT));
        assert_ne!(Type::array(Type::INT, 2), Type::array(Type::INT, 3));
        let pair = Type::structure("Pair", [("A", strings()), ("B", strings())]);
        assert_eq!(pair.field("A"), Some(strings()));
        assert_ne!(pair, Type::structure("Pair", [("A", strings()), ("C", strings())]));
    }

    #[test]
    fn a_type_used_twice_is_kept_once() {
        let strings = Type::slice(Type::STRING);
        let pair = Type::structure("Pair", [("A", strings.clone()), ("B", strings)]);
        let Repr::Defined(graph, _) = &pair.0 else { panic!("a struct is described") };
        assert_eq!(graph.len(), 2);
    }

    #[test]
    fn an_endless_type_is_compared_and_shown_all_the_same() {
        let endless = || {
            let graph: Graph = [Definition::Slice { name: "".into(), element: Link::Node(0) }].into();
            Type(Repr::Defined(graph, 0))
        };
        assert_eq!(endless(), endless());
        assert_eq!(endless().to_string(), "[][][][][][][][]…");
    }
}
