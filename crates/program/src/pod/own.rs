//! The Pod of this process as an object that Events can be about.

use std::{env, fs, path::Path};

use super::{Sources, token};

/// The environment variables for `metadata.name` and `metadata.namespace` of the downward API.
const NAME_VARIABLE: &str = "POD_NAME";
const NAMESPACE_VARIABLE: &str = "POD_NAMESPACE";
/// The file in which the kubelet puts the namespace of a Pod's service account, which is the Pod's.
const NAMESPACE_FILE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";
/// The longest name of an object.
const LONGEST_NAME: usize = 253;

/// The Pod of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnPod {
    pub namespace: String,
    pub name: String,
    /// Where nothing contradicts it.
    pub uid: Option<String>,
}

impl OwnPod {
    /// The Pod of this process: by environment, else by the claims of its token, else by host name and mounted namespace.
    /// A Pod on the host's network has the host's name, so that the last way may name no Pod.
    pub fn of_process(token_file: Option<&Path>) -> Option<Self> {
        let given = |name: &str| env::var(name).ok();
        let mounted = fs::read_to_string(NAMESPACE_FILE).ok();
        let sources = Sources::of_process(token_file);
        Self::of(&sources, given(NAME_VARIABLE), given(NAMESPACE_VARIABLE), mounted)
    }

    fn of(
        sources: &Sources,
        name: Option<String>,
        namespace: Option<String>,
        mounted_namespace: Option<String>,
    ) -> Option<Self> {
        let (claimed_namespace, claimed_name) = sources.token.as_deref().and_then(token::pod_name).unzip();
        let plain = |text: String| Some(text.trim().to_owned()).filter(|text| is_name(text));
        let namespace =
            [namespace, claimed_namespace, mounted_namespace].into_iter().flatten().find_map(plain)?;
        let name =
            [name, claimed_name, Some(sources.host_name.clone())].into_iter().flatten().find_map(plain)?;
        Some(Self { namespace, name, uid: sources.uid() })
    }
}

/// Whether it may be the name of an object; what nobody expanded, such as `$(POD_NAME)`, is none.
fn is_name(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.');
    !text.is_empty() && text.len() <= LONGEST_NAME && text.bytes().all(plain)
}

#[cfg(test)]
mod tests {
    use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn sources(host_name: &str, bound: bool) -> Sources {
        let pod = json!({"kubernetes.io": {"namespace": "claimed", "pod": {"name": "part-0", "uid": "a-1"}}});
        let claims = if bound { pod } else { json!({"sub": "x"}) };
        let token = format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(claims.to_string()));
        Sources { host_name: host_name.into(), token: Some(token), ..Sources::default() }
    }

    #[rstest]
    #[case::environment(true, Some("given"), Some("apps"), None, Some(("apps", "given")))]
    #[case::token(true, None, None, Some("mounted"), Some(("claimed", "part-0")))]
    #[case::host_name(false, None, None, Some("mounted\n"), Some(("mounted", "worker-1")))]
    #[case::unexpanded(true, Some("$(POD_NAME)"), Some(""), None, Some(("claimed", "part-0")))]
    #[case::outside_of_a_cluster(false, None, None, None, None)]
    fn the_pod_of_a_process_is_known_by_environment_token_or_host_name(
        #[case] bound: bool,
        #[case] name: Option<&str>,
        #[case] namespace: Option<&str>,
        #[case] mounted: Option<&str>,
        #[case] expected: Option<(&str, &str)>,
    ) {
        let text = |text: Option<&str>| text.map(str::to_owned);
        let pod = OwnPod::of(&sources("worker-1", bound), text(name), text(namespace), text(mounted));
        let found = pod.as_ref().map(|pod| (pod.namespace.as_str(), pod.name.as_str()));
        assert_eq!(found, expected);
        assert_eq!(pod.and_then(|pod| pod.uid), bound.then(|| "a-1".to_owned()));
    }
}
