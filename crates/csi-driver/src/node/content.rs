//! What is on a disk, as `blkid` and the first bytes of the disk say. Pure.
//!
//! A disk is formatted only where both find nothing (docs/contract/csi-driver.md#format).

use super::tools::Output;

/// As many bytes of a disk as [`of`] needs.
pub(crate) const HEAD: usize = 4096;

/// A file system that the driver makes. The kernel's ext4 mounts what its predecessors wrote, so they count as ext4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileSystem {
    Ext4,
    Xfs,
}

impl FileSystem {
    /// By the name in a volume's capability. CSI leaves the choice to the driver where there is none: ext4, as with the
    /// Go driver.
    pub(crate) fn named(name: Option<&str>) -> Option<Self> {
        match name {
            None => Some(Self::Ext4),
            Some(name) => Self::seen(name),
        }
    }

    /// Whether the driver makes one of this name. Of ext2 and ext3 it mounts what the Go driver has made: that one mounts
    /// by the name, and could not mount an ext4 by it.
    pub(crate) fn is_made(name: Option<&str>) -> bool {
        !matches!(name, Some("ext2" | "ext3"))
    }

    /// By the name that `blkid` or the kernel give.
    pub(crate) fn seen(name: &str) -> Option<Self> {
        match name {
            "ext2" | "ext3" | "ext4" => Some(Self::Ext4),
            "xfs" => Some(Self::Xfs),
            _ => None,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
        }
    }
}

/// What is on a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// No signature of anything.
    Blank,
    /// `mkfs.xfs` was ended before it was done: it sets a mark at its start, which no file system in use has.
    Unfinished,
    /// A file system, and its size where its first bytes tell it.
    FileSystem(FileSystem, Option<u64>),
    /// Anything else, in words: "LVM2_member".
    Other(String),
}

/// What `blkid -p -o export` and the first bytes of the disk say.
///
/// # Errors
/// The failure of `blkid`, in its words.
pub(crate) fn of(blkid: &Output, head: &[u8]) -> Result<Content, String> {
    let value = |key: &str| {
        let mut pairs = blkid.stdout.lines().filter_map(|line| line.split_once('='));
        pairs.find_map(|(name, value)| (name == key).then_some(value)).filter(|value| !value.is_empty())
    };
    match blkid.code {
        // nothing found, or the disk unreadable: the caller has read the head
        Some(2) if magic(head).is_none() => Ok(Content::Blank),
        Some(0) => Ok(match (value("TYPE"), value("PTTYPE")) {
            (Some("xfs"), _) if is_unfinished_xfs(head) => Content::Unfinished,
            (Some(name), _) => match FileSystem::seen(name) {
                Some(kind) => Content::FileSystem(kind, size(kind, head)),
                None => Content::Other(name.to_owned()),
            },
            (None, Some(table)) => Content::Other(format!("a partition table ({table})")),
            (None, None) => Content::Other("a signature that blkid does not name".to_owned()),
        }),
        Some(2) => {
            Ok(Content::Other("the beginning of a file system that blkid does not recognise".to_owned()))
        }
        Some(8) => Ok(Content::Other("signatures of several kinds".to_owned())),
        _ => Err(blkid.said()),
    }
}

fn magic(head: &[u8]) -> Option<FileSystem> {
    if head.starts_with(b"XFSB") {
        Some(FileSystem::Xfs)
    } else if head.get(1024 + 56..1024 + 58) == Some(&[0x53, 0xef]) {
        Some(FileSystem::Ext4)
    } else {
        None
    }
}

/// `sb_inprogress` of the superblock.
fn is_unfinished_xfs(head: &[u8]) -> bool {
    magic(head) == Some(FileSystem::Xfs) && head.get(126).is_some_and(|byte| *byte != 0)
}

/// The bytes of a file system, from its superblock.
pub(crate) fn size(kind: FileSystem, head: &[u8]) -> Option<u64> {
    if magic(head) != Some(kind) {
        return None;
    }
    let little = |at: usize| Some(u32::from_le_bytes(head.get(at..at + 4)?.try_into().ok()?));
    match kind {
        FileSystem::Ext4 => {
            const HAS_HIGH_BITS: u32 = 0x80;
            let superblock = 1024;
            let block = 1024_u64.checked_shl(little(superblock + 0x18)?)?;
            let high =
                if little(superblock + 0x60)? & HAS_HIGH_BITS == 0 { 0 } else { little(superblock + 0x150)? };
            (u64::from(high) << 32 | u64::from(little(superblock + 4)?)).checked_mul(block)
        }
        FileSystem::Xfs => {
            let block = u32::from_be_bytes(head.get(4..8)?.try_into().ok()?);
            u64::from_be_bytes(head.get(8..16)?.try_into().ok()?).checked_mul(u64::from(block))
        }
    }
}

/// Whether an ext4 was mounted in another machine since the kernel mounted it here, by its first bytes as the kernel holds
/// them and as they are on the disk. Each mount that may write is counted and dated on the disk at once, and comes before a
/// growth; the kernel's own growth is on the disk only half a minute later.
pub(crate) fn was_elsewhere(held: &[u8], on_disk: &[u8]) -> bool {
    const SUPERBLOCK: usize = 1024;
    let (mounted_at, mounts, id) = (0x2c..0x30, 0x34..0x36, 0x68..0x78);
    [mounted_at, mounts, id].into_iter().any(|field| {
        let field = SUPERBLOCK + field.start..SUPERBLOCK + field.end;
        held.get(field.clone()) != on_disk.get(field)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    fn blkid(code: i32, stdout: &str) -> Output {
        Output { code: Some(code), stdout: stdout.to_owned(), ..Output::default() }
    }

    fn ext4() -> Vec<u8> {
        let mut head = vec![0; HEAD];
        head[1024 + 56..1024 + 58].copy_from_slice(&[0x53, 0xef]);
        head[1024 + 4..1024 + 8].copy_from_slice(&1000_u32.to_le_bytes());
        head[1024 + 0x18..1024 + 0x1c].copy_from_slice(&2_u32.to_le_bytes());
        head
    }

    fn xfs(in_progress: u8) -> Vec<u8> {
        let mut head = vec![0; HEAD];
        head[..4].copy_from_slice(b"XFSB");
        head[4..8].copy_from_slice(&4096_u32.to_be_bytes());
        head[8..16].copy_from_slice(&1000_u64.to_be_bytes());
        head[126] = in_progress;
        head
    }

    #[rstest]
    #[case::nothing(blkid(2, ""), vec![0; HEAD], Content::Blank)]
    #[case::what_a_raw_volume_had(blkid(2, ""), vec![7; HEAD], Content::Blank)]
    #[case::blkid_cannot_read_it(blkid(2, ""), ext4(),
        Content::Other("the beginning of a file system that blkid does not recognise".to_owned()))]
    #[case(
        blkid(0, "DEVNAME=/dev/sdb\nTYPE=ext4\n"),
        ext4(),
        Content::FileSystem(FileSystem::Ext4, Some(4_096_000))
    )]
    #[case::older(blkid(0, "TYPE=ext3\n"), ext4(), Content::FileSystem(FileSystem::Ext4, Some(4_096_000)))]
    #[case(blkid(0, "TYPE=xfs\n"), xfs(0), Content::FileSystem(FileSystem::Xfs, Some(4_096_000)))]
    #[case::killed_mkfs(blkid(0, "TYPE=xfs\n"), xfs(1), Content::Unfinished)]
    #[case(blkid(0, "TYPE=crypto_LUKS\n"), vec![0; HEAD], Content::Other("crypto_LUKS".to_owned()))]
    #[case(blkid(0, "TYPE=LVM2_member\nPTTYPE=dos"), vec![0; HEAD], Content::Other("LVM2_member".to_owned()))]
    #[case(blkid(0, "PTTYPE=gpt\n"), vec![0; HEAD], Content::Other("a partition table (gpt)".to_owned()))]
    #[case(blkid(0, "DEVNAME=/dev/sdb\nTYPE=\n"), vec![0; HEAD],
        Content::Other("a signature that blkid does not name".to_owned()))]
    #[case::several(blkid(8, ""), vec![0; HEAD], Content::Other("signatures of several kinds".to_owned()))]
    fn only_a_disk_without_any_signature_is_blank(
        #[case] blkid: Output,
        #[case] head: Vec<u8>,
        #[case] expected: Content,
    ) {
        assert_eq!(of(&blkid, &head), Ok(expected));
    }

    #[rstest]
    #[case(blkid(4, ""))]
    #[case(Output::default())]
    fn a_failed_probe_says_nothing_about_a_disk(#[case] blkid: Output) {
        assert!(of(&blkid, &[0; HEAD]).is_err());
    }

    #[test]
    fn a_size_has_its_high_bits_where_the_file_system_has_them() {
        let mut head = ext4();
        head[1024 + 0x150] = 1;
        assert_eq!(size(FileSystem::Ext4, &head), Some(4_096_000));
        head[1024 + 0x60] = 0x80;
        assert_eq!(size(FileSystem::Ext4, &head), Some(4_096_000 + (4096 << 32)));
    }

    #[rstest]
    #[case::mounted_at(0x2c, true)]
    #[case::mounted_at(0x2f, true)]
    #[case::mounts(0x34, true)]
    #[case::made_anew(0x68, true)]
    #[case::made_anew(0x77, true)]
    // the kernel writes these later than it changes them
    #[case::grown(4, false)]
    #[case::free_blocks(0x0c, false)]
    #[case::written_at(0x30, false)]
    #[case::orphans(0xe8, false)]
    fn a_mount_elsewhere_is_seen_by_what_the_kernel_writes_at_once(
        #[case] at: usize,
        #[case] expected: bool,
    ) {
        let mut on_disk = ext4();
        assert!(!was_elsewhere(&ext4(), &on_disk));
        on_disk[1024 + at] += 1;
        assert_eq!(was_elsewhere(&ext4(), &on_disk), expected);
        assert!(was_elsewhere(&ext4(), &[]));
    }

    #[rstest]
    #[case(None, Some(FileSystem::Ext4), true)]
    #[case(Some("ext4"), Some(FileSystem::Ext4), true)]
    #[case(Some("xfs"), Some(FileSystem::Xfs), true)]
    #[case(Some("ext3"), Some(FileSystem::Ext4), false)]
    #[case(Some("ext2"), Some(FileSystem::Ext4), false)]
    #[case(Some("btrfs"), None, true)]
    #[case(Some("../ext4"), None, true)]
    fn two_file_systems_are_made_and_predecessors_of_ext4_mounted(
        #[case] name: Option<&str>,
        #[case] expected: Option<FileSystem>,
        #[case] is_made: bool,
    ) {
        assert_eq!((FileSystem::named(name), FileSystem::is_made(name)), (expected, is_made));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_bytes_are_read_without_a_panic(
            mut head in prop::collection::vec(any::<u8>(), 0..HEAD),
            which in any::<bool>(),
        ) {
            let template = if which { ext4() } else { xfs(0) };
            for (byte, kept) in head.iter_mut().zip(template) {
                *byte = if kept == 0 { *byte } else { kept };
            }
            size(FileSystem::Ext4, &head);
            size(FileSystem::Xfs, &head);
        }
    }
}
