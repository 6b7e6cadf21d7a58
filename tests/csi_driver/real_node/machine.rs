//! A virtual machine: QEMU without KVM, Debian's cloud kernel, and an initramfs that `tests/real_node/image.sh` makes.
//!
//! ```text
//! this process                                     machine, which reaches nothing else
//!   shell ───────────────► 127.0.0.1:x ──QEMU──► :7001  sh
//!   CSI calls ───────────► 127.0.0.1:y ──QEMU──► :7000 ──► /csi/csi.sock  the driver
//!   API servers, exports ◄──── busybox nc ◄──QEMU── 10.0.2.100 and on
//! ```

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    net::{Ipv4Addr, TcpStream},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use controller_kit::ObjectKey;
use serde_json::json;
use tempfile::TempDir;

use super::qmp::{Monitor, Monitors};
use crate::{Running, binary, until};

/// What the init of the image says when everything is started.
const UP: &str = "the node is up";
/// The ports of the init: the driver's socket, and shells.
const PORTS: [u16; 2] = [7000, 7001];
/// The last line of a script, with its exit status.
const DONE: &str = "the script is done: ";

/// A port of this computer, by the address and port at which a machine finds it.
#[derive(Clone, Debug)]
pub(crate) struct Forward {
    pub(crate) at: (Ipv4Addr, u16),
    pub(crate) to: u16,
}

/// What a machine has besides the image.
#[derive(Debug, Default)]
pub(crate) struct Equipment {
    /// Files in its folder `/node`; `start` runs the driver.
    pub(crate) files: Vec<(String, String)>,
    pub(crate) forwards: Vec<Forward>,
}

/// The way to run scripts in a machine.
#[derive(Clone)]
pub(crate) struct Shell {
    vm: ObjectKey,
    port: u16,
}

/// A machine that runs.
pub(crate) struct Machine {
    vm: ObjectKey,
    monitors: Monitors,
    folder: TempDir,
    driver: u16,
    shell: Shell,
    process: Running,
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.monitors.remove(&self.vm);
        if std::thread::panicking() {
            eprintln!("{} said:\n{}", self.vm, self.said());
        }
    }
}

impl Shell {
    /// Runs a script in the machine and answers what it prints.
    pub(crate) fn run(&self, script: &str) -> String {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).unwrap();
        write!(stream, "(set -e\n{script}\n)\necho \"{DONE}$?\"\nexit\n").unwrap();
        let (mut said, mut line) = (String::new(), String::new());
        let mut lines = BufReader::new(stream);
        // the stream ends only with what the script left running
        while !line.starts_with(DONE) {
            said += &line;
            line.clear();
            assert!(lines.read_line(&mut line).unwrap() > 0, "{} ended: {said}", self.vm);
        }
        assert_eq!(line.strip_prefix(DONE), Some("0\n"), "{script}\nin {}: {said}", self.vm);
        said
    }
}

impl Machine {
    /// Boots the machine that stands for a VM of the simulation.
    pub(crate) fn boot(vm: &ObjectKey, mac: &str, equipment: &Equipment, monitors: &Monitors) -> Self {
        let image = image();
        let folder = tempfile::tempdir().unwrap();
        let console = folder.path().join("console");
        let socket = folder.path().join("qmp");
        fs::write(&console, "").unwrap();
        let process = qemu(&image, folder.path(), mac, equipment).stdin(Stdio::null()).spawn().unwrap();
        let process = Running(process);
        let said = || fs::read_to_string(&console).unwrap_or_default();
        until("the machine is up", || said().contains(UP));
        let mut monitor = Monitor::connect(&socket).unwrap();
        let ports = monitor.run("human-monitor-command", &json!({"command-line": "info usernet"})).unwrap();
        let [driver, port] = PORTS.map(|port| forwarded(ports.as_str().unwrap(), port));
        let shell = Shell { vm: vm.clone(), port };
        monitors.insert(vm, monitor);
        Self { vm: vm.clone(), monitors: monitors.clone(), folder, driver, shell, process }
    }

    /// Where the driver takes calls.
    pub(crate) fn driver(&self) -> String {
        format!("http://127.0.0.1:{}", self.driver)
    }

    /// Runs a script in the machine and answers what it prints.
    pub(crate) fn run(&self, script: &str) -> String {
        self.shell.run(script)
    }

    pub(crate) fn shell(&self) -> Shell {
        self.shell.clone()
    }

    /// What its console shows, the driver's log included.
    fn said(&self) -> String {
        fs::read_to_string(self.folder.path().join("console")).unwrap()
    }

    /// Takes the power away.
    pub(crate) fn kill(mut self) {
        self.monitors.remove(&self.vm);
        self.process.0.kill().unwrap();
        self.process.0.wait().unwrap();
    }
}

/// The folder of the image.
///
/// # Panics
/// Where the machine lacks something; the message names the package.
pub(crate) fn image() -> PathBuf {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/real_node/image.sh");
    let output = Command::new("sh").arg(script).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    PathBuf::from(String::from_utf8(output.stdout).unwrap().trim())
}

fn qemu(image: &Path, folder: &Path, mac: &str, equipment: &Equipment) -> Command {
    let initramfs = folder.join("initramfs");
    fs::copy(image.join("initramfs.cpio"), &initramfs).unwrap();
    // the kernel unpacks one archive after the other
    fs::File::options().append(true).open(&initramfs).unwrap().write_all(&archive(image, equipment)).unwrap();
    let mut network = "user,id=net0,restrict=on".to_owned();
    for port in PORTS {
        network += &format!(",hostfwd=tcp:127.0.0.1:0-10.0.2.15:{port}");
    }
    let busybox = image.join("busybox").display().to_string().replace(',', ",,");
    for Forward { at: (address, port), to } in &equipment.forwards {
        network += &format!(",guestfwd=tcp:{address}:{port}-cmd:{busybox} nc 127.0.0.1 {to}");
    }
    let mut command = Command::new("qemu-system-x86_64");
    command.args([
        "-accel",
        "tcg",
        "-cpu",
        "max",
        "-m",
        "768",
        "-display",
        "none",
        "-no-reboot",
        "-nodefaults",
    ]);
    command.arg("-kernel").arg(image.join("vmlinuz")).arg("-initrd").arg(&initramfs);
    command.args(["-append", "console=ttyS0 quiet panic=-1 net.ifnames=0"]);
    command.arg("-serial").arg(format!("file:{}", folder.join("console").display()));
    command.arg("-qmp").arg(format!("unix:{},server=on,wait=off", folder.join("qmp").display()));
    command.args(["-device", "virtio-scsi-pci,id=scsi0", "-netdev", &network]);
    command.args(["-device", &format!("virtio-net-pci,netdev=net0,mac={mac},romfile=")]);
    command
}

/// The equipment as the kernel unpacks it.
fn archive(image: &Path, equipment: &Equipment) -> Vec<u8> {
    let root = tempfile::tempdir().unwrap();
    let node = root.path().join("node");
    fs::create_dir(&node).unwrap();
    if !equipment.files.is_empty() {
        // without what only a debugger reads it is a tenth
        let stripped = Command::new("strip").arg("-o").arg(node.join("driver")).arg(binary()).status();
        if !stripped.is_ok_and(|status| status.success()) {
            fs::copy(binary(), node.join("driver")).unwrap();
        }
    }
    for (name, text) in &equipment.files {
        fs::write(node.join(name), text).unwrap();
        fs::set_permissions(node.join(name), fs::Permissions::from_mode(0o755)).unwrap();
    }
    let script = "find node | \"$0\" cpio -o -H newc -R 0:0";
    let output = Command::new("sh")
        .args(["-c", script])
        .arg(image.join("busybox"))
        .current_dir(root.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// The port of this computer that leads to `port` of a machine, from the lines of `info usernet`.
fn forwarded(lines: &str, port: u16) -> u16 {
    let port = port.to_string();
    let found = lines.lines().find_map(|line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        let [kind, _, _, source, _, destination, ..] = fields[..] else { return None };
        (kind == "TCP[HOST_FORWARD]" && destination == port).then(|| source.parse().unwrap())
    });
    found.unwrap_or_else(|| panic!("port {port} is not forwarded: {lines}"))
}

#[test]
fn the_port_that_qemu_chose_is_read() {
    let lines = "Hub -1 (net0):\r\n  Protocol[State]    FD  Source Address  Port   Dest. Address  Port RecvQ SendQ\r\n  \
        TCP[HOST_FORWARD]   8       127.0.0.1 45873       10.0.2.15  7001     0     0\r\n";
    assert_eq!(forwarded(lines, 7001), 45873);
}
