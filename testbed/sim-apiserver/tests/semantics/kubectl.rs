//! An unmodified kubectl at the socket: what people type at the sandbox.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use outside_tools::Tool;
use sim_apiserver::{ApiServer, User};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::process::Command;

use crate::support::cluster;

/// A server, and kubectl as its administrator in namespace `shop`.
struct Shell {
    kubectl: PathBuf,
    folder: TempDir,
    server: ApiServer,
}

impl Shell {
    /// None where the machine has no kubectl.
    async fn open() -> Option<Self> {
        let Some(kubectl) = Tool::Kubectl.find() else {
            #[expect(
                clippy::explicit_write,
                reason = "the test runner keeps what `eprintln` prints to itself"
            )]
            writeln!(std::io::stderr(), "without kubectl: `cargo xtask tools` builds it").unwrap();
            return None;
        };
        let (server, _client) = cluster();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let folder = tempfile::tempdir().unwrap();
        let kubeconfig = server.kubeconfig(User::admin(), listener.local_addr().unwrap());
        std::fs::write(folder.path().join("kubeconfig"), kubeconfig).unwrap();
        let serving = server.clone();
        tokio::spawn(async move { serving.serve(listener).await });
        Some(Self { kubectl, folder, server })
    }

    fn file(&self, name: &str, content: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        std::fs::write(&path, content).unwrap();
        path
    }

    /// Whether a line of arguments succeeds, and what it prints on both channels.
    async fn run(&self, arguments: &str) -> (bool, String) {
        let mut command = Command::new(&self.kubectl);
        command.args(["--kubeconfig", "kubeconfig", "--namespace", "shop"]).args(arguments.split(' '));
        command.current_dir(self.folder.path()).env("HOME", self.folder.path()).env("EDITOR", "./editor");
        let output = command.stdin(Stdio::null()).output().await.unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.success(), text(&output.stdout) + &text(&output.stderr))
    }

    /// Returns its output; it must succeed.
    async fn works(&self, arguments: &str) -> String {
        let (success, text) = self.run(arguments).await;
        assert!(success, "kubectl {arguments}: {text}");
        text
    }

    /// Returns its output; it must fail.
    async fn fails(&self, arguments: &str) -> String {
        let (success, text) = self.run(arguments).await;
        assert!(!success, "kubectl {arguments}: {text}");
        text
    }
}

#[tokio::test]
async fn what_kubectl_prints_as_a_list_it_reads_again() {
    let Some(shell) = Shell::open().await else { return };
    shell.works("create configmap settings --from-literal=size=3").await;
    let list = shell.works("get configmaps -o yaml").await;
    assert!(list.contains("kind: List"), "{list}");
    shell.file("list.yaml", &list);
    assert_eq!(shell.works("replace -f list.yaml").await, "configmap/settings replaced\n");
    shell.works("apply -f list.yaml").await;
    assert_eq!(shell.works("diff -f list.yaml").await, "");
    shell.works("delete -f list.yaml").await;
    assert_eq!(shell.works("create -f list.yaml").await, "configmap/settings created\n");
    let typed = list.replace("  data:", "  dta:");
    shell.file("list.yaml", &typed);
    let told = shell.fails("apply -f list.yaml").await;
    assert!(told.contains("unknown field \"dta\""), "{told}");
}

#[tokio::test]
async fn a_misspelt_kind_is_named() {
    let Some(shell) = Shell::open().await else { return };
    shell.file("object.yaml", "{apiVersion: v1, kind: Servise, metadata: {name: web}}");
    for verb in ["apply", "create"] {
        let told = shell.fails(&format!("{verb} -f object.yaml")).await;
        assert!(told.contains("no matches for kind \"Servise\" in version \"v1\""), "{told}");
    }
}

#[tokio::test]
async fn a_node_is_drained_and_its_pods_are_debugged() {
    let Some(shell) = Shell::open().await else { return };
    shell.file(
        "objects.yaml",
        "{apiVersion: v1, kind: List, items: [
            {apiVersion: v1, kind: Node, metadata: {name: n1}},
            {apiVersion: v1, kind: Pod, metadata: {name: web},
             spec: {nodeName: n1, containers: [{name: web, image: web}]}}]}",
    );
    shell.works("create -f objects.yaml").await;
    shell.works("debug web --image=tools").await;
    let added = shell.works("get pod web -o jsonpath={.spec.ephemeralContainers[*].image}").await;
    assert_eq!(added, "tools");
    shell.works("debug node/n1 --image=tools").await;
    let told = shell.works("drain n1 --force").await;
    assert!(told.contains("pod/web evicted") && told.contains("node/n1 drained"), "{told}");
    assert_eq!(shell.works("get pods -o name").await, "");
    let evictions = shell.server.audit().records();
    let evictions = evictions.iter().filter(|r| r.uri.contains("/eviction")).map(|r| (&*r.verb, r.code));
    assert_eq!(evictions.collect::<Vec<_>>(), [("create", 201), ("create", 201)]);
    shell.file("empty.yaml", "{apiVersion: v1, kind: Pod, metadata: {name: empty}, spec: {containers: []}}");
    let told = shell.fails("create -f empty.yaml").await;
    assert!(told.contains("spec.containers: Required value"), "{told}");
}

#[tokio::test]
async fn an_edit_that_makes_no_sense_is_shown_again() {
    let Some(shell) = Shell::open().await else { return };
    shell.works("create service clusterip web --tcp=80").await;
    // the first time it breaks the object, the second time it mends it
    let editor = shell.file(
        "editor",
        "#!/bin/sh\nif [ -e told ]; then cp \"$1\" told; sed 's/port: wrong/port: 81/' told > \"$1\"\n\
         else : > told; sed -i 's/port: 80$/port: wrong/' \"$1\"; fi\n",
    );
    executable(&editor);
    shell.works("edit service web").await;
    let told = std::fs::read_to_string(shell.folder.path().join("told")).unwrap();
    assert!(told.contains("# services \"web\" was not valid:"), "{told}");
    assert_eq!(shell.works("get service web -o jsonpath={.spec.ports[0].port}").await, "81");
}

fn executable(file: &Path) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o755)).unwrap();
}

#[tokio::test]
async fn the_roles_for_people_give_what_they_give_everywhere() {
    let Some(shell) = Shell::open().await else { return };
    for (role, user) in [("view", "vera"), ("edit", "edith"), ("admin", "adam")] {
        shell.works(&format!("create rolebinding {role} --clusterrole={role} --user={user}")).await;
    }
    for (user, right, answer) in [
        ("vera", "list services", true),
        ("vera", "list secrets", false),
        ("vera", "create services", false),
        ("edith", "create services", true),
        ("edith", "create rolebindings", false),
        ("adam", "create rolebindings", true),
        ("adam", "list nodes", false),
    ] {
        let (can, told) = shell.run(&format!("auth can-i {right} --as {user}")).await;
        assert_eq!(can, answer, "{user} {right}: {told}");
    }
    shell.works("create rolebinding also --clusterrole=edit --user=joe --as adam").await;
    let told = shell.fails("create rolebinding root --clusterrole=cluster-admin --user=adam --as adam").await;
    assert!(told.contains("attempting to grant RBAC permissions not currently held"), "{told}");
}
