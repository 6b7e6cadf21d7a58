//! The values of the charts, from the comments of `values.yaml`: a comment belongs to the key below it.

use std::{fs, path::Path};

const HEAD: &str = "\
# Values of the charts

<!-- made by `UPDATE_DOCS=1 cargo test --test reference` from the files values.yaml of deploy/charts -->

Names and defaults are those of the Go programs' charts, and some are ours; [install.md](../install.md) says which, and what
to set where. Lists and blocks of several lines are in `values.yaml` itself.
";

const CHARTS: [(&str, &str, &str); 4] = [
    ("harvester-cloud-provider", "harvester-cloud-provider/values.yaml", ""),
    (
        "kube-vip",
        "harvester-cloud-provider/charts/kube-vip/values.yaml",
        "Under `kube-vip` of `harvester-cloud-provider`, whose own values for it, above, win.",
    ),
    ("harvester-csi-driver", "harvester-csi-driver/values.yaml", ""),
    ("harvester-load-balancer", "harvester-load-balancer/values.yaml", ""),
];

/// Blocks that are one value to people.
const WHOLE: [&str; 3] = ["affinity", "nodeSelector", "securityContext"];

#[derive(Debug, PartialEq, Eq)]
struct Value {
    name: String,
    /// Nothing for a block, whose keys follow.
    default: String,
    comment: String,
}

/// The values that are worth a row: those with a default, and blocks with a comment.
fn values(text: &str) -> Vec<Value> {
    let (mut found, mut above): (Vec<Value>, Vec<(usize, &str)>) = (Vec::new(), Vec::new());
    let mut comment = Vec::new();
    let mut inside: Option<usize> = None;
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let rest = line.trim_start();
        let indent = line.len() - rest.len();
        if rest.is_empty() {
            comment.clear();
            continue;
        }
        if let Some(words) = rest.strip_prefix('#') {
            comment.push(words.trim());
            continue;
        }
        if inside.is_some_and(|of| indent > of || rest.starts_with("- ")) {
            continue;
        }
        let (key, default) = rest.split_once(':').expect("a line is a key");
        above.retain(|(of, _)| *of < indent);
        let path = above.iter().map(|(_, key)| *key).chain([key]).collect::<Vec<_>>().join(".");
        let is_list = lines.peek().is_some_and(|next| next.trim_start().starts_with("- "));
        inside = (default.is_empty() && (is_list || WHOLE.contains(&key))).then_some(indent);
        let default = match default.trim() {
            "" if inside.is_some() => "a block".to_owned(),
            "" => String::new(),
            text => format!("`{text}`"),
        };
        let comment = std::mem::take(&mut comment).join(" ");
        if !default.is_empty() || !comment.is_empty() {
            found.push(Value { name: path, default, comment });
        }
        above.push((indent, key));
    }
    found
}

#[test]
fn the_document_of_values_is_what_the_charts_say() {
    let charts = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/charts");
    let mut text = HEAD.to_owned();
    for (chart, file, about) in CHARTS {
        let file = fs::read_to_string(charts.join(file)).expect("the chart has values");
        // the first line is about the file
        let (_, file) = file.split_once('\n').expect("it has lines");
        text += &format!("\n## `{chart}`\n\n");
        if !about.is_empty() {
            text += &format!("{about}\n\n");
        }
        text += "| Value | Default | Means |\n|---|---|---|\n";
        for Value { name, default, comment } in values(file) {
            text += &format!("| `{name}` | {default} | {} |\n", comment.replace('|', "\\|"));
        }
    }
    super::compare("values.md", &text);
}

#[test]
fn a_comment_belongs_to_the_value_below_it() {
    let text = "# lost\n\na:\n  # of b\n  # too\n  b: {x: 1}\n  c: []\n# a list\nl:\n- {k: 1}\nnodeSelector:\n  x/y: z\n# of g\ng:\n  h: \"\"\n";
    let value = |name: &str, default: &str, comment: &str| Value {
        name: name.to_owned(),
        default: default.to_owned(),
        comment: comment.to_owned(),
    };
    let wanted = [
        value("a.b", "`{x: 1}`", "of b too"),
        value("a.c", "`[]`", ""),
        value("l", "a block", "a list"),
        value("nodeSelector", "a block", ""),
        value("g", "", "of g"),
        value("g.h", "`\"\"`", ""),
    ];
    assert_eq!(values(text), wanted);
}
