//! Every fact that code or a document cites is in the repository.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use super::{files, root, short};

const CONTRACT: &str = "docs/contract/";

/// Papers that were at hand when this was written, and that no reader of the repository has.
const PAPERS: [&str; 13] = [
    "pitfalls-ccm",
    "pitfalls-csi",
    "pitfalls-load-balancer",
    "pitfalls-node-driver",
    "cloud-controller-manager.md",
    "csi-driver.md",
    "load-balancer.md",
    "node-driver.md",
    "user-docs.md",
    "addresses.md",
    "data-paths.md",
    "simulators.md",
    "vip-agent.md",
];

fn is_of_an_anchor(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '-' || c == '.'
}

/// Facts that `text` cites: file and anchor. After one, `, #other` and `and #other` are of the same file.
fn citations(text: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for (at, _) in text.match_indices(CONTRACT) {
        let rest = &text[at + CONTRACT.len()..];
        let Some((file, mut rest)) = rest.split_once('#') else { continue };
        // `<file>.md#<anchor>` is how to cite, not a citation
        if !file.ends_with(".md") || file.contains(|c: char| c.is_whitespace() || c == '<') {
            continue;
        }
        loop {
            let end = rest.find(|c| !is_of_an_anchor(c)).unwrap_or(rest.len());
            found.push((file.to_owned(), rest[..end].trim_end_matches('.').to_owned()));
            rest = &rest[end..];
            let next = [", #", " and #"].iter().find_map(|between| rest.strip_prefix(between));
            let Some(next) = next else { break };
            rest = next;
        }
    }
    found
}

fn sources() -> Vec<(PathBuf, String)> {
    let files = files(root(), &[".rs", ".md", ".yaml", ".toml"]);
    files.into_iter().map(|file| (file.clone(), fs::read_to_string(&file).unwrap())).collect()
}

/// The anchors of each file of the contract.
fn anchors() -> BTreeMap<String, Vec<String>> {
    let folder = root().join(CONTRACT);
    let of = |file: PathBuf| {
        let text = fs::read_to_string(&file).unwrap();
        let anchors = text.split("<a id=\"").skip(1).map(|rest| rest.split('"').next().unwrap().to_owned());
        (file.file_name().unwrap().to_string_lossy().into_owned(), anchors.collect())
    };
    files(&folder, &[".md"]).into_iter().map(of).collect()
}

#[test]
fn every_citation_of_the_contract_leads_to_a_fact() {
    let anchors = anchors();
    let mut astray = Vec::new();
    for (file, text) in sources() {
        // the test of this test
        if file.ends_with("tests/workspace/citations.rs") || file.ends_with("docs/contract/README.md") {
            continue;
        }
        for (paper, anchor) in citations(&text) {
            if !anchors.get(&paper).is_some_and(|all| all.contains(&anchor)) {
                astray.push(format!("{}: {CONTRACT}{paper}#{anchor}", short(&file)));
            }
        }
    }
    assert!(astray.is_empty(), "no such fact: {astray:#?}");
}

#[test]
fn no_fact_is_there_twice() {
    for (file, mut all) in anchors() {
        let count = all.len();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), count, "{file}");
    }
}

/// Papers that `line` of a source cites, outside of the repository's own documents.
fn papers(line: &str) -> Vec<&'static str> {
    let outside = |paper: &&'static str| {
        line.match_indices(*paper)
            .any(|(at, _)| !line[..at].ends_with("docs/") && !line[..at].ends_with(CONTRACT))
    };
    let mut cited: Vec<&str> = PAPERS.iter().copied().filter(outside).collect();
    let words: Vec<&str> = line.split_whitespace().collect();
    let numbered = words.windows(2).any(|pair| {
        pair[0].trim_start_matches('(').eq_ignore_ascii_case("contract")
            && pair[1].starts_with(|c: char| c.is_ascii_digit())
    });
    if numbered {
        cited.push("contract");
    }
    cited
}

#[test]
fn no_comment_cites_a_paper_that_is_not_in_the_repository() {
    let mut outside = Vec::new();
    for (file, text) in sources() {
        let name = short(&file);
        if !name.ends_with(".rs") || name.starts_with("tests/workspace/") {
            continue;
        }
        for (number, line) in text.lines().enumerate() {
            let cited = papers(line);
            if !cited.is_empty() {
                outside.push(format!("{name}:{}: {cited:?}", number + 1));
            }
        }
    }
    assert!(outside.is_empty(), "cite docs/contract/ instead: {outside:#?}");
}

#[test]
fn citations_are_read_as_they_are_written() {
    let read = |text: &str| {
        citations(text).into_iter().map(|(file, anchor)| format!("{file}#{anchor}")).collect::<Vec<_>>()
    };
    assert_eq!(read("// docs/contract/load-balancer.md#LB-1: there"), ["load-balancer.md#LB-1"]);
    assert_eq!(read("(docs/contract/addresses.md#1)."), ["addresses.md#1"]);
    let many = "docs/contract/cloud-controller-manager.md#L8, #L9 and #7.2.";
    assert_eq!(read(many), ["L8", "L9", "7.2"].map(|anchor| format!("cloud-controller-manager.md#{anchor}")));
    assert_eq!(read("docs/contract/ has facts"), [""; 0]);
    assert_eq!(papers("// pitfalls-ccm.md L1 and contract 13"), ["pitfalls-ccm", "contract"]);
    assert_eq!(papers("// see docs/node-driver.md, by contract"), [""; 0]);
}

/// The part of a source that is run by tests alone: the whole of a file of tests, else what follows `#[cfg(test)]`.
fn of_tests<'a>(file: &str, text: &'a str) -> &'a str {
    if file.split('/').any(|part| part == "tests" || part == "tests.rs") {
        return text;
    }
    text.split_once("#[cfg(test)]").map_or("", |(_, tests)| tests)
}

#[test]
fn a_citation_in_product_code_is_no_test() {
    let text = "// product\n#[cfg(test)]\nmod tests {}";
    assert_eq!(of_tests("crates/a/src/lib.rs", text), "\nmod tests {}");
    assert_eq!(of_tests("crates/a/src/lib.rs", "// product"), "");
    for file in ["crates/a/tests/component/b.rs", "crates/a/src/b/tests.rs", "crates/a/src/b/tests/c.rs"] {
        assert_eq!(of_tests(file, text), text);
    }
}

/// What goes wrong in a Go program, by the document that tells it: the beginning of an anchor, and how many there are.
const FAULTS: [(&str, &[(&str, usize)]); 2] = [
    ("cloud-controller-manager.md", &[("L", 37), ("N", 18), ("C", 15), ("V", 14), ("S", 16)]),
    (
        "load-balancer.md",
        &[
            ("LB-", 20),
            ("EP-", 7),
            ("IP-", 16),
            ("IM-", 6),
            ("WH-", 11),
            ("PR-", 11),
            ("VM-", 2),
            ("CH-", 4),
            ("S-", 9),
        ],
    ),
];

#[test]
fn every_fault_of_the_go_programs_is_named_by_a_test_or_says_why_not() {
    let cited: Vec<_> = sources()
        .iter()
        .filter(|(file, _)| file.extension().is_some_and(|it| it == "rs"))
        .flat_map(|(file, text)| citations(of_tests(&short(file), text)))
        .collect();
    for (name, groups) in FAULTS {
        let document = fs::read_to_string(root().join(CONTRACT).join(name)).unwrap();
        let (_, without_test) = document.split_once("## Faults that no test names").unwrap();
        let is_told = |fault: &String| {
            let anchor = format!("<a id=\"{fault}\"></a>");
            without_test.contains(&anchor)
                || document.contains(&anchor)
                    && cited.iter().any(|(file, anchor)| file == name && anchor == fault)
        };
        let all = groups.iter().flat_map(|(group, count)| (1..=*count).map(move |at| format!("{group}{at}")));
        let missing: Vec<_> = all.filter(|fault| !is_told(fault)).collect();
        assert!(
            missing.is_empty(),
            "{name}: a test cites these, or a sentence says why none does: {missing:?}"
        );
    }
}
