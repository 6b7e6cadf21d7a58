//! Why a cloud could not carry out a plan.

/// The two cases that a controller treats differently.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// Somebody else wrote the object first. The cloud's watch brings the newer version and requeues the Service, so
    /// the controller reports nothing and tries nothing by itself.
    #[error("somebody else wrote first")]
    Outdated,
    /// `why` says what the cloud tried, on which object, and what its API answered. The queue reads `Retry-After` from
    /// `source`.
    #[error("{why}")]
    Failed { why: String, source: Option<kube::Error> },
}
