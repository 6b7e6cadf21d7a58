//! Access to the cluster that a program of ours runs in, or beside.
//!
//! One rule for all parts (the Go program had two, which could point at two clusters, docs/contract/cloud-controller-manager.md#S3): the flag,
//! else `KUBECONFIG`, else the pod's service account.

use std::{
    ffi::OsStr,
    io::ErrorKind,
    path::{Path, PathBuf},
    sync::{Arc, RwLock},
};

use kube::{
    Client, Config,
    config::{Kubeconfig, KubeconfigError},
};

use crate::{
    CloudConfig, Options,
    connection::{Current, front},
    error::{Error, one_line},
    outside::Outside,
    proxy::{self, Environment},
};

/// Where access to the local cluster comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Local {
    /// `--kubeconfig`.
    pub kubeconfig: Option<PathBuf>,
    /// `--master`: replaces the server's address.
    pub master: Option<String>,
}

/// A client for the local cluster. References to other files in a kubeconfig are relative to that file. Must be
/// called inside a tokio runtime.
///
/// # Errors
/// One line that names the file or says what could be given.
pub fn local(local: &Local, options: &Options) -> Result<Client, Error> {
    let environment = Environment::of_process();
    let master = local.master.as_deref().filter(|text| !text.is_empty());
    let config = match local.kubeconfig.as_deref().filter(|path| !path.as_os_str().is_empty()) {
        Some(path) => from_file(path, master, &environment)?,
        None => match std::env::var_os("KUBECONFIG").filter(|value| !value.is_empty()) {
            Some(files) => from_variable(&files.to_string_lossy(), master, &environment)?,
            None => in_pod(master, &environment)?,
        },
    };
    let namespace = config.default_namespace.clone();
    let current = Arc::new(RwLock::new(Arc::new(Current::of(config, options)?)));
    Ok(front(current, options, &namespace))
}

fn from_file(path: &Path, master: Option<&str>, environment: &Environment) -> Result<Config, Error> {
    let name = path.display().to_string();
    std::fs::metadata(path).map_err(|source| Error::Read { file: path.to_owned(), source })?;
    let read = Kubeconfig::read_from(path)
        .map_err(|error| Error::Parse { file: name.clone(), reason: one_line(&error) })?;
    Ok(CloudConfig::from_kubeconfig(read, &name, master, environment, Outside::Everything)?.config)
}

fn from_variable(files: &str, master: Option<&str>, environment: &Environment) -> Result<Config, Error> {
    let fault = |reason| Error::Parse { file: files.to_owned(), reason };
    let read = merged(files.as_ref()).map_err(|error| fault(one_line(&error)))?;
    let read = read.ok_or_else(|| fault("KUBECONFIG names no file".to_owned()))?;
    Ok(CloudConfig::from_kubeconfig(read, files, master, environment, Outside::Everything)?.config)
}

/// The files of the variable KUBECONFIG as one. As for kubectl, one that is not there counts for nothing, unless none is
/// there. `None`: it names none.
///
/// # Errors
/// Where a file is no kubeconfig, or cannot be read.
pub fn merged(files: &OsStr) -> Result<Option<Kubeconfig>, KubeconfigError> {
    let files: Vec<_> = std::env::split_paths(files).filter(|file| !file.as_os_str().is_empty()).collect();
    let is_missing =
        |file: &PathBuf| std::fs::metadata(file).is_err_and(|error| error.kind() == ErrorKind::NotFound);
    let (missing, there): (Vec<_>, Vec<_>) = files.into_iter().partition(is_missing);
    // reading one that is not there says so
    let read = if there.is_empty() { missing } else { there };
    let mut all = read.into_iter().map(Kubeconfig::read_from);
    let Some(first) = all.next() else { return Ok(None) };
    all.try_fold(first?, |merged, next| merged.merge(next?)).map(Some)
}

fn in_pod(master: Option<&str>, environment: &Environment) -> Result<Config, Error> {
    let mut config = match (Config::incluster(), master) {
        (Ok(config), _) => config,
        (Err(_), Some(master)) => {
            let reason = |error: http::uri::InvalidUri| Error::NoLocal {
                reason: format!("--master {master}: {error}"),
            };
            Config::new(master.parse().map_err(reason)?)
        }
        (Err(error), None) => return Err(Error::NoLocal { reason: one_line(&error) }),
    };
    config.proxy_url =
        proxy::decide(&config.cluster_url, None, environment).map_err(|reason| Error::NoLocal { reason })?;
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_the_files_of_the_variable_those_that_are_there_count_as_for_kubectl() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for name in ["one", "two"] {
            let text = format!(
                "{{clusters: [{{name: {name}, cluster: {{server: 'https://{name}'}}}}], current-context: {name}}}"
            );
            std::fs::write(at(name), text).unwrap();
        }
        let read = |names: &[&str]| {
            let files = std::env::join_paths(names.iter().map(|name| at(name))).unwrap();
            merged(&files)
        };
        for names in [&["absent", "one", "two"][..], &["one", "absent", "two"]] {
            let read = read(names).unwrap().unwrap();
            let clusters: Vec<_> = read.clusters.iter().map(|cluster| &*cluster.name).collect();
            assert_eq!((clusters, read.current_context.as_deref()), (vec!["one", "two"], Some("one")));
        }
        assert!(read(&["absent"]).unwrap_err().to_string().contains("absent"));
        assert!(merged(OsStr::new("::")).unwrap().is_none());
    }

    // docs/contract/cloud-controller-manager.md#S3
    #[tokio::test]
    async fn the_flag_names_the_file_and_master_the_server() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("guest.kubeconfig");
        std::fs::write(
            &file,
            "{current-context: a, clusters: [{name: a, cluster: {server: 'https://guest.example:6443'}}],
              contexts: [{name: a, context: {cluster: a, namespace: shop}}]}",
        )
        .unwrap();
        let config = from_file(&file, None, &Environment::default()).unwrap();
        assert_eq!(config.cluster_url.to_string(), "https://guest.example:6443/");
        let config = from_file(&file, Some("https://other.example"), &Environment::default()).unwrap();
        assert_eq!(config.cluster_url.to_string(), "https://other.example/");

        let given = Local { kubeconfig: Some(file), master: None };
        let client = local(&given, &Options::named("part/1")).unwrap();
        assert_eq!(client.default_namespace(), "shop");
    }

    #[test]
    fn a_missing_file_is_named() {
        let error =
            from_file(Path::new("/nowhere/guest"), None, &Environment::default()).unwrap_err().to_string();
        assert!(error.starts_with("read kubeconfig /nowhere/guest: No such file"), "{error}");
        assert_eq!(error.lines().count(), 1);
    }
}
