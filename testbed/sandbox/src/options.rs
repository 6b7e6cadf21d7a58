//! The options of the command line.

use std::path::PathBuf;

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

    /// Measure the figures of the benchmark, print them, and exit.
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

impl Options {
    /// Whether the example is wanted: not when something else was given to apply.
    pub(crate) fn wants_example(&self) -> bool {
        !self.no_example && self.harvester_manifest.is_empty() && self.guest_manifest.is_empty()
    }
}
