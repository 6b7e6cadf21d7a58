//! The file-system tools of the CSI driver, out of Debian packages: those of `crates/csi-driver/tools.txt` and the libraries
//! that they load, and nothing else of what their packages have and depend on (other programs, Python, Perl, debconf).
//! Nothing is installed into this machine, and root is not needed.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};

use super::{layout, used};
use crate::step;

/// The programs that the driver runs, and who has them.
pub(super) const TOOLS: &str = include_str!("../../../crates/csi-driver/tools.txt");

/// What no program needs. The licences stay.
const NEEDLESS: [&str; 7] = [
    "usr/share/man",
    "usr/share/info",
    "usr/share/locale",
    "usr/share/lintian",
    "usr/share/bash-completion",
    "usr/share/initramfs-tools",
    "usr/share/bug",
];

/// A package that is in an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Package {
    pub(super) name: String,
    pub(super) version: String,
    pub(super) arch: String,
    /// Of its file: `sha256:<hex>`.
    pub(super) digest: String,
}

/// The packages of Debian that have the programs: the first name of each line's second column.
pub(super) fn packages(tools: &str) -> BTreeSet<&str> {
    let lines = tools.lines().filter(|line| !line.starts_with('#'));
    let second = lines.filter_map(|line| line.split_whitespace().nth(1));
    second.map(|name| name.trim_end_matches(',')).collect()
}

/// The programs.
pub(super) fn programs(tools: &str) -> Vec<&str> {
    let lines = tools.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| line.split_whitespace().next()).collect()
}

/// The libraries among the packages that a stanza of `apt-cache show` depends on; of alternatives the first.
fn libraries(stanza: &str) -> BTreeSet<String> {
    let fields = ["Depends: ", "Pre-Depends: "];
    let lists = stanza.lines().filter_map(|line| fields.iter().find_map(|field| line.strip_prefix(field)));
    let names = lists.flat_map(|list| list.split(',')).filter_map(|entry| {
        let first = entry.split('|').next()?.trim();
        Some(first.split([' ', ':', '(']).next()?.to_owned())
    });
    names.filter(|name| name.starts_with("lib")).collect()
}

/// A field of a stanza of `apt-cache show`, or of a package's control file.
fn field<'a>(stanza: &'a str, name: &str) -> Option<&'a str> {
    stanza.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

/// apt with lists and a cache of its own, for an architecture that this machine need not have.
struct Apt {
    folder: PathBuf,
    options: Vec<String>,
}

impl Apt {
    fn open(arch: &str, work: &Path) -> Result<Self> {
        let folder = work.join(format!("apt-{arch}"));
        for inside in ["lists/partial", "cache/archives/partial", "packages"] {
            let inside = folder.join(inside);
            fs::create_dir_all(&inside).with_context(|| format!("make {}", inside.display()))?;
        }
        fs::write(folder.join("status"), "")
            .context("write the list of installed packages: there are none")?;
        let at = |name: &str| folder.join(name).display().to_string();
        let options = [
            format!("APT::Architecture={arch}"),
            format!("APT::Architectures={arch}"),
            format!("Dir::State::Lists={}", at("lists")),
            format!("Dir::State::status={}", at("status")),
            format!("Dir::Cache={}", at("cache")),
            "Acquire::Languages=none".to_owned(),
            "Debug::NoLocking=true".to_owned(),
            "APT::Sandbox::User=".to_owned(),
        ];
        Ok(Self { options: options.into(), folder })
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.args(self.options.iter().flat_map(|option| ["-o", option]));
        command.env("LC_ALL", "C");
        command
    }

    /// The stanza of each package. Of a name that only stands for others there is none.
    fn show(&self, names: &BTreeSet<String>) -> Result<BTreeMap<String, String>> {
        let mut show = self.command("apt-cache");
        show.args(["show", "--no-all-versions"]).args(names);
        let output = show.output().context("start apt-cache")?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let named = |stanza: &str| Some((field(stanza, "Package")?.to_owned(), stanza.to_owned()));
        Ok(text.split("\n\n").filter_map(named).collect())
    }

    /// The packages, their libraries, and the libraries of these.
    fn closure(&self) -> Result<BTreeMap<String, String>> {
        let mut all = BTreeMap::new();
        let wanted: BTreeSet<String> = packages(TOOLS).into_iter().map(str::to_owned).collect();
        let mut next = wanted.clone();
        while !next.is_empty() {
            let stanzas = self.show(&next)?;
            next = stanzas.values().flat_map(|stanza| libraries(stanza)).collect();
            all.extend(stanzas);
            next.retain(|name| !all.contains_key(name));
            // a name that only stands for others would be asked for again and again
            let known = self.show(&next)?;
            next.retain(|name| known.contains_key(name));
        }
        for name in wanted {
            ensure!(
                all.contains_key(&name),
                "apt-get knows no package {name}: its sources have to be Debian's"
            );
        }
        Ok(all)
    }
}

/// Downloads the packages and unpacks them.
///
/// # Errors
/// Where apt or dpkg are missing, or a package is.
pub(super) fn unpack(arch: &str, work: &Path, root: &Path) -> Result<Vec<Package>> {
    let apt = Apt::open(arch, work)?;
    let told = step::run(&format!("ask Debian for packages ({arch})"), apt.command("apt-get").arg("update"));
    ensure!(
        told.context("the CSI image has programs of Debian packages: this machine has no apt-get")?.succeeded,
        "apt-get update failed"
    );
    let closure = apt.closure()?;
    let folder = apt.folder.join("packages");
    let mut download = apt.command("apt-get");
    download.arg("download").args(closure.keys()).current_dir(&folder);
    let says = format!("download {} packages ({arch})", closure.len());
    ensure!(step::run(&says, &mut download)?.succeeded, "apt-get download failed");
    // since Debian 12 these are links, and packages have files under both names
    for name in ["bin", "sbin", "lib", "lib64"] {
        fs::create_dir_all(root.join("usr").join(name))?;
        symlink(format!("usr/{name}"), root.join(name)).with_context(|| format!("link {name}"))?;
    }
    let mut unpacked = vec![];
    for (name, stanza) in &closure {
        let version = field(stanza, "Version").context("a package has a version")?;
        let arch = field(stanza, "Architecture").context("a package has an architecture")?;
        let file = folder.join(format!("{name}_{}_{arch}.deb", version.replace(':', "%3a")));
        let digest = layout::digest_of(&file)?;
        // what the signed list of packages says of the file
        if let Some(sum) = field(stanza, "SHA256") {
            ensure!(
                digest == format!("sha256:{sum}"),
                "{} is not the file that Debian lists",
                file.display()
            );
        }
        let package =
            Package { name: name.clone(), version: version.to_owned(), arch: arch.to_owned(), digest };
        unpacked.push((package, extract(&file, root)?, control(&file)?));
    }
    let used = used::of(root, &programs(TOOLS))?;
    let status = root.join("var/lib/dpkg/status.d");
    fs::create_dir_all(&status)?;
    let mut packages = vec![];
    for (package, files, control) in unpacked {
        if !strip(root, &files, &used)? {
            continue;
        }
        // scanners of images look here
        let name = &package.name;
        fs::write(status.join(name), control).with_context(|| format!("list package {name}"))?;
        packages.push(package);
    }
    prune(root)?;
    Ok(packages)
}

/// Removes the programs and libraries of a package that are not used, and all of it where none is; says whether anything
/// stays. A package of settings alone stays.
fn strip(root: &Path, files: &[PathBuf], used: &BTreeSet<PathBuf>) -> Result<bool> {
    let root = root.canonicalize()?;
    let (mut code, mut others) = (vec![], vec![]);
    for file in files {
        let folder = file.parent().and_then(|folder| root.join(folder).canonicalize().ok());
        // a file that two packages have is gone with the first
        let Some(path) = folder.and_then(|folder| Some(folder.join(file.file_name()?))) else { continue };
        match used::CODE.iter().any(|folder| path.starts_with(root.join(folder))) {
            true => code.push(path),
            false => others.push(path),
        }
    }
    let stays = code.is_empty() || code.iter().any(|path| used.contains(path));
    let needless = code.iter().filter(|path| !used.contains(*path));
    for path in needless.chain(others.iter().filter(|_| !stays)) {
        if path.is_symlink() || path.exists() {
            fs::remove_file(path).with_context(|| format!("remove {}", path.display()))?;
        }
    }
    Ok(stays)
}

/// Unpacks a package; the answer is its files and links, relative to the root.
fn extract(file: &Path, root: &Path) -> Result<Vec<PathBuf>> {
    let mut tar = Command::new("dpkg-deb");
    tar.arg("--fsys-tarfile").arg(file).stdout(std::process::Stdio::piped());
    let mut tar = tar.spawn().context("start dpkg-deb")?;
    let content = tar.stdout.take().context("its standard output is piped")?;
    let mut unpack = Command::new("tar");
    unpack.args(["--extract", "--keep-directory-symlink", "--preserve-permissions", "--no-same-owner"]);
    unpack.args(["--verbose", "--quoting-style=literal", "--directory"]).arg(root).stdin(content);
    let unpacked = unpack.output().context("start tar")?;
    ensure!(
        tar.wait()?.success() && unpacked.status.success(),
        "unpack {}: {}",
        file.display(),
        String::from_utf8_lossy(&unpacked.stderr).trim()
    );
    let listed = String::from_utf8_lossy(&unpacked.stdout).into_owned();
    Ok(listed.lines().filter(|name| !name.ends_with('/')).map(PathBuf::from).collect())
}

fn control(file: &Path) -> Result<Vec<u8>> {
    let output = Command::new("dpkg-deb").arg("--field").arg(file).output().context("start dpkg-deb")?;
    ensure!(output.status.success(), "read {}", file.display());
    Ok(output.stdout)
}

/// Removes what no program needs.
fn prune(root: &Path) -> Result<()> {
    for name in NEEDLESS {
        let folder = root.join(name);
        if folder.exists() {
            fs::remove_dir_all(&folder).with_context(|| format!("remove {}", folder.display()))?;
        }
    }
    let doc = root.join("usr/share/doc");
    for package in fs::read_dir(&doc).into_iter().flatten() {
        let package = package?.path();
        if !package.is_dir() || package.is_symlink() {
            continue;
        }
        for entry in fs::read_dir(&package)? {
            let entry = entry?.path();
            match entry.file_name().is_some_and(|name| name == "copyright") {
                true => {}
                false if entry.is_dir() && !entry.is_symlink() => fs::remove_dir_all(&entry)?,
                false => fs::remove_file(&entry)?,
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace;

    #[test]
    fn the_libraries_of_a_package_are_taken_and_the_rest_of_what_it_depends_on_is_left() {
        let stanza = "Package: nfs-common\nDepends: libc6 (>= 2.36), libcap2:any (>= 1:2.10), libtirpc3 | libtirpc2, python3:any, \
                      adduser\nPre-Depends: libmount1, init-system-helpers\nRecommends: libpython3\n";
        let found: Vec<String> = libraries(stanza).into_iter().collect();
        assert_eq!(found, ["libc6", "libcap2", "libmount1", "libtirpc3"]);
        assert_eq!(field(stanza, "Package"), Some("nfs-common"));
        assert_eq!(field(stanza, "Pack"), None);
    }

    #[test]
    fn every_program_of_the_list_has_a_package() {
        let found = packages(TOOLS);
        assert_eq!(
            found.into_iter().collect::<Vec<_>>(),
            ["e2fsprogs", "mount", "nfs-common", "util-linux", "xfsprogs"]
        );
        assert_eq!(programs(TOOLS).len(), 9);
        assert!(programs(TOOLS).contains(&"mkfs.xfs"));
    }

    #[test]
    fn the_dockerfile_installs_the_same_packages() {
        let path = workspace::root().join("deploy/images/Dockerfile");
        let text = fs::read_to_string(&path).unwrap();
        let line = text.lines().find_map(|line| line.split_once("--no-install-recommends ")).unwrap().1;
        let named: BTreeSet<&str> = line.split_whitespace().take_while(|word| *word != "&&").collect();
        assert_eq!(named, packages(TOOLS));
        for image in &super::super::IMAGES {
            assert!(text.contains(&format!(" AS {}\n", image.name)), "no stage {}", image.name);
            assert!(text.contains(&format!("ENTRYPOINT [\"/{}\"]", image.program)), "{}", image.name);
            assert!(image.links.iter().all(|link| text.contains(link)), "{:?}", image.links);
        }
    }
}
