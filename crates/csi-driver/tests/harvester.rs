//! The controller service in front of a simulated Harvester: its KubeVirt, its classes, its exports.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![expect(clippy::print_stdout, reason = "a round that fails shows its seed")]

#[path = "support/harvester.rs"]
mod support;

mod harvester {
    mod bed;
    mod disk_or_export;
    mod exports;
    mod give_back;
    mod guest;
    mod migration;
    mod one_pod;
    mod process;
    mod replay;
    mod round;
    mod two_processes;
    mod upgrade;
}
