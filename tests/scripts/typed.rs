//! docs/credentials.md and docs/tools.md from top to bottom, as a newcomer types them: every command either runs here, or stands in
//! a list with the reason why not.

use std::{
    env, fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Stdio,
};

use tempfile::TempDir;
use tokio::process::Command;

use super::{
    commands::{Rule, Step, TYPED, steps},
    host::{Host, binary, in_path, left_out},
};

const CREDENTIALS: [Rule; 9] = [
    Rule {
        begins: "kubectl delete clusterrolebinding ",
        left_out: "rights.rs takes an account back by these five",
        ..TYPED
    },
    Rule { begins: "kubectl --namespace harvester-system delete ", left_out: "the same", ..TYPED },
    Rule { begins: "kubectl --namespace longhorn-system delete ", left_out: "the same", ..TYPED },
    Rule { begins: "kubectl --namespace vms delete rolebinding ", left_out: "the same", ..TYPED },
    Rule { begins: "kubectl --namespace vms delete serviceaccount ", left_out: "the same", ..TYPED },
    Rule {
        begins: "harvester-cloud-provider cloud-config rotate --kubeconfig guest.kubeconfig --secret",
        // the Secret of the section before has a token that does not end
        before: "kubectl --kubeconfig guest.kubeconfig --namespace kube-system create secret generic harvester-cloud-config \
                 --from-file=cloud-config --dry-run=client --output yaml | kubectl --kubeconfig guest.kubeconfig apply -f -",
        ..TYPED
    },
    Rule {
        begins: "KUBECONFIG=harvester.kubeconfig harvester-cloud-provider cloud-config rotate --retire",
        // what Kubernetes itself keeps
        before: "kubectl --namespace kube-system create configmap kube-apiserver-legacy-service-account-token-tracking \
                 --from-literal=since=2025-01-01",
        ..TYPED
    },
    Rule {
        begins: "harvester-cloud-provider cloud-config serve ",
        left_out: "served.rs starts it and asks it",
        ..TYPED
    },
    Rule { begins: "curl ", left_out: "the same", ..TYPED },
];

const TOOLS: [Rule; 5] = [
    Rule { begins: "cargo build --release", left_out: "the program is built", ..TYPED },
    Rule {
        begins: "harvester-cloud-provider completion fish",
        left_out: "fish reads it; people.rs asks fish where it is",
        ..TYPED
    },
    Rule { begins: "kubectl krew install ", left_out: "krew asks the network", ..TYPED },
    Rule { begins: "harvester-cloud-provider status --watch ", left_out: "watched.rs watches it", ..TYPED },
    // no machine of a cluster without Nodes is in the namespace
    Rule { begins: "harvester-cloud-provider orphans ", ends: 1, ..TYPED },
];

/// Somebody with a kubeconfig of each cluster, in a copy of the repository.
struct Newcomer {
    harvester: Host,
    guest: Host,
    folder: TempDir,
    programs: PathBuf,
}

impl Newcomer {
    async fn open() -> Option<Self> {
        let (harvester, guest) = (Host::open().await?, Host::open().await?);
        if in_path("bash").is_none() {
            assert!(env::var_os("CI").is_none(), "no bash here, and CI wants this test");
            left_out("the commands of the documents need bash");
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for (name, of) in [("harvester.kubeconfig", &harvester), ("guest.kubeconfig", &guest)] {
            fs::copy(of.kubeconfig(), at(name)).unwrap();
        }
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        for name in ["deploy", "LICENSE"] {
            symlink(root.join(name), at(name)).unwrap();
        }
        fs::create_dir_all(at("target/release")).unwrap();
        symlink(binary(), at("target/release/harvester-cloud-provider")).unwrap();
        let programs = at("programs");
        fs::create_dir(&programs).unwrap();
        symlink(&harvester.kubectl, programs.join("kubectl")).unwrap();
        Some(Self { harvester, guest, folder, programs })
    }

    async fn types(&self, line: &str) -> (Option<i32>, String) {
        let mut command = Command::new("bash");
        let path = format!("{}:{}", self.programs.display(), env::var("PATH").unwrap());
        command.args(["-c", line]).current_dir(self.folder.path()).stdin(Stdio::null()).env_clear();
        command.env("PATH", path).env("HOME", self.folder.path()).env("KUBECONFIG", "harvester.kubeconfig");
        let told = command.output().await.unwrap();
        let text = [told.stdout, told.stderr].concat();
        (told.status.code(), String::from_utf8_lossy(&text).into_owned())
    }

    async fn reads(&self, page: &str, rules: &[Rule], here: impl Fn(&str) -> String) {
        for Step { before, line, ends } in steps(page, rules) {
            if !before.is_empty() {
                let (code, told) = self.types(before).await;
                assert_eq!(code, Some(0), "before {page}: {line}: {told}");
            }
            let line = here(&line);
            let (code, told) = self.types(&line).await;
            assert_eq!(code, Some(ends), "{page}: {line}: {told}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_of_credentials_is_typed_from_top_to_bottom() {
    let Some(newcomer) = Newcomer::open().await else { return };
    symlink(binary(), newcomer.programs.join("harvester-cloud-provider")).unwrap();
    // the port of this Harvester is none that ConfigMap vip leads to
    let address = format!(" --server {} demo vms", newcomer.harvester.address);
    let here = |line: &str| {
        let is_asked = line.contains("generate_addon_csi.sh") || line.contains("--for csi");
        if is_asked { line.replace(" demo vms", &address) } else { line.to_owned() }
    };
    newcomer.reads("docs/credentials.md", &CREDENTIALS, here).await;
    // it is as the page says then
    let (found, _) = newcomer.harvester.kubectl("get secret demo-token -n vms").await;
    assert!(!found, "it was retired");
    let secret = newcomer.guest.get("secret harvester-cloud-config -n kube-system").await;
    let keys: Vec<_> = secret["data"].as_object().unwrap().keys().collect();
    assert_eq!(keys, ["cloud-config", "cloud-provider-config"]);
    let question =
        "kubectl --kubeconfig cloud-config auth can-i create persistentvolumeclaims --namespace vms";
    let (may, told) = newcomer.types(question).await;
    assert_eq!(may, Some(0), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_of_tools_is_typed_from_top_to_bottom() {
    let Some(newcomer) = Newcomer::open().await else { return };
    fs::copy(newcomer.harvester.kubeconfig(), newcomer.folder.path().join("cloud-config")).unwrap();
    // no test writes into the machine
    let programs = newcomer.programs.display().to_string();
    let here = |line: &str| line.replace("sudo ", "").replace("/usr/local/bin", &programs);
    newcomer.reads("docs/tools.md", &TOOLS, here).await;
    let manifest = fs::read_to_string(newcomer.folder.path().join("harvester.yaml")).unwrap();
    assert!(manifest.contains("hcp-linux-amd64.tar.gz"), "{manifest}");
}
