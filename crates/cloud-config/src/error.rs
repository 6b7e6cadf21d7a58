//! What can be wrong with a kubeconfig, each in one line that names the file and the way out.

use std::path::PathBuf;

/// Why there is no connection. `Display` is one line for people.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("no cloud-config found, tried {}: create one for Harvester and name it with --cloud-config", paths(.tried))]
    Missing { tried: Vec<PathBuf> },
    #[error(
        "cloud-config {} is a directory without a kubeconfig: expected a file named cloud-config or cloud-provider-config in it",
        .path.display()
    )]
    EmptyDirectory { path: PathBuf },
    #[error("read kubeconfig {}: {source}", .file.display())]
    Read { file: PathBuf, source: std::io::Error },
    #[error("kubeconfig {file} cannot be parsed: {reason}")]
    Parse { file: String, reason: String },
    #[error("kubeconfig {file} names no current-context: set it to the context of the cluster")]
    NoCurrentContext { file: String },
    #[error("kubeconfig {file} has no context {context:?}, which its current-context names")]
    NoContext { file: String, context: String },
    #[error("kubeconfig {file}, context {context:?}: no cluster {cluster:?} in it")]
    NoCluster { file: String, context: String, cluster: String },
    /// A value of the chosen context is of no use: `what` is the field, `reason` why.
    #[error("kubeconfig {file}, context {context:?}: {what}: {reason}")]
    Field { file: String, context: String, what: &'static str, reason: String },
    #[error(
        "kubeconfig {file}, context {context:?}: {what} is not taken from it: put token, certificates and keys themselves into it"
    )]
    Outside { file: String, context: String, what: String },
    #[error("no access to the local cluster: {reason}; give --kubeconfig, set KUBECONFIG, or run in a pod")]
    NoLocal { reason: String },
    #[error("{what} {value:?}: {reason}")]
    Setting { what: &'static str, value: String, reason: String },
    #[error("make a client for {server}: {reason}")]
    Client { server: String, reason: String },
}

fn paths(tried: &[PathBuf]) -> String {
    tried.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}

/// The first line of an error's text with what it stands on: parsers answer with pictures of several lines.
pub(crate) fn one_line(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string().lines().next().unwrap_or_default().trim().to_owned();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let line = inner.to_string().lines().next().unwrap_or_default().trim().to_owned();
        if !text.contains(&line) {
            text = format!("{text}: {line}");
        }
        cause = inner.source();
    }
    text
}
