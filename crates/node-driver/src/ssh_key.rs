//! The machine's SSH key: RSA 2048 in the forms that rancher-machine and Rancher read (PKCS#1 PEM, `authorized_keys`).
//!
//! `Create` writes the files, and nothing before it does: rancher-machine takes the folder for the machine, so an early file
//! would block the name for good.

use std::{
    fs, io,
    io::Write as _,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use rsa::{
    RsaPrivateKey,
    pkcs1::{DecodeRsaPrivateKey, EncodeRsaPrivateKey, LineEnding},
    rand_core::UnwrapErr,
    traits::PublicKeyParts,
};

const BITS: usize = 2048;
/// Only the owner may read them: ssh refuses other keys.
const MODE: u32 = 0o600;

/// A key pair in its two texts.
#[derive(Clone, PartialEq, Eq)]
pub struct KeyPair {
    /// PEM, `RSA PRIVATE KEY`.
    pub private: String,
    /// As a line of `authorized_keys`, with its line end.
    pub public: String,
}

/// Generates a key; it takes some ten milliseconds.
pub fn generate() -> KeyPair {
    // the system's random source does not fail on a system that runs
    let mut random = UnwrapErr(getrandom::SysRng);
    let key = RsaPrivateKey::new(&mut random, BITS).expect("the size is a good one");
    let private = key.to_pkcs1_pem(LineEnding::LF).expect("a key just made can be written").to_string();
    KeyPair { private, public: authorized(&key) }
}

/// The line of `authorized_keys`, with its line end.
fn authorized(key: &RsaPrivateKey) -> String {
    let mut blob = vec![];
    for part in [b"ssh-rsa".to_vec(), mpint(&key.e_bytes()), mpint(&key.n_bytes())] {
        blob.extend(u32::try_from(part.len()).expect("a few hundred bytes").to_be_bytes());
        blob.extend(part);
    }
    format!("ssh-rsa {}\n", STANDARD.encode(blob))
}

/// RFC 4251: without leading zeros, but with one where the first bit would be a sign.
fn mpint(bytes: &[u8]) -> Vec<u8> {
    let start = bytes.iter().position(|byte| *byte != 0).unwrap_or(bytes.len());
    let bytes = &bytes[start..];
    let sign = bytes.first().is_some_and(|first| *first >= 0x80);
    std::iter::repeat_n(0, usize::from(sign)).chain(bytes.iter().copied()).collect()
}

/// A file could not be read or written.
#[derive(Debug, thiserror::Error)]
#[error("{what} {}: {source}", .path.display())]
pub struct Error {
    what: &'static str,
    path: PathBuf,
    source: io::Error,
}

fn fault(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error { what, path, source }
}

/// Where the machine's private key is in its folder.
pub fn path(folder: &Path) -> PathBuf {
    folder.join("id_rsa")
}

fn public_path(private: &Path) -> PathBuf {
    let mut path = private.as_os_str().to_owned();
    path.push(".pub");
    path.into()
}

/// The public key that is stored beside a private one; none where there is no such file.
///
/// # Errors
/// If the file is there and cannot be read.
pub fn stored_public(private: &Path) -> Result<Option<String>, Error> {
    let path = public_path(private);
    match fs::read_to_string(&path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(fault("read the public SSH key", &path)(error)),
    }
}

/// Writes a key to the machine's folder unless the folder has one, and returns the public key of the folder's key. So an
/// attempt continues with the key of a killed one, and two attempts at the same time use the same key. The private key's
/// file appears as a whole or not at all.
///
/// # Errors
/// If a file cannot be written or read.
pub fn store(folder: &Path, key: &KeyPair) -> Result<String, Error> {
    let private = path(folder);
    fs::create_dir_all(folder).map_err(fault("make the machine's folder", folder))?;
    if claim(&private, &key.private)? {
        write(&public_path(&private), key.public.as_bytes())?;
        return Ok(key.public.clone());
    }
    if let Some(public) = stored(folder)? {
        return Ok(public);
    }
    // what is there is no key of ours, and nobody knows its public half
    write(&private, key.private.as_bytes())?;
    write(&public_path(&private), key.public.as_bytes())?;
    Ok(key.public.clone())
}

/// The public key of the folder's private key; its file is written if it is missing.
///
/// # Errors
/// If a file cannot be read or written.
pub fn stored(folder: &Path) -> Result<Option<String>, Error> {
    let private = path(folder);
    let text = fs::read_to_string(&private).map_err(fault("read the private SSH key", &private))?;
    let known = stored_public(&private)?;
    let Ok(key) = RsaPrivateKey::from_pkcs1_pem(&text) else { return Ok(known) };
    let public = authorized(&key);
    if known.is_none() {
        write(&public_path(&private), public.as_bytes())?;
    }
    Ok(Some(public))
}

/// Creates a file with this content, unless the file exists.
fn claim(path: &Path, content: &str) -> Result<bool, Error> {
    let new = path.with_extension(format!("new-{}", std::process::id()));
    fill(&new, content.as_bytes())?;
    let linked = fs::hard_link(&new, path);
    fs::remove_file(&new).map_err(fault("remove", &new))?;
    match linked {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(fault("write", path)(error)),
    }
}

/// Copies the user's private key into the machine's folder, and with `with_public` the public key beside it, which is then
/// the answer.
///
/// # Errors
/// If a file cannot be read or written.
pub fn copy(from: &Path, folder: &Path, with_public: bool) -> Result<Option<String>, Error> {
    let private = path(folder);
    fs::create_dir_all(folder).map_err(fault("make the machine's folder", folder))?;
    // a copy of an earlier attempt may be read-only
    let new = private.with_extension("new");
    fs::copy(from, &new).map_err(fault("copy the private SSH key", from))?;
    fs::rename(&new, &private).map_err(fault("write", &private))?;
    if !with_public {
        return Ok(None);
    }
    let public = public_path(from);
    let text = fs::read_to_string(&public).map_err(fault("read the public SSH key", &public))?;
    write(&public_path(&private), text.as_bytes())?;
    Ok(Some(text))
}

/// Replaces a file as a whole.
fn write(path: &Path, content: &[u8]) -> Result<(), Error> {
    let new = path.with_extension(format!("new-{}", std::process::id()));
    fill(&new, content)?;
    fs::rename(&new, path).map_err(fault("write", path))
}

fn fill(path: &Path, content: &[u8]) -> Result<(), Error> {
    let file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(MODE).open(path);
    file.and_then(|mut file| file.write_all(content)).map_err(fault("write", path))
}

#[cfg(test)]
mod tests {
    use std::{os::unix::fs::PermissionsExt as _, process::Command};

    use super::*;

    fn key(name: &str) -> KeyPair {
        KeyPair { private: format!("private {name}\n"), public: format!("ssh-rsa {name}\n") }
    }

    #[test]
    fn a_key_is_rsa_2048_in_pkcs_1_and_its_public_half_fits() {
        let folder = tempfile::tempdir().unwrap();
        let made = generate();
        assert!(made.private.starts_with("-----BEGIN RSA PRIVATE KEY-----\n"), "{}", &made.private[..40]);
        assert!(made.private.ends_with("-----END RSA PRIVATE KEY-----\n"));
        let blob = STANDARD.decode(made.public.trim().strip_prefix("ssh-rsa ").unwrap()).unwrap();
        assert_eq!(blob[..22], *b"\0\0\0\x07ssh-rsa\0\0\0\x03\x01\0\x01\0\0\x01\x01");
        assert_eq!(blob.len(), 22 + 1 - 1 + 257, "2048 bits and the sign");
        store(folder.path(), &made).unwrap();
        // the judge, where there is one
        if let Ok(told) = Command::new("ssh-keygen").arg("-y").arg("-f").arg(path(folder.path())).output() {
            assert_eq!(String::from_utf8_lossy(&told.stdout).trim(), made.public.trim(), "{told:?}");
        }
    }

    #[test]
    fn files_are_for_the_owner_only_and_a_key_that_is_there_stays() {
        let folder = tempfile::tempdir().unwrap();
        let machine = folder.path().join("machines/demo-1");
        assert_eq!(store(&machine, &key("one")).unwrap(), "ssh-rsa one\n");
        assert_eq!(store(&machine, &key("two")).unwrap(), "ssh-rsa one\n");
        let private = path(&machine);
        assert_eq!(fs::read_to_string(&private).unwrap(), "private one\n");
        for path in [&private, &public_path(&private)] {
            assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o600);
        }
        assert_eq!(fs::read_dir(&machine).unwrap().count(), 2, "nothing else is left");
    }

    #[test]
    fn a_private_key_without_its_public_half_is_what_a_cut_off_attempt_left() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(path(folder.path()), "private cut").unwrap();
        assert_eq!(store(folder.path(), &key("new")).unwrap(), "ssh-rsa new\n");
        assert_eq!(fs::read_to_string(path(folder.path())).unwrap(), "private new\n");
    }

    #[test]
    fn the_public_half_of_a_stored_key_is_made_again() {
        let folder = tempfile::tempdir().unwrap();
        let made = generate();
        store(folder.path(), &made).unwrap();
        fs::remove_file(folder.path().join("id_rsa.pub")).unwrap();
        assert_eq!(store(folder.path(), &key("other")).unwrap(), made.public);
        assert_eq!(fs::read_to_string(folder.path().join("id_rsa.pub")).unwrap(), made.public);
    }

    #[test]
    fn a_users_key_is_copied_with_its_mode() {
        let folder = tempfile::tempdir().unwrap();
        let own = folder.path().join("own");
        fs::write(&own, "private").unwrap();
        fs::set_permissions(&own, fs::Permissions::from_mode(0o400)).unwrap();
        let machine = folder.path().join("machine");
        assert_eq!(copy(&own, &machine, false).unwrap(), None);
        assert_eq!(fs::metadata(path(&machine)).unwrap().permissions().mode() & 0o777, 0o400);
        let error = copy(&own, &folder.path().join("other"), true).unwrap_err().to_string();
        assert!(error.contains("own.pub"), "{error}");
        fs::write(folder.path().join("own.pub"), "ssh-ed25519 x\n").unwrap();
        let public = copy(&own, &folder.path().join("third"), true).unwrap();
        assert_eq!(public.as_deref(), Some("ssh-ed25519 x\n"));
    }
}
