//! The disk of a volume in a machine, by the identifier that the host gave it.
//!
//! KubeVirt calls the disk of a volume `ua-<handle>`, and QEMU shows `drive-ua-<handle>` in page 0x83 of the disk's vital
//! product data, whole. udev makes the link `/dev/disk/by-id/scsi-0QEMU_QEMU_HARDDISK_drive-ua-<handle>` of it. A serial
//! number is no identifier: QEMU cuts it (docs/contract/csi-driver.md#device).

use std::path::Path;

/// Stands before the handle in the identifier.
const PREFIX: &str = "drive-ua-";
/// The page of identifiers.
const DEVICE_IDENTIFICATION: u8 = 0x83;
/// Of a designator: its text is ASCII, and it is of the disk, not of a port.
const ASCII: u8 = 2;
const OF_THE_DISK: u8 = 0;

/// Whether a link in `/dev/disk/by-id` with this name leads to the volume's disk.
///
/// The link of a disk's partition ends in `-part1`, and so may a handle: only what the link leads to shows which it is.
pub fn is_link_of(name: &str, handle: &str) -> bool {
    let id = name.strip_suffix(handle).and_then(|rest| rest.strip_suffix(PREFIX));
    // of "x-drive-ua-a" and "drive-ua-x-drive-ua-a" both end alike: what the bus and vendor say ends in "_" or is absent
    id.is_some_and(|rest| rest.is_empty() || rest.ends_with('_'))
}

/// Whether page 0x83 of a disk, as `/sys/block/*/device/vpd_pg83` has it, names the volume. Bytes that are no such page
/// name none.
pub fn is_page_of(page: &[u8], handle: &str) -> bool {
    designators(page).any(|text| text.strip_prefix(PREFIX) == Some(handle))
}

/// Whether a disk with this way below `/sys/devices` is one of the machine's own virtio controllers, as KubeVirt makes them,
/// and of no session with a server. A loop device is a disk of nobody else, and stands for one in tests.
pub fn is_way_to_hot_plugged(way: &Path) -> bool {
    let parts = || way.iter().filter_map(|part| part.to_str());
    let numbered = |part: &str, kind: &str| {
        part.strip_prefix(kind)
            .is_some_and(|rest| rest.bytes().next().is_some_and(|byte| byte.is_ascii_digit()))
    };
    !parts().any(|part| numbered(part, "session"))
        && parts().any(|part| numbered(part, "virtio") || numbered(part, "loop"))
}

/// The ASCII identifiers of a disk.
fn designators(page: &[u8]) -> impl Iterator<Item = &str> {
    let body = match page {
        [_, DEVICE_IDENTIFICATION, high, low, body @ ..] => {
            let length = usize::from(u16::from_be_bytes([*high, *low]));
            body.get(..length).unwrap_or(body)
        }
        _ => &[],
    };
    let mut rest = body;
    std::iter::from_fn(move || {
        let [code_set, kind, _, length, after @ ..] = rest else { return None };
        let (text, next) = after.split_at_checked(usize::from(*length))?;
        rest = next;
        let is_ours = code_set & 0x0f == ASCII && (kind >> 4) & 0x03 == OF_THE_DISK;
        Some(is_ours.then(|| std::str::from_utf8(text).ok()).flatten())
    })
    .flatten()
    .map(|text| text.trim_matches(['\0', ' ']))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("scsi-0QEMU_QEMU_HARDDISK_drive-ua-pvc-1", "pvc-1", true)]
    #[case("drive-ua-pvc-1", "pvc-1", true)]
    #[case::partition("scsi-0QEMU_QEMU_HARDDISK_drive-ua-pvc-1-part1", "pvc-1", false)]
    #[case::longer_handle("scsi-0QEMU_QEMU_HARDDISK_drive-ua-pvc-11", "pvc-1", false)]
    #[case::another_that_ends_alike("scsi-0QEMU_QEMU_HARDDISK_drive-ua-x-pvc-1", "pvc-1", false)]
    #[case::another_that_has_the_prefix("scsi-0QEMU_QEMU_HARDDISK_drive-ua-x-drive-ua-pvc-1", "pvc-1", false)]
    #[case::serial("virtio-pvc-6f0b2c9e-9f0e-4", "pvc-6f0b2c9e-9f0e-4a6e", false)]
    fn a_link_is_a_volumes_by_the_whole_identifier(
        #[case] name: &str,
        #[case] handle: &str,
        #[case] expected: bool,
    ) {
        assert_eq!(is_link_of(name, handle), expected);
    }

    #[rstest]
    #[case::virtio_scsi(
        "pci0000:00/0000:00:02.5/0000:06:00.0/virtio3/host0/target0:0:0/0:0:0:1/block/sda",
        true
    )]
    #[case::virtio_of_s390x("css0/0.0.0005/0.0.0003/virtio2/host0/target0:0:0/0:0:0:1/block/sda", true)]
    #[case::loop_device("virtual/block/loop3", true)]
    #[case::iscsi("platform/host7/session1/target7:0:0/7:0:0:1/block/sdb", false)]
    #[case::iscsi_of_a_card(
        "pci0000:00/0000:00:09.0/virtio9/host7/session1/target7:0:0/7:0:0:1/block/sdb",
        false
    )]
    #[case::nvme_over_fabrics("virtual/nvme-fabrics/ctl/nvme0/nvme0n1", false)]
    #[case::usb("pci0000:00/0000:00:14.0/usb1/1-1/1-1:1.0/host8/target8:0:0/8:0:0:0/block/sdc", false)]
    #[case::another_word("platform/virtio-mmio/sessions/block/sda", false)]
    fn a_disk_behind_a_server_is_no_volume_whatever_it_calls_itself(
        #[case] way: &str,
        #[case] expected: bool,
    ) {
        assert_eq!(is_way_to_hot_plugged(Path::new(way)), expected);
    }

    /// A page with these designators: code set, kind, bytes.
    fn page(designators: &[(u8, u8, &[u8])]) -> Vec<u8> {
        let body: Vec<u8> = designators
            .iter()
            .flat_map(|(code_set, kind, bytes)| {
                [&[*code_set, *kind, 0, u8::try_from(bytes.len()).unwrap()], *bytes].concat()
            })
            .collect();
        let length = u16::try_from(body.len()).unwrap().to_be_bytes();
        [&[0, DEVICE_IDENTIFICATION, length[0], length[1]], &body[..]].concat()
    }

    #[rstest]
    #[case::qemu(page(&[(2, 0, b"drive-ua-pvc-1")]), true)]
    #[case::after_another(page(&[(1, 3, &[0x50; 8]), (2, 0, b"drive-ua-pvc-1")]), true)]
    #[case::padded(page(&[(2, 0, b"drive-ua-pvc-1 \0\0")]), true)]
    #[case::longer(page(&[(2, 0, b"drive-ua-pvc-11")]), false)]
    #[case::binary(page(&[(1, 0, b"drive-ua-pvc-1")]), false)]
    #[case::of_a_port(page(&[(2, 0x10, b"drive-ua-pvc-1")]), false)]
    #[case::another_page([&[0, 0x80, 0, 14], &b"drive-ua-pvc-1"[..]].concat(), false)]
    #[case::cut_off(page(&[(2, 0, b"drive-ua-pvc-1")])[..12].to_vec(), false)]
    #[case::empty(vec![], false)]
    fn page_83_names_the_volume(#[case] page: Vec<u8>, #[case] expected: bool) {
        assert_eq!(is_page_of(&page, "pvc-1"), expected);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            is_page_of(&bytes, "pvc-1");
            let page = [&[0, DEVICE_IDENTIFICATION, 1, 0], &bytes[..]].concat();
            is_page_of(&page, "pvc-1");
        }
    }
}
