//! The lines that the sandbox prints.

use std::{io::Write, time::Duration};

/// Writes lines for people to standard output.
#[derive(Debug, Default)]
pub(crate) struct Output;

impl Output {
    /// One line.
    pub(crate) fn note(&self, text: &str) {
        let mut out = std::io::stdout().lock();
        // a closed pipe is the reader's choice
        let _ignored = writeln!(out, "{text}");
    }

    /// One step of the start.
    pub(crate) fn progress(&self, what: &str, took: Duration) {
        self.note(&format!("  {what} ({:.1} s)", took.as_secs_f64()));
    }

    /// One step of the tour and what it saw.
    pub(crate) fn step(&self, number: u8, title: &str, took: Duration, seen: Result<&str, &anyhow::Error>) {
        let seconds = took.as_secs_f64();
        match seen {
            Ok(seen) => self.note(&format!("ok   {number} {title} ({seconds:.1} s): {seen}")),
            Err(error) => self.note(&format!("FAIL {number} {title} ({seconds:.1} s): {error:#}")),
        }
    }
}
