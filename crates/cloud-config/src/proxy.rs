//! Whether requests go through a proxy, by the rules of Go's `net/http` and client-go, which the programs that this
//! one replaces follow.
//!
//! `proxy-url` of the kubeconfig is an order and knows no exception. `HTTPS_PROXY` (for http servers `HTTP_PROXY`)
//! is a habit: it does not hold for localhost and loopback addresses, nor for what `NO_PROXY` names. Entries of
//! `NO_PROXY` that mean nothing are passed over.

use std::net::IpAddr;

use http::Uri;

/// The environment variables that decide, as they are spelled in upper case; the lower-case ones count where these
/// are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment {
    pub https_proxy: String,
    pub http_proxy: String,
    pub no_proxy: String,
}

impl Environment {
    /// What this process was started with.
    pub fn of_process() -> Self {
        let read = |name: &str| {
            [name.to_owned(), name.to_ascii_lowercase()]
                .into_iter()
                .filter_map(|name| std::env::var(name).ok())
                .find(|value| !value.is_empty())
                .unwrap_or_default()
        };
        Self { https_proxy: read("HTTPS_PROXY"), http_proxy: read("HTTP_PROXY"), no_proxy: read("NO_PROXY") }
    }
}

/// The proxy for requests to `server`, if any. `ordered` is `proxy-url` of the kubeconfig.
///
/// # Errors
/// A sentence where the proxy's address is of no use.
pub fn decide(server: &Uri, ordered: Option<&str>, environment: &Environment) -> Result<Option<Uri>, String> {
    if let Some(ordered) = ordered.filter(|text| !text.is_empty()) {
        return address(ordered).map(Some);
    }
    let habit = match server.scheme_str() {
        Some("http") => &environment.http_proxy,
        _ => &environment.https_proxy,
    };
    if habit.is_empty() || !applies(server, &environment.no_proxy) {
        return Ok(None);
    }
    address(habit).map(Some)
}

/// A proxy without scheme is an http one.
fn address(text: &str) -> Result<Uri, String> {
    let full = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
    // the text may hold a password: it is not repeated
    let uri: Uri = full.parse().map_err(|error| format!("the proxy's address cannot be read: {error}"))?;
    match (uri.scheme_str(), uri.host()) {
        (Some("http" | "https"), Some(_)) => Ok(uri),
        (Some(scheme), _) => Err(format!("a proxy of scheme {scheme} is not supported, use http or https")),
        (None, _) => Err("the proxy's address has no scheme".to_owned()),
    }
}

fn applies(server: &Uri, no_proxy: &str) -> bool {
    let host = server.host().unwrap_or_default();
    let host = host.trim_start_matches('[').trim_end_matches(']').trim_end_matches('.').to_ascii_lowercase();
    let port = server.port_u16().unwrap_or(if server.scheme_str() == Some("http") { 80 } else { 443 });
    let ip: Option<IpAddr> = host.parse().ok();
    if host == "localhost" || ip.is_some_and(|ip| ip.is_loopback()) {
        return false;
    }
    !no_proxy.split(',').map(str::trim).any(|entry| excepts(entry, &host, ip, port))
}

/// Whether one entry of `NO_PROXY` means this server.
fn excepts(entry: &str, host: &str, ip: Option<IpAddr>, port: u16) -> bool {
    let entry = entry.to_ascii_lowercase();
    if entry.is_empty() {
        return false;
    }
    if entry == "*" {
        return true;
    }
    if let Some((network, bits)) = entry.split_once('/') {
        return match (network.parse::<IpAddr>(), bits.parse::<u8>(), ip) {
            (Ok(network), Ok(bits), Some(ip)) => in_prefix(ip, network, bits),
            _ => false,
        };
    }
    let (name, wanted) = match entry.rsplit_once(':') {
        // an IPv6 address without brackets has colons of its own
        Some((name, number)) if !name.contains(':') || name.ends_with(']') => match number.parse::<u16>() {
            Ok(number) => (name, Some(number)),
            Err(_) => return false,
        },
        _ => (entry.as_str(), None),
    };
    if wanted.is_some_and(|wanted| wanted != port) {
        return false;
    }
    let name = name.trim_start_matches('[').trim_end_matches(']');
    match (name.parse::<IpAddr>(), ip) {
        (Ok(named), Some(ip)) => named == ip,
        (Ok(_), None) => false,
        (Err(_), _) => {
            // `.example.org` and `*.example.org` mean what is below, `example.org` also itself
            let below = name.trim_start_matches('*').trim_start_matches('.');
            !below.is_empty() && (host.ends_with(&format!(".{below}")) || (below == name && host == below))
        }
    }
}

fn in_prefix(ip: IpAddr, network: IpAddr, bits: u8) -> bool {
    let same = |a: u128, b: u128, width: u8| bits <= width && (bits == 0 || (a ^ b) >> (width - bits) == 0);
    match (ip, network) {
        (IpAddr::V4(a), IpAddr::V4(b)) => same(u32::from(a).into(), u32::from(b).into(), 32),
        (IpAddr::V6(a), IpAddr::V6(b)) => same(a.into(), b.into(), 128),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn check(server: &str, no_proxy: &str) -> Option<String> {
        let environment = Environment {
            https_proxy: "http://proxy.example:3128".into(),
            http_proxy: "plain.example:3128".into(),
            no_proxy: no_proxy.into(),
        };
        let decided = decide(&server.parse().unwrap(), None, &environment).unwrap();
        decided.map(|uri| uri.to_string())
    }

    const PROXIED: bool = true;
    const DIRECT: bool = false;

    #[rstest]
    // rust-ecosystem.md section 2: kube 5.0 compares these with the proxy's own address
    #[case::host("https://api.example:6443", "api.example", DIRECT)]
    #[case::the_proxy_itself("https://api.example:6443", "proxy.example", PROXIED)]
    #[case::address("https://198.51.100.10:6443", "10.0.0.0/8,198.51.100.10", DIRECT)]
    #[case::network("https://198.51.100.10:6443", "198.51.100.0/24", DIRECT)]
    #[case::other_network("https://198.51.100.10:6443", "198.51.101.0/24", PROXIED)]
    #[case::everything("https://198.51.100.10:6443", "*", DIRECT)]
    #[case::all_of_v4("https://198.51.100.10:6443", "0.0.0.0/0", DIRECT)]
    #[case::v6("https://[fd00::10]:6443", "fd00::/8", DIRECT)]
    #[case::v6_plain("https://[fd00::10]:6443", "fd00::10", DIRECT)]
    #[case::v6_with_port("https://[fd00::10]:6443", "[fd00::10]:6443", DIRECT)]
    #[case::below("https://a.api.example:6443", "api.example", DIRECT)]
    #[case::not_below("https://myapi.example:6443", "api.example", PROXIED)]
    #[case::dot_means_below_only("https://api.example:6443", ".api.example", PROXIED)]
    #[case::star_and_dot("https://a.api.example:6443", "*.api.example", DIRECT)]
    #[case::port("https://api.example:6443", "api.example:6443", DIRECT)]
    #[case::other_port("https://api.example:6443", "api.example:443", PROXIED)]
    #[case::letter_case("https://API.example:6443", "api.EXAMPLE", DIRECT)]
    #[case::nonsense_is_passed_over("https://api.example:6443", ",,a b,1.2.3.4/99,:x,api.example", DIRECT)]
    #[case::loopback("https://127.0.0.1:6443", "", DIRECT)]
    #[case::localhost("https://localhost:6443", "", DIRECT)]
    #[case::nothing_excepted("https://api.example:6443", "", PROXIED)]
    fn no_proxy_is_about_the_server(#[case] server: &str, #[case] no_proxy: &str, #[case] proxied: bool) {
        let expected = (proxied == PROXIED).then(|| "http://proxy.example:3128/".to_owned());
        assert_eq!(check(server, no_proxy), expected);
    }

    #[test]
    fn a_plain_server_has_the_plain_proxy() {
        assert_eq!(check("http://api.example", ""), Some("http://plain.example:3128/".into()));
    }

    #[test]
    fn proxy_url_of_the_file_is_an_order() {
        let environment = Environment { no_proxy: "*".into(), ..Environment::default() };
        let server = "https://127.0.0.1:6443".parse().unwrap();
        let decided = decide(&server, Some("http://file.example:8080"), &environment).unwrap();
        assert_eq!(decided.unwrap().to_string(), "http://file.example:8080/");
        let refused =
            decide(&server, Some("socks5://user:secret@file.example:1080"), &environment).unwrap_err();
        assert!(refused.contains("socks5") && !refused.contains("secret"), "{refused}");
    }
}
