//! The pages of `docs/` from top to bottom, as a newcomer types them beside the running sandbox: each command either runs here, or
//! stands in a list with the reason why not.

use std::{
    env, fs,
    os::unix::fs::symlink,
    panic::catch_unwind,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use outside_tools::Tool;
use serde_json::Value;

use super::{
    Sandbox, TURN, binary,
    commands::{Rule, Step, TYPED, indented, steps, text},
};

const DOCTOR: [Rule; 1] = [Rule {
    begins: "kubectl --kubeconfig rancher.kubeconfig ",
    // what Rancher has
    before: "cp harvester.kubeconfig rancher.kubeconfig
             kubectl --kubeconfig rancher.kubeconfig create namespace cattle-global-data
             kubectl --kubeconfig rancher.kubeconfig --namespace cattle-global-data create secret generic cc-xxxxx \
             --from-file=harvestercredentialConfig-kubeconfigContent=harvester.kubeconfig",
    ..TYPED
}];

const STORAGE: [Rule; 1] =
    [Rule { begins: "cargo test --test csi_driver", left_out: "`cargo xtask test` runs it", ..TYPED }];

const SANDBOX: [Rule; 1] = [Rule {
    begins: "nsenter ",
    left_out: "it is for a guest whose process the page does not know",
    ..TYPED
}];

const DASHBOARD: [Rule; 1] = [Rule {
    begins: "harvester-cloud-provider dashboard ",
    left_out: "it goes on; typed.rs starts it",
    ..TYPED
}];

const NODE_DRIVER: [Rule; 8] = [
    Rule { begins: "rancher-machine ", lines: 8, left_out: "main.rs types these", ..TYPED },
    Rule { begins: "export HARVESTER_KUBECONFIG_CONTENT=", left_out: "the same", ..TYPED },
    Rule { begins: "target/release/docker-machine-driver-harvester check ", left_out: "the same", ..TYPED },
    Rule {
        begins: "--harvester-network-info ",
        left_out: "a flag, of node-driver/tests/all/addresses.rs",
        ..TYPED
    },
    Rule { begins: "kubectl edit ", left_out: "it opens an editor", ..TYPED },
    Rule { begins: "cargo xtask package-driver ", left_out: "it builds; xtask tests what it makes", ..TYPED },
    Rule { begins: "kubectl patch deployment rancher ", left_out: "there is no Rancher here", ..TYPED },
    Rule { begins: "kubectl rollout status deployment rancher ", left_out: "the same", ..TYPED },
];

const INSTALL: [Rule; 30] = [
    Rule {
        begins: "cargo xtask image",
        left_out: "it builds for an hour, and pushes need a registry",
        ..TYPED
    },
    Rule { begins: "skopeo copy ", lines: 2, left_out: "the same", ..TYPED },
    Rule { begins: "  skopeo copy ", left_out: "the same", ..TYPED },
    Rule { begins: "rustup ", left_out: "the way of docker, which is not here", ..TYPED },
    Rule { begins: "CC_x86_64_unknown_linux_musl=cc cargo build ", left_out: "the same", ..TYPED },
    Rule { begins: "for image in ", left_out: "the same", ..TYPED },
    Rule { begins: "  docker build ", left_out: "the same", ..TYPED },
    Rule { begins: "done", lines: 2, left_out: "the end of a loop that is left out", ..TYPED },
    Rule {
        begins: "cargo xtask charts ",
        left_out: "xtask's own tests install out of the index that it makes",
        ..TYPED
    },
    Rule { begins: "machineSelectorConfig:", left_out: "a part of a cluster's YAML", ..TYPED },
    Rule { begins: "- config:", left_out: "the same", ..TYPED },
    Rule { begins: "    cloud-provider-", lines: 2, left_out: "the same", ..TYPED },
    Rule {
        begins: "disable",
        lines: 2,
        left_out: "the same of K3s; examples.rs reads the names of its options",
        ..TYPED
    },
    Rule { begins: "kubelet-arg:", left_out: "the same", ..TYPED },
    Rule { begins: "mirrors:", left_out: "a part of K3s' registries.yaml", ..TYPED },
    Rule { begins: "  docker.io:", left_out: "the same", ..TYPED },
    Rule { begins: "    endpoint:", left_out: "the same", ..TYPED },
    Rule { begins: "    rewrite:", left_out: "the same", ..TYPED },
    Rule { begins: "      \"^library/", left_out: "the same", ..TYPED },
    Rule {
        begins: "helm upgrade ",
        lines: 8,
        left_out: "charts/examples.rs renders them; charts/server.rs installs on real API servers",
        ..TYPED
    },
    Rule {
        begins: "helm uninstall harvester-load-balancer-additions ",
        left_out: "of helm nothing is installed here",
        ..TYPED
    },
    Rule {
        begins: "grep /rancher/mirrored- ",
        left_out: "it fills a registry; charts/air_gap.rs types it without one",
        ..TYPED
    },
    Rule {
        begins: "kubectl patch managedchart ",
        lines: 3,
        left_out: "charts/harvester.rs types these",
        ..TYPED
    },
    Rule { begins: "kubectl get managedchart ", left_out: "the same", ..TYPED },
    Rule {
        begins: "kubectl apply --server-side --force-conflicts -f deploy/crds",
        left_out: "the same",
        ..TYPED
    },
    Rule {
        begins: "kubectl -n harvester-system set env ",
        lines: 2,
        left_out: "the same; the second takes away what the first gives",
        ..TYPED
    },
    Rule {
        begins: "kubectl -n kube-system set env ",
        left_out: "it is for what RKE2's chart installs, which is not here",
        ..TYPED
    },
    Rule {
        begins: "kubectl apply -f - <<EOF\napiVersion: v1\nkind: Service\n",
        left_out: "the sandbox has no Prometheus, whose kind one of its objects is of",
        ..TYPED
    },
    Rule {
        begins: "kubectl -n kube-system rollout status ",
        lines: 3,
        left_out: "they wait for what helm installs, which has no cloud provider here, and no driver where VMs have no insides",
        ..TYPED
    },
    Rule {
        begins: "kubectl --namespace kube-system create secret generic harvester-cloud-config ",
        // docs/migration.md made it
        before: "kubectl --namespace kube-system delete secret harvester-cloud-config",
        ..TYPED
    },
];

const MIGRATION: [Rule; 1] = [Rule {
    begins: "KUBECONFIG=harvester.kubeconfig harvester-cloud-provider cloud-config generate ",
    before: "kubectl --kubeconfig harvester.kubeconfig create namespace vms",
    ..TYPED
}];

const EXPLAIN: [Rule; 2] = [
    Rule {
        begins: "harvester-cloud-provider explain service NAMESPACE/NAME",
        left_out: "the example has a Service's name",
        ..TYPED
    },
    Rule {
        begins: "kubectl --kubeconfig guest.kubeconfig apply ",
        before: "kubectl --kubeconfig guest.kubeconfig create namespace shop",
        ..TYPED
    },
];

/// Pages with indented lines that other tests type, and which.
const READ_ELSEWHERE: [(&str, &str); 2] =
    [("docs/credentials.md", "tests/scripts/typed.rs"), ("docs/tools.md", "tests/scripts/typed.rs")];

/// In the order in which they are typed: one finds what another one made.
const PAGES: [(&str, &[Rule]); 11] = [
    ("docs/doctor.md", &DOCTOR),
    ("docs/troubleshooting.md", &[]),
    ("docs/reference/events.md", &[]),
    ("docs/sandbox.md", &SANDBOX),
    ("docs/dashboard.md", &DASHBOARD),
    ("docs/storage.md", &STORAGE),
    ("docs/node-driver.md", &NODE_DRIVER),
    ("docs/pools.md", &[]),
    ("docs/migration.md", &MIGRATION),
    ("docs/explain.md", &EXPLAIN),
    // it takes the webhook away in the end
    ("docs/install.md", &INSTALL),
];

/// So often is asked whether the volume is attached.
const ASKED_AT_MOST: usize = 1_000;

/// A folder with the files that the pages name.
struct Newcomer {
    folder: PathBuf,
    server: String,
}

impl Newcomer {
    fn open(folder: PathBuf, sandbox: &Path, kubectl: &Path) -> Self {
        let at = |name: &str| folder.join(name);
        fs::create_dir_all(at("programs")).unwrap();
        symlink(kubectl, at("programs/kubectl")).unwrap();
        symlink(binary(), at("programs/harvester-cloud-provider")).unwrap();
        for name in ["deploy", "examples"] {
            symlink(Path::new(env!("CARGO_MANIFEST_DIR")).join(name), at(name)).unwrap();
        }
        // of the node that the newcomer types on
        fs::create_dir_all(at("node/etc")).unwrap();
        for (from, to) in [
            ("guest", "guest.kubeconfig"),
            ("harvester", "harvester.kubeconfig"),
            ("harvester", "cloud-config"),
        ] {
            fs::copy(sandbox.join(format!("{from}.kubeconfig")), at(to)).unwrap();
        }
        let kubeconfig: Value =
            serde_saphyr::from_str(&fs::read_to_string(at("cloud-config")).unwrap()).unwrap();
        let server = kubeconfig["clusters"][0]["cluster"]["server"].as_str().unwrap();
        let server = server.trim_end_matches('/').to_owned();
        Self { folder, server }
    }

    fn types(&self, line: &str) -> (Option<i32>, String) {
        let mut command = Command::new("bash");
        let path = format!("{}:{}", self.folder.join("programs").display(), env::var("PATH").unwrap());
        command.args(["-ec", line]).current_dir(&self.folder).stdin(Stdio::null()).env_clear();
        command.env("PATH", path).env("HOME", &self.folder).env("KUBECONFIG", "guest.kubeconfig");
        let told = command.output().unwrap();
        (told.status.code(), String::from_utf8_lossy(&[told.stdout, told.stderr].concat()).into_owned())
    }

    /// What it prints, of a line that works.
    fn works(&self, line: &str) -> String {
        let (code, told) = self.types(line);
        assert_eq!(code, Some(0), "{line}: {told}");
        told
    }

    /// The line with what differs on this machine.
    fn here(&self, line: &str) -> String {
        let mut line =
            line.replace("sudo ", "").replace(" /var/lib/", " node/var/lib/").replace(" /etc/", " node/etc/");
        if line.contains("generate_addon_csi.sh") || line.contains("--for csi") {
            // the port of this Harvester is none that ConfigMap vip leads to
            line = line.replace(" demo vms", &format!(" --server {} demo vms", self.server));
        }
        line
    }

    /// What each command of a page printed.
    fn reads(&self, page: &str, rules: &[Rule]) -> Vec<String> {
        let types = |Step { before, line, ends }| {
            self.works(before);
            let line = self.here(&line);
            let (code, told) = self.types(&line);
            assert_eq!(code, Some(ends), "{page}: {line}: {told}");
            told
        };
        steps(page, rules).into_iter().map(types).collect()
    }
}

#[test]
fn the_pages_are_typed_from_top_to_bottom() {
    let _turn = TURN.lock().unwrap_or_else(|broken| broken.into_inner());
    let Some(kubectl) = Tool::Kubectl.find() else { return };
    let place = tempfile::tempdir().unwrap();
    let _sandbox = Sandbox::start(place.path(), "sim");
    let made = place.path().join("target/sandbox");
    let newcomer = Newcomer::open(place.path().join("newcomer"), &made, &kubectl);
    let written = |name: &str| fs::read_to_string(newcomer.folder.join(name)).unwrap();
    for (page, rules) in PAGES {
        let told = newcomer.reads(page, rules);
        // it is as the page says then
        match page {
            "docs/doctor.md" => {
                let of = |told: &str| {
                    told.lines().find(|line| line.starts_with("rancher-credential")).map(str::to_owned)
                };
                assert!(of(&told[0]).unwrap().contains("give it by --rancher-credential"), "{}", told[0]);
                assert!(of(&told[3]).unwrap().contains("does not say when it ends"), "{}", told[3]);
            }
            "docs/install.md" => {
                let config = written("node/var/lib/rancher/rke2/etc/config-files/cloud-provider-config");
                assert_eq!(config, written("cloud-config"));
                assert_eq!(written("node/etc/rancher/rke2/config.yaml"), "cloud-provider-name: harvester\n");
                let blocks = told.iter().filter(|told| told.contains("addons: |-"));
                assert_eq!(blocks.count(), 2, "{told:#?}");
            }
            "docs/explain.md" => {
                let page = told.last().unwrap();
                assert!(page.contains("Service shop/far ") && page.contains("\nAssumed "), "{page}");
            }
            "docs/migration.md" => {
                assert!(written("before.txt").contains("LoadBalancer"), "{}", written("before.txt"));
                assert!(written("before.yaml").contains("kind: IPPool"), "{}", written("before.yaml"));
                let question = "auth can-i create loadbalancers.loadbalancer.harvesterhci.io";
                newcomer.works(&format!("kubectl --kubeconfig new-cloud-config {question}"));
                let keys = newcomer.works(
                    "kubectl --namespace kube-system get secret harvester-cloud-config --output jsonpath='{.data}'",
                );
                assert!(
                    keys.contains("\"cloud-config\"") && keys.contains("\"cloud-provider-config\""),
                    "{keys}"
                );
            }
            _ => {}
        }
    }
    let former = fs::read_to_string(made.join("harvester.kubeconfig")).unwrap();
    assert_eq!(written("cloud-config"), former, "no page writes over it");
}

#[test]
fn of_a_page_the_indented_commands_are_read_and_what_they_print_is_not() {
    let page = "Text\n\n    kubectl get x \\\n      -o yaml\n\n    $ kubectl apply -f - <<EOF\n    {kind: X}\n    EOF\n    x/y created\n\n    \
                more\n\nText\n\n```text\na ──► b\n```\n\n    helm list\n";
    assert_eq!(
        indented(page),
        ["kubectl get x -o yaml", "kubectl apply -f - <<EOF\n{kind: X}\nEOF", "helm list"]
    );
}

#[test]
fn a_command_between_fences_which_nobody_would_type_is_refused() {
    for fence in ["```sh\nls", "```console\n$ ls", "```text\nkubectl get x", "```\n$ helm list"] {
        let page = format!("Text\n\n{fence}\n```\n");
        assert!(catch_unwind(|| indented(&page)).is_err(), "{page}");
    }
}

#[test]
fn one_more_command_than_a_rule_is_for_is_noticed() {
    let lines = |lines| [Rule { begins: "cargo test --test csi_driver", lines, left_out: "long", ..TYPED }];
    steps("docs/storage.md", &lines(1));
    assert!(catch_unwind(|| steps("docs/storage.md", &lines(2))).is_err());
}

/// A command on a new page, and a page that lost its own, are noticed.
#[test]
fn every_page_with_commands_is_typed() {
    let mut with_commands = Vec::new();
    for folder in ["docs/", "docs/reference/"] {
        for entry in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)).unwrap() {
            let name = format!("{folder}{}", entry.unwrap().file_name().into_string().unwrap());
            if name.ends_with(".md") && !indented(&text(&name)).is_empty() {
                with_commands.push(name);
            }
        }
    }
    with_commands.sort();
    let typed = PAGES.iter().map(|(page, _)| *page);
    let mut known: Vec<_> = typed.chain(READ_ELSEWHERE.map(|(page, _)| page)).collect();
    known.sort_unstable();
    assert_eq!(with_commands, known);
    for (page, test) in READ_ELSEWHERE {
        let test = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(test)).unwrap();
        assert!(test.contains(page), "{page}");
    }
}

/// The commands within the text of a section of docs/storage.md.
fn of_a_volume_that_hangs() -> Vec<String> {
    let page = text("docs/storage.md");
    let (_, section) = page.split_once("\n## A volume hangs: where to look\n").expect("it has the section");
    let section = section.split("\n## ").next().unwrap().replace('\n', " ");
    let code = section.split('`').skip(1).step_by(2);
    code.filter(|code| code.starts_with("kubectl ")).map(str::to_owned).collect()
}

#[test]
fn where_to_look_when_a_volume_hangs_is_typed_where_one_is_attached() {
    let _turn = TURN.lock().unwrap_or_else(|broken| broken.into_inner());
    let Some(kubectl) = Tool::Kubectl.find() else { return };
    let place = tempfile::tempdir().unwrap();
    let _sandbox = Sandbox::start(place.path(), "sim");
    let newcomer =
        Newcomer::open(place.path().join("newcomer"), &place.path().join("target/sandbox"), &kubectl);
    if newcomer.works("kubectl get csinodes --output name").is_empty() {
        return; // the VMs of this machine have no insides, as the sandbox says
    }
    newcomer.works("kubectl apply -f examples/guest/pod-with-volume.yaml");
    let attached = "kubectl get volumeattachments --output jsonpath='{.items[*].status.attached}'";
    let is_attached = (0..ASKED_AT_MOST).any(|_| newcomer.works(attached) == "true");
    assert!(is_attached, "{}", newcomer.works("kubectl get pvc,pv,volumeattachments,events"));
    let volume = newcomer.works("kubectl get pv --output jsonpath='{.items[0].spec.csi.volumeHandle}'");
    let node = newcomer.works("kubectl get pod with-volume --output jsonpath='{.spec.nodeName}'");
    let attachment = newcomer.works("kubectl get volumeattachments --output name");
    let attachment = attachment.trim().rsplit('/').next().unwrap();
    let machine = newcomer
        .works(&format!("kubectl get csinode {node} --output jsonpath='{{.spec.drivers[0].nodeID}}'"));
    let mut told = String::new();
    for line in of_a_volume_that_hangs() {
        if line.contains(" logs ") {
            continue; // there is no kubelet to ask
        }
        let of_harvester = line.contains(" -n VMS ");
        let line = line.replace("VMS", "default").replace("VOLUME", &volume).replace("MACHINE", &machine);
        let line =
            line.replace("attachment NAME", &format!("attachment {attachment}")).replace("NODE", &node);
        let cluster = if of_harvester { "harvester" } else { "guest" };
        told += &newcomer.works(&format!("export KUBECONFIG={cluster}.kubeconfig; {line}"));
    }
    // what the section promises to show
    for shown in
        ["driver.harvesterhci.io/attach", "\"phase\":\"Ready\"", "harvester-csi-node-monitor", "nodeID: "]
    {
        assert!(told.contains(shown), "{shown}: {told}");
    }
}
