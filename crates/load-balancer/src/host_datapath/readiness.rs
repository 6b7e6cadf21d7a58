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

/// The backends that the slice has, with the readiness and the address that it has for them.
pub(super) fn recorded_of(selected: &Selected, recorded: &BTreeMap<BackendId, bool>) -> Vec<(Backend, bool)> {
    let of = |backend: &Backend| {
        let moved = || recorded.iter().find(|(id, _)| id.uid == backend.id.uid);
        let (id, ready) = recorded.get_key_value(&backend.id).or_else(moved)?;
        Some((Backend { id: id.clone(), name: backend.name.clone() }, *ready))
    };
    selected.backends.iter().filter_map(of).collect()
}
