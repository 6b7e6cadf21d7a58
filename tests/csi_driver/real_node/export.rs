//! An NFS export, by a server of this computer that is reached from machines only.

use std::{
    fs,
    net::{Ipv4Addr, TcpListener},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use tempfile::TempDir;

use super::machine::Forward;
use crate::{Running, until};

/// What the server logs when it takes calls.
const READY: &str = "NFS SERVER INITIALIZED";

/// An export of a folder, until this is dropped.
pub(crate) struct Export {
    folder: TempDir,
    port: u16,
    program: PathBuf,
    libraries: Vec<String>,
    server: Option<Running>,
}

impl Export {
    /// Exports an empty folder at `/<name>`.
    pub(crate) fn start(name: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (data, state) = (folder.path().join("data"), folder.path().join("state"));
        fs::create_dir(&data).unwrap();
        fs::create_dir(&state).unwrap();
        let program = program();
        let found =
            Command::new("find").arg(&program).args(["-name", "*.so*", "-printf", "%h\\n"]).output().unwrap();
        let mut libraries: Vec<_> =
            String::from_utf8(found.stdout).unwrap().lines().map(str::to_owned).collect();
        libraries.sort();
        libraries.dedup();
        let plugins = libraries.iter().find(|folder| folder.ends_with("-linux-gnu/ganesha")).unwrap();
        // nobody else is told of it before the server takes it
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
        let settings = format!(
            "NFS_CORE_PARAM {{ Bind_addr = 127.0.0.1; NFS_Port = {port}; Protocols = 4; Enable_NLM = false;
                Enable_RQUOTA = false; Plugins_Dir = \"{plugins}\"; mount_path_pseudo = true; }}
            NFSV4 {{ UseGetpwnam = true; Only_Numeric_Owners = true; Graceless = true; Lease_Lifetime = 5;
                Grace_Period = 5; RecoveryBackend = fs;
                RecoveryRoot = \"{state}\"; }}
            EXPORT {{ Export_Id = 1; Path = {data}; Pseudo = /{name}; Access_Type = RW; Squash = No_Root_Squash;
                SecType = sys; Protocols = 4; Transports = TCP; FSAL {{ Name = VFS; }} }}",
            data = data.display(),
            state = state.display(),
        );
        fs::write(folder.path().join("settings"), settings).unwrap();
        let server = Some(serve(&program, &libraries, folder.path()));
        Self { folder, port, program, libraries, server }
    }

    /// Kills the server, and starts another one in its place.
    pub(crate) fn restart(&mut self) {
        drop(self.server.take());
        self.server = Some(serve(&self.program, &self.libraries, self.folder.path()));
    }

    /// What is in the export.
    pub(crate) fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// The way of machines to the server.
    pub(crate) fn forward(&self, address: Ipv4Addr) -> Forward {
        Forward { at: (address, 2049), to: self.port }
    }
}

/// Starts a server with the settings of this folder.
fn serve(program: &Path, libraries: &[String], folder: &Path) -> Running {
    let file = |name: &str| folder.join(name);
    // what a former one said
    fs::remove_file(file("log")).ok();
    let mut command = Command::new(program.join("usr/bin/ganesha.nfsd"));
    command.env("LD_LIBRARY_PATH", libraries.join(":")).arg("-F").arg("-f").arg(file("settings"));
    command.arg("-L").arg(file("log")).arg("-p").arg(file("pid"));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let server = Running(command.spawn().unwrap());
    until("the NFS server takes calls", || {
        fs::read_to_string(file("log")).is_ok_and(|log| log.contains(READY))
    });
    server
}

/// The folder that the server is unpacked in.
fn program() -> PathBuf {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/real_node/nfs-server.sh");
    let output = Command::new("sh").arg(script).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    PathBuf::from(String::from_utf8(output.stdout).unwrap().trim())
}
