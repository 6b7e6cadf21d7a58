//! What the server refuses, with the causes of the real one.

pub mod names;
