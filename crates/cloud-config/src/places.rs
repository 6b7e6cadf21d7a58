//! Which kubeconfig counts: the source that a person or an installer gave, or the copy of it with a newer token.
//!
//! ```text
//! source: file, or mounted Secret ────────────────────────────► counts, unless …
//! copy: mounted Secret; its first line has the source's digest ─► … it is this very source with another token of its account
//! ```
//! The digest is in the copy, so that both change at once: two files of a mounted Secret can be read around a swap. Whoever
//! may write the copy gives a token, and neither another server nor anything else.

use std::{
    fs,
    path::{Path, PathBuf},
};

use kube::config::Kubeconfig;
use secrecy::{ExposeSecret as _, SecretString};
use sha2::{Digest as _, Sha256};

use crate::{CloudConfig, Error, expiry::claims, file::find, fingerprint::Fingerprint};

/// Key of the copy in its Secret, and its name in the folder in which that is mounted.
pub const COPY_KEY: &str = "cloud-config";
/// A comment in YAML: the copy is a kubeconfig like any other.
const STAMP: &str = "# made from sha256:";

fn stamp(source: &str) -> String {
    let digest = Sha256::digest(source);
    let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{STAMP}{digest}")
}

/// The copy, with the digest of the source that it was made from.
pub fn copy(source: &str, text: &str) -> String {
    format!("{}\n{text}", stamp(source))
}

/// Whether the copy is this source as it is, with another token of the same account.
pub fn is_copy_of(copy: &str, source: &str) -> bool {
    token_of_copy(copy, source).is_some()
}

/// The token of the copy, if the copy is this source as it is with another token of the same account. The copy is not
/// parsed: anybody may have written it.
pub fn token_of_copy<'a>(copy: &'a str, source: &str) -> Option<&'a str> {
    let text = copy.strip_prefix(&stamp(source))?.strip_prefix('\n')?;
    let old = token_of(source, None)?;
    let (head, _) = source.split_once(&old)?;
    let rest = text.strip_prefix(head)?;
    let is_of_token = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
    let new = rest.split(|letter| !is_of_token(letter)).next()?;
    let is_newer = claims(new)?["sub"] == claims(&old)?["sub"];
    (is_newer && text == source.replace(&old, new)).then_some(new)
}

/// The token of the context's user in a kubeconfig, without white space around it; without `context` of the current one.
pub fn token_of(text: &str, context: Option<&str>) -> Option<String> {
    let kubeconfig = Kubeconfig::from_yaml(text).ok()?;
    let wanted = context.map(str::to_owned).or(kubeconfig.current_context)?;
    let context = kubeconfig.contexts.into_iter().find(|named| named.name == wanted)?.context?;
    let user = kubeconfig.auth_infos.into_iter().find(|named| Some(&named.name) == context.user.as_ref())?;
    let token = user.auth_info?.token?;
    let token = token.expose_secret().trim();
    (!token.is_empty()).then(|| token.to_owned())
}

/// Where a kubeconfig is looked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Places {
    /// The file or the folder of the source; none: the usual places.
    pub given: Option<PathBuf>,
    /// The folder in which the Secret of the copy is mounted.
    pub rotated: Option<PathBuf>,
}

impl From<Option<PathBuf>> for Places {
    fn from(given: Option<PathBuf>) -> Self {
        Self { given, rotated: None }
    }
}

impl Places {
    /// The kubeconfig that counts.
    ///
    /// # Errors
    /// Where the source is not there or of no use; a copy that is of no use is as none.
    pub fn read(&self) -> Result<CloudConfig, Error> {
        self.read_at(&find(self.given.as_deref())?)
    }

    pub(crate) fn read_at(&self, file: &Path) -> Result<CloudConfig, Error> {
        // before it is read: what changes meanwhile counts as changed
        let seen = Fingerprint::of(self.copy().as_deref());
        let mut config = CloudConfig::read_own(file)?;
        if let Some(copy) = self.copy_of(&config) {
            config = copy;
        }
        config.seen = config.seen.and(seen);
        Ok(config)
    }

    /// The file of the copy, if there is a place for one.
    pub(crate) fn copy(&self) -> Option<PathBuf> {
        self.rotated.as_ref().map(|folder| folder.join(COPY_KEY))
    }

    fn copy_of(&self, source: &CloudConfig) -> Option<CloudConfig> {
        let file = self.copy()?;
        let text = fs::read_to_string(&file).ok()?;
        let name = file.display().to_string();
        let Some(token) = token_of_copy(&text, source.source()) else {
            // one of a former source is usual
            if text.starts_with(&stamp(source.source())) {
                tracing::warn!(
                    "{name} is more than its source with another token of the account: the source is used"
                );
            }
            return None;
        };
        let source_token = source.token().map(SecretString::from);
        Some(CloudConfig { file: name, source_token, ..source.with_token(token) })
    }
}

#[cfg(test)]
#[path = "places/tests.rs"]
mod tests;
