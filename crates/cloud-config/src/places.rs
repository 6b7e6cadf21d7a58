//! Which kubeconfig counts: the source that a person or an installer gave, or the copy of it with a newer token.
//!
//! ```text
//! source: file, or mounted Secret ────────────────────────────► counts, unless …
//! copy: mounted Secret; its first line has the source's digest ─► … it is of this very source
//! ```
//! The digest is in the copy, so that both change at once: two files of a mounted Secret can be read around a swap.

use std::{
    fs,
    path::{Path, PathBuf},
};

use sha2::{Digest as _, Sha256};

use crate::{CloudConfig, Error, file::find, fingerprint::Fingerprint, proxy::Environment};

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

/// Whether the copy was made from this source as it is.
pub fn is_copy_of(copy: &str, source: &str) -> bool {
    copy.lines().next() == Some(stamp(source).as_str())
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
        let mut config = CloudConfig::read(file)?;
        if let Some(copy) = self.copy_of(&config) {
            // it names the same files
            config = CloudConfig { seen: config.seen, source: config.source, is_copy: true, ..copy };
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
        if !is_copy_of(&text, source.source()) {
            return None;
        }
        let name = file.display().to_string();
        match CloudConfig::parse(&text, &name, &Environment::of_process()) {
            Ok(copy) if copy.namespace == source.namespace => Some(copy),
            Ok(copy) => {
                let (of_copy, of_source) = (&copy.namespace, &source.namespace);
                tracing::warn!("{name} is of namespace {of_copy} instead of {of_source}: its source is used");
                None
            }
            Err(error) => {
                tracing::warn!("{error}: its source is used");
                None
            }
        }
    }
}

#[cfg(test)]
#[path = "places/tests.rs"]
mod tests;
