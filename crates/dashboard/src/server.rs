//! What is served: three files, an icon, and the stream of changes. To this machine alone, and to pages of ours alone.
//!
//! A page of a stranger in the same browser reaches loopback too. It gets nothing: a name of its own that leads here (DNS
//! rebinding) is no [`Hosts`], answers carry no permission for other origins, and the stream, of which there are
//! [`PAGES`], is refused to it.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
};

use axum::{
    Router,
    body::Body,
    extract::{Request, State},
    http::{
        HeaderMap, HeaderName, HeaderValue, Method, StatusCode,
        header::{
            ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST, ORIGIN, REFERRER_POLICY,
            X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
        },
    },
    middleware::{self, Next},
    response::{IntoResponse as _, Response},
    routing::get,
};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::{events, feed::Feed};

/// Pages that may be open at once.
const PAGES: usize = 16;

/// The page loads its own three files and its own stream, and nothing is markup that comes from elsewhere.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
     base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; \
     trusted-types 'none'";

/// The headers of every answer.
const HEADERS: [(HeaderName, &str); 7] = [
    (CONTENT_SECURITY_POLICY, POLICY),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (X_FRAME_OPTIONS, "DENY"),
    (REFERRER_POLICY, "no-referrer"),
    (CACHE_CONTROL, "no-store"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
];

const SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

#[derive(Clone)]
struct Page {
    feed: Feed,
    stop: CancellationToken,
    places: Arc<Semaphore>,
}

/// The values of the header Host that lead here by no stranger's name.
#[derive(Clone, Debug)]
struct Hosts(Arc<BTreeSet<String>>);

impl Hosts {
    fn of(address: SocketAddr) -> Self {
        let port = address.port();
        let ips: [IpAddr; 3] = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into(), address.ip()];
        let mut hosts: BTreeSet<_> = ips.map(|ip| SocketAddr::new(ip, port).to_string()).into();
        hosts.insert(format!("localhost:{port}"));
        // browsers leave the default port out
        if port == 80 {
            hosts = hosts.iter().flat_map(|host| [host.clone(), host.replace(":80", "")]).collect();
        }
        Self(Arc::new(hosts))
    }

    fn has(&self, headers: &HeaderMap) -> bool {
        let mut given = headers.get_all(HOST).iter();
        let (Some(host), None) = (given.next(), given.next()) else { return false };
        host.to_str().is_ok_and(|host| self.0.contains(&host.to_ascii_lowercase()))
    }
}

/// The routes of a server that listens at `address`. Streams end with `stop`.
pub fn router(feed: Feed, address: SocketAddr, stop: CancellationToken) -> Router {
    let page = Page { feed, stop, places: Arc::new(Semaphore::new(PAGES)) };
    let file = |content_type: &'static str, text: &'static str| {
        get(async move || ([(CONTENT_TYPE, HeaderValue::from_static(content_type))], text))
    };
    Router::new()
        .route("/", file("text/html; charset=utf-8", include_str!("../assets/index.html")))
        .route("/style.css", file("text/css; charset=utf-8", include_str!("../assets/style.css")))
        .route("/app.js", file("text/javascript; charset=utf-8", include_str!("../assets/app.js")))
        .route("/map.js", file("text/javascript; charset=utf-8", include_str!("../assets/map.js")))
        .route("/icon.svg", file("image/svg+xml", include_str!("../assets/icon.svg")))
        .route("/events", get(listen))
        .with_state(page)
        .layer(middleware::from_fn_with_state(Hosts::of(address), guard))
}

/// Refuses what is not for us, and puts the headers on every answer.
async fn guard(State(hosts): State<Hosts>, request: Request, next: Next) -> Response {
    let mut answer = if !hosts.has(request.headers()) {
        let text = "This page is for this machine: open it by the address that the program printed. A port that is \
                    forwarded must have the same number on both sides.\n";
        (StatusCode::MISDIRECTED_REQUEST, text).into_response()
    } else if request.method() == Method::GET {
        next.run(request).await
    } else {
        (StatusCode::METHOD_NOT_ALLOWED, [(ALLOW, "GET")], "Nothing can be changed here.\n").into_response()
    };
    for (name, value) in HEADERS {
        answer.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    answer
}

/// Whether a browser says that another page than this one asks.
fn is_of_another_origin(headers: &HeaderMap) -> bool {
    let host = headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    headers.get(ORIGIN).is_some_and(|origin| *origin != *format!("http://{host}"))
}

async fn listen(State(page): State<Page>, headers: HeaderMap) -> Response {
    // programs that are no browser send neither, and old browsers the origin alone
    let is_elsewhere = headers.get(SITE).is_some_and(|site| site != "same-origin" && site != "none");
    if is_elsewhere || is_of_another_origin(&headers) {
        return (StatusCode::FORBIDDEN, "Only the page itself may listen.\n").into_response();
    }
    let Ok(place) = page.places.try_acquire_owned() else {
        let text = format!("{PAGES} pages are open already: close one.\n");
        return (StatusCode::SERVICE_UNAVAILABLE, text).into_response();
    };
    let body = Body::from_stream(events::stream(page.feed, page.stop, place));
    ([(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"))], body).into_response()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::by_address(&["127.0.0.1:7710"], true)]
    #[case::by_name(&["localhost:7710"], true)]
    #[case::in_capitals(&["LocalHost:7710"], true)]
    #[case::ipv6(&["[::1]:7710"], true)]
    #[case::where_it_listens(&["127.0.0.9:7710"], true)]
    #[case::another_port(&["localhost:7711"], false)]
    #[case::no_port(&["localhost"], false)]
    #[case::a_stranger(&["rebound.example:7710"], false)]
    #[case::a_stranger_who_begins_like_us(&["localhost:7710.example"], false)]
    #[case::another_address(&["192.0.2.1:7710"], false)]
    #[case::none(&[], false)]
    #[case::two(&["localhost:7710", "rebound.example"], false)]
    fn a_host_is_this_machine_by_its_own_names(#[case] hosts: &[&str], #[case] expected: bool) {
        let mut headers = HeaderMap::new();
        for host in hosts {
            headers.append(HOST, HeaderValue::from_str(host).unwrap());
        }
        assert_eq!(Hosts::of(([127, 0, 0, 9], 7710).into()).has(&headers), expected);
    }

    #[test]
    fn the_page_holds_no_script_and_style_of_its_own_and_its_scripts_make_no_markup() {
        let page = include_str!("../assets/index.html");
        for forbidden in ["<style", " style=", " onclick", " onload", "javascript:", "http://", "https://"] {
            assert!(!page.contains(forbidden), "{forbidden}");
        }
        assert_eq!(page.matches("<script").count(), page.matches("<script src=\"/").count());
        for script in [include_str!("../assets/app.js"), include_str!("../assets/map.js")] {
            for forbidden in
                ["innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval(", "Function("]
            {
                assert!(!script.contains(forbidden), "{forbidden}");
            }
        }
    }

    #[test]
    fn the_default_port_may_be_left_out() {
        let mut headers = HeaderMap::new();
        headers.insert(HOST, HeaderValue::from_static("[::1]"));
        assert!(Hosts::of(([127, 0, 0, 1], 80).into()).has(&headers));
        assert!(!Hosts::of(([127, 0, 0, 1], 8080).into()).has(&headers));
    }
}
