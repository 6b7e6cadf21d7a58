//! The fields of requests to the node service, checked before anything is done.

use super::content::FileSystem;
use super::plan::Wanted;
use crate::csi::{CapacityRange, VolumeCapability};
use crate::refusal::Refusal;
use crate::volume::access::{Access, Mount};
use crate::volume::name::HostName;

/// Kubernetes names claims, and a handle is the name of a claim.
const HANDLE_MAX: usize = 253;
/// The volume of a request. Whether there is such a volume is not known.
///
/// # Errors
/// INVALID_ARGUMENT where it is missing or longer than any.
pub(crate) fn volume(id: &str) -> Result<&str, Refusal> {
    if id.is_empty() {
        return Err(Refusal::invalid("volume_id is missing: the caller has to send the volume's handle"));
    }
    if id.len() > HANDLE_MAX || id.chars().any(char::is_control) {
        return Err(Refusal::invalid(format!(
            "volume_id has {} bytes or a control character; a handle has {HANDLE_MAX} bytes at most",
            id.len()
        )));
    }
    Ok(id)
}

/// The volume of a request that needs it to exist.
///
/// # Errors
/// NOT_FOUND where no object of the host can have the name.
pub(crate) fn handle(id: &str) -> Result<&str, Refusal> {
    match HostName::from_handle(volume(id)?) {
        Some(_) => Ok(id),
        None => Err(Refusal::not_found(format!(
            "there is no volume {id:?}: no claim of the host has such a name"
        ))),
    }
}

/// How a volume is used.
///
/// # Errors
/// INVALID_ARGUMENT.
pub(crate) fn access(capability: Option<&VolumeCapability>) -> Result<Access, Refusal> {
    Access::of(capability).map_err(|error| Refusal::invalid(error.to_string()))
}

/// How a disk with files is mounted.
///
/// # Errors
/// INVALID_ARGUMENT for a file system that the driver does not make.
pub(crate) fn wanted(access: &Access, mount: &Mount) -> Result<Wanted, Refusal> {
    let name = mount.file_system.as_deref();
    let file_system = FileSystem::named(name).ok_or_else(|| {
        let name = name.unwrap_or_default();
        Refusal::invalid(format!(
            "the driver makes ext4 and xfs, and the volume is to have {name:?}: make its PersistentVolume anew, of the same \
             handle and with another fsType, which cannot be changed"
        ))
    })?;
    let read_only = access.only_reads() || mount.options.iter().any(|option| option == "ro");
    Ok(Wanted { file_system, may_make: FileSystem::is_made(name), options: mount.options.clone(), read_only })
}

/// The bytes that a volume is to have; 0 where the caller does not say.
///
/// # Errors
/// INVALID_ARGUMENT for a negative number, OUT_OF_RANGE where the limit is less than what is required.
pub(crate) fn required(range: Option<&CapacityRange>) -> Result<u64, Refusal> {
    let Some(range) = range else { return Ok(0) };
    let (Ok(required), Ok(limit)) = (u64::try_from(range.required_bytes), u64::try_from(range.limit_bytes))
    else {
        return Err(Refusal::invalid("capacity_range has a negative number: send none or a size in bytes"));
    };
    if limit > 0 && limit < required {
        let text = format!("capacity_range asks for {required} bytes at least and {limit} at most");
        return Err(Refusal::new(tonic::Code::OutOfRange, text));
    }
    Ok(required)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use tonic::Code;

    use super::*;
    use crate::csi::volume_capability::access_mode::Mode;
    use crate::csi::volume_capability::{AccessMode, AccessType, MountVolume};

    #[rstest]
    #[case("", Code::InvalidArgument)]
    #[case("a\nb", Code::InvalidArgument)]
    #[case(&"a".repeat(254), Code::InvalidArgument)]
    #[case("../pvc-1", Code::NotFound)]
    #[case("some-Volume", Code::NotFound)]
    fn a_handle_is_the_name_of_a_claim(#[case] id: &str, #[case] code: Code) {
        assert_eq!(handle(id).unwrap_err().code, code);
    }

    fn files(file_system: &str, options: &[&str]) -> VolumeCapability {
        let mount = MountVolume {
            fs_type: file_system.to_owned(),
            mount_flags: options.iter().map(|option| (*option).to_owned()).collect(),
            ..MountVolume::default()
        };
        let mode = AccessMode { mode: Mode::SingleNodeWriter.into() };
        VolumeCapability { access_type: Some(AccessType::Mount(mount)), access_mode: Some(mode) }
    }

    /// 5,000 bytes.
    const LONG: &str = match str::from_utf8(&[b'x'; 5000]) {
        Ok(text) => text,
        Err(_) => unreachable!(),
    };

    #[rstest]
    #[case(&["noatime", "context=\"system_u:object_r:container_file_t:s0:c1,c2\""], true)]
    #[case(&["remount"], false)]
    #[case(&["noatime,bind"], false)]
    #[case(&["loop=/dev/loop0"], false)]
    #[case(&["X-mount.mkdir"], false)]
    #[case(&["noatime,users"], false)]
    #[case(&[""], false)]
    #[case(&["a\0b"], false)]
    #[case(&[LONG], false)]
    fn options_only_say_how_the_volume_is_mounted(#[case] options: &[&str], #[case] expected: bool) {
        let access = access(Some(&files("", options)));
        assert_eq!(access.is_ok(), expected);
        if let Err(refusal) = access {
            assert_eq!(refusal.code, Code::InvalidArgument);
            assert!(refusal.message.len() < 200);
        }
    }

    // docs/contract/csi-driver.md#file-systems
    #[test]
    fn a_file_system_that_the_driver_does_not_make_is_refused_by_name() {
        let access = access(Some(&files("btrfs", &[]))).unwrap();
        let refusal = wanted(&access, access.mount.as_ref().unwrap()).err().unwrap();
        assert_eq!(refusal.code, Code::InvalidArgument);
        assert!(refusal.message.contains("\"btrfs\""), "{refusal}");
    }

    #[rstest]
    #[case(0, 0, Ok(0))]
    #[case(5, 0, Ok(5))]
    #[case(5, 5, Ok(5))]
    #[case(6, 5, Err(Code::OutOfRange))]
    #[case(-1, 0, Err(Code::InvalidArgument))]
    #[case(1, i64::MIN, Err(Code::InvalidArgument))]
    fn a_size_is_a_number_of_bytes(
        #[case] least: i64,
        #[case] most: i64,
        #[case] expected: Result<u64, Code>,
    ) {
        let range = CapacityRange { required_bytes: least, limit_bytes: most };
        assert_eq!(required(Some(&range)).map_err(|refusal| refusal.code), expected);
    }
}
