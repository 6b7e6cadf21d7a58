//! Connections to API servers that notice a dead peer, and the client on top of them.
//!
//! A server that loses its power sends no reset. Two options of the kernel find that out, on every connection:
//! * `TCP_USER_TIMEOUT` on a connection with data that nobody acknowledges: a request was sent;
//! * TCP keep-alive on a silent one: a watch without events.
//!
//! With both a dead peer is noticed within 45 s: the connection breaks, and watches and queues try again. Behind a proxy
//! the options hold for the connection to the proxy. A proxy that lives hides a dead server: then a request fails after
//! 30 s, and a watch ends ten seconds after the time that it was asked to last ([`crate::silence`], five minutes in all).
//!
//! kube's own client builder takes no connector, so its stack is repeated here: base URI, credentials, headers, TLS by its
//! `ConfigExt`, tokens by [`Bearer`], and no layer that sends a request twice.

use std::{
    error::Error,
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    time::Duration,
};

use http::{HeaderValue, Request, Uri};
use hyper::rt::{Read, Write};
use hyper_util::{
    client::legacy::{
        Client as HyperClient,
        connect::{Connection, HttpConnector, proxy::Tunnel},
    },
    rt::TokioExecutor,
};
use kube::{
    Client, Config,
    client::{AuthError, Body, ConfigExt as _},
};
use tower::{BoxError, Service, ServiceBuilder, util::MapRequestLayer};

use base64::{Engine as _, engine::general_purpose::STANDARD};

use crate::bearer::Bearer;

/// A silent connection is probed after this time …
const KEEPALIVE_IDLE: Duration = Duration::from_secs(15);
/// … and then so often, until it is given up.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_PROBES: u32 = 3;
/// Data and probes that nobody acknowledges for so long break the connection.
const USER_TIMEOUT: Duration = Duration::from_secs(30);
/// A server that does not accept a connection in this time, TLS included, is given up.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The addresses of a server name share this time, so that a dead one leaves time for the others within
/// [`CONNECT_TIMEOUT`].
const TCP_CONNECT_TIMEOUT: Duration = Duration::from_secs(4);

/// A client that sends each request once.
///
/// # Errors
/// Where certificates, credentials or the proxy of `config` are of no use.
pub(crate) fn client(config: &Config) -> Result<Client, BoxError> {
    open(config).map_err(|error| without_output(error, &plugin(config)))
}

fn open(config: &Config) -> Result<Client, BoxError> {
    match config.proxy_url.as_ref() {
        None => stack(config, tcp()),
        Some(proxy) if proxy.scheme_str() == Some("https") => {
            let tls = config.rustls_https_connector_with_connector(tcp())?;
            stack(config, authorized(proxy, Tunnel::new(proxy.clone(), tls)))
        }
        Some(proxy) => stack(config, authorized(proxy, Tunnel::new(proxy.clone(), tcp()))),
    }
}

/// The connector under all others: it sets the options before it connects.
fn tcp() -> HttpConnector {
    with_options(HttpConnector::new())
}

fn with_options<R>(mut tcp: HttpConnector<R>) -> HttpConnector<R> {
    tcp.enforce_http(false);
    tcp.set_connect_timeout(Some(TCP_CONNECT_TIMEOUT));
    tcp.set_keepalive(Some(KEEPALIVE_IDLE));
    tcp.set_keepalive_interval(Some(KEEPALIVE_INTERVAL));
    tcp.set_keepalive_retries(Some(KEEPALIVE_PROBES));
    tcp.set_tcp_user_timeout(Some(USER_TIMEOUT));
    tcp.set_nodelay(true);
    tcp
}

/// User and password of the proxy's address.
fn authorized<C>(proxy: &Uri, tunnel: Tunnel<C>) -> Tunnel<C> {
    let user_info = proxy.authority().and_then(|authority| authority.as_str().rsplit_once('@'));
    let Some((user_info, _)) = user_info else { return tunnel };
    let text = format!("Basic {}", STANDARD.encode(percent_decoded(user_info)));
    match HeaderValue::from_str(&text) {
        Ok(mut value) => {
            value.set_sensitive(true);
            tunnel.with_auth(value)
        }
        Err(_) => tunnel,
    }
}

fn percent_decoded(text: &str) -> Vec<u8> {
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let Some((first, after)) = rest.split_first() {
        let digit = |byte: &u8| char::from(*byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
        match (first, after) {
            (b'%', [high, low, after @ ..]) if digit(high).is_some() && digit(low).is_some() => {
                bytes.push(digit(high).unwrap_or_default() * 16 + digit(low).unwrap_or_default());
                rest = after;
            }
            _ => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    bytes
}

fn stack<C>(config: &Config, connector: C) -> Result<Client, BoxError>
where
    C: Service<Uri> + Clone + Send + Sync + 'static,
    C::Response: Connection + Read + Write + Send + Unpin + 'static,
    C::Future: Send + 'static,
    C::Error: Into<BoxError> + Send + 'static,
{
    let tls = config.rustls_https_connector_with_connector(connector)?;
    let in_time = tower::service_fn(move |server: Uri| {
        let mut tls = tls.clone();
        Box::pin(async move {
            let connect = async {
                std::future::poll_fn(|cx| tls.poll_ready(cx)).await?;
                tls.call(server).await
            };
            let late = || {
                let text = format!("no connection within {} s", CONNECT_TIMEOUT.as_secs());
                BoxError::from(io::Error::new(io::ErrorKind::TimedOut, text))
            };
            tokio::time::timeout(CONNECT_TIMEOUT, connect).await.unwrap_or_else(|_| Err(late()))
        })
    });
    let hyper: HyperClient<_, Body> = HyperClient::builder(TokioExecutor::new()).build(in_time);
    let bearer = Bearer::of(&config.auth_info).map_err(|(field, reason)| format!("{field}: {reason}"))?;
    let auth = match bearer {
        Some(_) => None,
        // kube panics over a token of a plugin that no header can carry, unless the plugin says when it ends
        None => catch_unwind(AssertUnwindSafe(|| config.auth_layer()))
            .map_err(|_| of_plugin(&plugin(config), UNSENDABLE))??,
    };
    let authorize =
        bearer.map(|bearer| MapRequestLayer::new(move |request: Request<Body>| bearer.authorize(request)));
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(authorize)
        .option_layer(auth)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(hyper);
    let plugin = plugin(config);
    let service =
        ServiceBuilder::new().map_err(move |error: BoxError| without_output(error, &plugin)).service(service);
    Ok(Client::new(service, config.default_namespace.clone()))
}

/// The program that the kubeconfig of a person names for its token.
fn plugin(config: &Config) -> String {
    let exec = config.auth_info.exec.as_ref();
    exec.and_then(|exec| exec.command.clone()).unwrap_or_else(|| "auth-provider".to_owned())
}

/// What a plugin did, where no request can carry its token.
const UNSENDABLE: &str = "wrote a token with a line break or another control character, as no token has";

fn of_plugin(plugin: &str, how: &str) -> BoxError {
    let secret = "what it wrote may be secret and is not shown";
    format!("the plugin {plugin:?} that the kubeconfig names {how}; {secret}").into()
}

/// The error of a plugin without its variables and without what it wrote, the token perhaps: kube repeats all of these.
fn without_output(error: BoxError, plugin: &str) -> BoxError {
    let mut next: Option<&(dyn Error + 'static)> = Some(&*error);
    while let Some(cause) = next {
        let how = match cause.downcast_ref() {
            Some(AuthError::AuthExecRun { out, .. }) => format!("failed ({})", out.status),
            Some(AuthError::AuthExecParse(_)) => "wrote no ExecCredential".to_owned(),
            Some(AuthError::InvalidBearerToken(_)) => UNSENDABLE.to_owned(),
            _ => {
                next = cause.source();
                continue;
            }
        };
        return of_plugin(plugin, &how);
    }
    error
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use hyper_util::client::legacy::connect::dns::Name;
    use rstest::rstest;
    use tokio::net::{TcpListener, TcpSocket};
    use tower::ServiceExt as _;

    use super::*;

    fn with_plugin(script: &str) -> Config {
        let mut config = Config::new("https://guest.example:6443".parse().unwrap());
        let exec = serde_json::json!({"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "sh",
            "args": ["-c", script], "env": [{"name": "API_SECRET", "value": "SECRET-VALUE"}], "interactiveMode": "Never"}});
        config.auth_info = serde_json::from_value(exec).unwrap();
        config
    }

    #[rstest]
    #[case::that_fails("echo SECRET-TOKEN; echo SECRET-WORD >&2; exit 3", "failed (exit status: 3)")]
    #[case::that_writes_something_else("echo '{SECRET-TOKEN'", "wrote no ExecCredential")]
    #[case::that_writes_a_line_break(
        r#"printf %s '{"status": {"token": "SECRET-TOKEN\n"}}'"#,
        "wrote a token with a line break"
    )]
    #[tokio::test]
    async fn of_a_plugin_neither_its_variables_nor_what_it_wrote_are_told(
        #[case] script: &str,
        #[case] expected: &str,
    ) {
        let error = client(&with_plugin(script)).err().unwrap();
        let text = crate::error::one_line(&*error);
        assert!(text.contains(&format!("the plugin \"sh\" that the kubeconfig names {expected}")), "{text}");
        assert!(!text.contains("SECRET"), "{text}");
    }

    #[tokio::test]
    async fn a_plugins_token_that_ends_and_that_no_request_can_carry_is_told_when_it_is_used() {
        let status = r#"{"token": "SECRET-TOKEN\n", "expirationTimestamp": "2999-01-01T00:00:00Z"}"#;
        let client = client(&with_plugin(&format!("printf %s '{{\"status\": {status}}}'"))).unwrap();
        let request = Request::get("/version").body(Vec::new()).unwrap();
        let error = client.request_text(request).await.unwrap_err();
        let text = crate::error::one_line(&error);
        assert!(text.contains("\"sh\" that the kubeconfig names wrote a token with a line break"), "{text}");
        assert!(!text.contains("SECRET"), "{text}");
    }

    // fault 4: a server that died without a reset was noticed by watches after 300 s
    #[tokio::test]
    async fn every_connection_notices_a_dead_peer_within_forty_five_seconds() {
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let uri: Uri = format!("http://{}", server.local_addr().unwrap()).parse().unwrap();
        let stream = tcp().oneshot(uri).await.unwrap().into_inner();
        let noticed = Duration::from_secs(45);
        assert!(rustix::net::sockopt::socket_keepalive(&stream).unwrap());
        let idle = rustix::net::sockopt::tcp_keepidle(&stream).unwrap();
        let interval = rustix::net::sockopt::tcp_keepintvl(&stream).unwrap();
        let probes = rustix::net::sockopt::tcp_keepcnt(&stream).unwrap();
        assert!(idle + interval * probes <= noticed, "{idle:?} {interval:?} {probes}");
        let unacknowledged = u64::from(rustix::net::sockopt::tcp_user_timeout(&stream).unwrap());
        assert!(unacknowledged > 0 && Duration::from_millis(unacknowledged) <= noticed);
        // the kernel counts probes by this timer where it is set, and looks at it with each probe
        assert!(Duration::from_millis(unacknowledged) + interval <= noticed);
    }

    // a server whose queue of connections is full drops the next one, as a server without power does
    #[tokio::test(start_paused = true)]
    async fn a_dead_address_does_not_hide_the_others_of_its_name() {
        let live = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = live.local_addr().unwrap().port();
        let dead: SocketAddr = format!("127.0.0.2:{port}").parse().unwrap();
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(dead).unwrap();
        let _queue = socket.listen(0).unwrap();
        let _filling = tokio::net::TcpStream::connect(dead).await.unwrap();
        let addresses = [dead, live.local_addr().unwrap()];
        let resolver =
            tower::service_fn(move |_: Name| async move { Ok::<_, io::Error>(addresses.into_iter()) });
        let uri: Uri = format!("http://harvester.example:{port}").parse().unwrap();
        let connect = with_options(HttpConnector::new_with_resolver(resolver)).oneshot(uri);
        let stream = tokio::time::timeout(CONNECT_TIMEOUT, connect).await.unwrap().unwrap().into_inner();
        assert_eq!(stream.peer_addr().unwrap(), addresses[1]);
    }

    #[rstest]
    #[case("user:pass", b"user:pass")]
    #[case("user:pa%40ss%3Aword", b"user:pa@ss:word")]
    #[case("user:pass%+A%", b"user:pass%+A%")]
    fn a_proxys_password_is_decoded(#[case] text: &str, #[case] expected: &[u8]) {
        assert_eq!(percent_decoded(text), expected);
    }
}
