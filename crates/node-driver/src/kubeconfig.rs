//! Finds the kubeconfig that rancher-machine passes to this process. It replaces the stored one, so that a machine can be
//! removed with a renewed credential (harvester/harvester#5827).

use std::ffi::OsString;

use crate::{config, flags};

/// The kubeconfig from the parent's command line or from the environment. An empty but present variable counts.
pub(crate) fn given(args: &[OsString], variable: Option<&str>) -> Option<String> {
    match on_command_line(args) {
        Some(value) => value,
        None => variable.map(str::to_owned),
    }
    .map(|text| config::kubeconfig(&text))
}

/// The flag's value; `Some(None)` for a flag without value. A second `=` is part of the value (upstream cuts there and loses
/// the padding of base64, docs/contract/node-driver.md#B21).
fn on_command_line(args: &[OsString]) -> Option<Option<String>> {
    let mut found = None;
    let mut args = args.iter().skip(1).map(|arg| arg.to_string_lossy()).peekable();
    while let Some(arg) = args.next() {
        if !arg.starts_with('-') {
            continue;
        }
        let option = arg.trim_start_matches('-');
        if let Some((flags::KUBECONFIG_CONTENT, value)) = option.split_once('=') {
            found = Some(Some(value.to_owned()));
        } else if option == flags::KUBECONFIG_CONTENT {
            let value = args.next_if(|next| !next.starts_with('-'));
            found = Some(value.map(|value| value.into_owned()).or(found.flatten()));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::nowhere("rancher-machine rm demo", None, None)]
    #[case::variable("rancher-machine rm demo", Some("a: 1"), Some("a: 1"))]
    #[case::empty_variable("rancher-machine rm demo", Some(""), Some(""))]
    #[case::encoded_variable("rancher-machine", Some("YTogMQo="), Some("a: 1\n"))]
    #[case::flag_wins("rancher-machine --harvester-kubeconfig-content b:2 rm", Some("a: 1"), Some("b:2"))]
    #[case::one_dash("rancher-machine -harvester-kubeconfig-content=b:2", None, Some("b:2"))]
    // docs/contract/node-driver.md#B21
    #[case::padding_stays("rancher-machine --harvester-kubeconfig-content=YTogMQo=", None, Some("a: 1\n"))]
    #[case::bare_flag_hides_the_variable(
        "rancher-machine --harvester-kubeconfig-content -y",
        Some("a: 1"),
        None
    )]
    #[case::another_flag("rancher-machine --harvester-kubeconfig-contents b", None, None)]
    fn the_newest_credential_is_found(
        #[case] args: &str,
        #[case] variable: Option<&str>,
        #[case] expected: Option<&str>,
    ) {
        let args: Vec<OsString> = args.split(' ').map(OsString::from).collect();
        assert_eq!(given(&args, variable).as_deref(), expected);
    }
}
