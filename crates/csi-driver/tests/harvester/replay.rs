//! All states of the machines in the order of the server, and what must hold in them.

use std::{collections::BTreeMap, time::Duration};

use tokio::time::Instant;

use super::{bed::State, process::Addition};

/// A decision is so old when its first write is on its way: the write's own latency, and that of the reads before it.
const TOLERATED: Duration = Duration::from_millis(200);

/// A good answer to ControllerPublishVolume.
#[derive(Clone, Debug)]
pub(crate) struct Answered {
    pub(crate) machine: String,
    pub(crate) revision: u64,
}

#[derive(Default)]
pub(crate) struct Replay {
    states: Vec<State>,
}

impl Replay {
    pub(crate) fn of(mut states: Vec<State>) -> Self {
        states.sort_by_key(|state| state.revision);
        Self { states }
    }

    /// The machines that had the volume when this was the newest revision, and since when.
    fn holders(&self, revision: u64) -> BTreeMap<&str, Instant> {
        let mut now: BTreeMap<(&str, bool), bool> = BTreeMap::new();
        let mut since = BTreeMap::new();
        for state in self.states.iter().take_while(|state| state.revision <= revision) {
            let machine = state.machine.as_str();
            now.insert((machine, state.is_instance), state.has_volume);
            if now.iter().any(|((name, _), has)| *name == machine && *has) {
                since.entry(machine).or_insert(state.at);
            } else {
                since.remove(machine);
            }
        }
        since
    }

    fn others(&self, machine: &str, revision: u64) -> BTreeMap<&str, Instant> {
        let mut holders = self.holders(revision);
        holders.remove(machine);
        holders
    }

    /// What a volume that only this driver moves never does.
    pub(crate) fn in_two_machines(&self) -> Option<String> {
        let two = self.states.iter().map(|state| (state.revision, self.holders(state.revision)));
        let two = two.into_iter().find(|(_, holders)| holders.len() > 1)?;
        Some(format!("at revision {} the volume is in {:?}", two.0, two.1.keys()))
    }

    /// What this driver never does, whatever another one does meanwhile: it writes the annotation, in order to add the
    /// volume, while another machine has it.
    pub(crate) fn taken_while_in_use(&self, additions: &[Addition]) -> Option<String> {
        additions.iter().find_map(|addition| {
            let others = self.others(&addition.machine, addition.revision - 1);
            let (other, since) =
                others.iter().find(|(_, since)| **since + TOLERATED < addition.claimed_at)?;
            let before = addition.claimed_at - *since;
            Some(format!("{addition:?}, and {other} had had the volume for {before:?}"))
        })
    }

    /// And it never says that a disk is ready which it added while another machine had the volume.
    pub(crate) fn answered_while_in_use(
        &self,
        additions: &[Addition],
        answers: &[Answered],
    ) -> Option<String> {
        answers.iter().find_map(|answer| {
            let of_it = additions.iter().filter(|one| one.machine == answer.machine);
            let last = of_it.filter(|one| one.revision <= answer.revision).max_by_key(|one| one.revision)?;
            let before = self.others(&answer.machine, last.revision - 1);
            let still = self.others(&answer.machine, answer.revision);
            let both = before.keys().find(|other| still.contains_key(*other))?;
            Some(format!("{answer:?} after {last:?}, while {both} has the volume"))
        })
    }
}
