//! Volumes that are NFS exports of the host.
//!
//! The controller's publish context says where the export is, so that the node asks no host for it.
//!
//! A mount of NFS lives in the network in which it was made, and dies with it. The driver's pod has a network of its own
//! in the chart of the Go driver, which a new pod of the driver does not keep; the mount is made in the network of
//! process 1, which is the machine's where the pod sees its processes (`hostPID`, as in that chart).

use std::collections::HashMap;
use std::ffi::OsStr;
use std::net::IpAddr;
use std::path::Path;

use tonic::Code;

use super::mounts::Mount;
use super::system::{mounts, unmount_all};
use super::tools::{self, NSENTER};
use super::{Settings, disk, mounts as seen};
use crate::refusal::Refusal;
use crate::volume::context::{ENDPOINT, EXPORT, OPTIONS};
use crate::volume::options;

/// As the Go driver mounts where the host gives no options.
const DEFAULT_OPTIONS: &str = "vers=4";

/// Where an export is, as `mount` takes it: `10.0.0.1:/pvc-1`.
///
/// # Errors
/// FAILED_PRECONDITION where the controller has given none, or one that is no address.
pub(crate) fn source(context: &HashMap<String, String>, handle: &str) -> Result<String, Refusal> {
    let value = |key: &str| context.get(key).map(|value| value.trim()).filter(|value| !value.is_empty());
    let (Some(endpoint), Some(export)) = (value(ENDPOINT), value(EXPORT)) else {
        return Err(Refusal::precondition(format!(
            "the publish context of volume {handle} lacks {ENDPOINT} or {EXPORT}: another version of the controller \
             attached it; delete its VolumeAttachment so that it is attached again"
        )));
    };
    let bare = endpoint.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(endpoint);
    let host = match bare.parse() {
        Ok(IpAddr::V4(address)) => address.to_string(),
        Ok(IpAddr::V6(address)) => format!("[{address}]"),
        Err(_) if is_name(bare) => bare.to_owned(),
        Err(_) => {
            return Err(Refusal::precondition(format!(
                "{ENDPOINT} {endpoint:?} of volume {handle} is neither an address nor a name: look at the \
                 NetworkFilesystem on the host"
            )));
        }
    };
    if export.chars().any(|one| one.is_control() || one.is_whitespace()) {
        return Err(Refusal::precondition(format!("{EXPORT} {export:?} of volume {handle} is no path")));
    }
    Ok(format!("{host}:/{}", export.trim_start_matches('/')))
}

fn is_name(text: &str) -> bool {
    text.len() <= 253
        && text.starts_with(|first: char| first.is_ascii_alphanumeric())
        && text.chars().all(|one| one.is_ascii_alphanumeric() || one == '-' || one == '.')
}

/// All options of the mount.
///
/// # Errors
/// INVALID_ARGUMENT for options of the host or of the class that lead elsewhere.
fn options(
    context: &HashMap<String, String>,
    of_class: &[String],
    read_only: bool,
) -> Result<String, Refusal> {
    let given = context.get(OPTIONS).map(|value| value.trim()).filter(|value| !value.is_empty());
    let options = options::of_export(given.unwrap_or(DEFAULT_OPTIONS), of_class);
    let mut options = options.map_err(|error| Refusal::invalid(error.to_string()))?;
    if read_only {
        options.push("ro".to_owned());
    }
    Ok(options.join(","))
}

/// What to do for an export at its staging path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Plan {
    Nothing,
    Mount,
    /// From where it was before the server moved.
    MountAnew,
}

/// `wanted` is `None` where the controller gave none: what is mounted then stays.
fn plan(present: Option<&Mount>, wanted: Option<&str>, is_used: bool) -> Result<Plan, Refusal> {
    let Some(mount) = present else { return Ok(Plan::Mount) };
    let source = mount.source.display().to_string();
    if !mount.file_system.starts_with("nfs") {
        return Err(Refusal::precondition(format!(
            "{source} is mounted at staging_target_path, which is no NFS export: unmount it by hand"
        )));
    }
    match wanted {
        Some(wanted) if wanted != source && is_used => Err(Refusal::precondition(format!(
            "the export has moved from {source} to {wanted}, and pods of this node use it where it was: end them first"
        ))),
        Some(wanted) if wanted != source => Ok(Plan::MountAnew),
        _ => Ok(Plan::Nothing),
    }
}

/// What `mount` says of a server that nothing leads to.
const OUT_OF_REACH: [&str; 4] = ["timed out", "No route to host", "Network is unreachable", "Host is down"];

/// With what to do, where the words of the failure are those of a machine that does not reach the server.
fn with_next_step(failed: Refusal) -> Refusal {
    let is_out_of_reach = failed.code == Code::DeadlineExceeded
        || OUT_OF_REACH.iter().any(|words| failed.message.contains(words));
    if !is_out_of_reach {
        return failed;
    }
    let next = "this machine does not reach the server: it needs an interface in Harvester's storage network, or in that of \
                Harvester's setting rwx-network (docs/storage.md, A volume for many nodes)";
    Refusal::new(failed.code, format!("{}; {next}", failed.message))
}

/// Mounts an export at its staging path.
///
/// # Errors
/// As [`source`], where something else is mounted there, and where the mount fails.
pub(crate) async fn stage(
    settings: &Settings,
    handle: &str,
    context: &HashMap<String, String>,
    of_class: &[String],
    read_only: bool,
    staging: &Path,
) -> Result<Mount, Refusal> {
    let wanted = source(context, handle);
    let all = mounts()?;
    let present = seen::at(&all, staging);
    let is_used = present.is_some_and(|mount| {
        disk::another(&settings.real_root(), &all, mount.device, &mount.root, &[staging]).is_some()
    });
    let plan = plan(present, wanted.as_deref().ok(), is_used)?;
    if plan != Plan::Nothing {
        let source = wanted?;
        if plan == Plan::MountAnew {
            unmount_all(staging).await?;
        }
        let options = options(context, of_class, read_only)?;
        let text = ["--net=/proc/1/ns/net", "--", "mount", "-t", "nfs", "-o", &options, "--", &source]
            .map(OsStr::new);
        let arguments: Vec<_> = text.into_iter().chain([staging.as_os_str()]).collect();
        let doing = format!("mount {source} at {}", staging.display());
        let mounted = tools::run(NSENTER, &arguments).await.and_then(|said| said.succeeded(&doing, NSENTER));
        mounted.map_err(with_next_step)?;
    }
    let mounted = seen::at(&mounts()?, staging).cloned();
    mounted.ok_or_else(|| {
        Refusal::new(Code::Internal, format!("the export is mounted and not seen at {}", staging.display()))
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::node::mounts::Number;

    fn context(endpoint: &str, export: &str) -> HashMap<String, String> {
        [(ENDPOINT, endpoint), (EXPORT, export)].map(|(key, value)| (key.to_owned(), value.to_owned())).into()
    }

    // docs/contract/csi-driver.md#nfs
    #[rstest]
    #[case("10.0.0.1", "pvc-1", "10.0.0.1:/pvc-1")]
    #[case("10.0.0.1", "/pvc-1", "10.0.0.1:/pvc-1")]
    #[case("fd00::1", "/pvc-1", "[fd00::1]:/pvc-1")]
    #[case("[fd00::1]", "/pvc-1", "[fd00::1]:/pvc-1")]
    #[case("share.longhorn", "/pvc-1", "share.longhorn:/pvc-1")]
    fn an_export_is_named_as_mount_takes_it(
        #[case] endpoint: &str,
        #[case] export: &str,
        #[case] expected: &str,
    ) {
        assert_eq!(source(&context(endpoint, export), "pvc-1").unwrap(), expected);
    }

    #[rstest]
    #[case("", "/pvc-1")]
    #[case("10.0.0.1", " ")]
    #[case("-o evil", "/pvc-1")]
    #[case("10.0.0.1:/other", "/pvc-1")]
    #[case("10.0.0.1", "/a b")]
    fn an_export_that_the_controller_does_not_give_is_refused(#[case] endpoint: &str, #[case] export: &str) {
        assert_eq!(source(&context(endpoint, export), "pvc-1").unwrap_err().code, Code::FailedPrecondition);
    }

    #[rstest]
    #[case(None, &[], false, "vers=4")]
    #[case(Some("vers=4.2,softerr"), &["noatime"], true, "vers=4.2,softerr,noatime,ro")]
    fn the_hosts_options_come_before_the_class(
        #[case] given: Option<&str>,
        #[case] of_class: &[&str],
        #[case] read_only: bool,
        #[case] expected: &str,
    ) {
        let context = given.map(|given| (OPTIONS.to_owned(), given.to_owned())).into_iter().collect();
        let of_class: Vec<_> = of_class.iter().map(|option| (*option).to_owned()).collect();
        assert_eq!(options(&context, &of_class, read_only).unwrap(), expected);
    }

    #[test]
    fn options_of_the_host_that_lead_elsewhere_are_refused_by_name() {
        let context = [(OPTIONS.to_owned(), "vers=4.2,addr=10.0.0.9".to_owned())].into();
        let refusal = options(&context, &[], false).unwrap_err();
        assert_eq!(refusal.code, Code::InvalidArgument);
        assert!(refusal.message.contains("\"addr\""), "{refusal}");
    }

    fn mount(file_system: &str) -> Mount {
        Mount {
            device: Number { major: 0, minor: 44 },
            root: "/".into(),
            target: "/staging".into(),
            options: vec![],
            file_system: file_system.to_owned(),
            source: "10.0.0.1:/pvc-1".into(),
            shared_options: vec![],
        }
    }

    // docs/contract/csi-driver.md#nfs
    #[rstest]
    #[case::new(None, "10.0.0.1:/pvc-1", false, Some(Plan::Mount))]
    #[case::called_again(Some("nfs4"), "10.0.0.1:/pvc-1", true, Some(Plan::Nothing))]
    #[case::moved(Some("nfs4"), "10.0.0.2:/pvc-1", false, Some(Plan::MountAnew))]
    #[case::moved_and_in_use(Some("nfs4"), "10.0.0.2:/pvc-1", true, None)]
    #[case::something_else(Some("ext4"), "10.0.0.1:/pvc-1", false, None)]
    fn an_export_is_mounted_once_and_anew_where_its_server_moved(
        #[case] present: Option<&str>,
        #[case] wanted: &str,
        #[case] is_used: bool,
        #[case] expected: Option<Plan>,
    ) {
        let present = present.map(mount);
        assert_eq!(plan(present.as_ref(), Some(wanted), is_used).ok(), expected);
    }

    #[rstest]
    #[case(Code::Internal, "exit status 32: mount.nfs: Connection timed out for 10.0.0.1:/pvc-1", true)]
    #[case(
        Code::Internal,
        "exit status 32: mount.nfs: No route to host for 10.0.0.1:/pvc-1 on /staging",
        true
    )]
    #[case(Code::DeadlineExceeded, "nsenter has not ended after 100s", true)]
    #[case(
        Code::Internal,
        "exit status 32: mount.nfs: access denied by server while mounting 10.0.0.1:/pvc-1",
        false
    )]
    #[case(Code::FailedPrecondition, "run nsenter: No such file or directory", false)]
    fn a_server_that_the_machine_does_not_reach_names_the_interface_that_it_needs(
        #[case] code: Code,
        #[case] said: &str,
        #[case] expected: bool,
    ) {
        let refusal = with_next_step(Refusal::new(code, said));
        assert!(refusal.code == code && refusal.message.starts_with(said), "{refusal}");
        assert_eq!(
            refusal.message.contains("an interface in Harvester's storage network"),
            expected,
            "{refusal}"
        );
    }

    #[test]
    fn an_export_that_the_go_driver_mounted_needs_no_context() {
        assert_eq!(plan(Some(&mount("nfs4")), None, true), Ok(Plan::Nothing));
    }
}
