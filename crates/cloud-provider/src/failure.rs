//! Why a cloud could not do what it was asked to.

/// The two kinds that matter to a controller.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// Somebody else wrote the object first. The cloud's watch brings the newer version and wakes the controller:
    /// nothing to report, nothing to do.
    #[error("somebody else wrote first")]
    Outdated,
    /// The sentence says what was tried, with which object, and what the cloud answered.
    #[error("{0}")]
    Refused(String),
}
