//! User data and network data, with which cloud-init sets the guest up at its first start.
//!
//! ```text
//! login (password, keys) ┐
//! the user's user data ──┼─ merged, the first wins, lists appended ─► user data ─┐
//! rancher-machine's file ┘  (its install script comes last)                      ├─ 2048 bytes or less: in the VM
//!                                               network data, as it was given ───┘  else: in a Secret
//! ```

use base64::{Engine as _, engine::general_purpose::STANDARD};

use crate::{
    config::Secret,
    yaml::{self, Map, Node},
};

/// KubeVirt accepts no more bytes of either text in a VM.
const INLINE_LIMIT: usize = 2048;
const HEADER: &str = "#cloud-config";
const JINJA: &str = "## template: jinja";
/// Separates the MIME parts. The parts are base64, so it cannot occur in them.
const BOUNDARY: &str = "==harvester-node-driver==";

/// Tells cloud-init how to merge the driver's part into the configuration from the user's part (`#include`,
/// `#cloud-config-archive`): it appends lists and keeps the user's values. By default it replaces the user's `runcmd`,
/// `write_files` and keys.
const MERGE_TYPE: &str = "list(append)+dict(no_replace,recurse_list)+str()";

/// User data that installs the guest agent, in one line, for error messages.
pub(crate) const AGENT_USER_DATA: &str =
    "{packages: [qemu-guest-agent], runcmd: [[systemctl, enable, --now, qemu-guest-agent.service]]}";

/// How users log in to the guest: the driver's own part of the user data.
#[derive(Clone, Debug, Default)]
pub(crate) struct Login<'a> {
    pub ssh_user: &'a str,
    /// Allows login by password.
    pub password: &'a str,
    /// Lines of `authorized_keys`.
    pub public_keys: &'a [String],
    /// Creates the user, in the group docker.
    pub docker_group: bool,
}

/// The two texts for cloud-init.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CloudInit {
    pub user_data: Secret,
    /// Empty for none.
    pub network_data: Secret,
    /// Lines for the user of the driver.
    pub notes: Vec<String>,
}

impl CloudInit {
    /// Merges the three sources. `user_data` is the user's, `install` rancher-machine's.
    ///
    /// # Errors
    /// One line: which of the two cannot be read, or does not merge with the other.
    pub(crate) fn build(
        login: &Login<'_>,
        user_data: &str,
        install: &str,
        network_data: &str,
    ) -> Result<Self, String> {
        let read = |what: &str, text: &str| {
            yaml::parse(text).map_err(|error| format!("{what} cannot be read as cloud-config: {error}"))
        };
        let install = read("the user data of rancher-machine", install)?;
        let (merged, notes) = match part_type(user_data) {
            Some(kind) => {
                let mut map = login.map();
                append_install(&mut map, install)?;
                (multipart(kind, user_data, &document(&map)), vec![])
            }
            None => {
                let mut map = login.map();
                let lost = yaml::merge(&mut map, read("the user data", user_data)?);
                append_install(&mut map, install)?;
                let note = |lost: yaml::Conflict| {
                    format!("user data: {} is not used, the driver sets it to something else", lost.path)
                };
                let template = user_data.lines().next().is_some_and(|first| first.trim_end() == JINJA);
                let header = if template { format!("{JINJA}\n") } else { String::new() };
                (header + &document(&map), lost.into_iter().map(note).collect())
            }
        };
        Ok(Self { user_data: Secret(merged), network_data: Secret(network_data.to_owned()), notes })
    }

    /// Whether a text is too long for the VM. Upstream looks only at the length of the user data, and KubeVirt then refuses
    /// long network data (docs/contract/node-driver.md#B15).
    pub(crate) fn needs_secret(&self) -> bool {
        self.user_data.0.len() > INLINE_LIMIT || self.network_data.0.len() > INLINE_LIMIT
    }
}

/// Appends rancher-machine's part. Its script installs the node, so a conflict is an error.
fn append_install(map: &mut Map, install: Map) -> Result<(), String> {
    match yaml::merge(map, install).first() {
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

impl Login<'_> {
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

/// The MIME type of user data that is no cloud-config. Like cloud-init, it goes by the first line. Upstream refuses such
/// data (docs/contract/node-driver.md#B16).
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

/// Both parts as MIME, each in base64: cloud-init reads them with Python's email module, which alters letters beyond ASCII
/// in a part without transfer encoding.
fn multipart(kind: &str, user_data: &str, own: &str) -> String {
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
        part("text/cloud-config", &format!("Merge-Type: {MERGE_TYPE}\n"), own)
    )
}

/// Base64 in lines of 76 letters (RFC 2045).
fn base64_lines(text: &str) -> String {
    let encoded = STANDARD.encode(text);
    let lines = encoded.as_bytes().chunks(76).map(String::from_utf8_lossy);
    lines.flat_map(|line| [line, "\n".into()]).collect()
}

#[cfg(test)]
mod tests;
