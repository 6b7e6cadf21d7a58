//! The options with which a volume is mounted, from the guest's class and from the host's export. Pure.
//!
//! The node service is root on the machine, and a class may be written by people who are not: an option says how the
//! volume is mounted, and never what is mounted, where, or what else the machine does.

use super::access::Reach;

/// CSI 1.12 on `mount_flags`.
const BYTES_MAX: usize = 4 << 10;
/// Of an option's name, in a sentence.
const SHOWN: usize = 64;
/// The options whose value may be quoted: a label of SELinux has commas. Kubelet sends the first.
const QUOTED: [&str; 4] = ["context", "fscontext", "defcontext", "rootcontext"];
/// Options that make `mount` do something else than to mount a disk or an export at a path.
const OTHER_OPERATIONS: [&str; 17] = [
    "bind",
    "rbind",
    "move",
    "remount",
    "loop",
    "offset",
    "sizelimit",
    "shared",
    "rshared",
    "slave",
    "rslave",
    "private",
    "rprivate",
    "unbindable",
    "runbindable",
    "helper",
    "uhelper",
];
/// Options that are for the machine's own table of mounts.
const OF_THE_MACHINE: [&str; 12] = [
    "_netdev", "auto", "noauto", "nofail", "user", "nouser", "users", "owner", "noowner", "group", "nogroup",
    "comment",
];
/// Options that `mount` passes over: classes of the Go driver, which hands all to it, and their volumes have them.
const PASSED_OVER: [&str; 4] = ["_netdev", "auto", "noauto", "nofail"];
/// Options by which a file system takes a second disk, or another than the volume's.
const OTHER_DISKS: [&str; 5] = ["source", "journal_dev", "journal_path", "logdev", "rtdev"];
/// Options by which NFS goes to another server than the host's, or to another program of it.
const OTHER_SERVERS: [&str; 7] =
    ["addr", "clientaddr", "mountaddr", "mounthost", "mountport", "mountprog", "nfsprog"];
/// NFS's port. Which one is right, the export says.
const PORT: &str = "port";
/// The port of an export that names none.
const NFS_PORT: &str = "2049";

/// Why options are refused. CSI's code is INVALID_ARGUMENT.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionError {
    #[error("the mount options are longer than {BYTES_MAX} bytes: send fewer")]
    TooLong,
    #[error("a mount option is empty, or has a control character, a backslash or a quote: look at the class")]
    NoOption,
    #[error(
        "the mount option {name:?} {why}: remove it from mountOptions of the PersistentVolume and of its class, which \
         each have their own"
    )]
    Refused { name: String, why: &'static str },
}

/// The options of a class, each by itself.
///
/// # Errors
/// For what is no option, and for one that does not say how the volume is mounted.
pub fn of_class(flags: &[String], reach: Reach) -> Result<Vec<String>, OptionError> {
    if flags.iter().map(String::len).sum::<usize>() > BYTES_MAX {
        return Err(OptionError::TooLong);
    }
    let mut all = vec![];
    for flag in flags {
        for option in split(flag)?.into_iter().filter(|option| !PASSED_OVER.contains(&option.as_str())) {
            judge(&option, reach)?;
            all.push(option);
        }
    }
    Ok(all)
}

/// The options of a host's export, with those of the class for it.
///
/// # Errors
/// As [`of_class`], and for a class that names another port than the export's.
pub fn of_export(host: &str, class: &[String]) -> Result<Vec<String>, OptionError> {
    let mut all = of_class(&[host.to_owned()], Reach::Export)?;
    let port = all.iter().find_map(|option| value(option, PORT)).unwrap_or(NFS_PORT).to_owned();
    let other = class.iter().any(|option| value(option, PORT).is_some_and(|asked| asked != port));
    if other {
        return Err(refused(PORT, "is not the port of the host's export"));
    }
    all.extend_from_slice(class);
    Ok(all)
}

fn value<'a>(option: &'a str, name: &str) -> Option<&'a str> {
    option.split_once('=').filter(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value)
}

/// The options in one text, as `mount` splits it: a comma in quotes is part of a value.
fn split(text: &str) -> Result<Vec<String>, OptionError> {
    if text.chars().any(|one| one.is_control() || one == '\\') {
        return Err(OptionError::NoOption);
    }
    let mut is_quoted = false;
    let parts = text.split(|one| {
        is_quoted ^= one == '"';
        one == ',' && !is_quoted
    });
    let parts: Vec<_> = parts.map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned).collect();
    let is_wrong = |option: &String| {
        let name = option.split('=').next().unwrap_or_default();
        option.contains('"') && !QUOTED.contains(&name)
    };
    if is_quoted || parts.is_empty() || parts.iter().any(is_wrong) {
        return Err(OptionError::NoOption);
    }
    Ok(parts)
}

/// Programs and file systems differ in how they read quotes, so what one of them may take for an option is judged as one.
fn judge(text: &str, reach: Reach) -> Result<(), OptionError> {
    for part in text.split(',') {
        let (name, value) = part.split_once('=').unwrap_or((part, ""));
        let bare = |text: &str| {
            text.trim_matches(|one: char| one == '"' || one.is_whitespace()).to_ascii_lowercase()
        };
        let name = bare(name);
        let is_of = |names: &[&str]| names.contains(&name.as_str());
        let why = if is_of(&OTHER_OPERATIONS) || name.starts_with("verity.") {
            "does something else than to mount the volume"
        } else if is_of(&OF_THE_MACHINE) || name.starts_with("x-") {
            "is for the machine's own table of mounts"
        } else if name == "errors" && bare(value) == "panic" {
            "lets a fault of the volume end the whole node"
        } else if is_of(&OTHER_DISKS) {
            "names another disk than the volume's"
        } else if reach == Reach::Export && name == "bg" {
            "lets mount end before the volume is mounted"
        } else if reach == Reach::Export && is_of(&OTHER_SERVERS) {
            "leads to another server than the host's"
        } else {
            continue;
        };
        return Err(refused(&name, why));
    }
    Ok(())
}

fn refused(name: &str, why: &'static str) -> OptionError {
    OptionError::Refused { name: name.chars().take(SHOWN).collect(), why }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    fn owned(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    const LABEL: &str = "context=\"system_u:object_r:container_file_t:s0:c1,c2\"";

    #[rstest]
    #[case::one_by_one(&["noatime", "ro"], &["noatime", "ro"])]
    #[case::joined(&["noatime, ro,,discard"], &["noatime", "ro", "discard"])]
    #[case::a_label_of_selinux(&["noatime", LABEL], &["noatime", LABEL])]
    #[case::a_label_among_others(&["ro,context=\"u:r:t:s0:c1,c2\",noatime"], &["ro", "context=\"u:r:t:s0:c1,c2\"", "noatime"])]
    #[case::none(&[], &[])]
    fn options_that_are_joined_in_one_flag_are_each_an_option(
        #[case] flags: &[&str],
        #[case] expected: &[&str],
    ) {
        for reach in [Reach::Disk, Reach::Export] {
            assert_eq!(of_class(&owned(flags), reach), Ok(owned(expected)));
        }
    }

    #[rstest]
    #[case("remount", "remount")]
    #[case("noatime,bind", "bind")]
    #[case("noatime, rbind", "rbind")]
    #[case("rprivate", "rprivate")]
    #[case("loop=/dev/loop0", "loop")]
    #[case("X-mount.mkdir", "x-mount.mkdir")]
    #[case("x-systemd.automount", "x-systemd.automount")]
    #[case("ro,nofail=1", "nofail")]
    #[case::passed_over_in_quotes("context=\"a,_netdev,b\"", "_netdev")]
    #[case("ro,errors=panic", "errors")]
    #[case("Errors=PANIC", "errors")]
    #[case("user=root", "user")]
    #[case("logdev=/dev/vda", "logdev")]
    #[case("journal_path=/dev/vda", "journal_path")]
    #[case("verity.hashdevice=/dev/vda", "verity.hashdevice")]
    #[case::hidden_in_quotes("context=\"a,remount,b\"", "remount")]
    fn an_option_that_does_more_than_to_mount_the_volume_is_refused_by_name(
        #[case] flag: &str,
        #[case] expected: &str,
    ) {
        for reach in [Reach::Disk, Reach::Export] {
            match of_class(&owned(&["noatime", flag]), reach) {
                Err(OptionError::Refused { name, .. }) => assert_eq!(name, expected),
                other => panic!("{flag}: {other:?}"),
            }
        }
    }

    // docs/contract/csi-driver.md#go-mounts: volumes of the Go driver go on working
    #[rstest]
    #[case(&["nofail"], &[])]
    #[case(&["noatime", "nofail,_netdev"], &["noatime"])]
    #[case(&["auto,ro", "noauto"], &["ro"])]
    fn an_option_that_mount_passes_over_keeps_no_volume_of_the_go_driver_out(
        #[case] flags: &[&str],
        #[case] expected: &[&str],
    ) {
        for reach in [Reach::Disk, Reach::Export] {
            assert_eq!(of_class(&owned(flags), reach), Ok(owned(expected)));
        }
    }

    #[rstest]
    #[case("bg")]
    #[case("addr=10.0.0.9")]
    #[case("clientaddr=10.0.0.9")]
    #[case("soft,mountaddr=10.0.0.9")]
    fn nfs_waits_for_the_hosts_server_and_goes_to_no_other(#[case] flag: &str) {
        assert!(of_class(&owned(&[flag]), Reach::Disk).is_ok());
        assert!(matches!(of_class(&owned(&[flag]), Reach::Export), Err(OptionError::Refused { .. })));
        assert!(matches!(of_export(flag, &[]), Err(OptionError::Refused { .. })));
    }

    #[rstest]
    #[case("vers=4", &["port=2049"], true)]
    #[case("vers=4", &["port=22"], false)]
    #[case("vers=4,port=3049", &["port=3049"], true)]
    #[case("vers=4,port=3049", &["port=2049"], false)]
    #[case("vers=4,port=3049", &["hard"], true)]
    fn a_class_names_no_other_port_than_the_exports(
        #[case] host: &str,
        #[case] class: &[&str],
        #[case] expected: bool,
    ) {
        assert_eq!(of_export(host, &owned(class)).is_ok(), expected);
    }

    #[rstest]
    #[case("")]
    #[case(" , ")]
    #[case("a\0b")]
    #[case("a\nb")]
    #[case("a\\,bind")]
    #[case::quotes_that_do_not_end("context=\"a,b")]
    #[case::quotes_elsewhere("data=\"a,b\"")]
    fn what_is_no_option_is_refused(#[case] flag: &str) {
        assert_eq!(of_class(&owned(&[flag]), Reach::Disk), Err(OptionError::NoOption));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn no_part_of_what_is_accepted_is_another_operation(flags in prop::collection::vec("(remount|bind|ro|context=|\"|,| |\\\\|=|a){0,6}", 0..4)) {
            if let Ok(options) = of_class(&flags, Reach::Disk) {
                let joined = options.join(",");
                let words = joined.split(',').map(|part| {
                    part.split('=').next().unwrap_or_default().replace(['"', ' '], "")
                });
                prop_assert!({ words }.all(|word| word != "remount" && word != "bind"), "{joined}");
            }
        }
    }
}
