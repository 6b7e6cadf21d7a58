//! Paths of requests: below kubelet's root, and without links.
//!
//! The node service is root on the machine and mounts and removes what a request names, so no `..` and no link may lead
//! it to another place.

use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

use tonic::Code;

use super::mounts::{self, Mount};
use crate::refusal::Refusal;

/// Linux allows no longer path.
const PATH_MAX: usize = 4095;
/// And no longer name in one.
const NAME_MAX: usize = 255;

/// What is at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Absent,
    Folder,
    File,
    /// Something is mounted here. It was not looked at: a file system whose server is away would not answer.
    Mounted,
}

/// A path below kubelet's root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Without links.
    pub(crate) path: PathBuf,
    pub(crate) kind: Kind,
}

/// The path of a request's field.
///
/// # Errors
/// INVALID_ARGUMENT for one that is missing, too long, relative, has `..`, or is not below `root`.
pub(crate) fn checked(root: &Path, field: &str, text: &str) -> Result<PathBuf, Refusal> {
    if text.is_empty() {
        return Err(Refusal::invalid(format!("{field} is missing: the caller has to send a path")));
    }
    if text.len() > PATH_MAX {
        let length = text.len();
        return Err(Refusal::invalid(format!(
            "{field} has {length} bytes, and a path has {PATH_MAX} at most"
        )));
    }
    if text.contains('\0') || !text.starts_with('/') {
        return Err(Refusal::invalid(format!("{field} {text:?} is no absolute path: send one")));
    }
    let path: PathBuf = Path::new(text).components().collect();
    if path.components().any(|component| component.as_os_str().len() > NAME_MAX) {
        return Err(Refusal::invalid(format!(
            "{field} has a name of more than {NAME_MAX} bytes, which no file system has: send another path"
        )));
    }
    if path.components().any(|component| component == Component::ParentDir) {
        return Err(Refusal::invalid(format!(
            "{field} {text:?} contains \"..\": send the path that is meant"
        )));
    }
    if path == root || !path.starts_with(root) {
        let root = root.display();
        return Err(Refusal::invalid(format!(
            "{field} {text:?} is not below {root}: if kubelet has another root, give it with --kubelet-root"
        )));
    }
    Ok(path)
}

/// Where a checked path leads, and what is there. The last part of it is never followed.
///
/// # Errors
/// FAILED_PRECONDITION where a link leads out of `root`, and for a link or a special file at the path itself.
pub(crate) fn resolve(root: &Path, path: &Path, mounts: &[Mount]) -> Result<Place, Refusal> {
    let failed =
        |error: io::Error| Refusal::new(Code::Internal, format!("look at {}: {error}", path.display()));
    let real_root = match fs::canonicalize(root) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Ok(Place { path: path.to_owned(), kind: Kind::Absent });
        }
        found => found.map_err(failed)?,
    };
    let (parent, rest) = existing_parent(path).map_err(failed)?;
    let real = parent.join(rest);
    if real == real_root || !real.starts_with(&real_root) {
        return Err(Refusal::precondition(format!(
            "{} leads to {}, which is not below {}: remove the link",
            path.display(),
            real.display(),
            real_root.display()
        )));
    }
    let kind = if mounts::at(mounts, &real).is_some() { Kind::Mounted } else { kind(&real)? };
    Ok(Place { path: real, kind })
}

/// The nearest parent that exists, without links, and what follows it in `path`.
fn existing_parent(path: &Path) -> io::Result<(PathBuf, &Path)> {
    for parent in path.ancestors().skip(1) {
        match fs::canonicalize(parent) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // a dangling link exists, and what it names may come to exist
                if fs::symlink_metadata(parent).is_ok_and(|found| found.is_symlink()) {
                    return Err(error);
                }
            }
            found => return Ok((found?, path.strip_prefix(parent).unwrap_or(path))),
        }
    }
    Err(io::ErrorKind::NotFound.into())
}

fn kind(path: &Path) -> Result<Kind, Refusal> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Kind::Absent),
        Err(error) => Err(Refusal::new(Code::Internal, format!("look at {}: {error}", path.display()))),
        Ok(found) if found.is_dir() => Ok(Kind::Folder),
        Ok(found) if found.is_file() => Ok(Kind::File),
        Ok(_) => {
            let path = path.display();
            Err(Refusal::precondition(format!("{path} is neither a folder nor a file: remove what is there")))
        }
    }
}

/// Makes the folder or the empty file that something is mounted on.
///
/// # Errors
/// FAILED_PRECONDITION where the other of the two is there.
pub(crate) fn make(place: &Place, wanted: Kind) -> Result<(), Refusal> {
    use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};

    let path = place.path.display();
    if place.kind == wanted {
        return Ok(());
    }
    if place.kind != Kind::Absent {
        let (is, want) = if wanted == Kind::File { ("a folder", "a file") } else { ("a file", "a folder") };
        return Err(Refusal::precondition(format!("{path} is {is}, and the volume needs {want}: remove it")));
    }
    let mut folders = fs::DirBuilder::new();
    folders.recursive(true).mode(0o750);
    let made = if wanted == Kind::File {
        place.path.parent().map_or(Ok(()), |parent| folders.create(parent)).and_then(|()| {
            fs::OpenOptions::new().write(true).create_new(true).mode(0o640).open(&place.path).map(drop)
        })
    } else {
        folders.create(&place.path)
    };
    made.map_err(|error| Refusal::new(Code::Internal, format!("make {path}: {error}")))
}

/// Removes what [`make`] made, and nothing else: a folder or a file with content stays.
///
/// # Errors
/// FAILED_PRECONDITION where there is content.
pub(crate) fn remove(path: &Path) -> Result<(), Refusal> {
    let removed = match kind(path)? {
        Kind::Absent | Kind::Mounted => return Ok(()),
        Kind::Folder => fs::remove_dir(path),
        Kind::File if fs::metadata(path).is_ok_and(|found| found.len() > 0) => {
            Err(io::ErrorKind::DirectoryNotEmpty.into())
        }
        Kind::File => fs::remove_file(path),
    };
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {
            Err(Refusal::precondition(format!(
                "{} has content although nothing is mounted there: save what is in it and remove it",
                path.display()
            )))
        }
        Err(error) if error.kind() == io::ErrorKind::ResourceBusy => Err(busy(path)),
        Err(error) => Err(Refusal::new(Code::Internal, format!("remove {}: {error}", path.display()))),
        Ok(()) => Ok(()),
    }
}

/// The mount at `path` is in use.
pub(crate) fn busy(path: &Path) -> Refusal {
    Refusal::precondition(format!(
        "{} is busy: a process has a file open in it, or something is mounted below it; end that first",
        path.display()
    ))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::plain("/var/lib/kubelet/pods/1/mount", Some("/var/lib/kubelet/pods/1/mount"))]
    #[case::spare_slashes("/var//lib/kubelet/./pods/", Some("/var/lib/kubelet/pods"))]
    #[case::missing("", None)]
    #[case::relative("some/path", None)]
    #[case::traversal("/var/lib/kubelet/../../../etc", None)]
    #[case::traversal_that_comes_back("/var/lib/kubelet/pods/../pods/1", None)]
    #[case::elsewhere("/etc", None)]
    #[case::the_root_itself("/var/lib/kubelet/", None)]
    #[case::a_name_that_begins_alike("/var/lib/kubelet-other/pods", None)]
    #[case::nul("/var/lib/kubelet/a\0b", None)]
    fn a_path_of_a_request_is_below_kubelets_root(#[case] text: &str, #[case] expected: Option<&str>) {
        let path = checked(Path::new("/var/lib/kubelet"), "target_path", text);
        assert_eq!(path.as_ref().ok().map(PathBuf::as_path), expected.map(Path::new));
        if let Err(refusal) = path {
            assert_eq!(refusal.code, Code::InvalidArgument);
            assert!(refusal.message.starts_with("target_path "), "{refusal}");
        }
    }

    #[test]
    fn a_path_that_linux_does_not_allow_is_refused_by_its_length() {
        let text = format!("/var/lib/kubelet/{}", "x/".repeat(PATH_MAX));
        let refusal = checked(Path::new("/var/lib/kubelet"), "target_path", &text).unwrap_err();
        assert_eq!(refusal.code, Code::InvalidArgument);
        assert!(refusal.message.len() < 200);
    }

    #[test]
    fn no_link_leads_out_of_the_root() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("kubelet");
        fs::create_dir_all(root.join("pods")).unwrap();
        symlink(folder.path(), root.join("out")).unwrap();
        symlink("/nowhere", root.join("dangling")).unwrap();
        symlink("pods", root.join("in")).unwrap();
        let at = |name: &str| resolve(&root, &root.join(name), &[]);
        assert_eq!(at("out/x").unwrap_err().code, Code::FailedPrecondition);
        assert_eq!(at("out").unwrap_err().code, Code::FailedPrecondition);
        assert_eq!(at("in").unwrap_err().code, Code::FailedPrecondition);
        assert!(at("dangling/x").is_err());
        let real = fs::canonicalize(&root).unwrap();
        assert_eq!(at("in/x").unwrap(), Place { path: real.join("pods/x"), kind: Kind::Absent });
        assert_eq!(at("a/b").unwrap(), Place { path: real.join("a/b"), kind: Kind::Absent });
        assert_eq!(at("pods").unwrap().kind, Kind::Folder);
    }

    #[test]
    fn a_root_that_is_a_link_is_where_kubelets_paths_lead() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("data/pods")).unwrap();
        let root = folder.path().join("kubelet");
        symlink("data", &root).unwrap();
        let place = resolve(&root, &root.join("pods/1"), &[]).unwrap();
        assert_eq!(place.path, fs::canonicalize(folder.path()).unwrap().join("data/pods/1"));
    }

    #[rstest]
    #[case(Kind::Folder)]
    #[case(Kind::File)]
    fn what_was_made_is_removed_and_twice_is_once(#[case] kind: Kind) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/b");
        let place = Place { path: path.clone(), kind: Kind::Absent };
        make(&place, kind).unwrap();
        make(&Place { kind, ..place }, kind).unwrap();
        assert!(path.exists());
        remove(&path).unwrap();
        remove(&path).unwrap();
        assert!(!path.exists());
    }

    /// A raw volume is published at a file, and files at a folder.
    #[rstest]
    #[case(Kind::Folder, Kind::File, "is a folder, and the volume needs a file")]
    #[case(Kind::File, Kind::Folder, "is a file, and the volume needs a folder")]
    fn what_lies_at_a_target_in_the_other_form_is_told_and_stays(
        #[case] kind: Kind,
        #[case] wanted: Kind,
        #[case] says: &str,
    ) {
        let folder = tempfile::tempdir().unwrap();
        let place = Place { path: folder.path().join("a"), kind: Kind::Absent };
        make(&place, kind).unwrap();
        let refusal = make(&Place { kind, ..place.clone() }, wanted).unwrap_err();
        assert_eq!(refusal.code, Code::FailedPrecondition);
        assert!(refusal.message.contains(says), "{}", refusal.message);
        assert_eq!(super::kind(&place.path).unwrap(), kind);
    }

    #[test]
    fn what_has_content_is_not_removed() {
        let folder = tempfile::tempdir().unwrap();
        let (file, kept) = (folder.path().join("file"), folder.path().join("folder/file"));
        fs::write(&file, "data").unwrap();
        fs::create_dir(kept.parent().unwrap()).unwrap();
        fs::write(&kept, "data").unwrap();
        for path in [&file, kept.parent().unwrap()] {
            assert_eq!(remove(path).unwrap_err().code, Code::FailedPrecondition);
        }
        assert!(file.exists() && kept.exists());
    }
}
