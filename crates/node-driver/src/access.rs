//! Connects to Harvester with a kubeconfig.
//!
//! A user gives the content of the kubeconfig, and Rancher's pods use it. So the driver accepts only credentials that stand
//! in it: it would run a command and read a file with Rancher's rights.

use cloud_config::{CloudConfig, Connection, Local, Options, expiry, local, proxy::Environment};
use futures::future::FutureExt as _;

use crate::{
    driver::{Access, Connect},
    flags, yaml,
};

/// Stands for the server's address if no kubeconfig is given.
const OWN_CLUSTER: &str = "the cluster of KUBECONFIG or of this pod's account";

/// Connects with the content of a kubeconfig; with an empty one, with `KUBECONFIG` or the pod's account. Must run inside a
/// tokio runtime.
pub(crate) fn connect() -> Connect {
    std::sync::Arc::new(|content| open(content, &options()))
}

fn options() -> Options {
    Options::named(concat!("docker-machine-driver-harvester/", env!("CARGO_PKG_VERSION")))
}

fn open(content: &str, options: &Options) -> Result<Access, String> {
    if content.trim().is_empty() {
        let client = local(&Local::default(), options).map_err(|error| error.to_string())?;
        let expiry = std::future::ready(expiry::Expiry::Unknown).boxed();
        return Ok(Access { client, server: OWN_CLUSTER.to_owned(), expiry });
    }
    let config = inline(content)?;
    let client = Connection::open(&config, options).map_err(|error| error.to_string())?.client();
    let options = options.clone();
    let server = config.server().trim_end_matches('/').to_owned();
    Ok(Access { client, server, expiry: async move { expiry::of(&config, &options).await }.boxed() })
}

/// Reads the content, and refuses references to commands and files.
fn inline(content: &str) -> Result<CloudConfig, String> {
    yaml::check_size(content).map_err(|fault| format!("{}: {fault}", flags::KUBECONFIG_CONTENT))?;
    let config = CloudConfig::parse(content, flags::KUBECONFIG_CONTENT, &Environment::of_process());
    config.map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn kubeconfig(cluster: &str, user: &str) -> String {
        format!(
            "{{current-context: a, clusters: [{{name: a, cluster: {{server: 'https://h:6443' {cluster}}}}}],
               users: [{{name: a, user: {{{user}}}}}], contexts: [{{name: a, context: {{cluster: a, user: a}}}}]}}"
        )
    }

    #[test]
    fn what_stands_in_the_kubeconfig_is_taken() {
        assert!(inline(&kubeconfig("", "token: t")).is_ok());
        assert!(inline(&kubeconfig(", insecure-skip-tls-verify: true", "username: u, password: p")).is_ok());
    }

    #[test]
    fn a_kubeconfig_whose_aliases_write_out_too_much_is_refused() {
        let aliases = vec!["*a"; 10_000].join(", ");
        let error = inline(&format!("a: &a '{}'\nb: [{aliases}]\n", "x".repeat(1000))).unwrap_err();
        assert!(error.contains("more than 1 MiB"), "{error}");
    }

    #[rstest]
    #[case::exec("", "exec: {command: rm, apiVersion: client.authentication.k8s.io/v1}", "exec is not taken")]
    #[case::provider("", "auth-provider: {name: gcp, config: {}}", "auth-provider is not taken")]
    #[case::token_file("", "tokenFile: /etc/passwd", "tokenFile is not taken")]
    #[case::certificate(
        "",
        "client-certificate: /a, client-key: /b",
        "client-certificate, client-key is not taken"
    )]
    #[case::authority(", certificate-authority: /etc/passwd", "token: t", "certificate-authority")]
    fn what_stands_outside_is_refused_in_one_line(
        #[case] cluster: &str,
        #[case] user: &str,
        #[case] part: &str,
    ) {
        let error = inline(&kubeconfig(cluster, user)).unwrap_err();
        assert!(error.contains(part) && error.lines().count() == 1, "{error}");
        assert!(!error.contains("root:"), "nothing of a file is told: {error}");
    }
}
