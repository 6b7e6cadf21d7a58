//! The product's code, for tests that forbid a word in it.

use std::fs;

use super::{files, root, short};

/// One line of code.
pub(crate) struct Line {
    /// Path from the root, and number.
    pub(crate) place: String,
    pub(crate) text: String,
}

/// The lines of the product, without comments, tests, examples and fixtures.
pub(crate) fn lines() -> Vec<Line> {
    let mut lines = Vec::new();
    for folder in ["crates", "src"] {
        for file in files(&root().join(folder), &[".rs"]) {
            let path = short(&file);
            let is_product = path.starts_with("src/") || path.contains("/src/");
            let name = file.file_stem().unwrap().to_string_lossy().into_owned();
            if !is_product || path.contains("/tests/") || ["tests", "fixtures"].contains(&name.as_str()) {
                continue;
            }
            let text = fs::read_to_string(&file).unwrap();
            for (number, text) in without_tests(&text).lines().enumerate() {
                if !text.trim_start().starts_with("//") {
                    lines.push(Line { place: format!("{path}:{}", number + 1), text: text.to_owned() });
                }
            }
        }
    }
    lines
}

/// The part of a file before its module of tests, which is its last one.
fn without_tests(text: &str) -> &str {
    text.find("\n#[cfg(test)]\nmod ").map_or(text, |end| &text[..end])
}

#[test]
fn tests_are_no_part_of_the_product() {
    assert_eq!(without_tests("fn a() {}\n#[cfg(test)]\nmod tests {\n}"), "fn a() {}");
    let lines = lines();
    let has = |place: &str| lines.iter().any(|line| line.place.starts_with(place));
    assert!(has("crates/ipam/src/record.rs:") && has("src/main.rs:") && !has("tests/workspace/product.rs:"));
}
