use rstest::rstest;

use super::*;
use crate::node::mounts::Number;

const MIB: u64 = 1 << 20;

fn mount(options: &[&str], shared_options: &[&str]) -> Mount {
    let texts = |options: &[&str]| options.iter().map(|option| (*option).to_owned()).collect();
    Mount {
        device: Number { major: 8, minor: 16 },
        root: "/".into(),
        target: "/staging".into(),
        options: texts(options),
        file_system: "ext4".to_owned(),
        source: "/dev/sdb".into(),
        shared_options: texts(shared_options),
    }
}

fn volume(options: &[&str]) -> Shown {
    Shown::Volume(mount(options, &["rw"]))
}

fn disk(content: Content) -> Disk {
    Disk {
        name: "/dev/sdb".to_owned(),
        size: 100 * MIB,
        content,
        is_mounted: false,
        is_map: false,
        was_elsewhere: false,
    }
}

fn ext4(mib: u64) -> Content {
    Content::FileSystem(FileSystem::Ext4, Some(mib * MIB))
}

fn wanted(file_system: FileSystem) -> Wanted {
    Wanted { file_system, may_make: true, options: vec![], read_only: false }
}

const FORMAT: Stage = Stage::Format { again: false };
const AGAIN: Stage = Stage::Format { again: true };

#[rstest]
#[case::new(Shown::Nothing, Content::Blank, FileSystem::Ext4, &[FORMAT, Stage::Mount])]
#[case::new(Shown::Nothing, Content::Blank, FileSystem::Xfs, &[FORMAT, Stage::Mount])]
#[case::killed_while_formatting(Shown::Nothing, Content::Unfinished, FileSystem::Xfs, &[AGAIN, Stage::Mount])]
#[case::formatted(Shown::Nothing, ext4(100), FileSystem::Ext4, &[Stage::Check, Stage::Mount])]
#[case::grown_while_detached(Shown::Nothing, ext4(50), FileSystem::Ext4, &[Stage::Check, Stage::Mount, Stage::Grow])]
#[case::size_unknown(Shown::Nothing, Content::FileSystem(FileSystem::Ext4, None), FileSystem::Ext4,
    &[Stage::Check, Stage::Mount])]
#[case::xfs_is_not_checked(Shown::Nothing, Content::FileSystem(FileSystem::Xfs, Some(100 * MIB)), FileSystem::Xfs,
    &[Stage::Mount])]
#[case::staged(volume(&["rw"]), ext4(100), FileSystem::Ext4, &[])]
#[case::killed_before_it_grew(volume(&["rw"]), ext4(50), FileSystem::Ext4, &[Stage::Grow])]
#[case::pulled_and_plugged_in_again(Shown::Gone, ext4(100), FileSystem::Ext4,
    &[Stage::Unmount, Stage::Check, Stage::Mount])]
fn a_disk_is_staged_from_whatever_is_there(
    #[case] shown: Shown,
    #[case] content: Content,
    #[case] file_system: FileSystem,
    #[case] expected: &[Stage],
) {
    assert_eq!(stage(&shown, &disk(content), &wanted(file_system)).unwrap(), expected);
}

// docs/contract/csi-driver.md#go-mounts
#[test]
fn a_disk_that_the_go_driver_mounted_for_a_pod_is_not_checked_while_it_is_in_use() {
    let disk = Disk { is_mounted: true, ..disk(ext4(100)) };
    assert_eq!(stage(&Shown::Nothing, &disk, &wanted(FileSystem::Ext4)).unwrap(), [Stage::Mount]);
}

// kubelet stages anew after a restart what it finds mounted
#[rstest]
#[case::for_no_pod(volume(&["rw"]), false, &[Stage::Unmount, Stage::Check, Stage::Mount])]
#[case::for_no_pod_to_be_read(volume(&["ro"]), false, &[Stage::Unmount, Stage::Check, Stage::Mount])]
#[case::for_a_pod(volume(&["rw"]), true, &[])]
#[case::not_at_all(Shown::Nothing, false, &[Stage::Check, Stage::Mount])]
fn a_map_that_no_pod_uses_is_mounted_anew_since_its_disk_may_have_been_elsewhere(
    #[case] shown: Shown,
    #[case] is_mounted: bool,
    #[case] expected: &[Stage],
) {
    let disk = Disk { is_map: true, is_mounted, ..disk(ext4(100)) };
    assert_eq!(stage(&shown, &disk, &wanted(FileSystem::Ext4)).unwrap(), expected);
}

#[rstest]
#[case::for_no_pod(volume(&["rw"]), false)]
#[case::for_no_pod_to_be_read(volume(&["ro"]), false)]
#[case::for_a_pod(volume(&["rw"]), true)]
#[case::for_a_pod_alone(Shown::Nothing, true)]
fn what_another_machine_has_mounted_since_is_neither_unmounted_nor_grown(
    #[case] shown: Shown,
    #[case] is_mounted: bool,
) {
    let disk = Disk { is_map: true, is_mounted, was_elsewhere: true, ..disk(ext4(50)) };
    let refusal = stage(&shown, &disk, &wanted(FileSystem::Ext4)).unwrap_err();
    assert_eq!(refusal.code, Code::FailedPrecondition);
    assert!(refusal.message.contains("reset this machine"), "{refusal}");
}

// docs/contract/csi-driver.md#format
#[rstest]
#[case(Content::Other("LVM2_member".to_owned()), "LVM2_member")]
#[case(Content::Other("a partition table (gpt)".to_owned()), "a partition table (gpt)")]
#[case(Content::FileSystem(FileSystem::Xfs, None), "xfs")]
#[case(Content::Unfinished, "the beginning of xfs")]
fn a_disk_with_something_else_is_named_and_never_formatted(#[case] content: Content, #[case] what: &str) {
    let refusal = stage(&Shown::Nothing, &disk(content), &wanted(FileSystem::Ext4)).unwrap_err();
    assert_eq!(refusal.code, Code::FailedPrecondition);
    assert!(refusal.message.starts_with(&format!("/dev/sdb carries {what} and the volume is to have ext4")));
}

#[rstest]
#[case(Content::Blank)]
#[case(Content::Unfinished)]
fn a_disk_that_is_only_read_is_not_formatted(#[case] content: Content) {
    let wanted = Wanted { read_only: true, ..wanted(FileSystem::Xfs) };
    assert_eq!(stage(&Shown::Nothing, &disk(content), &wanted).unwrap_err().code, Code::FailedPrecondition);
}

#[test]
fn a_predecessor_of_ext4_is_mounted_and_never_made() {
    let wanted = Wanted { may_make: false, ..wanted(FileSystem::Ext4) };
    assert_eq!(stage(&Shown::Nothing, &disk(ext4(100)), &wanted).unwrap(), [Stage::Check, Stage::Mount]);
    let refusal = stage(&Shown::Nothing, &disk(Content::Blank), &wanted).unwrap_err();
    assert_eq!(refusal.code, Code::FailedPrecondition);
}

#[test]
fn a_disk_that_is_only_read_is_neither_checked_nor_grown() {
    let wanted = Wanted { read_only: true, ..wanted(FileSystem::Ext4) };
    assert_eq!(stage(&Shown::Nothing, &disk(ext4(50)), &wanted).unwrap(), [Stage::Mount]);
}

#[test]
fn a_file_system_that_is_larger_than_its_disk_is_left_alone() {
    let refusal = stage(&Shown::Nothing, &disk(ext4(101)), &wanted(FileSystem::Ext4)).unwrap_err();
    assert_eq!(refusal.code, Code::FailedPrecondition);
    assert!(refusal.message.contains("105906176 bytes and the disk only 104857600"), "{refusal}");
}

#[rstest]
#[case(Shown::Other("/dev/sdc".to_owned()), Code::FailedPrecondition)]
#[case(volume(&["ro"]), Code::AlreadyExists)]
fn nothing_is_staged_over_another_mount(#[case] shown: Shown, #[case] code: Code) {
    assert_eq!(stage(&shown, &disk(ext4(100)), &wanted(FileSystem::Ext4)).unwrap_err().code, code);
}

fn publication(options: MountFlags) -> Publication<'static> {
    Publication { options, is_alone: false, another: None }
}

const RO: MountFlags = MountFlags::RDONLY;
const NONE: MountFlags = MountFlags::empty();

// docs/contract/csi-driver.md#read-only, docs/contract/csi-driver.md#stacked
#[rstest]
#[case::new(Shown::Nothing, NONE, &[Publish::Bind, Publish::Options(NONE)])]
#[case::new_to_be_read(Shown::Nothing, RO, &[Publish::Bind, Publish::Options(RO)])]
#[case::published(volume(&["rw", "relatime"]), MountFlags::RELATIME, &[])]
#[case::published_to_be_read(volume(&["ro"]), RO, &[])]
#[case::killed_between_the_steps(volume(&["rw"]), RO, &[Publish::Options(RO)])]
#[case::another_option(volume(&["rw", "nosuid"]), MountFlags::NOSUID | MountFlags::NOEXEC,
    &[Publish::Options(MountFlags::NOSUID.union(MountFlags::NOEXEC))])]
#[case::pulled(Shown::Gone, NONE, &[Publish::Unmount, Publish::Bind, Publish::Options(NONE)])]
fn a_volume_is_published_once_and_with_its_options(
    #[case] shown: Shown,
    #[case] options: MountFlags,
    #[case] expected: &[Publish],
) {
    assert_eq!(publish(&shown, publication(options)).unwrap(), expected);
}

#[rstest]
#[case(Shown::Other("/dev/sdc".to_owned()), Code::FailedPrecondition)]
#[case(volume(&["ro"]), Code::AlreadyExists)]
fn another_mount_at_the_target_is_neither_covered_nor_changed(#[case] shown: Shown, #[case] code: Code) {
    assert_eq!(publish(&shown, publication(NONE)).unwrap_err().code, code);
}

#[rstest]
#[case::second_pod(Shown::Nothing, true, false)]
#[case::called_again(volume(&["rw"]), true, true)]
#[case::many_writers(Shown::Nothing, false, true)]
fn a_single_writer_has_one_target(#[case] shown: Shown, #[case] is_alone: bool, #[case] is_done: bool) {
    let wanted = Publication { is_alone, another: Some(Path::new("/pods/1")), ..publication(NONE) };
    let steps = publish(&shown, wanted);
    assert_eq!(steps.is_ok(), is_done);
    if let Err(refusal) = steps {
        assert_eq!(refusal.code, Code::FailedPrecondition);
        assert!(refusal.message.contains("/pods/1"), "{refusal}");
    }
}

#[rstest]
#[case(&[], NONE)]
#[case(&["rw", "errors=remount-ro", "context=\"a:b\""], NONE)]
#[case(&["ro", "noexec"], MountFlags::RDONLY | MountFlags::NOEXEC)]
#[case(&["relatime", "noatime"], MountFlags::NOATIME)]
fn a_mounts_own_options_are_told_from_the_file_systems(
    #[case] options: &[&str],
    #[case] expected: MountFlags,
) {
    assert_eq!(flags(options), expected);
}

#[rstest]
#[case::healthy(&["rw"], &["rw"], false)]
#[case::published_to_be_read(&["ro"], &["rw"], false)]
#[case::staged_to_be_read(&["ro"], &["ro"], false)]
#[case::remounted_by_the_kernel(&["rw"], &["ro"], true)]
#[case(&["rw"], &["rw", "emergency_ro"], true)]
#[case(&["rw"], &["rw", "shutdown"], true)]
fn a_file_system_that_an_error_made_read_only_is_at_fault(
    #[case] options: &[&str],
    #[case] shared_options: &[&str],
    #[case] expected: bool,
) {
    assert_eq!(fault([&mount(options, shared_options)]).is_some(), expected);
}
