//! Tools for people who look at a guest cluster and its Harvester. Only [`orphans`] writes, by
//! `--delete` and `--delete-volumes`; [`doctor`] sends a LoadBalancer as a dry run.
//!
//! | Room | What it says |
//! |---|---|
//! | [`explain`] | what is decided about one Service, by which rule, from which objects, and what would change it |
//! | [`doctor`] | what of both clusters is in order, and what is not, one line for each check |
//! | [`orphans`] | what is left behind on Harvester |
//! | [`status`] | both clusters on one screen |
//!
//! They share: `access`, how the clusters are reached; `flags`, of all of them; `whose`, what proves whose an object is; `json`, fields
//! of objects as they were read; [`screen`], text for terminals; `shell`, values in commands that people paste.

#![forbid(unsafe_code)]

mod access;
pub mod doctor;
pub mod explain;
mod flags;
mod json;
pub mod orphans;
pub mod screen;
mod shell;
pub mod status;
mod whose;

pub use access::read_only;
