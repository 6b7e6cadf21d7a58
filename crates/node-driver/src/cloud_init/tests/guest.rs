//! User data as a guest reads it: by cloud-init itself, in Python (`tests/cloud-init`).

use std::{
    env,
    io::Write as _,
    path::Path,
    process::{Command, Stdio},
};

use serde_json::{Value, json};

use super::{LAST, user_data};
use crate::{
    network_data::{self, Placed},
    pools::Lease,
};

/// cloud-init cannot be imported.
const MISSING: i32 = 3;
const HELP: &str = "no cloud-init for the node driver's data: run tests/cloud-init/install.sh";

/// The parts, and the configuration that cloud-init merges; none without Python and cloud-init, which is told on standard
/// error.
fn read_by_cloud_init(user_data: &str) -> Option<Value> {
    told_by("user_data.py", user_data)
}

/// What a script prints that lets cloud-init read the text.
fn told_by(script: &str, text: &str) -> Option<Value> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/cloud-init").join(script);
    let mut python = Command::new("python3");
    python.arg(script).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    if let Some(cache) = outside_tools::cache() {
        let path = env::var("PYTHONPATH").unwrap_or_default();
        python.env("PYTHONPATH", format!("{path}:{}", cache.join("cloud-init").display()));
    }
    let read = python.spawn().ok().map(|mut child| {
        let mut input = child.stdin.take().unwrap();
        // Python ends before it reads where cloud-init is missing
        input.write_all(text.as_bytes()).ok();
        drop(input);
        child.wait_with_output().unwrap()
    });
    let read = read.filter(|output| output.status.code() != Some(MISSING));
    let Some(output) = read else {
        assert!(env::var_os("CI").is_none(), "{HELP}");
        writeln!(std::io::stderr(), "skipped: {HELP}").unwrap();
        return None;
    };
    assert!(output.status.success(), "{}\n{text}", String::from_utf8_lossy(&output.stderr));
    Some(serde_json::from_slice(&output.stdout).unwrap())
}

/// What rancher-machine's part asks for.
fn install() -> Value {
    json!("sh /usr/local/custom_script/install.sh")
}

#[test]
fn a_script_with_any_letters_reaches_the_guest_unchanged() {
    let script = "#!/bin/sh\necho 'Grüße, 東京 🚜'\n";
    let Some(read) = read_by_cloud_init(&user_data(script, LAST)) else { return };
    assert_eq!(read["parts"][0], json!({"type": "text/x-shellscript", "text": script}));
    assert_eq!(read["parts"][1]["type"], "text/cloud-config");
    assert_eq!(read["config"]["runcmd"], json!([install()]));
    assert_eq!(read["config"]["ssh_authorized_keys"], json!(["ssh-rsa AAAA"]));
}

#[test]
fn what_an_archive_asks_for_survives_beside_the_drivers_part() {
    let archive = "#cloud-config-archive
- type: text/cloud-config
  content: |
    #cloud-config
    hostname: mine
    runcmd: [echo grüß dich]
    write_files: [{path: /a, content: a}]
    ssh_authorized_keys: [ssh-ed25519 BBBB]
    chpasswd: {list: 'a:b'}
- '#!/bin/sh
  echo ü'
";
    let Some(read) = read_by_cloud_init(&user_data(archive, LAST)) else { return };
    let config = &read["config"];
    assert_eq!(config["runcmd"], json!(["echo grüß dich", install()]));
    assert_eq!(config["ssh_authorized_keys"], json!(["ssh-ed25519 BBBB", "ssh-rsa AAAA"]));
    let paths: Vec<&Value> =
        config["write_files"].as_array().unwrap().iter().map(|file| &file["path"]).collect();
    assert_eq!(paths, ["/a", "/usr/local/custom_script/install.sh"]);
    assert_eq!(config["hostname"], "mine", "the user's values win, as in one document");
    assert_eq!(config["chpasswd"], json!({"list": "a:b"}));
}

#[test]
fn what_an_included_document_asks_for_survives_beside_the_drivers_part() {
    let folder = tempfile::tempdir().unwrap();
    let included = folder.path().join("included");
    let document =
        "#cloud-config\nruncmd: [echo ü]\nwrite_files: [{path: /a}]\nssh_authorized_keys: [mine]\n";
    std::fs::write(&included, document).unwrap();
    let include = format!("#include\nfile://{}\n", included.display());
    let Some(read) = read_by_cloud_init(&user_data(&include, LAST)) else { return };
    let config = &read["config"];
    assert_eq!(config["runcmd"], json!(["echo ü", install()]));
    assert_eq!(config["ssh_authorized_keys"], json!(["mine", "ssh-rsa AAAA"]));
    assert_eq!(config["write_files"].as_array().unwrap().len(), 2);
}

#[test]
fn one_document_is_read_as_it_was_merged() {
    let theirs = "packages: [qemu-guest-agent]\nruncmd: [[echo, ü]]\n";
    let Some(read) = read_by_cloud_init(&user_data(theirs, LAST)) else { return };
    assert_eq!(read["config"]["runcmd"], json!([["echo", "ü"], install()]));
    assert_eq!(read["config"]["packages"], json!(["qemu-guest-agent"]));
    assert_eq!(read["config"]["hostname"], "demo-1");
}

#[test]
fn a_guest_has_the_static_address_of_its_network_data_on_the_nic_of_that_mac() {
    let lease = Lease { address: "192.0.2.9/24".to_owned(), gateway: Some("192.0.2.1".to_owned()) };
    let servers = [[192, 0, 2, 53].into()];
    let data = network_data::of(&[
        Placed { mac: "02:00:00:00:00:0a", lease: Some(&lease), nameservers: &servers },
        Placed { mac: "02:00:00:00:00:0b", lease: None, nameservers: &[] },
    ]);
    let Some(read) = told_by("network_data.py", &data) else { return };
    let nics = &read["network"]["ethernets"];
    assert_eq!(nics["eth0"]["match"]["macaddress"], "02:00:00:00:00:0a");
    assert_eq!(nics["eth0"]["addresses"], json!(["192.0.2.9/24"]));
    assert_eq!(nics["eth0"]["nameservers"]["addresses"], json!(["192.0.2.53"]));
    // the key depends on the release of cloud-init
    assert!(nics["eth0"].to_string().contains("192.0.2.1\""), "{read}");
    assert_eq!(nics["eth1"]["dhcp4"], true);
}
