//! Definitions of other projects' kinds, which their Go modules carry: `cargo xtask tools` copies them into the cache.

use std::path::{Path, PathBuf};

use crate::{Module, cache, digest};

static MODULE: Module = Module { name: "crds", go_mod: include_str!("../../../tests/envtest/crds/go.mod") };

/// A Go module with definitions.
#[derive(Debug)]
pub struct Source {
    pub module: &'static str,
    /// The folder of the module that has them.
    pub folder: &'static str,
    /// Their files, as code generators name them: group, `_`, plural.
    pub files: &'static [&'static str],
}

/// Where each comes from.
pub const SOURCES: [Source; 3] = [
    Source {
        module: "github.com/k3s-io/helm-controller",
        folder: "pkg/crds/yaml/generated",
        files: &["helm.cattle.io_helmcharts.yaml", "helm.cattle.io_helmchartconfigs.yaml"],
    },
    Source {
        module: "github.com/kubernetes-csi/external-snapshotter/client/v8",
        folder: "config/crd",
        files: &["snapshot.storage.k8s.io_volumesnapshotclasses.yaml"],
    },
    Source {
        module: "github.com/prometheus-operator/prometheus-operator",
        folder: "example/prometheus-operator-crd",
        files: &[
            "monitoring.coreos.com_podmonitors.yaml",
            "monitoring.coreos.com_prometheusrules.yaml",
            "monitoring.coreos.com_servicemonitors.yaml",
        ],
    },
];

impl Source {
    /// The version that is pinned.
    pub fn version(&self) -> Option<&'static str> {
        MODULE.version(self.module)
    }
}

/// The folder of the pinned versions in the cache.
pub fn cached(cache: &Path) -> PathBuf {
    cache.join(format!("{}-{:016x}", MODULE.name, digest(MODULE.go_mod)))
}

/// The file with the definition of this name, such as `helmcharts.helm.cattle.io`, if this machine has it.
pub fn find(name: &str) -> Option<PathBuf> {
    let (plural, group) = name.split_once('.')?;
    Some(cached(&cache()?).join(format!("{group}_{plural}.yaml"))).filter(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_module_is_pinned() {
        for source in SOURCES {
            assert!(source.version().is_some_and(|version| version.starts_with('v')), "{source:?}");
        }
    }
}
