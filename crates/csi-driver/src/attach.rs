//! Disks in and out of machines. A volume is in one machine at a time, whatever dies, stops or is late in between.
//!
//! Several processes serve the controller's calls, so memory decides nothing: [`claim`] is how they agree.

pub mod claim;
