//! What the guest is told at its first start.
//!
//! ```text
//! ours (password, keys) ─┐
//! the user's user data ──┼─ merged, the first wins, lists appended ─► user data ─┐
//! rancher-machine's file ┘  (its install script comes last)                      ├─ 2048 bytes or less: in the VM
//!                                               network data, as it was given ───┘  else: in a Secret
//! ```

use base64::{Engine as _, engine::general_purpose::STANDARD};

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

/// How cloud-init merges the driver's part into what the user's part brought (`#include`, `#cloud-config-archive`): lists
/// are appended, and the user's values stay. By default it would replace the user's `runcmd` and `write_files`.
const MERGE_TYPE: &str = "list(append)+dict(no_replace,recurse_list)+str()";

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

/// Both parts as MIME. Each is base64: Python's email module, with which cloud-init reads them, takes letters beyond ASCII
/// for another encoding where a part has none.
fn multipart(kind: &str, user_data: &str, ours: &str) -> String {
    let part = |kind: &str, merge: &str, text: &str| {
        let lines = base64_lines(text);
        format!(
            "--{BOUNDARY}\nContent-Type: {kind}; charset=\"utf-8\"\nMIME-Version: 1.0\nContent-Transfer-Encoding: \
             base64\n{merge}\n{lines}"
        )
    };
    format!(
        "Content-Type: multipart/mixed; boundary=\"{BOUNDARY}\"\nMIME-Version: 1.0\n\n{}{}--{BOUNDARY}--\n",
        part(kind, "", user_data),
        part("text/cloud-config", &format!("Merge-Type: {MERGE_TYPE}\n"), ours)
    )
}

/// Base64 in lines as RFC 2045 has them.
fn base64_lines(text: &str) -> String {
    let encoded = STANDARD.encode(text);
    let lines = encoded.as_bytes().chunks(76).map(String::from_utf8_lossy);
    lines.flat_map(|line| [line, "\n".into()]).collect()
}

#[cfg(test)]
mod tests;
