#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod decide;
mod in_use;
pub mod life;
mod metrics;
mod rotator;
pub mod token;

pub use decide::{Ask, Decision, decide};
pub use in_use::{InUse, Renewal, in_use};
pub use metrics::RotationMetrics;
pub use rotator::{Clusters, Connect, Rotation, SecretName, connect};
