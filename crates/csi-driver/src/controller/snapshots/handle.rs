//! IDs of snapshots: the name of the host's VolumeSnapshot, or `backup:<namespace>/<name>` of a VolumeRemoteBackup. Pure.

use crate::volume::name::HostName;

const BACKUP: &str = "backup:";

/// The object of an ID.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) enum Handle {
    Local(HostName),
    Backup { namespace: String, name: String },
}

impl Handle {
    /// `None` where no object of the host can have this ID; the text never becomes part of a request's path.
    pub(in super::super) fn parse(id: &str) -> Option<Self> {
        let Some(backup) = id.strip_prefix(BACKUP) else { return HostName::from_handle(id).map(Self::Local) };
        let (namespace, name) = backup.split_once('/')?;
        // a namespace is a label
        let namespace = HostName::from_handle(namespace).filter(HostName::fits_a_disk)?;
        let name = HostName::from_handle(name)?;
        Some(Self::Backup { namespace: namespace.to_string(), name: name.to_string() })
    }

    /// The ID of a backup.
    pub(in super::super) fn backup(namespace: &str, name: &str) -> String {
        format!("{BACKUP}{namespace}/{name}")
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[test]
    fn an_id_names_a_snapshot_or_a_backup_of_a_namespace() {
        let local = Handle::Local(HostName::from_handle("snapshot-1").unwrap());
        assert_eq!(Handle::parse("snapshot-1"), Some(local));
        let backup = Handle::Backup { namespace: "shop".to_owned(), name: "snapshot-1".to_owned() };
        assert_eq!(Handle::parse(&Handle::backup("shop", "snapshot-1")), Some(backup));
    }

    #[rstest]
    #[case("")]
    #[case("../secrets")]
    #[case("backup:")]
    #[case("backup:shop")]
    #[case("backup:shop/")]
    #[case("backup:/a")]
    #[case("backup:../a")]
    #[case("backup:shop/../../x")]
    #[case("backup:shop/a/b")]
    #[case("backup:shop:a")]
    #[case("backup:a.b/c")]
    fn an_id_that_no_object_can_have_names_none(#[case] id: &str) {
        assert_eq!(Handle::parse(id), None);
    }
}
