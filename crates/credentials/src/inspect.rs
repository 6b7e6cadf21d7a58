//! What a cloud-config is good for: its endpoint, namespace, certificate authority and end, and each right with the feature
//! that it serves. Writes nothing.

use std::fmt::Write as _;

use cloud_config::{Connection, Options, expiry, expiry::Expiry};
use cloud_controller_manager::rights as of_provider;
use credential_rotation::InUse;
use csi_driver::host::rights::{GRANTS, Role};
use futures::{StreamExt as _, stream};
use jiff::{SignedDuration, Timestamp};
use kube::Client;
use program::capabilities::Right;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use crate::{
    error::{sentence, shown},
    object,
    request::Part,
};

/// Questions that are asked at once.
const AT_ONCE: usize = 8;

const REFUSED: &str = "the server refuses the credential (401): it has ended or was revoked";

/// What was found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Report {
    pub(crate) file: String,
    pub(crate) context: String,
    pub(crate) server: String,
    pub(crate) namespace: String,
    /// The server's version, or why it cannot be used.
    #[serde(serialize_with = "version_or_error")]
    pub(crate) answer: Result<String, String>,
    /// Who the server says that this is, if it does.
    pub(crate) user: Option<String>,
    /// When the credential ends, in words, and which one it is where the parts may have renewed it.
    pub(crate) credential: String,
    /// Whether the credential is over, or will be within a week and is not renewed before.
    pub(crate) ends_soon: bool,
    /// When each certificate of the authority ends, in words.
    pub(crate) authority: Vec<String>,
    pub(crate) rights: Vec<Asked>,
}

/// A right, and what the server says of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Asked {
    pub(crate) right: String,
    /// None: the server does not say.
    pub(crate) granted: Option<bool>,
    /// What is off without it.
    pub(crate) without: String,
    /// The role that grants it.
    pub(crate) role: String,
}

/// As `{"version": …}` or `{"error": …}`.
fn version_or_error<S: Serializer>(answer: &Result<String, String>, to: S) -> Result<S::Ok, S::Error> {
    let (name, text) = match answer {
        Ok(version) => ("version", version),
        Err(why) => ("error", why),
    };
    to.collect_map([(name, text)])
}

impl Report {
    /// Whether the server answers, and says of all that was asked for that it is granted.
    pub(crate) fn is_good(&self) -> bool {
        self.answer.is_ok() && self.rights.iter().all(|asked| asked.granted == Some(true))
    }
}

/// The rights that a part asks for, what is off without each, and the role that grants it.
fn rights(part: Part, namespace: &str) -> Vec<(Right, &'static str, &'static str)> {
    match part {
        Part::CloudProvider => {
            let of_host = of_provider::GRANTS.iter();
            of_host.map(|grant| (grant.right(namespace), grant.off, of_provider::ROLE)).collect()
        }
        Part::CsiDriver => {
            let of_host = GRANTS.iter().filter(|grant| grant.role != Role::Guest);
            of_host.map(|grant| (grant.right(namespace), grant.off, grant.role.name())).collect()
        }
    }
}

/// Looks at a cloud-config.
pub(crate) async fn inspect(used: &InUse, part: Part, options: &Options, now: Timestamp) -> Report {
    let InUse { config, note, renewal } = used;
    let end = expiry::of(config, options).await;
    let left = end.remaining(now);
    let is_renewed = renewal.as_ref().zip(left).is_some_and(|(renewal, left)| renewal.is_in_time(left));
    let note = note.as_ref().map(|note| format!("; {note}")).unwrap_or_default();
    let mut report = Report {
        file: config.file.clone(),
        context: config.context.clone(),
        server: config.server(),
        namespace: config.namespace.clone(),
        answer: Err(String::new()),
        user: None,
        credential: life(end, now) + &note,
        ends_soon: !is_renewed && left.is_some_and(|left| left < expiry::WARN_BEFORE),
        authority: expiry::of_authorities(config)
            .into_iter()
            .map(|end| life_of_authority(end, now))
            .collect(),
        rights: vec![],
    };
    let client = match Connection::open(config, options) {
        Ok(connection) => connection.client(),
        Err(error) => return Report { answer: Err(error.to_string()), ..report },
    };
    report.answer = match client.apiserver_version().await {
        Ok(version) => Ok(version.git_version),
        Err(kube::Error::Api(status)) if status.code == 401 => Err(REFUSED.to_owned()),
        Err(error) => Err(sentence(&error)),
    };
    if report.answer.is_err() {
        return report;
    }
    // servers before 1.28 do not know this question
    let question =
        json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview", "metadata": {}});
    report.user = match object::create(&client, &question).await {
        Ok(answer) => answer["status"]["userInfo"]["username"].as_str().map(str::to_owned),
        Err(kube::Error::Api(status)) if status.code == 401 => {
            return Report { answer: Err(REFUSED.to_owned()), ..report };
        }
        Err(_) => None,
    };
    let asked = rights(part, &config.namespace).into_iter().map(async |(right, off, role)| Asked {
        granted: ask(&client, &right).await,
        right: right.to_string(),
        without: off.to_owned(),
        role: role.to_owned(),
    });
    report.rights = stream::iter(asked).buffered(AT_ONCE).collect().await;
    report
}

async fn ask(client: &Client, right: &Right) -> Option<bool> {
    let Right { verb, group, resource, subresource, namespace, name } = right;
    let question = json!({
        "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "metadata": {},
        "spec": {"resourceAttributes": {"verb": verb, "group": group, "resource": resource,
            "subresource": subresource, "namespace": namespace, "name": name}},
    });
    let answer: Value = object::create(client, &question).await.ok()?;
    answer["status"]["allowed"].as_bool()
}

/// When something ends, in words.
fn life(end: Expiry, now: Timestamp) -> String {
    match end {
        Expiry::Never => "does not end".to_owned(),
        Expiry::Unknown => "does not say when it ends".to_owned(),
        Expiry::At(end) => {
            let left = end.duration_since(now);
            let days = left.as_hours() / 24;
            if left <= SignedDuration::ZERO {
                format!("ended at {end}")
            } else if days > 0 {
                format!("ends at {end}, in {days} days")
            } else if left.as_hours() > 0 {
                format!("ends at {end}, in {} hours", left.as_hours())
            } else {
                format!("ends at {end}, in {} minutes", left.as_mins())
            }
        }
    }
}

/// The same of a certificate of the authority. rustls, by which these programs connect, does not look at its end; Go does.
fn life_of_authority(end: Expiry, now: Timestamp) -> String {
    let words = life(end, now);
    match end.remaining(now) {
        Some(left) if left <= SignedDuration::ZERO => {
            format!("{words}: what it signed IS REFUSED by kubectl and all other programs in Go")
        }
        _ => words,
    }
}

/// The report for people.
pub(crate) fn render(report: &Report) -> String {
    let Report { file, context, server, namespace, answer, user, credential, authority, rights, .. } = report;
    let mut text = String::new();
    let mut line = |name: &str, rest: &str| {
        writeln!(text, "{name:14}{}", shown(rest)).expect("a text can be written to");
    };
    line("cloud-config", &format!("{file}, context {context}"));
    line("namespace", namespace);
    match answer {
        Ok(version) => line("endpoint", &format!("{server} answers: Kubernetes {version}")),
        Err(why) => line("endpoint", &format!("{server} CANNOT BE USED: {why}")),
    }
    match &authority[..] {
        [] => line(
            "authority",
            "none in it: the certificate of the endpoint has to be of one that this system trusts",
        ),
        ends => ends.iter().for_each(|end| line("authority", end)),
    }
    line(
        "credential",
        &user.as_ref().map_or_else(|| credential.clone(), |user| format!("{user}, {credential}")),
    );
    for Asked { right, granted, without, role } in rights {
        match granted {
            Some(true) => line("right", right),
            Some(false) => {
                line("right", &format!("{right} IS MISSING: {without}; ClusterRole {role} grants it"));
            }
            None => line("right", &format!("{right}: the server does not say")),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use cloud_config::{CloudConfig, proxy::Environment};
    use credential_rotation::{Renewal, SecretName, token::Claims};
    use rstest::rstest;
    use sim_apiserver::{ApiServer, User};
    use tokio::net::TcpListener;

    use super::*;

    #[rstest]
    #[case::past(-60, "ended at 2026-01-01T00:00:00Z")]
    #[case::hours(7200, "ends at 2026-01-01T02:01:00Z, in 2 hours")]
    #[case::minutes(120, "ends at 2026-01-01T00:03:00Z, in 2 minutes")]
    #[case::days(864_000, "ends at 2026-01-11T00:01:00Z, in 10 days")]
    fn an_end_is_said_in_words(#[case] seconds: i64, #[case] expected: &str) {
        let now: Timestamp = "2026-01-01T00:01:00Z".parse().unwrap();
        assert_eq!(life(Expiry::At(now + SignedDuration::from_secs(seconds)), now), expected);
    }

    #[rstest]
    #[case::past(-60, true)]
    #[case::soon(60, false)]
    fn of_an_authority_that_has_ended_it_is_said_who_refuses_it(
        #[case] seconds: i64,
        #[case] is_refused: bool,
    ) {
        let now: Timestamp = "2026-01-01T00:01:00Z".parse().unwrap();
        let text = life_of_authority(Expiry::At(now + SignedDuration::from_secs(seconds)), now);
        assert_eq!(text.contains("IS REFUSED by kubectl"), is_refused, "{text}");
    }

    /// A server that knows one account, and a cloud-config of it with this token.
    async fn served(token: &str) -> (ApiServer, CloudConfig) {
        let user = User::service_account("vms", "demo");
        let server = ApiServer::builder().token("known", user.clone()).namespace("vms").build();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let text = server
            .kubeconfig(user, listener.local_addr().unwrap())
            .replace("token: known", &format!("token: {token}"));
        let text = text.replace("namespace: default", "namespace: vms");
        let serving = server.clone();
        tokio::spawn(async move { serving.serve(listener).await });
        (server, CloudConfig::parse(&text, "cloud-config", &Environment::default()).unwrap())
    }

    async fn report(config: &CloudConfig, part: Part) -> Report {
        report_of(&InUse { config: config.clone(), note: None, renewal: None }, part).await
    }

    async fn report_of(used: &InUse, part: Part) -> Report {
        // another test may have been quicker
        drop(rustls::crypto::ring::default_provider().install_default());
        inspect(used, part, &Options::named("test"), Timestamp::UNIX_EPOCH).await
    }

    #[tokio::test]
    async fn which_token_is_looked_at_is_said_and_one_that_is_renewed_does_not_end_soon() {
        // {"exp":86400}
        let (_server, config) = served("e30.eyJleHAiOjg2NDAwfQ.c2ln").await;
        let claims = Claims {
            namespace: "vms".to_owned(),
            account: "demo".to_owned(),
            issued: Timestamp::UNIX_EPOCH,
            ends: Some(Timestamp::UNIX_EPOCH + SignedDuration::from_hours(24)),
            bound_to: Some("demo-credentials".to_owned()),
        };
        let secret = SecretName::read("kube-system/rotated").unwrap();
        let note = Some("Secret kube-system/rotated has a newer token".to_owned());
        let mut used = InUse { config, note, renewal: Some(Renewal { claims, secret }) };
        let report = report_of(&used, Part::CloudProvider).await;
        assert_eq!(
            report.credential,
            "ends at 1970-01-02T00:00:00Z, in 1 days; Secret kube-system/rotated has a newer token"
        );
        assert!(!report.ends_soon);
        used.renewal = None;
        assert!(report_of(&used, Part::CloudProvider).await.ends_soon);
    }

    #[tokio::test]
    async fn each_right_that_is_missing_is_named_with_what_is_off_and_the_role() {
        let (server, config) = served("known").await;
        let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
            "metadata": {"name": "a", "namespace": "vms"},
            "rules": [{"apiGroups": [of_provider::LOAD_BALANCERS], "resources": ["loadbalancers"],
                       "verbs": ["get", "list", "watch", "create", "update"]}]});
        let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
            "metadata": {"name": "a", "namespace": "vms"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "a"},
            "subjects": [{"kind": "ServiceAccount", "namespace": "vms", "name": "demo"}]});
        for object in [role, binding] {
            object::create(&server.client("admin"), &object).await.unwrap();
        }
        let report = report(&config, Part::CloudProvider).await;
        assert!(!report.is_good());
        let text = render(&report);
        for line in [
            "namespace     vms\n",
            "answers: Kubernetes v1.33",
            "credential    system:serviceaccount:vms:demo, does not say when it ends\n",
            "right         create loadbalancers.loadbalancer.harvesterhci.io in namespace vms\n",
            "right         delete loadbalancers.loadbalancer.harvesterhci.io in namespace vms IS MISSING: addresses of deleted \
             Services stay taken; ClusterRole harvesterhci.io:cloudprovider grants it\n",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
        assert!(!text.contains("known"), "{text}");
    }

    #[tokio::test]
    async fn a_cloud_config_of_somebody_else_cannot_steer_the_terminal_of_who_looks_at_it() {
        let (_server, config) = served("known").await;
        let mut report = report(&config, Part::CloudProvider).await;
        report.namespace = "vms\u{1b}[2J\nright  all".to_owned();
        report.user = Some("demo\u{202e}\r".to_owned());
        let text = render(&report);
        assert!(text.contains("namespace     vms\u{fffd}[2J right  all\n"), "{text}");
        assert!(text.contains("credential    demo\u{fffd} , "), "{text}");
    }

    #[tokio::test]
    async fn the_rights_of_the_csi_driver_are_those_that_it_asks_for() {
        let (_server, config) = served("known").await;
        let report = report(&config, Part::CsiDriver).await;
        let of_host = GRANTS.iter().filter(|grant| grant.role != Role::Guest).count();
        assert_eq!(report.rights.iter().filter(|asked| asked.granted == Some(false)).count(), of_host);
    }

    #[tokio::test]
    async fn a_credential_that_is_refused_is_told_and_no_right_is_asked_for() {
        let (_server, config) = served("unknown").await;
        let report = report(&config, Part::CloudProvider).await;
        let why = report.answer.clone().unwrap_err();
        assert_eq!(serde_json::to_value(&report).unwrap()["answer"], json!({"error": why}));
        assert!(why.starts_with("the server refuses the credential (401)"), "{why}");
        assert!(report.rights.is_empty() && !report.is_good(), "{report:?}");
    }
}
