//! The built program against the running sandbox: the documented commands for the node driver, as they stand there, and
//! `doctor`. rancher-machine is not to be had here: a program with Go's own RPC client (`tests/node-driver`) goes by its name.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Mutex,
};

use outside_tools::Tool;

#[path = "../pages/commands.rs"]
mod commands;
mod doctor;
mod pages;
mod typed;

const MACHINE: &str = "demo-pool1-x7k2m-9d4tq";
const README: (&str, &str) = ("README.md", "Let rancher-machine make a machine");
const NODE_DRIVER: &str = "docs/node-driver.md";
/// What the sandbox says last when it is ready.
const READY: &str = "Ctrl-C ends the sandbox.";

/// Two sandboxes at a time would be in each other's way on a small machine.
static TURN: Mutex<()> = Mutex::new(());

/// The built binary. A wrapper of rustc that is a shell script loses Cargo's variable, for the dashes in its name.
fn binary() -> PathBuf {
    let told = option_env!("CARGO_BIN_EXE_harvester-cloud-provider").map(PathBuf::from);
    told.unwrap_or_else(|| {
        let test = std::env::current_exe().unwrap();
        test.ancestors().nth(2).unwrap().join("harvester-cloud-provider")
    })
}

fn read(document: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(document)).unwrap()
}

/// The commands in a section of a document: its indented lines, as one script.
fn script(document: &str, section: &str) -> String {
    let document = read(document);
    let (_, text) = document.split_once(&format!("\n## {section}\n")).expect("it has the section");
    let lines = text.lines().take_while(|line| !line.starts_with("## "));
    lines.filter_map(|line| line.strip_prefix("    ")).map(|line| format!("{line}\n")).collect()
}

/// The README's line that removes the machine.
fn removal(readme: &str) -> &str {
    readme.lines().find(|line| line.contains(" rm ")).expect("it removes the machine")
}

/// The misfortune of a lost answer: its rule for the sandbox, and the README's commands for one machine.
fn lost_answer() -> String {
    let document = read(NODE_DRIVER);
    let (_, rule) = document.split_once("kube-system/sim-faults` the rule `").expect("it has the rule");
    let (rule, _) = rule.split_once('`').expect("the rule ends");
    let readme = script(README.0, README.1);
    let last_word = format!("    {MACHINE}\n");
    let (create, _) = readme.split_once(&last_word).expect("it makes the machine");
    format!(
        "kubectl --kubeconfig target/sandbox/harvester.kubeconfig --namespace kube-system \\
            create configmap sim-faults --from-literal=rules='[{rule}]'\n{create}{last_word}{}\n",
        removal(&readme)
    )
}

/// Runs it as somebody would type it; answers what it printed.
fn run(script: &str, folder: &Path) -> String {
    let told = Command::new("sh").args(["-e", "-c", script]).current_dir(folder).output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&told.stdout), String::from_utf8_lossy(&told.stderr));
    assert!(told.status.success(), "{out}\n{err}");
    out.into_owned()
}

/// A sandbox that ends with this.
struct Sandbox {
    process: Child,
    /// What it printed before it was ready.
    said: Vec<String>,
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        // it may have ended
        Command::new("kill").args(["-INT", &self.process.id().to_string()]).status().ok();
        self.process.wait().ok();
    }
}

impl Sandbox {
    /// As the README starts it, in `folder`.
    fn start(folder: &Path, server: &str) -> Self {
        Self::start_with(folder, server, &[])
    }

    fn start_with(folder: &Path, server: &str, more: &[&str]) -> Self {
        let mut command = Command::new(binary());
        command.args(["sandbox", "--dir", "target/sandbox", "--server", server]).args(more);
        command.current_dir(folder);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let mut sandbox = Self { process: child, said: vec![] };
        let mut lines = out.lines().map_while(Result::ok);
        loop {
            match lines.next().expect("the sandbox ended") {
                line if line == READY => break,
                line => sandbox.said.push(line),
            }
        }
        // a full pipe would stop it
        std::thread::spawn(move || lines.for_each(drop));
        sandbox
    }
}

fn the_documented_commands_make_a_machine_and_remove_it(server: &str) {
    let _turn = TURN.lock().unwrap_or_else(|broken| broken.into_inner());
    let Some(rancher_machine) =
        outside_tools::go::peer("node-driver", Path::new(env!("CARGO_TARGET_TMPDIR")))
    else {
        return;
    };
    let others = script(NODE_DRIVER, "The other commands");
    let check = script(NODE_DRIVER, "Without rancher-machine");
    let free = check.split_whitespace().last().expect("it names a machine").to_owned();
    let readme = script(README.0, README.1);
    let remove = removal(&readme);
    let mut script = readme.replace(remove, &(others + remove)) + &check;
    let kubectl = Tool::Kubectl.find();
    if kubectl.is_none() {
        #[expect(clippy::explicit_write, reason = "the test runner keeps what `eprintln` prints to itself")]
        writeln!(std::io::stderr(), "without kubectl: `cargo xtask tools` builds it").unwrap();
        script = script.replace("kubectl ", "true ");
    }
    let folder = tempfile::tempdir().unwrap();
    let release = folder.path().join("target/release");
    fs::create_dir_all(&release).unwrap();
    symlink(binary(), release.join("harvester-cloud-provider")).unwrap();
    symlink(rancher_machine, release.join("rancher-machine")).unwrap();
    if let Some(kubectl) = &kubectl {
        symlink(kubectl, release.join("kubectl")).unwrap();
    }
    let _sandbox = Sandbox::start(folder.path(), server);
    let out = run(&script, folder.path());
    let (while_there, after) =
        out.split_once(&format!("Successfully removed {MACHINE}")).expect("it says so");
    assert!(while_there.contains("Running"), "{out}");
    assert!(after.contains(&format!("machine {free} can be made")), "{out}");
    if kubectl.is_some() {
        assert!(while_there.contains(&format!("virtualmachineinstance.kubevirt.io/{MACHINE}")), "{out}");
        assert!(after.contains("demo-1") && !after.contains(MACHINE), "{out}");
    }
    // real API servers do not obey the rule
    if kubectl.is_some() && server == "sim" {
        run(&lost_answer(), folder.path());
        let audit = fs::read_to_string(folder.path().join("target/sandbox/harvester.audit.log")).unwrap();
        let lost = audit.lines().filter(|line| {
            line.contains(r#""verb":"create""#)
                && line.contains("/virtualmachines")
                && line.contains(r#""code":0,"#)
        });
        assert_eq!(lost.count(), 1, "the documented rule hits one request");
    }
}

mod simulated {
    #[test]
    fn the_documented_commands_make_a_machine_and_remove_it() {
        super::the_documented_commands_make_a_machine_and_remove_it("sim");
    }
}

/// By these names `cargo xtask test` knows what needs real servers.
mod real {
    mod ours {
        #[test]
        fn the_documented_commands_make_a_machine_and_remove_it() {
            super::super::the_documented_commands_make_a_machine_and_remove_it("real");
        }
    }
}
