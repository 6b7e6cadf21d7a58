//! One request's way through the server.
//!
//! ```text
//! user? ─► audit ─► fault? ─► right? ─► aggregated API? ─► read | watch | write | review ─► answer
//!                                                            documents (discovery, OpenAPI, health)
//! ```

use std::sync::{Arc, Mutex, OnceLock, RwLock};

use axum::body::Body;
use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, header};
use serde_json::Value;
use sim_apimachinery::schema::Schema;
use sim_apimachinery::selector::asked_name;
use sim_apimachinery::{kind as api, rbac};
use tokio::time::Instant;

use crate::Failure;
use crate::admission::{Admission, Resolver};
use crate::aggregated::{self, Aggregated};
use crate::audit::{Audit, Record};
use crate::builder::Builder;
use crate::clock::Clock;
use crate::documents::Documents;
use crate::faults::{self, Aim, Answer, Fault, Faults, When};
use crate::form::{Shape, to_bytes};
use crate::kind::{Kind, Kinds};
use crate::read::Pages;
use crate::request::{Media, Query, Route, Target, Verb, route};
use crate::rights::Rights;
use crate::store::Store;
use crate::tokens::Tokens;
use crate::transport::tls::Authority;
use crate::user::User;
use crate::{documents, options, read, review, watch, write};

/// The largest body of a request that is read, as of a real server.
pub(crate) const BODY_LIMIT: usize = 3 * 1024 * 1024;

/// The longest name of a field manager.
const MANAGER: usize = 128;

/// A Kubernetes API server in this process. Clones are the same server.
#[derive(Clone, Debug)]
pub struct ApiServer(pub(crate) Arc<Shared>);

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) store: Store,
    kinds: RwLock<Arc<Kinds>>,
    pub(crate) tokens: Tokens,
    pub(crate) clock: Clock,
    random: Mutex<fastrand::Rng>,
    pub(crate) audit: Audit,
    pub(crate) rights: Rights,
    pub(crate) pages: Pages,
    pub(crate) faults: Faults,
    pub(crate) authority: OnceLock<Authority>,
    pub(crate) admission: Admission,
    pub(crate) aggregated: Aggregated,
    pub(crate) documents: Documents,
    pub(crate) release: (u32, u32),
}

impl Shared {
    pub(crate) fn new(
        store: Store,
        clock: Clock,
        seed: u64,
        release: (u32, u32),
        resolver: Option<Resolver>,
    ) -> Self {
        let rights = Rights::new(&store);
        Self {
            store,
            kinds: RwLock::new(Arc::new(Kinds::builtin())),
            tokens: Tokens::default(),
            clock,
            random: Mutex::new(fastrand::Rng::with_seed(seed)),
            audit: Audit::default(),
            rights,
            pages: Pages::default(),
            faults: Faults::new(seed),
            authority: OnceLock::new(),
            admission: Admission::new(resolver),
            aggregated: Aggregated::default(),
            documents: Documents::default(),
            release,
        }
    }
}

/// A request for a resource, read and authenticated.
#[derive(Debug)]
pub(crate) struct Ask {
    pub(crate) user: Arc<User>,
    pub(crate) verb: Verb,
    pub(crate) target: Target,
    pub(crate) query: Query,
    pub(crate) media: Media,
    pub(crate) shape: Shape,
    /// Name of the writer in `managedFields`.
    pub(crate) manager: String,
    pub(crate) body: Bytes,
    pub(crate) kind: Arc<Kind>,
    pub(crate) version: usize,
    warnings: Mutex<Vec<String>>,
}

impl Ask {
    /// The namespace of the path; empty for cluster-scoped kinds and across namespaces.
    pub(crate) fn namespace(&self) -> &str {
        self.target.namespace.as_deref().unwrap_or_default()
    }

    /// The kind in the version of the path.
    pub(crate) fn api(&self) -> &api::Kind {
        self.kind.api(self.version)
    }

    /// Returns the schema of the kind's objects.
    pub(crate) fn schema(&self) -> &Schema {
        &self.kind.versions[self.version].schema
    }

    /// Notes what the client is told in `Warning` headers.
    pub(crate) fn warn(&self, warnings: Vec<String>) {
        self.warnings.lock().expect("no panic while a warning is noted").extend(warnings);
    }

    /// A request of the server's own controllers.
    pub(crate) fn internal(user: User, verb: Verb, target: Target, kind: Arc<Kind>, version: usize) -> Self {
        Self {
            user: Arc::new(user),
            verb,
            target,
            query: Query::default(),
            media: Media::Json,
            shape: Shape::Whole,
            manager: "kube-controller-manager".to_owned(),
            body: Bytes::new(),
            kind,
            version,
            warnings: Mutex::default(),
        }
    }

    /// Whether nothing is to be kept.
    pub(crate) fn is_dry_run(&self) -> bool {
        !self.query.dry_run.is_empty()
    }

    pub(crate) fn name(&self) -> &str {
        self.target.name.as_deref().unwrap_or_default()
    }

    pub(crate) fn subresource(&self) -> &str {
        self.target.subresource.as_deref().unwrap_or_default()
    }
}

/// A fault cut the connection: the client gets no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("connection reset by a fault")]
pub struct Dropped;

impl ApiServer {
    /// Starts to describe a server.
    #[must_use]
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// The audit log.
    #[must_use]
    pub fn audit(&self) -> &Audit {
        &self.0.audit
    }

    /// The newest revision: it grows with every change.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.0.store.revision()
    }

    /// Requests and changes so far, in one number: while it stands still, nothing happens on this server.
    #[must_use]
    pub fn activity(&self) -> u64 {
        self.revision() + self.0.audit.total()
    }

    /// Forgets the history of changes: watches that start from an older revision get 410 in their stream.
    pub fn compact(&self) {
        self.0.store.compact();
    }

    pub(crate) fn kinds(&self) -> Arc<Kinds> {
        self.0.kinds.read().expect("no panic while kinds change").clone()
    }

    pub(crate) fn change_kinds(&self, change: impl FnOnce(&mut Kinds)) {
        let mut kinds = self.0.kinds.write().expect("no panic while kinds change");
        change(Arc::make_mut(&mut kinds));
    }

    /// Something random from the server's seed.
    pub(crate) fn random<T>(&self, f: impl FnOnce(&mut fastrand::Rng) -> T) -> T {
        f(&mut self.0.random.lock().expect("no panic while drawing"))
    }

    /// Answers a request. `user` is who asks on a connection that needs no token.
    pub(crate) async fn handle(
        &self,
        user: Option<Arc<User>>,
        request: Request<Bytes>,
    ) -> Result<Response<Body>, Dropped> {
        let started = Instant::now();
        let user = user.or_else(|| self.authenticate(&request).map(Arc::new));
        // over HTTP/2 the URI is a whole one
        let uri = request.uri().path_and_query().map_or_else(String::new, ToString::to_string);
        let method = request.method().as_str().to_ascii_lowercase();
        let user = user.map(|user| self.impersonated(user, &request));
        let (verb, answer) = match user.clone() {
            None => (None, Ok(refusal(&Failure::unauthorized()))),
            Some(Err(failure)) => (None, Ok(refusal(&failure))),
            Some(Ok(user)) => self.answer(user, request).await,
        };
        self.0.audit.add(Record {
            user: user.and_then(Result::ok).map_or_else(String::new, |user| user.name.clone()),
            verb: verb.map_or(method, |verb| verb.as_str().to_owned()),
            uri,
            code: answer.as_ref().map_or(0, |response| response.status().as_u16()),
            ms: u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX),
        });
        answer
    }

    fn authenticate(&self, request: &Request<Bytes>) -> Option<User> {
        let header = request.headers().get(header::AUTHORIZATION)?.to_str().ok()?;
        let (scheme, token) = header.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| self.user_of(token.trim())).flatten()
    }

    /// Whom the request acts as: `kubectl --as`.
    fn impersonated(&self, user: Arc<User>, request: &Request<Bytes>) -> Result<Arc<User>, Failure> {
        let texts = |name: &str| -> Vec<&str> {
            request.headers().get_all(name).iter().filter_map(|value| value.to_str().ok()).collect()
        };
        let Some(name) = texts("impersonate-user").first().copied() else { return Ok(user) };
        let mut other = User::named(name);
        let mut asked = vec![("users", name)];
        for group in texts("impersonate-group") {
            asked.push(("groups", group));
            other = other.with_group(group);
        }
        for (resource, name) in asked {
            let right = rbac::Request::Resource {
                verb: "impersonate",
                group: "",
                resource,
                subresource: "",
                namespace: "",
                name,
            };
            if !self.0.rights.allow(&self.0.store, &user, &right) {
                return Err(Failure::unauthorized_by_rbac("", resource, name, &right.refusal(&user)));
            }
        }
        Ok(Arc::new(other))
    }

    async fn answer(
        &self,
        user: Arc<User>,
        request: Request<Bytes>,
    ) -> (Option<Verb>, Result<Response<Body>, Dropped>) {
        let (target, query) = match (route(request.uri().path()), Query::of(request.uri())) {
            (Route::Other, _) => return (None, Ok(self.document(&user, request).await)),
            (_, Err(failure)) => return (None, Ok(refusal(&failure))),
            (Route::Resource(target), Ok(query)) => (target, query),
        };
        let Some(verb) = Verb::of(request.method(), target.name.is_some(), query.watch) else {
            return (None, Ok(refusal(&Failure::method_not_allowed())));
        };
        let resource = match &target.subresource {
            Some(subresource) => format!("{}/{subresource}", target.plural),
            None => target.plural.clone(),
        };
        let fault = self.fault(Aim {
            user: &user.name,
            is_admin: user.may_do_everything(),
            verb: verb.as_str(),
            resource: &resource,
            namespace: target.namespace.as_deref().unwrap_or_default(),
            name: target.name.as_deref().unwrap_or_default(),
        });
        (Some(verb), self.through(fault, user, verb, target, query, request).await)
    }

    /// Answers a request for a resource, through the fault that hits it.
    async fn through(
        &self,
        fault: Option<Fault>,
        user: Arc<User>,
        verb: Verb,
        target: Target,
        mut query: Query,
        request: Request<Bytes>,
    ) -> Result<Response<Body>, Dropped> {
        let Some(Fault { answer, when }) = fault else {
            return Ok(self.resource(user, verb, target, query, request).await);
        };
        if when == When::Before {
            match answer {
                Answer::Drop => return Err(Dropped),
                Answer::Code(410) if verb == Verb::Watch => return Ok(watch::expired()),
                Answer::Code(code) => return Ok(refusal(&faults::status(code))),
                Answer::Delay(delay) => tokio::time::sleep(delay).await,
            }
            return Ok(self.resource(user, verb, target, query, request).await);
        }
        if verb == Verb::Watch && answer == Answer::Drop {
            // it breaks after what it begins with
            query.timeout_seconds = Some(0);
            return Ok(self.resource(user, verb, target, query, request).await);
        }
        let right = self.resource(user, verb, target, query, request).await;
        match answer {
            Answer::Drop => Err(Dropped),
            Answer::Code(code) => Ok(refusal(&faults::status(code))),
            Answer::Delay(delay) => {
                tokio::time::sleep(delay).await;
                Ok(right)
            }
        }
    }

    async fn document(&self, user: &User, request: Request<Bytes>) -> Response<Body> {
        let path = request.uri().path();
        let verb = request.method().as_str().to_ascii_lowercase();
        let asked = rbac::Request::Path { verb: &verb, path };
        if !self.0.rights.allow(&self.0.store, user, &asked) {
            return refusal(&Failure::unauthorized_by_rbac("", "", "", &asked.refusal(user)));
        }
        if let Some(group) = path.strip_prefix("/apis/").and_then(|rest| rest.split('/').next())
            && let Some(endpoint) = self.aggregated(group)
        {
            return aggregated::forward(&endpoint, user, request).await;
        }
        documents::answer(self, &request).unwrap_or_else(|failure| refusal(&failure))
    }

    async fn resource(
        &self,
        user: Arc<User>,
        verb: Verb,
        target: Target,
        query: Query,
        request: Request<Bytes>,
    ) -> Response<Body> {
        // a list or watch of one name may be granted by that name
        let asked = match (verb, &query.field_selector) {
            (Verb::List | Verb::Watch, Some(fields)) if target.name.is_none() => asked_name(fields),
            _ => None,
        };
        let name = asked.as_deref().or(target.name.as_deref()).unwrap_or_default();
        if let Err(failure) = self.authorize(&user, verb, &target, name) {
            return refusal(&failure);
        }
        if let Some(endpoint) = self.aggregated(&target.group) {
            return aggregated::forward(&endpoint, &user, request).await;
        }
        self.carry_out(user, verb, target, query, request).await.unwrap_or_else(|failure| refusal(&failure))
    }

    async fn carry_out(
        &self,
        user: Arc<User>,
        verb: Verb,
        target: Target,
        query: Query,
        request: Request<Bytes>,
    ) -> Result<Response<Body>, Failure> {
        let kinds = self.kinds();
        let kind = kinds.get(&target.group, &target.plural).ok_or_else(Failure::no_such_path)?.clone();
        let version = kind.version(&target.version).ok_or_else(Failure::no_such_path)?;
        if target.namespace.is_some() && !kind.namespaced {
            return Err(Failure::no_such_path());
        }
        let across_namespaces = kind.namespaced && target.namespace.is_none();
        let offered = !across_namespaces && kind.api(version).offers(Verb::DeleteCollection.as_str());
        if verb == Verb::DeleteCollection && !offered {
            return Err(Failure::method_not_allowed());
        }
        let headers = request.headers();
        let text = |name| headers.get(name).and_then(|v: &HeaderValue| v.to_str().ok()).unwrap_or_default();
        let shape = Shape::negotiate(text(header::ACCEPT), query.include_object.as_deref())?;
        let agent = text(header::USER_AGENT).split('/').next().filter(|agent| !agent.is_empty());
        let manager = query.field_manager.as_deref().or(agent).unwrap_or("unknown");
        let manager = manager.chars().take(MANAGER).collect();
        let media = Media::of(headers);
        let body = request.into_body();
        let ask = Ask {
            user,
            verb,
            target,
            query,
            media,
            shape,
            manager,
            body,
            kind,
            version,
            warnings: Mutex::default(),
        };
        options::check(&ask)?;
        let mut answer = match verb {
            _ if review::is_question(&ask) => review::answer(self, &ask),
            Verb::Get => read::get(self, &ask).await,
            Verb::List => read::list(self, &ask).await,
            Verb::Watch => watch::start(self, &ask).await,
            Verb::Create | Verb::Update | Verb::Patch | Verb::Delete | Verb::DeleteCollection => {
                write::answer(self, &ask).await
            }
        }?;
        for warning in ask.warnings.into_inner().expect("no panic while a warning is noted") {
            if let Ok(value) = HeaderValue::try_from(format!("299 - {warning:?}")) {
                answer.headers_mut().append(header::WARNING, value);
            }
        }
        Ok(answer)
    }

    /// Refuses what RBAC does not allow. `name`: the object that it is about, or nothing.
    pub(crate) fn authorize(
        &self,
        user: &User,
        verb: Verb,
        target: &Target,
        name: &str,
    ) -> Result<(), Failure> {
        let request = rbac::Request::Resource {
            verb: verb.as_str(),
            group: &target.group,
            resource: &target.plural,
            subresource: target.subresource.as_deref().unwrap_or_default(),
            // a namespace is in itself for RBAC, but not for us
            namespace: match (&target.namespace, target.group.as_str(), target.plural.as_str()) {
                (Some(namespace), ..) => namespace,
                (None, "", "namespaces") => target.name.as_deref().unwrap_or_default(),
                _ => "",
            },
            name,
        };
        if self.0.rights.allow(&self.0.store, user, &request) {
            return Ok(());
        }
        Err(Failure::unauthorized_by_rbac(&target.group, &target.plural, name, &request.refusal(user)))
    }
}

/// An answer of JSON bytes.
pub(crate) fn json_response(code: StatusCode, body: impl Into<Body>) -> Response<Body> {
    let mut response = Response::new(body.into());
    *response.status_mut() = code;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

pub(crate) fn value_response(code: StatusCode, value: &Value) -> Response<Body> {
    json_response(code, to_bytes(value))
}

/// The answer to a request that failed.
pub(crate) fn refusal(failure: &Failure) -> Response<Body> {
    let code = StatusCode::from_u16(failure.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = value_response(code, &failure.to_value());
    if let Some(seconds) = failure.retry_after() {
        response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
    }
    response
}
