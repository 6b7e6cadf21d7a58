//! The driver with less than its rights: which call is refused, what goes on, who is told, and that it is back.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "support/harvester.rs"]
mod support;

mod rights {
    mod bed;
    mod cut;
    mod each;
    mod guest;
    mod leaders;
    mod releases;
    mod roles;
}
