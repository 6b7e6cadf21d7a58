//! What a volume is: its name, its size, its use. Pure.

pub mod access;
pub mod name;
pub mod size;
