//! What the guest is told at its first start.
//!
//! ```text
//! ours (password, keys) ─┐
//! the user's user data ──┼─ merged, the first wins, lists appended ─► user data ─┐
//! rancher-machine's file ┘  (its install script comes last)                      ├─ 2048 bytes or less: in the VM
//!                                               network data, as it was given ───┘  else: in a Secret
//! ```

use crate::{
    config::Secret,
    yaml::{self, Map, Node},
};

/// KubeVirt takes no more of either inside of a VM.
const INLINE_LIMIT: usize = 2048;
const HEADER: &str = "#cloud-config";
const JINJA: &str = "## template: jinja";
/// Separates the parts where the user's data is no YAML; it stands in no sensible script.
const BOUNDARY: &str = "==harvester-node-driver==";

/// User data that installs the guest agent, in one line: what to say to users whose image has none.
pub const AGENT_USER_DATA: &str =
    "{packages: [qemu-guest-agent], runcmd: [[systemctl, enable, --now, qemu-guest-agent.service]]}";

/// What the driver itself has to say to the guest.
#[derive(Clone, Debug, Default)]
pub struct Ours<'a> {
    pub ssh_user: &'a str,
    /// Allows login by password.
    pub password: &'a str,
    /// Lines of `authorized_keys`.
    pub public_keys: &'a [String],
    /// The user gets a login of its own in the group docker.
    pub docker_group: bool,
}

/// Both texts, and where they go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CloudInit {
    pub user_data: Secret,
    /// Empty for none.
    pub network_data: Secret,
    /// What is worth a word to the user.
    pub notes: Vec<String>,
}

impl CloudInit {
    /// Merges everything. `theirs` is the user's user data, `last` rancher-machine's.
    ///
    /// # Errors
    /// One line: which of the two cannot be read, or cannot be carried out beside the other.
    pub fn build(ours: &Ours<'_>, theirs: &str, last: &str, network_data: &str) -> Result<Self, String> {
        let read = |what: &str, text: &str| {
            yaml::parse(text).map_err(|error| format!("{what} cannot be read as cloud-config: {error}"))
        };
        let last = read("the user data of rancher-machine", last)?;
        let (user_data, notes) = match part_type(theirs) {
            Some(kind) => {
                let mut map = ours.map();
                append_last(&mut map, last)?;
                (multipart(kind, theirs, &document(&map)), vec![])
            }
            None => {
                let mut map = ours.map();
                let lost = yaml::merge(&mut map, read("the user data", theirs)?);
                append_last(&mut map, last)?;
                let note = |lost: yaml::Conflict| {
                    format!("user data: {} is not used, the driver sets it to something else", lost.path)
                };
                let template = theirs.lines().next().is_some_and(|first| first.trim_end() == JINJA);
                let header = if template { format!("{JINJA}\n") } else { String::new() };
                (header + &document(&map), lost.into_iter().map(note).collect())
            }
        };
        Ok(Self { user_data: Secret(user_data), network_data: Secret(network_data.to_owned()), notes })
    }

    /// Whether the texts are too long to stand in the VM. Upstream asks only for the length of the user data, and KubeVirt
    /// then refuses long network data (pitfalls-node-driver.md B15).
    pub fn needs_secret(&self) -> bool {
        self.user_data.0.len() > INLINE_LIMIT || self.network_data.0.len() > INLINE_LIMIT
    }
}

/// rancher-machine's part is the script that makes the machine a node: losing it is no small thing.
fn append_last(map: &mut Map, last: Map) -> Result<(), String> {
    match yaml::merge(map, last).first() {
        None => Ok(()),
        Some(lost) => Err(format!(
            "user data: {0} must be a list, because rancher-machine appends its install script to it",
            lost.path
        )),
    }
}

fn document(map: &Map) -> String {
    format!("{HEADER}\n{}", map.to_yaml())
}

impl Ours<'_> {
    fn map(&self) -> Map {
        let mut map = Map::default();
        if !self.password.is_empty() {
            let kept = Map::default().with("expire", Node::plain("false"));
            map = map
                .with("user", Node::text(self.ssh_user))
                .with("password", Node::text(self.password))
                .with("chpasswd", Node::Map(kept))
                .with("ssh_pwauth", Node::plain("true"));
        }
        let keys = || Node::list(self.public_keys.iter().map(|key| Node::text(key.trim())));
        if self.public_keys.is_empty() {
            return map;
        }
        if !self.docker_group {
            return map.with("ssh_authorized_keys", keys());
        }
        let user = Map::default()
            .with("name", Node::text(self.ssh_user))
            .with("sudo", Node::text("ALL=(ALL) NOPASSWD:ALL"))
            .with("groups", Node::text("sudo, docker"))
            .with("shell", Node::text("/bin/bash"))
            .with("ssh_authorized_keys", keys());
        map.with("groups", Node::list([Node::text("docker")])).with("users", Node::list([Node::Map(user)]))
    }
}

/// The MIME type of user data that is no cloud-config, by its first line as cloud-init tells them apart. Upstream refuses
/// it (pitfalls-node-driver.md B16).
fn part_type(text: &str) -> Option<&'static str> {
    let known = [
        ("#!", "text/x-shellscript"),
        ("#include-once", "text/x-include-once-url"),
        ("#include", "text/x-include-url"),
        ("#cloud-boothook", "text/cloud-boothook"),
        ("#cloud-config-archive", "text/cloud-config-archive"),
        ("#part-handler", "text/part-handler"),
    ];
    known.into_iter().find(|(start, _)| text.starts_with(start)).map(|(_, kind)| kind)
}

fn multipart(kind: &str, theirs: &str, ours: &str) -> String {
    let part = |kind: &str, text: &str| {
        format!("--{BOUNDARY}\nContent-Type: {kind}; charset=\"utf-8\"\nMIME-Version: 1.0\n\n{text}\n")
    };
    format!(
        "Content-Type: multipart/mixed; boundary=\"{BOUNDARY}\"\nMIME-Version: 1.0\n\n{}{}--{BOUNDARY}--\n",
        part(kind, theirs),
        part("text/cloud-config", ours)
    )
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

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
        let ours = Ours { ssh_user: "opensuse", public_keys: &keys, ..Ours::default() };
        CloudInit::build(&ours, theirs, last, "")
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
        let ours = Ours { ssh_user: "opensuse", password: "007", public_keys: &keys, docker_group: false };
        let built = CloudInit::build(&ours, "ssh_authorized_keys: [ssh-ed25519 BBBB]", "", "").unwrap();
        let expected = "#cloud-config\nuser: \"opensuse\"\npassword: \"007\"\nchpasswd:\n  expire: false\nssh_pwauth: true\n\
            ssh_authorized_keys:\n  - \"ssh-rsa AAAA\"\n  - ssh-ed25519 BBBB\n";
        assert_eq!(built.user_data.0, expected);
    }

    #[test]
    fn a_hand_made_configuration_may_ask_for_a_docker_user() {
        let keys = ["ssh-rsa AAAA".to_owned()];
        let ours = Ours { ssh_user: "core", public_keys: &keys, docker_group: true, ..Ours::default() };
        let text = CloudInit::build(&ours, "", "", "").unwrap().user_data.0;
        assert!(text.contains("groups:\n  - \"docker\"\nusers:\n  - name: \"core\"\n"), "{text}");
        assert!(!text.starts_with("#cloud-config\nssh_authorized_keys"), "{text}");
    }

    // pitfalls-node-driver.md B16
    #[test]
    fn a_script_is_kept_beside_our_part() {
        let text = user_data("#!/bin/sh\necho 'a: b'\n", LAST);
        assert!(text.starts_with("Content-Type: multipart/mixed;"), "{text}");
        assert!(text.contains(
            "text/x-shellscript; charset=\"utf-8\"\nMIME-Version: 1.0\n\n#!/bin/sh\necho 'a: b'\n"
        ));
        assert!(text.contains("text/cloud-config") && text.contains("install.sh"), "{text}");
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
        let ours = Ours { ssh_user: "a", password: "b", ..Ours::default() };
        let built = CloudInit::build(&ours, "chpasswd: [x]", "", "").unwrap();
        assert_eq!(built.notes, ["user data: chpasswd is not used, the driver sets it to something else"]);
    }

    #[test]
    fn the_agents_user_data_is_good_user_data() {
        assert!(user_data(AGENT_USER_DATA, LAST).contains("- qemu-guest-agent\n"));
    }

    // pitfalls-node-driver.md B15: each text by its own length
    #[rstest]
    #[case::short(10, 10, false)]
    #[case::long_user_data(3000, 0, true)]
    #[case::long_network_data(0, 2049, true)]
    #[case::just_fits(0, 2048, false)]
    fn long_texts_go_into_a_secret(#[case] user: usize, #[case] network: usize, #[case] expected: bool) {
        let theirs = format!("a: {}\n", "x".repeat(user));
        let built = CloudInit::build(&Ours::default(), &theirs, "", &"n".repeat(network)).unwrap();
        assert_eq!(built.needs_secret(), expected);
    }
}
