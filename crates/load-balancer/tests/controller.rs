//! The whole controller against an API server: addresses for guest clusters' load balancers, and the pools behind them.

mod controller {
    pub mod addresses;
    pub mod faults;
    pub mod import;
    pub mod machines;
    pub mod repair;
    pub mod stage;
}
