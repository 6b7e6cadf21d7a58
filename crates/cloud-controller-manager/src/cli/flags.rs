//! Every flag that charts, docs and users pass. What we have no use for is taken and ignored, because the chart value
//! `extraArgs` lets people pass anything that the Go program knows.

/// What may follow a flag's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// `--name`, `--name=true`, `--name=false`.
    Switch,
    /// `--name=value`, `--name value`.
    Value,
}

/// One flag: its name, what may follow, and what it means to us (nothing, where the text is empty).
pub(super) struct Flag {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) meaning: &'static str,
}

const fn value(name: &'static str, meaning: &'static str) -> Flag {
    Flag { name, kind: Kind::Value, meaning }
}

const fn switch(name: &'static str, meaning: &'static str) -> Flag {
    Flag { name, kind: Kind::Switch, meaning }
}

pub(super) const FLAGS: &[Flag] = &[
    value("cloud-config", "kubeconfig for Harvester: a file, or a directory that holds it"),
    value("cluster-name", "name of the guest cluster in Harvester (default kubernetes)"),
    value("data-path", "guest (default), annotation or host: who carries the traffic of a Service"),
    value("allowed-data-paths", "guest,host (default): which paths a Service may have"),
    value("management-network", "namespace/name of the Harvester network that carries the nodes"),
    value("node-ip-cidr", "prefixes for the InternalIP of nodes, at most one of each family"),
    value(
        "node-exclude-ip-ranges",
        "ranges that are no ExternalIP of nodes; checked only: nodes get no ExternalIP",
    ),
    switch("disable-vmi-controller", "do not follow the zone and region of VMs"),
    switch("disable-annotation-alpha-provided-ip-addr", ""),
    switch("disable-hostname-lookup", "do not ask guest agents: nodes are found by provider ID and VM name"),
    switch("show-full-help-on-error", "print this text when the program fails to start"),
    value("controllers", "list: * all, name only this, -name not this (default *)"),
    value("kubeconfig", "guest cluster; else the variable KUBECONFIG, else the pod's service account"),
    value("master", "address of the guest's API server, instead of the kubeconfig's"),
    switch("leader-elect", "act only while holding the Lease (default true)"),
    value("leader-elect-lease-duration", "default 15s"),
    value("leader-elect-renew-deadline", "default 10s"),
    value("leader-elect-retry-period", "default 2s"),
    value("leader-elect-resource-lock", "leases is the only value"),
    value("leader-elect-resource-name", "default cloud-controller-manager"),
    value("leader-elect-resource-namespace", "default kube-system"),
    value(
        "pod-token-file",
        "the token by which the process knows its Pod, where it is not at the usual place",
    ),
    value("concurrent-service-syncs", "Services in work at once (default 16)"),
    value("concurrent-node-syncs", "nodes in work at once (default 1)"),
    value("kube-api-qps", "requests per second to each cluster (default 500)"),
    value("kube-api-burst", "requests at once to each cluster (default 1000)"),
    value("secure-port", "HTTPS port of health and metrics, 0 for none (default 10258)"),
    value("bind-address", "address of health and metrics (default 0.0.0.0)"),
    value("tls-cert-file", "certificate of health and metrics; else one is made in memory"),
    value("tls-private-key-file", "its key"),
    value("authorization-always-allow-paths", "paths for everybody (default /healthz,/readyz,/livez)"),
    value("v", "how much is logged: 0 to 2 info, 3 and 4 debug, 5 and more trace"),
    value("logging-format", "text (default) or json"),
    switch("version", "print the version"),
    switch("help", "print this text"),
    // taken and ignored
    value("cloud-provider", ""),
    switch("allow-untagged-cloud", ""),
    switch("authentication-skip-lookup", ""),
    value("min-resync-period", ""),
    value("kube-api-content-type", ""),
    value("controller-start-interval", ""),
    value("leader-migration-config", ""),
    switch("enable-leader-migration", ""),
    switch("profiling", ""),
    switch("contention-profiling", ""),
    value("node-monitor-period", ""),
    value("node-monitor-grace-period", ""),
    value("node-status-update-frequency", ""),
    value("concurrent-node-status-updates", ""),
    switch("use-service-account-credentials", ""),
    switch("allocate-node-cidrs", ""),
    value("cluster-cidr", ""),
    value("cidr-allocator-type", ""),
    switch("configure-cloud-routes", ""),
    value("route-reconciliation-period", ""),
    value("node-sync-period", ""),
    value("external-cloud-volume-plugin", ""),
    value("cert-dir", ""),
    value("tls-min-version", ""),
    value("tls-cipher-suites", ""),
    value("tls-sni-cert-key", ""),
    value("http2-max-streams-per-connection", ""),
    switch("permit-port-sharing", ""),
    switch("permit-address-sharing", ""),
    switch("disable-http2-serving", ""),
    value("authentication-kubeconfig", ""),
    value("authentication-token-webhook-cache-ttl", ""),
    switch("authentication-tolerate-lookup-failure", ""),
    value("authorization-kubeconfig", ""),
    value("authorization-webhook-cache-authorized-ttl", ""),
    value("authorization-webhook-cache-unauthorized-ttl", ""),
    value("client-ca-file", ""),
    value("requestheader-client-ca-file", ""),
    value("requestheader-allowed-names", ""),
    value("requestheader-extra-headers-prefix", ""),
    value("requestheader-group-headers", ""),
    value("requestheader-username-headers", ""),
    value("requestheader-uid-headers", ""),
    value("webhooks", ""),
    value("webhook-secure-port", ""),
    value("webhook-bind-address", ""),
    value("webhook-cert-dir", ""),
    value("webhook-tls-cert-file", ""),
    value("webhook-tls-private-key-file", ""),
    value("webhook-tls-min-version", ""),
    value("webhook-tls-cipher-suites", ""),
    value("feature-gates", ""),
    value("emulated-version", ""),
    value("log-flush-frequency", ""),
    value("log-json-info-buffer-size", ""),
    switch("log-json-split-stream", ""),
    value("log-text-info-buffer-size", ""),
    switch("log-text-split-stream", ""),
    value("vmodule", ""),
    value("show-hidden-metrics-for-version", ""),
    value("disabled-metrics", ""),
    value("allow-metric-labels", ""),
    value("allow-metric-labels-manifest", ""),
];

/// The flag of this name; `_` stands for `-`.
pub(super) fn find(name: &str) -> Option<&'static Flag> {
    let name = name.replace('_', "-");
    FLAGS.iter().find(|flag| flag.name == name)
}

pub(super) fn usage() -> String {
    let mut text = "Usage: cloud-controller-manager [flags]\n\nFlags:\n".to_owned();
    for flag in FLAGS.iter().filter(|flag| !flag.meaning.is_empty()) {
        let name = if flag.name.len() == 1 { format!("-{}", flag.name) } else { format!("--{}", flag.name) };
        text.push_str(&format!("  {name:<40} {}\n", flag.meaning));
    }
    text.push_str("\nTaken and ignored, as far as the Go program knows them:\n");
    for flag in FLAGS.iter().filter(|flag| flag.meaning.is_empty()) {
        text.push_str(&format!("  --{}\n", flag.name));
    }
    text
}
