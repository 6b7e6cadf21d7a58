//! The manifests that the user wants applied. The sandbox reads them before it starts anything, and reports every mistake
//! at once.

use std::{fs, path::PathBuf};

use crate::{WrongInput, manifests::Manifest, options::Options};

/// The manifests of `--harvester-manifest` and `--guest-manifest`.
#[derive(Debug)]
pub(crate) struct UserManifests {
    pub(crate) harvester: Vec<Manifest>,
    pub(crate) guest: Vec<Manifest>,
}

impl UserManifests {
    /// # Errors
    /// Everything that is wrong with any file, and that nothing was started.
    pub(crate) fn read(options: &Options) -> Result<Self, WrongInput> {
        let mut faults = Vec::new();
        let harvester = read_all(&options.harvester_manifest, &mut faults);
        let guest = read_all(&options.guest_manifest, &mut faults);
        if faults.is_empty() {
            Ok(Self { harvester, guest })
        } else {
            faults.push("nothing was started: mend this and start the sandbox again".to_owned());
            Err(WrongInput(faults.join("\n")))
        }
    }
}

fn read_all(files: &[PathBuf], faults: &mut Vec<String>) -> Vec<Manifest> {
    let mut manifests = Vec::new();
    for file in files {
        let source = file.display().to_string();
        let read = fs::read_to_string(file)
            .map_err(|error| WrongInput(format!("{source}: cannot be read: {error}")))
            .and_then(|text| Manifest::read(&source, &text));
        match read {
            Ok(manifest) => manifests.push(manifest),
            Err(fault) => faults.push(fault.to_string()),
        }
    }
    manifests
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    #[test]
    fn every_bad_file_is_told_at_once_and_says_that_nothing_was_started() {
        let folder = std::env::temp_dir().join(format!("given-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (bad, missing) = (folder.join("bad.yaml"), folder.join("missing.yaml"));
        fs::write(&bad, "kind: Service\n").unwrap();
        let line = ["sandbox", "--guest-manifest", bad.to_str().unwrap()];
        let line = line.into_iter().chain(["--harvester-manifest", missing.to_str().unwrap()]);
        let error = UserManifests::read(&Line::parse_from(line).options).unwrap_err().to_string();
        fs::remove_dir_all(&folder).unwrap();
        let lines: Vec<_> = error.lines().collect();
        assert_eq!(lines.len(), 3, "{error}");
        assert!(lines[0].contains("missing.yaml: cannot be read"), "{error}");
        assert!(lines[1].contains("bad.yaml: document 1 (Service ?): has no apiVersion"), "{error}");
        assert!(lines[2].starts_with("nothing was started"), "{error}");
    }
}
