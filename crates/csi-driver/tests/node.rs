//! The node service with real disks: loop devices behind links as udev makes them, real file systems and mounts.
//!
//! Each test runs in a process of its own with a mount namespace of its own, so that nothing is left mounted. That takes
//! root. Elsewhere, and where a program of `tools.txt` is missing, a test says so and
//! passes; the full run of the tests brings the programs, and repeats what was left out at its end.

#![expect(clippy::unwrap_used, reason = "a helper of a test fails by its panic")]

#[path = "node/machine.rs"]
mod machine;

use std::fs;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::{Path, PathBuf};

use csi_driver::csi::volume_capability::access_mode::Mode;
use machine::{EXT3, EXT4, EXT4_GROWTH, Machine, XFS, block, files, in_own_namespace, note_open_files, run};
use tonic::Code;

const MIB: u64 = 1 << 20;

fn main_test(name: &str, tools: &[&str], test: impl AsyncFnOnce(&Machine)) {
    in_own_namespace(name, tools, || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let machine = Machine::new();
            test(&machine).await;
        });
    });
}

/// The signature of a partition table, and one partition of 64 MiB.
const PARTITIONED: &[&str] = &[
    "sh",
    "-c",
    "{ head -c 450 /dev/zero; printf '\\203\\0\\0\\0\\0\\010\\0\\0\\0\\0\\002\\0'; head -c 48 /dev/zero; printf '\\125\\252'; } > $0",
];

/// An argument of `dd`.
fn with(name: &str, path: &Path) -> PathBuf {
    format!("{name}{}", path.display()).into()
}

/// Defines a test that runs in a namespace of its own.
macro_rules! on_a_machine {
    ($name:ident, $tools:expr, $test:expr) => {
        #[test]
        fn $name() {
            main_test(stringify!($name), $tools, $test);
        }
    };
}

async fn a_file_outlives_unstaging(machine: &Machine, file_system: &str) {
    let disk = machine.disk("pvc-1", 400 * MIB);
    let used = files(file_system, Mode::SingleNodeWriter);
    for round in 0..2 {
        for _ in 0..2 {
            machine.stage("pvc-1", &used).await.unwrap();
        }
        for _ in 0..3 {
            machine.publish("pvc-1", "pod-1", &used).await.unwrap();
        }
        assert_eq!(machine.layers(&machine.staging("pvc-1")), 1);
        assert_eq!(machine.layers(&machine.target("pod-1")), 1);
        let file = machine.target("pod-1").join("file");
        if round == 0 {
            fs::write(&file, "kept").unwrap();
        }
        assert_eq!(fs::read_to_string(&file).unwrap(), "kept");
        for _ in 0..2 {
            machine.unpublish("pvc-1", "pod-1").await.unwrap();
            assert!(!machine.target("pod-1").exists());
        }
        for _ in 0..2 {
            machine.unstage("pvc-1").await.unwrap();
        }
        assert_eq!(machine.layers(&machine.staging("pvc-1")), 0);
    }
    drop(disk);
}

on_a_machine!(a_file_on_ext4_outlives_unstaging_and_each_call_may_come_again, EXT4, async |machine| {
    a_file_outlives_unstaging(machine, "").await;
});

on_a_machine!(a_file_on_xfs_outlives_unstaging_and_each_call_may_come_again, XFS, async |machine| {
    a_file_outlives_unstaging(machine, "xfs").await;
});

// docs/contract/csi-driver.md#device: udev's link leads to one of them
on_a_machine!(a_volume_is_not_looked_for_on_two_disks_that_both_call_themselves_so, EXT4, async |machine| {
    let (shown, linked) = (machine.disk_without_link("pvc-1", 64 * MIB), machine.disk("pvc-2", 64 * MIB));
    symlink(linked.path(), machine.link("scsi-0QEMU_QEMU_HARDDISK_drive-ua-pvc-1")).unwrap();
    let before = [shown.checksum(), linked.checksum()];
    let refusal = machine.stage("pvc-1", &files("ext4", Mode::SingleNodeWriter)).await.unwrap_err();
    assert_eq!(refusal.code(), Code::FailedPrecondition, "{refusal}");
    assert!(refusal.message().contains("both have the identifier drive-ua-pvc-1"), "{refusal}");
    assert_eq!([shown.checksum(), linked.checksum()], before);
});

// multipathd keeps a map that is mounted while its disk is in another machine
on_a_machine!(what_another_machine_wrote_outlives_the_mount_of_a_map, EXT4, async |machine| {
    let (map, disk) = machine.map("pvc-1", 64 * MIB);
    let used = files("ext4", Mode::SingleNodeWriter);
    for _ in 0..2 {
        machine.stage("pvc-1", &used).await.unwrap();
    }
    assert_eq!(machine.layers(&machine.staging("pvc-1")), 1);
    // the memory of the disk has the head of before
    let _open = fs::File::open(disk.path()).unwrap();
    disk.checksum();
    let (elsewhere, at) = (map.again(), machine.folder().join("elsewhere"));
    fs::create_dir(&at).unwrap();
    run(&["mount"], &[elsewhere.path(), &at]);
    fs::write(at.join("file"), "kept").unwrap();
    run(&["umount"], &[&at]);
    let before = elsewhere.checksum();
    for answer in [machine.stage("pvc-1", &used).await, machine.unstage("pvc-1").await] {
        let refusal = answer.unwrap_err();
        assert_eq!(refusal.code(), Code::FailedPrecondition, "{refusal}");
        assert!(refusal.message().contains("reset this machine"), "{refusal}");
    }
    assert_eq!(machine.layers(&machine.staging("pvc-1")), 1);
    assert_eq!(elsewhere.again().checksum(), before);
});

// docs/contract/csi-driver.md#format
on_a_machine!(a_disk_that_carries_something_is_never_formatted, EXT4, async |machine| {
    let cases: [(&str, &[&str], &str); 3] = [
        ("pvc-1", &["mkfs.ext4", "-q"], "ext4"),
        ("pvc-2", &["mkswap"], "swap"),
        ("pvc-3", PARTITIONED, "a partition table (dos)"),
    ];
    for (handle, make, what) in cases {
        let disk = machine.disk(handle, 64 * MIB);
        run(make, &[disk.path()]);
        let before = disk.checksum();
        let refusal = machine.stage(handle, &files("xfs", Mode::SingleNodeWriter)).await.unwrap_err();
        assert_eq!(refusal.code(), Code::FailedPrecondition, "{refusal}");
        assert!(refusal.message().contains(what), "{refusal}");
        assert_eq!(disk.checksum(), before);
    }
});

// Linux gives the name and the number of a disk that has gone to the next one that comes, unless somebody has it open
on_a_machine!(a_disk_is_open_while_programs_look_at_it_and_write_it, EXT4, async |machine| {
    let notes = ["blkid", "mkfs.ext4", "mount"].map(note_open_files);
    let disk = machine.disk("pvc-1", 64 * MIB);
    machine.stage("pvc-1", &files("ext4", Mode::SingleNodeWriter)).await.unwrap();
    for note in notes {
        let open = fs::read_to_string(&note).unwrap();
        assert!(open.lines().any(|file| Path::new(file) == disk.path()), "{} at {}", open, note.display());
    }
});

// docs/contract/csi-driver.md#file-systems
on_a_machine!(another_file_system_is_refused_before_the_disk_is_touched, EXT4, async |machine| {
    let disk = machine.disk("pvc-1", 64 * MIB);
    let before = disk.checksum();
    for name in ["btrfs", "nfs"] {
        let used = files(name, Mode::SingleNodeWriter);
        assert_eq!(machine.stage("pvc-1", &used).await.unwrap_err().code(), Code::InvalidArgument);
        assert_eq!(machine.publish("pvc-1", "pod-1", &used).await.unwrap_err().code(), Code::InvalidArgument);
    }
    assert_eq!(disk.checksum(), before);
    assert_eq!(machine.layers(&machine.staging("pvc-1")), 0);
});

// docs/contract/csi-driver.md#file-systems
on_a_machine!(an_ext3_that_the_go_driver_made_is_mounted_and_none_is_made, EXT3, async |machine| {
    let disk = machine.disk("pvc-1", 64 * MIB);
    let used = files("ext3", Mode::SingleNodeWriter);
    let before = disk.checksum();
    let refusal = machine.stage("pvc-1", &used).await.unwrap_err();
    assert_eq!(refusal.code(), Code::FailedPrecondition, "{refusal}");
    assert_eq!(disk.checksum(), before);
    run(&["mkfs.ext3", "-q", "-F", "-m0"], &[disk.path()]);
    for _ in 0..2 {
        machine.stage("pvc-1", &used).await.unwrap();
        machine.publish("pvc-1", "pod-1", &used).await.unwrap();
    }
    fs::write(machine.target("pod-1").join("file"), "data").unwrap();
    machine.unpublish("pvc-1", "pod-1").await.unwrap();
    machine.unstage("pvc-1").await.unwrap();
    assert_eq!(run(&["blkid", "-p", "-s", "TYPE", "-o", "value"], &[disk.path()]), "ext3");
});

// docs/contract/csi-driver.md#read-only
on_a_machine!(a_read_only_pod_cannot_write_while_another_does, EXT4, async |machine| {
    let _disk = machine.disk("pvc-1", 64 * MIB);
    let used = files("ext4", Mode::SingleNodeMultiWriter);
    machine.stage("pvc-1", &used).await.unwrap();
    machine.publish_read_only("pvc-1", "reader", &used).await.unwrap();
    machine.publish_read_only("pvc-1", "reader", &used).await.unwrap();
    machine.publish("pvc-1", "writer", &used).await.unwrap();
    fs::write(machine.target("writer").join("file"), "data").unwrap();
    assert_eq!(fs::read_to_string(machine.target("reader").join("file")).unwrap(), "data");
    assert!(fs::write(machine.target("reader").join("file"), "other").is_err());
    let refusal = machine.publish("pvc-1", "reader", &used).await.unwrap_err();
    assert_eq!(refusal.code(), Code::AlreadyExists);
    assert!(fs::write(machine.target("reader").join("file"), "other").is_err());
});

on_a_machine!(a_single_writer_has_one_target, EXT4, async |machine| {
    let _disks = [machine.disk("pvc-1", 64 * MIB), machine.disk("pvc-2", 64 * MIB)];
    for (handle, used) in [
        ("pvc-1", files("ext4", Mode::SingleNodeSingleWriter)),
        ("pvc-2", block(Mode::SingleNodeSingleWriter)),
    ] {
        let (first, second) = (format!("{handle}-a"), format!("{handle}-b"));
        machine.stage(handle, &used).await.unwrap();
        machine.publish(handle, &first, &used).await.unwrap();
        machine.publish(handle, &first, &used).await.unwrap();
        let refusal = machine.publish(handle, &second, &used).await.unwrap_err();
        assert_eq!(refusal.code(), Code::FailedPrecondition, "{refusal}");
        machine.unpublish(handle, &first).await.unwrap();
        machine.publish(handle, &second, &used).await.unwrap();
    }
});

// docs/contract/csi-driver.md#stacked
on_a_machine!(a_raw_device_is_published_once_and_written_through, EXT4, async |machine| {
    let disk = machine.disk("pvc-1", 64 * MIB);
    let used = block(Mode::SingleNodeWriter);
    machine.stage("pvc-1", &used).await.unwrap();
    for _ in 0..3 {
        machine.publish("pvc-1", "pod-1", &used).await.unwrap();
    }
    let target = machine.target("pod-1");
    assert_eq!(machine.layers(&target), 1);
    assert_eq!(fs::metadata(&target).unwrap().rdev(), fs::metadata(disk.path()).unwrap().rdev());
    fs::write(&target, "raw data").unwrap();
    assert!(fs::read(disk.path()).unwrap().starts_with(b"raw data"));
    let stats = machine.stats("pvc-1", &target).await.unwrap();
    assert_eq!(stats.usage[0].total, i64::try_from(64 * MIB).unwrap());
    disk.grow(128 * MIB);
    assert_eq!(machine.expand("pvc-1", &target, 128 * MIB).await.unwrap(), 128 * MIB);
    machine.unpublish("pvc-1", "pod-1").await.unwrap();
    assert!(!target.exists());
    machine.unstage("pvc-1").await.unwrap();
});

// docs/contract/csi-driver.md#read-only
on_a_machine!(a_read_only_pod_gets_a_raw_device_while_another_writes, EXT4, async |machine| {
    let disk = machine.disk("pvc-1", 64 * MIB);
    let used = block(Mode::SingleNodeWriter);
    machine.stage("pvc-1", &used).await.unwrap();
    for _ in 0..2 {
        machine.publish_read_only("pvc-1", "reader", &used).await.unwrap();
    }
    machine.publish("pvc-1", "writer", &used).await.unwrap();
    let target = machine.target("reader");
    assert_eq!(machine.layers(&target), 1);
    assert_eq!(fs::metadata(&target).unwrap().rdev(), fs::metadata(disk.path()).unwrap().rdev());
    fs::write(machine.target("writer"), "raw data").unwrap();
    assert!(fs::read(&target).unwrap().starts_with(b"raw data"));
});

// docs/contract/csi-driver.md#read-only
on_a_machine!(a_raw_device_is_not_published_with_a_mode_that_only_reads, EXT4, async |machine| {
    let _disk = machine.disk("pvc-1", 64 * MIB);
    for (mode, code) in [
        (Mode::SingleNodeReaderOnly, Code::FailedPrecondition),
        (Mode::MultiNodeReaderOnly, Code::InvalidArgument),
    ] {
        let refusal = machine.publish("pvc-1", "pod-1", &block(mode)).await.unwrap_err();
        assert_eq!(refusal.code(), code, "{refusal}");
    }
    assert_eq!(machine.layers(&machine.target("pod-1")), 0);
});

async fn a_volume_of_the_go_driver(machine: &Machine, file_system: &str, grows: bool) {
    let disk = machine.disk("pvc-1", 400 * MIB);
    let used = files(file_system, Mode::SingleNodeWriter);
    run(&[&format!("mkfs.{file_system}"), "-q"], &[disk.path()]);
    let old = machine.target("old");
    fs::create_dir_all(&old).unwrap();
    run(&["mount", "-t", file_system], &[disk.path(), &old]);
    fs::write(old.join("file"), "kept").unwrap();
    machine.publish("pvc-1", "old", &used).await.unwrap();
    assert_eq!(machine.layers(&old), 1);
    assert_eq!(machine.layers(&machine.staging("pvc-1")), 0);
    assert!(!machine.stats("pvc-1", &old).await.unwrap().volume_condition.unwrap().abnormal);
    if grows {
        disk.grow(500 * MIB);
        machine.expand("pvc-1", &machine.staging("pvc-1"), 500 * MIB).await.unwrap();
        assert!(machine.bytes("pvc-1", "old").await > 410 * MIB);
    }
    machine.publish("pvc-1", "new", &used).await.unwrap();
    assert_eq!(fs::read_to_string(machine.target("new").join("file")).unwrap(), "kept");
    machine.unpublish("pvc-1", "old").await.unwrap();
    machine.unpublish("pvc-1", "new").await.unwrap();
    machine.unstage("pvc-1").await.unwrap();
    assert_eq!(machine.layers(&machine.staging("pvc-1")), 0);
    assert!(!old.exists());
}

// docs/contract/csi-driver.md#go-mounts
on_a_machine!(an_ext4_that_the_go_driver_mounted_for_a_pod_works_on, EXT4, async |machine| {
    a_volume_of_the_go_driver(machine, "ext4", false).await;
});

// docs/contract/csi-driver.md#go-mounts
on_a_machine!(an_xfs_that_the_go_driver_mounted_for_a_pod_works_on_and_grows, XFS, async |machine| {
    a_volume_of_the_go_driver(machine, "xfs", true).await;
});

// docs/contract/csi-driver.md#stacked
on_a_machine!(mounts_that_the_go_driver_stacked_are_all_taken_away, EXT4, async |machine| {
    let disk = machine.disk("pvc-1", 64 * MIB);
    let target = machine.target("pod-1");
    fs::create_dir_all(target.parent().unwrap()).unwrap();
    fs::write(&target, "").unwrap();
    for _ in 0..3 {
        run(&["mount", "--bind"], &[disk.path(), &target]);
    }
    assert_eq!(machine.layers(&target), 3);
    machine.unpublish("pvc-1", "pod-1").await.unwrap();
    assert!(!target.exists());
});

async fn a_volume_grows(machine: &Machine, file_system: &str) {
    let disk = machine.disk("pvc-1", 400 * MIB);
    let used = files(file_system, Mode::SingleNodeWriter);
    machine.stage("pvc-1", &used).await.unwrap();
    machine.publish("pvc-1", "pod-1", &used).await.unwrap();
    disk.grow(500 * MIB);
    for _ in 0..2 {
        machine.expand("pvc-1", &machine.target("pod-1"), 500 * MIB).await.unwrap();
    }
    let online = machine.bytes("pvc-1", "pod-1").await;
    assert!(online > 410 * MIB, "{online}");
    machine.unpublish("pvc-1", "pod-1").await.unwrap();
    machine.unstage("pvc-1").await.unwrap();
    disk.grow(700 * MIB);
    machine.stage("pvc-1", &used).await.unwrap();
    machine.publish("pvc-1", "pod-1", &used).await.unwrap();
    let offline = machine.bytes("pvc-1", "pod-1").await;
    assert!(offline > 600 * MIB, "{offline}");
}

on_a_machine!(ext4_grows_while_it_is_used_and_when_it_is_staged, EXT4_GROWTH, async |machine| {
    a_volume_grows(machine, "ext4").await;
});

on_a_machine!(xfs_grows_while_it_is_used_and_when_it_is_staged, XFS, async |machine| {
    a_volume_grows(machine, "xfs").await;
});

// docs/contract/csi-driver.md#nouuid
on_a_machine!(a_clone_of_an_xfs_is_mounted_beside_it, XFS, async |machine| {
    let used = files("xfs", Mode::SingleNodeWriter);
    let first = machine.disk("pvc-1", 400 * MIB);
    machine.stage("pvc-1", &used).await.unwrap();
    machine.unstage("pvc-1").await.unwrap();
    let second = machine.disk("pvc-2", 400 * MIB);
    run(&["dd", "bs=1M", "status=none"], &[&with("if=", first.path()), &with("of=", second.path())]);
    machine.stage("pvc-1", &used).await.unwrap();
    machine.stage("pvc-2", &used).await.unwrap();
});

on_a_machine!(a_mkfs_xfs_that_was_killed_is_begun_again, XFS, async |machine| {
    let disk = machine.disk("pvc-1", 400 * MIB);
    run(&["mkfs.xfs", "-q"], &[disk.path()]);
    // the mark that mkfs.xfs sets when it begins and clears when it ends
    disk.write(126, &[1]);
    machine.stage("pvc-1", &files("xfs", Mode::SingleNodeWriter)).await.unwrap();
});

on_a_machine!(a_mkfs_ext4_that_was_killed_is_begun_again, EXT4, async |machine| {
    let disk = machine.disk("pvc-1", 64 * MIB);
    run(&["mkfs.ext4", "-q"], &[disk.path()]);
    // it writes the first superblock last
    disk.write(1024, &[0; 1024]);
    machine.stage("pvc-1", &files("ext4", Mode::SingleNodeWriter)).await.unwrap();
});

on_a_machine!(a_truncated_disk_is_told_and_not_mounted, EXT4, async |machine| {
    let disk = machine.disk("pvc-1", 128 * MIB);
    run(&["mkfs.ext4", "-q"], &[disk.path()]);
    disk.shrink(64 * MIB);
    let refusal = machine.stage("pvc-1", &files("ext4", Mode::SingleNodeWriter)).await.unwrap_err();
    assert_eq!(refusal.code(), Code::FailedPrecondition, "{refusal}");
    disk.shrink(0);
    let refusal = machine.stage("pvc-1", &files("ext4", Mode::SingleNodeWriter)).await.unwrap_err();
    assert_eq!(refusal.code(), Code::FailedPrecondition, "{refusal}");
    assert!(refusal.message().contains("has no bytes"), "{refusal}");
});

// docs/contract/csi-driver.md#device
on_a_machine!(a_call_that_comes_before_its_disk_waits_for_it, EXT4, async |machine| {
    let used = files("ext4", Mode::SingleNodeWriter);
    // the folder of links comes with the first disk
    let staged = async { machine.stage("pvc-1", &used).await };
    let plugged = async {
        tokio::task::yield_now().await;
        machine.disk("pvc-1", 64 * MIB)
    };
    let (staged, _disk) = tokio::join!(staged, plugged);
    staged.unwrap();
});

// docs/contract/csi-driver.md#device
on_a_machine!(a_disk_without_a_link_is_found_by_what_it_says_of_itself, EXT4, async |machine| {
    let disk = machine.disk_without_link("pvc-1", 64 * MIB);
    machine.stage("pvc-1", &files("ext4", Mode::SingleNodeWriter)).await.unwrap();
    assert_eq!(machine.mounted_from(&machine.staging("pvc-1")), disk.path());
});

on_a_machine!(two_disks_with_one_identifier_are_both_named, EXT4, async |machine| {
    let first = machine.disk("pvc-1", 64 * MIB);
    let second = machine.disk("pvc-2", 64 * MIB);
    symlink(second.path(), machine.link("scsi-SQEMU_QEMU_HARDDISK_drive-ua-pvc-1")).unwrap();
    let refusal = machine.stage("pvc-1", &files("ext4", Mode::SingleNodeWriter)).await.unwrap_err();
    assert_eq!(refusal.code(), Code::FailedPrecondition);
    for disk in [first.path(), second.path()] {
        assert!(refusal.message().contains(disk.to_str().unwrap()), "{refusal}");
    }
});

on_a_machine!(a_busy_mount_is_named_and_stays, EXT4, async |machine| {
    let _disk = machine.disk("pvc-1", 64 * MIB);
    let used = files("ext4", Mode::SingleNodeWriter);
    machine.stage("pvc-1", &used).await.unwrap();
    machine.publish("pvc-1", "pod-1", &used).await.unwrap();
    let target = machine.target("pod-1");
    let file = fs::File::create(target.join("file")).unwrap();
    let refusal = machine.unpublish("pvc-1", "pod-1").await.unwrap_err();
    assert_eq!(refusal.code(), Code::FailedPrecondition);
    assert!(refusal.message().contains(target.to_str().unwrap()), "{refusal}");
    assert_eq!(machine.layers(&target), 1);
    drop(file);
    machine.unpublish("pvc-1", "pod-1").await.unwrap();
});

on_a_machine!(a_busy_staging_path_is_named_and_stays, EXT4, async |machine| {
    let _disk = machine.disk("pvc-1", 64 * MIB);
    machine.stage("pvc-1", &files("ext4", Mode::SingleNodeWriter)).await.unwrap();
    let staging = machine.staging("pvc-1");
    let file = fs::File::create(staging.join("file")).unwrap();
    let refusal = machine.unstage("pvc-1").await.unwrap_err();
    assert_eq!(refusal.code(), Code::FailedPrecondition);
    assert!(refusal.message().contains(staging.to_str().unwrap()), "{refusal}");
    assert_eq!(machine.layers(&staging), 1);
    drop(file);
    machine.unstage("pvc-1").await.unwrap();
});

on_a_machine!(a_link_at_a_target_is_not_followed, EXT4, async |machine| {
    let _disk = machine.disk("pvc-1", 64 * MIB);
    let used = files("ext4", Mode::SingleNodeWriter);
    machine.stage("pvc-1", &used).await.unwrap();
    let (outside, target) = (machine.folder().join("outside"), machine.target("pod-1"));
    fs::create_dir(&outside).unwrap();
    fs::create_dir_all(target.parent().unwrap()).unwrap();
    symlink(&outside, &target).unwrap();
    let refusal = machine.publish("pvc-1", "pod-1", &used).await.unwrap_err();
    assert_eq!(refusal.code(), Code::FailedPrecondition);
    let refusal = machine.unpublish("pvc-1", "pod-1").await.unwrap_err();
    assert_eq!(refusal.code(), Code::FailedPrecondition);
    assert_eq!(machine.layers(&outside), 0);
    assert!(outside.exists() && target.is_symlink());
});

on_a_machine!(a_file_system_that_became_read_only_is_not_well, EXT4, async |machine| {
    let _disk = machine.disk("pvc-1", 64 * MIB);
    let used = files("ext4", Mode::SingleNodeWriter);
    machine.stage("pvc-1", &used).await.unwrap();
    machine.publish("pvc-1", "pod-1", &used).await.unwrap();
    let target = machine.target("pod-1");
    let well = machine.stats("pvc-1", &target).await.unwrap();
    assert!(!well.volume_condition.unwrap().abnormal);
    assert_eq!(well.usage.len(), 2);
    // as the kernel does after an error: the file system, and not the mounts of pods
    run(&["mount", "-o", "remount,ro"], &[&machine.staging("pvc-1")]);
    let ill = machine.stats("pvc-1", &target).await.unwrap().volume_condition.unwrap();
    assert!(ill.abnormal && ill.message.contains("read-only"), "{ill:?}");
});

on_a_machine!(another_volumes_staging_path_is_refused, EXT4, async |machine| {
    let _disks = [machine.disk("pvc-1", 64 * MIB), machine.disk("pvc-2", 64 * MIB)];
    let used = files("ext4", Mode::SingleNodeWriter);
    machine.stage("pvc-1", &used).await.unwrap();
    let refusal = machine.publish_from("pvc-2", &machine.staging("pvc-1"), "pod-2", &used).await.unwrap_err();
    assert_eq!(refusal.code(), Code::FailedPrecondition, "{refusal}");
    let refusal = machine.stage_at("pvc-2", &machine.staging("pvc-1"), &used).await.unwrap_err();
    assert_eq!(refusal.code(), Code::FailedPrecondition, "{refusal}");
    assert_eq!(machine.layers(&machine.target("pod-2")), 0);
    let target = machine.target("pod-1");
    machine.publish("pvc-1", "pod-1", &used).await.unwrap();
    assert!(target.exists());
    let refusal = machine.expand("pvc-2", &target, 64 * MIB).await.unwrap_err();
    assert_eq!(refusal.code(), Code::FailedPrecondition, "{refusal}");
});
