//! The controller service in front of an API server: what it writes on the host, and what it answers.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "support/harvester.rs"]
mod support;

mod controller {
    mod backups;
    mod bench;
    mod component;
    mod left_behind;
    mod needed;
    mod owners;
    mod patience;
    mod snapshots;
    mod volumes;
}
