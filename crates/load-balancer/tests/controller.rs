//! The whole controller against an API server: addresses for guest clusters' load balancers, and the pools behind them.

#![expect(clippy::unwrap_used, reason = "a story that cannot go on has failed")]

mod controller {
    mod addresses;
    mod faults;
    mod import;
    mod machines;
    mod repair;
    mod stage;
}
