//! What a machine is made of, for people to look at: `tests/golden`. `UPDATE_GOLDEN=1` writes the files anew.

use std::path::Path;

use rstest::rstest;

use crate::wire::program;

const POOL: &[&str] = &[
    "--harvester-cluster-name=demo",
    "--harvester-vm-namespace=shop",
    "--harvester-cpu-count=4",
    "--harvester-memory-size=8",
    r#"--harvester-disk-info={"disks":[{"imageName":"default/leap","bootOrder":1,"size":40},{"storageClassName":"fast","size":10}]}"#,
    r#"--harvester-network-info={"interfaces":[{"networkName":"default/vlan1","macAddress":""}]}"#,
    "--harvester-enable-efi",
    "--harvester-user-data=#cloud-config\npackages: [qemu-guest-agent]\nrepo_update: yes\nmode: 012\n",
];

const OLD_FORM: &[&str] = &[
    "--harvester-image-name=leap",
    "--harvester-disk-size=20",
    "--harvester-network-name=vlan1",
    "--harvester-ssh-user=opensuse",
    "--harvester-ssh-password=tiger",
    "--harvester-network-data=version: 2\nethernets: {enp1s0: {dhcp4: true}}\n",
];

#[rstest]
#[case::pool("pool.yaml", POOL)]
#[case::old_form("old-form.yaml", OLD_FORM)]
fn the_objects_are_as_before(#[case] file: &str, #[case] flags: &[&str]) {
    let told = program().arg("render").args(flags).arg("demo-pool1-x7k2m-9d4tq").output().unwrap();
    assert!(told.status.success(), "{}", String::from_utf8_lossy(&told.stderr));
    let rendered = String::from_utf8(told.stdout).unwrap();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(file);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, &rendered).unwrap();
    }
    let expected =
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert_eq!(rendered, expected, "UPDATE_GOLDEN=1 writes {file} anew");
}

#[test]
fn faults_are_said_all_at_once() {
    let told = program().args(["render", "--harvester-cpu-count=0", "demo-1"]).output().unwrap();
    let text = String::from_utf8(told.stderr).unwrap();
    assert_eq!((told.status.code(), text.lines().count()), (Some(1), 4), "{text}");
}
