//! Writes a document in block style, in which each scalar that needed no quotes anywhere needs none.

use std::fmt::Write as _;

use super::{Map, Node};

const STEP: usize = 2;

pub(super) fn document(map: &Map) -> String {
    let mut out = String::new();
    if map.entries.is_empty() {
        out.push_str("{}\n");
    } else {
        entries(&mut out, map, 0);
    }
    out
}

/// The entries, of which the first begins where the writer stands.
fn entries(out: &mut String, map: &Map, indent: usize) {
    for (at, (key, value)) in map.entries.iter().enumerate() {
        if at > 0 {
            pad(out, indent);
        }
        scalar(out, key, None);
        out.push(':');
        below(out, value, indent + STEP);
    }
}

/// A value behind its key, to the end of its last line.
fn below(out: &mut String, value: &Node, indent: usize) {
    match value {
        Node::Scalar { text, plain: true, tag: None } if text.is_empty() => out.push('\n'),
        Node::Scalar { .. } => {
            out.push(' ');
            scalar(out, value, Some(indent));
            out.push('\n');
        }
        Node::List { items, tag } => {
            tagged(out, tag.as_deref());
            if items.is_empty() {
                return out.push_str(" []\n");
            }
            out.push('\n');
            pad(out, indent);
            list(out, items, indent);
        }
        Node::Map(map) => {
            tagged(out, map.tag.as_deref());
            if map.entries.is_empty() {
                return out.push_str(" {}\n");
            }
            out.push('\n');
            pad(out, indent);
            entries(out, map, indent);
        }
    }
}

/// The items, of which the first begins where the writer stands.
fn list(out: &mut String, items: &[Node], indent: usize) {
    for (at, item) in items.iter().enumerate() {
        if at > 0 {
            pad(out, indent);
        }
        out.push('-');
        match item {
            Node::Map(map) if !map.entries.is_empty() && map.tag.is_none() => {
                out.push(' ');
                entries(out, map, indent + STEP);
            }
            Node::List { items, tag: None } if !items.is_empty() => {
                out.push(' ');
                list(out, items, indent + STEP);
            }
            item => below(out, item, indent + STEP),
        }
    }
}

fn tagged(out: &mut String, tag: Option<&str>) {
    if let Some(tag) = tag {
        out.push(' ');
        out.push_str(tag);
    }
}

fn pad(out: &mut String, indent: usize) {
    out.extend(std::iter::repeat_n(' ', indent));
}

/// A scalar without the line's end. Text of several lines becomes a block where there is an indentation for one and
/// nothing in it needs an escape.
fn scalar(out: &mut String, node: &Node, indent: Option<usize>) {
    let Node::Scalar { text, plain, tag } = node else {
        unreachable!("keys are scalars, the builder sees to it")
    };
    if let Some(tag) = tag {
        out.push_str(tag);
        out.push(' ');
    }
    match indent {
        _ if *plain && !text.contains('\n') => out.push_str(text),
        Some(indent) if fits_block(text) => block(out, text, indent),
        _ => quoted(out, text),
    }
}

fn fits_block(text: &str) -> bool {
    let shown = |letter: char| letter == '\n' || letter == '\t' || (!letter.is_control() && !is_odd(letter));
    text.contains('\n') && text.starts_with(|first: char| !first.is_whitespace()) && text.chars().all(shown)
}

/// Characters that some readers take for a line's end or for nothing.
fn is_odd(letter: char) -> bool {
    matches!(letter, '\u{85}' | '\u{2028}' | '\u{2029}' | '\u{feff}')
}

fn block(out: &mut String, text: &str, indent: usize) {
    let body = text.trim_end_matches('\n');
    out.push_str(match text.len() - body.len() {
        0 => "|-",
        1 => "|",
        _ => "|+",
    });
    for line in body.split('\n') {
        out.push('\n');
        if !line.is_empty() {
            pad(out, indent);
            out.push_str(line);
        }
    }
    // the caller ends the last line
    out.extend(std::iter::repeat_n('\n', (text.len() - body.len()).saturating_sub(1)));
}

fn quoted(out: &mut String, text: &str) {
    out.push('"');
    for letter in text.chars() {
        match letter {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            letter if letter.is_control() || is_odd(letter) => {
                write!(out, "\\u{:04x}", u32::from(letter)).expect("text takes everything");
            }
            letter => out.push(letter),
        }
    }
    out.push('"');
}
