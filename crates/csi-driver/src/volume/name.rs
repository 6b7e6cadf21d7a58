//! Names: a volume has one, which is its handle in CSI and the name of its PersistentVolumeClaim on the host.
//!
//! ```text
//! CreateVolume.name ──HostName::of──► volume_id = name of the host's claim = KubeVirt's names of volume and disk
//! ```
//! A provisioner asks for `pvc-<uid>`, which is used as it is, so that volumes of the Go driver keep their handles. Any
//! other name that no disk may have becomes a name with a digest of it (docs/contract/csi-driver.md#names).

use std::fmt;

use sha2::{Digest, Sha256};

/// KubeVirt names volumes and disks with DNS labels.
const LABEL_MAX: usize = 63;
/// Kubernetes names claims with DNS subdomains.
const SUBDOMAIN_MAX: usize = 253;
/// CSI 1.12 on strings without a limit of their own.
const CSI_MAX: usize = 128;
/// As many digits of the digest as a name carries: 128 bits.
const DIGITS: usize = 32;

/// The name of a claim on the host.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostName(String);

/// Why a name that a provisioner asks for is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    #[error("the name of the volume is missing: the provisioner has to send one")]
    Missing,
    #[error("the name of the volume has {0} bytes, and CSI allows {CSI_MAX}")]
    TooLong(usize),
    #[error("the name of the volume contains a control character, which CSI does not allow")]
    ControlCharacter,
}

impl HostName {
    /// The name on the host for a volume that a provisioner calls `name`; equal for equal names.
    ///
    /// # Errors
    /// For a name that CSI does not allow.
    pub fn of(name: &str) -> Result<Self, NameError> {
        if name.is_empty() {
            return Err(NameError::Missing);
        }
        if name.len() > CSI_MAX {
            return Err(NameError::TooLong(name.len()));
        }
        if name.chars().any(is_banned) {
            return Err(NameError::ControlCharacter);
        }
        if is_label(name) { Ok(Self(name.to_owned())) } else { Ok(Self(with_digest(name))) }
    }

    /// The volume of a handle that was given out, by this program or by the Go driver. `None` where no object of the
    /// host can have this name: there is no such volume, and the text never becomes part of a request's path.
    pub fn from_handle(handle: &str) -> Option<Self> {
        let is_subdomain = handle.len() <= SUBDOMAIN_MAX && handle.split('.').all(is_dns);
        is_subdomain.then(|| Self(handle.to_owned()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether a disk of a virtual machine may have this name. Every name of ours may; a claim that somebody made by
    /// hand may have a longer one, or one with dots.
    pub fn fits_a_disk(&self) -> bool {
        is_label(&self.0)
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Control characters but tab, line feed and carriage return.
fn is_banned(character: char) -> bool {
    character.is_control() && !matches!(character, '\t' | '\n' | '\r')
}

fn is_label(name: &str) -> bool {
    name.len() <= LABEL_MAX && is_dns(name)
}

fn is_dns(label: &str) -> bool {
    let is_inside = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let is_end = |byte: Option<&u8>| byte.is_some_and(|byte| *byte != b'-');
    label.bytes().all(is_inside) && is_end(label.as_bytes().first()) && is_end(label.as_bytes().last())
}

/// What can be read of the name, for people, and a digest of all of it.
fn with_digest(name: &str) -> String {
    let readable: String = name
        .chars()
        .map(|character| character.to_ascii_lowercase())
        .map(|character| if character.is_ascii_alphanumeric() { character } else { '-' })
        .take(LABEL_MAX - DIGITS - 1)
        .collect();
    let readable = readable.trim_matches('-');
    let digest = Sha256::digest(name).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let digest = &digest[..DIGITS];
    if readable.is_empty() { format!("v-{digest}") } else { format!("{readable}-{digest}") }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("pvc-6f0b2c9e-9f0e-4a6e-8c1d-2b8f6d0a4c11")]
    #[case("a")]
    #[case("0-9")]
    fn a_name_that_a_disk_may_have_is_used_as_it_is(#[case] name: &str) {
        assert_eq!(HostName::of(name).unwrap().as_str(), name);
    }

    #[rstest]
    #[case("sanity-controller-Volume-1A2B3C4D-5E6F7A8B")]
    #[case("a.b")]
    #[case("-a")]
    #[case("../../secrets/x")]
    #[case("Größe\tdrei")]
    #[case("___")]
    #[case("x".repeat(128))]
    fn any_other_name_becomes_one_with_its_digest(#[case] name: String) {
        let host = HostName::of(&name).unwrap();
        assert!(host.fits_a_disk(), "{host}");
        assert_ne!(host.as_str(), name);
        assert_eq!(HostName::from_handle(host.as_str()), Some(host));
    }

    #[test]
    fn names_that_differ_in_capitals_are_volumes_of_their_own() {
        assert_ne!(HostName::of("Data").unwrap(), HostName::of("dAta").unwrap());
        assert_eq!(HostName::of("Data").unwrap().as_str(), "data-cec3a9b89b2e391393d0f68e4bc12a9f");
    }

    #[rstest]
    #[case("", NameError::Missing)]
    #[case("a\u{7}", NameError::ControlCharacter)]
    #[case("x".repeat(129), NameError::TooLong(129))]
    fn what_csi_does_not_allow_is_refused(#[case] name: impl AsRef<str>, #[case] error: NameError) {
        assert_eq!(HostName::of(name.as_ref()), Err(error));
    }

    #[rstest]
    #[case("")]
    #[case("..")]
    #[case("a/b")]
    #[case("a..b")]
    #[case("A")]
    #[case("a b")]
    #[case("a%2fb")]
    fn a_handle_that_no_object_can_have_is_no_volume(#[case] handle: &str) {
        assert_eq!(HostName::from_handle(handle), None);
    }

    #[test]
    fn a_claim_with_a_long_name_is_a_volume_but_no_disk() {
        let host = HostName::from_handle(&format!("{}.data", "x".repeat(70))).unwrap();
        assert!(!host.fits_a_disk());
        assert_eq!(HostName::from_handle(&"x".repeat(254)), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn every_allowed_name_has_a_name_for_a_disk(name in ".{0,200}") {
            if let Ok(host) = HostName::of(&name) {
                prop_assert!(host.fits_a_disk(), "{host}");
                prop_assert_eq!(HostName::of(&name), Ok(host));
            }
        }
    }
}
