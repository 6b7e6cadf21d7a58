use proptest::prelude::*;
use rstest::rstest;

use super::*;

fn written(text: &str) -> String {
    parse(text).unwrap().to_yaml()
}

#[rstest]
#[case::octal("mode: 012\n")]
#[case::exponent("n: 1e3\n")]
#[case::yes("on: yes\n")]
#[case::leading_zero("permissions: 0644\n")]
#[case::quoted_looks_the_same("mode: \"0644\"\n")]
#[case::sexagesimal("at: 12:30:45\n")]
#[case::nothing("a: ~\nb: null\n")]
#[case::lists("runcmd:\n  - a b\n  - - systemctl\n    - start\n    - x\n  - k: v\n    l: w\n")]
#[case::script("write_files:\n  - content: |\n      #!/bin/sh\n\n      echo 'a: b' # c\n    path: /x\n")]
#[case::kept_lines("a: |+\n  x\n\n\nb: |-\n  y\n  z\n")]
#[case::tag("content: !!binary aGVsbG8=\nother: !vault \"x\"\n")]
#[case::empty_collections("a: []\nb: {}\n")]
#[case::odd_plain("url: http://x/y?z={a},b\ncron: \"*\"\n")]
fn what_is_written_in_our_layout_stays_as_it_is(#[case] text: &str) {
    assert_eq!(written(text), text);
}

#[rstest]
#[case::flow("{a: [1, 012, yes], b: {c: 'd'}}", "a:\n  - 1\n  - 012\n  - yes\nb:\n  c: \"d\"\n")]
#[case::folded("a: >\n  x\n  y\n", "a: |\n  x y\n")]
#[case::comments("# one\na: 1 # two\n", "a: 1\n")]
#[case::anchors("a: &x {k: 1}\nb: *x\n", "a:\n  k: 1\nb:\n  k: 1\n")]
#[case::merge_key(
    "base: &x {k: 1, l: 2}\nb: {<<: *x, k: 3}\n",
    "base:\n  k: 1\n  l: 2\nb:\n  k: 3\n  l: 2\n"
)]
#[case::last_of_two("a: 1\nb: 2\na: 3\n", "a: 3\nb: 2\n")]
#[case::number_as_key("1: a\n", "1: a\n")]
#[case::nothing("", "{}\n")]
#[case::only_comment("#cloud-config\n", "{}\n")]
#[case::plain_over_lines("a: one\n  two\n", "a: one two\n")]
fn other_layouts_become_ours(#[case] text: &str, #[case] expected: &str) {
    assert_eq!(written(text), expected);
}

#[rstest]
#[case::list("- a\n", "no mapping")]
#[case::scalar("just text", "no mapping")]
#[case::two_documents("a: 1\n---\nb: 2\n", "more than one")]
#[case::broken("a: [1\n", "")]
#[case::list_as_key("? [a]\n: b\n", "a key is a list")]
#[case::merged_scalar("<<: 3\n", "<< stands before")]
fn what_is_no_mapping_is_refused_in_one_line(#[case] text: &str, #[case] part: &str) {
    let error = parse(text).unwrap_err();
    assert!(error.contains(part), "{error}");
    assert_eq!(error.lines().count(), 1, "{error}");
}

#[test]
fn a_document_that_would_explode_is_refused() {
    let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..9 {
        let below = format!("*a{}, ", level - 1).repeat(10);
        text += &format!("a{level}: &a{level} [{below}]\n");
    }
    assert!(parse(&text).unwrap_err().contains("more than"));
    assert!(parse(&"[".repeat(10_000)).is_err());
}

fn merged(first: &str, second: &str) -> (String, Vec<String>) {
    let mut map = parse(first).unwrap();
    let conflicts = merge(&mut map, parse(second).unwrap());
    (map.to_yaml(), conflicts.into_iter().map(|conflict| conflict.path).collect())
}

#[rstest]
#[case::absent("a: 1", "b: 2", "a: 1\nb: 2\n")]
#[case::null_gives_way("a: ~", "a: 2", "a: 2\n")]
#[case::null_adds_nothing("a: 1", "a: ~\nb: null", "a: 1\n")]
#[case::first_wins("a: 1", "a: 2", "a: 1\n")]
// docs/contract/node-driver.md#B17: what the user says stays, also if it is false, zero or empty
#[case::false_stays("a: false\nb: 0\nc: ''", "a: true\nb: 1\nc: x", "a: false\nb: 0\nc: \"\"\n")]
#[case::lists("a: [1]", "a: [2]", "a:\n  - 1\n  - 2\n")]
#[case::maps("a: {b: 1, c: ~}", "a: {b: 2, c: 3, d: 4}", "a:\n  b: 1\n  c: 3\n  d: 4\n")]
#[case::scalar_under_a_list("a: [1]", "a: x", "a:\n  - 1\n")]
fn the_first_wins_and_lists_are_appended(#[case] first: &str, #[case] second: &str, #[case] expected: &str) {
    assert_eq!(merged(first, second), (expected.to_owned(), vec![]));
}

#[test]
fn what_is_lost_is_told() {
    let (text, lost) = merged("a: x\nm: {n: 1}", "a: [1]\nm: {n: {o: 2}}");
    assert_eq!(text, "a: x\nm:\n  n: 1\n");
    assert_eq!(lost, ["a", "m.n"]);
}

#[test]
fn aliases_write_out_no_more_than_a_secret_can_hold() {
    let billion = |times: usize| {
        let aliases = vec!["*a"; times].join(", ");
        format!("a: &a '{}'\nb: [{aliases}]\n", "x".repeat(1000))
    };
    assert!(parse(&billion(900)).is_ok());
    let error = parse(&billion(2000)).unwrap_err();
    assert!(error.contains("more than 1 MiB"), "{error}");
    // aliases of aliases: few values, and each the tenfold of the one before
    let mut nested = format!("l0: &l0 '{}'\n", "x".repeat(100_000));
    for level in 1..4 {
        let below = vec![format!("*l{}", level - 1); 10].join(", ");
        nested.push_str(&format!("l{level}: &l{level} [{below}]\n"));
    }
    assert!(parse(&nested).unwrap_err().contains("more than 1 MiB"));
}

fn node() -> impl Strategy<Value = Node> {
    let text = prop_oneof![any::<String>(), "[ -~\n]{0,40}", "[a-z: #\n\t'\"|>-]{0,30}"];
    let leaf =
        prop_oneof![text.prop_map(Node::text), "[a-z0-9][a-z0-9.]{0,8}".prop_map(|text| Node::plain(&text))];
    leaf.prop_recursive(4, 40, 5, |inner| {
        let list = prop::collection::vec(inner.clone(), 0..4).prop_map(Node::list);
        let key = prop_oneof!["[a-z_]{1,8}", any::<String>()];
        let map = prop::collection::vec((key, inner), 0..4).prop_map(|entries| {
            let mut map = Map::default();
            for (key, value) in entries {
                map.insert(Node::text(key), value);
            }
            Node::Map(map)
        });
        prop_oneof![list, map]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_is_written_is_read_back_equal(value in node()) {
        let map = Map::default().with("root", value);
        let text = map.to_yaml();
        let back = parse(&text);
        prop_assert_eq!(back.as_ref(), Ok(&map), "{}", text);
    }

    #[test]
    fn no_text_makes_it_panic(text in "[a-z:\\-{}\\[\\]&*!|>'\"#%@`,?\n \t]{0,60}") {
        drop(parse(&text).map(|map| map.to_yaml()));
    }
}
