//! The figures: what they are called, what we aim at, and what the Go programs needed for the same work on two shared
//! cores (November 2026). Smaller is better, always.

/// One line of the table.
pub(super) struct Figure {
    pub(super) name: &'static str,
    pub(super) unit: &'static str,
    /// Infinite for what only explains another figure.
    pub(super) aim: f64,
    /// `None` where the Go programs were not measured.
    pub(super) go: Option<f64>,
}

const fn figure(name: &'static str, unit: &'static str, aim: f64, go: Option<f64>) -> Figure {
    Figure { name, unit, aim, go }
}

/// All of them, in the order of the table.
pub(super) const FIGURES: [Figure; 77] = [
    figure("service-create-p50-ms", "ms", 25.0, Some(1030.0)),
    figure("service-create-p99-ms", "ms", 100.0, None),
    figure("service-create-p50-ratio", "of the other", 0.8, None),
    figure("burst-100-p99-s", "s", 1.5, Some(102.0)),
    figure("burst-1000-total-s", "s", 17.0, None),
    figure("burst-1000-cpu-s", "CPU s", 3.0, None),
    figure("burst-1000-testbed-cpu-s", "CPU s", f64::INFINITY, None),
    // 0.85 a second
    figure("direct-4000-total-s", "s", 10.0, Some(4706.0)),
    figure("delete-100-total-s", "s", 1.5, Some(58.0)),
    figure("ccm-harvester-requests-per-service", "requests", 3.0, None),
    figure("lb-writes-per-service", "requests", 3.0, None),
    figure("writes-per-service", "requests", 6.2, Some(12.6)),
    figure("burst-1000-conflicts-surfaced", "conflicts", 0.0, None),
    figure("burst-1000-lbs-deleted", "objects", 0.0, None),
    figure("steady-requests-per-minute", "requests", 0.0, None),
    figure("restart-1000-services-s", "s", 2.0, None),
    figure("restart-1000-services-writes", "requests", 0.0, None),
    // 1,000 Services while ten tokens follow one another
    figure("rotate-failed-requests", "requests", 0.0, None),
    figure("restart-same-pod-s", "s", 1.5, Some(16.7)),
    figure("webhook-hostile-ms", "ms", 50.0, None),
    figure("webhook-hostile-mib", "MiB", 5.0, None),
    figure("conversion-1000-ms", "ms", 50.0, None),
    figure("rss-ccm-idle-mib", "MiB", 15.0, Some(70.0)),
    figure("rss-ccm-1000-mib", "MiB", 30.0, None),
    figure("rss-lb-idle-mib", "MiB", 15.0, Some(46.0)),
    figure("rss-lb-1000-mib", "MiB", 30.0, None),
    figure("allocate-us", "µs", 3.0, None),
    figure("waiter-p99-ms", "ms", 60.0, None),
    figure("vm-lb-create-writes", "requests", 5.0, None),
    figure("vm-lb-steady-writes", "requests", 0.0, None),
    figure("backend-flip-writes", "requests", 2.0, None),
    figure("burst-10000-total-s", "s", 30.0, None),
    figure("lb-rss-10000-mib", "MiB", 100.0, None),
    figure("lb-restart-10000-s", "s", 3.0, None),
    figure("lb-restart-10000-writes", "requests", 0.0, None),
    figure("dashboard-rss-mib", "MiB", 30.0, None),
    figure("dashboard-delay-p99-ms", "ms", 200.0, None),
    figure("node-init-p50-ms", "ms", 40.0, None),
    figure("node-add-harvester-requests", "requests", 2.0, None),
    figure("steady-harvester-requests", "requests", 0.0, None),
    figure("port-change-harvester-requests-guest", "requests", 0.0, None),
    figure("port-change-harvester-requests-host", "requests", 1.0, None),
    figure("shared-create-p50-ms", "ms", 15.0, None),
    figure("ccm-restart-200-nodes-s", "s", 2.0, None),
    figure("ccm-restart-200-nodes-writes", "requests", 0.0, None),
    figure("ccm-rss-large-mib", "MiB", 40.0, None),
    figure("ccm-large-bytes-mib", "MiB", 8.0, None),
    figure("ccm-start-ms", "ms", 120.0, None),
    figure("ccm-takeover-ms", "ms", 300.0, None),
    figure("probe-10000-cpu", "CPU s a second", 0.4, None),
    figure("probe-10000-late-p99-ms", "ms", 50.0, None),
    figure("driver-address-line-ms", "ms", 20.0, None),
    figure("driver-create-overhead-ms", "ms", 300.0, None),
    figure("driver-create-requests", "requests", 16.0, None),
    figure("gob-flags-us", "µs", 50.0, None),
    figure("driver-rss-mib", "MiB", 15.0, None),
    figure("csi-attach-overhead-ms", "ms", 30.0, Some(3300.0)),
    figure("csi-attach-requests", "requests", 2.0, Some(10.0)),
    figure("csi-attach-cold-requests", "requests", 6.0, None),
    figure("csi-detach-overhead-ms", "ms", 30.0, Some(1000.0)),
    figure("csi-detach-requests", "requests", 3.0, Some(8.0)),
    figure("csi-stats-requests-per-minute", "requests", 0.0, Some(100.0)),
    // the Go program does not end
    figure("csi-sigterm-s", "s", 2.0, None),
    figure("csi-rss-idle-mib", "MiB", 12.0, Some(60.0)),
    figure("csi-rss-100-mib", "MiB", 25.0, None),
    // the Go program leaves volumes where they are
    figure("csi-heal-p99-s", "s", 5.0, None),
    figure("csi-stage-ms", "ms", 60.0, None),
    figure("csi-sanity-failed", "specs", 0.0, Some(36.0)),
    figure("binary-mib", "MiB", 20.0, None),
    figure("image-mib", "MiB", 22.0, None),
    figure("csi-image-mib", "MiB", f64::INFINITY, None),
    figure("generate-s", "s", 3.0, None),
    figure("doctor-s", "s", 3.0, None),
    figure("sandbox-first-curl-s", "s", 3.0, None),
    figure("first-build-s", "s", 200.0, None),
    figure("test-fresh-min", "min", 20.0, None),
    figure("test-warm-min", "min", 10.0, None),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_figures_of_storage_have_the_aims_of_their_issue() {
        let rows = [
            ("csi-attach-overhead-ms", 30.0, Some(3300.0)),
            ("csi-attach-requests", 2.0, Some(10.0)),
            ("csi-attach-cold-requests", 6.0, None),
            ("csi-detach-overhead-ms", 30.0, Some(1000.0)),
            ("csi-detach-requests", 3.0, Some(8.0)),
            ("csi-stats-requests-per-minute", 0.0, Some(100.0)),
            ("csi-sigterm-s", 2.0, None),
            ("csi-rss-idle-mib", 12.0, Some(60.0)),
            ("csi-rss-100-mib", 25.0, None),
            ("csi-heal-p99-s", 5.0, None),
            ("csi-stage-ms", 60.0, None),
            ("csi-sanity-failed", 0.0, Some(36.0)),
        ];
        let of_storage =
            FIGURES.iter().filter(|figure| figure.name.starts_with("csi-") && figure.aim.is_finite());
        let of_storage: Vec<_> = of_storage.map(|figure| (figure.name, figure.aim, figure.go)).collect();
        assert_eq!(of_storage, rows);
    }

    #[test]
    fn the_figures_of_what_people_install_and_call_have_the_aims_of_their_issue() {
        let aim = |name: &str| FIGURES.iter().find(|figure| figure.name == name).map(|figure| figure.aim);
        for (name, expected) in
            [("binary-mib", 20.0), ("image-mib", 22.0), ("generate-s", 3.0), ("doctor-s", 3.0)]
        {
            assert_eq!(aim(name), Some(expected), "{name}");
        }
    }

    #[test]
    fn every_figure_is_in_the_document_about_benchmarks() {
        let document = include_str!("../../../docs/benchmarks.md");
        let missing: Vec<_> =
            FIGURES.iter().map(|figure| figure.name).filter(|name| !document.contains(name)).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }
}
