use rstest::rstest;

use super::*;

mod guest;

const LAST: &str = "#cloud-config
hostname: demo-1
write_files:
- content: H4sIAAAA
  encoding: gzip+b64
  path: /usr/local/custom_script/install.sh
  permissions: '0644'
runcmd:
- sh /usr/local/custom_script/install.sh
";

fn build(theirs: &str, last: &str) -> Result<CloudInit, String> {
    let keys = ["ssh-rsa AAAA\n".to_owned()];
    let login = Login { ssh_user: "opensuse", public_keys: &keys, ..Login::default() };
    CloudInit::build(&login, theirs, last, "")
}

fn user_data(theirs: &str, last: &str) -> String {
    build(theirs, last).unwrap().user_data.0
}

#[test]
fn the_install_script_comes_after_what_the_user_runs_and_scalars_keep_their_text() {
    let theirs = "#cloud-config\nhostname: mine\npackages: [qemu-guest-agent]\nrepo_update: yes\n\
                      write_files: [{path: /a, permissions: 012, content: 1e3}]\nruncmd:\n- [systemctl, start, x]\n";
    let expected = "#cloud-config
ssh_authorized_keys:
  - \"ssh-rsa AAAA\"
hostname: mine
packages:
  - qemu-guest-agent
repo_update: yes
write_files:
  - path: /a
    permissions: 012
    content: 1e3
  - content: H4sIAAAA
    encoding: gzip+b64
    path: /usr/local/custom_script/install.sh
    permissions: \"0644\"
runcmd:
  - - systemctl
    - start
    - x
  - sh /usr/local/custom_script/install.sh
";
    assert_eq!(user_data(theirs, LAST), expected);
}

#[test]
fn user_data_without_the_header_is_read_too() {
    assert_eq!(user_data("packages: [a]\n", ""), user_data("#cloud-config\npackages: [a]\n", ""));
}

#[test]
fn a_template_stays_one() {
    let text = user_data("## template: jinja\n#cloud-config\nfqdn: '{{ v1.local_hostname }}'\n", "");
    assert!(text.starts_with("## template: jinja\n#cloud-config\nssh_authorized_keys:\n"), "{text}");
    assert!(text.contains("fqdn: \"{{ v1.local_hostname }}\"\n"), "{text}");
}

#[test]
fn a_password_opens_login_by_password_and_the_users_own_list_of_keys_is_appended() {
    let keys = ["ssh-rsa AAAA\n".to_owned()];
    let login = Login { ssh_user: "opensuse", password: "007", public_keys: &keys, docker_group: false };
    let built = CloudInit::build(&login, "ssh_authorized_keys: [ssh-ed25519 BBBB]", "", "").unwrap();
    let expected = "#cloud-config\nuser: \"opensuse\"\npassword: \"007\"\nchpasswd:\n  expire: false\nssh_pwauth: true\n\
            ssh_authorized_keys:\n  - \"ssh-rsa AAAA\"\n  - ssh-ed25519 BBBB\n";
    assert_eq!(built.user_data.0, expected);
}

#[test]
fn a_hand_made_configuration_may_ask_for_a_docker_user() {
    let keys = ["ssh-rsa AAAA".to_owned()];
    let login = Login { ssh_user: "core", public_keys: &keys, docker_group: true, ..Login::default() };
    let text = CloudInit::build(&login, "", "", "").unwrap().user_data.0;
    assert!(text.contains("groups:\n  - \"docker\"\nusers:\n  - name: \"core\"\n"), "{text}");
    assert!(!text.starts_with("#cloud-config\nssh_authorized_keys"), "{text}");
}

// docs/contract/node-driver.md#B16
#[test]
fn a_script_is_kept_beside_our_part() {
    let text = user_data("#!/bin/sh\necho 'a: b'\n", LAST);
    assert!(text.starts_with("Content-Type: multipart/mixed;"), "{text}");
    let parts: Vec<String> = text
        .split("--==harvester-node-driver==")
        .filter_map(|part| part.split_once("\n\n"))
        .filter_map(|(_, body)| STANDARD.decode(body.replace('\n', "")).ok())
        .map(|bytes| String::from_utf8(bytes).unwrap())
        .filter(|part| !part.is_empty())
        .collect();
    assert_eq!(parts.len(), 2, "{text}");
    assert_eq!(parts[0], "#!/bin/sh\necho 'a: b'\n");
    assert!(parts[1].starts_with("#cloud-config\n") && parts[1].contains("install.sh"), "{}", parts[1]);
    assert!(text.is_ascii() && text.lines().all(|line| line.len() <= 80), "{text}");
    for header in ["Content-Type: text/x-shellscript;", "Content-Type: text/cloud-config;"] {
        assert!(text.contains(header), "{text}");
    }
}

#[rstest]
#[case::list("- a\n", "the user data cannot be read as cloud-config: it is no mapping")]
#[case::broken("a: [", "the user data cannot be read as cloud-config")]
#[case::runcmd_as_text("runcmd: reboot\n", "runcmd must be a list, because rancher-machine appends")]
fn what_cannot_be_carried_out_is_refused(#[case] theirs: &str, #[case] part: &str) {
    let error = build(theirs, LAST).unwrap_err();
    assert!(error.contains(part), "{error}");
    assert!(error.lines().count() == 1 && !error.contains('"'), "{error}");
}

#[test]
fn what_the_driver_overrides_is_told() {
    let login = Login { ssh_user: "a", password: "b", ..Login::default() };
    let built = CloudInit::build(&login, "chpasswd: [x]", "", "").unwrap();
    assert_eq!(built.notes, ["user data: chpasswd is not used, the driver sets it to something else"]);
}

#[test]
fn the_agents_user_data_is_good_user_data() {
    assert!(user_data(AGENT_USER_DATA, LAST).contains("- qemu-guest-agent\n"));
}

// docs/contract/node-driver.md#B15: each text by its own length
#[rstest]
#[case::short(10, 10, false)]
#[case::long_user_data(3000, 0, true)]
#[case::long_network_data(0, 2049, true)]
#[case::just_fits(0, 2048, false)]
fn long_texts_go_into_a_secret(#[case] user: usize, #[case] network: usize, #[case] expected: bool) {
    let theirs = format!("a: {}\n", "x".repeat(user));
    let built = CloudInit::build(&Login::default(), &theirs, "", &"n".repeat(network)).unwrap();
    assert_eq!(built.needs_secret(), expected);
}
