//! The load balancer's controller against API servers.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod component {
    mod addresses;
    mod documented;
    mod dual;
    mod faults;
    mod fixtures;
    mod grants;
    mod host_datapath;
    mod import;
    mod lab;
    mod living_pools;
    mod metrics;
    mod networks;
    mod orders;
    mod own_crds;
    mod readiness;
    mod repair;
    mod requested;
    mod reuse;
    mod scope;
    mod slices;
    mod source_ranges;
    mod start;
    mod two_leaders;
    mod vms;
    mod way_back;
}
