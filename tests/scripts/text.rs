//! What the scripts print, and what they leave on the disk.

use std::os::unix::fs::PermissionsExt as _;

use k8s_openapi::serde_json::json;

use super::host::{Host, How, shells};

const ADDON: &str = "generate_addon.sh";
const CSI: &str = "generate_addon_csi.sh";

/// The output of generate_addon.sh as it was documented for the Go program; what differs each time is in capitals.
const DOCUMENTED: &str = "\
Creating a service account in vms namespace: demo
serviceaccount/demo created

Creating a rolebinding in vms namespace: vms-demo
rolebinding.rbac.authorization.k8s.io/vms-demo created

Getting uid of service account demo on vms
Service Account uid: UID

Creating a user token secret in vms namespace: demo-token
secret/demo-token created
Secret name: demo-token

Extracting ca.crt from secret...done
Getting user token from secret...done
Setting current context to: local
Cluster name: local
Endpoint: SERVER

Checking address, certificate and token...done

Preparing k8s-demo-vms-conf
Setting a cluster entry in kubeconfig...Cluster \"local\" set.
Setting token credentials entry in kubeconfig...User \"demo-vms-local\" set.
Setting a context entry in kubeconfig...Context \"demo-vms-local\" created.
Setting the current-context in the kubeconfig file...Switched to context \"demo-vms-local\".
########## cloud config ############
apiVersion: v1
clusters:
- cluster:
    certificate-authority-data: CA
    server: SERVER
  name: local
contexts:
- context:
    cluster: local
    namespace: vms
    user: demo-vms-local
  name: demo-vms-local
current-context: demo-vms-local
kind: Config
preferences: {}
users:
- name: demo-vms-local
  user:
    token: TOKEN

########## cloud-init user data ############
write_files:
- encoding: b64
  content: CONTENT
  owner: root:root
  path: /etc/kubernetes/cloud-config
  permissions: '0644'
";

/// What generate_addon_csi.sh prints in other words, or besides.
const CSI_DIFFERS: [(&str, &str); 4] = [
    (
        "Creating a service account",
        "
NOTE: for RKE2 or K3s, use: generate_addon_csi.sh <service_account_name> <namespace> rke2|k3s

Creating a service account",
    ),
    (
        "\nGetting uid",
        "
Creating a clusterrolebinding: vms-demo
clusterrolebinding.rbac.authorization.k8s.io/vms-demo created

Getting uid",
    ),
    ("## cloud config ##", "## cloud-config ##"),
    ("/etc/kubernetes/cloud-config", "/var/lib/rancher/rke2/etc/config-files/cloud-provider-config"),
];

/// The documented output with what this run was given and has made.
fn filled(documented: &str, host: &Host, out: &str) -> String {
    let mut expected = documented.replace("SERVER", &host.address);
    for (word, name) in [
        ("Service Account uid: ", "UID"),
        ("certificate-authority-data: ", "CA"),
        ("token: ", "TOKEN"),
        ("content: ", "CONTENT"),
    ] {
        expected = expected.replacen(name, after(out, word), 1);
    }
    expected
}

/// The rest of the line after this word.
fn after<'a>(out: &'a str, word: &str) -> &'a str {
    let (_, rest) = out.split_once(word).unwrap_or_else(|| panic!("no {word:?} in {out}"));
    rest.lines().next().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn generate_addon_prints_what_is_documented() {
    let Some(host) = Host::open().await else { return };
    let told = host.works(&How::default(), ADDON, "demo vms").await;
    assert_eq!(told.out, filled(DOCUMENTED, &host, &told.out));
    assert!(told.err.contains("which is this machine itself"), "{}", told.err);
}

/// All in capitals or none, as the Go program's script; ours takes the way in which K3s writes itself, too.
#[tokio::test(flavor = "multi_thread")]
async fn generate_addon_csi_prints_what_is_documented_for_rke2_and_for_k3s() {
    let Some(host) = Host::open().await else { return };
    let documented =
        CSI_DIFFERS.iter().fold(DOCUMENTED.to_owned(), |text, (one, other)| text.replacen(one, other, 1));
    for (at, (word, binary)) in
        [("RKE2", false), ("rke2", true), ("K3S", true), ("k3s", false), ("K3s", true)]
            .into_iter()
            .enumerate()
    {
        let how = How { binary, ..How::default() };
        let account = format!("demo{at}");
        let told = host.works(&how, CSI, &format!("{account} vms {word} --server {}", host.address)).await;
        let out = told.out.replace(&account, "demo");
        assert_eq!(out, filled(&documented, &host, &out), "{word} {binary}");
    }
    let revision = host.server.revision();
    for word in ["Rke2", "rKE2", "Rke1", "k3S"] {
        let told = host.run(&How::default(), CSI, &format!("demo vms {word}")).await;
        let refusal = format!("Target {word} is not supported, please use RKE1, RKE2 or K3S\n");
        assert_eq!((told.code, told.out), (Some(1), refusal));
    }
    assert_eq!(host.server.revision(), revision);
}

/// As a variable that is not set gives it: the word after it must not take its place.
#[tokio::test(flavor = "multi_thread")]
async fn an_empty_account_or_namespace_is_none_whatever_word_comes_after_it() {
    let Some(host) = Host::open().await else { return };
    let revision = host.server.revision();
    for script in [ADDON, CSI] {
        for words in ["'' demo vms", "demo '' rke2"] {
            for binary in [true, false] {
                let told = host.run(&How { binary, ..How::default() }, script, words).await;
                assert!(
                    told.code == Some(1) && told.out.to_lowercase().contains("usage"),
                    "{script} {words}: {told:?}"
                );
            }
        }
    }
    assert_eq!(host.server.revision(), revision);
}

#[tokio::test(flavor = "multi_thread")]
async fn user_data_is_the_kubeconfig_and_opens_harvester() {
    let Some(host) = Host::open().await else { return };
    let told = host.works(&How::default(), CSI, &format!("demo vms rke2 --server {}", host.address)).await;
    assert!(told.out.contains("########## cloud-config ############\n"), "{}", told.out);
    let path = "/var/lib/rancher/rke2/etc/config-files/cloud-provider-config";
    assert_eq!(after(&told.out, "  path: "), path);
    let (_, rest) = told.out.split_once("cloud-config ############\n").unwrap();
    let (kubeconfig, _) = rest.split_once("\n\n####").unwrap();
    let file = told.folder.path().join("cloud-config");
    std::fs::write(&file, kubeconfig).unwrap();
    let (may, told) = host
        .kubectl(&format!("--kubeconfig {} auth can-i create persistentvolumeclaims", file.display()))
        .await;
    assert!(may, "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_block_for_rke1_holds_the_kubeconfig_in_a_secret() {
    let Some(host) = Host::open().await else { return };
    let told = host.works(&How::default(), CSI, &format!("demo vms --server {}", host.address)).await;
    let (_, block) =
        told.out.split_once("========RKE-ADDON-CONFIGURATION-FOR-HARVESTER_CSI_DRIVER==========\n").unwrap();
    let head = "  addons: |-\n    ---\n    apiVersion: v1\n    kind: Secret\n    metadata:\n      name: harvester-csi-config\n      \
                namespace: kube-system\n    type: Opaque\n    stringData:\n      cloud-provider-config: |\n        apiVersion: v1\n";
    assert!(block.starts_with(head), "{block}");
    assert!(block.ends_with("harvester-csi-driver/master/deploy/manifests/deployment.yaml\n"), "{block}");
    let told = host.works(&How::default(), ADDON, "demo vms --format rke-addon").await;
    assert!(told.out.contains("FOR-CLOUD-PROVIDER==========\n"), "{}", told.out);
    assert!(told.out.contains("      name: cloud-config\n"), "{}", told.out);
}

#[tokio::test(flavor = "multi_thread")]
async fn with_the_bare_kubeconfig_nothing_else_is_on_standard_output() {
    let Some(host) = Host::open().await else { return };
    for binary in [false, true] {
        let how = How { binary, ..How::default() };
        let told = host.works(&how, ADDON, "demo vms --format kubeconfig").await;
        assert!(told.out.starts_with("apiVersion: v1\nclusters:\n"), "{}", told.out);
        assert!(told.out.ends_with('\n') && !told.out.ends_with("\n\n") && told.err.contains("Endpoint: "));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_kubeconfig_is_kept_only_where_that_is_asked_for_and_for_its_owner_alone() {
    let Some(host) = Host::open().await else { return };
    for binary in [false, true] {
        let how = How { binary, ..How::default() };
        let told = host.works(&how, ADDON, "demo vms --keep").await;
        let [file] = &told.files[..] else { panic!("{:?}", told.files) };
        assert!(file.ends_with("work/tmp/kube/k8s-demo-vms-conf"), "{}", file.display());
        assert_eq!(std::fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(told.out.contains(&std::fs::read_to_string(file).unwrap()));
        assert!(told.out.contains("Creating target directory to hold files in ./tmp/kube...done\n"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_that_somebody_puts_in_the_place_of_the_kept_kubeconfig_is_not_followed() {
    let Some(host) = Host::open().await else { return };
    for shell in shells() {
        let how = How { shell: shell.clone(), thief: true, ..How::default() };
        let told = host.run(&how, ADDON, "demo vms --keep --format kubeconfig").await;
        assert_eq!(told.code, Some(1), "{shell:?} {}", told.err);
        assert!(told.err.contains("was put there by somebody else meanwhile"), "{shell:?} {}", told.err);
        assert!(!told.folder.path().join("stolen").exists() && told.out.is_empty(), "{shell:?}");
    }
}

/// Names of roles and subjects may hold any character, and some shells' `echo` takes a backslash for more.
#[tokio::test(flavor = "multi_thread")]
async fn a_name_of_somebody_else_cannot_steer_the_terminal() {
    let Some(host) = Host::open().await else { return };
    let object = |kind: &str, role: &str| {
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": {"name": "vms-demo"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
            "subjects": [{"kind": "User", "name": "a\\c\\033[2J\u{1b}[2J\nnote: b"}]})
    };
    let mut binding = object("RoleBinding", "harvesterhci.io:cloudprovider");
    binding["metadata"]["namespace"] = "vms".into();
    host.apply(&binding.to_string()).await;
    host.apply(&object("ClusterRoleBinding", "x\\c\u{1b}[2J\u{202e}").to_string()).await;
    let mut ways: Vec<_> = shells().into_iter().map(|shell| How { shell, ..How::default() }).collect();
    ways.push(How { binary: true, ..How::default() });
    for how in ways {
        let told = host.run(&how, CSI, &format!("demo vms rke2 --server {}", host.address)).await;
        let is_bad = |letter: char| letter != '\n' && letter.is_control() || letter == '\u{202e}';
        assert!(!(told.out.clone() + &told.err).contains(is_bad), "{how:?} {:?}", told.err);
        let note = "is for User a\\c\\033[2J\u{fffd}[2J";
        assert!(told.err.contains(note) && !told.err.contains("\nnote:"), "{how:?} {:?}", told.err);
        assert!(
            told.err.contains("grants the role x\\c\u{fffd}[2J\u{fffd}: if nothing needs it"),
            "{how:?} {:?}",
            told.err
        );
        // for the next way
        let (done, told) = host.kubectl("delete rolebinding vms-demo -n vms").await;
        assert!(done, "{told}");
        host.apply(&binding.to_string()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_that_does_not_answer_is_told_and_no_token_is_printed_or_left() {
    let Some(host) = Host::open().await else { return };
    host.apply("{apiVersion: v1, kind: ConfigMap, metadata: {name: vip, namespace: harvester-system}, data: {ip: 127.255.255.254}}")
        .await;
    for binary in [false, true] {
        let told = host.run(&How { binary, ..How::default() }, CSI, "demo vms RKE2").await;
        assert_eq!(told.code, Some(1), "{}", told.out);
        assert!(
            told.err.contains("Harvester cannot be used at https://127.255.255.254:6443"),
            "{}",
            told.err
        );
        assert!(!told.out.contains("token: ") && told.files.is_empty(), "{}\n{:?}", told.out, told.files);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_whose_certificate_is_another_ones_is_told() {
    let (Some(host), Some(other)) = (Host::open().await, Host::open().await) else { return };
    for binary in [false, true] {
        let how = How { binary, ..How::default() };
        let told = host.run(&how, ADDON, &format!("demo vms --server {}", other.address)).await;
        assert_eq!(told.code, Some(1), "{}", told.out);
        assert!(told.err.contains(&other.address) && told.err.contains("certificate"), "{}", told.err);
        assert!(!told.out.contains("token: ") && told.files.is_empty(), "{}", told.out);
    }
}

/// Rancher stands before Harvester with a certificate of its own: the account's authority is not the one.
#[tokio::test(flavor = "multi_thread")]
async fn where_another_certificate_answers_the_authority_is_the_administrators() {
    let (Some(host), Some(other)) = (Host::open().await, Host::open().await) else { return };
    let first = host.works(&How::default(), ADDON, "demo vms").await;
    let good = after(&first.out, "certificate-authority-data: ").to_owned();
    let theirs = other.works(&How::default(), ADDON, "demo vms").await;
    let theirs = after(&theirs.out, "certificate-authority-data: ");
    assert_ne!(good, theirs);
    let patch = format!("patch secret demo-token -n vms -p {{\"data\":{{\"ca.crt\":\"{theirs}\"}}}}");
    let (done, told) = host.kubectl(&patch).await;
    assert!(done, "{told}");
    for binary in [false, true] {
        let told = host.works(&How { binary, ..How::default() }, ADDON, "demo vms").await;
        assert_eq!(after(&told.out, "certificate-authority-data: "), good);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_its_arguments_a_script_says_how_it_is_called_and_does_nothing() {
    let Some(host) = Host::open().await else { return };
    let revision = host.server.revision();
    for (name, arguments, part) in [
        (ADDON, "", "usage: generate_addon.sh <service_account_name> <namespace>"),
        (ADDON, "demo", "usage: generate_addon.sh <service_account_name> <namespace>"),
        ("generate_kubeconfig.sh", "", "usage: generate_kubeconfig.sh <service_account_name> <namespace>"),
        (CSI, "demo vms Rke3", "Target Rke3 is not supported, please use RKE1, RKE2 or K3S"),
        (ADDON, "Demo vms", "\"Demo\" is no name of a service account"),
        (ADDON, "demo vms --forma=x", "unknown option --forma=x"),
        (ADDON, "demo vms --format x", "unknown format \"x\""),
        (ADDON, "demo vms --server 192.0.2.1", "write it as https://192.0.2.1:6443"),
        (ADDON, "demo vms --least", "--least is for the CSI driver"),
    ] {
        let told = host.run(&How::default(), name, arguments).await;
        assert_eq!(told.code, Some(1), "{arguments}");
        let text = told.out + &told.err;
        assert!(text.contains(part), "{arguments}: {text}");
    }
    assert_eq!(host.server.revision(), revision);
    let of_ipv6 = "demo vms --no-check --format=kubeconfig --server https://[2001:db8::1]:6443";
    let told = host.works(&How::default(), ADDON, of_ipv6).await;
    assert!(told.out.contains("    server: https://[2001:db8::1]:6443\n"), "{}", told.out);
    let told = host.run(&How::default(), ADDON, "demo vms --help").await;
    assert!(told.code == Some(0) && told.out.contains("--no-check"), "{}", told.out);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_that_is_no_harvester_is_refused_before_anything_is_made() {
    let Some(host) = Host::open().await else { return };
    let (done, told) = host.kubectl("delete clusterrole harvesterhci.io:csi-driver").await;
    assert!(done, "{told}");
    let revision = host.server.revision();
    for binary in [false, true] {
        let told = host.run(&How { binary, ..How::default() }, CSI, "demo vms").await;
        assert_eq!(told.code, Some(1));
        let sentence =
            "the cluster of context local has no ClusterRole harvesterhci.io:csi-driver: is it Harvester";
        assert!(told.err.contains(sentence), "{}", told.err);
        let how = How { binary, kubeconfig: Some("/nowhere".into()), ..How::default() };
        let told = host.run(&how, ADDON, "demo vms").await;
        assert!(told.code == Some(1) && told.err.contains("set KUBECONFIG to"), "{}", told.err);
    }
    assert_eq!(host.server.revision(), revision);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_ends_is_made_looked_at_and_renewed_by_the_binary() {
    let Some(host) = Host::open().await else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("cloud-config");
    let (code, out, err) =
        host.cloud_config(folder.path(), "generate --rotate --life 1h --format kubeconfig demo vms").await;
    assert_eq!(code, Some(0), "{err}");
    std::fs::write(&file, &out).unwrap();
    let (code, report, err) = host.cloud_config(folder.path(), "inspect cloud-config").await;
    assert_eq!(code, Some(0), "{report}{err}");
    let user = "credential    system:serviceaccount:vms:demo, ends at ";
    assert!(report.contains(user) && report.contains("namespace     vms\n"), "{report}");
    let (_, told, _) = host.cloud_config(folder.path(), "rotate cloud-config").await;
    assert!(told.contains("stays as it is"), "{told}");
    let (code, told, err) = host.cloud_config(folder.path(), "rotate --now cloud-config").await;
    assert_eq!(code, Some(0), "{told}{err}");
    let renewed = std::fs::read_to_string(&file).unwrap();
    assert_ne!(renewed, out);
    let (code, report, _) = host.cloud_config(folder.path(), "inspect --for csi cloud-config").await;
    assert!(code == Some(3) && report.contains(" IS MISSING: "), "{report}");
    assert!(!report.contains(after(&renewed, "token: ")));
}
