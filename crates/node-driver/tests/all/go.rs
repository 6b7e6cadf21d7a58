//! rancher-machine's commands, played by the program in `tests/node-driver` with Go's own RPC client and decoder, against
//! the driver's process.

use std::{
    fs::{self, read_dir, read_to_string},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::OnceLock,
    time::Duration,
};

use serde_json::{Value, json};
use sim_apiserver::faults::{Answer, Rule, When};

use crate::{
    beside,
    support::{Harvester, MACHINE, NAMESPACE, instance_path},
    wire,
};

/// A machine pool of Rancher's, on the command line.
const POOL: [&str; 8] = [
    "--harvester-vm-namespace=shop",
    "--harvester-cluster-name=demo",
    "--harvester-cpu-count=4",
    "--harvester-memory-size=8",
    "--harvester-disk-info",
    r#"{"disks":[{"imageName":"default/leap","bootOrder":1,"size":40}]}"#,
    "--harvester-network-info",
    r#"{"interfaces":[{"networkName":"default/vlan1","macAddress":""}]}"#,
];

/// rancher-machine with a storage path of its own.
struct RancherMachine {
    program: &'static Path,
    folder: tempfile::TempDir,
    kubeconfig: String,
}

/// How a command ended.
#[derive(Debug, PartialEq)]
struct CommandOutput {
    code: Option<i32>,
    out: String,
    err: String,
}

impl RancherMachine {
    /// None without Go.
    async fn new(harvester: &Harvester) -> Option<Self> {
        static PEER: OnceLock<Option<PathBuf>> = OnceLock::new();
        let build = || outside_tools::go::peer("node-driver", Path::new(env!("CARGO_TARGET_TMPDIR")));
        let peer = tokio::task::spawn_blocking(move || PEER.get_or_init(build).as_deref());
        let program = peer.await.unwrap()?;
        let folder = tempfile::tempdir().unwrap();
        // as long as Rancher's is, packed too
        let script: String =
            (0..1000_u32).map(|line| format!("# {:x}\n", line.wrapping_mul(2_654_435_761))).collect();
        fs::write(folder.path().join("install.sh"), script).unwrap();
        Some(Self { program, folder, kubeconfig: harvester.serve().await })
    }

    /// Address of Harvester's API.
    fn server(&self) -> &str {
        let server = self.kubeconfig.lines().find_map(|line| line.trim().strip_prefix("server: "));
        server.expect("a kubeconfig names its server")
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(self.program);
        let driver = wire::path();
        command
            .arg("--storage-path")
            .arg(self.folder.path())
            .args(args)
            .env_clear()
            .env("PATH", driver.parent().unwrap())
            .env("HARVESTER_KUBECONFIG_CONTENT", &self.kubeconfig)
            .env("TMPDIR", self.folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    async fn run(&self, args: &[&str]) -> CommandOutput {
        output_of(self.command(args).spawn().unwrap()).await
    }

    /// `create` with the pool's flags and more of them.
    fn create(&self, more: &[&str]) -> Command {
        let mut command = self.command(&["create", "--driver", "harvester"]);
        command.arg("--custom-install-script").arg(self.folder.path().join("install.sh"));
        command.arg(format!("--harvester-kubeconfig-content={}", self.kubeconfig));
        command.args(POOL).args(more).arg(MACHINE);
        command
    }

    async fn created(&self, more: &[&str]) -> CommandOutput {
        output_of(self.create(more).spawn().unwrap()).await
    }

    /// What it keeps of the machine; null for nothing.
    fn stored(&self) -> Value {
        let text = read_to_string(self.file("config.json"));
        text.map_or(Value::Null, |text| serde_json::from_str(&text).unwrap())
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join("machines").join(MACHINE).join(name)
    }
}

async fn output_of(child: Child) -> CommandOutput {
    let output = tokio::task::spawn_blocking(move || child.wait_with_output()).await.unwrap().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap().trim().to_owned();
    CommandOutput { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

fn good(out: &str) -> CommandOutput {
    CommandOutput { code: Some(0), out: out.to_owned(), err: String::new() }
}

#[test]
fn every_method_is_called_with_its_real_types() {
    beside::outcome_of("go: probe");
}

pub(crate) async fn probe() {
    let harvester = Harvester::start().await.with_machines().await;
    let Some(rancher) = RancherMachine::new(&harvester).await else { return };
    let told = rancher.run(&["probe", MACHINE]).await;
    // the second Remove finds nothing, and says where
    let absent = format!("({MACHINE}) no VM {NAMESPACE}/{MACHINE} at {}", rancher.server());
    assert_eq!((told.code, told.err), (Some(0), absent));
    assert!(harvester.vm().await.is_null() && harvester.secret().await.is_null());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_command_does_what_its_user_expects() {
    let harvester = Harvester::start().await.with_machines().await;
    let Some(rancher) = RancherMachine::new(&harvester).await else { return };
    let told = rancher.created(&[]).await;
    assert_eq!(told.err, "Running pre-create checks...\nCreating machine...", "and no line of ours");
    assert_eq!(told.code, Some(0));
    let secret = harvester.secret().await;
    assert!(secret["data"]["userdata"].is_string(), "the install script is long: {secret}");
    let again = rancher.created(&[]).await;
    assert!(again.code == Some(1) && again.err.contains("already exists"), "{again:?}");

    assert_eq!(rancher.run(&["ls", "-q"]).await, good(MACHINE));
    assert_eq!(rancher.run(&["status", MACHINE]).await, good("Running"));
    let address = rancher.stored()["Driver"]["IPAddress"].as_str().unwrap().to_owned();
    assert_eq!(rancher.run(&["ip", MACHINE]).await, good(&address));
    assert_eq!(rancher.run(&["url", MACHINE]).await, good(&format!("tcp://{address}:2376")));
    let inspected: Value = serde_json::from_str(&rancher.run(&["inspect", MACHINE]).await.out).unwrap();
    assert_eq!(inspected["Driver"]["IPAddress"], json!(address));
    assert_eq!(inspected["Driver"]["MemorySize"], "8Gi");
    let login = format!("ssh -p 22 -i {} root@{address}", rancher.file("id_rsa").display());
    assert_eq!(rancher.run(&["ssh", MACHINE]).await, good(&login));

    let uid = async || harvester.get(&instance_path()).await["metadata"]["uid"].clone();
    let first = uid().await;
    assert_eq!(rancher.run(&["stop", MACHINE]).await, good(""));
    assert_eq!(rancher.run(&["status", MACHINE]).await, good("Stopped"));
    let listed = rancher.run(&["ls"]).await;
    assert_eq!(listed, good(&format!("{MACHINE} harvester Stopped  <nil>")), "an empty column, no error");
    let again = rancher.run(&["stop", MACHINE]).await;
    assert_eq!((again.code, again.err.contains("is already stopped")), (Some(1), true), "{again:?}");
    assert_eq!(rancher.run(&["ssh", MACHINE]).await.code, Some(1));
    assert_eq!(rancher.run(&["start", MACHINE]).await, good(""));
    let second = uid().await;
    assert_ne!(second, first);
    assert_eq!(rancher.run(&["restart", MACHINE]).await, good(""));
    assert_ne!(uid().await, second);
    let address = rancher.stored()["Driver"]["IPAddress"].as_str().unwrap().to_owned();
    assert_eq!(rancher.run(&["ip", MACHINE]).await, good(&address), "what is stored is what is true");
    assert_eq!(rancher.run(&["kill", MACHINE]).await, good(""));
    assert_eq!(rancher.run(&["status", MACHINE]).await, good("Stopped"));

    // the stored credential has expired, the one in the environment is new
    let mut stored = rancher.stored();
    stored["Driver"]["KubeConfigContent"] = json!("expired");
    fs::write(rancher.file("config.json"), stored.to_string()).unwrap();
    let removed = format!("Successfully removed {MACHINE}");
    assert_eq!(rancher.run(&["rm", "-y", "--update-config", MACHINE]).await, good(&removed));
    assert!(harvester.vm().await.is_null() && harvester.secret().await.is_null());
    assert!(rancher.stored().is_null());

    // one that is lost behind its back
    assert_eq!(rancher.created(&[]).await.code, Some(0));
    let vms: kube::Api<harvester_api::VirtualMachine> = kube::Api::namespaced(harvester.admin(), NAMESPACE);
    vms.delete(MACHINE, &Default::default()).await.unwrap();
    while !harvester.vm().await.is_null() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let status = rancher.run(&["status", MACHINE]).await;
    assert_eq!((status.code, status.out.as_str()), (Some(4), "Not Found"));
    let told = rancher.run(&["rm", "-y", MACHINE]).await;
    assert_eq!((told.code, told.out.as_str()), (Some(0), removed.as_str()));
    let absent = format!("({MACHINE}) no VM {NAMESPACE}/{MACHINE} at {}", rancher.server());
    let volume = format!("({MACHINE}) deleting volume {MACHINE}-disk-0-");
    let lines: Vec<&str> = told.err.lines().collect();
    assert!(lines.len() == 2 && lines[0] == absent && lines[1].starts_with(&volume), "{lines:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_check_is_one_readable_line_and_leaves_nothing() {
    let harvester = Harvester::start().await;
    let Some(rancher) = RancherMachine::new(&harvester).await else { return };
    let told =
        rancher.created(&["--harvester-network-info", r#"{"interfaces":[{"networkName":"no/net"}]}"#]).await;
    assert_eq!(told.code, Some(3), "{told:?}");
    let last = told.err.lines().last().unwrap();
    assert!(last.starts_with("Error with pre-create check: \"read VM network no/net: "), "{last}");
    assert!(!last.contains('\\'), "nothing is escaped in it: {last}");
    assert!(rancher.stored().is_null() && harvester.vm().await.is_null());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_create_ends_with_its_cause_and_can_be_tried_again() {
    let harvester = Harvester::start().await.with_machines().await;
    let Some(rancher) = RancherMachine::new(&harvester).await else { return };
    let quota = json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "small", "namespace": NAMESPACE},
        "spec": {"hard": {"limits.cpu": "1"}}});
    harvester.put(quota).await;
    let told = rancher.created(&[]).await;
    assert_eq!(told.code, Some(1), "{told:?}");
    let last = told.err.lines().last().unwrap();
    assert!(last.contains("limits.cpu") && last.ends_with("raise the quota or remove machines"), "{last}");
    assert!(harvester.vm().await.is_null() && harvester.secret().await.is_null());
    // as Rancher does it: removes the machine and makes another
    assert_eq!(rancher.run(&["rm", "-y", "--update-config", MACHINE]).await.code, Some(0));
    harvester.delete(&format!("/api/v1/namespaces/{NAMESPACE}/resourcequotas/small")).await;
    assert_eq!(rancher.created(&[]).await.code, Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_that_could_not_be_removed_is_kept() {
    let harvester = Harvester::start().await.with_machines().await;
    let Some(rancher) = RancherMachine::new(&harvester).await else { return };
    assert_eq!(rancher.created(&[]).await.code, Some(0));
    // not about the VM, but about the cluster behind Rancher's proxy: rancher-machine swallows every `not found`
    let mut rule = Rule::new(Answer::Code(404));
    (rule.resource, rule.verb) = (Some("virtualmachines".into()), Some("get".into()));
    harvester.server.faults().add(rule);
    let told = rancher.run(&["rm", "-y", "--update-config", MACHINE]).await;
    assert_eq!(told.code, Some(1), "{told:?}");
    assert!(!rancher.stored().is_null() && told.err.contains("Error removing host"), "{told:?}");
    harvester.server.faults().clear();
    assert_eq!(rancher.run(&["rm", "-y", "--update-config", MACHINE]).await.code, Some(0));
}

/// Processes of a process, the youngest last.
fn children(pid: u32) -> Vec<u32> {
    let threads = read_dir(format!("/proc/{pid}/task")).unwrap();
    let of_thread = |thread: fs::DirEntry| read_to_string(thread.path().join("children")).unwrap_or_default();
    let texts: Vec<String> = threads.flatten().map(of_thread).collect();
    let mut pids: Vec<u32> =
        texts.iter().flat_map(|text| text.split_whitespace()).map(|pid| pid.parse().unwrap()).collect();
    pids.sort_unstable();
    pids
}

/// SIGKILL of the driver while it makes the VM, while it makes the Secret, and while it waits.
#[rstest::rstest]
#[case::making_the_vm("create", "virtualmachines")]
#[case::making_the_secret("create", "secrets")]
#[case::waiting("watch", "virtualmachineinstances")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_killed_driver_the_machine_is_removed_and_made_anew(
    #[case] verb: &str,
    #[case] resource: &str,
) {
    let harvester = Harvester::start().await.with_machines().await;
    let Some(rancher) = RancherMachine::new(&harvester).await else { return };
    let mut rule = Rule::new(Answer::Delay(Duration::from_secs(3600)));
    rule.user = Some(crate::support::USER.into());
    (rule.verb, rule.resource, rule.when) = (Some(verb.into()), Some(resource.into()), When::After);
    harvester.server.faults().add(rule);
    let making = rancher.create(&[]).spawn().unwrap();
    while harvester.server.faults().hits() == 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let driver = children(making.id()).pop().unwrap();
    assert!(Command::new("kill").args(["-KILL", &driver.to_string()]).status().unwrap().success());
    let ended = output_of(making).await;
    assert!(ended.code == Some(1) && ended.err.ends_with("unexpected EOF"), "{ended:?}");
    harvester.server.faults().clear();
    assert!(!harvester.vm().await.is_null());

    assert_eq!(rancher.run(&["rm", "-y", "--update-config", MACHINE]).await.code, Some(0));
    assert!(harvester.vm().await.is_null() && harvester.secret().await.is_null());
    assert_eq!(rancher.created(&[]).await.code, Some(0));
    assert_eq!(rancher.run(&["status", MACHINE]).await, good("Running"));
}

/// The driver loses its reader, and then its parent: it continues, and ends after ten seconds without a heartbeat.
#[test]
fn a_driver_whose_rancher_machine_is_killed_ends_and_undoes_nothing() {
    beside::outcome_of("go: rancher-machine killed");
}

pub(crate) async fn rancher_machine_is_killed() {
    let harvester = Harvester::start().await;
    let Some(rancher) = RancherMachine::new(&harvester).await else { return };
    let mut making = rancher.create(&[]).spawn().unwrap();
    while harvester.vm().await.is_null() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let drivers = children(making.id());
    making.kill().unwrap();
    making.wait().unwrap();
    let alive = |pid: &u32| {
        let state = read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // one that has ended stays until its new parent has looked
        !state.is_empty() && !state.contains(") Z ")
    };
    assert_eq!(drivers.len(), 2);
    while drivers.iter().any(alive) {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(!harvester.vm().await.is_null());
}
