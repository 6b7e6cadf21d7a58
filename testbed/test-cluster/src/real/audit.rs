//! The audit log of a real API server, as [`Record`]s of the simulated one.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;

use jiff::Timestamp;
use serde::Deserialize;
use sim_apiserver::Record;

/// The file, and how far it was read.
#[derive(Debug)]
pub struct AuditLog {
    file: PathBuf,
    read: u64,
}

/// What we need of a line.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Line {
    stage: String,
    #[serde(rename = "requestURI")]
    request_uri: String,
    verb: String,
    user: Name,
    #[serde(default)]
    response_status: Code,
    request_received_timestamp: Timestamp,
    stage_timestamp: Timestamp,
}

#[derive(Deserialize)]
struct Name {
    #[serde(default)]
    username: String,
}

#[derive(Default, Deserialize)]
struct Code {
    #[serde(default)]
    code: u16,
}

impl AuditLog {
    pub(super) fn new(file: PathBuf) -> Self {
        Self { file, read: 0 }
    }

    /// What was asked since the last call. A line that is still being written is left for the next.
    ///
    /// # Panics
    /// Where the file has gone: then there is no server either.
    pub fn new_records(&mut self) -> Vec<Record> {
        let mut text = String::new();
        let mut file = File::open(&self.file).expect("a running server has its audit log");
        file.seek(SeekFrom::Start(self.read)).expect("the log only grows");
        file.read_to_string(&mut text).expect("the log is JSON text");
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        self.read += whole as u64;
        text[..whole].lines().filter_map(record).collect()
    }
}

/// A watch counts where it starts, everything else where it ends; a panic of the server is an end too.
fn record(line: &str) -> Option<Record> {
    let line: Line = serde_json::from_str(line).ok()?;
    let counts = match line.stage.as_str() {
        "ResponseStarted" => line.verb == "watch",
        "ResponseComplete" => line.verb != "watch",
        _ => line.stage == "Panic",
    };
    let took = line.stage_timestamp.duration_since(line.request_received_timestamp).as_millis();
    counts.then(|| Record {
        user: line.user.username,
        verb: line.verb,
        uri: line.request_uri,
        code: line.response_status.code,
        ms: u64::try_from(took).unwrap_or(0),
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn line(stage: &str, verb: &str) -> String {
        let uri = "/api/v1/services";
        serde_json::json!({"kind": "Event", "stage": stage, "requestURI": uri, "verb": verb,
            "user": {"username": "u", "groups": []}, "responseStatus": {"metadata": {}, "code": 200},
            "requestReceivedTimestamp": "2026-11-21T15:00:00.998000Z", "stageTimestamp": "2026-11-21T15:00:01.010999Z"})
        .to_string()
    }

    #[rstest]
    #[case::done("ResponseComplete", "list", true)]
    #[case::watching("ResponseStarted", "watch", true)]
    #[case::no_longer_watching("ResponseComplete", "watch", false)]
    #[case::half_done("ResponseStarted", "get", false)]
    fn a_request_is_counted_once(#[case] stage: &str, #[case] verb: &str, #[case] counted: bool) {
        let uri = "/api/v1/services".into();
        let expected = Record { user: "u".into(), verb: verb.into(), uri, code: 200, ms: 12 };
        assert_eq!(record(&line(stage, verb)), counted.then_some(expected));
    }

    #[test]
    fn half_a_line_is_left_for_the_next_time() {
        let file = std::env::temp_dir().join(format!("audit-log-{}", std::process::id()));
        let whole = line("ResponseComplete", "get") + "\n";
        std::fs::write(&file, whole.clone() + &whole[..20]).unwrap();
        let mut log = AuditLog::new(file.clone());
        assert_eq!(log.new_records().len(), 1);
        assert_eq!(log.new_records().len(), 0);
        std::fs::write(&file, whole.repeat(2)).unwrap();
        assert_eq!(log.new_records().len(), 1);
        std::fs::remove_file(file).unwrap();
    }
}
