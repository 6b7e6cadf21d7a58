//! The audit log: one record of each request and its answer, in memory and as a JSON line in a file.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::{Arc, Mutex};

use serde::Serialize;

/// So many records are kept in memory; the file keeps all.
const KEPT: usize = 200_000;

/// One request. A watch is recorded when it starts.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Record {
    /// Name of the user; empty if the request was not authenticated.
    pub user: String,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`; the method in lower case for paths that are no resources.
    pub verb: String,
    /// Path and query.
    pub uri: String,
    /// HTTP status code; 0 if a fault cut the connection instead of an answer.
    pub code: u16,
    /// Milliseconds from the request to the head of the answer.
    pub ms: u64,
}

#[derive(Debug, Default)]
struct Log {
    records: VecDeque<Record>,
    total: u64,
    file: Option<BufWriter<File>>,
}

/// The audit log. Clones are the same log.
#[derive(Clone, Debug, Default)]
pub struct Audit(Arc<Mutex<Log>>);

impl Audit {
    /// Also appends each record to a file from now on.
    ///
    /// # Errors
    /// When the file cannot be opened.
    pub fn write_to(&self, path: &Path) -> std::io::Result<()> {
        let file = File::options().create(true).append(true).open(path)?;
        self.log().file = Some(BufWriter::new(file));
        Ok(())
    }

    /// All records so far, oldest first (the newest 200,000).
    #[must_use]
    pub fn records(&self) -> Vec<Record> {
        self.log().records.iter().cloned().collect()
    }

    /// The number of requests so far.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.log().total
    }

    /// The records after the first `total` ones: what happened since somebody asked for [`Audit::total`].
    #[must_use]
    pub fn since(&self, total: u64) -> Vec<Record> {
        let log = self.log();
        let new = usize::try_from(log.total.saturating_sub(total)).unwrap_or(usize::MAX);
        log.records.iter().skip(log.records.len().saturating_sub(new)).cloned().collect()
    }

    /// Forgets what is in memory. The file keeps it.
    pub fn clear(&self) {
        self.log().records.clear();
    }

    pub(crate) fn add(&self, record: Record) {
        let mut log = self.log();
        if let Some(file) = &mut log.file {
            // a full disk must not stop the server: what is lost is a line of a log
            let written = serde_json::to_writer(&mut *file, &record).is_ok() && file.write_all(b"\n").is_ok();
            if !written || file.flush().is_err() {
                log.file = None;
            }
        }
        log.total += 1;
        if log.records.len() == KEPT {
            log.records.pop_front();
        }
        log.records.push_back(record);
    }

    fn log(&self) -> std::sync::MutexGuard<'_, Log> {
        self.0.lock().expect("no panic while a record is added")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(uri: &str) -> Record {
        Record { user: "web".into(), verb: "get".into(), uri: uri.to_owned(), code: 200, ms: 1 }
    }

    #[test]
    fn a_line_has_user_verb_uri_code_and_ms() {
        let line = serde_json::to_string(&record("/api/v1/services?limit=1")).unwrap();
        assert_eq!(line, r#"{"user":"web","verb":"get","uri":"/api/v1/services?limit=1","code":200,"ms":1}"#);
    }

    #[test]
    fn what_happened_since_a_moment_is_what_was_added_after_it() {
        let audit = Audit::default();
        audit.add(record("/a"));
        let before = audit.total();
        audit.add(record("/b"));
        assert_eq!(audit.since(before), [record("/b")]);
        audit.clear();
        assert!(audit.since(before).is_empty());
    }
}
