//! A script that is stopped while its token lies on the disk.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::{Command as Blocking, Stdio},
};

use tokio::process::Command;

use super::host::{Host, below, in_path, shells};

/// A kubectl that tells when the check is under way, by `reached`, and does not come back from it.
const HANGS: &str = "#!/bin/sh
case $* in
*'/config create '*)
    echo now > reached
    read -r never < never
    ;;
esac
exec KUBECTL \"$@\"
";

#[tokio::test(flavor = "multi_thread")]
async fn a_script_that_is_interrupted_leaves_no_token_behind() {
    let Some(host) = Host::open().await else { return };
    for shell in shells() {
        let folder = tempfile::tempdir().unwrap();
        let (work, temporary) = (folder.path().join("work"), folder.path().join("temporary"));
        fs::create_dir(&work).unwrap();
        fs::create_dir(&temporary).unwrap();
        for name in ["reached", "never"] {
            assert!(Blocking::new("mkfifo").arg(work.join(name)).status().unwrap().success());
        }
        let kubectl = folder.path().join("kubectl");
        fs::write(&kubectl, HANGS.replace("KUBECTL", &host.kubectl.display().to_string())).unwrap();
        fs::set_permissions(&kubectl, fs::Permissions::from_mode(0o755)).unwrap();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/generate_addon.sh");
        let mut command = Command::new(in_path(&shell[0]).unwrap_or_else(|| shell[0].clone().into()));
        command.args(&shell[1..]).arg(script).args(["demo", "vms"]).current_dir(&work).process_group(0);
        let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap());
        command.env("PATH", path).env("TMPDIR", &temporary).env("HARVESTER_CLOUD_PROVIDER", "");
        command.env("KUBECONFIG", host.kubeconfig()).stdin(Stdio::null()).stdout(Stdio::piped());
        let child = command.stderr(Stdio::null()).spawn().unwrap();
        let group = format!("-{}", child.id().unwrap());
        let reached = work.join("reached");
        tokio::task::spawn_blocking(move || fs::read(reached)).await.unwrap().unwrap();
        assert!(!below(&temporary).is_empty(), "{shell:?}: the token is there while it is tried");
        assert!(Blocking::new("kill").args(["-TERM", "--", &group]).status().unwrap().success());
        let told = child.wait_with_output().await.unwrap();
        assert!(!told.status.success());
        assert!(!String::from_utf8_lossy(&told.stdout).contains("token: "), "{shell:?}");
        assert_eq!(fs::read_dir(&temporary).unwrap().count(), 0, "{shell:?}");
    }
}
