//! Which Events tests provoke. Where the environment names a file in `EVENT_REASONS`, each kind of Event becomes a line there,
//! once for each process: component, reason, type and the kind of its object, between tabs.

use std::collections::HashSet;
use std::env;
use std::fs::File;
use std::io::Write as _;
use std::sync::{LazyLock, Mutex, PoisonError};

use serde_json::Value;

const FILE: &str = "EVENT_REASONS";

static SEEN: LazyLock<Option<Mutex<Seen>>> = LazyLock::new(|| {
    let file = File::options().append(true).create(true).open(env::var_os(FILE)?);
    let file = file.expect("the file of seen Events can be opened");
    Some(Mutex::new(Seen { file, lines: HashSet::new() }))
});

struct Seen {
    file: File,
    lines: HashSet<String>,
}

/// Notes an Event that was made.
pub(crate) fn note(event: &Value) {
    let Some(seen) = &*SEEN else { return };
    let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
    let line = line(event);
    if seen.lines.insert(line.clone()) {
        // one write: other tests write there at the same time
        seen.file.write_all(line.as_bytes()).expect("the file of seen Events can be written");
    }
}

fn line(event: &Value) -> String {
    let text = |path: &str| event.pointer(path).and_then(Value::as_str).unwrap_or_default();
    let fields = ["/source/component", "/reason", "/type", "/involvedObject/kind"].map(text);
    // one line whatever a client wrote
    format!("{}\n", fields.map(|field| field.replace(['\t', '\n'], " ")).join("\t"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_event_is_one_line_of_four_fields() {
        let event = json!({
            "source": {"component": "service-controller"}, "reason": "Ensured\n", "type": "Normal",
            "involvedObject": {"kind": "Service"},
        });
        assert_eq!(line(&event), "service-controller\tEnsured \tNormal\tService\n");
        assert_eq!(line(&json!({})), "\t\t\t\n");
    }
}
