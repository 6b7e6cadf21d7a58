//! The simple JSONPath of printer columns: `.spec.ports[0].port`, `.metadata.labels.app\.io/x`, `.spec['a']`,
//! `.status.conditions[?(@.type=="Ready")].status`, `[*]`.

use serde_json::Value;

/// A parsed path.
#[derive(Clone, Debug, PartialEq)]
pub struct JsonPath(Vec<Step>);

#[derive(Clone, Debug, PartialEq)]
enum Step {
    Field(String),
    Index(i64),
    All,
    /// `?(@.path==value)`; true for `==`.
    Where(JsonPath, bool, Value),
}

impl JsonPath {
    /// Reads a path; none if it is not of this simple form.
    pub fn parse(text: &str) -> Option<Self> {
        let mut rest = text.trim().trim_start_matches('$');
        let mut steps = Vec::new();
        while let Some(first) = rest.chars().next() {
            if first == '[' {
                let end = bracket_end(rest)?;
                steps.push(bracket(&rest[1..end])?);
                rest = &rest[end + 1..];
                continue;
            }
            rest = rest.strip_prefix('.')?;
            let (name, after) = field(rest);
            if name.is_empty() && !after.starts_with('[') {
                return after.is_empty().then_some(Self(steps));
            }
            match name.as_str() {
                "" => {}
                "*" => steps.push(Step::All),
                _ => steps.push(Step::Field(name)),
            }
            rest = after;
        }
        Some(Self(steps))
    }

    /// The first value at the path.
    pub fn first<'a>(&self, value: &'a Value) -> Option<&'a Value> {
        walk(&self.0, value)
    }
}

/// The first value at the path in its text form.
pub fn first<'a>(path: &str, value: &'a Value) -> Option<&'a Value> {
    JsonPath::parse(path)?.first(value)
}

fn walk<'a>(steps: &[Step], value: &'a Value) -> Option<&'a Value> {
    let [step, rest @ ..] = steps else { return Some(value) };
    match step {
        Step::Field(name) => walk(rest, value.get(name)?),
        Step::Index(index) => {
            let items = value.as_array()?;
            let length = i64::try_from(items.len()).ok()?;
            let at = if *index < 0 { index.checked_add(length)? } else { *index };
            walk(rest, items.get(usize::try_from(at).ok()?)?)
        }
        Step::All => match value {
            Value::Array(items) => items.iter().find_map(|item| walk(rest, item)),
            Value::Object(map) => map.values().find_map(|item| walk(rest, item)),
            _ => None,
        },
        Step::Where(path, equal, wanted) => value
            .as_array()?
            .iter()
            .filter(|item| (path.first(item) == Some(wanted)) == *equal)
            .find_map(|item| walk(rest, item)),
    }
}

/// A name up to the next `.` or `[`; a backslash takes the next character as it is.
fn field(text: &str) -> (String, &str) {
    let mut name = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' => name.extend(chars.next().map(|(_, escaped)| escaped)),
            '.' | '[' => return (name, &text[at..]),
            _ => name.push(c),
        }
    }
    (name, "")
}

/// Returns the position at which the text's first bracket closes.
fn bracket_end(text: &str) -> Option<usize> {
    let (mut depth, mut quote) = (0_usize, None);
    for (at, c) in text.char_indices() {
        match (quote, c) {
            (Some(open), _) if c == open => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(c),
            (None, '[') => depth += 1,
            (None, ']') => {
                depth -= 1;
                if depth == 0 {
                    return Some(at);
                }
            }
            _ => {}
        }
    }
    None
}

fn bracket(inner: &str) -> Option<Step> {
    if inner == "*" {
        return Some(Step::All);
    }
    if let Some(condition) = inner.strip_prefix("?(").and_then(|c| c.strip_suffix(')')) {
        let (operator, equal) = if condition.contains("!=") { ("!=", false) } else { ("==", true) };
        let (path, wanted) = condition.split_once(operator)?;
        // a condition inside a condition is no simple path
        let path = path.trim().strip_prefix('@').filter(|path| !path.contains('?'))?;
        return Some(Step::Where(JsonPath::parse(path)?, equal, literal(wanted.trim())?));
    }
    match literal(inner)? {
        Value::String(name) => Some(Step::Field(name)),
        other => other.as_i64().map(Step::Index),
    }
}

fn literal(text: &str) -> Option<Value> {
    match text.strip_prefix('\'').and_then(|t| t.strip_suffix('\'')) {
        Some(inner) => Some(inner.into()),
        None => serde_json::from_str(text).ok(),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case(".a.b", json!(1))]
    #[case("a", json!(null))]
    #[case(".list[1].v", json!("y"))]
    #[case(".list[-1].v", json!("y"))]
    #[case(".list[9].v", json!(null))]
    #[case(".list[*].v", json!("x"))]
    #[case(".list[?(@.n==\"two\")].v", json!("y"))]
    #[case(".list[?(@.n!='two')].v", json!("x"))]
    #[case(".['a'].b", json!(1))]
    #[case(".a['b']", json!(1))]
    #[case(r".e\.x/y", json!(2))]
    #[case(".list[", json!(null))]
    #[case(".a..b", json!(null))]
    fn finds_the_first_value(#[case] path: &str, #[case] expected: Value) {
        let object =
            json!({"a": {"b": 1}, "e.x/y": 2, "list": [{"n": "one", "v": "x"}, {"n": "two", "v": "y"}]});
        assert_eq!(first(path, &object).cloned().unwrap_or_default(), expected);
    }

    proptest::proptest! {
        #[test]
        fn no_text_breaks_it(text in "[.\\[\\]?()@='\"a1*\\\\$-]{0,24}", other in "\\PC*") {
            let object = json!({"a": [{"a": 1}]});
            let found = [first(&text, &object), first(&other, &object)];
            proptest::prop_assert!(found.len() == 2);
        }
    }
}
