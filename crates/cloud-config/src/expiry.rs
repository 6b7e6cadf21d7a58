//! How long a credential lasts.
//!
//! ```text
//! JWT ──► exp            client certificate ──► notAfter
//! Rancher's token, at a server behind /k8s/clusters/<id> ──GET /v3/tokens/<name>──► expiresAt, ttl
//! anything else, and whatever cannot be read ──► unknown, which is no fault
//! ```

use std::{fs, time::Duration};

use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
};
use http::{Request, Uri, uri::PathAndQuery};
use jiff::{SignedDuration, Timestamp, civil::DateTime, tz::TimeZone};
use kube::config::AuthInfo;
use rustls::pki_types::{CertificateDer, pem::PemObject as _};
use secrecy::ExposeSecret as _;
use serde_json::Value;

use crate::{CloudConfig, Options, connection::raw_client};

/// A shorter life is worth a warning.
pub const WARN_BEFORE: SignedDuration = SignedDuration::from_hours(7 * 24);
/// Rancher answers in this time, or the end stays unknown.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// When a credential ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expiry {
    At(Timestamp),
    Never,
    Unknown,
}

impl Expiry {
    /// What is left of it; not positive when it is over, none where it does not end or nobody knows.
    pub fn remaining(self, now: Timestamp) -> Option<SignedDuration> {
        match self {
            Self::At(end) => Some(end.duration_since(now)),
            Self::Never | Self::Unknown => None,
        }
    }
}

/// When the credential of a kubeconfig ends. One request at most, and only to a Rancher whose token this is.
pub async fn of(config: &CloudConfig, options: &Options) -> Expiry {
    let user = &config.config.auth_info;
    if let Some(expiry) = of_user(user) {
        return expiry;
    }
    let Some((token, root)) = rancher_token(user, &config.config.cluster_url) else { return Expiry::Unknown };
    let mut settings = config.config.clone();
    settings.cluster_url = root;
    let Ok(client) = raw_client(settings, options) else { return Expiry::Unknown };
    let Ok(request) = Request::get(format!("/v3/tokens/{token}")).body(vec![]) else {
        return Expiry::Unknown;
    };
    match tokio::time::timeout(ANSWER_TIMEOUT, client.request::<Value>(request)).await {
        Ok(Ok(answer)) => of_answer(&answer),
        _ => Expiry::Unknown,
    }
}

/// When each certificate ends that the server's one may lead to; nothing where the system's authorities count.
pub fn of_authorities(config: &CloudConfig) -> Vec<Expiry> {
    let certificates = config.config.root_cert.iter().flatten();
    certificates.map(|der| not_after(der).map_or(Expiry::Unknown, Expiry::At)).collect()
}

impl CloudConfig {
    /// Whether both are copies of one source, with different tokens.
    pub(crate) fn is_copy_beside(&self, other: &Self) -> bool {
        self.is_copy() && other.is_copy() && self.source() == other.source() && self.token() != other.token()
    }

    /// Whether this copy is to stay although `other` is there: its source, which ends earlier, or an older copy of the same source,
    /// as from a backup. A newer token may end earlier, where the server gives it a shorter life.
    pub(crate) fn outlives(&self, other: &Self) -> bool {
        let end = |config: &Self| match of_user(&config.config.auth_info) {
            Some(Expiry::At(end)) => Some(end),
            _ => None,
        };
        let issued = |config: &Self| claims(config.token()?)?["iat"].as_i64();
        let is_later = match other.is_copy() {
            true => issued(self).zip(issued(other)).is_some_and(|(own, theirs)| own > theirs),
            false => end(self).zip(end(other)).is_some_and(|(own, theirs)| own > theirs),
        };
        self.is_copy() && self.source() == other.source() && is_later
    }
}

/// What the credential itself tells.
pub(crate) fn of_user(user: &AuthInfo) -> Option<Expiry> {
    if let Some(token) = &user.token {
        return of_jwt(token.expose_secret());
    }
    if let Some(file) = &user.token_file {
        return of_jwt(fs::read_to_string(file).ok()?.trim());
    }
    let pem = match (&user.client_certificate_data, &user.client_certificate) {
        (Some(data), _) => STANDARD.decode(data.split_whitespace().collect::<String>()).ok()?,
        (None, Some(file)) => fs::read(file).ok()?,
        (None, None) => return None,
    };
    of_certificate(&pem).map(Expiry::At)
}

/// When the first certificate of a PEM text ends.
pub fn of_certificate(pem: &[u8]) -> Option<Timestamp> {
    not_after(&CertificateDer::from_pem_slice(pem).ok()?)
}

/// What a JSON web token says of itself; nobody has checked its signature.
pub(crate) fn claims(token: &str) -> Option<Value> {
    let mut parts = token.split('.');
    let (Some(_), Some(payload), Some(_), None) = (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return None;
    };
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(payload).ok()?).ok()
}

fn of_jwt(token: &str) -> Option<Expiry> {
    match claims(token)?.get("exp") {
        None => Some(Expiry::Never),
        Some(end) => Timestamp::from_second(end.as_i64()?).ok().map(Expiry::At),
    }
}

/// Name of a token of Rancher's, and the root of the Rancher that a cluster's proxy address belongs to.
fn rancher_token(user: &AuthInfo, server: &Uri) -> Option<(String, Uri)> {
    let (name, _) = user.token.as_ref()?.expose_secret().split_once(':')?;
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    if name.is_empty() || !name.bytes().all(plain) {
        return None;
    }
    let (root, cluster) = server.path().split_once("/k8s/clusters/")?;
    if cluster.trim_end_matches('/').is_empty() {
        return None;
    }
    let mut parts = server.clone().into_parts();
    parts.path_and_query = Some(PathAndQuery::try_from(if root.is_empty() { "/" } else { root }).ok()?);
    Some((name.to_owned(), Uri::from_parts(parts).ok()?))
}

fn of_answer(answer: &Value) -> Expiry {
    if answer["expired"] == true {
        return Expiry::At(Timestamp::UNIX_EPOCH);
    }
    let end = answer["expiresAt"].as_str().filter(|text| !text.is_empty());
    match (end.map(str::parse), answer["ttl"].as_i64()) {
        (Some(Ok(end)), _) => Expiry::At(end),
        (None, Some(0)) => Expiry::Never,
        _ => Expiry::Unknown,
    }
}

/// `notAfter` of an X.509 certificate: Certificate → TBSCertificate → [version] serial algorithm issuer *validity*.
fn not_after(der: &[u8]) -> Option<Timestamp> {
    const SEQUENCE: u8 = 0x30;
    const VERSION: u8 = 0xa0;
    let (certificate, _) = element(der, SEQUENCE)?;
    let (mut rest, _) = element(certificate, SEQUENCE)?;
    if let Some((_, after)) = element(rest, VERSION) {
        rest = after;
    }
    for _ in ["serial number", "algorithm", "issuer"] {
        rest = any_element(rest)?.2;
    }
    let (validity, _) = element(rest, SEQUENCE)?;
    let (_, _, end) = any_element(validity)?;
    let (tag, text, _) = any_element(end)?;
    time(tag, std::str::from_utf8(text).ok()?)
}

/// UTCTime (`yymmddhhmmssZ`, until 2049) or GeneralizedTime (`yyyymmddhhmmssZ`).
fn time(tag: u8, text: &str) -> Option<Timestamp> {
    let full = match tag {
        0x17 => format!("{}{text}", if text.get(..2)? < "50" { "20" } else { "19" }),
        0x18 => text.to_owned(),
        _ => return None,
    };
    let at = DateTime::strptime("%Y%m%d%H%M%S", full.strip_suffix('Z')?).ok()?;
    at.to_zoned(TimeZone::UTC).ok().map(|at| at.timestamp())
}

/// Content of an element with this tag, and what comes after it.
fn element(der: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (found, content, rest) = any_element(der)?;
    (found == tag).then_some((content, rest))
}

fn any_element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = der.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        // a certificate is shorter than what four bytes can say
        0x81..=0x84 => {
            let (bytes, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            (bytes.iter().fold(0, |length, byte| length << 8 | usize::from(*byte)), rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((tag, content, rest))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::proxy::Environment;

    fn at(text: &str) -> Expiry {
        Expiry::At(text.parse().unwrap())
    }

    fn jwt(payload: &Value) -> String {
        format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(payload.to_string()))
    }

    fn config(server: &str, user: &str) -> CloudConfig {
        let text = format!(
            "{{current-context: a, clusters: [{{name: a, cluster: {{server: '{server}'}}}}],
               users: [{{name: a, user: {user}}}], contexts: [{{name: a, context: {{cluster: a, user: a}}}}]}}"
        );
        CloudConfig::parse(&text, "file", &Environment::default()).unwrap()
    }

    #[test]
    fn a_jwt_tells_its_end() {
        assert_eq!(of_jwt(&jwt(&json!({"exp": 1_800_000_000}))), Some(at("2027-01-15T08:00:00Z")));
        assert_eq!(of_jwt(&jwt(&json!({"sub": "x"}))), Some(Expiry::Never));
        for odd in ["kubeconfig-user-abc:secret", "a.b", "a.!.c", "a.e30.c.d"] {
            assert_eq!(of_jwt(odd), None, "{odd}");
        }
    }

    #[rstest]
    #[case::end(json!({"expiresAt": "2026-12-01T00:00:00Z", "ttl": 86_400_000}), at("2026-12-01T00:00:00Z"))]
    #[case::over(json!({"expired": true, "expiresAt": ""}), Expiry::At(Timestamp::UNIX_EPOCH))]
    #[case::never(json!({"expiresAt": "", "ttl": 0, "expired": false}), Expiry::Never)]
    #[case::odd(json!({"expiresAt": "soon"}), Expiry::Unknown)]
    #[case::nothing(json!({}), Expiry::Unknown)]
    fn rancher_tells_the_end_of_its_tokens(#[case] answer: Value, #[case] expected: Expiry) {
        assert_eq!(of_answer(&answer), expected);
    }

    #[rstest]
    #[case::proxy(
        "https://rancher.example/k8s/clusters/c-m-abc",
        "kubeconfig-u:s",
        Some("https://rancher.example/")
    )]
    #[case::below_a_path(
        "https://example/rancher/k8s/clusters/c-1",
        "kubeconfig-u:s",
        Some("https://example/rancher")
    )]
    #[case::direct("https://harvester.example:6443", "kubeconfig-u:s", None)]
    #[case::no_colon("https://rancher.example/k8s/clusters/c-1", "abc", None)]
    #[case::odd_name("https://rancher.example/k8s/clusters/c-1", "../x:s", None)]
    fn a_token_of_rancher_is_told_by_its_form_and_the_address(
        #[case] server: &str,
        #[case] token: &str,
        #[case] root: Option<&str>,
    ) {
        let config = config(server, &format!("{{token: '{token}'}}"));
        let found = rancher_token(&config.config.auth_info, &config.config.cluster_url);
        assert_eq!(found.as_ref().map(|(_, root)| root.to_string()).as_deref(), root);
        assert!(found.is_none_or(|(name, _)| name == "kubeconfig-u"));
    }

    /// One certificate from now to 2049 and one beyond, in both forms of time.
    #[rstest]
    #[case::utc_time(0x17, b"301231235959Z", Some("2030-12-31T23:59:59Z"))]
    #[case::generalized(0x18, b"20991231235959Z", Some("2099-12-31T23:59:59Z"))]
    #[case::last_century(0x17, b"991231235959Z", Some("1999-12-31T23:59:59Z"))]
    #[case::not_a_time(0x17, b"soon", None)]
    fn a_certificate_tells_its_end(#[case] tag: u8, #[case] end: &[u8], #[case] expected: Option<&str>) {
        fn element(tag: u8, content: &[u8]) -> Vec<u8> {
            let length = content.len();
            let head = if length < 128 { vec![tag, length as u8] } else { vec![tag, 0x81, length as u8] };
            [head, content.to_vec()].concat()
        }
        let validity = element(0x30, &[element(0x17, b"200101000000Z"), element(tag, end)].concat());
        let parts = [
            element(0xa0, &[2, 1, 2]),
            element(2, &[7]),
            element(0x30, &[]),
            element(0x30, &[0; 90]),
            validity,
        ];
        let certificate = element(0x30, &element(0x30, &parts.concat()));
        assert_eq!(not_after(&certificate), expected.map(|text| text.parse().unwrap()));
        for cut in 0..certificate.len() {
            // nothing to learn from a part but that it does not panic
            let _ = not_after(&certificate[..cut]);
        }
    }

    #[test]
    fn the_certificates_of_an_authority_tell_their_ends() {
        let certificate = sim_apiserver::ApiServer::builder().build().ca_pem();
        let cluster = format!(
            "server: 'https://harvester.example', certificate-authority-data: {}",
            STANDARD.encode([certificate.clone(), certificate].concat())
        );
        let text = format!(
            "{{current-context: a, clusters: [{{name: a, cluster: {{{cluster}}}}}], contexts: [{{name: a, context: {{cluster: a}}}}]}}"
        );
        let config = CloudConfig::parse(&text, "file", &Environment::default()).unwrap();
        let ends = of_authorities(&config);
        assert!(ends.len() == 2 && ends.iter().all(|end| matches!(end, Expiry::At(_))), "{ends:?}");
    }

    #[test]
    fn a_token_in_a_file_tells_its_end_too() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), format!("{}\n", jwt(&json!({"exp": 1_800_000_000})))).unwrap();
        let user = AuthInfo { token_file: Some(file.path().display().to_string()), ..AuthInfo::default() };
        assert_eq!(of_user(&user), Some(at("2027-01-15T08:00:00Z")));
    }

    #[tokio::test]
    async fn a_credential_that_says_nothing_has_no_known_end() {
        let options = Options::named("test");
        assert_eq!(
            of(&config("https://harvester.example", "{username: a, password: b}"), &options).await,
            Expiry::Unknown
        );
        // nobody answers there
        let rancher = config("http://127.0.0.1:9/k8s/clusters/c-1", "{token: 'kubeconfig-u:s'}");
        assert_eq!(of(&rancher, &options).await, Expiry::Unknown);
        let now = "2026-11-21T00:00:00Z".parse().unwrap();
        assert_eq!(Expiry::Unknown.remaining(now), None);
        assert_eq!(at("2026-11-22T00:00:00Z").remaining(now), Some(SignedDuration::from_hours(24)));
    }
}
