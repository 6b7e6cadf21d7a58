//! The load balancer against API servers: the controller, the host path, and the admission webhook.

#![expect(clippy::unwrap_used, reason = "a story that cannot go on has failed")]

mod component {
    mod addresses;
    mod faults;
    mod host_path;
    mod import;
    mod lab;
    mod machines;
    mod repair;
    mod stage;
    mod status_writer;
    mod webhook;
}
