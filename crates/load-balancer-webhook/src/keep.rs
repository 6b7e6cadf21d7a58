//! Keeps certificates and configurations true: at the start, when somebody changes them, and before they end.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use axum::http::Uri;
use axum_server::tls_rustls::RustlsConfig;
use controller_kit::{Cache, ObjectKey, RawObject, replace};
use jiff::Timestamp;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use k8s_openapi::api::core::v1::Secret;
use kube::api::PostParams;
use kube::runtime::watcher;
use kube::{Api, Client, Resource, ResourceExt as _};
use program::{Clock, TaskGroup};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde::de::DeserializeOwned;
use tokio::sync::Notify;

use super::certificate::{Authority, Plan, Serving, new_authority, new_serving, plan};
use super::configuration::{Address, Kind, NAME};
use super::secret::{self, CA_SECRET, TLS_SECRET};

/// How long after a failure it is tried again.
const AGAIN: Duration = Duration::from_secs(5);

/// How often it is looked afresh because another replica was faster.
const ATTEMPTS: usize = 8;

/// Something could not be brought in order; it is tried again.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{doing} {name}")]
    Request {
        doing: &'static str,
        name: &'static str,
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

/// What is kept.
pub(super) struct Keeper {
    client: Client,
    clock: Clock,
    namespace: String,
    address: Address,
    /// Names that the serving certificate must be good for.
    names: BTreeSet<String>,
    ca: Cache<Secret>,
    tls: Cache<Secret>,
    validating: Cache<RawObject<ValidatingWebhookConfiguration>>,
    mutating: Cache<RawObject<MutatingWebhookConfiguration>>,
    changed: Arc<Notify>,
}

/// The certificates as they are now.
struct Certificates {
    authority: Authority,
    serving: Serving,
    renewed_at: Timestamp,
}

impl Keeper {
    pub(super) async fn start(
        tasks: &TaskGroup,
        client: Client,
        clock: Clock,
        namespace: String,
        address: Address,
    ) -> Self {
        let named = |name: &str| watcher::Config::default().fields(&format!("metadata.name={name}"));
        let secrets =
            |name: &str| Cache::start(tasks, Api::namespaced(client.clone(), &namespace), named(name));
        let keeper = Self {
            names: names(&namespace, &address),
            ca: secrets(CA_SECRET),
            tls: secrets(TLS_SECRET),
            validating: Cache::start(tasks, Api::all(client.clone()), named(NAME)),
            mutating: Cache::start(tasks, Api::all(client.clone()), named(NAME)),
            changed: Arc::new(Notify::new()),
            client,
            clock,
            namespace,
            address,
        };
        let changed = || {
            let changed = keeper.changed.clone();
            move || changed.notify_one()
        };
        let (one, two, three, four) = (changed(), changed(), changed(), changed());
        keeper.ca.on_change(move |_| one());
        keeper.tls.on_change(move |_| two());
        keeper.validating.on_change(move |_| three());
        keeper.mutating.on_change(move |_| four());
        keeper.ca.ready().await;
        keeper.tls.ready().await;
        keeper.validating.ready().await;
        keeper.mutating.ready().await;
        keeper
    }

    /// A first certificate to serve with.
    pub(super) async fn first(&self) -> Result<RustlsConfig, Error> {
        let certificates = self.certificates().await?;
        Ok(RustlsConfig::from_config(server_config(&certificates.serving)?))
    }

    /// Keeps everything true until the life ends. `server` gets new certificates in place, connections stay.
    pub(super) async fn keep(self, server: RustlsConfig) {
        loop {
            let wait = match self.once(&server).await {
                Ok(renewed_at) => {
                    let wait = renewed_at.duration_since(self.clock.now());
                    Duration::try_from(wait).unwrap_or_default()
                }
                Err(error) => {
                    tracing::warn!(error = &error as &dyn std::error::Error, retry_in = ?AGAIN, "webhook registration");
                    AGAIN
                }
            };
            tokio::select! {
                () = self.changed.notified() => {}
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    async fn once(&self, server: &RustlsConfig) -> Result<Timestamp, Error> {
        let Certificates { authority, serving, renewed_at } = self.certificates().await?;
        server.reload_from_config(server_config(&serving)?);
        let bundle = authority.bundle();
        self.configure(&self.validating, Kind::Validating, &bundle).await?;
        self.configure(&self.mutating, Kind::Mutating, &bundle).await?;
        Ok(renewed_at)
    }

    async fn certificates(&self) -> Result<Certificates, Error> {
        for _ in 0..ATTEMPTS {
            let key = |name: &str| ObjectKey::new(self.namespace.clone(), name);
            let (ca, tls) = (self.ca.get(&key(CA_SECRET)), self.tls.get(&key(TLS_SECRET)));
            let authority = ca.as_deref().and_then(secret::authority);
            let serving = tls.as_deref().and_then(secret::serving);
            let now = self.clock.now();
            match (plan(authority.as_ref(), serving.as_ref(), &self.names, now), authority, serving) {
                (Plan::Keep { until }, Some(authority), Some(serving)) => {
                    return Ok(Certificates { authority, serving, renewed_at: until });
                }
                (Plan::Serving, Some(authority), serving) => {
                    // names of the other replicas stay good: they may be reached by an address of their own
                    let mut names = self.names.clone();
                    names.extend(serving.into_iter().flat_map(|serving| serving.names));
                    let serving = new_serving(&authority, &names, now)?;
                    let tls = tls.as_deref().cloned();
                    let secret = secret::with_serving(tls, &self.namespace, &serving);
                    self.store(&self.tls, TLS_SECRET, secret).await?;
                }
                _ => {
                    let former = ca.as_deref().and_then(secret::first_certificate);
                    let authority = new_authority(former, now)?;
                    let secret = secret::with_authority(ca.as_deref().cloned(), &self.namespace, &authority);
                    self.store(&self.ca, CA_SECRET, secret).await?;
                }
            }
        }
        Err(Error::Contended)
    }

    /// Stores a secret; when another replica was faster, theirs counts.
    async fn store(&self, cache: &Cache<Secret>, name: &'static str, secret: Secret) -> Result<(), Error> {
        let api = Api::<Secret>::namespaced(self.client.clone(), &self.namespace);
        let answer = match secret.resource_version() {
            Some(_) => api.replace(name, &PostParams::default(), &secret).await,
            None => api.create(&PostParams::default(), &secret).await,
        };
        match answer {
            Ok(secret) => {
                tracing::info!(secret = name, "stored a new certificate");
                cache.wrote(secret);
            }
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {
                let fresh = api.get_opt(name).await;
                let fresh = fresh.map_err(|source| Error::Request { doing: "read secret", name, source })?;
                match fresh {
                    Some(secret) => {
                        cache.wrote(secret);
                    }
                    None => cache.gone(&ObjectKey::of(&secret), &secret.uid().unwrap_or_default()),
                }
            }
            Err(source) => return Err(Error::Request { doing: "store secret", name, source }),
        }
        Ok(())
    }

    /// Makes our entry in a configuration true; writes only when it is not.
    async fn configure<K>(&self, cache: &Cache<RawObject<K>>, kind: Kind, bundle: &str) -> Result<(), Error>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned + Clone + Debug + Send + Sync + 'static,
        K: Resource<Scope = k8s_openapi::ClusterResourceScope>,
    {
        let failed = |source| Error::Request { doing: "write the webhook configuration", name: NAME, source };
        let set = |json: &mut serde_json::Value| kind.set_entry(json, &self.namespace, &self.address, bundle);
        let answer = match cache.get(&ObjectKey::new("", NAME)) {
            Some(found) => match found.edited(set) {
                Some(json) => replace::<K>(&self.client, &json).await,
                None => return Ok(()),
            },
            None => {
                let mut json = kind.blank();
                set(&mut json);
                let object = RawObject::<K>::from_json(json).expect("we made it of the fields of its kind");
                Api::<RawObject<K>>::all(self.client.clone()).create(&PostParams::default(), &object).await
            }
        };
        match answer {
            Ok(object) => {
                tracing::info!(configuration = ?kind, "told the API server where we are");
                cache.wrote(object);
                Ok(())
            }
            // another replica was faster: the watch brings theirs, and us back
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
            Err(source) => Err(failed(source)),
        }
    }
}

/// The names of the chart's Service, and the host of an address of our own.
fn names(namespace: &str, address: &Address) -> BTreeSet<String> {
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

/// TLS 1.2 and 1.3, HTTP/2 and 1.1.
fn server_config(serving: &Serving) -> Result<Arc<ServerConfig>, Error> {
    let unusable = |error: String| Error::Unusable(error);
    let chain = CertificateDer::pem_slice_iter(serving.certificate.as_bytes()).collect::<Result<Vec<_>, _>>();
    let chain = chain.map_err(|error| unusable(error.to_string()))?;
    let key =
        PrivateKeyDer::from_pem_slice(serving.key.as_bytes()).map_err(|error| unusable(error.to_string()))?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key))
        .map_err(|error| unusable(error.to_string()))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_that_we_make_can_be_served_with_for_service_and_url() {
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
        server_config(&new_serving(&authority, &names, now).unwrap()).unwrap();
    }
}
