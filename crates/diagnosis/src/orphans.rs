//! `orphans`: what guest clusters and Services that are gone left in one namespace of Harvester.
//!
//! ```text
//! Harvester, then guest ──► read ──► Facts ──► decide ──► Report ──► table, or questions ──► read and decide anew ──► DELETE
//! ```
//! * Harvester is read before the guest cluster: whatever was made for a Service meanwhile has its Service in the lists.
//! * `decide` is a pure function of what was read. Whatever a living cluster may use is none of its orphans, and what
//!   cannot be read counts as living.
//! * `whose` beside this folder says what proves whose an object is.
//! * `delete` asks, decides again, writes down what is still the same object, and deletes that.

pub mod cli;
mod decide;
pub mod delete;
pub mod facts;
mod records;
mod volumes;

use std::fmt::Write as _;

use serde::Serialize;
use serde_json::Value;

use crate::screen::table;
pub use decide::decide;

/// The kinds that are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Kind {
    LoadBalancer,
    /// An address that a pool records for nobody.
    PoolRecord,
    PersistentVolumeClaim,
    VirtualMachine,
    VirtualMachineInstance,
}

impl Kind {
    fn word(self) -> &'static str {
        match self {
            Self::LoadBalancer => "LoadBalancer",
            Self::PoolRecord => "PoolRecord",
            Self::PersistentVolumeClaim => "PersistentVolumeClaim",
            Self::VirtualMachine => "VirtualMachine",
            Self::VirtualMachineInstance => "VirtualMachineInstance",
        }
    }
}

/// How an orphan is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Deletion {
    /// It is proved to be of this guest cluster: one question for all of these.
    Asked,
    /// Its name must be typed.
    Typed,
    /// This program does not delete it; `next` says what does.
    ByHand,
}

/// Something that was left behind. Fields may be added to the JSON; none is renamed or taken away.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Orphan {
    pub kind: Kind,
    /// Of the object that holds it, for a record the pool's, which has none.
    pub namespace: Option<String>,
    /// Of a record the pool and the address.
    pub name: String,
    /// The guest cluster that it was made for, as far as it says.
    pub of: String,
    pub delete: Deletion,
    /// Why nobody needs it.
    pub sentence: String,
    /// Why somebody may need it all the same.
    pub doubt: Option<String>,
    /// The next step, where `--delete` does not take it.
    pub next: Option<String>,
    /// As it was read.
    #[serde(skip)]
    pub object: Value,
}

impl Orphan {
    fn because(&self) -> String {
        match &self.doubt {
            Some(doubt) => format!("{}; but {doubt}", self.sentence),
            None => self.sentence.clone(),
        }
    }
}

/// Something that looks left behind, and that somebody may need.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Kept {
    pub kind: Kind,
    pub name: String,
    pub why: String,
}

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Where on Harvester was looked.
    pub namespace: String,
    pub orphans: Vec<Orphan>,
    pub kept: Vec<Kept>,
    /// Lists that could not be read: what they would show counts as living.
    pub not_read: Vec<String>,
    /// One of them is a list without which load balancers cannot be judged.
    #[serde(skip)]
    pub is_incomplete: bool,
}

/// So many lines of a kind are shown; JSON has all.
const ROWS: usize = 40;

/// The report for people.
pub fn render(report: &Report) -> String {
    let mut text = String::new();
    if report.orphans.is_empty() {
        let so_far = if report.not_read.is_empty() { "" } else { ", in the lists that could be read" };
        let namespace = &report.namespace;
        writeln!(
            text,
            "Nothing was found that is left behind in namespace {namespace} of Harvester{so_far}."
        )
        .expect("a String takes any text");
    } else {
        writeln!(text, "Left behind in namespace {} of Harvester:\n", report.namespace)
            .expect("a String takes any text");
        let rows = report.orphans.iter().map(|orphan| {
            let how = match orphan.delete {
                Deletion::Asked => "asks once",
                Deletion::Typed => "by name",
                Deletion::ByHand => "by hand",
            };
            [orphan.kind.word(), &orphan.name, &orphan.of, how, &orphan.because()].map(str::to_owned)
        });
        text.push_str(&table(["KIND", "NAME", "CLUSTER", "DELETE", "BECAUSE"], rows.collect(), ROWS));
        for next in report.orphans.iter().filter_map(|orphan| orphan.next.as_ref()).take(ROWS) {
            writeln!(text, "  → {next}").expect("a String takes any text");
        }
    }
    if !report.kept.is_empty() {
        text.push_str("\nKept, because somebody may need it:\n");
        let rows =
            report.kept.iter().map(|kept| [kept.kind.word(), &kept.name, &kept.why].map(str::to_owned));
        text.push_str(&table(["KIND", "NAME", "BECAUSE"], rows.collect(), ROWS));
    }
    for why in &report.not_read {
        writeln!(text, "not read: {why}").expect("a String takes any text");
    }
    text
}

#[cfg(test)]
mod tests;
