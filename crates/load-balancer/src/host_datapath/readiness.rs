//! Which backends get traffic.

use std::{collections::BTreeMap, net::Ipv4Addr, time::Duration};

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

/// The backends without the VMs that come back before their time, and the time until the first of these may: whatever else is
/// written takes none of them along, or two VMs that swap a label would be written each time. A VM whose address goes to and
/// fro stays at the one that the slice has.
pub(super) fn without_early_returns(
    ready: Vec<(Backend, bool)>,
    recorded: &BTreeMap<BackendId, bool>,
    due_in: &BTreeMap<BackendId, Duration>,
) -> (Vec<(Backend, bool)>, Option<Duration>) {
    let mut first: Option<Duration> = None;
    let hold_back = |(backend, ready): (Backend, bool)| {
        let wait = of_vm(due_in, &backend.id.uid).map(|(_, wait)| *wait).max();
        let Some(wait) = wait.filter(|_| !recorded.contains_key(&backend.id)) else {
            return Some((backend, ready));
        };
        first = Some(first.map_or(wait, |first| first.min(wait)));
        let (id, ready) = of_vm(recorded, &backend.id.uid).next()?;
        Some((Backend { id: id.clone(), ..backend }, *ready))
    };
    let kept = ready.into_iter().filter_map(hold_back).collect();
    (kept, first)
}

/// The entries of one VM, at whichever address.
fn of_vm<'a, V>(
    all: &'a BTreeMap<BackendId, V>,
    uid: &'a str,
) -> impl Iterator<Item = (&'a BackendId, &'a V)> {
    let first = BackendId { uid: uid.to_owned(), address: Ipv4Addr::UNSPECIFIED.into() };
    all.range(first..).take_while(move |(id, _)| id.uid == uid)
}

/// The backends that the slice has, with the readiness and the address that it has for them.
pub(super) fn recorded_of(selected: &Selected, recorded: &BTreeMap<BackendId, bool>) -> Vec<(Backend, bool)> {
    let of = |backend: &Backend| {
        let moved = || of_vm(recorded, &backend.id.uid).next();
        let (id, ready) = recorded.get_key_value(&backend.id).or_else(moved)?;
        Some((Backend { id: id.clone(), name: backend.name.clone() }, *ready))
    };
    selected.backends.iter().filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    /// A backend: the name of its VM, and the last number of its address.
    type Named = (&'static str, u8);

    fn id((vm, last): Named) -> BackendId {
        BackendId { uid: format!("uid-{vm}"), address: [192, 168, 7, last].into() }
    }

    const A: Named = ("a", 1);
    const A_ELSEWHERE: Named = ("a", 9);
    const B: Named = ("b", 2);
    const C: Named = ("c", 3);

    #[rstest]
    #[case::nobody_left_lately(&[A], &[B], &[], &[B], None)]
    #[case::flapped_and_stayed(&[A, B], &[A, B], &[(A, 4)], &[A, B], None)]
    #[case::comes_back(&[B], &[A, B], &[(A, 4)], &[B], Some(4))]
    #[case::the_only_one_comes_back(&[], &[A], &[(A, 4)], &[], Some(4))]
    #[case::its_time_has_come(&[B], &[A, B], &[(B, 4)], &[A, B], None)]
    // two VMs that swap a label
    #[case::comes_back_while_another_one_leaves(&[B], &[A], &[(A, 4)], &[], Some(4))]
    #[case::comes_back_beside_a_new_one(&[B], &[A, B, C], &[(A, 4)], &[B, C], Some(4))]
    #[case::several_come_back(&[C], &[A, B, C], &[(A, 4), (B, 2)], &[C], Some(2))]
    #[case::moves(&[A, B], &[A_ELSEWHERE, B], &[], &[A_ELSEWHERE, B], None)]
    #[case::moves_to_and_fro(&[A, B], &[A_ELSEWHERE, B], &[(A_ELSEWHERE, 4)], &[A, B], Some(4))]
    #[case::moves_after_it_flapped(&[A, B], &[A_ELSEWHERE, B], &[(A, 4)], &[A, B], Some(4))]
    #[case::moves_while_another_one_leaves(&[A, B], &[A_ELSEWHERE], &[(A_ELSEWHERE, 4)], &[A], Some(4))]
    #[case::the_later_of_two_addresses(&[], &[A], &[(A, 2), (A_ELSEWHERE, 4)], &[], Some(4))]
    fn a_vm_that_comes_back_before_its_time_is_written_with_nothing_else(
        #[case] slice: &[Named],
        #[case] selected: &[Named],
        #[case] due_in: &[(Named, u64)],
        #[case] expected: &[Named],
        #[case] first: Option<u64>,
    ) {
        let all = |named: &[Named]| {
            let backend = |named: &Named| (Backend { id: id(*named), name: named.0.to_owned() }, true);
            named.iter().map(backend).collect::<Vec<_>>()
        };
        let recorded = slice.iter().map(|named| (id(*named), true)).collect();
        let due_in = due_in.iter().map(|(named, wait)| (id(*named), Duration::from_secs(*wait))).collect();
        let kept = without_early_returns(all(selected), &recorded, &due_in);
        assert_eq!(kept, (all(expected), first.map(Duration::from_secs)));
    }
}
