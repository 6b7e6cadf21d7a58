//! Keys of the publish context, by which the controller tells the node where an export is, so that the node asks no host.

/// The address of the NFS server.
pub const ENDPOINT: &str = "nfs-endpoint";
/// The path on the server, without its slash.
pub const EXPORT: &str = "nfs-export";
/// The address at which the node has mounted the export already, where the server has moved since.
pub const FORMER: &str = "nfs-former-endpoint";
/// Options of the host to mount it with; absent where it asks for none.
pub const OPTIONS: &str = "nfs-options";
