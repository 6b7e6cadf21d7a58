//! What a volume is: its name, its size, its use, and what the driver writes down of it. Pure.

pub mod access;
pub mod context;
pub mod name;
pub mod options;
pub mod record;
pub mod size;
pub mod topology;
