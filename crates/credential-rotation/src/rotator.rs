//! The leader's work: looks at source and copy, asks Harvester for a new token when it is time, and puts it into the Secret.

use std::{fmt, sync::Arc, time::Duration};

use cloud_config::{CloudConfig, Connection, Followed, Options, places};
use controller_kit::{PendingEvent, error_message};
use http::{Method, Request, header::DATE};
use jiff::{Timestamp, fmt::rfc2822::DateTimeParser};
use k8s_openapi::{ByteString, api::core::v1::Secret};
use kube::{Api, Client, api::PostParams, client::Body};
use program::Clock;
use serde_json::Value;
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};

use crate::{
    Ask, Decision, RotationMetrics, decide,
    token::{self, Claims},
};

/// The longest time between two looks: the clock may be set, and a Secret that was emptied has no watch.
const LOOK_AGAIN: Duration = Duration::from_secs(3600);
/// After a failure; each further wait is twice as long …
const FIRST_RETRY: Duration = Duration::from_secs(5);
/// … up to this.
const LAST_RETRY: Duration = Duration::from_secs(300);
/// A right that is missing may be granted, and has no watch.
const REFUSED_AGAIN: Duration = Duration::from_secs(30);
/// Not sooner after a new token, whatever clocks and lives are like.
const SHORTEST_LIFE: Duration = Duration::from_secs(60);

/// Namespace and name of the Secret that has the copy.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SecretName {
    pub namespace: String,
    pub name: String,
}

impl SecretName {
    /// # Errors
    /// What is wrong with the text, in one sentence.
    pub fn read(text: &str) -> Result<Self, String> {
        let parts = text.split_once('/');
        let parts = parts
            .filter(|(namespace, name)| !namespace.is_empty() && !name.is_empty() && !name.contains('/'));
        let (namespace, name) = parts.ok_or_else(|| format!("{text:?} is not of the form NAMESPACE/NAME"))?;
        Ok(Self { namespace: namespace.to_owned(), name: name.to_owned() })
    }
}

impl fmt::Display for SecretName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// The two clusters, with the Lease in front of each write.
#[derive(Clone)]
pub struct Clusters {
    pub guest: Client,
    pub harvester: Client,
}

type Tell = dyn Fn(&PendingEvent) + Send + Sync;
/// Opens a connection by which a new token is tried.
pub type Connect = dyn Fn(&CloudConfig) -> Result<Client, String> + Send + Sync;

/// The rotation of one program's credential.
#[derive(Clone)]
pub struct Rotation {
    /// The kubeconfig in use.
    pub followed: watch::Receiver<Followed>,
    pub secret: SecretName,
    pub clock: Clock,
    pub metrics: RotationMetrics,
    /// Where people hear of it.
    pub tell: Arc<Tell>,
    pub connect: Arc<Connect>,
}

impl Rotation {
    /// A new token is tried over a connection like that one: at its server, under the name that `options` give.
    pub fn new(
        followed: watch::Receiver<Followed>,
        secret: SecretName,
        options: Options,
        clock: Clock,
        metrics: RotationMetrics,
        tell: Arc<Tell>,
    ) -> Self {
        Self { followed, secret, clock, metrics, tell, connect: connect(options) }
    }
}

/// A connection to the server that the kubeconfig names, under the name that `options` give.
pub fn connect(options: Options) -> Arc<Connect> {
    Arc::new(move |config| {
        let opened = Connection::open(config, &options).map_err(|error| error.to_string())?;
        Ok(opened.client())
    })
}

/// Whether Harvester refuses the token of this copy. What a token says of its own end nobody has signed who may write the Secret,
/// and one that were believed would never be due.
pub(crate) async fn is_refused(copy: &CloudConfig, connect: &Connect) -> bool {
    let Ok(client) = connect(copy) else { return true };
    matches!(client.apiserver_version().await, Err(kube::Error::Api(status)) if status.code == 401)
}

/// Why a try came to nothing.
struct Failure {
    why: String,
    /// A right is missing.
    is_refusal: bool,
}

impl Failure {
    fn of(what: &str, error: &kube::Error) -> Self {
        let is_refusal = matches!(error, kube::Error::Api(status) if status.code == 403);
        Self { why: format!("{what}: {}", error_message(error)), is_refusal }
    }
}

impl From<String> for Failure {
    fn from(why: String) -> Self {
        Self { why, is_refusal: false }
    }
}

/// What a look came to.
enum Looked {
    /// Nothing until the kubeconfig changes.
    Idle,
    Wait(Duration),
}

impl Rotation {
    /// Renews the token whenever it is due, for as long as this process leads. Failures end nothing.
    pub async fn run(mut self, clusters: Clusters) {
        let (mut retry, mut told) = (FIRST_RETRY, None);
        loop {
            let config = self.followed.borrow_and_update().config.clone();
            let wait = match self.look(&clusters, &config).await {
                Ok(looked) => {
                    (retry, told) = (FIRST_RETRY, None);
                    match looked {
                        Looked::Idle => LOOK_AGAIN,
                        Looked::Wait(wait) => wait,
                    }
                }
                Err(Failure { why, is_refusal }) => {
                    self.metrics.failed();
                    if told.as_ref() != Some(&why) {
                        (self.tell)(&PendingEvent::warning("CredentialNotRotated", why.as_str()));
                        told = Some(why);
                    }
                    let wait = if is_refusal { REFUSED_AGAIN } else { retry };
                    retry = (retry * 2).min(LAST_RETRY);
                    wait
                }
            };
            if let Ok(Err(_)) = timeout(wait, self.followed.changed()).await {
                // nobody follows the file any more: the program ends
                sleep(wait).await;
            }
        }
    }

    async fn look(&self, clusters: &Clusters, config: &CloudConfig) -> Result<Looked, Failure> {
        let source = config.source();
        // nothing is asked of either cluster for a credential that is not ours to renew
        if decide(source, None, self.clock.now()) == Decision::Nothing {
            return Ok(Looked::Idle);
        }
        let (ask, mut secret) = match self.decide_by_secret(clusters, config).await? {
            (Decision::Nothing, ..) => return Ok(Looked::Idle),
            (Decision::DueAt(due), _, now) => return Ok(Looked::Wait(until(due, now))),
            (Decision::Ask(ask), secret, _) => (ask, secret),
        };
        let (fresh, claims) = self.ask(clusters, config, &ask).await?;
        let data = secret.data.get_or_insert_default();
        data.insert(places::COPY_KEY.to_owned(), ByteString(fresh.into_bytes()));
        let SecretName { namespace, name } = &self.secret;
        let secrets: Api<Secret> = Api::namespaced(clusters.guest.clone(), namespace);
        // of the version that was read: a token of another leader, or what a person put there, stays
        match secrets.replace(name, &PostParams::default(), &secret).await {
            // the token that was not written ends by itself
            Err(kube::Error::Api(status)) if status.code == 409 => return Ok(Looked::Wait(FIRST_RETRY)),
            written => written.map_err(|error| self.secret_fault("write", &error))?,
        };
        self.metrics.rotated(self.clock.now());
        let Ask { namespace, account, .. } = &ask;
        let ends = claims.ends.unwrap_or_default();
        (self.tell)(&PendingEvent::normal(
            "CredentialRotated",
            format!(
                "Secret {} has a new token of {namespace}/{account}, which ends at {ends:.0}",
                self.secret
            ),
        ));
        // by its own length, whatever the clocks say
        let (life, _) = claims.life().unwrap_or_default();
        let wait = Duration::try_from(life * 2 / 3).unwrap_or_default();
        Ok(Looked::Wait(wait.clamp(SHORTEST_LIFE, LOOK_AGAIN)))
    }

    /// The decision, the Secret that it was made by, and the time at Harvester.
    async fn decide_by_secret(
        &self,
        clusters: &Clusters,
        config: &CloudConfig,
    ) -> Result<(Decision, Secret, Timestamp), Failure> {
        let SecretName { namespace, name } = &self.secret;
        let secrets: Api<Secret> = Api::namespaced(clusters.guest.clone(), namespace);
        let secret = secrets.get(name).await.map_err(|error| self.secret_fault("read", &error))?;
        let copy = secret.data.as_ref().and_then(|data| data.get(places::COPY_KEY));
        let copy = copy.and_then(|bytes| std::str::from_utf8(&bytes.0).ok());
        let now = self.time_at(&clusters.harvester).await;
        let token = copy.and_then(|copy| places::token_of_copy(copy, config.source()));
        let copy = match token {
            Some(token) if is_refused(&config.with_token(token), &*self.connect).await => None,
            _ => copy,
        };
        Ok((decide(config.source(), copy, now), secret, now))
    }

    /// The time of the server that gives tokens, where it says it: the clock here may be minutes off.
    async fn time_at(&self, harvester: &Client) -> Timestamp {
        let request = Request::get("/version").body(Body::empty()).expect("a path is a request");
        let told = harvester.send(request).await.ok();
        let date = told.as_ref().and_then(|answer| answer.headers().get(DATE)?.to_str().ok());
        let date = date.and_then(|date| DateTimeParser::new().parse_timestamp(date).ok());
        date.unwrap_or_else(|| self.clock.now())
    }

    /// The copy with a new token, which was tried.
    async fn ask(
        &self,
        clusters: &Clusters,
        config: &CloudConfig,
        ask: &Ask,
    ) -> Result<(String, Claims), Failure> {
        let Ask { namespace, account, life, ends } = ask;
        let source = config.source();
        let old =
            token::of_kubeconfig(source, None).ok_or_else(|| "the cloud-config has no token".to_owned())?;
        // YAML may hold a text otherwise than it is, folded over lines or escaped; then no token is asked for
        let stands_there = token::of_kubeconfig(&source.replace(&old, "new"), None).as_deref() == Some("new");
        if !stands_there {
            let why = "the token of the cloud-config is not there as it is, so it is not renewed: write it on one line";
            return Err(why.to_owned().into());
        }
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token");
        let question = token::request(account, *life).to_string().into_bytes();
        let request =
            Request::builder().method(Method::POST).uri(path).header("Content-Type", "application/json");
        let request = request.body(question).map_err(|error| format!("ask for a token: {error}"))?;
        let answer: Value = clusters.harvester.request(request).await.map_err(|error| {
            let command = format!("harvester-cloud-provider cloud-config generate --rotate {account} {namespace}");
            let anew = format!("make a new cloud-config with an administrator's kubeconfig of Harvester: {command}");
            let next = match &error {
                kube::Error::Api(status) if status.code == 401 => {
                    format!("the token has ended, or Secret {} was deleted; {anew}", token::anchor_name(account))
                }
                kube::Error::Api(status) if status.code == 403 => format!(
                    "grant create on serviceaccounts/token {account} in namespace {namespace} of Harvester, as {command} does \
                     with an administrator's kubeconfig"
                ),
                kube::Error::Api(status) if status.code == 404 => anew,
                _ => "it is tried again".to_owned(),
            };
            let what = format!("the token of {namespace}/{account} ends at {ends:.0} and is not renewed: {next}");
            Failure::of(&what, &error)
        })?;
        let new = answer["status"]["token"].as_str().unwrap_or_default();
        let claims = Claims::of(new).filter(|claims| claims.life().is_some());
        let claims = claims
            .ok_or_else(|| "Harvester answers with a token that does not say when it ends".to_owned())?;
        let copy = places::copy(source, &source.replace(&old, new));
        if places::token_of_copy(&copy, source) != Some(new) {
            return Err(format!("Harvester answers with what is no token of {namespace}/{account}").into());
        }
        let client = (self.connect)(&config.with_token(new))?;
        let tried = client.apiserver_version().await;
        tried.map_err(|error| Failure::of("Harvester does not take the new token", &error))?;
        Ok((copy, claims))
    }

    fn secret_fault(&self, verb: &str, error: &kube::Error) -> Failure {
        let Self { secret, .. } = self;
        let next = match error {
            kube::Error::Api(status) if status.code == 403 => {
                "grant get and update of this Secret, as the chart does with cloudConfig.rotate"
            }
            kube::Error::Api(status) if status.code == 404 => {
                "make it empty, as the chart does with cloudConfig.rotate"
            }
            _ => "it is tried again",
        };
        Failure::of(&format!("cannot {verb} Secret {secret} for the rotated token ({next})"), error)
    }
}

fn until(due: Timestamp, now: Timestamp) -> Duration {
    let left = Duration::try_from(due.duration_since(now)).unwrap_or_default();
    // the time of a server has whole seconds
    (left + Duration::from_secs(1)).min(LOOK_AGAIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_secret_has_its_namespace() {
        let name = SecretName::read("kube-system/rotated").unwrap();
        assert_eq!((name.namespace.as_str(), name.name.as_str()), ("kube-system", "rotated"));
        for wrong in ["", "rotated", "/rotated", "kube-system/", "a/b/c"] {
            assert!(SecretName::read(wrong).unwrap_err().contains("NAMESPACE/NAME"), "{wrong}");
        }
    }

    #[test]
    fn a_wait_is_over_when_the_token_is_due_and_never_longer_than_until_the_next_look() {
        let at = |second| Timestamp::from_second(second).unwrap();
        assert_eq!(until(at(100), at(90)).as_secs(), 11);
        assert_eq!(until(at(100), at(200)).as_secs(), 1);
        assert_eq!(until(at(1_000_000), at(0)), LOOK_AGAIN);
    }
}
