//! What a queue does, under our names and under those that client-go's queues have.

use std::{
    fmt,
    sync::{Arc, Mutex, atomic::AtomicU64},
};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{
        MetricType,
        counter::Counter,
        gauge::{ConstGauge, Gauge},
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};
use tokio::time::Instant;

/// Counters and times of one queue. Clones are the same metrics.
#[derive(Clone, Debug)]
pub struct QueueMetrics {
    pub(super) reconciles: Counter<u64, AtomicU64>,
    pub(super) failures: Counter<u64, AtomicU64>,
    adds: Counter,
    depth: Gauge,
    waits: Histogram,
    works: Histogram,
    /// When each item that is worked on was begun.
    begun: Arc<Mutex<Vec<Instant>>>,
}

impl Default for QueueMetrics {
    fn default() -> Self {
        // ten nanoseconds to ten seconds, as in client-go
        let seconds = || Histogram::new(exponential_buckets(1e-8, 10.0, 10));
        Self {
            reconciles: Counter::default(),
            failures: Counter::default(),
            adds: Counter::default(),
            depth: Gauge::default(),
            waits: seconds(),
            works: seconds(),
            begun: Arc::default(),
        }
    }
}

impl QueueMetrics {
    /// Registers `<name>_reconciles` and `<name>_failures`.
    pub fn register(&self, registry: &mut Registry, name: &str) {
        registry.register(format!("{name}_reconciles"), "Reconciles that ran", self.reconciles.clone());
        registry.register(format!("{name}_failures"), "Reconciles that failed", self.failures.clone());
    }

    /// An item waits that did not before.
    pub(super) fn added(&self) {
        self.adds.inc();
    }

    pub(super) fn waiting(&self, items: usize) {
        self.depth.set(i64::try_from(items).unwrap_or(i64::MAX));
    }

    /// A worker takes an item that was ready at `since`.
    pub(super) fn took(&self, since: Instant, now: Instant) {
        self.waits.observe(now.duration_since(since).as_secs_f64());
        self.begun.lock().expect("no panic while times are kept").push(now);
    }

    /// The item that was taken at `begun` is done.
    pub(super) fn finished(&self, begun: Instant) {
        self.works.observe(begun.elapsed().as_secs_f64());
        let mut all = self.begun.lock().expect("no panic while times are kept");
        if let Some(at) = all.iter().position(|other| *other == begun) {
            all.swap_remove(at);
        }
    }

    /// Seconds of all work that is not done, and of the longest.
    fn unfinished(&self) -> (f64, f64) {
        let begun = self.begun.lock().expect("no panic while times are kept");
        let times = begun.iter().map(|begun| begun.elapsed().as_secs_f64());
        times.fold((0.0, 0.0), |(all, longest), time| (all + time, f64::max(longest, time)))
    }
}

/// `workqueue_*` of several queues, by the label `name`. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct WorkQueues(Arc<Mutex<Vec<(&'static str, QueueMetrics)>>>);

impl WorkQueues {
    pub fn add(&self, name: &'static str, metrics: QueueMetrics) {
        self.0.lock().expect("no panic while queues are added").push((name, metrics));
    }
}

impl Collector for WorkQueues {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let queues = self.0.lock().expect("no panic while queues are added").clone();
        let mut family = |name: &str, help: &str, of: fn(&QueueMetrics) -> Box<dyn Encoded>| {
            let Some((_, first)) = queues.first() else { return Ok(()) };
            let kind = of(first).kind();
            let name = format!("workqueue_{name}");
            let mut metric = encoder.encode_descriptor(&name, help, None, kind)?;
            for (queue, metrics) in &queues {
                of(metrics).encode(&mut metric, queue)?;
            }
            Ok::<_, fmt::Error>(())
        };
        family("adds", "Items added", |it| Box::new(it.adds.clone()))?;
        family("depth", "Items that wait", |it| Box::new(it.depth.clone()))?;
        family("queue_duration_seconds", "How long items wait", |it| Box::new(it.waits.clone()))?;
        family("work_duration_seconds", "How long work on an item lasts", |it| Box::new(it.works.clone()))?;
        family("unfinished_work_seconds", "Time spent on work that is not done", |it| {
            Box::new(ConstGauge::new(it.unfinished().0))
        })?;
        family(
            "longest_running_processor_seconds",
            "Time spent on the longest work that is not done",
            |it| Box::new(ConstGauge::new(it.unfinished().1)),
        )?;
        family("retries", "Items that come back because their work failed", |it| {
            Box::new(it.failures.clone())
        })
    }
}

/// A metric of one queue.
trait Encoded {
    fn kind(&self) -> MetricType;
    fn encode(
        &self,
        into: &mut prometheus_client::encoding::MetricEncoder<'_>,
        queue: &str,
    ) -> Result<(), fmt::Error>;
}

impl<M: EncodeMetric> Encoded for M {
    fn kind(&self) -> MetricType {
        self.metric_type()
    }

    fn encode(
        &self,
        into: &mut prometheus_client::encoding::MetricEncoder<'_>,
        queue: &str,
    ) -> Result<(), fmt::Error> {
        EncodeMetric::encode(self, into.encode_family(&[("name", queue)])?)
    }
}

#[cfg(test)]
mod tests {
    use std::{io, time::Duration};

    use program::TaskGroup;
    use prometheus_client::encoding::text::encode;

    use super::*;
    use crate::{Action, Queue};

    #[tokio::test(start_paused = true)]
    async fn a_queue_tells_what_waits_what_runs_and_what_came_back() {
        let (queue, tasks, all) = (Queue::<u32>::new(), TaskGroup::new(), WorkQueues::default());
        all.add("service", queue.metrics().clone());
        let mut registry = Registry::default();
        registry.register_collector(Box::new(all));
        queue.add(1);
        queue.add(1);
        queue.add(2);
        tokio::time::sleep(Duration::from_secs(3)).await;
        queue.run(&tasks, 1, |item| async move {
            if item == 1 {
                return Err(io::Error::other("no"));
            }
            tokio::time::sleep(Duration::from_secs(100)).await;
            Ok(Action::AwaitChange)
        });
        tokio::time::sleep(Duration::from_secs(20)).await;
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        for line in [
            // the failed item came back while the other one is worked on
            r#"workqueue_adds_total{name="service"} 2"#,
            r#"workqueue_retries_total{name="service"} 1"#,
            r#"workqueue_queue_duration_seconds_sum{name="service"} 6.0"#,
            r#"workqueue_work_duration_seconds_count{name="service"} 1"#,
            r#"workqueue_unfinished_work_seconds{name="service"} 20.0"#,
            r#"workqueue_longest_running_processor_seconds{name="service"} 20.0"#,
        ] {
            assert!(text.lines().any(|it| it == line), "{line} is not in\n{text}");
        }
        tasks.stop.cancel();
    }
}
