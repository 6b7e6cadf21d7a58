//! By what changed files are known, without reading them.

use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    time::SystemTime,
};

/// Device, inode, time of the last write, length. Links are followed: a mounted Secret is swapped as a whole, and so is a
/// file that is replaced by a rename, which gives another inode.
type Print = (u64, u64, Option<SystemTime>, u64);

/// Files as they are at one moment; one that is not there has no print.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fingerprint(Vec<(PathBuf, Option<Print>)>);

impl Fingerprint {
    pub(crate) fn of<'a>(files: impl IntoIterator<Item = &'a Path>) -> Self {
        let print = |file: &Path| {
            let data = fs::metadata(file).ok()?;
            Some((data.dev(), data.ino(), data.modified().ok(), data.len()))
        };
        Self(files.into_iter().map(|file| (file.to_owned(), print(file))).collect())
    }

    /// These files and those.
    pub(crate) fn and(mut self, more: Self) -> Self {
        self.0.extend(more.0);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rewritten_and_a_swapped_file_are_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("cloud-config");
        let now = || Fingerprint::of([&*file]);
        let absent = now();
        assert_eq!(absent, now());
        fs::write(&file, "a").unwrap();
        let first = now();
        assert_ne!(absent, first);
        let other = folder.path().join("other");
        fs::write(&other, "b").unwrap();
        fs::rename(&other, &file).unwrap();
        assert_ne!(first, now(), "same length, perhaps the same time, another inode");
    }
}
