//! What is mounted where, as `/proc/self/mountinfo` says. A comparison of device numbers would miss bind mounts.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// The folder of the file system that is mounted, `/` for all of it. For a device that is mounted on a file: its
    /// path in the file system of devices.
    pub root: PathBuf,
    pub target: PathBuf,
    pub read_only: bool,
    /// Such as `ext4`.
    pub file_system: String,
    /// Such as `/dev/sdb`, or `10.0.0.1:/export`.
    pub source: PathBuf,
}

/// All mounts, in their order: of two at one target the later one is seen. Lines that are none are passed over.
pub fn parse(mountinfo: &[u8]) -> Vec<Mount> {
    mountinfo.split(|byte| *byte == b'\n').filter_map(line).collect()
}

/// The mount that is seen at `target`, which has to be a path without links.
pub fn at<'a>(mounts: &'a [Mount], target: &Path) -> Option<&'a Mount> {
    mounts.iter().rev().find(|mount| mount.target == target)
}

/// `36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue`: any number of fields may stand
/// before the dash.
fn line(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|byte| *byte == b' ');
    let (root, target, options) = (fields.nth(3)?, fields.next()?, fields.next()?);
    let mut fields = fields.skip_while(|field| *field != b"-").skip(1);
    let (file_system, source) = (fields.next()?, fields.next()?);
    Some(Mount {
        root: path(root),
        target: path(target),
        read_only: options.split(|byte| *byte == b',').any(|option| option == b"ro"),
        file_system: String::from_utf8_lossy(file_system).into_owned(),
        source: path(source),
    })
}

/// Space, tab, line feed and backslash are written in octal, as `\040`.
fn path(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, after @ ..] = rest {
        let escaped = match rest {
            [b'\\', high @ b'0'..=b'3', middle @ b'0'..=b'7', low @ b'0'..=b'7', ..] => {
                Some((high - b'0') << 6 | (middle - b'0') << 3 | (low - b'0'))
            }
            _ => None,
        };
        bytes.push(escaped.unwrap_or(*first));
        rest = if escaped.is_some() { &rest[4..] } else { after };
    }
    OsString::from_vec(bytes).into()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MOUNTINFO: &[u8] = br"22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw,errors=remount-ro
36 22 8:16 / /var/lib/kubelet/pods/1/volumes/a\040b ro,noatime master:1 propagate_from:2 - xfs /dev/sdb ro,attr2
37 22 0:5 /sdc /var/lib/kubelet/dev rw - devtmpfs udev rw
38 22 0:44 / /mnt rw - nfs4 10.0.0.1:/pvc-1 rw,vers=4.2
39 22 8:32 / /mnt rw - ext4 /dev/sdd rw
nonsense
";

    #[test]
    fn a_mount_is_read_with_its_spaces_and_optional_fields() {
        let mounts = parse(MOUNTINFO);
        assert_eq!(mounts.len(), 5);
        let target = Path::new("/var/lib/kubelet/pods/1/volumes/a b");
        let expected = Mount {
            root: "/".into(),
            target: target.to_owned(),
            read_only: true,
            file_system: "xfs".to_owned(),
            source: "/dev/sdb".into(),
        };
        assert_eq!(at(&mounts, target), Some(&expected));
        assert!(!at(&mounts, Path::new("/")).unwrap().read_only);
        assert_eq!(at(&mounts, Path::new("/var/lib/kubelet/dev")).unwrap().root, Path::new("/sdc"));
        assert_eq!(at(&mounts, Path::new("/var/lib/kubelet/pods/1")), None);
    }

    #[test]
    fn of_two_mounts_at_one_place_the_later_one_is_seen() {
        assert_eq!(at(&parse(MOUNTINFO), Path::new("/mnt")).unwrap().file_system, "ext4");
    }

    #[test]
    fn escapes_are_octal_and_anything_else_is_what_it_is() {
        assert_eq!(path(br"a\040\011\012\134b\9\04"), Path::new("a \t\n\\b\\9\\04"));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            parse(&bytes);
            path(&bytes);
        }
    }
}
