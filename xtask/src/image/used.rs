//! Which files of Debian packages the programs of an image load: the libraries that they name, and those that these name. A
//! package depends on more, for programs that nobody runs here: of xfsprogs one needs 37 MiB of Unicode.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};

/// Loaded by the C library where a thread ends early, and named by no program.
const UNNAMED: &str = "libgcc_s.so.1";

/// Where programs and libraries are, once the folders of the root are links to these.
pub(super) const CODE: [&str; 4] = ["usr/bin", "usr/sbin", "usr/lib", "usr/lib64"];

/// The files in the folder `root`, without links on their way, that the programs of these names need, themselves among
/// them, and the links to these.
///
/// # Errors
/// Where a program or a library is missing.
pub(super) fn of(root: &Path, programs: &[&str]) -> Result<BTreeSet<PathBuf>> {
    let root = root.canonicalize().with_context(|| format!("find {}", root.display()))?;
    let mut files = vec![];
    for folder in CODE {
        list(&root.join(folder), &mut files)?;
    }
    let mut named: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    for file in &files {
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        named.entry(name).or_default().push(file.clone());
    }
    let mut open: Vec<String> = programs.iter().map(|name| (*name).to_owned()).collect();
    open.push(UNNAMED.to_owned());
    let (mut seen, mut used) = (BTreeSet::new(), BTreeSet::new());
    while let Some(name) = open.pop() {
        if !seen.insert(name.clone()) {
            continue;
        }
        let found = named.get(&name).map(Vec::as_slice).unwrap_or_default();
        ensure!(!found.is_empty(), "no package has {name}, which the programs of the image need");
        for file in found {
            let file = target(&root, file)?;
            let content = fs::read(&file).with_context(|| format!("read {}", file.display()))?;
            open.extend(needed(&content).unwrap_or_default());
            used.insert(file);
        }
    }
    files.retain(|file| file.is_symlink() && target(&root, file).is_ok_and(|target| used.contains(&target)));
    used.extend(files);
    Ok(used)
}

/// Where the links lead, for a program whose root is this folder.
///
/// # Errors
/// There is no such file.
pub(super) fn target(root: &Path, file: &Path) -> Result<PathBuf> {
    let mut end = file.to_owned();
    // as many as the kernel follows
    for _ in 0..40 {
        let Ok(link) = fs::read_link(&end) else { break };
        end = match link.strip_prefix("/") {
            Ok(inside) => root.join(inside),
            Err(_) => end.parent().unwrap_or(root).join(link),
        };
    }
    end.canonicalize().with_context(|| format!("find {}", file.display()))
}

/// All files and links below a folder.
fn list(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    if !folder.exists() {
        return Ok(());
    }
    for entry in fs::read_dir(folder).with_context(|| format!("read {}", folder.display()))? {
        let path = entry?.path();
        match path.is_dir() && !path.is_symlink() {
            true => list(&path, files)?,
            false => files.push(path),
        }
    }
    Ok(())
}

/// The names of the libraries that a 64-bit little-endian ELF file asks for, and of its loader; none for another file.
fn needed(elf: &[u8]) -> Option<Vec<String>> {
    const LOAD: u64 = 1;
    const DYNAMIC: u64 = 2;
    const LOADER: u64 = 3;
    const NEEDED: u64 = 1;
    const STRINGS: u64 = 5;
    if !elf.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let number = |at: u64, bytes: u64| -> Option<u64> {
        let at = usize::try_from(at).ok()?;
        let field = elf.get(at..at.checked_add(usize::try_from(bytes).ok()?)?)?;
        Some(field.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    };
    let text = |at: u64| -> Option<String> {
        let rest = elf.get(usize::try_from(at).ok()?..)?;
        let end = rest.iter().position(|byte| *byte == 0)?;
        Some(String::from_utf8_lossy(&rest[..end]).into_owned())
    };
    let (start, size, count) = (number(0x20, 8)?, number(0x36, 2)?, number(0x38, 2)?);
    let headers: Vec<u64> = (0..count).map(|at| start + at * size).collect();
    let of_kind = |kind: u64| headers.iter().copied().filter(move |at| number(*at, 4) == Some(kind));
    let mut names = vec![];
    for header in of_kind(LOADER) {
        let path = text(number(header + 8, 8)?)?;
        names.extend(path.rsplit('/').next().map(str::to_owned));
    }
    for header in of_kind(DYNAMIC) {
        let (offset, bytes) = (number(header + 8, 8)?, number(header + 32, 8)?);
        let entries = || {
            let places = (0..bytes / 16).map(move |at| offset + at * 16);
            places.filter_map(move |at| Some((number(at, 8)?, number(at + 8, 8)?)))
        };
        let (_, address) = entries().find(|(tag, _)| *tag == STRINGS)?;
        // an address in memory, of which a segment tells the place in the file
        let strings = of_kind(LOAD).find_map(|segment| {
            let (offset, begins, bytes) =
                (number(segment + 8, 8)?, number(segment + 16, 8)?, number(segment + 32, 8)?);
            (begins..begins.checked_add(bytes)?).contains(&address).then(|| address - begins + offset)
        })?;
        names.extend(entries().filter(|(tag, _)| *tag == NEEDED).filter_map(|(_, at)| text(strings + at)));
    }
    Some(names)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::workspace;

    /// A file that asks for libraries: one segment, 0x1000 higher in memory than in the file, and its table.
    fn elf(libraries: &[&str]) -> Vec<u8> {
        let mut names = vec![0];
        let mut table: Vec<[u64; 2]> = vec![];
        for library in libraries {
            table.push([1, names.len() as u64]);
            names.extend(library.bytes().chain([0]));
        }
        let strings = 0x40 + 2 * 0x38;
        table.extend([[5, 0x1000 + strings], [0, 0]]);
        let dynamic = strings + names.len() as u64;
        let whole = dynamic + 16 * table.len() as u64;
        let mut elf = vec![0; 0x40];
        elf[..6].copy_from_slice(b"\x7fELF\x02\x01");
        (elf[0x20], elf[0x36], elf[0x38]) = (0x40, 0x38, 2);
        for (kind, offset, bytes) in [(1, 0, whole), (2, dynamic, whole - dynamic)] {
            for field in [kind, offset, offset + 0x1000, 0, bytes, bytes, 0] {
                elf.extend(u64::to_le_bytes(field));
            }
        }
        elf.extend(names);
        elf.extend(table.iter().flatten().flat_map(|field| field.to_le_bytes()));
        elf
    }

    #[test]
    fn the_libraries_that_a_program_names_are_read() {
        assert_eq!(needed(&elf(&["libone.so.1", "libc.so.6"])).unwrap(), ["libone.so.1", "libc.so.6"]);
        assert_eq!(needed(&elf(&[])).unwrap(), [""; 0]);
        assert_eq!(needed(b"#!/bin/sh\n"), None);
        assert_eq!(needed(&elf(&["libone.so.1"])[..0x41]), Some(vec![]), "cut off");
    }

    #[test]
    fn libraries_of_libraries_and_links_to_what_is_used_stay_and_the_rest_does_not() {
        let root = workspace::target().join("xtask").join("used");
        if root.exists() {
            fs::remove_dir_all(&root).unwrap();
        }
        for (path, libraries) in [
            ("usr/sbin/mke2fs", &["libone.so.1"][..]),
            ("usr/sbin/scrub", &["libicu.so.1"]),
            ("usr/lib/machine/libone.so.1.2", &["libtwo.so.1"]),
            ("usr/lib/machine/libtwo.so.1", &[]),
            ("usr/lib/machine/libgcc_s.so.1", &[]),
            ("usr/lib/machine/libicu.so.1", &[]),
        ] {
            let file = root.join(path);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(&file, elf(libraries)).unwrap();
        }
        symlink("mke2fs", root.join("usr/sbin/mkfs.ext4")).unwrap();
        symlink("/usr/lib/machine/libone.so.1.2", root.join("usr/lib/machine/libone.so.1")).unwrap();
        let used = of(&root, &["mkfs.ext4"]).unwrap();
        let names: Vec<_> = used.iter().map(|path| path.file_name().unwrap().to_str().unwrap()).collect();
        let expected =
            ["libgcc_s.so.1", "libone.so.1", "libone.so.1.2", "libtwo.so.1", "mke2fs", "mkfs.ext4"];
        assert_eq!(names, expected);
        fs::remove_file(root.join("usr/lib/machine/libtwo.so.1")).unwrap();
        let error = of(&root, &["mkfs.ext4"]).unwrap_err().to_string();
        assert_eq!(error, "no package has libtwo.so.1, which the programs of the image need");
    }
}
