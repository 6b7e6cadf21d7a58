//! Lines for the user while a call runs. rancher-machine prints the plugin's standard output line by line, and a line of
//! 64 KiB stops it from reading for good; Rancher keeps the last 4096 bytes. So the driver prints few and short lines, and
//! ignores errors of writing.

use std::{fmt, sync::Arc};

const LONGEST: usize = 2000;

/// Takes lines for the user. Cheap to clone.
#[derive(Clone)]
pub struct Output(Arc<dyn Fn(&str) + Send + Sync>);

impl fmt::Debug for Output {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Output")
    }
}

impl Output {
    /// Passes lines to a function.
    pub fn to(write: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self(Arc::new(write))
    }

    /// Writes lines to standard output. Errors are ignored: the parent may be gone.
    pub fn to_stdout() -> Self {
        Self::to(|line| {
            use std::io::Write as _;
            let mut out = std::io::stdout().lock();
            if writeln!(out, "{line}").is_ok() {
                // nobody is left to tell
                out.flush().ok();
            }
        })
    }

    /// Prints the text as one line, and cuts a long one.
    pub fn line(&self, text: &str) {
        let mut line = text.split_whitespace().collect::<Vec<_>>().join(" ");
        if line.len() > LONGEST {
            let end = (0..=LONGEST).rev().find(|end| line.is_char_boundary(*end)).unwrap_or_default();
            line.truncate(end);
            line.push_str(" …");
        }
        (self.0)(&line);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn a_line_is_one_and_never_long() {
        let said = Arc::new(Mutex::new(vec![]));
        let to = said.clone();
        let output = Output::to(move |line| to.lock().unwrap().push(line.to_owned()));
        output.line("two\nlines");
        output.line(&"ü".repeat(70_000));
        let said = said.lock().unwrap();
        assert_eq!(said[0], "two lines");
        assert!(said[1].len() < 2100 && said[1].ends_with(" …"), "{}", said[1].len());
    }
}
