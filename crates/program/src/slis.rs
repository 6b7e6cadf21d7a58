//! Service level indicators of a component, under the names of Kubernetes: what its health checks answer.

use std::sync::{Arc, Mutex, MutexGuard};

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

use crate::health::CheckResult;

/// One check of one probe.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Check {
    name: &'static str,
    r#type: &'static str,
}

/// One answer of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Answer {
    name: &'static str,
    r#type: &'static str,
    status: &'static str,
}

/// The indicators of one process. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Slis {
    now: Family<Check, Gauge>,
    answers: Family<Answer, Counter>,
    registry: Arc<Mutex<Registry>>,
}

impl Default for Slis {
    fn default() -> Self {
        let (now, answers, mut registry) = (Family::default(), Family::default(), Registry::default());
        registry.register(
            "kubernetes_healthcheck",
            "Result of a health check: 1 where it passes",
            now.clone(),
        );
        registry.register("kubernetes_healthchecks", "Results of all health checks", answers.clone());
        Self { now, answers, registry: Arc::new(Mutex::new(registry)) }
    }
}

impl Slis {
    /// What the checks of each probe answer now, and no check that has been taken away.
    pub(crate) fn set_now(&self, probes: &[(&'static str, Vec<CheckResult>)]) {
        self.now.clear();
        for (probe, results) in probes {
            for result in results {
                let check = Check { name: result.name, r#type: probe };
                self.now.get_or_create(&check).set(i64::from(result.failure.is_none()));
            }
        }
    }

    /// A probe asked.
    pub(crate) fn count(&self, probe: &'static str, results: &[CheckResult]) {
        for result in results {
            let status = if result.failure.is_none() { "success" } else { "error" };
            self.answers.get_or_create(&Answer { name: result.name, r#type: probe, status }).inc();
        }
    }

    pub(crate) fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().expect("no panic while encoding metrics")
    }
}
