use serde_json::json;

use super::*;
use crate::options::FlagValue;

fn stored(config: &Config) -> Value {
    serde_json::from_slice(&config.to_json()).unwrap()
}

#[test]
fn a_fresh_plugin_has_only_a_name() {
    let mut expected = stored(&Config::fresh());
    assert_eq!(expected["MachineName"], "machine");
    for (key, value) in expected.as_object_mut().unwrap() {
        let empty = value.is_null() || value == "" || value == 0 || value == false;
        assert!(empty || key == "MachineName", "{key}: {value}");
    }
}

#[test]
fn every_key_of_upstream_is_written_with_its_type() {
    let text = [
        "IPAddress",
        "IPv6Address",
        "MachineName",
        "SSHUser",
        "SSHKeyPath",
        "StorePath",
        "SwarmHost",
        "SwarmDiscovery",
        "KubeConfigContent",
        "ClusterType",
        "ClusterID",
        "ClusterName",
        "VMNamespace",
        "MemorySize",
        "DiskSize",
        "DiskBus",
        "ImageName",
        "SSHPassword",
        "KeyPairName",
        "SSHPrivateKeyPath",
        "NetworkType",
        "NetworkName",
        "NetworkModel",
        "CloudConfig",
        "UserData",
        "NetworkData",
        "VMAffinity",
        "ReservedMemorySize",
        "CPUModel",
        "ServerVersion",
        "SSHPublicKey",
    ];
    let numbers = ["SSHPort", "CPU"];
    let switches = [
        "SwarmMaster",
        "EnableEFI",
        "EnableSecureBoot",
        "CPUPinning",
        "IsolateEmulatorThread",
        "EnableTPM",
        "AddUserToDockerGroup",
    ];
    let objects = ["DiskInfo", "NetworkInfo", "VGPUInfo"];
    let written = stored(&Config::default());
    assert!(text.iter().all(|key| written[key].is_string()), "{written}");
    assert!(numbers.iter().all(|key| written[key].is_i64()), "{written}");
    assert!(switches.iter().all(|key| written[key].is_boolean()), "{written}");
    assert!(objects.iter().all(|key| written.get(key).is_some_and(Value::is_null)), "{written}");
}

#[test]
fn json_is_merged_as_go_does() {
    let mut config = Config { cpu: 4, ssh_user: "opensuse".into(), ..Config::default() };
    let json = json!({"machinename": "demo-1", "SSHPort": 2222, "Unknown": {"x": 1}, "SSHUser": null,
        "DiskInfo": {"Disks": [{"imagename": "default/leap", "size": 40, "extra": 1}]},
        "NetworkInfo": {"interfaces": null}});
    config.merge(json.to_string().as_bytes()).unwrap();
    assert_eq!((config.machine_name.as_str(), config.ssh_port, config.cpu), ("demo-1", 2222, 4));
    assert_eq!(config.ssh_user, "opensuse", "null changes nothing");
    let disk = Disk { image_name: "default/leap".into(), size: 40, ..Disk::default() };
    assert_eq!(config.disk_info, Some(DiskInfo { disks: vec![disk] }));
    assert_eq!(config.network_info, Some(NetworkInfo::default()));
    config.merge(br#"{"DiskInfo":null}"#).unwrap();
    assert_eq!(config.disk_info, None);
}

#[test]
fn a_value_of_another_type_changes_nothing_and_is_named() {
    let mut config = Config::default();
    let error = config.merge(br#"{"MachineName":"demo","SSHPort":"22"}"#).unwrap_err();
    assert!(error.contains("\"22\""), "{error}");
    assert_eq!(config, Config::default());
    assert!(config.merge(b"[]").is_err());
    assert!(config.merge(b"").is_err());
}

#[test]
fn what_was_written_is_read_back_equal() {
    let mut config = Config { machine_name: "demo-1".into(), ..Config::default() };
    let mut options = Options::defaults();
    options.set(flags::VM_LABELS, FlagValue::Text(r#"{"size":"large","Type":"x"}"#.into()));
    options.set(
        flags::HOST_DEVICE_INFO,
        FlagValue::Text(r#"{"hostDevices":[{"name":"a","deviceName":"b"}]}"#.into()),
    );
    config.take(&options).unwrap();
    let mut back = Config::default();
    back.merge(&config.to_json()).unwrap();
    assert_eq!(back, config);
    assert_eq!(config.vm_labels.unwrap().into_iter().next().unwrap(), ("Type".into(), "x".into()));
}

#[test]
fn options_become_what_upstream_stores() {
    let mut config =
        Config { machine_name: "demo-1".into(), store_path: "/store".into(), ..Config::default() };
    let notes = config.take(&Options::defaults()).unwrap();
    assert_eq!(notes.len(), 3, "only rancher-machine's own are missing: {notes:?}");
    let written = stored(&config);
    assert_eq!(written["MemorySize"], "4Gi");
    assert_eq!(written["DiskSize"], "0");
    assert_eq!(written["ReservedMemorySize"], "");
    assert_eq!(written["CPU"], 2);
    assert_eq!(written["VMNamespace"], "default");
    assert_eq!(written["SSHUser"], "root");
    assert_eq!((&written["MachineName"], &written["StorePath"]), (&json!("demo-1"), &json!("/store")));
}

#[test]
fn all_json_that_cannot_be_read_is_named_at_once() {
    let mut options = Options::defaults();
    options.set(flags::DISK_INFO, FlagValue::Text("{".into()));
    options.set(flags::NETWORK_INFO, FlagValue::Text(r#"{"interfaces":3}"#.into()));
    options.set(flags::VGPU_INFO, FlagValue::Text(r#"{"vGPURequests":[{"name":1}]}"#.into()));
    let before = Config::default();
    let mut config = before.clone();
    let faults = config.take(&options).unwrap_err();
    assert_eq!(faults.len(), 3, "{faults:?}");
    assert_eq!(config, before);
}

#[test]
fn null_changes_nothing_as_in_go() {
    let mut options = Options::defaults();
    let disks = r#"{"disks":[{"imageName":"default/leap","storageClassName":null,"size":10}]}"#;
    options.set(flags::DISK_INFO, FlagValue::Text(disks.into()));
    let nics = r#"{"interfaces":[{"networkName":"default/vlan1","macAddress":null}]}"#;
    options.set(flags::NETWORK_INFO, FlagValue::Text(nics.into()));
    options.set(flags::VGPU_INFO, FlagValue::Text(r#"{"vGPURequests":null}"#.into()));
    options.set(flags::HOST_DEVICE_INFO, FlagValue::Text("null".into()));
    options.set(flags::VM_LABELS, FlagValue::Text("null".into()));
    options.set(flags::VM_AFFINITY, FlagValue::Text("bnVsbA==".into()));
    let mut config = Config::default();
    config.take(&options).unwrap();
    let disk = Disk { image_name: "default/leap".into(), size: 10, ..Disk::default() };
    let nic = Interface { network_name: "default/vlan1".into(), ..Interface::default() };
    assert_eq!(config.disk_info, Some(DiskInfo { disks: vec![disk] }));
    assert_eq!(config.network_info, Some(NetworkInfo { interfaces: vec![nic] }));
    assert_eq!(config.vgpu_info, Some(VgpuInfo::default()));
    assert_eq!((config.host_device_info, config.vm_labels), (None, None));
    assert_eq!(config.vm_affinity, "null");
}

#[test]
fn secrets_are_not_printed() {
    let config = Config { ssh_password: Secret("tiger".into()), ..Config::default() };
    let printed = format!("{config:?}");
    assert!(printed.contains("ssh_password: (5 bytes)") && !printed.contains("tiger"), "{printed}");
}
