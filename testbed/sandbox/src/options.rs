//! The options of the command line.

use std::{path::PathBuf, str::FromStr};

use clap::{Args, ValueEnum};

/// Two clusters on this machine with the real controllers between them. Without options: start, apply an example,
/// say what to type next, and end on Ctrl-C.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Walk through everything that the sandbox shows, with real requests, and exit 0 or 1.
    #[arg(long, conflicts_with_all = ["no_controllers", "no_example", "harvester_manifest", "guest_manifest"])]
    pub(crate) check: bool,

    /// Folder for kubeconfigs, audit logs and endpoints.json; a fresh temporary one unless given. One sandbox at a
    /// time; what others have there stays.
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,

    /// VMs of the guest cluster, each one a node.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=50))]
    pub(crate) guest_nodes: u8,

    /// Apply this to the Harvester cluster instead of the example (repeatable; many documents a file).
    #[arg(long, value_name = "FILE")]
    pub(crate) harvester_manifest: Vec<PathBuf>,

    /// Apply this to the guest cluster instead of the example (repeatable; many documents a file).
    #[arg(long, value_name = "FILE")]
    pub(crate) guest_manifest: Vec<PathBuf>,

    /// Start without the example.
    #[arg(long)]
    pub(crate) no_example: bool,

    /// Start the two clusters alone: no load balancer, no webhook, no cloud controller manager.
    #[arg(long)]
    pub(crate) no_controllers: bool,

    /// Which API servers to run: the simulated ones, or kube-apiserver with etcd as the tests find them.
    #[arg(long, value_enum, default_value_t = Server::Sim)]
    pub(crate) server: Server,

    /// Which roles the controllers get: the least that ours need, or those of the existing charts.
    #[arg(long, value_enum, default_value_t = Rights::Ours)]
    pub(crate) rights: Rights,

    /// Release of Harvester, from 1.3 to 1.9, that the Harvester cluster behaves as: what it says that it is, how disks
    /// come into VMs and whether they grow there, what its kube-vip does, and what its roles grant a CSI driver.
    #[arg(long, value_name = "RELEASE", default_value = "v1.7.1")]
    pub(crate) harvester_behaviour: Harvester,

    /// Measure the figures of the benchmark but those of storage, print them, and exit.
    #[arg(long, conflicts_with_all = ["check", "no_controllers"])]
    pub(crate) measure: bool,

    /// With --measure: some of the figures alone.
    #[arg(long, value_enum, value_name = "FIGURES", requires = "measure")]
    pub(crate) only: Option<Only>,

    /// Start the parts from this binary instead of this one, for example from one that was built to be shipped.
    #[arg(long, value_name = "FILE")]
    pub program: Option<PathBuf>,

    /// Print how request faults and other misfortunes are ordered, and exit.
    #[arg(long)]
    pub(crate) help_faults: bool,
}

/// Figures that can be measured alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Only {
    /// Those of a single Service, to compare two programs.
    Creation,
    /// Those of the cloud controller manager: nodes, sharing, ports, starts, a large cluster.
    Ccm,
    /// Those of health checks: ten thousand backends.
    Probes,
    /// Those of load balancers on Harvester: one that waits, one for VMs, ten thousand of them.
    Balancers,
    /// Those of the dashboard.
    Dashboard,
    /// Those of the CSI driver, which are measured so alone.
    Storage,
    /// Those of the programs that people call, which are measured so alone.
    Tools,
}

/// Kind of API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Server {
    Sim,
    Real,
}

/// Set of roles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Rights {
    Ours,
    Existing,
}

/// A release of Harvester.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Harvester {
    /// As its Setting `server-version` says it.
    pub(crate) version: String,
    /// The second number.
    pub(crate) minor: u32,
}

impl FromStr for Harvester {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let version = text.strip_prefix('v').unwrap_or(text);
        let mut numbers = version.split(['.', '-']).map(str::parse::<u32>);
        let minor = match (numbers.next(), numbers.next()) {
            (Some(Ok(1)), Some(Ok(minor))) if (3..=9).contains(&minor) => minor,
            _ => return Err("write a release from v1.3.0 to v1.9.0".to_owned()),
        };
        let patch = if version.matches('.').count() == 1 { ".0" } else { "" };
        Ok(Self { version: format!("v{version}{patch}"), minor })
    }
}

impl Options {
    /// Whether the CSI driver runs. It does not while other programs are measured.
    pub(crate) fn wants_storage(&self) -> bool {
        !self.measure || self.only == Some(Only::Storage)
    }

    /// Whether the example is wanted: not when something else was given to apply.
    pub(crate) fn wants_example(&self) -> bool {
        !self.no_example && self.harvester_manifest.is_empty() && self.guest_manifest.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("v1.7.1", Some(("v1.7.1", 7)))]
    #[case("1.8", Some(("v1.8.0", 8)))]
    #[case("v1.9.0-rc2", Some(("v1.9.0-rc2", 9)))]
    #[case("v1.2.2", None)]
    #[case("v2.7.0", None)]
    #[case("master", None)]
    fn a_release_is_read_as_people_write_it(#[case] text: &str, #[case] expected: Option<(&str, u32)>) {
        let read = text.parse::<Harvester>().ok();
        assert_eq!(read.as_ref().map(|read| (read.version.as_str(), read.minor)), expected);
    }
}
