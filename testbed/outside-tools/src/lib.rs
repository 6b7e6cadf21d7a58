#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod definitions;
pub mod go;
#[cfg(feature = "kubectl")]
pub mod kubectl;

use std::env;
use std::path::{Path, PathBuf};

/// A program that is not ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tool {
    Etcd,
    KubeApiserver,
    KubeControllerManager,
    Kubectl,
    CsiSanity,
    Helm,
    CargoDeny,
    MdBook,
}

/// What a real API server needs. Garbage collection and the end of namespaces come from kube-controller-manager,
/// which `setup-envtest` does not bring.
pub const REAL_SERVER: [Tool; 3] = [Tool::Etcd, Tool::KubeApiserver, Tool::KubeControllerManager];

/// Version of cargo-deny that `cargo xtask tools` installs.
pub const CARGO_DENY_VERSION: &str = "0.20.2";
/// Version of mdBook that `cargo xtask book` installs.
pub const MDBOOK_VERSION: &str = "0.5.4";

/// A Go module of `tests/envtest/`, which pins the version of what is built from it.
#[derive(Debug)]
pub struct Module {
    /// Its folder under `tests/envtest/`.
    pub name: &'static str,
    go_mod: &'static str,
}

static KUBERNETES: Module =
    Module { name: "kubernetes", go_mod: include_str!("../../../tests/envtest/kubernetes/go.mod") };
static ETCD: Module = Module { name: "etcd", go_mod: include_str!("../../../tests/envtest/etcd/go.mod") };
static CSI_TEST: Module =
    Module { name: "csi-test", go_mod: include_str!("../../../tests/envtest/csi-test/go.mod") };
static HELM: Module = Module { name: "helm", go_mod: include_str!("../../../tests/envtest/helm/go.mod") };

impl Module {
    /// Version of `package` that the module requires, such as `v1.36.3`.
    pub fn version(&self, package: &str) -> Option<&'static str> {
        version_in(self.go_mod, package)
    }
}

fn version_in<'a>(go_mod: &'a str, package: &str) -> Option<&'a str> {
    go_mod.lines().find_map(|line| {
        let mut words = line.trim().strip_prefix("require ").unwrap_or(line.trim()).split_whitespace();
        (words.next() == Some(package)).then(|| words.next()).flatten()
    })
}

impl Tool {
    /// Name of its file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::KubeApiserver => "kube-apiserver",
            Self::KubeControllerManager => "kube-controller-manager",
            Self::Kubectl => "kubectl",
            Self::CsiSanity => "csi-sanity",
            Self::Helm => "helm",
            Self::CargoDeny => "cargo-deny",
            Self::MdBook => "mdbook",
        }
    }

    /// The Go module and package that it is built from; none for a Rust program.
    pub fn source(self) -> Option<(&'static Module, &'static str)> {
        match self {
            Self::Etcd => Some((&ETCD, "go.etcd.io/etcd/server/v3")),
            Self::KubeApiserver => Some((&KUBERNETES, "k8s.io/kubernetes/cmd/kube-apiserver")),
            Self::KubeControllerManager => {
                Some((&KUBERNETES, "k8s.io/kubernetes/cmd/kube-controller-manager"))
            }
            Self::Kubectl => Some((&KUBERNETES, "k8s.io/kubernetes/cmd/kubectl")),
            Self::CsiSanity => Some((&CSI_TEST, "github.com/kubernetes-csi/csi-test/v5/cmd/csi-sanity")),
            Self::Helm => Some((&HELM, "helm.sh/helm/v4/cmd/helm")),
            Self::CargoDeny | Self::MdBook => None,
        }
    }

    /// Where `cargo xtask tools` puts it.
    pub fn cached(self, cache: &Path) -> PathBuf {
        let folder = match self.source() {
            Some((module, _)) => format!("{}-{:016x}", module.name, digest(module.go_mod)),
            None if self == Self::MdBook => format!("{}-{MDBOOK_VERSION}", self.name()),
            None => format!("{}-{CARGO_DENY_VERSION}", self.name()),
        };
        cache.join(folder).join(self.name())
    }

    /// The file to run, if the machine has one.
    pub fn find(self) -> Option<PathBuf> {
        let assets = env::var_os("KUBEBUILDER_ASSETS").map(PathBuf::from);
        let path = env::var_os("PATH").unwrap_or_default();
        let from_path = matches!(self, Self::Kubectl | Self::Helm | Self::CargoDeny | Self::MdBook);
        assets
            .map(|folder| folder.join(self.name()))
            .into_iter()
            .chain(cache().map(|cache| self.cached(&cache)))
            .chain(env::split_paths(&path).filter(|_| from_path).map(|folder| folder.join(self.name())))
            .find(|file| file.is_file())
    }
}

/// The folder of the cache: `HARVESTER_TOOLS`, or `harvester-cloud-provider` in the user's cache folder. `None` where
/// the environment names neither.
pub fn cache() -> Option<PathBuf> {
    let given = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    given("HARVESTER_TOOLS").or_else(|| {
        let user = given("XDG_CACHE_HOME").or_else(|| Some(given("HOME")?.join(".cache")))?;
        Some(user.join("harvester-cloud-provider").join("tools"))
    })
}

/// FNV-1a over 64 bits: tells versions apart, protects from nothing.
fn digest(text: &str) -> u64 {
    text.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::in_a_line_of_its_own("require k8s.io/kubernetes v1.36.3\n", "k8s.io/kubernetes", Some("v1.36.3"))]
    #[case::in_a_block(
        "require (\n\tgo.etcd.io/etcd/server/v3 v3.6.16 // indirect\n)",
        "go.etcd.io/etcd/server/v3",
        Some("v3.6.16")
    )]
    #[case::only_a_prefix("require k8s.io/kubernetes-other v1.0.0", "k8s.io/kubernetes", None)]
    fn a_version_is_read_from_go_mod(
        #[case] go_mod: &str,
        #[case] package: &str,
        #[case] version: Option<&str>,
    ) {
        assert_eq!(version_in(go_mod, package), version);
    }

    #[test]
    fn tools_of_one_module_share_a_folder_and_modules_do_not() {
        let folder = |tool: Tool| tool.cached(Path::new("/cache")).parent().map(Path::to_path_buf);
        assert_eq!(folder(Tool::KubeApiserver), folder(Tool::KubeControllerManager));
        assert_ne!(folder(Tool::KubeApiserver), folder(Tool::Etcd));
    }

    #[test]
    fn the_digest_is_fnv_1a() {
        assert_eq!((digest(""), digest("a")), (0xcbf2_9ce4_8422_2325, 0xaf63_dc4c_8601_ec8c));
    }

    #[test]
    fn the_pinned_versions_are_in_the_modules() {
        assert_eq!(KUBERNETES.version("k8s.io/kubernetes"), Some("v1.36.3"));
        assert_eq!(ETCD.version("go.etcd.io/etcd/server/v3"), Some("v3.6.16"));
        assert_eq!(CSI_TEST.version("github.com/kubernetes-csi/csi-test/v5"), Some("v5.6.0"));
        assert_eq!(HELM.version("helm.sh/helm/v4"), Some("v4.3.1"));
    }
}
