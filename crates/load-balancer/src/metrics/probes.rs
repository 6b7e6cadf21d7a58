//! The health checks in numbers. No backend has a series of its own: there are thousands, and tenants name them.

use std::time::Duration;

use health_check::DialError;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{
        counter::Counter,
        family::Family,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};

/// The result of a good probe. Those of others are [`DialError::word`].
const GOOD: &str = "good";

/// Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Probes {
    seconds: Family<ResultLabel, Histogram, fn() -> Histogram>,
    flaps: Counter,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

impl Default for Probes {
    fn default() -> Self {
        // a millisecond to half a minute, which is the longest probe
        let seconds: fn() -> Histogram = || Histogram::new(exponential_buckets(0.001, 2.0, 16));
        Self { seconds: Family::new_with_constructor(seconds), flaps: Counter::default() }
    }
}

impl Probes {
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            "probes_duration_seconds",
            "From the beginning of a probe to its end, by its result",
            self.seconds.clone(),
        );
        registry.register(
            "probes_flaps",
            "Backends that lost their readiness for the second time, or more often, within ten minutes",
            self.flaps.clone(),
        );
    }

    pub(crate) fn answered(&self, result: Result<(), &DialError>, took: Duration) {
        let result = result.map_or_else(DialError::word, |()| GOOD);
        self.seconds.get_or_create(&ResultLabel { result }).observe(took.as_secs_f64());
    }

    pub(crate) fn flapped(&self) {
        self.flaps.inc();
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;

    use super::*;

    #[test]
    fn probes_are_counted_by_result_whatever_a_backend_answers() {
        let (probes, mut registry, mut text) = (Probes::default(), Registry::default(), String::new());
        probes.register(&mut registry);
        for status in 400..600 {
            probes.answered(Err(&DialError::Status(status)), Duration::from_millis(3));
        }
        probes.answered(Ok(()), Duration::from_millis(1));
        probes.flapped();
        encode(&mut text, &registry).unwrap();
        for line in [
            r#"probes_duration_seconds_count{result="status"} 200"#,
            r#"probes_duration_seconds_count{result="good"} 1"#,
            "probes_flaps_total 1",
        ] {
            assert!(text.lines().any(|other| other == line), "{line}: {text}");
        }
    }
}
