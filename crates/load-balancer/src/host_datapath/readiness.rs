//! Which backends get traffic.

use std::collections::BTreeMap;

use super::Backends;
use super::backends::{Backend, BackendId, Selected};

/// The backends, each with its readiness: the prober's verdict, else the one that the slice recorded. A new backend that
/// is probed begins as not ready, and one that is not probed is ready.
pub(super) fn of(
    backends: &Backends,
    recorded: &BTreeMap<BackendId, bool>,
    is_probed: bool,
) -> Vec<(Backend, bool)> {
    let ready = |backend: &Backend| {
        let verdict = backends.verdicts.get(&backend.id).map(|verdict| verdict.ready);
        !is_probed || verdict.or_else(|| recorded.get(&backend.id).copied()).unwrap_or(false)
    };
    backends.selected.backends.iter().map(|backend| (backend.clone(), ready(backend))).collect()
}

/// The backends with the readiness that the slice recorded.
pub(super) fn recorded_of(selected: &Selected, recorded: &BTreeMap<BackendId, bool>) -> Vec<(Backend, bool)> {
    let ready = |backend: &Backend| recorded.get(&backend.id).copied().unwrap_or(false);
    selected.backends.iter().map(|backend| (backend.clone(), ready(backend))).collect()
}
