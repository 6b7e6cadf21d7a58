//! One binary, all parts. The name by which it is called chooses the part, as in busybox, and a subcommand does the
//! same; this file is that choice and nothing else.

mod people;

use std::{
    env,
    ffi::{OsStr, OsString},
    io::IsTerminal,
    path::Path,
    process::ExitCode,
};

const OVERVIEW: &str = "\
Harvester cloud provider: what stands between Harvester and the Kubernetes clusters in its virtual machines.

Usage: harvester-cloud-provider [FLAGS]          the cloud controller manager (flags: --help)
       harvester-cloud-provider <PART> [FLAGS]

Parts, also chosen by the name of the program:
  cloud-controller-manager  (harvester-cloud-provider)        addresses and traffic for Services, nodes, topology
  load-balancer             (harvester-load-balancer)         pools, LoadBalancer objects, health checks
  load-balancer-webhook     (harvester-load-balancer-webhook) admission of both kinds, conversion of the former version
  node-driver               (docker-machine-driver-harvester) Rancher's machines as virtual machines
  csi-driver                (harvester-csi-driver)            volumes of Harvester in the pods of a guest cluster
  cloud-config generate ACCOUNT NAMESPACE                     an account in Harvester for a guest cluster, its kubeconfig
  cloud-config inspect [FILE]                                 what such a kubeconfig is good for
  cloud-config rotate [FILE]                                  renews a token that ends
  cloud-config serve                                          Harvester's kubeconfig API
  explain service NAMESPACE/NAME                              why a Service has its address, or has none
  doctor                                                      what of both clusters is in order, and what is not
  orphans                                                     what clusters and Services that are gone left on Harvester
  status                                                      both clusters on one screen
  dashboard                                                   a page that shows pools and load balancers as they change
  completion bash|zsh|fish                                    what a shell completes command lines with
  sandbox                                                     two simulated clusters on this machine, to try it all

As kubectl-harvester (`kubectl harvester …`) it is status, explain, doctor, orphans, cloud-config, dashboard and completion.
Every part explains its flags with --help. To see it work: harvester-cloud-provider sandbox
";

/// What the program is asked to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    CloudControllerManager,
    LoadBalancer,
    LoadBalancerWebhook,
    NodeDriver,
    CsiDriver,
    CloudConfig,
    Explain,
    Doctor,
    Orphans,
    Status,
    Dashboard,
    Completion,
    /// What a shell asks.
    Complete,
    /// The plugin of kubectl.
    Kubectl,
    Sandbox,
}

impl Part {
    /// By the program's file name; a suffix for the machine's architecture does not count. Unknown names are the
    /// cloud controller manager, because images and people rename it.
    fn by_name(program: &OsStr) -> Self {
        let stem = Path::new(program).file_stem().unwrap_or_default().to_string_lossy();
        let stem = stem.strip_suffix("-amd64").or_else(|| stem.strip_suffix("-arm64")).unwrap_or(&stem);
        match stem {
            "harvester-load-balancer" => Self::LoadBalancer,
            "harvester-load-balancer-webhook" => Self::LoadBalancerWebhook,
            "docker-machine-driver-harvester" => Self::NodeDriver,
            "harvester-csi-driver" => Self::CsiDriver,
            people::PLUGIN => Self::Kubectl,
            people::COMPLETER => Self::Complete,
            _ => Self::CloudControllerManager,
        }
    }

    /// Whether the plugin of kubectl has it.
    fn is_for_people(self) -> bool {
        use Part::{CloudConfig, Complete, Completion, Dashboard, Doctor, Explain, Orphans, Status};
        matches!(self, CloudConfig | Complete | Completion | Dashboard | Doctor | Explain | Orphans | Status)
    }

    fn by_subcommand(word: &OsStr) -> Option<Self> {
        match word.to_str()? {
            "cloud-controller-manager" => Some(Self::CloudControllerManager),
            "load-balancer" => Some(Self::LoadBalancer),
            "load-balancer-webhook" => Some(Self::LoadBalancerWebhook),
            "node-driver" => Some(Self::NodeDriver),
            "csi-driver" => Some(Self::CsiDriver),
            "cloud-config" => Some(Self::CloudConfig),
            "explain" => Some(Self::Explain),
            "doctor" => Some(Self::Doctor),
            "orphans" => Some(Self::Orphans),
            "status" => Some(Self::Status),
            "completion" => Some(Self::Completion),
            "__complete" => Some(Self::Complete),
            "dashboard" => Some(Self::Dashboard),
            "sandbox" => Some(Self::Sandbox),
            _ => None,
        }
    }
}

/// Whether a person may have meant a part. In a cluster the word is an argument of a chart, of which the log tells.
fn is_misspelt(word: &OsStr, is_terminal: bool) -> bool {
    let word = word.to_string_lossy();
    is_terminal && !word.is_empty() && !word.starts_with('-')
}

fn main() -> ExitCode {
    let mut args: Vec<OsString> = env::args_os().collect();
    let program = args.first().cloned().unwrap_or_default();
    let mut part = Part::by_name(&program);
    if part == Part::CloudControllerManager {
        match args.get(1) {
            None if std::io::stdout().is_terminal() => {
                #[expect(clippy::print_stdout, reason = "this is the command line")]
                {
                    print!("{OVERVIEW}");
                }
                return ExitCode::SUCCESS;
            }
            Some(word) => match Part::by_subcommand(word) {
                Some(chosen) => {
                    part = chosen;
                    args.remove(1);
                }
                None if is_misspelt(word, std::io::stderr().is_terminal()) => {
                    return people::unknown(word, OVERVIEW);
                }
                None => {}
            },
            None => {}
        }
    }
    if part == Part::Kubectl {
        let word = args.get(1).cloned().unwrap_or_default();
        match Part::by_subcommand(&word).filter(|part| part.is_for_people()) {
            Some(chosen) => {
                part = chosen;
                args.remove(1);
            }
            None => return people::overview(&word),
        }
    }
    #[cfg(feature = "sandbox")]
    sandbox::end_with_parent();
    match part {
        Part::CloudControllerManager => cloud_controller_manager::cli::main(args),
        Part::LoadBalancer => load_balancer::cli::main(args),
        Part::LoadBalancerWebhook => load_balancer_webhook::cli::main(args),
        Part::NodeDriver => node_driver::cli::main(args),
        Part::CsiDriver => csi_driver::cli::main(args),
        Part::CloudConfig => credentials::cli::main(args),
        Part::Explain => diagnosis::explain::cli::main(args),
        Part::Doctor => diagnosis::doctor::cli::main(args),
        Part::Orphans => diagnosis::orphans::cli::main(args),
        Part::Status => diagnosis::status::cli::main(args),
        Part::Completion => people::completion(&program, args),
        Part::Complete => people::complete(args),
        Part::Kubectl => people::overview(OsStr::new("")),
        Part::Dashboard => dashboard::cli::main(args),
        Part::Sandbox => sandbox(args),
    }
}

#[cfg(feature = "sandbox")]
fn sandbox(args: Vec<OsString>) -> ExitCode {
    sandbox::cli::main(args)
}

#[cfg(not(feature = "sandbox"))]
#[expect(clippy::needless_pass_by_value, reason = "the same shape as with the feature")]
fn sandbox(_: Vec<OsString>) -> ExitCode {
    eprintln!("this build has no sandbox: build with the default features, `cargo run --release -- sandbox`");
    ExitCode::from(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subcommand_chooses_the_part() {
        let part = |word: &str| Part::by_subcommand(OsStr::new(word));
        assert_eq!([part("explain"), part("node-driver")], [Some(Part::Explain), Some(Part::NodeDriver)]);
        assert_eq!(part("doctor"), Some(Part::Doctor));
        assert_eq!([part("csi-driver"), part("dashboard")], [Some(Part::CsiDriver), Some(Part::Dashboard)]);
        assert_eq!(part("--cluster-name=explain"), None);
    }

    #[test]
    fn the_plugin_of_kubectl_has_every_command_for_people_and_no_part_that_runs_for_ever_in_a_cluster() {
        for command in people::COMMANDS {
            let part = Part::by_subcommand(OsStr::new(command.words[0])).expect("a part");
            assert!(part.is_for_people(), "{:?}", command.words);
        }
        assert!(!Part::LoadBalancer.is_for_people() && !Part::Sandbox.is_for_people());
    }

    #[test]
    fn a_word_that_is_no_part_is_told_to_whoever_typed_it_and_flags_are_the_controllers() {
        let told = |word: &str, is_terminal: bool| is_misspelt(OsStr::new(word), is_terminal);
        assert!(told("statsu", true));
        assert!(!told("statsu", false) && !told("--cluster-name=blue", true) && !told("", true));
    }

    #[test]
    fn the_name_of_the_program_chooses_the_part() {
        let part = |name: &str| Part::by_name(OsStr::new(name));
        assert_eq!(part("/usr/bin/harvester-load-balancer"), Part::LoadBalancer);
        assert_eq!(part("harvester-load-balancer-webhook-arm64"), Part::LoadBalancerWebhook);
        assert_eq!(part("docker-machine-driver-harvester"), Part::NodeDriver);
        assert_eq!(part("/usr/bin/harvester-csi-driver-arm64"), Part::CsiDriver);
        assert_eq!(part("harvester-cloud-provider-amd64"), Part::CloudControllerManager);
        assert_eq!(part("/root/.krew/bin/kubectl-harvester"), Part::Kubectl);
        assert_eq!(part("kubectl_complete-harvester"), Part::Complete);
        assert_eq!(part("renamed"), Part::CloudControllerManager);
        assert_eq!(part(""), Part::CloudControllerManager);
    }
}
