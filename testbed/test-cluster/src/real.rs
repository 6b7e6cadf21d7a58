//! Two real API servers on loopback: etcd, a kube-apiserver and a kube-controller-manager for the guest and for
//! Harvester, as separate processes.
//!
//! ```text
//!   etcd ◄── /guest ─────── kube-apiserver ◄── kube-controller-manager (garbage, namespaces, EndpointSlices)
//!     ▲
//!     └───── /harvester ─── kube-apiserver ◄── kube-controller-manager
//! ```
//! The programs are found as [`outside_tools`] says, and never built here. They end with the process that started
//! them, however it ends (module `watchdog`).

mod arguments;
mod audit;
mod certificates;
mod watchdog;

use std::fs;
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::Duration;

use kube::{Client, Config};
use outside_tools::{REAL_SERVER, Tool};
use serde_json::json;
use sim_apiserver::User as Account;
use tokio::time::{Instant, sleep};

use self::certificates::Certificates;
use self::watchdog::Watchdog;
use crate::user::Side;

pub use self::audit::AuditLog;

/// How long servers may take to be ready; on idle cores it is three to four seconds.
const READY_WITHIN: Duration = Duration::from_secs(90);
const BETWEEN_LOOKS: Duration = Duration::from_millis(50);
/// A port that was free may be another process's by the time a server listens there; then it ends, and others are tried.
const ATTEMPTS: u32 = 5;

/// What keeps the servers from running.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A program is not on this machine.
    #[error("no {} here: run `cargo xtask tools`, or point KUBEBUILDER_ASSETS to a folder that has it", .0.name())]
    Missing(Tool),
    /// A file or a process of the servers.
    #[error("prepare the API servers in {}", .folder.display())]
    Prepare {
        /// Folder of the servers.
        folder: PathBuf,
        /// What went wrong.
        source: io::Error,
    },
    /// The certificates.
    #[error("make certificates for the API servers")]
    Certificate(#[from] rcgen::Error),
    /// No client can be made.
    #[error("make a client for the API servers")]
    Client(#[source] Box<kube::Error>),
    /// It started and did not get ready.
    #[error("the {side} API server does not get ready; the end of its log:\n{log}")]
    NotReady {
        /// `guest` or `harvester`.
        side: &'static str,
        /// The last lines.
        log: String,
    },
    /// A process ended before all were ready.
    #[error("{process} ended; the end of its log:\n{log}")]
    Ended {
        /// `etcd`, or which API server.
        process: String,
        /// The last lines.
        log: String,
    },
}

/// One of the two servers. Clones are the same server.
#[derive(Clone, Debug)]
pub struct Server {
    side: Side,
    port: u16,
    folder: PathBuf,
    authority: Certificates,
    accounts: Vec<Account>,
}

/// Both servers and their company; they end when this is dropped.
#[derive(Debug)]
pub struct Servers {
    folder: PathBuf,
    guest: Server,
    harvester: Server,
    processes: Vec<Process>,
}

/// A process and the name of its log.
#[derive(Debug)]
struct Process {
    name: String,
    watchdog: Watchdog,
}

/// Starts etcd and both API servers, with their files in `folder`, and waits until they are ready. `accounts` says who
/// is known to the servers on a side; each account's token is its name.
///
/// # Errors
/// Where a program is missing, or a server does not get ready.
pub async fn start(folder: &Path, accounts: impl Fn(Side) -> Vec<Account>) -> Result<Servers, Error> {
    start_on(folder, accounts, free_ports).await
}

/// [`start`] on ports that `ports` chooses for every attempt: etcd's two, the guest's, Harvester's.
async fn start_on(
    folder: &Path,
    accounts: impl Fn(Side) -> Vec<Account>,
    mut ports: impl FnMut() -> io::Result<[u16; 4]>,
) -> Result<Servers, Error> {
    for tool in REAL_SERVER {
        tool.find().ok_or(Error::Missing(tool))?;
    }
    let prepare = |source| Error::Prepare { folder: folder.to_owned(), source };
    let authority = Certificates::new()?;
    let mut attempt = 1;
    loop {
        let ports = ports().map_err(prepare)?;
        match try_to_start(folder, &accounts, &authority, ports).await {
            Err(Error::Ended { .. }) if attempt < ATTEMPTS => {
                // what etcd wrote names the ports of this attempt
                fs::remove_dir_all(folder).map_err(prepare)?;
                attempt += 1;
            }
            done => return done,
        }
    }
}

async fn try_to_start(
    folder: &Path,
    accounts: impl Fn(Side) -> Vec<Account>,
    authority: &Certificates,
    [etcd_client, etcd_peer, guest, harvester]: [u16; 4],
) -> Result<Servers, Error> {
    let prepare = |source| Error::Prepare { folder: folder.to_owned(), source };
    fs::create_dir_all(folder).map_err(prepare)?;
    let server = |side, port| Server {
        side,
        port,
        folder: folder.join(Side::name(side)),
        authority: authority.clone(),
        accounts: accounts(side),
    };
    let mut servers = Servers {
        folder: folder.to_owned(),
        guest: server(Side::Guest, guest),
        harvester: server(Side::Harvester, harvester),
        processes: vec![],
    };
    servers.spawn(Tool::Etcd, "etcd", &arguments::etcd(folder, etcd_client, etcd_peer))?;
    for server in [servers.guest.clone(), servers.harvester.clone()] {
        server.write_files().map_err(prepare)?;
        let log = format!("{}-apiserver", server.side.name());
        servers.spawn(Tool::KubeApiserver, &log, &arguments::apiserver(&server, etcd_client))?;
    }
    servers.ready().await?;
    Ok(servers)
}

impl Servers {
    /// The server of one side.
    #[must_use]
    pub fn side(&self, side: Side) -> &Server {
        match side {
            Side::Guest => &self.guest,
            Side::Harvester => &self.harvester,
        }
    }

    /// Starts the kube-controller-managers. After the kinds are there: garbage collection looks for new ones every
    /// 30 s only.
    ///
    /// # Errors
    /// Where a process cannot be started.
    pub fn start_controller_managers(&mut self) -> Result<(), Error> {
        for side in Side::ALL {
            let log = format!("{}-controller-manager", side.name());
            let arguments = arguments::controller_manager(self.side(side));
            self.spawn(Tool::KubeControllerManager, &log, &arguments)?;
        }
        Ok(())
    }

    /// Removes the folder when this process ends.
    pub(crate) fn remove_folder_at_the_end(&mut self) -> Result<(), Error> {
        let watchdog = Watchdog::that_removes(&self.folder)
            .map_err(|source| Error::Prepare { folder: self.folder.clone(), source })?;
        self.processes.push(Process { name: "the removal of the folder".to_owned(), watchdog });
        Ok(())
    }

    async fn ready(&mut self) -> Result<(), Error> {
        let until = Instant::now() + READY_WITHIN;
        for side in Side::ALL {
            let client = self.side(side).client(&arguments::controller_manager_account().name)?;
            loop {
                let request = http::Request::get("/readyz").body(vec![]).expect("a constant request");
                if client.request_text(request).await.is_ok() {
                    break;
                }
                if let Some(process) = self.ended() {
                    let log = last_lines(&self.log(&process));
                    return Err(Error::Ended { process, log });
                }
                if Instant::now() > until {
                    let log = last_lines(&self.log(&format!("{}-apiserver", side.name())));
                    return Err(Error::NotReady { side: side.name(), log });
                }
                sleep(BETWEEN_LOOKS).await;
            }
        }
        Ok(())
    }

    /// The name of a process that has ended by itself.
    fn ended(&mut self) -> Option<String> {
        self.processes
            .iter_mut()
            .find_map(|Process { name, watchdog }| watchdog.has_ended().then(|| name.clone()))
    }

    fn log(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.log"))
    }

    fn spawn(&mut self, tool: Tool, name: &str, arguments: &[String]) -> Result<(), Error> {
        let program = tool.find().ok_or(Error::Missing(tool))?;
        let watchdog = Watchdog::over(&program, arguments, &self.log(name))
            .map_err(|source| Error::Prepare { folder: self.folder.clone(), source })?;
        self.processes.push(Process { name: name.to_owned(), watchdog });
        Ok(())
    }
}

impl Server {
    /// Its address, `https://127.0.0.1:<port>`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.port)
    }

    /// A client for the account of this name.
    ///
    /// # Errors
    /// Where no connection can be prepared.
    pub fn client(&self, account: &str) -> Result<Client, Error> {
        let mut config = Config::new(self.url().parse().expect("an address and a port are a URL"));
        config.root_cert = Some(vec![self.authority.authority_der()]);
        config.auth_info.token = Some(account.to_owned().into());
        Client::try_from(config).map_err(|error| Error::Client(Box::new(error)))
    }

    /// A kubeconfig for the account of this name, with `namespace` as the current one.
    #[must_use]
    pub fn kubeconfig(&self, account: &str, namespace: &str) -> String {
        let authority = self.authority.authority_base64();
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "default",
            "clusters": [{"name": "default", "cluster": {"server": self.url(), "certificate-authority-data": authority}}],
            "users": [{"name": "default", "user": {"token": account}}],
            "contexts": [{"name": "default", "context": {"cluster": "default", "user": "default", "namespace": namespace}}],
        });
        // JSON is YAML
        format!("{config:#}\n")
    }

    /// What was asked of it.
    #[must_use]
    pub fn audit_log(&self) -> AuditLog {
        AuditLog::new(self.file("audit.log"))
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn write_files(&self) -> io::Result<()> {
        fs::create_dir_all(&self.folder)?;
        fs::write(self.file("tls.crt"), self.authority.certificate())?;
        fs::write(self.file("tls.key"), self.authority.key())?;
        fs::write(self.file("audit-policy.json"), arguments::audit_policy())?;
        fs::write(self.file("audit.log"), "")?;
        let manager = arguments::controller_manager_account();
        let tokens: String = self.accounts.iter().chain([&manager]).map(arguments::token_line).collect();
        fs::write(self.file("tokens.csv"), tokens)?;
        fs::write(self.file("controller-manager.kubeconfig"), self.kubeconfig(&manager.name, "default"))
    }
}

fn last_lines(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}

/// Ports of 127.0.0.1 that were free a moment ago; all are held until all are known, so they differ.
fn free_ports<const N: usize>() -> io::Result<[u16; N]> {
    let mut ports = [0; N];
    let mut held = Vec::with_capacity(N);
    for port in &mut ports {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        *port = listener.local_addr()?.port();
        held.push(listener);
    }
    Ok(ports)
}

#[cfg(test)]
mod tests {
    use std::env;
    use std::mem;

    use super::*;

    #[tokio::test]
    async fn servers_whose_ports_were_taken_meanwhile_start_on_others() {
        if crate::run::is_left_out() {
            return;
        }
        let folder = env::temp_dir().join(format!("taken-ports-{}", std::process::id()));
        let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut first = true;
        let servers = start_on(
            &folder,
            |_| vec![],
            || {
                let mut ports = free_ports()?;
                if mem::take(&mut first) {
                    ports[1] = taken.local_addr()?.port();
                }
                Ok(ports)
            },
        );
        let servers = Box::pin(servers).await;
        assert!(servers.is_ok(), "{}", servers.unwrap_err());
        assert!(!first);
        drop(servers);
        fs::remove_dir_all(&folder).unwrap();
    }
}
