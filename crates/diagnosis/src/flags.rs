//! Flags of all programs that look at both clusters.

use std::process::ExitCode;

use program::{
    complain,
    flags::{Flag, Reader},
};

/// Name in usage texts and in the User-Agent.
pub(crate) const PROGRAM: &str = "harvester-cloud-provider";
const WRONG_ARGUMENTS: u8 = 2;

pub(crate) const GUEST: Flag = Flag::value(
    "kubeconfig",
    "FILE",
    "guest cluster; else the variable KUBECONFIG, else the pod's service account",
);
pub(crate) const CLOUD_CONFIG: Flag = Flag::value(
    "cloud-config",
    "PATH",
    "kubeconfig for Harvester, the cloud-config or one that may read more; else it is looked for where the cloud \
     controller manager looks",
);
pub(crate) const NAMESPACE: Flag = Flag::value(
    "harvester-namespace",
    "NAMESPACE",
    "namespace of the guest cluster in Harvester; else that of the cloud-config's context",
);
pub(crate) const OUTPUT: Flag = Flag::value("output", "FORMAT", "text or json").default("text");

/// Whether [`OUTPUT`] is json.
pub(crate) fn is_json(reader: &mut Reader<'_>) -> bool {
    reader.read("output", false, |text| match text {
        "text" => Ok(false),
        "json" => Ok(true),
        _ => Err(format!("{text:?}: use text or json")),
    })
}

/// Tells each fault of a command line.
pub(crate) fn refuse(faults: &[String]) -> ExitCode {
    faults.iter().for_each(|fault| complain(fault));
    complain("see --help");
    ExitCode::from(WRONG_ARGUMENTS)
}
