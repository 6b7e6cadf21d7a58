//! A token that ends is renewed by its own account, and a token that does not end is retired.
//!
//! ```text
//! cloud-config ──► claims of its token ──► due at two thirds of its life ──► TokenRequest ──► tried ──► file, as a whole
//! Secret <account>-token ──► when its token was last used ──► deleted, if that is two days ago
//! ```

use std::{
    fmt, fs, io,
    io::Write as _,
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, fchown},
    path::{Path, PathBuf},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use cloud_config::{CloudConfig, Connection, Options, proxy::Environment};
use credential_rotation::token::{self, Claims};
use jiff::{Timestamp, civil::Date, tz::TimeZone};
use kube::Client;
use serde_json::{Value, json};

use crate::{
    error::{Error, fault, sentence, shown},
    object, plan,
};

/// What became of a renewal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Renewed {
    Until {
        /// Of the new token.
        end: String,
        /// Further keys of the Secret that held the same cloud-config, and hold the new one.
        also: Vec<String>,
    },
    /// It is too early; the token is due then.
    DueAt(Timestamp),
}

/// A cloud-config after a look at its token.
enum Looked {
    /// With a new token, which was tried, and its end.
    Fresh(String, String),
    DueAt(Timestamp),
}

/// Where a cloud-config is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kept {
    File(PathBuf),
    /// Namespace, name and key of a Secret in the guest cluster.
    Secret(String, String, String),
}

impl fmt::Display for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(file) => write!(f, "{}", file.display()),
            Self::Secret(namespace, name, key) => write!(f, "Secret {namespace}/{name}, key {key}"),
        }
    }
}

/// Renews the token in a file, if it is due or `at_once`. The file changes as a whole.
pub(crate) async fn renew_file(
    file: &Path,
    at_once: bool,
    options: &Options,
    now: Timestamp,
) -> Result<Renewed, Error> {
    let name = file.display().to_string();
    let config = CloudConfig::read(file).map_err(|error| fault(error.to_string()))?;
    match look(&config, at_once, options, now).await? {
        Looked::DueAt(due) => Ok(Renewed::DueAt(due)),
        Looked::Fresh(text, end) => {
            write(file, &text).map_err(|error| fault(format!("write {name}: {error}; it is as it was")))?;
            Ok(Renewed::Until { end, also: Vec::new() })
        }
    }
}

/// Renews the token in a Secret of the guest cluster, if it is due or `at_once`. The charts read one cloud-config under two keys.
pub(crate) async fn renew_secret(
    guest: &Client,
    place: &Kept,
    at_once: bool,
    options: &Options,
    now: Timestamp,
) -> Result<Renewed, Error> {
    let Kept::Secret(namespace, name, key) = place else {
        return Err(fault(format!("{place} is no Secret")));
    };
    let like =
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": namespace}});
    let mut secret =
        object::get(guest, &like).await?.ok_or_else(|| fault(format!("{place} is not there")))?;
    let data = secret["data"][key].as_str().and_then(|data| STANDARD.decode(data).ok());
    let text = data.and_then(|data| String::from_utf8(data).ok());
    let text = text.ok_or_else(|| fault(format!("{place} holds no text")))?;
    let config = CloudConfig::parse(&text, &place.to_string(), &Environment::of_process());
    let config = config.map_err(|error| fault(error.to_string()))?;
    match look(&config, at_once, options, now).await? {
        Looked::DueAt(due) => Ok(Renewed::DueAt(due)),
        Looked::Fresh(text, end) => {
            let (old, fresh) = (secret["data"][key].clone(), Value::from(STANDARD.encode(text)));
            let mut also = Vec::new();
            for (name, data) in secret["data"].as_object_mut().into_iter().flatten() {
                if *data == old {
                    *data = fresh.clone();
                    also.extend((name != key).then(|| name.clone()));
                }
            }
            // of the version that was read: what somebody else has put there meanwhile stays
            object::replace(guest, &secret).await?;
            Ok(Renewed::Until { end, also })
        }
    }
}

/// Asks for a new token with the rights of the old one, and tries it.
async fn look(
    config: &CloudConfig,
    at_once: bool,
    options: &Options,
    now: Timestamp,
) -> Result<Looked, Error> {
    let (text, name) = (config.source(), &config.file);
    let token = token::of_kubeconfig(text, Some(&config.context))
        .ok_or_else(|| fault(format!("{name} holds no token")))?;
    let claims = Claims::of(&token).ok_or_else(|| {
        fault(format!("the token of {name} is of no service account of Harvester: only these are renewed"))
    })?;
    let [account, namespace] = [&claims.account, &claims.namespace].map(|name| shown(name));
    let (account, namespace) = (&account, &namespace);
    let Some((life, due)) = claims.life() else {
        return Err(fault(format!(
            "the token of {name} does not end, so it cannot be renewed; make one that can with an administrator's \
             kubeconfig of Harvester: harvester-cloud-provider cloud-config generate --rotate {account} {namespace}"
        )));
    };
    if now < due && !at_once {
        return Ok(Looked::DueAt(due));
    }
    let question = token::request(account, life);
    let answer = object::token(&client(config, options)?, namespace, account, &question).await;
    let answer = answer.map_err(|error| {
        fault(match &error {
            kube::Error::Api(status) if status.code == 401 => format!(
                "Harvester refuses the token of {name}: it has ended, or Secret {} of namespace {namespace} was deleted; make \
                 another with an administrator's kubeconfig of Harvester: harvester-cloud-provider cloud-config generate \
                 --rotate {account} {namespace}",
                token::anchor_name(account)
            ),
            _ => format!("ask for a token of {namespace}/{account}: {}", sentence(&error)),
        })
    })?;
    let field = |field: &str| answer["status"][field].as_str().unwrap_or_default().to_owned();
    let fresh = text.replace(&token, &field("token"));
    // YAML may hold a text otherwise than it is, folded over lines or escaped
    if token::of_kubeconfig(&fresh, Some(&config.context)).as_deref() != Some(field("token").as_str()) {
        return Err(fault(format!("the token of {name} is not there as it is: write it on one line")));
    }
    let tried = client(&config.with_token(&field("token")), options)?.apiserver_version().await;
    tried.map_err(|error| fault(format!("Harvester does not take the new token: {}", sentence(&error))))?;
    Ok(Looked::Fresh(fresh, shown(&field("expirationTimestamp"))))
}

fn client(config: &CloudConfig, options: &Options) -> Result<Client, Error> {
    Ok(Connection::open(config, options).map_err(|error| fault(error.to_string()))?.client())
}

/// Puts the text into the file as a whole. A link stays one, and who could read the file can read it.
fn write(file: &Path, text: &str) -> io::Result<()> {
    let file = fs::canonicalize(file)?;
    let old = fs::metadata(&file)?;
    let mut beside = file.as_os_str().to_owned();
    beside.push(".new");
    let beside = PathBuf::from(beside);
    match fs::remove_file(&beside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let written = write_beside(&beside, text, &old).and_then(|()| fs::rename(&beside, &file));
    if written.is_err() {
        // the first error is the one to tell
        drop(fs::remove_file(&beside));
    }
    written
}

fn write_beside(beside: &Path, text: &str, old: &fs::Metadata) -> io::Result<()> {
    let mut fresh = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(beside)?;
    let made = fresh.metadata()?;
    if (made.uid(), made.gid()) != (old.uid(), old.gid()) {
        fchown(&fresh, Some(old.uid()), Some(old.gid())).map_err(|error| {
            let owner =
                format!("it belongs to user {} and group {}, and has to stay theirs", old.uid(), old.gid());
            io::Error::new(error.kind(), format!("{owner}: {error}: run this as that user, or as root"))
        })?;
    }
    fresh.write_all(text.as_bytes())?;
    fresh.set_permissions(fs::Permissions::from_mode(old.mode() & 0o777))?;
    fresh.sync_all()
}

/// A token that was used less than so many days ago is in use.
const UNUSED_DAYS: i32 = 2;
const LAST_USED: &str = "kubernetes.io/legacy-token-last-used";

/// Whether a token that does not end may be deleted: a refusal says why not. Kubernetes notes the day of the last use, and
/// since when it notes it.
fn may_retire(last_used: Option<&str>, since: Option<&str>, today: Date) -> Result<(), String> {
    let age = |day: &str| {
        let day: Date = day.parse().ok()?;
        Some(today.since(day).ok()?.get_days())
    };
    match (last_used, since) {
        (Some(day), _) => match age(day) {
            Some(days) if days >= UNUSED_DAYS => Ok(()),
            Some(_) => Err(format!(
                "it was last used on {day}: something still has it; wait until it has not been used for two days"
            )),
            None => Err(format!("Kubernetes notes {day:?} as the day of its last use, which is no day")),
        },
        (None, Some(day)) if age(day).is_some_and(|days| days >= UNUSED_DAYS) => Ok(()),
        (None, Some(day)) => {
            Err(format!("Kubernetes notes the use of tokens only since {day}: wait two days"))
        }
        (None, None) => Err(
            "this Kubernetes does not note when tokens are used, so nobody knows whether something has it"
                .to_owned(),
        ),
    }
}

/// Deletes the token of an account that does not end, if nothing uses it. Returns the Secret's name.
pub(crate) async fn retire(
    client: &Client,
    namespace: &str,
    account: &str,
    now: Timestamp,
) -> Result<String, Error> {
    let name = plan::secret_name(account);
    let like =
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": namespace}});
    let Some(secret) = object::get(client, &like).await? else {
        return Err(fault(format!("there is no Secret {name} in namespace {namespace}: nothing to retire")));
    };
    let like = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": account, "namespace": namespace}});
    let owner = object::get(client, &like).await?;
    let uid = owner.as_ref().and_then(|owner| owner["metadata"]["uid"].as_str()).unwrap_or_default();
    if !plan::is_token_of(&secret, uid) {
        return Err(fault(format!(
            "Secret {name} of namespace {namespace} stays: it is no token of service account {account}"
        )));
    }
    let tracking = json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "kube-apiserver-legacy-service-account-token-tracking", "namespace": "kube-system"}});
    let since = object::get(client, &tracking).await?;
    let since = since.as_ref().and_then(|map| map["data"]["since"].as_str());
    let last_used = secret["metadata"]["labels"][LAST_USED].as_str();
    may_retire(last_used, since, now.to_zoned(TimeZone::UTC).date())
        .map_err(|why| fault(format!("Secret {name} of namespace {namespace} stays: {why}")))?;
    object::delete(client, &secret).await?;
    Ok(name)
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;
    use rstest::rstest;
    use sim_apiserver::{ApiServer, User};
    use tokio::net::TcpListener;

    use super::*;
    use crate::request::{Format, Part, Request};

    #[rstest]
    #[case::long_ago(Some("2026-01-01"), None, true)]
    #[case::two_days_ago(Some("2026-01-08"), None, true)]
    #[case::yesterday(Some("2026-01-09"), Some("2025-01-01"), false)]
    #[case::tomorrow(Some("2026-01-11"), None, false)]
    #[case::never(None, Some("2025-01-01"), true)]
    #[case::not_noted_for_long(None, Some("2026-01-09"), false)]
    #[case::not_noted(None, None, false)]
    #[case::odd(Some("soon"), Some("2025-01-01"), false)]
    fn a_token_is_retired_only_when_nothing_has_used_it_for_two_days(
        #[case] last_used: Option<&str>,
        #[case] since: Option<&str>,
        #[case] retires: bool,
    ) {
        assert_eq!(may_retire(last_used, since, "2026-01-10".parse().unwrap()).is_ok(), retires);
    }

    struct Harvester {
        server: ApiServer,
        folder: tempfile::TempDir,
        address: std::net::SocketAddr,
    }

    /// A Harvester with account `vms/demo`, which may make tokens for itself.
    async fn harvester() -> Harvester {
        // another test may have been quicker
        drop(rustls::crypto::ring::default_provider().install_default());
        let server = ApiServer::builder().namespace("vms").build();
        let admin = server.client(User::admin());
        let request = request();
        let account = object::create(&admin, &plan::account(&request).1).await.unwrap();
        for step in plan::rotation(&request, account["metadata"]["uid"].as_str().unwrap()) {
            let plan::Step::Ensure { object, .. } = step else { panic!("{step:?}") };
            object::create(&admin, &object).await.unwrap();
        }
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let serving = server.clone();
        tokio::spawn(async move { serving.serve(listener).await });
        Harvester { server, folder: tempfile::tempdir().unwrap(), address }
    }

    fn request() -> Request {
        Request {
            part: Part::CloudProvider,
            account: "demo".to_owned(),
            namespace: "vms".to_owned(),
            format: Format::Kubeconfig,
            server: None,
            least: false,
            keep: false,
            check: true,
            rotate: Some(SignedDuration::from_hours(1)),
        }
    }

    impl Harvester {
        /// A cloud-config with a token that ends.
        async fn file(&self) -> PathBuf {
            let question = token::request("demo", SignedDuration::from_hours(1));
            let admin = self.server.client(User::admin());
            let answer = object::token(&admin, "vms", "demo", &question).await.unwrap();
            let user = User::service_account("vms", "demo");
            let (text, old) = (self.server.kubeconfig(user.clone(), self.address), self.server.token(&user));
            let file = self.folder.path().join("cloud-config");
            fs::write(&file, text.replace(&old, answer["status"]["token"].as_str().unwrap())).unwrap();
            file
        }

        async fn renew(&self, file: &Path, at_once: bool) -> Result<Renewed, String> {
            let outcome =
                renew_file(file, at_once, &Options::named("test"), program::Clock::system().now()).await;
            outcome.map_err(|error| error.to_string())
        }
    }

    #[tokio::test]
    async fn an_account_renews_its_own_token_in_its_file() {
        let harvester = harvester().await;
        let file = harvester.file().await;
        let before = fs::read_to_string(&file).unwrap();
        assert!(matches!(harvester.renew(&file, false).await.unwrap(), Renewed::DueAt(_)));
        assert_eq!(fs::read_to_string(&file).unwrap(), before);
        assert!(matches!(harvester.renew(&file, true).await.unwrap(), Renewed::Until { .. }));
        assert_ne!(fs::read_to_string(&file).unwrap(), before);
        harvester.renew(&file, true).await.unwrap();
        assert_eq!(fs::read_dir(harvester.folder.path()).unwrap().count(), 1);
    }

    #[tokio::test]
    async fn a_token_in_a_secret_of_the_guest_cluster_is_renewed_under_each_key_that_has_it() {
        let harvester = harvester().await;
        let text = fs::read_to_string(harvester.file().await).unwrap();
        let guest = ApiServer::builder().build().client(User::admin());
        let mut secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "hcp", "namespace": "kube-system"},
            "data": {"cloud-config": STANDARD.encode(&text), "cloud-provider-config": STANDARD.encode(&text), "other": "YQ=="}});
        object::create(&guest, &secret).await.unwrap();
        let renew = async |name: &str, at_once| {
            let place = Kept::Secret("kube-system".to_owned(), name.to_owned(), "cloud-config".to_owned());
            let now = program::Clock::system().now();
            let outcome = renew_secret(&guest, &place, at_once, &Options::named("test"), now).await;
            outcome.map_err(|error| error.to_string())
        };
        assert!(matches!(renew("hcp", false).await.unwrap(), Renewed::DueAt(_)));
        let Renewed::Until { also, .. } = renew("hcp", true).await.unwrap() else { panic!("it is renewed") };
        assert_eq!(also, ["cloud-provider-config"], "the charts of the Go programs read that one");
        let found = object::get(&guest, &secret).await.unwrap().unwrap();
        assert_eq!(found["data"]["cloud-config"], found["data"]["cloud-provider-config"]);
        assert_ne!(found["data"]["cloud-config"], secret["data"]["cloud-config"].take());
        assert_eq!(found["data"]["other"], "YQ==");
        assert!(renew("absent", true).await.unwrap_err().contains("is not there"));
        // who may write the Secret has no program run on the machine of the administrator
        for reference in [
            "exec: {command: 'true', apiVersion: client.authentication.k8s.io/v1}",
            "auth-provider: {name: gcp, config: {cmd-path: /bin/true}}",
            "tokenFile: /etc/shadow",
            "client-certificate: /etc/shadow",
        ] {
            let mut found = object::get(&guest, &secret).await.unwrap().unwrap();
            let bad = text.replace("    token: ", &format!("    {reference}\n    token: "));
            assert_ne!(bad, text);
            found["data"]["cloud-config"] = STANDARD.encode(bad).into();
            object::replace(&guest, &found).await.unwrap();
            let told = renew("hcp", true).await.unwrap_err();
            assert!(told.contains("is not taken from it"), "{told}");
        }
    }

    #[tokio::test]
    async fn who_deletes_the_anchor_ends_all_tokens_and_the_file_stays_as_it_is() {
        let harvester = harvester().await;
        let file = harvester.file().await;
        let before = fs::read_to_string(&file).unwrap();
        let admin = harvester.server.client(User::admin());
        let like = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "demo-credentials", "namespace": "vms"}});
        let anchor = object::get(&admin, &like).await.unwrap().unwrap();
        object::delete(&admin, &anchor).await.unwrap();
        let told = harvester.renew(&file, true).await.unwrap_err();
        assert!(told.contains("cloud-config generate --rotate demo vms"), "{told}");
        assert_eq!(fs::read_to_string(&file).unwrap(), before);
    }

    #[tokio::test]
    async fn a_link_stays_a_link_and_its_target_has_the_new_token_with_the_mode_that_it_had() {
        let harvester = harvester().await;
        let file = harvester.file().await;
        let before = fs::read_to_string(&file).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        let link = elsewhere.path().join("cloud-config");
        std::os::unix::fs::symlink(&file, &link).unwrap();
        harvester.renew(&link, true).await.unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_ne!(fs::read_to_string(&file).unwrap(), before);
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o644);
        assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 1);
    }

    /// YAML may fold a long text over lines: the token is there, but not as it is written.
    #[tokio::test]
    async fn a_file_in_which_the_token_cannot_be_replaced_stays_as_it_is_and_that_is_said() {
        let harvester = harvester().await;
        let file = harvester.file().await;
        let text = fs::read_to_string(&file).unwrap();
        let (head, token) = text.split_once("token: ").unwrap();
        let token = token.lines().next().unwrap().trim_matches('"');
        let (start, end) = token.split_at(20);
        let rest = text.rsplit_once(token).unwrap().1.trim_start_matches('"');
        let folded = format!("{head}token: \"{start}\\\n        {end}\"{rest}");
        fs::write(&file, &folded).unwrap();
        let told = harvester.renew(&file, true).await.unwrap_err();
        assert!(told.contains("write it on one line"), "{told}");
        assert_eq!(fs::read_to_string(&file).unwrap(), folded);
    }

    #[tokio::test]
    async fn a_secret_named_as_an_accounts_token_that_is_of_another_type_or_account_is_not_retired() {
        let harvester = harvester().await;
        let admin = harvester.server.client(User::admin());
        let now: Timestamp = "2026-01-10T12:00:00Z".parse().unwrap();
        let tracking = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"since": "2025-01-01"}, "metadata":
            {"name": "kube-apiserver-legacy-service-account-token-tracking", "namespace": "kube-system"}});
        object::create(&admin, &tracking).await.unwrap();
        let opaque = |name: &str| {
            json!({"apiVersion": "v1", "kind": "Secret", "type": "Opaque",
                   "metadata": {"name": name, "namespace": "vms"}, "data": {"password": "YQ=="}})
        };
        // whoever makes an Opaque one gives it the annotations that he likes
        let mut alike = plan::secret(&request(), "another");
        alike["type"] = "Opaque".into();
        alike["metadata"]["ownerReferences"] = Value::Null;
        for (account, secret) in
            [("demo", opaque("demo-token")), ("demo", alike), ("gitlab", opaque("gitlab-token"))]
        {
            let made = object::create(&admin, &secret).await.unwrap();
            let told = retire(&admin, "vms", account, now).await.unwrap_err().to_string();
            assert!(told.contains(&format!("is no token of service account {account}")), "{told}");
            object::delete(&admin, &made).await.unwrap();
        }
    }

    /// No role can say what a token has to be bound to.
    #[tokio::test]
    async fn a_token_asked_for_without_the_secret_outlives_it_and_ends_with_the_account_as_documented() {
        let harvester = harvester().await;
        let admin = harvester.server.client(User::admin());
        let mut question = token::request("demo", SignedDuration::from_hours(1));
        question["spec"].as_object_mut().unwrap().remove("boundObjectRef");
        let file = harvester.file().await;
        let text = fs::read_to_string(&file).unwrap();
        let config = |text: &str| CloudConfig::parse(text, "leaked", &Environment::default()).unwrap();
        let leaked = client(&config(&text), &Options::named("test")).unwrap();
        let answer = object::token(&leaked, "vms", "demo", &question).await.unwrap();
        let old = token::of_kubeconfig(&text, Some(&config(&text).context)).unwrap();
        let own = text.replace(&old, answer["status"]["token"].as_str().unwrap());
        let thief = client(&config(&own), &Options::named("test")).unwrap();
        let delete = async |kind: &str, name: &str| {
            let like =
                json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": "vms"}});
            let found = object::get(&admin, &like).await.unwrap().unwrap();
            object::delete(&admin, &found).await.unwrap();
        };
        delete("Secret", "demo-credentials").await;
        object::token(&thief, "vms", "demo", &question).await.unwrap();
        delete("ServiceAccount", "demo").await;
        object::token(&thief, "vms", "demo", &question).await.unwrap_err();
        let page = include_str!("../../../docs/credentials.md");
        assert!(
            page.contains("**After a leak\nthat is not enough:**") && page.contains("Delete the account")
        );
    }

    #[tokio::test]
    async fn a_lasting_token_is_retired_once_nothing_uses_it() {
        let harvester = harvester().await;
        let admin = harvester.server.client(User::admin());
        let now: Timestamp = "2026-01-10T12:00:00Z".parse().unwrap();
        let account = object::get(&admin, &plan::account(&request()).1).await.unwrap().unwrap();
        let mut secret = plan::secret(&request(), account["metadata"]["uid"].as_str().unwrap());
        for (day, retires) in [("2026-01-09", false), ("2026-01-08", true)] {
            secret["metadata"]["labels"][LAST_USED] = day.into();
            // the second time it is there
            if object::create(&admin, &secret).await.is_err() {
                let mut found = object::get(&admin, &secret).await.unwrap().unwrap();
                found["metadata"]["labels"][LAST_USED] = day.into();
                object::replace(&admin, &found).await.unwrap();
            }
            let outcome = retire(&admin, "vms", "demo", now).await.map_err(|error| error.to_string());
            assert_eq!(outcome.is_ok(), retires, "{outcome:?}");
        }
        let told = retire(&admin, "vms", "demo", now).await.unwrap_err().to_string();
        assert!(told.contains("nothing to retire"), "{told}");
    }
}
