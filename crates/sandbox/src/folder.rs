//! The folder of one sandbox: the caller's, or a temporary one that goes when the sandbox ends, however it ends.

use std::{
    fs,
    ops::Deref,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};

/// What an earlier sandbox may have left in the caller's folder, and a new one would take for its own.
const LEFT_FOLDERS: [&str; 2] = ["servers", "bin"];
const LEFT_FILES: [&str; 3] = ["endpoints.json", "guest.audit.log", "harvester.audit.log"];

/// Removed with everything in it when it is dropped, if it is a temporary one.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    temporary: bool,
}

impl Folder {
    /// The caller's folder without what an earlier sandbox left there, or a fresh one.
    ///
    /// # Errors
    /// When there is none to be had: [`crate::WrongInput`] for the caller's.
    pub(crate) fn take(wanted: Option<&Path>) -> Result<Self> {
        let Some(dir) = wanted else { return Self::fresh() };
        fs::create_dir_all(dir)
            .map_err(|error| crate::WrongInput(format!("--dir {}: {error}", dir.display())))?;
        clear(dir).with_context(|| format!("clear what an earlier sandbox left in {}", dir.display()))?;
        Ok(Self { path: dir.canonicalize().context("find the sandbox's folder")?, temporary: false })
    }

    fn fresh() -> Result<Self> {
        let parent = std::env::temp_dir();
        for _ in 0..100 {
            let path = parent.join(format!("harvester-sandbox-{:08x}", fastrand::u32(..)));
            if fs::create_dir(&path).is_ok() {
                return Ok(Self { path, temporary: true });
            }
        }
        bail!("no folder can be made in {}: give one with --dir", parent.display())
    }
}

impl Deref for Folder {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if self.temporary
            && let Err(error) = fs::remove_dir_all(&self.path)
        {
            tracing::warn!(dir = %self.path.display(), %error, "the sandbox's folder stays behind");
        }
    }
}

fn clear(dir: &Path) -> std::io::Result<()> {
    let gone = |outcome: std::io::Result<()>| match outcome {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    };
    LEFT_FOLDERS.iter().try_for_each(|folder| gone(fs::remove_dir_all(dir.join(folder))))?;
    LEFT_FILES.iter().try_for_each(|file| gone(fs::remove_file(dir.join(file))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_temporary_folder_goes_with_its_sandbox_even_when_that_never_got_ready() {
        let folder = Folder::take(None).unwrap();
        let path = folder.to_path_buf();
        fs::write(path.join("guest.kubeconfig"), "x").unwrap();
        drop(folder);
        assert!(!path.exists());
    }

    #[test]
    fn the_callers_folder_stays_without_what_an_earlier_sandbox_left_in_it() {
        let parent = Folder::take(None).unwrap();
        let mine = parent.join("mine");
        for _ in 0..2 {
            let folder = Folder::take(Some(&mine)).unwrap();
            assert!(!folder.join("endpoints.json").exists() && !folder.join("bin").exists());
            fs::create_dir(folder.join("bin")).unwrap();
            fs::write(folder.join("endpoints.json"), "{}").unwrap();
            fs::write(folder.join("notes"), "mine").unwrap();
        }
        assert!(mine.join("notes").exists());
    }

    #[test]
    fn a_folder_that_cannot_be_is_the_callers_mistake() {
        let error = Folder::take(Some(Path::new("/proc/none"))).unwrap_err();
        assert!(error.is::<crate::WrongInput>(), "{error:#}");
    }
}
