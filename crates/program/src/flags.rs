//! Flags as Go programs have them, from one table that makes the parsing, the help and the document.
//!
//! ```
//! use program::flags::{Flag, Table};
//!
//! const FLAGS: Table = Table {
//!     program: "greeter",
//!     about: "Greets people.",
//!     flags: &[
//!         Flag::value("name", "NAME", "who is greeted").default("world").env(&["GREETER_NAME"]),
//!         Flag::switch("loud", "in capitals"),
//!     ],
//! };
//! let args = ["--loud".to_owned()];
//! let mut reader = FLAGS.read(&args, |variable| (variable == "GREETER_NAME").then(|| "crew".to_owned()));
//! let (name, loud) = (reader.text("name"), reader.is_on("loud"));
//! assert_eq!((name.as_deref(), loud), (Some("crew"), true));
//! assert!(reader.finish(()).is_ok());
//! ```
//! All forms count: `--a=b`, `--a b`, `-a b`, `_` for `-`, repetition, Go's booleans, `-v3` for a flag of one letter. A
//! value comes from the command line, else from the first environment variable that is not empty, else from the table.
//! The reader names every fault, not only the first.

pub mod complete;
mod document;
mod parse;
mod reader;

pub use parse::Given;
pub use reader::{Reader, listen_address};

/// The text that follows a flag's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlagType {
    /// `--name`, `--name=true`, `--name=false`.
    Switch,
    /// `--name=value`, `--name value`.
    Value,
}

/// One flag.
#[derive(Clone, Copy, Debug)]
pub struct Flag {
    pub name: &'static str,
    pub flag_type: FlagType,
    /// The word that the help shows for the value: `FILE`.
    pub value_name: &'static str,
    /// The meaning; empty for a flag that is taken and ignored.
    pub help: &'static str,
    pub default: Option<&'static str>,
    /// Environment variables in the order in which they are looked at.
    pub variables: &'static [&'static str],
    /// Not for users: left out of help and document.
    pub hidden: bool,
}

/// Flags of both programs of Harvester.
impl Flag {
    /// For [`crate::logging::Logging::logrus`].
    pub const LOGLEVEL: Self =
        Self::value("loglevel", "LEVEL", "how much is logged: panic, fatal, error, warn, info, debug, trace")
            .env(&["LOGLEVEL"])
            .default("info");
    /// For [`listen_address`]. By a variable too, for charts that give no arguments. No image sets it: who gives no flag gets no port
    /// that every pod may read, and that another program may have.
    pub const METRICS_ADDRESS: Self = Self::value(
        "metrics-address",
        "ADDRESS",
        "serve health and metrics over plain HTTP here, e.g. :9402 or 127.0.0.1:9402; off by default",
    )
    .env(&["METRICS_ADDRESS"]);
    pub const KUBECONFIG: Self = Self::value(
        "kubeconfig",
        "FILE",
        "kubeconfig; else the environment variable KUBECONFIG, else the pod's service account",
    );
}

impl Flag {
    pub const fn switch(name: &'static str, help: &'static str) -> Self {
        Self {
            name,
            flag_type: FlagType::Switch,
            value_name: "",
            help,
            default: None,
            variables: &[],
            hidden: false,
        }
    }

    pub const fn value(name: &'static str, value_name: &'static str, help: &'static str) -> Self {
        Self { flag_type: FlagType::Value, value_name, ..Self::switch(name, help) }
    }

    /// A flag of another program that is taken and means nothing here.
    pub const fn ignored(name: &'static str, flag_type: FlagType) -> Self {
        Self { flag_type, ..Self::switch(name, "") }
    }

    #[must_use]
    pub const fn default(self, text: &'static str) -> Self {
        Self { default: Some(text), ..self }
    }

    #[must_use]
    pub const fn env(self, variables: &'static [&'static str]) -> Self {
        Self { variables, ..self }
    }

    #[must_use]
    pub const fn hidden(self) -> Self {
        Self { hidden: true, ..self }
    }

    const fn is_ignored(&self) -> bool {
        self.help.is_empty()
    }
}

/// The flags of a program. `--help`, `-h` and `--version` belong to every table.
#[derive(Clone, Copy, Debug)]
pub struct Table {
    /// As users call it.
    pub program: &'static str,
    /// One sentence.
    pub about: &'static str,
    pub flags: &'static [Flag],
}

/// Flags that every program has.
static COMMON: [Flag; 2] =
    [Flag::switch("help", "print this text"), Flag::switch("version", "print the version")];

impl Table {
    /// The flag of this name; `_` stands for `-`.
    pub fn find(&self, name: &str) -> Option<&'static Flag> {
        let name = name.replace('_', "-");
        self.all().find(|flag| flag.name == name)
    }

    fn all(&self) -> impl Iterator<Item = &'static Flag> {
        self.flags.iter().chain(&COMMON)
    }
}

#[cfg(test)]
mod tests;
