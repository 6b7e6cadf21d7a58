//! Annotations, labels and finalizers, from the constants of `harvester-api` and what is said above each.

use std::{collections::BTreeMap, fs, path::Path};

use super::compare;

const HEAD: &str = "\
# Annotations, labels and finalizers

<!-- made by `UPDATE_DOCS=1 cargo test --test reference` from the comments in crates/harvester-api/src -->

Every one that the programs read or write. What those of a Service do together is in
[load-balancing.md](../load-balancing.md), of a Node in [nodes.md](../nodes.md), of a volume in [storage.md](../storage.md). Where
nobody is named, whoever makes the object writes it: people on a guest Service and on an IPPool, the cloud controller manager on the
LoadBalancer object of a Service. *This project* is the program whose object it is.
";

/// The files, and their headings.
const FILES: [(&str, &str); 3] =
    [("annotations", "Annotations"), ("labels", "Labels"), ("finalizers", "Finalizers")];

/// A constant with the comment above it.
struct Constant {
    name: String,
    value: String,
    comment: String,
}

fn constants(source: &str) -> Vec<Constant> {
    let (mut found, mut comment) = (Vec::new(), Vec::new());
    let mut lines = source.lines();
    while let Some(line) = lines.next() {
        if let Some(text) = line.strip_prefix("/// ") {
            comment.push(text);
        } else if let Some(rest) = line.strip_prefix("pub const ") {
            let mut rest = rest.to_owned();
            while !rest.ends_with(';') {
                rest.push_str(lines.next().expect("a constant ends"));
            }
            let name = rest.split(':').next().expect("a name").to_owned();
            if let Some(value) = rest.split('"').nth(1) {
                found.push(Constant { name, value: value.to_owned(), comment: comment.join(" ") });
            }
            comment.clear();
        } else {
            comment.clear();
        }
    }
    found
}

/// The comment with the keys that it links to in place of their names in the code.
fn without_links(text: &str, keys: &BTreeMap<&str, &str>) -> String {
    let mut said = String::new();
    let mut rest = text;
    while let Some((before, link)) = rest.split_once("[`") {
        let (name, after) = link.split_once("`]").expect("a link ends");
        let key =
            keys.get(name).unwrap_or_else(|| panic!("a reader of the page does not know {name}: {text}"));
        said += &format!("{before}`{key}`");
        rest = after;
    }
    said + rest
}

/// Where it is, and what it says there.
fn row(constant: &Constant, keys: &BTreeMap<&str, &str>) -> String {
    let Constant { name, value, comment } = constant;
    let text = without_links(comment, keys).replace('|', "\\|");
    let on = text.strip_prefix("On ").unwrap_or_else(|| panic!("{name}: say first what it is on: {comment}"));
    let (on, says) = on.split_once(": ").unwrap_or_else(|| (on.trim_end_matches('.'), ""));
    let on = on.strip_suffix("by us").map_or(on.to_owned(), |on| format!("{on}by this project"));
    let mut says = says.chars();
    let first = says.next().map(|first| first.to_uppercase().to_string()).unwrap_or_default();
    format!("| `{value}` | {on} | {first}{} |\n", says.as_str())
}

#[test]
fn the_document_of_annotations_is_what_the_code_says_of_them() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/harvester-api/src");
    let mut text = HEAD.to_owned();
    for (file, title) in FILES {
        let source = fs::read_to_string(folder.join(file).with_extension("rs")).expect("it is there");
        let constants = constants(&source);
        let keys = constants.iter().map(|one| (&*one.name, &*one.value)).collect();
        text += &format!("\n## {title}\n\n| Key | On, and by whom | Says |\n|---|---|---|\n");
        // the others are values, and beginnings of keys
        let is_key = |one: &&Constant| one.value.contains('/') && !one.value.ends_with('/');
        text.extend(constants.iter().filter(is_key).map(|one| row(one, &keys)));
    }
    compare("annotations.md", &text);
}

#[test]
fn a_constant_is_read_with_its_comment_over_lines() {
    let source = "/// On a Node: see\n/// [`B`].\npub const A: &str =\n    \"a/b\";\n\n/// x\npub const B: &str = \"c/d\";\n";
    let constants = constants(source);
    let keys = constants.iter().map(|one| (&*one.name, &*one.value)).collect();
    assert_eq!(row(&constants[0], &keys), "| `a/b` | a Node | See `c/d`. |\n");
    assert_eq!(constants[1].comment, "x");
    let by = |whom: &str| {
        let comment = format!("On a Node, by {whom}: x.");
        row(&Constant { name: "A".to_owned(), value: "a/b".to_owned(), comment }, &keys)
    };
    assert_eq!(by("us"), "| `a/b` | a Node, by this project | X. |\n");
    assert_eq!(by("users"), "| `a/b` | a Node, by users | X. |\n");
}
