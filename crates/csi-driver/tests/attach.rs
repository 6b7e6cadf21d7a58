//! Disks in and out of machines, in front of an API server on a paused clock and a stand-in for virt-controller.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "attach/crashes.rs"]
mod crashes;
#[path = "attach/guest.rs"]
mod guest;
#[path = "attach/healing.rs"]
mod healing;
#[path = "attach/host.rs"]
mod host;
#[path = "attach/lost_machines.rs"]
mod lost_machines;
#[path = "attach/old_host.rs"]
mod old_host;
#[path = "attach/silent_watches.rs"]
mod silent_watches;
#[path = "attach/story.rs"]
mod story;
#[path = "attach/two_writers.rs"]
mod two_writers;
