//! What became of the rotation, for Prometheus.

use jiff::Timestamp;
use prometheus_client::{
    metrics::{counter::Counter, gauge::Gauge},
    registry::Registry,
};

/// Clones are the same metrics.
#[derive(Clone, Debug, Default)]
pub struct RotationMetrics {
    rotations: Counter,
    failures: Counter,
    last: Gauge,
}

impl RotationMetrics {
    pub fn register(&self, registry: &mut Registry) {
        let Self { rotations, failures, last } = self.clone();
        registry.register(
            "cloud_config_rotations",
            "Tokens that this process put in the place of older ones",
            rotations,
        );
        registry.register("cloud_config_rotation_failures", "Tries to renew the token that failed", failures);
        registry.register(
            "cloud_config_last_rotation_timestamp_seconds",
            "When this process renewed the token last; 0: never",
            last,
        );
    }

    pub(crate) fn rotated(&self, now: Timestamp) {
        self.rotations.inc();
        self.last.set(now.as_second());
    }

    pub(crate) fn failed(&self) {
        self.failures.inc();
    }
}
