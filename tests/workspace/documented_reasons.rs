//! What tables of reasons explain, some program says: a reason that the code gives no more is looked for in vain.

use std::{collections::BTreeSet, fs};

use super::{files, names::literals, product, root, short};

/// The reasons in the first cells of tables with this heading.
fn explained(page: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut is_of_reasons = false;
    for line in page.lines() {
        match line.strip_prefix("| ") {
            Some(row) => {
                let first = row.split('|').next().unwrap_or_default();
                is_of_reasons |= first.trim() == "Reason";
                if is_of_reasons {
                    found.extend(first.split('`').skip(1).step_by(2).map(str::to_owned));
                }
            }
            // the line under the heading begins otherwise
            None => is_of_reasons &= line.starts_with('|'),
        }
    }
    found
}

#[test]
fn every_reason_in_a_table_of_reasons_is_one_that_the_code_gives() {
    let given: BTreeSet<_> = product::lines()
        .iter()
        .flat_map(|line| literals(&line.text).into_iter().map(str::to_owned).collect::<Vec<_>>())
        .collect();
    let (mut count, mut missing) = (0, Vec::new());
    for page in files(&root().join("docs"), &[".md"]) {
        for reason in explained(&fs::read_to_string(&page).unwrap()) {
            count += 1;
            if !given.contains(&reason) {
                missing.push(format!("{}: {reason}", short(&page)));
            }
        }
    }
    assert!(count > 150, "the tables are found: {count}");
    assert!(missing.is_empty(), "no program says these: {missing:#?}");
}

#[test]
fn reasons_are_read_from_their_tables_alone() {
    let page = "| Reason | Means |\n|---|---|\n| `A`, `B` | `C` |\n\n| Word | |\n|---|---|\n| `D` | |\n";
    assert_eq!(explained(page), ["A".to_owned(), "B".to_owned()].into());
}
