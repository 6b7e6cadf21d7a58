//! `doctor`: what of both clusters is in order, and what is not, one line for each check.
//!
//! ```text
//! guest, Harvester, cloud-config ──► read ──► Facts ──► CHECKS, in order ──► Finding: green, amber, red, not asked
//! ```
//! Everything is asked once. The checks are pure functions of the [`Facts`]. A check needs others: while one of them is red,
//! it says nothing of its own, so that one fault shows as one red line. Before the programs are replaced some checks more are
//! made, and those of what is not there yet are left out ([`Occasion`]). The text of others is cleaned in one place,
//! [`decide`].

mod checks;
pub mod cli;
pub mod facts;
pub mod read;

use serde::Serialize;

pub use checks::CHECKS;
use facts::Facts;

use crate::screen::{Colour, cut};

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Verdict {
    /// All is well.
    Green,
    /// It works, and will not for long, or not in all cases.
    Amber,
    /// It is broken.
    Red,
    /// Nothing is known of it.
    NotAsked,
}

/// What a check says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    verdict: Verdict,
    sentence: String,
    mend: Option<String>,
    /// The check that it waits for.
    because: Option<&'static str>,
}

impl Outcome {
    fn new(verdict: Verdict, sentence: String, mend: Option<String>) -> Self {
        Self { verdict, sentence, mend, because: None }
    }

    fn green(sentence: impl Into<String>) -> Self {
        Self::new(Verdict::Green, sentence.into(), None)
    }

    fn amber(sentence: impl Into<String>, mend: impl Into<String>) -> Self {
        Self::new(Verdict::Amber, sentence.into(), Some(mend.into()))
    }

    fn red(sentence: impl Into<String>, mend: impl Into<String>) -> Self {
        Self::new(Verdict::Red, sentence.into(), Some(mend.into()))
    }

    fn not_asked(why: impl Into<String>) -> Self {
        Self::new(Verdict::NotAsked, why.into(), None)
    }

    /// The same, with a remark.
    fn and(mut self, note: Option<&str>) -> Self {
        if let Some(note) = note {
            self.sentence = format!("{}; {note}", self.sentence);
        }
        self
    }

    fn waits_for(id: &'static str) -> Self {
        Self { because: Some(id), ..Self::not_asked(format!("waits for {id}")) }
    }
}

/// What the doctor is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Occasion {
    /// To see whether all is well.
    Daily,
    /// The Go programs run, and these are to take their place.
    BeforeUpgrade,
    /// These programs run, and the Go programs are to take their place.
    BeforeRollback,
}

impl Occasion {
    const ALL: &[Self] = &[Self::Daily, Self::BeforeUpgrade, Self::BeforeRollback];
}

/// One check.
#[derive(Clone, Copy)]
pub struct Check {
    /// Does not change from release to release.
    pub id: &'static str,
    /// What is looked at.
    pub about: &'static str,
    /// Checks that stand before this one in the list. While one of them is red, this one is not asked.
    needs: &'static [&'static str],
    /// When it is made.
    occasions: &'static [Occasion],
    /// An error is an answer too: of a request that this check needs.
    look: fn(&Facts) -> Result<Outcome, Outcome>,
}

/// The line of one check, and the shape of `--output json`. Fields may be added; none is renamed or taken away.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    pub id: &'static str,
    pub verdict: Verdict,
    /// What was found, or why it was not asked.
    pub sentence: String,
    /// The next step. `null` where none is needed.
    pub mend: Option<String>,
    /// The check that keeps this one from being asked.
    pub because: Option<&'static str>,
}

/// The outcome of every check of this occasion, in the order of the list.
pub fn decide(facts: &Facts, occasion: Occasion) -> Vec<Finding> {
    let mut findings: Vec<Finding> = Vec::new();
    for check in CHECKS.iter().filter(|check| check.occasions.contains(&occasion)) {
        let hinders = |needed: &&str| {
            let found = findings.iter().find(|finding| finding.id == *needed)?;
            if found.verdict == Verdict::Red { Some(found.id) } else { found.because }
        };
        let Outcome { verdict, sentence, mend, because } = match check.needs.iter().find_map(hinders) {
            Some(id) => Outcome::waits_for(id),
            None => (check.look)(facts).unwrap_or_else(|answer| answer),
        };
        let (sentence, mend) = (cut(&sentence), mend.map(|mend| cut(&mend)));
        findings.push(Finding { id: check.id, verdict, sentence, mend, because });
    }
    findings
}

/// A line for each finding, and its next step below.
pub fn render(findings: &[Finding], colour: Colour) -> String {
    let width = CHECKS.iter().map(|check| check.id.len()).max().unwrap_or_default();
    let line = |finding: &Finding| {
        let (word, code) = match finding.verdict {
            Verdict::Green => ("green", "32"),
            Verdict::Amber => ("amber", "33"),
            Verdict::Red => ("red", "31"),
            Verdict::NotAsked => ("not asked", "2"),
        };
        let word = format!("{word:<9}");
        let word = colour.paint(code, &word);
        let mend = finding.mend.iter().map(|mend| format!("{:width$}            → {mend}\n", ""));
        format!("{:<width$}  {word} {}\n{}", finding.id, finding.sentence, mend.collect::<String>())
    };
    findings.iter().map(line).collect()
}

#[cfg(test)]
pub(crate) mod tests;
