//! The request of an HTTP health check. A user's words become a checked type here, once: what a path may hold is what
//! keeps its author from writing other lines into the request.

use std::net::SocketAddr;
use std::sync::Arc;

/// Longest path, with its query, in bytes.
pub const LONGEST_PATH: usize = 1_024;

/// A GET by HTTP, or by HTTPS whatever certificate the backend shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpGet {
    /// Begins with a slash; visible ASCII without `#`. Shared by all backends of an object.
    path: Arc<str>,
    is_tls: bool,
}

/// Why a path and a scheme make no request. No text of the user's is in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestFault {
    #[error("path does not begin with a slash")]
    NoSlash,
    #[error("path has {0} bytes, at most {LONGEST_PATH} are allowed")]
    TooLong(usize),
    /// At this byte, from 0.
    #[error(
        "path has a blank, a control character or one outside of ASCII at byte {0}: write it as percent and two hex digits"
    )]
    NotVisible(usize),
    #[error("path has a fragment (#), which is not sent to servers: leave it out")]
    Fragment,
    #[error("scheme is neither HTTP nor HTTPS")]
    UnknownScheme,
    #[error("scheme has no effect without a path: give a path, or leave the scheme out")]
    SchemeWithoutPath,
}

impl HttpGet {
    /// From the words that a user wrote. Nothing when both are empty: the check is a TCP connect. An empty scheme means
    /// HTTP.
    ///
    /// # Errors
    /// Every fault of the two.
    pub fn parse(path: &str, scheme: &str) -> Result<Option<Self>, Vec<RequestFault>> {
        let is_path = !path.is_empty();
        let invisible = path.bytes().position(|byte| !byte.is_ascii_graphic());
        let faults = [
            (is_path && !path.starts_with('/')).then_some(RequestFault::NoSlash),
            (path.len() > LONGEST_PATH).then_some(RequestFault::TooLong(path.len())),
            invisible.map(RequestFault::NotVisible),
            path.contains('#').then_some(RequestFault::Fragment),
            (!["", "HTTP", "HTTPS"].contains(&scheme)).then_some(RequestFault::UnknownScheme),
            (!is_path && !scheme.is_empty()).then_some(RequestFault::SchemeWithoutPath),
        ];
        let faults: Vec<_> = faults.into_iter().flatten().collect();
        if !faults.is_empty() {
            return Err(faults);
        }
        Ok(is_path.then(|| Self { path: path.into(), is_tls: scheme == "HTTPS" }))
    }

    pub(crate) fn is_tls(&self) -> bool {
        self.is_tls
    }

    /// The request to the backend at `host`.
    pub(crate) fn bytes(&self, host: SocketAddr) -> Vec<u8> {
        format!(
            "GET {} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: harvester-health-check/{}\r\nAccept: */*\r\nConnection: \
             close\r\n\r\n",
            self.path,
            env!("CARGO_PKG_VERSION")
        )
        .into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::a_path("/healthz", "", Some(false))]
    #[case::http("/", "HTTP", Some(false))]
    #[case::https("/healthz", "HTTPS", Some(true))]
    #[case::query("/health?full=1&for=%20me", "", Some(false))]
    #[case::what_a_server_may_take_for_a_host("//other/health", "", Some(false))]
    #[case::nothing("", "", None)]
    fn a_path_makes_the_check_an_http_request(
        #[case] path: &str,
        #[case] scheme: &str,
        #[case] tls: Option<bool>,
    ) {
        assert_eq!(HttpGet::parse(path, scheme).unwrap().map(|get| get.is_tls()), tls);
    }

    #[test]
    fn a_path_of_1024_bytes_is_allowed_and_a_longer_one_is_not() {
        assert!(HttpGet::parse(&format!("/{}", "a".repeat(LONGEST_PATH - 1)), "").is_ok());
        let longer = format!("/{}", "a".repeat(LONGEST_PATH));
        assert_eq!(HttpGet::parse(&longer, ""), Err(vec![RequestFault::TooLong(1_025)]));
    }

    #[rstest]
    #[case::no_slash("healthz", "", &[RequestFault::NoSlash])]
    #[case::whole_url("http://other/", "", &[RequestFault::NoSlash])]
    #[case::blank("/a b", "", &[RequestFault::NotVisible(2)])]
    #[case::another_line("/ HTTP/1.1\r\nX: y", "", &[RequestFault::NotVisible(1)])]
    #[case::line_feed("/\n", "", &[RequestFault::NotVisible(1)])]
    #[case::nul("/\0", "", &[RequestFault::NotVisible(1)])]
    #[case::delete("/\x7f", "", &[RequestFault::NotVisible(1)])]
    #[case::not_ascii("/gesundheit/überall", "", &[RequestFault::NotVisible(12)])]
    #[case::fragment("/a#b", "", &[RequestFault::Fragment])]
    #[case::scheme("/a", "https", &[RequestFault::UnknownScheme])]
    #[case::scheme_alone("", "HTTPS", &[RequestFault::SchemeWithoutPath])]
    #[case::all_at_once("a #", "FTP", &[RequestFault::NoSlash, RequestFault::NotVisible(1), RequestFault::Fragment, RequestFault::UnknownScheme])]
    fn every_fault_of_a_path_and_a_scheme_is_told(
        #[case] path: &str,
        #[case] scheme: &str,
        #[case] expected: &[RequestFault],
    ) {
        assert_eq!(HttpGet::parse(path, scheme), Err(expected.to_vec()));
    }

    #[rstest]
    #[case::ipv4("192.168.7.11:8080", "192.168.7.11:8080")]
    #[case::ipv6("[fd00::1]:8080", "[fd00::1]:8080")]
    fn the_request_names_the_backends_address_as_its_host_and_asks_to_close(
        #[case] address: &str,
        #[case] host: &str,
    ) {
        let get = HttpGet::parse("/healthz?full=1", "").unwrap().unwrap();
        let request = String::from_utf8(get.bytes(address.parse().unwrap())).unwrap();
        let lines: Vec<_> = request.split("\r\n").collect();
        assert_eq!(lines[..2], ["GET /healthz?full=1 HTTP/1.1".to_owned(), format!("Host: {host}")]);
        assert!(lines.contains(&"Connection: close"), "{lines:?}");
        assert!(request.ends_with("\r\n\r\n"));
    }

    proptest! {
        /// Nobody who writes a path writes a line of the request.
        #[test]
        fn whatever_the_path_the_request_has_one_line_and_the_same_headers(path in "/?[ -~\\x00-\\x1f\u{80}-\u{ff}]{0,40}") {
            if let Ok(Some(get)) = HttpGet::parse(&path, "") {
                let request = get.bytes("192.168.7.11:80".parse().unwrap());
                let mut headers = [httparse::EMPTY_HEADER; 8];
                let mut parsed = httparse::Request::new(&mut headers);
                prop_assert_eq!(parsed.parse(&request), Ok(httparse::Status::Complete(request.len())));
                prop_assert_eq!(parsed.path, Some(&*path));
                prop_assert_eq!(parsed.headers.len(), 4);
            }
        }
    }
}
