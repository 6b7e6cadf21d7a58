//! An abstract Unix socket: a name that one process has, until the kernel takes it back at that process's end.

use std::{
    io,
    os::{
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr, UnixDatagram},
    },
};

/// A name in the kernel's memory has room for 107 bytes.
const LONGEST: usize = 107;

#[derive(Debug)]
pub(super) struct Socket {
    name: String,
    /// Nobody sends to it; it is closed in programs that this one starts.
    _bound: UnixDatagram,
}

impl Socket {
    /// # Errors
    /// `AddrInUse` while another process has the name.
    pub(super) fn bind(name: String) -> io::Result<Self> {
        let bound = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
        Ok(Self { name, _bound: bound })
    }

    pub(super) fn is_named(&self, name: &str) -> bool {
        self.name == name
    }
}

/// The name for a Lease of a Pod. Long names are cut and end with a digest of the whole.
pub(super) fn name(uid: &str, namespace: &str, lease: &str) -> String {
    let full = format!("lease/{uid}/{namespace}/{lease}");
    if full.len() <= LONGEST {
        return full;
    }
    let digest = format!("/{:016x}", fnv(full.as_bytes()));
    let kept: String = full.chars().take_while(char::is_ascii).take(LONGEST - digest.len()).collect();
    kept + &digest
}

/// FNV-1a: the same in all builds, unlike the hashers of std.
pub(super) fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
