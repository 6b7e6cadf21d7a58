//! The folder of one sandbox: the caller's, or a temporary one that goes when the sandbox ends, however it ends.
//!
//! ```text
//! DIR/                         kubeconfigs, endpoints.json, audit logs and logs of the parts: what people look at
//! DIR/.harvester-sandbox/lock  held by the sandbox that runs here; that it exists says that a sandbox was here before
//! DIR/.harvester-sandbox/run/  what only the sandbox itself needs: another's goes when a new one begins
//! ```
//! The sandbox neither removes nor overwrites a file that no sandbox made.

use std::{
    fmt::Display,
    fs::{self, File, TryLockError},
    io,
    ops::Deref,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};

use crate::WrongInput;

/// Where everything is that is not for people.
const OWN: &str = ".harvester-sandbox";
const LOCK: &str = "lock";
const RUN: &str = "run";

/// Files that programs wait for or read from the beginning: an earlier sandbox's files go before anything starts.
const CLEARED: [&str; 3] = ["endpoints.json", "guest.audit.log", "harvester.audit.log"];
/// Files that every sandbox writes anew. The logs of the parts are not among them: they go on where they ended.
const WRITTEN: [&str; 8] = [
    "guest.kubeconfig",
    "harvester.kubeconfig",
    "webhook.kubeconfig",
    "load-balancer.kubeconfig",
    "cloud-controller-manager.kubeconfig",
    "cloud-config",
    "csi-driver.kubeconfig",
    "csi-driver-cloud-config",
];

/// Removed with everything in it when it is dropped, if it is a temporary one.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    hold: Hold,
}

#[derive(Debug)]
enum Hold {
    Temporary,
    /// The caller's: nobody else begins here until this file is closed.
    Callers {
        _lock: File,
    },
}

impl Folder {
    /// The caller's folder without what an earlier sandbox left there, or a fresh one.
    ///
    /// # Errors
    /// When there is none to be had. [`WrongInput`] for the caller's: it cannot be written to, another sandbox runs
    /// there, or files of others would be overwritten.
    pub(crate) fn take(wanted: Option<&Path>) -> Result<Self> {
        let folder = match wanted {
            Some(dir) => Self::callers(dir)?,
            None => Self::fresh()?,
        };
        fs::create_dir_all(folder.run()).context("make the sandbox's own folder")?;
        Ok(folder)
    }

    /// For what only the sandbox itself needs.
    pub(crate) fn run(&self) -> PathBuf {
        self.path.join(OWN).join(RUN)
    }

    fn callers(dir: &Path) -> Result<Self> {
        let wrong = |what: &dyn Display| WrongInput(format!("--dir {}: {what}", dir.display()));
        let own = dir.join(OWN);
        fs::create_dir_all(dir).map_err(|error| wrong(&error))?;
        if !own.join(LOCK).is_file() {
            let others = others(&names(dir).map_err(|error| wrong(&error))?);
            if !others.is_empty() {
                let what = "would be overwritten, and no sandbox made it";
                let what = format!("{} {what}: move it away, or choose another folder", others.join(", "));
                return Err(wrong(&what).into());
            }
        }
        let lock = fs::create_dir_all(&own).and_then(|()| File::create(own.join(LOCK)));
        let lock = lock.map_err(|error| wrong(&error))?;
        lock.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => {
                wrong(&"another sandbox runs there: end it, or choose another folder")
            }
            TryLockError::Error(error) => wrong(&error),
        })?;
        clear(dir).with_context(|| format!("clear what an earlier sandbox left in {}", dir.display()))?;
        let path = dir.canonicalize().context("find the sandbox's folder")?;
        Ok(Self { path, hold: Hold::Callers { _lock: lock } })
    }

    fn fresh() -> Result<Self> {
        let parent = std::env::temp_dir();
        for _ in 0..100 {
            let path = parent.join(format!("harvester-sandbox-{:08x}", fastrand::u32(..)));
            if fs::create_dir(&path).is_ok() {
                return Ok(Self { path, hold: Hold::Temporary });
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
        if matches!(self.hold, Hold::Temporary)
            && let Err(error) = fs::remove_dir_all(&self.path)
        {
            tracing::warn!(dir = %self.path.display(), %error, "the sandbox's folder stays behind");
        }
    }
}

/// Of the names in a folder in which no sandbox was yet: those that a sandbox would overwrite.
fn others(names: &[String]) -> Vec<&'static str> {
    let ours = CLEARED.into_iter().chain(WRITTEN);
    ours.filter(|ours| names.iter().any(|name| name == ours)).collect()
}

fn names(dir: &Path) -> io::Result<Vec<String>> {
    fs::read_dir(dir)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

/// The caller holds the lock, and every name is a sandbox's.
fn clear(dir: &Path) -> io::Result<()> {
    let gone = |outcome: io::Result<()>| match outcome {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    };
    gone(fs::remove_dir_all(dir.join(OWN).join(RUN)))?;
    CLEARED.iter().try_for_each(|file| gone(fs::remove_file(dir.join(file))))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn refusal(dir: &Path) -> String {
        let error = Folder::take(Some(dir)).unwrap_err();
        assert!(error.is::<WrongInput>(), "{error:#}");
        error.to_string().replace(&dir.display().to_string(), "DIR")
    }

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
            assert!(!folder.join("endpoints.json").exists() && !folder.run().join("bin").exists());
            fs::create_dir(folder.run().join("bin")).unwrap();
            fs::write(folder.join("endpoints.json"), "{}").unwrap();
            fs::write(folder.join("guest.kubeconfig"), "").unwrap();
        }
    }

    #[test]
    fn what_the_caller_has_in_the_folder_stays_whatever_its_name() {
        let mine = Folder::take(None).unwrap();
        let files = ["bin/tool", "servers/notes", "rancher/notes", "run/notes", "notes"];
        for file in files {
            fs::create_dir_all(mine.join(file).parent().unwrap()).unwrap();
            fs::write(mine.join(file), "mine").unwrap();
        }
        for _ in 0..2 {
            drop(Folder::take(Some(&mine)).unwrap());
        }
        for file in files {
            assert_eq!(fs::read_to_string(mine.join(file)).unwrap(), "mine", "{file}");
        }
    }

    #[test]
    fn a_folder_holds_one_sandbox_at_a_time() {
        let mine = Folder::take(None).unwrap();
        let one = Folder::take(Some(&mine)).unwrap();
        fs::write(one.join("endpoints.json"), "{}").unwrap();
        assert_eq!(refusal(&mine), "--dir DIR: another sandbox runs there: end it, or choose another folder");
        assert!(one.join("endpoints.json").exists());
        drop(one);
        Folder::take(Some(&mine)).unwrap();
    }

    #[rstest]
    #[case::nothing(&[], &[])]
    #[case::folders_and_notes(&["bin", "servers", "notes", "harvester-load-balancer.log"], &[])]
    #[case::the_kubeconfig_of_another_cluster(&["harvester.kubeconfig"], &["harvester.kubeconfig"])]
    #[case::many(&["cloud-config", "notes", "endpoints.json"], &["endpoints.json", "cloud-config"])]
    fn files_that_no_sandbox_made_are_in_the_way_if_it_would_overwrite_them(
        #[case] names: &[&str],
        #[case] expected: &[&str],
    ) {
        let names: Vec<_> = names.iter().map(ToString::to_string).collect();
        assert_eq!(others(&names), expected);
    }

    #[test]
    fn files_in_the_way_are_named_and_stay() {
        let mine = Folder::take(None).unwrap();
        fs::write(mine.join("harvester.kubeconfig"), "mine").unwrap();
        assert_eq!(
            refusal(&mine),
            "--dir DIR: harvester.kubeconfig would be overwritten, and no sandbox made it: \
             move it away, or choose another folder"
        );
        assert_eq!(refusal(&mine).matches("no sandbox made it").count(), 1, "it leaves no mark");
        assert_eq!(fs::read_to_string(mine.join("harvester.kubeconfig")).unwrap(), "mine");
    }

    #[test]
    fn a_folder_that_cannot_be_is_the_callers_mistake() {
        refusal(Path::new("/proc/none"));
    }
}
