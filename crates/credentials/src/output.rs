//! The texts that are printed for people and programs. Pure, and the very same as `deploy/generate_addon.sh` prints.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::Value;

use crate::request::{Format, Part};

/// What the kubeconfig says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Content {
    /// Base64 of the certificates in PEM; empty for the authorities of the system.
    pub(crate) ca: String,
    pub(crate) server: String,
    pub(crate) server_name: String,
    pub(crate) cluster: String,
    pub(crate) user: String,
    pub(crate) namespace: String,
}

impl Content {
    /// The kubeconfig with this token, as kubectl writes it.
    pub(crate) fn kubeconfig(&self, token: &str) -> String {
        let Self { ca, server, server_name, cluster, user, namespace } = self;
        let optional = |name: &str, value: &str| {
            if value.is_empty() { String::new() } else { format!("    {name}: {}\n", scalar(value)) }
        };
        let (cluster, user, namespace) = (scalar(cluster), scalar(user), scalar(namespace));
        format!(
            "apiVersion: v1\nclusters:\n- cluster:\n{}    server: {}\n{}  name: {cluster}\ncontexts:\n- context:\n    \
             cluster: {cluster}\n    namespace: {namespace}\n    user: {user}\n  name: {user}\n\
             current-context: {user}\nkind: Config\npreferences: {{}}\nusers:\n- name: {user}\n  user:\n    token: {}\n",
            optional("certificate-authority-data", ca),
            scalar(server),
            optional("tls-server-name", server_name),
            scalar(token),
        )
    }
}

/// A text as YAML: as it is where it cannot be taken for anything else, else in quotation marks.
fn scalar(text: &str) -> String {
    const WORDS: [&str; 9] = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"];
    let plain = match text.strip_prefix("https://") {
        Some(rest) => {
            let allowed = |c: char| c.is_ascii_alphanumeric() || "._~:/%@[]-".contains(c);
            rest.chars().all(allowed) && rest.ends_with(|c: char| c.is_ascii_alphanumeric() || c == '/')
        }
        None => {
            let allowed = |c: char| c.is_ascii_alphanumeric() || "._/@+=-".contains(c);
            text.starts_with(|c: char| c.is_ascii_alphabetic()) && text.chars().all(allowed)
        }
    };
    let is_word = WORDS.iter().any(|word| text.eq_ignore_ascii_case(word));
    if plain && !is_word { text.to_owned() } else { Value::from(text).to_string() }
}

/// What stands before the result: the lines of the Go program's script, which it took from kubectl.
pub(crate) fn prepared(content: &Content, account: &str) -> String {
    let Content { cluster, user, namespace, .. } = content;
    format!(
        "\nPreparing k8s-{account}-{namespace}-conf\nSetting a cluster entry in kubeconfig...Cluster \"{cluster}\" set.\n\
         Setting token credentials entry in kubeconfig...User \"{user}\" set.\n\
         Setting a context entry in kubeconfig...Context \"{user}\" created.\n\
         Setting the current-context in the kubeconfig file...Switched to context \"{user}\".\n"
    )
}

/// The result in the form that was asked for.
pub(crate) fn result(part: Part, format: Format, kubeconfig: &str) -> String {
    match format {
        Format::Kubeconfig => kubeconfig.to_owned(),
        Format::CloudInit => cloud_init(part, kubeconfig),
        Format::RkeAddon => addon(part, kubeconfig),
    }
}

/// User data that writes the kubeconfig to both places: a reader deletes the one that the cluster does not use.
pub(crate) fn user_data(kubeconfig: &str) -> String {
    let content = STANDARD.encode(kubeconfig);
    let entry = |part: Part| {
        let path = path(part);
        format!(
            "- encoding: b64\n  content: {content}\n  owner: root:root\n  path: {path}\n  permissions: '0644'\n"
        )
    };
    let entries = [Part::CloudProvider, Part::CsiDriver].map(entry).concat();
    format!("########## cloud-init user data ############\nwrite_files:\n{entries}")
}

fn path(part: Part) -> &'static str {
    match part {
        Part::CloudProvider => "/etc/kubernetes/cloud-config",
        Part::CsiDriver => "/var/lib/rancher/rke2/etc/config-files/cloud-provider-config",
    }
}

fn cloud_init(part: Part, kubeconfig: &str) -> String {
    let (title, path) = match part {
        Part::CloudProvider => ("cloud config", path(part)),
        Part::CsiDriver => ("cloud-config", path(part)),
    };
    let content = STANDARD.encode(kubeconfig);
    format!(
        "########## {title} ############\n{kubeconfig}\n########## cloud-init user data ############\nwrite_files:\n\
         - encoding: b64\n  content: {content}\n  owner: root:root\n  path: {path}\n  permissions: '0644'\n"
    )
}

fn addon(part: Part, kubeconfig: &str) -> String {
    const CLOUD_PROVIDER: &str =
        "https://raw.githubusercontent.com/harvester/cloud-provider-harvester/master/deploy/manifests";
    const CSI_DRIVER: &str =
        "https://raw.githubusercontent.com/harvester/harvester-csi-driver/master/deploy/manifests";
    let (title, secret, key, includes) = match part {
        Part::CloudProvider => (
            "CLOUD-PROVIDER",
            "cloud-config",
            "cloud-config",
            format!("  - {CLOUD_PROVIDER}/rbac.yaml\n  - {CLOUD_PROVIDER}/deployment.yaml\n"),
        ),
        Part::CsiDriver => (
            "HARVESTER_CSI_DRIVER",
            "harvester-csi-config",
            "cloud-provider-config",
            format!("  - {CSI_DRIVER}/deployment.yaml\n"),
        ),
    };
    let indented: String = kubeconfig.lines().map(|line| format!("        {line}\n")).collect();
    format!(
        "\n========RKE-ADDON-CONFIGURATION-FOR-{title}==========\n  addons: |-\n    ---\n    apiVersion: v1\n    \
         kind: Secret\n    metadata:\n      name: {secret}\n      namespace: kube-system\n    type: Opaque\n    \
         stringData:\n      {key}: |\n{indented}  addons_include:\n{includes}"
    )
}

#[cfg(test)]
mod tests {
    use cloud_config::{CloudConfig, proxy::Environment};
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::name("local", "local")]
    #[case::number("123", "\"123\"")]
    #[case::exponent("1e5", "\"1e5\"")]
    #[case::word("Yes", "\"Yes\"")]
    #[case::colon("a:b", "\"a:b\"")]
    #[case::space("my cluster", "\"my cluster\"")]
    #[case::quote("a\"b", r#""a\"b""#)]
    #[case::address("https://192.0.2.1:6443", "https://192.0.2.1:6443")]
    #[case::open_end("https://a:", "\"https://a:\"")]
    fn a_text_that_yaml_takes_for_something_else_is_quoted(#[case] text: &str, #[case] expected: &str) {
        assert_eq!(scalar(text), expected);
    }

    fn content(cluster: &str) -> Content {
        Content {
            ca: String::new(),
            server: "https://192.0.2.1:6443".to_owned(),
            server_name: String::new(),
            cluster: cluster.to_owned(),
            user: format!("123-vms-{cluster}"),
            namespace: "vms".to_owned(),
        }
    }

    #[rstest]
    fn the_kubeconfig_can_be_read_whatever_the_cluster_is_called(
        #[values("local", "123", "null", "a: b", "#x", "é \"q\" \\ ü", "-", "")] cluster: &str,
    ) {
        let text = content(cluster).kubeconfig("12345");
        let config = CloudConfig::parse(&text, "file", &Environment::default()).unwrap();
        assert_eq!((config.namespace.as_str(), config.server().as_str()), ("vms", "https://192.0.2.1:6443/"));
        assert_eq!(config.context, format!("123-vms-{cluster}"));
    }

    #[test]
    fn user_data_holds_the_kubeconfig_on_one_line() {
        let text = cloud_init(Part::CloudProvider, "a\nb\n");
        assert!(
            text.starts_with("########## cloud config ############\na\nb\n\n########## cloud-init user data")
        );
        assert!(text.contains("\n  content: YQpiCg==\n"), "{text}");
    }
}
