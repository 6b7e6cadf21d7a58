//! A folder as a layer: a tar of the same bytes for the same files, and gzip of it. GNU tar and gzip do it, which every
//! machine has that builds this workspace.

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use anyhow::{Context, Result, ensure};

use super::layout;

/// A layer, in memory: the largest has a few dozen MiB.
pub(super) struct Layer {
    pub(super) gzip: Vec<u8>,
    /// Digest of the tar.
    pub(super) diff_id: String,
}

/// Packs what is in a folder.
///
/// # Errors
/// Where tar or gzip fail.
pub(super) fn of(root: &Path) -> Result<Layer> {
    let file = root.with_extension("tar");
    let mut tar = Command::new("tar");
    tar.args(["--create", "--sort=name", "--format=gnu", "--mtime=@0"]);
    // the names of files are those of this image, whoever made the folder
    tar.args(["--owner=0", "--group=0", "--numeric-owner", "--no-acls", "--no-xattrs", "--no-selinux"]);
    tar.arg("--file").arg(&file).arg("--directory").arg(root).arg(".");
    done("tar", &tar.output().context("start tar")?)?;
    let content = fs::read(&file).with_context(|| format!("read {}", file.display()))?;
    let diff_id = layout::digest(&content);
    drop(content);
    let packed = Command::new("gzip").args(["--no-name", "--best", "--stdout"]).arg(&file).output();
    let packed = packed.context("start gzip")?;
    done("gzip", &packed)?;
    fs::remove_file(&file).with_context(|| format!("remove {}", file.display()))?;
    Ok(Layer { gzip: packed.stdout, diff_id })
}

fn done(name: &str, output: &Output) -> Result<()> {
    ensure!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{
        os::unix::fs::{PermissionsExt as _, symlink},
        path::PathBuf,
    };

    use super::*;
    use crate::workspace;

    fn folder(name: &str, order: &[&str]) -> PathBuf {
        let root = workspace::target().join("xtask").join(name);
        if root.exists() {
            fs::remove_dir_all(&root).unwrap();
        }
        fs::create_dir_all(root.join("bin")).unwrap();
        fs::set_permissions(root.join("bin"), fs::Permissions::from_mode(0o755)).unwrap();
        fs::set_permissions(&root, fs::Permissions::from_mode(0o755)).unwrap();
        for file in order {
            fs::write(root.join("bin").join(file), file).unwrap();
            fs::set_permissions(root.join("bin").join(file), fs::Permissions::from_mode(0o755)).unwrap();
        }
        symlink("one", root.join("bin/link")).unwrap();
        root
    }

    #[test]
    fn the_order_and_the_time_of_files_change_nothing() {
        let (one, other) = (folder("layer", &["one", "two"]), folder("layer-again", &["two", "one"]));
        let long_ago = Command::new("touch").args(["--date=@7"]).arg(other.join("bin/two")).status();
        assert!(long_ago.unwrap().success());
        let (one, other) = (of(&one).unwrap(), of(&other).unwrap());
        assert_eq!((one.diff_id, &one.gzip), (other.diff_id, &other.gzip));
    }

    #[test]
    fn a_layer_has_the_files_of_root_and_their_links() {
        let root = folder("layer-listed", &["one"]);
        let layer = of(&root).unwrap();
        let file = root.with_extension("gz");
        fs::write(&file, &layer.gzip).unwrap();
        let listed = Command::new("tar").args(["-tvzf"]).arg(&file).env("TZ", "UTC").output().unwrap();
        let listed = String::from_utf8(listed.stdout).unwrap();
        assert!(
            listed.lines().all(|line| line.contains(" 0/0 ") && line.contains(" 1970-01-01 ")),
            "{listed}"
        );
        assert!(listed.contains("./bin/link -> one") && listed.contains("-rwxr-xr-x"), "{listed}");
    }
}
