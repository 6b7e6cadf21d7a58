//! Keeps certificates and registrations true: at the start, when another program changes them, and before they end.
//!
//! ```text
//! secrets, registered objects ──see──► Seen ──decide──► Plan ──act──► secrets, registered objects, the server
//! ```
//! Any number of replicas may run: a write that another replica made first counts, and the rotator looks again.

mod contest;
mod decide;
mod kept;
mod refused;

use std::collections::BTreeSet;
use std::sync::{
    Arc, Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicI64, Ordering},
};
use std::time::Duration;

use axum::http::Uri;
use axum_server::tls_rustls::RustlsConfig;
use controller_kit::{Cache, ObjectKey};
use futures::StreamExt as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{ApiResource, DynamicObject, PostParams};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, ResourceExt as _};
use program::capabilities::Capabilities;
use program::{Clock, TaskGroup};
use prometheus_client::metrics::gauge::Gauge;
use rustls::ServerConfig;
use serde_json::Value;
use tokio::sync::Notify;
use tokio::time::Instant;

use self::contest::{Contest, Told};
use self::decide::{RotationPlan, Seen, Step, decide};
use self::kept::{Chosen, Kept};
use self::refused::Refused;
use crate::certificate::{Authority, Serving, new_authority, new_serving};
use crate::registration::{Address, NAME, Registration, Write};
use crate::secret::{self, CA_SECRET, TLS_SECRET};
use crate::stored;

/// How long after a failure the rotator tries again.
const AGAIN: Duration = Duration::from_secs(5);

/// How often the rotator looks again because another replica was faster.
const ATTEMPTS: usize = 8;

/// A step failed; the rotator tries it again.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{doing} {name}")]
    Request {
        doing: &'static str,
        name: String,
        #[source]
        source: kube::Error,
    },
    #[error("register in {name}")]
    NotRegistered {
        name: String,
        #[source]
        source: kube::Error,
    },
    #[error("register in {name}: give the webhook's role the right to do so, see deploy/rbac/ours.yaml")]
    Forbidden {
        name: String,
        #[source]
        source: kube::Error,
    },
    #[error("{}", secret::advice(.namespace, .names))]
    Missing {
        namespace: String,
        /// The secrets that are not there.
        names: Vec<&'static str>,
        #[source]
        source: kube::Error,
    },
    #[error("make a certificate")]
    Certificate(#[from] rcgen::Error),
    #[error("use the certificate of secret {TLS_SECRET}: {0}")]
    Unusable(String),
    #[error("the secrets with the certificates change faster than they can be read")]
    Contended,
}

impl Error {
    /// A secret is missing, or the right to write one, or somebody has made one immutable. A registration that is refused is
    /// no matter of the secrets: a secret that is stored later would say nothing of it.
    fn waits_for_people(&self) -> bool {
        match self {
            Self::Missing { .. } => true,
            Self::Request { source: kube::Error::Api(status), .. } => matches!(status.code, 403 | 422),
            _ => false,
        }
    }
}

/// The one task that writes secrets and registrations.
pub(crate) struct Rotator {
    client: Client,
    clock: Clock,
    namespace: String,
    /// Names that the serving certificate must be good for.
    names: BTreeSet<String>,
    ca: Cache<Secret>,
    tls: Cache<Secret>,
    /// Secrets that are missing, and that the role does not let the webhook make.
    missing: Mutex<Refused>,
    /// What is served and registered while another program writes into the secrets.
    kept: Mutex<Kept>,
    registered: Vec<Registered>,
    changed: Arc<Notify>,
    /// The answers about rights have changed since refusals were looked at.
    rights_changed: Arc<AtomicBool>,
    /// When the certificate in use ends, in seconds since 1970.
    ends: Gauge<i64, AtomicI64>,
}

/// A registration and the newest version known of its object.
struct Registered {
    registration: Registration,
    newest: Arc<Mutex<Newest>>,
    contest: Mutex<Contest>,
    refused: Mutex<Refused>,
}

impl Registered {
    fn contest(&self) -> MutexGuard<'_, Contest> {
        self.contest.lock().expect("no panic while keepers are compared")
    }

    fn refused(&self) -> MutexGuard<'_, Refused> {
        self.refused.lock().expect("no panic while a refusal is noted")
    }

    /// When to look at it again, while that is to come.
    fn until(&self, now: Instant) -> Option<Instant> {
        [self.contest().until(now), self.refused().until(now)].into_iter().flatten().min()
    }

    /// The object as it is known; null while it is not.
    fn found(&self) -> Value {
        match &*self.newest.lock().expect("no panic while an object is stored") {
            Newest::Known(Some(object)) => object.data.clone(),
            Newest::Known(None) | Newest::Unknown => Value::Null,
        }
    }
}

#[derive(Clone, Debug)]
enum Newest {
    /// The watch has brought nothing yet.
    Unknown,
    Known(Option<Arc<DynamicObject>>),
}

impl Rotator {
    /// Starts the watches, and waits for those of the secrets.
    pub(crate) async fn start(
        tasks: &TaskGroup,
        client: Client,
        clock: Clock,
        namespace: String,
        names: BTreeSet<String>,
        registrations: Vec<Registration>,
        ends: Gauge<i64, AtomicI64>,
    ) -> Self {
        let changed = Arc::new(Notify::new());
        let secret = |name: &str| {
            let named = watcher::Config::default().fields(&format!("metadata.name={name}"));
            let cache: Cache<Secret> =
                Cache::start(tasks, Api::namespaced(client.clone(), &namespace), named);
            let changed = changed.clone();
            cache.on_change(move |_| changed.notify_one());
            cache
        };
        let (ca, tls) = (secret(CA_SECRET), secret(TLS_SECRET));
        let watched = |registration: Registration| {
            let api = Api::all_with(client.clone(), &registration.resource);
            let newest = Arc::new(Mutex::new(Newest::Unknown));
            tasks.spawn_until_stop(follow(api, registration.clone(), newest.clone(), changed.clone()));
            Registered { registration, newest, contest: Mutex::default(), refused: Mutex::default() }
        };
        let registered = registrations.into_iter().map(watched).collect();
        ca.ready().await;
        tls.ready().await;
        Self {
            client,
            clock,
            namespace,
            names,
            ca,
            tls,
            missing: Mutex::default(),
            kept: Mutex::default(),
            registered,
            changed,
            rights_changed: Arc::default(),
            ends,
        }
    }

    /// Has what was forbidden tried again when an answer of `capabilities` has changed.
    pub(crate) fn heed(&self, capabilities: &Capabilities) {
        let (changed, rights_changed) = (self.changed.clone(), self.rights_changed.clone());
        capabilities.on_change(move || {
            rights_changed.store(true, Ordering::Relaxed);
            changed.notify_one();
        });
    }

    fn look_at_rights(&self) {
        if self.rights_changed.swap(false, Ordering::Relaxed) {
            self.missing().try_now();
            self.registered.iter().for_each(|one| one.refused().try_now());
        }
    }

    /// A first certificate to serve with; makes it where there is none. Waits for secrets that are missing and that the
    /// webhook may not make, and for the right to fill them: the log says which.
    pub(crate) async fn first(&self) -> Result<RustlsConfig, Error> {
        loop {
            self.look_at_rights();
            match self.serving_now().await {
                Err(error) if error.waits_for_people() => self.changed_within(self.tell(&error)).await,
                had => return had,
            }
        }
    }

    async fn serving_now(&self) -> Result<RustlsConfig, Error> {
        for _ in 0..ATTEMPTS {
            for step in decide(Seen { registered: Vec::new(), ..self.see() }).steps {
                match step {
                    Step::Serve(serving) => {
                        self.show_end(&serving);
                        return Ok(RustlsConfig::from_config(server_config(&serving)?));
                    }
                    step => self.act(step, None).await?,
                }
            }
        }
        Err(Error::Contended)
    }

    /// Keeps certificates and registrations true. `server` gets new certificates in place; connections stay open.
    pub(crate) async fn run(self, server: RustlsConfig) {
        loop {
            self.look_at_rights();
            let wait = match self.rotate(&server).await {
                Ok(renewal) => {
                    let wait = renewal.duration_since(self.clock.now());
                    Duration::try_from(wait).unwrap_or_default()
                }
                Err(error) => self.tell(&error),
            };
            let now = Instant::now();
            let left = self.kept().until();
            let until = self.registered.iter().filter_map(|one| one.until(now)).chain(left).min();
            self.changed_within(until.map_or(wait, |until| wait.min(until - now))).await;
        }
    }

    /// Logs what failed, what people are to do only once, and returns when to try again.
    fn tell(&self, error: &Error) -> Duration {
        let now = Instant::now();
        let (mut is_news, mut retry_in) = (true, AGAIN);
        if error.waits_for_people() {
            let mut missing = self.missing();
            is_news = missing.forbidden(now);
            retry_in = missing.until(now).map_or(AGAIN, |until| until - now);
        }
        if is_news {
            tracing::warn!(
                error = error as &dyn std::error::Error,
                ?retry_in,
                "certificates and registrations"
            );
        }
        retry_in
    }

    /// Until a watch or an answer about rights brings something, or this time is over.
    async fn changed_within(&self, time: Duration) {
        tokio::select! {
            () = self.changed.notified() => {}
            () = tokio::time::sleep(time) => {}
        }
    }

    fn missing(&self) -> MutexGuard<'_, Refused> {
        self.missing.lock().expect("no panic while a missing secret is noted")
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().expect("no panic while certificates are compared")
    }

    /// Carries out plans until one needs no certificate, and returns when the next certificate is due. A registration that
    /// fails, or an authority that cannot be put back, keeps no other from being written.
    async fn rotate(&self, server: &RustlsConfig) -> Result<Timestamp, Error> {
        for _ in 0..ATTEMPTS {
            let RotationPlan { steps, again } = decide(self.see());
            let mut failed = None;
            for step in steps {
                match step {
                    Step::Register(write) => failed = failed.or(self.register(write).await.err()),
                    Step::PutBack(authority) => {
                        failed = failed.or(self.store_authority(authority).await.err());
                    }
                    step => self.act(step, Some(server)).await?,
                }
            }
            if let Some(error) = failed {
                return Err(error);
            }
            if let Some(again) = again {
                return Ok(again);
            }
        }
        Err(Error::Contended)
    }

    fn show_end(&self, serving: &Serving) {
        self.ends.set(serving.end().as_second());
    }

    fn see(&self) -> Seen<'_> {
        let registered = self.registered.iter().filter_map(|Registered { registration, newest, .. }| {
            match &*newest.lock().expect("no panic while an object is stored") {
                Newest::Unknown => None,
                Newest::Known(object) => Some((registration, object.clone())),
            }
        });
        let (ca, tls) = (self.secret(&self.ca, CA_SECRET), self.secret(&self.tls, TLS_SECRET));
        let now = self.clock.now();
        let Chosen { authority, serving, is_known, put_back, left } =
            self.kept().chosen(ca.as_deref(), tls.as_deref(), &self.names, now, Instant::now());
        if let Some((name, Told::Now)) = left {
            tracing::warn!(
                secret = name,
                "another program writes a certificate of its own into this Secret again and again: it is left there for \
                 some minutes, and the webhook serves with the one that it has; let that program leave the Secret alone"
            );
        }
        let registered = registered.collect();
        Seen { authority, serving, is_known, put_back, names: &self.names, registered, now }
    }

    fn secret(&self, cache: &Cache<Secret>, name: &str) -> Option<Arc<Secret>> {
        cache.get(&ObjectKey::new(self.namespace.clone(), name))
    }

    async fn act(&self, step: Step, server: Option<&RustlsConfig>) -> Result<(), Error> {
        let now = self.clock.now();
        match step {
            Step::MakeAuthority => {
                let [stored, tls] = [(&self.ca, CA_SECRET), (&self.tls, TLS_SECRET)]
                    .map(|(cache, name)| self.secret(cache, name));
                // not one that a stranger put there: the other replicas serve by ours until they have seen the new one
                let trusted = self.kept().trusted_certificate(tls.as_deref());
                let former = trusted.or_else(|| stored.as_deref().and_then(secret::first_certificate));
                self.store_authority(new_authority(former, now)?).await
            }
            Step::PutBack(authority) => self.store_authority(authority).await,
            Step::MakeServing { authority, names } => {
                let stored = self.secret(&self.tls, TLS_SECRET);
                let serving = new_serving(&authority, &names, now)?;
                let secret = secret::with_serving(stored.as_deref().cloned(), &self.namespace, &serving);
                if self.store(&self.tls, TLS_SECRET, secret).await? {
                    self.kept().stored_serving(authority, serving, &self.names, now, Instant::now());
                }
                Ok(())
            }
            Step::Serve(serving) => {
                if let Some(server) = server {
                    server.reload_from_config(server_config(&serving)?);
                    self.show_end(&serving);
                }
                Ok(())
            }
            Step::Register(write) => self.register(write).await,
        }
    }

    async fn store_authority(&self, authority: Authority) -> Result<(), Error> {
        let stored = self.secret(&self.ca, CA_SECRET);
        let secret = secret::with_authority(stored.as_deref().cloned(), &self.namespace, &authority);
        if self.store(&self.ca, CA_SECRET, secret).await? {
            self.kept().stored_authority(authority, Instant::now());
        }
        Ok(())
    }

    /// Whether it stored a secret: when another replica was faster, its secret counts.
    async fn store(&self, cache: &Cache<Secret>, name: &'static str, secret: Secret) -> Result<bool, Error> {
        let failed = |doing| move |source| Error::Request { doing, name: name.to_owned(), source };
        let api = Api::<Secret>::namespaced(self.client.clone(), &self.namespace);
        let answer = match secret.resource_version() {
            Some(_) => api.replace(name, &PostParams::default(), &secret).await,
            None => api.create(&PostParams::default(), &secret).await,
        };
        match answer {
            Ok(secret) => {
                tracing::info!(secret = name, "stored a certificate");
                *self.missing() = Refused::default();
                cache.wrote(secret);
                Ok(true)
            }
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {
                match api.get_opt(name).await.map_err(failed("read secret"))? {
                    Some(secret) => {
                        cache.wrote(secret);
                    }
                    None => cache.gone(&ObjectKey::of(&secret), &secret.uid().unwrap_or_default()),
                }
                Ok(false)
            }
            Err(kube::Error::Api(status)) if status.code == 403 && secret.resource_version().is_none() => {
                let both = [(&self.ca, CA_SECRET), (&self.tls, TLS_SECRET)].into_iter();
                let names = both.filter(|(cache, name)| self.secret(cache, name).is_none());
                let names = names.map(|(_, name)| name).collect();
                let (namespace, source) = (self.namespace.clone(), kube::Error::Api(status));
                Err(Error::Missing { namespace, names, source })
            }
            Err(source) => Err(failed("store secret")(source)),
        }
    }

    async fn register(&self, write: Write) -> Result<(), Error> {
        let (Write::Create(object) | Write::Replace(object)) = &write;
        let written = |one: &&Registered| {
            object.types.as_ref().is_some_and(|types| types.kind == one.registration.resource.kind)
                && one.registration.name == object.name_any()
        };
        let Some(registered) = self.registered.iter().find(written) else {
            return Ok(());
        };
        let Registered { registration, newest, .. } = registered;
        if registered.refused().until(Instant::now()).is_some() {
            return Ok(());
        }
        let [theirs, ours] =
            [registered.found(), object.data.clone()].map(|data| (registration.client)(&data));
        match registered.contest().leave(&theirs, &ours, Instant::now()) {
            Some(Told::Before) => return Ok(()),
            Some(Told::Now) => {
                tracing::warn!(
                    ?registration,
                    "another program registers itself here with a certificate of its own, and is left alone for some \
                     minutes: let only one webhook of load balancers run"
                );
                return Ok(());
            }
            None => {}
        }
        let api = Api::<DynamicObject>::all_with(self.client.clone(), &registration.resource);
        let answer = match &write {
            Write::Create(object) => api.create(&PostParams::default(), object).await,
            Write::Replace(object) => api.replace(&registration.name, &PostParams::default(), object).await,
        };
        match answer {
            Ok(mut object) => {
                object.metadata.managed_fields = None;
                tracing::info!(?registration, "registered this webhook and its certificates");
                registered.contest().replaced(theirs, ours, Instant::now());
                *registered.refused() = Refused::default();
                *newest.lock().expect("no panic while an object is stored") =
                    Newest::Known(Some(Arc::new(object)));
                Ok(())
            }
            // another replica was faster: the watch brings its version, and the rotator looks again
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
            Err(kube::Error::Api(status)) if status.code == 403 => {
                if registered.refused().forbidden(Instant::now()) {
                    let (name, source) = (format!("{registration:?}"), kube::Error::Api(status));
                    let error = Error::Forbidden { name, source };
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        "a registration is forbidden: told once, and tried again every ten minutes at last"
                    );
                }
                Ok(())
            }
            Err(source) => Err(Error::NotRegistered { name: format!("{registration:?}"), source }),
        }
    }
}

/// Notes every version of a registered object.
async fn follow(
    api: Api<DynamicObject>,
    registration: Registration,
    newest: Arc<Mutex<Newest>>,
    changed: Arc<Notify>,
) {
    let mut told = None;
    let mut versions = Box::pin(watcher::watch_object(api, &registration.name).default_backoff());
    while let Some(version) = versions.next().await {
        match version {
            Ok(mut object) => {
                if let Some(object) = &mut object {
                    // a list leaves out what its items are
                    object.types = Some(types(&registration.resource));
                    object.metadata.managed_fields = None;
                }
                let advice = object.as_ref().and_then(|object| stored::advice(&object.data));
                if let Some(advice) = advice.as_ref().filter(|_| advice != told) {
                    tracing::warn!("{advice}");
                }
                told = advice;
                *newest.lock().expect("no panic while an object is stored") =
                    Newest::Known(object.map(Arc::new));
                changed.notify_one();
            }
            Err(error) => tracing::warn!(?registration, error = &error as &dyn std::error::Error, "watch"),
        }
    }
}

fn types(resource: &ApiResource) -> kube::core::TypeMeta {
    kube::core::TypeMeta { api_version: resource.api_version.clone(), kind: resource.kind.clone() }
}

/// The DNS names of the chart's Service, and the host of an address of its own.
pub(crate) fn names(namespace: &str, address: &Address) -> BTreeSet<String> {
    let mut names: BTreeSet<String> =
        ["", ".svc", ".svc.cluster.local"].map(|suffix| format!("{NAME}.{namespace}{suffix}")).into();
    if let Address::Url(url) = address
        && let Ok(url) = url.parse::<Uri>()
        && let Some(host) = url.host()
    {
        names.insert(host.trim_matches(['[', ']']).to_owned());
    }
    names
}

/// TLS 1.2 and 1.3, HTTP/1.1.
fn server_config(serving: &Serving) -> Result<Arc<ServerConfig>, Error> {
    let unusable = |error: String| Error::Unusable(error);
    let (chain, key) = serving.chain_and_key().map_err(|error| unusable(error.to_string()))?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key))
        .map_err(|error| unusable(error.to_string()))?;
    config.alpn_protocols = vec![program::serving::PROTOCOL.to_vec()];
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    #[test]
    fn a_secret_that_is_refused_waits_for_people_and_a_registration_does_not() {
        let refused = |code| kube::Error::Api(Box::new(Status::failure("no", "").with_code(code)));
        for code in [403, 422] {
            let source = refused(code);
            assert!(
                Error::Request { doing: "store secret", name: CA_SECRET.to_owned(), source }
                    .waits_for_people()
            );
        }
        let (name, source) = ("a webhook configuration".to_owned(), refused(422));
        assert!(!Error::NotRegistered { name, source }.waits_for_people());
    }

    #[test]
    fn a_serving_certificate_is_good_for_the_service_and_the_url() {
        let address = Address::Url("https://127.0.0.1:8443".to_owned());
        let names = names("harvester-system", &address);
        let expected = [
            "127.0.0.1",
            "harvester-load-balancer-webhook.harvester-system",
            "harvester-load-balancer-webhook.harvester-system.svc",
            "harvester-load-balancer-webhook.harvester-system.svc.cluster.local",
        ];
        assert_eq!(names.iter().map(String::as_str).collect::<Vec<_>>(), expected);
        let now = "2026-08-20T10:00:00Z".parse().unwrap();
        let authority = new_authority(None, now).unwrap();
        let config = server_config(&new_serving(&authority, &names, now).unwrap()).unwrap();
        assert_eq!(config.alpn_protocols, [b"http/1.1"], "API servers speak it to webhooks");
    }
}
