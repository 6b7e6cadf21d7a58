//! What the kernel says of this process, under the names that every exporter of Prometheus gives it. It is read when
//! somebody asks.

use std::{
    fmt, fs,
    sync::{Arc, Mutex},
};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric as _},
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge},
    registry::Registry,
};

use crate::http::Metrics;

/// Linux counts time in these for programs, on every architecture.
const TICKS_PER_SECOND: f64 = 100.0;

/// A registry with the metrics of the process.
pub(crate) fn registry() -> Metrics {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(OfProcess));
    Arc::new(Mutex::new(registry))
}

#[derive(Debug)]
struct OfProcess;

/// The values that could be read.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Values {
    cpu_seconds: Option<f64>,
    start_time: Option<f64>,
    virtual_bytes: Option<f64>,
    resident_bytes: Option<f64>,
    open_files: Option<f64>,
    max_files: Option<f64>,
}

impl Values {
    fn read() -> Self {
        let text = |file: &str| fs::read_to_string(file).unwrap_or_default();
        let files = fs::read_dir("/proc/self/fd").ok();
        Self {
            // the listing has one open itself
            open_files: files
                .and_then(|all| u32::try_from(all.count().saturating_sub(1)).ok())
                .map(f64::from),
            ..Self::of(
                &text("/proc/self/stat"),
                &text("/proc/self/status"),
                &text("/proc/self/limits"),
                &text("/proc/stat"),
            )
        }
    }

    fn of(stat: &str, status: &str, limits: &str, machine: &str) -> Self {
        // the name of the program stands in brackets, and may contain anything
        let fields: Vec<f64> = stat.rsplit_once(')').map_or_else(Vec::new, |(_, rest)| {
            rest.split_whitespace().map(|field| field.parse().unwrap_or_default()).collect()
        });
        // `man proc_pid_stat` counts from 1, and two fields stand before these
        let field = |number: usize| fields.get(number - 3).copied();
        let line = |text: &str, key: &str| {
            let rest = text.lines().find_map(|line| line.strip_prefix(key))?;
            rest.split_whitespace().next()?.parse::<f64>().ok()
        };
        let boot = line(machine, "btime ");
        Self {
            cpu_seconds: field(14).zip(field(15)).map(|(user, system)| (user + system) / TICKS_PER_SECOND),
            start_time: boot.zip(field(22)).map(|(boot, ticks)| boot + ticks / TICKS_PER_SECOND),
            virtual_bytes: line(status, "VmSize:").map(|kib| kib * 1024.0),
            resident_bytes: line(status, "VmRSS:").map(|kib| kib * 1024.0),
            open_files: None,
            max_files: line(limits, "Max open files"),
        }
    }
}

impl Collector for OfProcess {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let values = Values::read();
        if let Some(seconds) = values.cpu_seconds {
            let help = "Total user and system CPU time spent in seconds";
            let of = encoder.encode_descriptor("process_cpu_seconds", help, None, MetricType::Counter)?;
            ConstCounter::new(seconds).encode(of)?;
        }
        for (name, help, value) in [
            ("process_start_time_seconds", "Start time of the process since the epoch", values.start_time),
            ("process_virtual_memory_bytes", "Virtual memory size in bytes", values.virtual_bytes),
            ("process_resident_memory_bytes", "Resident memory size in bytes", values.resident_bytes),
            ("process_open_fds", "Number of open file descriptors", values.open_files),
            ("process_max_fds", "Maximum number of open file descriptors", values.max_files),
        ] {
            let Some(value) = value else { continue };
            let of = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            ConstGauge::new(value).encode(of)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;

    use super::*;

    #[test]
    fn what_the_kernel_says_is_told_in_seconds_and_bytes() {
        let stat = "7 (a ) b) S 1 2 3 4 5 6 7 8 9 10 150 50 0 0 20 0 3 0 1000 12345 6";
        let values = Values::of(
            stat,
            "Name:\tpart\nVmSize:\t    2048 kB\nVmRSS:\t   1024 kB\n",
            "Limit  Soft Limit\nMax open files            1024     4096     files\n",
            "cpu 1 2\nbtime 1700000000\n",
        );
        let expected = Values {
            cpu_seconds: Some(2.0),
            start_time: Some(1_700_000_010.0),
            virtual_bytes: Some(2_097_152.0),
            resident_bytes: Some(1_048_576.0),
            open_files: None,
            max_files: Some(1024.0),
        };
        assert_eq!(values, expected);
        assert_eq!(Values::of("", "", "", ""), Values::default(), "what cannot be read is not told");
    }

    #[test]
    fn a_process_tells_its_memory_time_and_files() {
        let mut text = String::new();
        encode(&mut text, &registry().lock().unwrap()).unwrap();
        for name in [
            "process_cpu_seconds_total",
            "process_start_time_seconds",
            "process_virtual_memory_bytes",
            "process_resident_memory_bytes",
            "process_open_fds",
            "process_max_fds",
        ] {
            assert!(
                text.lines().any(|line| line.starts_with(&format!("{name} "))),
                "{name} is not in\n{text}"
            );
            let document = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/messages.md");
            let document = fs::read_to_string(document).unwrap();
            assert!(document.contains(&format!("`{name}`")), "{name} is not documented");
        }
    }
}
