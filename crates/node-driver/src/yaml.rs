//! YAML whose scalars keep their text.
//!
//! cloud-init reads YAML 1.1, where `012` is ten and `yes` is true; other readers disagree. So the driver does not
//! interpret scalars: this tree keeps the text of each one, whether it had quotes, and its tag. Only the layout changes.

mod emit;
mod merge;

use std::{borrow::Cow, collections::HashMap};

use granit_parser::{Event, Options, Parser, ScalarStyle, Tag};

pub(crate) use merge::{Conflict, merge};

/// Most nodes of one document, with aliases written out.
const MOST_NODES: usize = 100_000;
/// Most bytes of all scalars, with aliases written out. No Secret can hold more.
const MOST_BYTES: usize = 1 << 20;
const DEEPEST: usize = 64;

/// A node of a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Node {
    Scalar {
        text: String,
        /// Without quotes: its text decides what it is.
        plain: bool,
        tag: Option<String>,
    },
    List {
        items: Vec<Node>,
        tag: Option<String>,
    },
    Map(Map),
}

/// A mapping, in the document's order. No two keys have the same text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Map {
    entries: Vec<(Node, Node)>,
    tag: Option<String>,
}

impl Node {
    /// A scalar with quotes.
    pub(crate) fn text(text: impl Into<String>) -> Self {
        Self::Scalar { text: text.into(), plain: false, tag: None }
    }

    /// A scalar without quotes.
    pub(crate) fn plain(text: &str) -> Self {
        Self::Scalar { text: text.to_owned(), plain: true, tag: None }
    }

    pub(crate) fn list(items: impl IntoIterator<Item = Self>) -> Self {
        Self::List { items: items.into_iter().collect(), tag: None }
    }

    /// Whether this is YAML's null.
    pub(crate) fn is_null(&self) -> bool {
        matches!(self, Self::Scalar { text, plain: true, tag: None }
            if matches!(text.as_str(), "" | "~" | "null" | "Null" | "NULL"))
    }
}

impl Map {
    /// With one more entry.
    #[must_use]
    pub(crate) fn with(mut self, key: &str, value: Node) -> Self {
        self.insert(Node::plain(key), value);
        self
    }

    /// Of two equal keys the last one wins, as in most readers of YAML.
    fn insert(&mut self, key: Node, value: Node) {
        match self.entries.iter_mut().find(|(known, _)| same_key(known, &key)) {
            Some((_, present)) => *present = value,
            None => self.entries.push((key, value)),
        }
    }

    /// The document, without a header. An empty map is `{}`.
    pub(crate) fn to_yaml(&self) -> String {
        emit::document(self)
    }
}

fn same_key(one: &Node, other: &Node) -> bool {
    match (one, other) {
        (Node::Scalar { text: one, .. }, Node::Scalar { text: other, .. }) => one == other,
        _ => one == other,
    }
}

/// Reads a document whose root is a mapping, and writes aliases and `<<` out. An empty document is an empty mapping.
///
/// # Errors
/// One line: where the YAML is broken, or why it is no mapping.
pub(crate) fn parse(text: &str) -> Result<Map, String> {
    match read(text).map_err(|(Broken(reason) | TooLong(reason))| reason)? {
        None => Ok(Map::default()),
        Some(Node::Map(map)) => Ok(map),
        Some(node) if node.is_null() => Ok(Map::default()),
        Some(_) => Err("it is no mapping of keys to values".to_owned()),
    }
}

/// Whether a document stays within the limits once its aliases are written out. A broken one does.
///
/// # Errors
/// One line: which limit.
pub(crate) fn check_size(text: &str) -> Result<(), String> {
    match read(text) {
        Err(TooLong(reason)) => Err(reason),
        Err(Broken(_)) | Ok(_) => Ok(()),
    }
}

/// Why a document is not read.
enum Error {
    Broken(String),
    TooLong(String),
}
use Error::{Broken, TooLong};

fn read(text: &str) -> Result<Option<Node>, Error> {
    let mut options = Options::default();
    options.set_emit_comments(false);
    options.flow_nesting_limit = DEEPEST;
    options.block_nesting_limit = DEEPEST;
    let mut builder = Builder::default();
    let mut documents = 0;
    for event in Parser::new_from_str_with_options(text, options) {
        let (event, _) = event.map_err(|error| Broken(one_line(&error.to_string())))?;
        if matches!(event, Event::DocumentStart(..)) {
            documents += 1;
            if documents > 1 {
                return Err(Broken("more than one YAML document".to_owned()));
            }
        }
        builder.take(event)?;
    }
    Ok(builder.root)
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A collection that is not complete yet.
enum OpenCollection {
    List { items: Vec<Node>, tag: Option<String>, anchor: usize },
    Map { map: Map, key: Option<Node>, merged: Vec<Node>, anchor: usize },
}

#[derive(Default)]
struct Builder {
    open: Vec<OpenCollection>,
    anchors: HashMap<usize, (Node, Size)>,
    size: Size,
    root: Option<Node>,
}

impl Builder {
    fn take(&mut self, event: Event<'_>) -> Result<(), Error> {
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                self.count(Size { nodes: 1, bytes: text.len() })?;
                let (plain, tag) = (style == ScalarStyle::Plain, tag_text(tag));
                self.complete(Node::Scalar { text: text.into_owned(), plain, tag }, anchor)
            }
            Event::SequenceStart(_, anchor, tag) => {
                self.open.push(OpenCollection::List { items: vec![], tag: tag_text(tag), anchor });
                self.count(Size { nodes: 1, bytes: 0 })
            }
            Event::MappingStart(_, anchor, tag) => {
                let map = Map { entries: vec![], tag: tag_text(tag) };
                self.open.push(OpenCollection::Map { map, key: None, merged: vec![], anchor });
                self.count(Size { nodes: 1, bytes: 0 })
            }
            Event::SequenceEnd | Event::MappingEnd => match self.open.pop() {
                Some(OpenCollection::List { items, tag, anchor }) => {
                    self.complete(Node::List { items, tag }, anchor)
                }
                Some(OpenCollection::Map { map, merged, anchor, .. }) => {
                    let map = with_merged(map, merged)?;
                    self.complete(Node::Map(map), anchor)
                }
                None => Err(Broken("a collection ends that did not begin".to_owned())),
            },
            Event::Alias(anchor) => {
                let known = self.anchors.get(&anchor).map(|(_, size)| *size);
                let inside = || Broken("an alias stands inside of what it means".to_owned());
                // counted before it is written out
                self.count(known.ok_or_else(inside)?)?;
                let node = self.anchors[&anchor].0.clone();
                self.complete(node, 0)
            }
            _ => Ok(()),
        }
    }

    fn count(&mut self, more: Size) -> Result<(), Error> {
        self.size = self.size.plus(more);
        if self.size.nodes > MOST_NODES {
            return Err(TooLong(format!("it has more than {MOST_NODES} values")));
        }
        if self.size.bytes > MOST_BYTES {
            let mib = MOST_BYTES >> 20;
            return Err(TooLong(format!("it has more than {mib} MiB of text, its aliases written out")));
        }
        Ok(())
    }

    fn complete(&mut self, node: Node, anchor: usize) -> Result<(), Error> {
        if anchor != 0 {
            self.anchors.insert(anchor, (node.clone(), size(&node)));
        }
        match self.open.last_mut() {
            None => self.root = Some(node),
            Some(OpenCollection::List { items, .. }) => items.push(node),
            Some(OpenCollection::Map { map, key, merged, .. }) => match key.take() {
                None if matches!(node, Node::Scalar { .. }) => *key = Some(node),
                None => return Err(Broken("a key is a list or a mapping".to_owned())),
                Some(Node::Scalar { text, plain: true, tag: None }) if text == "<<" => merged.push(node),
                Some(key) => map.insert(key, node),
            },
        }
        Ok(())
    }
}

/// Adds the entries of `<<` whose keys the map does not have; of several sources the first wins.
fn with_merged(mut map: Map, merged: Vec<Node>) -> Result<Map, Error> {
    for node in merged {
        let sources = match node {
            Node::List { items, .. } => items,
            node => vec![node],
        };
        for source in sources {
            let Node::Map(source) = source else {
                return Err(Broken("<< stands before what is no mapping".to_owned()));
            };
            for (key, value) in source.entries {
                if !map.entries.iter().any(|(known, _)| same_key(known, &key)) {
                    map.entries.push((key, value));
                }
            }
        }
    }
    Ok(map)
}

/// How much a node is, aliases written out.
#[derive(Clone, Copy, Default)]
struct Size {
    nodes: usize,
    bytes: usize,
}

impl Size {
    fn plus(self, other: Self) -> Self {
        Self { nodes: self.nodes + other.nodes, bytes: self.bytes + other.bytes }
    }
}

fn size(node: &Node) -> Size {
    let own = |bytes| Size { nodes: 1, bytes };
    match node {
        Node::Scalar { text, .. } => own(text.len()),
        Node::List { items, .. } => items.iter().map(size).fold(own(0), Size::plus),
        Node::Map(map) => {
            let entries = map.entries.iter().map(|(key, value)| size(key).plus(size(value)));
            entries.fold(own(0), Size::plus)
        }
    }
}

fn tag_text(tag: Option<Cow<'_, Tag>>) -> Option<String> {
    tag.map(|tag| tag.original())
}

#[cfg(test)]
mod tests;
