//! Every connection to an API server is made by the one connector that notices a dead peer, which
//! `cloud-config/src/connector.rs` describes and tests.

use super::product;

/// Words that make a connection, or a client that makes its own.
const CONSTRUCTORS: [&str; 10] = [
    "ClientBuilder",
    "Client::try_default",
    "Client::try_from",
    "HttpConnector::new",
    "HyperClient::builder",
    "legacy::Client::builder",
    "TcpStream::connect",
    "TcpSocket::new",
    "reqwest::",
    "ureq::",
];

/// Files that may use one, and why.
const ALLOWED: [(&str, &str, &str); 3] = [
    ("crates/cloud-config/src/connector.rs", "HttpConnector::new", "it sets the options"),
    ("crates/cloud-config/src/connector.rs", "HyperClient::builder", "it is given that connector"),
    ("crates/health-check/src/dial.rs", "TcpStream::connect", "a probe, which has a time-out"),
];

#[test]
fn every_client_of_an_api_server_is_made_by_the_connector_that_notices_a_dead_server() {
    let (mut others, mut used) = (Vec::new(), Vec::new());
    for line in product::lines() {
        for word in CONSTRUCTORS.into_iter().filter(|word| line.text.contains(word)) {
            let allowed = ALLOWED.iter().position(|(file, of, _)| {
                *of == word && line.place.strip_prefix(file).is_some_and(|rest| rest.starts_with(':'))
            });
            match allowed {
                Some(index) => used.push(index),
                None => others.push(format!("{}: {}", line.place, line.text.trim())),
            }
        }
    }
    assert!(others.is_empty(), "make these with cloud_config: {others:#?}");
    let idle: Vec<_> = (0..ALLOWED.len()).filter(|index| !used.contains(index)).collect();
    assert!(idle.is_empty(), "nobody needs these exceptions: {idle:?}");
}
