//! What to run: decided from the options and from what the machine has.

use std::fmt;

use clap::ValueEnum;

/// A part of the full run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Part {
    /// rustfmt
    Fmt,
    /// clippy, warnings are errors
    Clippy,
    /// the one build of all tests and programs
    Build,
    /// unit, property and component tests
    Tests,
    /// the component tests on a real API server
    RealServer,
    /// examples in the documentation
    DocTests,
    /// rustdoc, warnings are errors
    Docs,
    /// licences, bans and sources of the dependencies
    Deny,
    /// the sandbox's tour
    Tour,
    /// the node driver packaged, and started as Rancher starts it
    Package,
    /// the whole system under fault schedules
    Seeds,
    /// the sandbox's tour on real API servers, of the newest Harvester and with the roles of existing charts, with --all only
    RealTour,
    /// the CSI driver in virtual machines, with --all only
    RealNode,
}

impl Part {
    /// What its step prints.
    pub(super) fn says(self) -> &'static str {
        match self {
            Self::Fmt => "format",
            Self::Clippy => "clippy",
            Self::Build => "build of all tests",
            Self::Tests => "unit, property and component tests",
            Self::RealServer => "real API server",
            Self::DocTests => "doc tests",
            Self::Docs => "documentation",
            Self::Deny => "licences, bans and sources",
            Self::Tour => "sandbox tour",
            Self::Package => "node driver's package",
            Self::Seeds => "fault schedules",
            Self::RealTour => "sandbox tour on real API servers",
            Self::RealNode => "CSI driver in virtual machines",
        }
    }
}

impl Part {
    /// Without these there is nothing to run.
    fn needs(self) -> &'static [Self] {
        match self {
            Self::Tests | Self::Tour | Self::Seeds | Self::RealTour | Self::RealNode => &[Self::Build],
            Self::RealServer => &[Self::Tests, Self::Build],
            _ => &[],
        }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.to_possible_value().expect("no part is hidden").get_name())
    }
}

/// A part that is not run.
#[derive(Debug, PartialEq)]
pub(super) struct NotRun {
    pub(super) part: Part,
    pub(super) why: String,
}

/// The run.
#[derive(Debug, PartialEq)]
pub(super) struct Plan {
    pub(super) parts: Vec<Part>,
    pub(super) not_run: Vec<NotRun>,
    /// Whether the run may succeed: nothing is left out but what was left out on purpose, or nobody insists.
    pub(super) complete: bool,
}

/// How much has to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extent {
    /// What this machine can run.
    Possible,
    /// What stands before a change; what this machine lacks is a failure.
    Gate,
    /// The same, and what takes too long for each change.
    All,
}

/// They take too long for each change.
const ONLY_WITH_ALL: [Part; 2] = [Part::RealTour, Part::RealNode];

/// Decides; `lacking` says what keeps a part from being run here, and is not asked for parts that are left out.
pub(super) fn plan(without: &[Part], extent: Extent, lacking: impl Fn(Part) -> Option<String>) -> Plan {
    let mut plan = Plan { parts: Vec::new(), not_run: Vec::new(), complete: true };
    for &part in Part::value_variants() {
        if without.contains(&part) {
            plan.not_run.push(NotRun { part, why: "left out on purpose, with --without".to_owned() });
        } else if let Some(needed) = part.needs().iter().find(|needed| without.contains(needed)) {
            plan.not_run.push(NotRun { part, why: format!("left out with {needed}, with --without") });
        } else if ONLY_WITH_ALL.contains(&part) && extent != Extent::All {
            plan.not_run.push(NotRun { part, why: "it runs with --all only".to_owned() });
        } else if let Some(why) = lacking(part) {
            plan.complete &= extent == Extent::Possible;
            plan.not_run.push(NotRun { part, why });
        } else {
            plan.parts.push(part);
        }
    }
    plan
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn no_go(part: Part) -> Option<String> {
        [Part::RealServer, Part::RealTour].contains(&part).then(|| "no Go".to_owned())
    }

    fn no_qemu(part: Part) -> Option<String> {
        (part == Part::RealNode).then(|| "no QEMU".to_owned())
    }

    #[rstest]
    #[case::everything_there(&[], Extent::Possible, |_| None, &ONLY_WITH_ALL, true)]
    #[case::everything_there_and_everything_asked_for(&[], Extent::All, |_| None, &[], true)]
    #[case::a_machine_without_go(
        &[], Extent::Possible, no_go, &[Part::RealServer, Part::RealTour, Part::RealNode], true
    )]
    #[case::a_machine_without_go_where_all_must_run(
        &[], Extent::All, no_go, &[Part::RealServer, Part::RealTour], false
    )]
    #[case::a_gate_that_lacks_qemu_does_not_ask_for_it(&[], Extent::Gate, no_qemu, &ONLY_WITH_ALL, true)]
    #[case::a_full_run_that_lacks_qemu(&[], Extent::All, no_qemu, &[Part::RealNode], false)]
    #[case::left_out_on_purpose(
        &[Part::RealServer, Part::Tour],
        Extent::Gate,
        no_go,
        &[Part::RealServer, Part::Tour, Part::RealTour, Part::RealNode],
        true
    )]
    #[case::no_tests_need_no_server(
        &[Part::Tests], Extent::All, no_qemu, &[Part::Tests, Part::RealServer, Part::RealNode], false
    )]
    #[case::nothing_built_runs_nothing(
        &[Part::Build],
        Extent::All,
        no_go,
        &[
            Part::Build, Part::Tests, Part::RealServer, Part::Tour, Part::Seeds, Part::RealTour, Part::RealNode,
        ],
        true
    )]
    fn what_is_not_run_is_told(
        #[case] without: &[Part],
        #[case] extent: Extent,
        #[case] lacking: fn(Part) -> Option<String>,
        #[case] not_run: &[Part],
        #[case] complete: bool,
    ) {
        let plan = plan(without, extent, lacking);
        let told: Vec<Part> = plan.not_run.iter().map(|one| one.part).collect();
        assert_eq!((told.as_slice(), plan.complete), (not_run, complete));
        assert_eq!(plan.parts.len() + plan.not_run.len(), Part::value_variants().len());
    }
}
