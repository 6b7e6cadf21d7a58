//! What is mounted where, as `/proc/self/mountinfo` says. A comparison of device numbers would miss bind mounts.

use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

/// The number of a device, as in `8:16`. Of a file system without a device, such as NFS: the number that the kernel
/// made up for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Number {
    pub major: u32,
    pub minor: u32,
}

impl Number {
    /// Of a text as `8:16`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (major, minor) = text.split_once(':')?;
        Some(Self { major: major.parse().ok()?, minor: minor.parse().ok()? })
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
}

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// The device of the file system.
    pub device: Number,
    /// The folder of the file system that is mounted, `/` for all of it. For a device that is mounted on a file: its
    /// path in the file system of devices.
    pub root: PathBuf,
    pub target: PathBuf,
    /// The options of this mount alone, such as `ro`.
    pub options: Vec<String>,
    /// Such as `ext4`.
    pub file_system: String,
    /// Such as `/dev/sdb`, or `10.0.0.1:/export`.
    pub source: PathBuf,
    /// The options of the file system, which all of its mounts share.
    pub shared_options: Vec<String>,
}

impl Mount {
    /// Whether nothing can be written through this mount.
    pub fn is_read_only(&self) -> bool {
        self.has("ro") || self.shared_options.iter().any(|option| option == "ro")
    }

    /// Whether this mount has the option itself.
    pub fn has(&self, option: &str) -> bool {
        self.options.iter().any(|other| other == option)
    }
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
    let device = number(fields.nth(2)?)?;
    let (root, target, options) = (fields.next()?, fields.next()?, fields.next()?);
    let mut fields = fields.skip_while(|field| *field != b"-").skip(1);
    let (file_system, source) = (fields.next()?, fields.next()?);
    Some(Mount {
        device,
        root: path(root),
        target: path(target),
        options: comma_separated(options),
        file_system: String::from_utf8_lossy(file_system).into_owned(),
        source: path(source),
        shared_options: fields.next().map(comma_separated).unwrap_or_default(),
    })
}

fn number(field: &[u8]) -> Option<Number> {
    Number::parse(std::str::from_utf8(field).ok()?)
}

fn comma_separated(field: &[u8]) -> Vec<String> {
    String::from_utf8_lossy(field).split(',').map(str::to_owned).collect()
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
            device: Number { major: 8, minor: 16 },
            root: "/".into(),
            target: target.to_owned(),
            options: vec!["ro".to_owned(), "noatime".to_owned()],
            file_system: "xfs".to_owned(),
            source: "/dev/sdb".into(),
            shared_options: vec!["ro".to_owned(), "attr2".to_owned()],
        };
        assert_eq!(at(&mounts, target), Some(&expected));
        assert!(expected.is_read_only());
        assert!(!at(&mounts, Path::new("/")).unwrap().is_read_only());
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
