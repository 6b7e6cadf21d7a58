use serde_json::json;

use super::*;
use crate::{
    cloud_init::Login,
    config::{self, Config, Secret},
};

fn config() -> Config {
    let disks = vec![
        config::Disk {
            image_name: "default/leap".into(),
            size: 40,
            boot_order: 1,
            ..config::Disk::default()
        },
        config::Disk {
            storage_class_name: "fast".into(),
            size: 10,
            boot_order: 2,
            ..config::Disk::default()
        },
    ];
    let interfaces =
        vec![config::Interface { network_name: "default/vlan1".into(), ..config::Interface::default() }];
    Config {
        machine_name: "demo-pool1-x7k2m-9d4tq".into(),
        vm_namespace: "default".into(),
        cluster_name: "demo".into(),
        cpu: 4,
        memory_size: "8Gi".into(),
        disk_info: Some(config::DiskInfo { disks }),
        network_info: Some(config::NetworkInfo { interfaces }),
        enable_efi: true,
        ..Config::default()
    }
}

fn resolved() -> Resolved {
    Resolved {
        classes: BTreeMap::from([("default/leap".to_owned(), "longhorn-leap".to_owned())]),
        gpus: GpuPlace::Gpus,
        suffixes: vec!["abcde".into(), "fghjk".into(), "lmnpq".into()],
        inputs: InputHash("0f".into()),
        attempt: "a1".into(),
    }
}

fn long() -> CloudInit {
    let user_data = Secret(format!("#cloud-config\n# {}\n", "x".repeat(3000)));
    CloudInit { user_data, network_data: Secret(String::new()), notes: vec![] }
}

fn vm(config: &Config, cloud_init: &CloudInit) -> Value {
    virtual_machine(&Machine::check(config).unwrap(), cloud_init, &resolved())
}

/// The example of the contract (docs/contract/node-driver.md#8), with our two annotations and one label more.
#[test]
fn two_disks_one_nic_and_efi_make_the_vm_of_the_contract() {
    let labels = json!({
        "harvesterhci.io/creator": "docker-machine-driver-harvester",
        "harvesterhci.io/vmName": "demo-pool1-x7k2m-9d4tq",
        "harvesterhci.io/machineSetName": "default-demo-pool1",
        "guestcluster.harvesterhci.io/name": "demo",
        "nodepool.harvesterhci.io/name": "pool1-x7k2m",
        "nodepool.harvesterhci.io/pool": "pool1",
    });
    let claims = json!([
        {"metadata": {"name": "demo-pool1-x7k2m-9d4tq-disk-0-abcde",
                "annotations": {"harvesterhci.io/imageId": "default/leap"}},
            "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "40Gi"}},
                "volumeMode": "Block", "storageClassName": "longhorn-leap"}},
        {"metadata": {"name": "demo-pool1-x7k2m-9d4tq-disk-1-fghjk"},
            "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "10Gi"}},
                "volumeMode": "Block", "storageClassName": "fast"}},
    ]);
    let mut vm = vm(&config(), &long());
    let templates = vm["metadata"]["annotations"][CLAIM_TEMPLATES].take();
    assert_eq!(serde_json::from_str::<Value>(templates.as_str().unwrap()).unwrap(), claims);
    let expected = json!({
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachine",
        "metadata": {
            "name": "demo-pool1-x7k2m-9d4tq",
            "namespace": "default",
            "labels": labels,
            "annotations": {CLAIM_TEMPLATES: null, MACHINE_INPUTS: "0f", MACHINE_ATTEMPT: "a1"},
        },
        "spec": {
            "runStrategy": "RerunOnFailure",
            "template": {
                "metadata": {
                    "labels": labels,
                    "annotations": {
                        "harvesterhci.io/sshNames": "[]",
                        "harvesterhci.io/waitForLeaseInterfaceNames": "[]",
                    },
                },
                "spec": {
                    "evictionStrategy": "LiveMigrateIfPossible",
                    "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{
                        "weight": 100,
                        "podAffinityTerm": {
                            "labelSelector": {"matchExpressions": [{"key": "harvesterhci.io/creator", "operator": "Exists"}]},
                            "topologyKey": "kubernetes.io/hostname",
                        },
                    }]}},
                    "domain": {
                        "cpu": {"cores": 4, "sockets": 1, "threads": 1},
                        "resources": {"limits": {"cpu": "4", "memory": "8Gi"}},
                        "features": {"smm": {"enabled": false}},
                        "firmware": {"bootloader": {"efi": {"secureBoot": false}}},
                        "devices": {
                            "disks": [
                                {"name": "cloudinitdisk", "disk": {"bus": "virtio"}},
                                {"name": "disk-0", "disk": {"bus": "virtio"}, "bootOrder": 1},
                                {"name": "disk-1", "disk": {"bus": "virtio"}, "bootOrder": 2},
                            ],
                            "interfaces": [{"name": "nic-0", "model": "virtio", "bridge": {}}],
                        },
                    },
                    "networks": [{"name": "nic-0", "multus": {"networkName": "default/vlan1"}}],
                    "volumes": [
                        {"name": "cloudinitdisk", "cloudInitNoCloud": {
                            "secretRef": {"name": "demo-pool1-x7k2m-9d4tq-cloudinit"}}},
                        {"name": "disk-0", "persistentVolumeClaim": {"claimName": "demo-pool1-x7k2m-9d4tq-disk-0-abcde"}},
                        {"name": "disk-1", "persistentVolumeClaim": {"claimName": "demo-pool1-x7k2m-9d4tq-disk-1-fghjk"}},
                    ],
                },
            },
        },
    });
    assert_eq!(vm, expected);
}

#[test]
fn options_go_where_kubevirt_looks_for_them() {
    let mut config = config();
    config.enable_secure_boot = true;
    config.enable_tpm = true;
    config.cpu_pinning = true;
    config.isolate_emulator_thread = true;
    config.cpu_model = "host-passthrough".into();
    config.reserved_memory_size = "256Mi".into();
    config.key_pair_name = "keys/ops".into();
    config.host_device_info = Some(config::HostDeviceInfo {
        host_devices: vec![config::Device {
            name: "hostdevice-1".into(),
            device_name: "vendor.com/card".into(),
        }],
    });
    let interface = &mut config.network_info.as_mut().unwrap().interfaces[0];
    interface.mac_address = "02:00:00:00:00:01".into();
    interface.r#type = "masquerade".into();
    let disk = &mut config.disk_info.as_mut().unwrap().disks[1];
    disk.r#type = "cd-rom".into();
    disk.bus = "sata".into();
    disk.hot_plug_able = true;
    let vm = vm(&config, &long());
    let template = &vm["spec"]["template"];
    let domain = &template["spec"]["domain"];
    assert_eq!(
        domain["cpu"],
        json!({"cores": 4, "sockets": 1, "threads": 1, "dedicatedCpuPlacement": true,
        "isolateEmulatorThread": true, "model": "host-passthrough"})
    );
    assert_eq!(domain["features"], json!({"smm": {"enabled": true}}));
    assert_eq!(domain["firmware"]["bootloader"], json!({"efi": {"secureBoot": true}}));
    assert_eq!(domain["devices"]["tpm"], json!({}));
    assert_eq!(
        domain["devices"]["hostDevices"],
        json!([{"name": "hostdevice-1", "deviceName": "vendor.com/card"}])
    );
    assert_eq!(
        domain["devices"]["disks"][2],
        json!({"name": "disk-1", "cdrom": {"bus": "sata"}, "bootOrder": 2})
    );
    assert_eq!(
        domain["devices"]["interfaces"][0],
        json!({"name": "nic-0", "model": "virtio", "masquerade": {}, "macAddress": "02:00:00:00:00:01"})
    );
    assert_eq!(template["spec"]["volumes"][2]["persistentVolumeClaim"]["hotpluggable"], true);
    assert_eq!(template["metadata"]["annotations"]["harvesterhci.io/sshNames"], r#"["keys/ops"]"#);
    assert_eq!(vm["metadata"]["annotations"]["harvesterhci.io/reservedMemory"], "256Mi");
}

#[test]
fn without_efi_nothing_is_said_about_firmware() {
    let vm = vm(&Config { enable_efi: false, ..config() }, &long());
    let domain = &vm["spec"]["template"]["spec"]["domain"];
    assert!(domain.get("firmware").is_none() && domain.get("features").is_none(), "{domain}");
}

// docs/contract/node-driver.md#B25
#[test]
fn vgpus_go_where_this_harvester_wants_them() {
    let requests = vec![config::Device { name: "provisioned".into(), device_name: "nvidia.com/X".into() }];
    let machine =
        Machine::check(&Config { vgpu_info: Some(config::VgpuInfo { requests }), ..config() }).unwrap();
    for (version, place, empty) in [
        ("v1.7.1", "gpus", "hostDevices"),
        ("v1.8.0", "hostDevices", "gpus"),
        ("1.8.2-rc1", "hostDevices", "gpus"),
        // builds of a branch have no third number
        ("v1.8-head", "hostDevices", "gpus"),
        ("v1.80.1", "gpus", "hostDevices"),
        ("v11.8.0", "gpus", "hostDevices"),
        ("master-1.8.2-head", "gpus", "hostDevices"),
        ("v1.9.0-rc6", "gpus", "hostDevices"),
        ("", "gpus", "hostDevices"),
    ] {
        let resolved = Resolved { gpus: GpuPlace::of(version), ..resolved() };
        let vm = virtual_machine(&machine, &long(), &resolved);
        let devices = &vm["spec"]["template"]["spec"]["domain"]["devices"];
        assert_eq!(
            devices[place],
            json!([{"name": "provisioned", "deviceName": "nvidia.com/X"}]),
            "{version}"
        );
        assert!(devices.get(empty).is_none(), "{version}");
    }
}

#[test]
fn short_data_stands_in_the_vm_and_long_data_in_the_secret_that_goes_with_it() {
    let short = CloudInit::build(&Login::default(), "a: 1", "", "version: 2\n").unwrap();
    let source = &vm(&config(), &short)["spec"]["template"]["spec"]["volumes"][0]["cloudInitNoCloud"];
    assert_eq!(*source, json!({"userData": "#cloud-config\na: 1\n", "networkData": "version: 2\n"}));

    let both = CloudInit { network_data: Secret("version: 2\n".into()), ..long() };
    let source = &vm(&config(), &both)["spec"]["template"]["spec"]["volumes"][0]["cloudInitNoCloud"];
    assert_eq!(source["networkDataSecretRef"]["name"], "demo-pool1-x7k2m-9d4tq-cloudinit");
    let machine = Machine::check(&config()).unwrap();
    let secret = secret(&machine, &both, "uid-of-the-vm");
    assert_eq!(secret["metadata"]["name"], "demo-pool1-x7k2m-9d4tq-cloudinit");
    assert_eq!(secret["stringData"]["networkdata"], "version: 2\n");
    let owner = &secret["metadata"]["ownerReferences"][0];
    assert_eq!((&owner["kind"], &owner["uid"]), (&json!("VirtualMachine"), &json!("uid-of-the-vm")));
    assert!(owner.get("controller").is_none());
}

#[test]
fn the_same_inputs_have_the_same_hash_and_the_key_is_part_of_them() {
    let machine = Machine::check(&config()).unwrap();
    let hash = InputHash::of(&machine, "last", "key");
    assert_eq!(hash, InputHash::of(&Machine::check(&config()).unwrap(), "last", "key"));
    assert_ne!(hash, InputHash::of(&machine, "last", "another key"));
    assert_ne!(hash, InputHash::of(&machine, "other", "key"));
    let more = Config { cpu: 5, ..config() };
    assert_ne!(hash, InputHash::of(&Machine::check(&more).unwrap(), "last", "key"));
    let renewed =
        Config { kube_config_content: Secret("new".into()), create_timeout: "60".into(), ..config() };
    assert_eq!(
        hash,
        InputHash::of(&Machine::check(&renewed).unwrap(), "last", "key"),
        "no part of the machine"
    );
    assert_eq!(hash.to_string().len(), 64, "fits an annotation");
}

#[test]
fn random_name_parts_have_no_vowels_and_depend_on_the_seed() {
    let (mut one, mut same, mut other) =
        (fastrand::Rng::with_seed(1), fastrand::Rng::with_seed(1), fastrand::Rng::with_seed(2));
    let first = suffix(&mut one);
    assert_eq!(first, suffix(&mut same));
    assert_ne!(first, suffix(&mut other));
    assert!(first.len() == 5 && first.bytes().all(|letter| ALPHABET.contains(&letter)), "{first}");
}
