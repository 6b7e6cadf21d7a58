//! A reason code and a message: the form in which Kubernetes explains itself in conditions and Events.

use std::{borrow::Cow, fmt};

/// Why something is as it is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Explanation {
    /// One word in CamelCase, for programs: `NoMatchingPool`.
    pub reason: &'static str,
    /// A sentence for people: what is wrong, with which object, and the next step.
    pub message: String,
}

impl Explanation {
    pub fn new<'a>(reason: &'static str, message: impl Into<Cow<'a, str>>) -> Self {
        Self { reason, message: message.into().into_owned() }
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Explanation {}
