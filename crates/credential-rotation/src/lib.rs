#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod decide;
pub mod life;
mod metrics;
mod rotator;
pub mod token;

pub use decide::{Ask, Decision, decide};
pub use metrics::RotationMetrics;
pub use rotator::{Clusters, Connect, Rotation, SecretName, connect};
