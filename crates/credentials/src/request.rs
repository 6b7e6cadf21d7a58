//! What is asked for, checked.

use jiff::SignedDuration;

/// Whom the kubeconfig is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    CloudProvider,
    CsiDriver,
}

/// What is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// The kubeconfig, then user data of cloud-init that writes it.
    CloudInit,
    /// A block of a cluster's YAML in RKE1.
    RkeAddon,
    /// Nothing but the kubeconfig.
    Kubeconfig,
}

/// A checked request for a kubeconfig.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    pub part: Part,
    pub account: String,
    /// Of the guest cluster's VMs.
    pub namespace: String,
    pub format: Format,
    /// The address that the guest cluster shall use, where it is not the one that is found.
    pub server: Option<String>,
    /// For the CSI driver: no rights in namespaces of others that it does without.
    pub least: bool,
    /// Keep the kubeconfig in `./tmp/kube` too.
    pub keep: bool,
    /// Try address, certificate and token before they are printed.
    pub check: bool,
    /// A token that lasts so long and that its account renews, in place of one that does not end.
    pub rotate: Option<SignedDuration>,
}

pub(crate) fn part(text: &str) -> Result<Part, String> {
    match text {
        "cloud-provider" => Ok(Part::CloudProvider),
        "csi" => Ok(Part::CsiDriver),
        _ => Err(format!("{text:?}: use cloud-provider or csi")),
    }
}

pub(crate) fn format(text: &str) -> Result<Format, String> {
    match text {
        "cloud-init" => Ok(Format::CloudInit),
        "rke-addon" => Ok(Format::RkeAddon),
        "kubeconfig" => Ok(Format::Kubeconfig),
        _ => Err(format!("{text:?}: use cloud-init, rke-addon or kubeconfig")),
    }
}

pub(crate) fn server(text: &str) -> Result<String, String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._~:/%@[]-".contains(c);
    let rest = text.strip_prefix("https://").unwrap_or_default();
    if rest.is_empty() || !rest.chars().all(allowed) {
        return Err(format!("{text:?} is no address: write it as https://192.0.2.1:6443"));
    }
    Ok(text.to_owned())
}

/// Longest name of a service account, whose Secret's name is longer by `-token`.
const ACCOUNT_MAX: usize = 253 - "-token".len();
const NAMESPACE_MAX: usize = 63;

pub(crate) fn account(text: &str) -> Result<String, String> {
    if is_name(text, ACCOUNT_MAX) {
        return Ok(text.to_owned());
    }
    Err(format!("{:?} is no name of a service account: use a-z, 0-9, - and .", short(text)))
}

pub(crate) fn namespace(text: &str) -> Result<String, String> {
    if is_name(text, NAMESPACE_MAX) && !text.contains('.') {
        return Ok(text.to_owned());
    }
    Err(format!("{:?} is no name of a namespace: use a-z, 0-9 and -", short(text)))
}

fn is_name(text: &str, longest: usize) -> bool {
    let is_edge = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let allowed = |c: char| is_edge(c) || matches!(c, '-' | '.');
    text.len() <= longest && text.starts_with(is_edge) && text.ends_with(is_edge) && text.chars().all(allowed)
}

fn short(text: &str) -> String {
    text.chars().take(NAMESPACE_MAX).collect()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::usual("demo", true, true)]
    #[case::digits("123", true, true)]
    #[case::dots("a.b", true, false)]
    #[case::empty("", false, false)]
    #[case::capitals("Demo", false, false)]
    #[case::quotes("a\"b", false, false)]
    #[case::dash("-a", false, false)]
    fn names_are_what_kubernetes_takes(
        #[case] text: &str,
        #[case] of_account: bool,
        #[case] of_namespace: bool,
    ) {
        assert_eq!((account(text).is_ok(), namespace(text).is_ok()), (of_account, of_namespace));
    }

    #[test]
    fn a_name_of_ten_thousand_characters_is_told_in_part() {
        assert!(account(&"A".repeat(10_000)).unwrap_err().len() < 200);
        assert!(namespace(&"a".repeat(64)).is_err());
    }

    #[rstest]
    #[case("https://192.0.2.1:6443", true)]
    #[case("https://[2001:db8::1]:6443", true)]
    #[case("http://192.0.2.1", false)]
    #[case("192.0.2.1", false)]
    #[case("https://", false)]
    #[case("https://a b", false)]
    #[case("https://a'b", false)]
    fn an_address_of_harvester_is_one_of_https(#[case] text: &str, #[case] good: bool) {
        assert_eq!(server(text).is_ok(), good);
    }
}
