//! The node's side: which device a volume is, and where it is mounted. What is here is pure; bytes and names come from
//! the caller.

pub mod device;
pub mod mounts;
