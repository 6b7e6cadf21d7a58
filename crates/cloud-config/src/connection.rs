//! From settings to a client, and the swap behind it when the file changes.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{Arc, RwLock},
    time::{Duration, SystemTime},
};

use http::{HeaderValue, Request, header::USER_AGENT};
use kube::{Client, Config, client::Body};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::{
    CloudConfig, RequestLimit, connector,
    error::{Error, one_line},
    limit::Budget,
    retry_after, silence,
};

/// How often the file is looked at.
const RELOAD_PERIOD: Duration = Duration::from_secs(10);

/// How a program presents itself, and what it may ask for.
#[derive(Clone, Debug)]
pub struct Options {
    /// Sent as `User-Agent`. It also names the writer in managedFields: the part up to the first `/`.
    pub user_agent: String,
    pub limit: RequestLimit,
}

impl Options {
    /// The usual limit, under this name.
    pub fn named(user_agent: &str) -> Self {
        Self { user_agent: user_agent.to_owned(), limit: RequestLimit::default() }
    }
}

/// A connection to the cluster of a kubeconfig. Clones of [`Connection::client`] stay good when the file changes.
#[derive(Clone)]
pub struct Connection {
    client: Client,
    namespace: String,
    current: Arc<RwLock<Client>>,
    options: Options,
}

impl Connection {
    /// Keeps the usual budget and time limit on a client that somebody else has built, such as one of a server in this
    /// process.
    pub fn limiting(client: Client, options: &Options) -> Client {
        let namespace = client.default_namespace().to_owned();
        front(Arc::new(RwLock::new(client)), options.limit, &namespace)
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
        let current = Arc::new(RwLock::new(raw_client(config.config.clone(), options)?));
        let client = front(Arc::clone(&current), options.limit, &config.namespace);
        Ok(Self { client, namespace: config.namespace.clone(), current, options: options.clone() })
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
        let fresh = raw_client(config.config.clone(), &self.options)?;
        *self.current.write().expect("no panic while swapping") = fresh;
        Ok(config.namespace != self.namespace)
    }

    /// Follows the file until `stop`: looks at it every ten seconds, reads it when it changed, and takes over
    /// what is good. A bad file is named once in the log and changes nothing.
    pub async fn follow(self, file: PathBuf, stop: CancellationToken) {
        let mut known = Fingerprint::of(&file);
        while stop.run_until_cancelled(tokio::time::sleep(RELOAD_PERIOD)).await.is_some() {
            let seen = Fingerprint::of(&file);
            if seen == known {
                continue;
            }
            known = seen;
            match CloudConfig::read(&file)
                .and_then(|config| self.replace(&config).map(|moved| (config, moved)))
            {
                Ok((config, moved)) => {
                    tracing::info!(
                        file = config.file,
                        server = config.server(),
                        "took over the changed kubeconfig"
                    );
                    if moved {
                        tracing::warn!(
                            file = config.file,
                            "the kubeconfig names another namespace ({}) now: restart to work there, {} stays in use",
                            config.namespace,
                            self.namespace
                        );
                    }
                }
                Err(error) => tracing::warn!("the changed kubeconfig is not used: {error}"),
            }
        }
    }
}

/// By what a changed file is known. A mounted Secret is swapped as a whole: then the inode changes.
#[derive(Debug, PartialEq, Eq)]
struct Fingerprint(Option<(u64, Option<SystemTime>, u64)>);

impl Fingerprint {
    fn of(file: &Path) -> Self {
        use std::os::unix::fs::MetadataExt as _;
        Self(fs::metadata(file).ok().map(|data| (data.ino(), data.modified().ok(), data.len())))
    }
}

/// A client that sends at once and once only.
pub(crate) fn raw_client(mut config: Config, options: &Options) -> Result<Client, Error> {
    let server = config.cluster_url.to_string();
    let fault =
        |error: &dyn std::error::Error| Error::Client { server: server.clone(), reason: one_line(error) };
    let agent = HeaderValue::from_str(&options.user_agent).map_err(|error| fault(&error))?;
    config.headers.push((USER_AGENT, agent));
    connector::client(&config).map_err(|error| fault(&*error))
}

/// The client that callers hold: within the budget, with a time limit, through whatever is current.
pub(crate) fn front(current: Arc<RwLock<Client>>, limit: RequestLimit, namespace: &str) -> Client {
    let budget = Arc::new(Budget::new(limit, Instant::now()));
    let service = tower::service_fn(move |request: Request<Body>| {
        let current = Arc::clone(&current);
        let wait = budget.take(Instant::now());
        let silence = silence::longest(request.uri().query().unwrap_or_default());
        async move {
            if !wait.is_zero() {
                tokio::time::sleep(wait).await;
            }
            let client = current.read().expect("no panic while swapping").clone();
            let answer = async { retry_after::told(client.send(request).await?).await };
            match tokio::time::timeout(silence, answer).await {
                Ok(answer) => Ok(answer?.map(|body| silence::broken_by(silence, body))),
                Err(_) => Err(tower::BoxError::from(format!("no answer within {} s", silence.as_secs()))),
            }
        }
    });
    Client::new(service, namespace)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proxy::Environment;

    fn config(server: &str, namespace: &str) -> CloudConfig {
        let text = format!(
            "{{current-context: a, clusters: [{{name: a, cluster: {{server: '{server}'}}}}],
               contexts: [{{name: a, context: {{cluster: a, namespace: {namespace}}}}}]}}"
        );
        CloudConfig::parse(&text, "file", &Environment::default()).unwrap()
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

    #[test]
    fn a_rewritten_and_a_swapped_file_are_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("cloud-config");
        assert_eq!(Fingerprint::of(&file), Fingerprint::of(&file));
        let absent = Fingerprint::of(&file);
        fs::write(&file, "a").unwrap();
        let first = Fingerprint::of(&file);
        assert_ne!(absent, first);
        let other = folder.path().join("other");
        fs::write(&other, "b").unwrap();
        fs::rename(&other, &file).unwrap();
        assert_ne!(first, Fingerprint::of(&file), "same length, perhaps the same time, another inode");
    }
}
