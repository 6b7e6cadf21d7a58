//! Liveness and readiness: named checks that the parts of a program pass or fail.
//!
//! ```
//! let health = program::health::Health::default();
//! let lists = health.readiness("lists");
//! assert_eq!(health.readiness_report(), "lists: not started\n");
//! lists.pass();
//! assert_eq!((health.liveness_report().as_str(), health.readiness_report().as_str()), ("", ""));
//! ```
//! A liveness check fails only where a restart of this process helps: the kubelet restarts it for that. Another cluster
//! that is away is a matter of readiness.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex},
};

type Named = BTreeMap<&'static str, Option<String>>;
type Asked = Arc<dyn Fn() -> Option<String> + Send + Sync>;

#[derive(Default)]
struct Checks {
    liveness: Named,
    readiness: Named,
    /// Liveness checks that are computed when somebody asks.
    asked: BTreeMap<&'static str, Asked>,
}

impl fmt::Debug for Checks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Checks")
            .field("liveness", &self.liveness)
            .field("readiness", &self.readiness)
            .finish()
    }
}

/// The checks of one process. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Health(Arc<Mutex<Checks>>);

/// The question of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    /// Would a restart of the process help?
    Liveness,
    /// Liveness, and can it do its work?
    Readiness,
}

/// The answer of one check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckResult {
    pub name: &'static str,
    /// Why it fails, in one line.
    pub failure: Option<String>,
}

/// One named check, which its owner passes or fails.
#[derive(Clone, Debug)]
pub struct Check {
    health: Health,
    probe: Probe,
    name: &'static str,
}

impl Health {
    /// A check that must pass while the process lives. A new one passes; a known name is the same check.
    pub fn liveness(&self, name: &'static str) -> Check {
        self.check(Probe::Liveness, name, None)
    }

    /// A liveness check that is computed for each probe: `why` answers what is wrong. For a task that may hang, and
    /// then cannot say so.
    pub fn liveness_by(&self, name: &'static str, why: impl Fn() -> Option<String> + Send + Sync + 'static) {
        self.locked().asked.insert(name, Arc::new(why));
    }

    /// A check that must pass before the process is ready. A new one fails as "not started"; a known name is the same
    /// check.
    pub fn readiness(&self, name: &'static str) -> Check {
        self.check(Probe::Readiness, name, Some("not started".to_owned()))
    }

    /// A line for each liveness check that fails.
    pub fn liveness_report(&self) -> String {
        report(&self.results(Probe::Liveness))
    }

    /// A line for each check of either sort that fails: a process that should be restarted is not ready.
    pub fn readiness_report(&self) -> String {
        report(&self.results(Probe::Readiness))
    }

    /// Every check that a probe asks, by name. One that is asked for both fails for either reason.
    pub fn results(&self, probe: Probe) -> Vec<CheckResult> {
        let (liveness, asked, readiness) = {
            let checks = self.locked();
            let readiness = matches!(probe, Probe::Readiness).then(|| checks.readiness.clone());
            (checks.liveness.clone(), checks.asked.clone(), readiness.unwrap_or_default())
        };
        let mut all = readiness;
        for (name, failure) in liveness.into_iter().chain(asked.into_iter().map(|(name, why)| (name, why())))
        {
            let result = all.entry(name).or_default();
            *result = failure.or(result.take());
        }
        all.into_iter().map(|(name, failure)| CheckResult { name, failure }).collect()
    }

    fn check(&self, probe: Probe, name: &'static str, state: Option<String>) -> Check {
        self.locked().of(probe).entry(name).or_insert(state);
        Check { health: self.clone(), probe, name }
    }

    fn locked(&self) -> std::sync::MutexGuard<'_, Checks> {
        self.0.lock().expect("no panic while health is locked")
    }
}

impl Checks {
    fn of(&mut self, probe: Probe) -> &mut Named {
        match probe {
            Probe::Liveness => &mut self.liveness,
            Probe::Readiness => &mut self.readiness,
        }
    }
}

impl Check {
    pub fn pass(&self) {
        self.set(None);
    }

    /// `why` is one line for people.
    pub fn fail(&self, why: impl Into<String>) {
        self.set(Some(why.into()));
    }

    /// Takes the check away, for a part that does not run any more.
    pub fn remove(self) {
        self.health.locked().of(self.probe).remove(self.name);
    }

    fn set(&self, state: Option<String>) {
        self.health.locked().of(self.probe).insert(self.name, state);
    }
}

fn report(results: &[CheckResult]) -> String {
    let line = |result: &CheckResult| Some(format!("{}: {}\n", result.name, result.failure.as_ref()?));
    results.iter().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_ready_when_every_check_passes_and_alive_whatever_readiness_says() {
        let health = Health::default();
        let (alive, harvester) = (health.liveness("lease"), health.readiness("harvester"));
        assert_eq!(health.liveness_report(), "");
        assert_eq!(health.readiness_report(), "harvester: not started\n");
        harvester.fail("connection refused");
        assert_eq!(health.liveness_report(), "");
        assert_eq!(health.readiness_report(), "harvester: connection refused\n");
        health.readiness("harvester").pass();
        assert_eq!(health.readiness_report(), "");
        alive.fail("overdue");
        assert_eq!(health.liveness_report(), "lease: overdue\n");
        assert_eq!(health.readiness_report(), "lease: overdue\n");
    }

    #[test]
    fn a_computed_check_is_computed_for_each_probe() {
        let (health, probes) = (Health::default(), Arc::new(Mutex::new(0)));
        let counted = Arc::clone(&probes);
        health.liveness_by("lease", move || {
            *counted.lock().unwrap() += 1;
            (*counted.lock().unwrap() > 1).then(|| "overdue".to_owned())
        });
        assert_eq!(health.liveness_report(), "");
        assert_eq!(health.readiness_report(), "lease: overdue\n");
    }

    #[test]
    fn a_check_of_both_probes_is_one_check_and_fails_for_either_reason() {
        let health = Health::default();
        health.readiness("lease").pass();
        health.liveness("lease").fail("overdue");
        let lease = CheckResult { name: "lease", failure: Some("overdue".to_owned()) };
        assert_eq!(health.results(Probe::Readiness), [lease]);
        health.liveness("lease").pass();
        health.readiness("lease").fail("of another");
        assert_eq!(health.readiness_report(), "lease: of another\n");
    }

    #[test]
    fn a_part_that_ended_is_asked_no_more() {
        let health = Health::default();
        health.readiness("webhook").remove();
        assert_eq!(health.readiness_report(), "");
    }
}
