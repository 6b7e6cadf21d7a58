//! An OCI image layout: blobs by their digests, and JSON that names them.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::layer::Layer;

const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
/// The same for everybody who makes the image.
const CREATED: &str = "1970-01-01T00:00:00Z";

/// How the image is started.
pub(super) struct Config {
    pub(super) entrypoint: String,
    pub(super) path: String,
    pub(super) title: String,
}

/// An image of one architecture that is in the layout.
#[derive(Debug)]
pub(super) struct Platform {
    descriptor: Value,
}

/// The folder of a layout.
pub(super) struct Layout(PathBuf);

impl Layout {
    /// Opens a layout, or begins it anew.
    ///
    /// # Errors
    /// Where the folder cannot be written.
    pub(super) fn open(folder: &Path, is_new: bool) -> Result<Self> {
        if is_new && folder.exists() {
            // blobs of another version would be carried along
            fs::remove_dir_all(folder).with_context(|| format!("remove {}", folder.display()))?;
        }
        let blobs = folder.join("blobs/sha256");
        fs::create_dir_all(&blobs).with_context(|| format!("make {}", blobs.display()))?;
        Ok(Self(folder.to_owned()))
    }

    /// Adds the image of one architecture.
    ///
    /// # Errors
    /// Where a blob cannot be written.
    pub(super) fn add(&self, layer: &Layer, config: &Config, arch: &str) -> Result<Platform> {
        let layers = self.blob(&layer.gzip, LAYER)?;
        let image = json!({
            "created": CREATED,
            "architecture": arch,
            "os": "linux",
            "config": {
                "Entrypoint": [config.entrypoint],
                "Env": [format!("PATH={}", config.path)],
                "WorkingDir": "/",
                "Labels": {
                    "org.opencontainers.image.title": config.title,
                    "org.opencontainers.image.version": super::tag(),
                },
            },
            "rootfs": {"type": "layers", "diff_ids": [layer.diff_id]},
            "history": [{"created": CREATED, "created_by": "cargo xtask image"}],
        });
        let config = self.json_blob(&image, CONFIG)?;
        let manifest =
            json!({"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": [layers]});
        let mut descriptor = self.json_blob(&manifest, MANIFEST)?;
        descriptor["platform"] = json!({"architecture": arch, "os": "linux"});
        Ok(Platform { descriptor })
    }

    /// Names the image of all architectures.
    ///
    /// # Errors
    /// Where a file cannot be written.
    pub(super) fn close(&self, platforms: &[Platform], tag: &str) -> Result<()> {
        let manifests: Vec<&Value> = platforms.iter().map(|platform| &platform.descriptor).collect();
        let all = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests});
        let mut all = self.json_blob(&all, INDEX)?;
        all["annotations"] = json!({"org.opencontainers.image.ref.name": tag});
        let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": [all]});
        fs::write(self.0.join("index.json"), index.to_string()).context("write index.json")?;
        fs::write(self.0.join("oci-layout"), json!({"imageLayoutVersion": "1.0.0"}).to_string())
            .context("write oci-layout")
    }

    fn json_blob(&self, value: &Value, media_type: &str) -> Result<Value> {
        self.blob(value.to_string().as_bytes(), media_type)
    }

    /// Writes a blob; the answer is its descriptor.
    fn blob(&self, content: &[u8], media_type: &str) -> Result<Value> {
        let digest = digest(content);
        let path = blob_path(&self.0, &digest);
        fs::write(&path, content).with_context(|| format!("write {}", path.display()))?;
        Ok(json!({"mediaType": media_type, "digest": digest, "size": content.len()}))
    }
}

/// The layers of an image, unpacked, in MiB: of its first architecture.
///
/// # Errors
/// Where there is no such layout.
pub(super) fn unpacked_mib(folder: &Path) -> Result<f64> {
    let text = fs::read_to_string(folder.join("index.json"))
        .with_context(|| format!("there is no {}: cargo xtask image makes it", folder.display()))?;
    let index: Value = serde_json::from_str(&text).context("read index.json")?;
    let all = read(folder, &index["manifests"][0])?;
    let manifest = read(folder, &all["manifests"][0])?;
    let mut bytes = 0;
    for layer in manifest["layers"].as_array().into_iter().flatten() {
        let path = blob_path(folder, layer["digest"].as_str().unwrap_or_default());
        let content = fs::read(&path).with_context(|| format!("read {}", path.display()))?;
        // gzip ends with the length of what it packed
        let end = content.last_chunk::<4>().context("a layer that is no gzip")?;
        bytes += u64::from(u32::from_le_bytes(*end));
    }
    Ok(bytes as f64 / f64::from(1 << 20))
}

fn read(folder: &Path, descriptor: &Value) -> Result<Value> {
    let path = blob_path(folder, descriptor["digest"].as_str().unwrap_or_default());
    let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("read {}", path.display()))
}

fn blob_path(folder: &Path, digest: &str) -> PathBuf {
    folder.join("blobs").join(digest.replacen(':', "/", 1))
}

/// `sha256:<hex>`.
pub(super) fn digest(content: &[u8]) -> String {
    let hex: String = Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

/// The digest of a file.
///
/// # Errors
/// Where it cannot be read.
pub(super) fn digest_of(file: &Path) -> Result<String> {
    Ok(digest(&fs::read(file).with_context(|| format!("read {}", file.display()))?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace;

    fn config() -> Config {
        Config { entrypoint: "/bin/a".to_owned(), path: "/bin".to_owned(), title: "a".to_owned() }
    }

    fn made(name: &str) -> PathBuf {
        let folder = workspace::target().join("xtask").join(name);
        let layer = |content: &[u8]| Layer { gzip: content.to_vec(), diff_id: digest(b"tar") };
        let layout = Layout::open(&folder, true).unwrap();
        let platforms = [
            layout.add(&layer(b"amd64's\0\0\x30\0"), &config(), "amd64").unwrap(),
            layout.add(&layer(b"arm64's own"), &config(), "arm64").unwrap(),
        ];
        layout.close(&platforms, "v1").unwrap();
        folder
    }

    #[test]
    fn every_descriptor_of_a_layout_leads_to_a_blob_of_its_digest_and_size() {
        let folder = made("layout");
        let index: Value =
            serde_json::from_str(&fs::read_to_string(folder.join("index.json")).unwrap()).unwrap();
        let mut open = vec![index];
        let mut found = 0;
        while let Some(value) = open.pop() {
            match &value {
                Value::Array(items) => open.extend(items.iter().cloned()),
                Value::Object(fields) => {
                    if let (Some(wanted), Some(size)) = (value["digest"].as_str(), value["size"].as_u64()) {
                        let content = fs::read(blob_path(&folder, wanted)).unwrap();
                        assert_eq!((digest(&content).as_str(), content.len() as u64), (wanted, size));
                        found += 1;
                        open.extend(serde_json::from_slice::<Value>(&content));
                    }
                    open.extend(fields.values().cloned());
                }
                _ => {}
            }
        }
        assert_eq!(found, 7, "an index, and of each architecture manifest, configuration and layer");
        let blobs = fs::read_dir(folder.join("blobs/sha256")).unwrap().count();
        assert_eq!(blobs, 7, "nothing else is in it");
    }

    #[test]
    fn the_same_content_makes_the_same_layout() {
        let files = |name: &str| {
            let folder = made(name);
            let index = fs::read_to_string(folder.join("index.json")).unwrap();
            let entries = fs::read_dir(folder.join("blobs/sha256")).unwrap();
            let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
            names.sort();
            (index, names)
        };
        assert_eq!(files("layout-once"), files("layout-again"));
    }

    #[test]
    fn a_layout_names_each_architecture_under_the_tag() {
        let folder = made("layout-tag");
        let index: Value =
            serde_json::from_str(&fs::read_to_string(folder.join("index.json")).unwrap()).unwrap();
        let all = &index["manifests"][0];
        assert_eq!(all["annotations"]["org.opencontainers.image.ref.name"], "v1");
        let platforms = read(&folder, all).unwrap();
        let arch = |at: usize| platforms["manifests"][at]["platform"]["architecture"].clone();
        assert_eq!((arch(0), arch(1)), (json!("amd64"), json!("arm64")));
        let image = read(&folder, &read(&folder, &platforms["manifests"][0]).unwrap()["config"]).unwrap();
        assert_eq!(image["config"]["Env"][0], "PATH=/bin");
        assert_eq!(image["rootfs"]["diff_ids"][0], digest(b"tar"));
        assert!((unpacked_mib(&folder).unwrap() - 3.0).abs() < 0.01, "gzip's last word counts");
        let error = unpacked_mib(Path::new("/nowhere")).unwrap_err().to_string();
        assert_eq!(error, "there is no /nowhere: cargo xtask image makes it");
    }

    #[test]
    fn a_digest_is_that_of_sha256sum() {
        let empty = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(digest(b""), empty);
    }
}
