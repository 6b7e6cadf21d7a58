//! From settings to a client, and the swap behind it when the file changes.

use std::{
    path::PathBuf,
    sync::{
        Arc, Once, RwLock,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use http::{
    HeaderMap, HeaderValue, Request, StatusCode,
    header::{DATE, USER_AGENT},
};
use jiff::{Timestamp, fmt::rfc2822::DateTimeParser};
use kube::{Client, Config, client::Body};
use secrecy::ExposeSecret as _;
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::{
    Answered, CloudConfig, Observer, Places, RequestLimit, connector,
    error::{Error, one_line},
    expiry::{self, Expiry},
    file::{find, without_user},
    fingerprint::Fingerprint,
    limit::Budget,
    retry_after, silence,
};

/// How often the file is looked at. A change is to be followed within five seconds.
const RELOAD_PERIOD: Duration = Duration::from_secs(2);

/// How a program presents itself, and what it may ask for.
#[derive(Clone, Debug)]
pub struct Options {
    /// Sent as `User-Agent`. It also names the writer in managedFields: the part up to the first `/`.
    pub user_agent: String,
    pub limit: RequestLimit,
    /// Hears of every answer.
    pub observer: Observer,
}

impl Options {
    /// The usual limit, under this name.
    pub fn named(user_agent: &str) -> Self {
        Self {
            user_agent: user_agent.to_owned(),
            limit: RequestLimit::default(),
            observer: Observer::default(),
        }
    }
}

/// The kubeconfig in use, and what is wrong with the file as it is now.
#[derive(Clone, Debug)]
pub struct Followed {
    pub config: CloudConfig,
    /// Why the file is not used as it is, in one line with the next step.
    pub fault: Option<String>,
}

/// A way for requests: by one token.
#[derive(Clone)]
struct Way {
    client: Client,
    /// When the token ends, as far as it says.
    ends: Option<Expiry>,
}

impl Way {
    fn of(config: CloudConfig, options: &Options) -> Result<Self, Error> {
        let ends = expiry::of_user(&config.config.auth_info);
        Ok(Self { client: raw_client(config.config, options)?, ends })
    }

    /// By the clock of a server. Without one nobody knows.
    fn has_ended(&self, now: Option<Timestamp>) -> bool {
        let left = self.ends.zip(now).and_then(|(ends, now)| ends.remaining(now));
        left.is_some_and(|left| !left.is_positive())
    }
}

/// Of the ways of a copy, by which anybody goes who may write the Secret of it.
pub(crate) const OF_COPY: usize = 0;
const OF_SOURCE: usize = 1;

/// What requests go through now.
pub(crate) struct Current {
    /// Host and port of the server.
    host: Arc<str>,
    /// The kubeconfig's own. Of a copy the others are by the token of its source, and by the one that was good before it.
    ways: Vec<Way>,
    /// The one in use: the server refused the one before it, and since then not this one. It refuses good ones too, for a moment.
    at: AtomicUsize,
    /// The server has refused the kubeconfig's own token: whatever stands in it, nothing newer has to give way to it.
    is_doubtful: AtomicBool,
    told: Once,
}

impl Current {
    pub(crate) fn of(config: Config, options: &Options) -> Result<Self, Error> {
        let host = config.cluster_url.authority().map(|it| it.as_str()).unwrap_or_default();
        // what stands before an @ is a secret
        let host = Arc::from(host.rsplit('@').next().unwrap_or_default());
        Ok(Self::new(raw_client(config, options)?, host))
    }

    fn new(client: Client, host: Arc<str>) -> Self {
        Self {
            host,
            ways: vec![Way { client, ends: None }],
            at: AtomicUsize::new(OF_COPY),
            is_doubtful: AtomicBool::new(false),
            told: Once::new(),
        }
    }

    /// Of a copy, with its source to fall back to.
    fn of_cloud_config(config: &CloudConfig, options: &Options) -> Result<Self, Error> {
        let mut current = Self::of(config.config.clone(), options)?;
        current.ways[OF_COPY].ends = expiry::of_user(&config.config.auth_info);
        if let Some(token) = &config.source_token {
            current.ways.push(Way::of(config.with_token(token.expose_secret()), options)?);
        }
        Ok(current)
    }

    /// The client for the next request, and which way that is.
    fn client(&self) -> (Client, usize) {
        let at = self.at.load(Ordering::Relaxed);
        (self.ways[at].client.clone(), at)
    }

    /// By a token of a copy that the server has not refused since another one.
    fn way_of_copy(&self) -> Option<Way> {
        let at = self.at.load(Ordering::Relaxed);
        (at != OF_SOURCE).then(|| self.ways[at].clone())
    }

    /// The server, whose clock shows `now`, refused the token of a request: the next ones go another way, unless its token
    /// has ended, as the source's has when it was renewed for a while. The own way is gone again when all others are refused.
    pub(crate) fn refused(&self, at: usize, now: Option<Timestamp>) {
        if at == OF_COPY {
            self.is_doubtful.store(true, Ordering::Relaxed);
        }
        let mut others = (1..self.ways.len()).map(|step| (at + step) % self.ways.len());
        let next = others.find(|&next| next == OF_COPY || !self.ways[next].has_ended(now));
        let Some(next) = next else { return };
        let turned = self.at.compare_exchange(at, next, Ordering::Relaxed, Ordering::Relaxed);
        if turned.is_ok() && at == OF_COPY {
            let host = &self.host;
            self.told.call_once(|| {
                tracing::warn!(
                    "{host} refuses the rotated token (401): another one of its account is tried in its place"
                );
            });
        }
    }
}

/// A connection to the cluster of a kubeconfig. Clones of [`Connection::client`] stay good when the file changes.
#[derive(Clone)]
pub struct Connection {
    client: Client,
    namespace: String,
    current: Arc<RwLock<Arc<Current>>>,
    options: Options,
    followed: Arc<watch::Sender<Followed>>,
}

impl Connection {
    /// Keeps the usual budget and time limit on a client that somebody else has built, such as one of a server in this
    /// process.
    pub fn limiting(client: Client, options: &Options) -> Client {
        let namespace = client.default_namespace().to_owned();
        let current = Current::new(client, Arc::from("in-process"));
        front(Arc::new(RwLock::new(Arc::new(current))), options, &namespace)
    }

    /// Builds the client. Nothing is sent yet. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// [`Error::Client`] where certificates or credentials of the file are of no use.
    pub fn open(config: &CloudConfig, options: &Options) -> Result<Self, Error> {
        if config.config.accept_invalid_certs {
            tracing::warn!(
                file = config.file,
                "insecure-skip-tls-verify is set: whoever answers as {} gets the token",
                config.server()
            );
        }
        let current = Arc::new(RwLock::new(Arc::new(Current::of_cloud_config(config, options)?)));
        let client = front(Arc::clone(&current), options, &config.namespace);
        let followed = Arc::new(watch::Sender::new(Followed { config: config.clone(), fault: None }));
        Ok(Self { client, namespace: config.namespace.clone(), current, options: options.clone(), followed })
    }

    /// The client, with the namespace of the context as its default.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// The namespace to work in.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Takes over what `config` says, for all clones of the client. Running watches go on as they are and end within
    /// minutes. Answers whether the namespace is another one, which only a restart can follow.
    ///
    /// # Errors
    /// As [`Connection::open`]; then nothing has changed.
    pub fn replace(&self, config: &CloudConfig) -> Result<bool, Error> {
        let mut fresh = Current::of_cloud_config(config, &self.options)?;
        let mut current = self.current.write().expect("no panic while swapping");
        // who may write the Secret of the copy may put there what is no token
        if self.followed.borrow().config.is_copy_beside(config) {
            fresh.ways.extend(current.way_of_copy());
        }
        *current = Arc::new(fresh);
        Ok(config.namespace != self.namespace)
    }

    /// The kubeconfig as [`Connection::follow`] takes it over.
    pub fn followed(&self) -> watch::Receiver<Followed> {
        self.followed.subscribe()
    }

    /// Follows the kubeconfig at `places` until `stop`: looks every two seconds for it, for its copy, and for the files that
    /// it refers to, reads it when one changed, and takes over what is good. A bad file is named once in the log and changes
    /// nothing.
    pub async fn follow(self, places: impl Into<Places>, stop: CancellationToken) {
        let places = places.into();
        let mut known = self.followed.borrow().config.seen.clone();
        let mut stays = false;
        while stop.run_until_cancelled(tokio::time::sleep(RELOAD_PERIOD)).await.is_some() {
            let found = find(places.given.as_deref());
            let references = self.followed.borrow().config.references.clone();
            let copy = places.copy();
            let files = found.as_ref().ok().into_iter().chain(&references).chain(&copy);
            let seen = Fingerprint::of(files.map(|file| &**file));
            // a token that nothing was sent with yet may turn out to be none
            if seen != known || stays && self.is_doubtful() {
                // a kubeconfig that was read may refer to other files
                (known, stays) = self.take_over(found, &places).unwrap_or((seen, false));
            }
        }
    }

    fn is_doubtful(&self) -> bool {
        self.now().is_doubtful.load(Ordering::Relaxed)
    }

    pub(crate) fn now(&self) -> Arc<Current> {
        self.current.read().expect("no panic while swapping").clone()
    }

    /// Returns the files of the new kubeconfig, where it is of use, and whether the token in use stays although it is there.
    fn take_over(&self, found: Result<PathBuf, Error>, places: &Places) -> Option<(Fingerprint, bool)> {
        let read = found.and_then(|file| places.read_at(&file));
        if let Ok(config) = &read
            && places.rotated.is_some()
            && !self.is_doubtful()
            && self.followed.borrow().config.outlives(config)
        {
            tracing::warn!(
                file = config.file,
                "the Secret of the rotated token has an older one, or none: the newer token in use stays until the cloud-config \
                 changes or a newer one is there"
            );
            let seen = config.seen.clone();
            self.followed.send_modify(|followed| followed.fault = None);
            return Some((seen, true));
        }
        match read.and_then(|config| self.replace(&config).map(|moved| (config, moved))) {
            Ok((config, moved)) => {
                tracing::info!(
                    file = config.file,
                    server = config.server(),
                    "took over the changed kubeconfig"
                );
                let fault = moved.then(|| {
                    format!(
                        "kubeconfig {} names another namespace ({}) now: restart to work there, {} stays in use",
                        config.file, config.namespace, self.namespace
                    )
                });
                if let Some(fault) = &fault {
                    tracing::warn!("{fault}");
                }
                let seen = config.seen.clone();
                self.followed.send_replace(Followed { config, fault });
                Some((seen, false))
            }
            Err(error) => {
                let fault = format!("the changed kubeconfig is not used, the former one is: {error}");
                tracing::warn!("{fault}");
                self.followed.send_modify(|followed| followed.fault = Some(fault));
                None
            }
        }
    }
}

/// A client that sends at once and once only.
pub(crate) fn raw_client(mut config: Config, options: &Options) -> Result<Client, Error> {
    let server = without_user(&config.cluster_url.to_string());
    let fault =
        |error: &dyn std::error::Error| Error::Client { server: server.clone(), reason: one_line(error) };
    let agent = HeaderValue::from_str(&options.user_agent).map_err(|error| fault(&error))?;
    config.headers.push((USER_AGENT, agent));
    connector::client(&config).map_err(|error| fault(&*error))
}

/// The client that callers hold: within the budget, with a time limit, through whatever is current.
pub(crate) fn front(current: Arc<RwLock<Arc<Current>>>, options: &Options, namespace: &str) -> Client {
    let budget = Arc::new(Budget::new(options.limit, Instant::now()));
    let observer = options.observer.clone();
    let service = tower::service_fn(move |request: Request<Body>| {
        let current = Arc::clone(&current);
        let wait = budget.take(Instant::now());
        let silence = silence::longest(request.uri().query().unwrap_or_default());
        let (observer, method) = (observer.clone(), request.method().clone());
        async move {
            if !wait.is_zero() {
                tokio::time::sleep(wait).await;
            }
            let current = Arc::clone(&current.read().expect("no panic while swapping"));
            let (client, way) = current.client();
            // KubeVirt's own server answers 401 for reasons that are not the token's
            let tells_of_token = !request.uri().path().starts_with("/apis/subresources.kubevirt.io/");
            let sent = Instant::now();
            let tell = |code: Option<u16>, headers: Option<&HeaderMap>| {
                let (took, host) = (sent.elapsed(), &*current.host);
                observer.tell(&Answered { method: &method, host, code, headers, took, queued: wait });
            };
            let mut heard = false;
            let answer = async {
                let answer = client.send(request).await?;
                heard = true;
                if answer.status() == StatusCode::UNAUTHORIZED && tells_of_token {
                    current.refused(way, server_time(answer.headers()));
                }
                tell(Some(answer.status().as_u16()), Some(answer.headers()));
                retry_after::told(answer).await
            };
            let answer = tokio::time::timeout(silence, answer).await;
            if !heard {
                tell(None, None);
            }
            match answer {
                Ok(answer) => Ok(answer?.map(|body| silence::broken_by(silence, body))),
                Err(_) => Err(silence::timed_out(format!("no answer within {} s", silence.as_secs()))),
            }
        }
    });
    Client::new(service, namespace)
}

/// The clock of the server.
fn server_time(headers: &HeaderMap) -> Option<Timestamp> {
    DateTimeParser::new().parse_timestamp(headers.get(DATE)?.as_bytes()).ok()
}

#[cfg(test)]
mod tests {
    use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};

    use super::*;
    use crate::proxy::Environment;

    fn config(server: &str, namespace: &str) -> CloudConfig {
        let text = format!(
            "{{current-context: a, clusters: [{{name: a, cluster: {{server: '{server}'}}}}],
               contexts: [{{name: a, context: {{cluster: a, namespace: {namespace}}}}}]}}"
        );
        CloudConfig::parse(&text, "file", &Environment::default()).unwrap()
    }

    // a server that has just started may refuse a good token
    #[tokio::test]
    async fn a_token_that_is_refused_gives_way_to_the_other_one_and_back() {
        let copy = CloudConfig {
            source_token: Some("source".into()),
            ..config("https://h", "a").with_token("copy")
        };
        let current = Current::of_cloud_config(&copy, &Options::named("part/1")).unwrap();
        let way = || current.client().1;
        let header =
            HeaderMap::from_iter([(DATE, HeaderValue::from_static("Fri, 15 Jan 2027 08:00:00 GMT"))]);
        let now = server_time(&header);
        assert_eq!(now, Timestamp::from_second(1_800_000_000).ok());
        assert_eq!(way(), OF_COPY);
        current.refused(OF_COPY, now);
        assert_eq!(way(), OF_SOURCE);
        current.refused(OF_COPY, now);
        assert_eq!(way(), OF_SOURCE, "another request that was under way with the copy's");
        current.refused(OF_SOURCE, now);
        assert_eq!(way(), OF_COPY);
        let alone = Current::of_cloud_config(&config("https://h", "a"), &Options::named("part/1")).unwrap();
        alone.refused(OF_COPY, now);
        assert_eq!(alone.client().1, OF_COPY);
        let renewed = CloudConfig { source_token: Some(ending(1_799_999_999).into()), ..copy };
        let renewed = Current::of_cloud_config(&renewed, &Options::named("part/1")).unwrap();
        renewed.refused(OF_COPY, now);
        assert_eq!(renewed.client().1, OF_COPY, "that token has ended");
    }

    fn ending(end: i64) -> String {
        format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(format!("{{\"exp\": {end}}}")))
    }

    // who may write the Secret of the copy may put there what is no token, and the source's has ended by then
    #[tokio::test]
    async fn a_copy_that_the_server_refuses_gives_way_to_the_one_that_was_good_before_it() {
        let copy = |token: &str| CloudConfig {
            source: "source".into(),
            source_token: Some(ending(1).into()),
            ..config("https://h", "a").with_token(token)
        };
        let now = Timestamp::from_second(1_800_000_000).ok();
        let good = ending(1_900_000_000);
        let connection = Connection::open(&copy(&good), &Options::named("part/1")).unwrap();
        let current = || connection.current.read().unwrap().clone();
        let take = |token: &str| {
            connection.replace(&copy(token)).unwrap();
            connection.followed.send_modify(|followed| followed.config = copy(token));
        };
        let ends = |current: &Current| current.ways[current.client().1].ends;
        let in_use = expiry::of_user(&copy(&good).config.auth_info);
        for forged in ["forged", "forged again"] {
            take(forged);
            let current = current();
            current.refused(OF_COPY, now);
            assert_eq!(ends(&current), in_use, "{forged}");
        }
        // its own when the former one is refused too
        let current = current();
        current.refused(2, now);
        assert_eq!(current.client().1, OF_COPY);
    }

    #[tokio::test]
    async fn a_client_that_cannot_be_built_is_told_without_the_password_in_the_servers_address() {
        let options = Options::named("a\nb");
        let fault =
            Connection::open(&config("https://u:geheim@h:6443", "a"), &options).err().unwrap().to_string();
        assert!(fault.contains("https://h:6443/") && !fault.contains("geheim"), "{fault}");
    }

    // a Secret of Harvester holds whatever somebody put into it
    #[tokio::test]
    async fn a_token_that_no_header_can_carry_is_an_error_wherever_it_comes_from() {
        let broken = config("https://h", "a").with_token("two\nletters");
        let fault = Connection::open(&broken, &Options::named("part/1")).err().unwrap().to_string();
        assert!(fault.contains("token: has a line break") && !fault.contains("letters"), "{fault}");
    }

    /// Answers every connection with one JSON object that says who it is, and tells what was asked.
    async fn server(name: &'static str) -> (String, tokio::sync::mpsc::UnboundedReceiver<String>) {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let (told, asked) = tokio::sync::mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut request = vec![0; 4096];
                let length = stream.read(&mut request).await.unwrap();
                told.send(String::from_utf8_lossy(&request[..length]).into_owned()).unwrap();
                let body = format!(
                    r#"{{"major":"1","minor":"33","gitVersion":"{name}","gitCommit":"","gitTreeState":"","buildDate":"","goVersion":"","compiler":"","platform":""}}"#
                );
                let answer = format!(
                    "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
                    body.len()
                );
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        });
        (address, asked)
    }

    #[tokio::test]
    async fn a_clone_of_the_client_follows_a_changed_file() {
        let (old, mut asked) = server("old").await;
        let (new, _asked) = server("new").await;
        let connection =
            Connection::open(&config(&old, "tenant-a"), &Options::named("harvester-cloud-provider/1"))
                .unwrap();
        let client = connection.client();
        assert_eq!(client.default_namespace(), "tenant-a");
        assert_eq!(client.apiserver_version().await.unwrap().git_version, "old");
        let request = asked.recv().await.unwrap().to_lowercase();
        assert!(request.contains("user-agent: harvester-cloud-provider/1\r\n"), "{request}");

        assert!(!connection.replace(&config(&new, "tenant-a")).unwrap());
        assert_eq!(client.apiserver_version().await.unwrap().git_version, "new");
        assert!(connection.replace(&config(&new, "tenant-b")).unwrap(), "another namespace is told");
    }
}

#[cfg(test)]
#[path = "connection/follow_tests.rs"]
mod follow_tests;
