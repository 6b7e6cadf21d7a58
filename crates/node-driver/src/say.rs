//! What a user must see while a call runs. rancher-machine shows the plugin's standard output line by line; a line of
//! 64 KiB would stop it from reading for good, and its last 4096 bytes are what Rancher keeps. So: few lines, short, and
//! whether anybody reads them is no concern of ours.

use std::{fmt, sync::Arc};

const LONGEST: usize = 2000;

/// Takes lines for the user. Cheap to clone.
#[derive(Clone)]
pub struct Say(Arc<dyn Fn(&str) + Send + Sync>);

impl fmt::Debug for Say {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Say")
    }
}

impl Say {
    /// To whatever this function does with a line.
    pub fn to(write: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self(Arc::new(write))
    }

    /// To standard output, where errors are no concern: the parent may be gone.
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

    /// Says one line: what is more becomes one, and what is too long is cut.
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
        let say = Say::to(move |line| to.lock().unwrap().push(line.to_owned()));
        say.line("two\nlines");
        say.line(&"ü".repeat(70_000));
        let said = said.lock().unwrap();
        assert_eq!(said[0], "two lines");
        assert!(said[1].len() < 2100 && said[1].ends_with(" …"), "{}", said[1].len());
    }
}
