//! The load balancer against API servers: the controller and the host path.

#![expect(clippy::unwrap_used, reason = "a story that cannot go on has failed")]

mod component {
    mod addresses;
    mod faults;
    mod fixtures;
    mod host_datapath;
    mod import;
    mod lab;
    mod repair;
    mod vms;
}
