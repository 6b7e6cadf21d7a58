use rstest::rstest;

use super::*;
use crate::{
    flags,
    options::{FlagValue, Options},
};

fn text(text: &str) -> FlagValue {
    FlagValue::Text(text.into())
}

/// The configuration after `SetConfigFromFlags` with what a pool of Rancher's form has, and the given changes.
fn config(changes: Vec<(&str, FlagValue)>) -> Config {
    let mut options = Options::defaults();
    options
        .set(flags::DISK_INFO, text(r#"{"disks":[{"imageName":"default/leap","bootOrder":1,"size":40}]}"#));
    options.set(
        flags::NETWORK_INFO,
        text(r#"{"interfaces":[{"networkName":"default/vlan1","macAddress":""}]}"#),
    );
    for (name, given) in changes {
        options.set(name, given);
    }
    let mut config = Config { machine_name: "demo-pool1-x7k2m-9d4tq".into(), ..Config::default() };
    config.take(&options).unwrap();
    config
}

fn check(changes: Vec<(&str, FlagValue)>) -> Result<Machine, Vec<String>> {
    Machine::check(&config(changes))
}

#[test]
fn what_rancher_sends_is_a_machine() {
    let machine = check(vec![]).unwrap();
    assert_eq!((machine.cores, machine.memory.as_str(), machine.timeout), (2, "4Gi", TIMEOUT));
    let image = Reference { namespace: "default".into(), name: "leap".into() };
    let disk = Disk {
        name: "disk-0".into(),
        source: Source::Image(image),
        gib: 40,
        bus: "virtio".into(),
        cd_rom: false,
        boot_order: Some(1),
        hotpluggable: false,
    };
    assert_eq!(machine.disks, [disk]);
    assert_eq!((machine.nics[0].name.as_str(), machine.nics[0].bridge), ("nic-0", true));
    assert_eq!(machine.secret_name(), "demo-pool1-x7k2m-9d4tq-cloudinit");
}

#[test]
fn the_flags_of_old_make_one_disk_and_one_nic() {
    let machine = check(vec![
        (flags::DISK_INFO, text("")),
        (flags::NETWORK_INFO, text("")),
        (flags::IMAGE_NAME, text("leap")),
        (flags::DISK_SIZE, FlagValue::Number(20)),
        (flags::DISK_BUS, text("scsi")),
        (flags::NETWORK_NAME, text("vlan1")),
        (flags::NETWORK_MODEL, text("e1000")),
    ])
    .unwrap();
    let disk = &machine.disks[0];
    assert_eq!(
        (disk.name.as_str(), disk.bus.as_str(), disk.boot_order, disk.gib),
        ("disk-1", "scsi", Some(1), 20)
    );
    let nic = &machine.nics[0];
    assert_eq!(
        (nic.network_name.as_str(), nic.model.as_str(), nic.name.as_str()),
        ("vlan1", "e1000", "nic-0")
    );
    assert_eq!(nic.network.to_string(), "default/vlan1");
}

#[test]
fn empty_lists_pass() {
    let machine = check(vec![
        (flags::DISK_INFO, text(r#"{"disks":[]}"#)),
        (flags::NETWORK_INFO, text(r#"{"interfaces":null}"#)),
    ])
    .unwrap();
    assert!(machine.disks.is_empty() && machine.nics.is_empty());
}

#[rstest]
#[case::cpu(flags::CPU_COUNT, FlagValue::Number(0), "at least 1 CPU")]
#[case::memory(flags::MEMORY_SIZE, FlagValue::Number(0), "0Gi is no amount of memory")]
#[case::reserved(flags::RESERVED_MEMORY_SIZE, FlagValue::Number(4096), "4096Mi of 4Gi leaves no memory")]
#[case::secure_boot(flags::ENABLE_SECURE_BOOT, FlagValue::Switch(true), "needs harvester-enable-efi")]
#[case::isolated(flags::ISOLATE_EMULATOR_THREAD, FlagValue::Switch(true), "needs harvester-cpu-pinning")]
#[case::namespace(flags::VM_NAMESPACE, text("Shop"), "Shop is no name of a namespace")]
#[case::no_source(flags::DISK_INFO, text(r#"{"disks":[{"size":1}]}"#), "disk 0 has neither imageName")]
#[case::no_size(flags::DISK_INFO, text(r#"{"disks":[{"storageClassName":"a"}]}"#), "disk 0 has size 0")]
#[case::slashes(
    flags::DISK_INFO,
    text(r#"{"disks":[{"imageName":"a/b/c","size":1}]}"#),
    "a/b/c is not a name"
)]
#[case::floppy(
    flags::DISK_INFO,
    text(r#"{"disks":[{"imageName":"a","size":1,"type":"floppy"}]}"#),
    "type floppy"
)]
#[case::no_list_no_image(flags::DISK_INFO, text(""), "harvester-disk-size")]
#[case::no_network(flags::NETWORK_INFO, text(r#"{"interfaces":[{}]}"#), "interface 0 has no networkName")]
#[case::no_list_no_network(flags::NETWORK_INFO, text(""), "needs a VM network")]
#[case::mac(
    flags::NETWORK_INFO,
    text(r#"{"interfaces":[{"networkName":"a","macAddress":"02:00"}]}"#),
    "02:00 is no MAC"
)]
#[case::network_data(flags::NETWORK_DATA, text("network: text"), "no mapping with a version")]
#[case::affinity(flags::VM_AFFINITY, text("[1]"), "no JSON object")]
#[case::affinity_key(flags::VM_AFFINITY, text(r#"{"nodeaffinity":{}}"#), "nodeaffinity is none of")]
#[case::device(
    flags::HOST_DEVICE_INFO,
    text(r#"{"hostDevices":[{"name":"a"}]}"#),
    "entry 0 has no deviceName"
)]
#[case::our_label(flags::VM_LABELS, text(r#"{"harvesterhci.io/creator":"me"}"#), "is set by the driver")]
#[case::label_key(flags::VM_LABELS, text(r#"{"a/b/c":"x"}"#), "cannot be a label's key")]
#[case::label_value(flags::VM_LABELS, text(r#"{"a":"-"}"#), "cannot be a label's value")]
#[case::timeout(flags::CREATE_TIMEOUT, text("soon"), "soon is no number of seconds")]
#[case::key_pair(flags::KEY_PAIR_NAME, text("a/b/c"), "harvester-key-pair-name: a/b/c is not a name")]
fn a_fault_names_its_flag(#[case] flag: &str, #[case] given: FlagValue, #[case] part: &str) {
    let faults = check(vec![(flag, given)]).unwrap_err();
    assert!(faults.iter().any(|fault| fault.contains(part)), "{faults:?}");
    let own_words = faults.iter().all(|fault| !fault.contains('"') && fault.lines().count() == 1);
    assert!(own_words, "rancher-machine shows quotes and line ends escaped: {faults:?}");
}

#[test]
fn all_faults_are_said_at_once() {
    let faults = check(vec![
        (flags::CPU_COUNT, FlagValue::Number(0)),
        (flags::DISK_INFO, text(r#"{"disks":[{},{"imageName":"a"}]}"#)),
        (flags::CREATE_TIMEOUT, text("0")),
    ])
    .unwrap_err();
    assert_eq!(faults.len(), 5, "{faults:?}");
}

// docs/contract/node-driver.md#B26: Rancher's form names every vGPU `provisioned`
#[test]
fn devices_get_names_of_their_own() {
    let requests = r#"{"vGPURequests":[{"name":"p","deviceName":"x"},{"name":"p","deviceName":"x"},{"deviceName":"y"}]}"#;
    let others = r#"{"hostDevices":[{"name":"p","deviceName":"z"}]}"#;
    let machine =
        check(vec![(flags::VGPU_INFO, text(requests)), (flags::HOST_DEVICE_INFO, text(others))]).unwrap();
    let names: Vec<_> =
        machine.gpus.iter().chain(&machine.host_devices).map(|device| device.name.as_str()).collect();
    assert_eq!(names, ["p", "p-2", "device-2", "p-3"]);
}

// docs/contract/node-driver.md#B14
#[test]
fn null_is_no_affinity() {
    assert_eq!(check(vec![(flags::VM_AFFINITY, text("null\n"))]).unwrap().affinity, None);
}

#[test]
fn the_first_in_the_boot_order_is_booted() {
    let disks = r#"{"disks":[{"imageName":"a","size":1},{"imageName":"b","size":1,"bootOrder":2},
        {"imageName":"c","size":1,"bootOrder":1}]}"#;
    let machine = check(vec![(flags::DISK_INFO, text(disks))]).unwrap();
    assert_eq!(machine.boot_disk().unwrap().name, "disk-2");
}

#[test]
fn a_time_out_of_the_users_own_is_taken() {
    let machine = check(vec![(flags::CREATE_TIMEOUT, text("90"))]).unwrap();
    assert_eq!(machine.timeout, Duration::from_secs(90));
}

#[rstest]
#[case::masquerade(
    r#"{"networkName":"a/b","type":"masquerade","ipPool":"edge","nameservers":["192.0.2.53"]}"#,
    "has to be a bridge"
)]
#[case::no_nameserver(r#"{"networkName":"a/b","ipPool":"edge"}"#, "would not find Rancher")]
#[case::no_address(
    r#"{"networkName":"a/b","ipPool":"edge","nameservers":["dns"]},{"networkName":"a/b"}"#,
    "nameserver dns of interface 0"
)]
#[case::no_pool(r#"{"networkName":"a/b","nameservers":["192.0.2.53"]}"#, "nameservers without ipPool")]
#[case::no_name(
    r#"{"networkName":"a/b","ipPool":"a/../b","nameservers":["192.0.2.53"]}"#,
    "a/../b is no name of an IPPool"
)]
#[case::twice(
    r#"{"networkName":"a/b","ipPool":"edge","nameservers":["192.0.2.53"]},{"networkName":"a/b","ipPool":"edge"}"#,
    "two interfaces name IPPool edge"
)]
fn static_addresses_that_cannot_work_are_named(#[case] nics: &str, #[case] part: &str) {
    let info = format!(r#"{{"interfaces":[{nics}]}}"#);
    let faults = check(vec![(flags::NETWORK_INFO, text(&info))]).unwrap_err();
    assert!(faults.len() == 1 && faults[0].contains(part), "{faults:?}");
}

#[test]
fn static_addresses_and_network_data_exclude_each_other() {
    let info = r#"{"interfaces":[{"networkName":"a/b","ipPool":"edge","nameservers":["192.0.2.53"]}]}"#;
    let given = vec![(flags::NETWORK_INFO, text(info)), (flags::NETWORK_DATA, text("version: 2"))];
    let faults = check(given).unwrap_err();
    assert!(faults.len() == 1 && faults[0].starts_with("harvester-network-data: "), "{faults:?}");
}
