//! How a cluster's API server is reached, simulated or real.

use std::{
    fs::File,
    io::Write,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    path::Path,
    time::Duration,
};

use anyhow::{Context, Result};
use kube::Client;
use program::TaskGroup;
use sim_apiserver::{ApiServer, User as Account};
use test_cluster::{Side, real};
use tokio::net::TcpListener;

/// Between two looks at a real server's own log.
const TRANSLATE_EVERY: Duration = Duration::from_millis(100);

pub(super) enum Served {
    Simulated { server: ApiServer, address: SocketAddr },
    Real(real::Server),
}

impl Served {
    pub(super) async fn simulated(side: Side, dir: &Path, tasks: &TaskGroup) -> Result<Self> {
        let network = match side {
            Side::Guest => Ipv4Addr::new(10, 43, 0, 0),
            Side::Harvester => Ipv4Addr::new(10, 53, 0, 0),
        };
        let mut builder = ApiServer::builder();
        if side == Side::Guest {
            builder = builder.ipv6_service_network(Ipv6Addr::new(0xfd43, 0, 0, 0, 0, 0, 0, 0), 112);
        }
        let server = builder
            .service_network(network, 16)
            .seed(fastrand::u64(..))
            .audit_file(super::audit_file(dir, side))
            .try_build()
            .context("open the audit log")?;
        let listener =
            TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("find a port for an API server")?;
        let address = listener.local_addr().context("find the port of an API server")?;
        let serving = server.clone();
        tasks.spawn_until_stop(async move {
            if let Err(error) = serving.serve(listener).await {
                tracing::error!(%error, %address, "an API server is not served any more");
            }
        });
        Ok(Self::Simulated { server, address })
    }

    /// `audit` gets the lines of the server's own log in the form of the simulated one.
    pub(super) fn real(server: real::Server, audit: &Path, tasks: &TaskGroup) -> Self {
        let (mut log, audit) = (server.audit_log(), audit.to_owned());
        tasks.spawn_until_stop(async move {
            loop {
                let lines: String = log.new_records().iter().map(line).collect();
                let written = File::options()
                    .create(true)
                    .append(true)
                    .open(&audit)
                    .and_then(|mut file| file.write_all(lines.as_bytes()));
                if let Err(error) = written {
                    tracing::warn!(file = %audit.display(), %error, "audit lines are lost");
                }
                tokio::time::sleep(TRANSLATE_EVERY).await;
            }
        });
        Self::Real(server)
    }

    pub(super) fn url(&self) -> String {
        match self {
            Self::Simulated { address, .. } => format!("https://{address}"),
            Self::Real(server) => server.url(),
        }
    }

    pub(super) fn simulated_server(&self) -> Option<&ApiServer> {
        match self {
            Self::Simulated { server, .. } => Some(server),
            Self::Real(_) => None,
        }
    }

    pub(super) fn client(&self, account: &Account) -> Result<Client> {
        match self {
            Self::Simulated { server, .. } => Ok(server.client(account.clone())),
            Self::Real(server) => server.client(&account.name).context("make a client"),
        }
    }

    pub(super) fn kubeconfig(&self, account: &Account, namespace: &str) -> String {
        match self {
            Self::Simulated { server, address } => server.kubeconfig(account.clone(), *address),
            Self::Real(server) => server.kubeconfig(&account.name, namespace),
        }
    }
}

fn line(record: &sim_apiserver::Record) -> String {
    serde_json::json!(record).to_string() + "\n"
}
