//! Carries out the plan at the API server of Harvester, and says each step on the way.

use std::{
    fmt::Display,
    fs,
    io::{self, Write},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::Path,
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use cloud_config::{CloudConfig, Connection, Options, proxy::Environment};
use jiff::SignedDuration;
use kube::Client;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::{
    error::{Error, fault, sentence, shown},
    object,
    output::{self, Content},
    plan::{self, Step, Verdict},
    request::{Format, Part, Request},
};

/// Pause before Harvester is asked once more: for a token that is not in its Secret yet, and for rights and a token that are
/// not known everywhere yet.
const ASK_AGAIN: Duration = Duration::from_secs(1);
const TRIES_FOR_TOKEN: u32 = 30;
const TRIES_FOR_CHECK: u32 = 5;

/// The name in messages where no script gives its own.
pub(crate) const OWN_NAME: &str = "cloud-config";

/// The administrator's way to Harvester, by a kubeconfig.
pub(crate) struct Administrator {
    pub(crate) client: Client,
    pub(crate) context: String,
    pub(crate) cluster: String,
    pub(crate) server: String,
    pub(crate) server_name: String,
    /// Base64 of the certificates in PEM.
    pub(crate) ca: String,
}

impl Administrator {
    /// By the current context of a kubeconfig.
    pub(crate) fn of(kubeconfig: &kube::config::Kubeconfig, options: &Options) -> Result<Self, Error> {
        let environment = Environment::of_process();
        let config = CloudConfig::of_person(kubeconfig.clone(), "of the administrator", &environment);
        let config = config.map_err(|error| fault(error.to_string()))?;
        let client = Connection::open(&config, options).map_err(|error| fault(error.to_string()))?.client();
        let named = kubeconfig.contexts.iter().find(|named| named.name == config.context);
        let cluster =
            named.and_then(|named| named.context.as_ref()).map(|it| it.cluster.clone()).unwrap_or_default();
        let found = kubeconfig.clusters.iter().find(|named| named.name == cluster);
        let settings = found.and_then(|named| named.cluster.clone()).unwrap_or_default();
        let ca = match (settings.certificate_authority_data, settings.certificate_authority) {
            (Some(data), _) if !data.is_empty() => data,
            (_, Some(file)) if !file.is_empty() => STANDARD.encode(fs::read(file)?),
            _ => String::new(),
        };
        Ok(Self {
            client,
            context: config.context,
            cluster,
            server: settings.server.unwrap_or_default(),
            server_name: settings.tls_server_name.unwrap_or_default(),
            ca,
        })
    }
}

/// What a person types for RKE2 and K3s. A script, which has three words, says so of itself.
fn for_rke2(program: &str, account: &str, namespace: &str) -> String {
    match program {
        OWN_NAME => format!(
            "harvester-cloud-provider cloud-config generate --for csi --format cloud-init {account} {namespace}"
        ),
        script => format!("{script} <service_account_name> <namespace> rke2|k3s"),
    }
}

/// One run.
pub(crate) struct Run<'a> {
    pub(crate) request: &'a Request,
    pub(crate) administrator: Administrator,
    pub(crate) options: &'a Options,
    /// Name for messages.
    pub(crate) program: &'a str,
    /// Where the steps are said.
    pub(crate) progress: &'a mut (dyn Write + Send + Sync),
    /// Where it is said what a person had better know.
    pub(crate) notes: &'a mut (dyn Write + Send + Sync),
    /// Name of user and context in the kubeconfig; else of account, namespace and cluster.
    pub(crate) user: Option<&'a str>,
}

impl Run<'_> {
    fn say(&mut self, text: impl Display) -> Result<(), Error> {
        let lines: Vec<_> = text.to_string().split('\n').map(shown).collect();
        self.progress.write_all(lines.join("\n").as_bytes())?;
        Ok(self.progress.flush()?)
    }

    fn note(&mut self, text: impl Display) {
        // a closed terminal is no reason to fail
        writeln!(self.notes, "{}: note: {}", self.program, shown(&text.to_string())).ok();
    }

    /// Makes what is needed; returns the result in the form that was asked for.
    pub(crate) async fn generate(mut self) -> Result<String, Error> {
        let request = self.request;
        self.is_harvester().await?;
        let (server, server_name) = self.server().await?;
        if request.part == Part::CsiDriver {
            self.say(format!(
                "\nNOTE: for RKE2 or K3s, use: {}\n\n",
                for_rke2(self.program, &request.account, &request.namespace)
            ))?;
        }
        let (title, account) = plan::account(request);
        let account = self.ensure(&title, &account).await?;
        let uid = account["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
        for step in plan::rights(request, &uid) {
            self.take(step).await?;
        }
        let (ca, token) = match request.rotate {
            None => self.lasting_token(&uid).await?,
            Some(life) => self.bound_token(&uid, life).await?,
        };
        let Administrator { context, cluster, ca: of_context, .. } = &self.administrator;
        let head =
            format!("Setting current context to: {context}\nCluster name: {cluster}\nEndpoint: {server}\n");
        let authorities = [ca.clone(), of_context.clone(), String::new()];
        let content = self.content(ca, server, server_name);
        self.say(head)?;
        let content = if request.check { self.checked(content, authorities, &token).await? } else { content };
        let kubeconfig = content.kubeconfig(&token);
        self.say(output::prepared(&content, &request.account))?;
        if request.keep {
            self.say("Creating target directory to hold files in ./tmp/kube...")?;
            keep(request, &kubeconfig)?;
            self.say("done\n")?;
        }
        Ok(output::result(request.part, request.format, &kubeconfig))
    }

    /// The kubeconfig of an account that has its token already. Makes nothing.
    pub(crate) async fn existing(mut self) -> Result<String, Error> {
        let (server, server_name) = self.server().await?;
        let Request { account, namespace, .. } = self.request;
        let client = &self.administrator.client;
        let owner = object::get(client, &plan::account(self.request).1).await?;
        let uid = owner.as_ref().and_then(|owner| owner["metadata"]["uid"].as_str()).unwrap_or_default();
        let found = object::get(client, &plan::secret(self.request, uid)).await?;
        let found = found.filter(|secret| plan::is_token_of(secret, uid) && filled(secret) == Filled::Yes);
        let secret = found.ok_or_else(|| {
            let name = plan::secret_name(account);
            Error::not_found(format!(
                "there is no account {account} with a token in Secret {name} of namespace {namespace}: POST makes it"
            ))
        })?;
        let (ca, token) = token_in(&secret)?;
        let authorities = [ca.clone(), self.administrator.ca.clone(), String::new()];
        let content = self.content(ca, server, server_name);
        let content =
            if self.request.check { self.checked(content, authorities, &token).await? } else { content };
        Ok(content.kubeconfig(&token))
    }

    fn content(&self, ca: String, server: String, server_name: String) -> Content {
        let (Request { account, namespace, .. }, cluster) = (self.request, &self.administrator.cluster);
        let user = self.user.map_or_else(|| format!("{account}-{namespace}-{cluster}"), str::to_owned);
        Content { ca, server, server_name, cluster: cluster.clone(), user, namespace: namespace.clone() }
    }

    /// Refuses a cluster that lacks Harvester's roles.
    async fn is_harvester(&self) -> Result<(), Error> {
        let Administrator { client, context, server, .. } = &self.administrator;
        for role in plan::roles(self.request.part) {
            let like = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
                "metadata": {"name": role}});
            let found = object::get(client, &like).await.map_err(|error| {
                let why = sentence(&error);
                Error::of(
                    &error,
                    format!("the cluster of context {context} cannot be read at {server}: {why}"),
                )
            })?;
            if found.is_none() {
                return Err(fault(format!(
                    "the cluster of context {context} has no ClusterRole {role}: is it Harvester, and not the guest cluster?"
                )));
            }
        }
        Ok(())
    }

    /// The address for the guest cluster, and the name that the server's certificate has.
    async fn server(&mut self) -> Result<(String, String), Error> {
        let Administrator { server, server_name, .. } = &self.administrator;
        let (server, server_name) = (server.clone(), server_name.clone());
        if let Some(given) = &self.request.server {
            return Ok((given.clone(), server_name));
        }
        if self.request.part == Part::CsiDriver {
            let vip = self.virtual_ip().await?.ok_or_else(|| {
                fault(
                    "ConfigMap harvester-system/vip names no address of Harvester: give it by --server https://ADDRESS:6443",
                )
            })?;
            return Ok((vip, String::new()));
        }
        if is_own(&server) {
            let vip = self.virtual_ip().await.ok().flatten();
            let vip = vip.as_deref().unwrap_or("https://ADDRESS:6443");
            self.note(format!(
                "the guest cluster does not reach {server}, which is this machine itself: run this again with --server {vip}"
            ));
        }
        Ok((server, server_name))
    }

    async fn virtual_ip(&self) -> Result<Option<String>, Error> {
        let like = json!({"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "vip", "namespace": "harvester-system"}});
        let map = object::get(&self.administrator.client, &like).await?;
        let is_of_address = |byte: u8| byte.is_ascii_hexdigit() || b":.".contains(&byte);
        let ip = map.as_ref().and_then(|map| map["data"]["ip"].as_str());
        let ip = ip.filter(|ip| !ip.is_empty() && ip.bytes().all(is_of_address));
        Ok(ip.map(|ip| {
            if ip.contains(':') { format!("https://[{ip}]:6443") } else { format!("https://{ip}:6443") }
        }))
    }

    /// Makes the object unless it is there; returns it.
    async fn ensure(&mut self, title: &str, wanted: &Value) -> Result<Value, Error> {
        self.say(format!("{title}\n"))?;
        let client = self.administrator.client.clone();
        let found = object::get(&client, wanted).await?;
        let name = object::title(wanted);
        let (object, done) = match plan::decide(found.as_ref(), wanted) {
            Verdict::Create => (object::create(&client, wanted).await?, "created"),
            Verdict::Replace(object) => {
                let others = plan::others(&object, wanted);
                if !others.is_empty() {
                    self.note(format!(
                        "{name} is for {} too: take this account back by its subject alone",
                        others.join(", ")
                    ));
                }
                (object::replace(&client, &object).await?, "replaced")
            }
            Verdict::Unchanged => (found.unwrap_or_default(), "unchanged"),
            Verdict::Refuse(why) => return Err(refused(wanted, &why)),
        };
        self.say(format!("{name} {done}\n"))?;
        Ok(object)
    }

    async fn take(&mut self, step: Step) -> Result<(), Error> {
        let client = self.administrator.client.clone();
        match step {
            Step::Ensure { title, object } => drop(self.ensure(&title, &object).await?),
            Step::EnsureIn { namespace, title, object } => {
                let like = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
                if object::get(&client, &like).await?.is_some() {
                    self.ensure(&title, &object).await?;
                }
            }
            Step::TellOfWide { name, role } => {
                let like = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
                    "metadata": {"name": name}});
                let found = object::get(&client, &like).await?;
                if found.is_some_and(|binding| plan::is_wide(&binding, role, self.request)) {
                    self.note(format!(
                        "ClusterRoleBinding {name} still grants {role} in all namespaces; when nothing needs that: kubectl \
                         delete clusterrolebinding {name}"
                    ));
                }
            }
        }
        Ok(())
    }

    /// A token that ends, and the certificate authority: both in the form that the kubeconfig has.
    async fn bound_token(&mut self, uid: &str, life: SignedDuration) -> Result<(String, String), Error> {
        let request = self.request;
        let Request { account, namespace, .. } = request;
        for step in plan::rotation(request, uid) {
            self.take(step).await?;
        }
        self.say(format!("\nAsking for a token of service account {account}..."))?;
        let client = &self.administrator.client;
        let answer =
            object::token(client, namespace, account, &credential_rotation::token::request(account, life))
                .await?;
        // every namespace of Kubernetes 1.20 and later has it
        let like = json!({"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "kube-root-ca.crt", "namespace": namespace}});
        let root = object::get(client, &like).await?;
        let ca = root.as_ref().and_then(|map| map["data"]["ca.crt"].as_str()).map(|pem| STANDARD.encode(pem));
        let ca = ca.unwrap_or_else(|| self.administrator.ca.clone());
        let text = |field: &str| answer["status"][field].as_str().unwrap_or_default().to_owned();
        self.say(format!("done\nIt ends at {}\n", text("expirationTimestamp")))?;
        Ok((ca, text("token")))
    }

    /// The token that does not end, and the certificate authority: both in the form that the kubeconfig has.
    async fn lasting_token(&mut self, uid: &str) -> Result<(String, String), Error> {
        token_in(&self.secret(uid).await?)
    }

    /// The Secret with the token in it.
    async fn secret(&mut self, uid: &str) -> Result<Value, Error> {
        let Request { account, namespace, .. } = self.request;
        let (name, wanted) = (plan::secret_name(account), plan::secret(self.request, uid));
        let head = format!(
            "\nGetting uid of service account {account} on {namespace}\nService Account uid: {uid}\n"
        );
        self.say(head)?;
        self.ensure(&format!("\nCreating a user token secret in {namespace} namespace: {name}"), &wanted)
            .await?;
        self.say(format!("Secret name: {name}\n\nExtracting ca.crt from secret..."))?;
        for attempt in 1.. {
            let found = object::get(&self.administrator.client, &wanted).await?.unwrap_or_default();
            match filled(&found) {
                Filled::Yes => {
                    self.say("done\nGetting user token from secret...done\n")?;
                    return Ok(found);
                }
                Filled::Never => {
                    self.say("failed\n")?;
                    return Err(refused(&wanted, "is immutable, so that Harvester puts no token into it"));
                }
                Filled::NotYet => {}
            }
            if attempt == TRIES_FOR_TOKEN {
                break;
            }
            sleep(ASK_AGAIN).await;
        }
        self.say("failed\n")?;
        Err(fault(format!(
            "Harvester has put no token into Secret {name} of namespace {namespace} for 30 s: run this again, and look at \
             kube-controller-manager of Harvester"
        )))
    }

    /// Asks the server, with what will be printed, whether the account may do its work; with the first certificate
    /// authority that the server's certificate is of.
    async fn checked(
        &mut self,
        mut content: Content,
        authorities: [String; 3],
        token: &str,
    ) -> Result<Content, Error> {
        self.say("\nChecking address, certificate and token...")?;
        let mut outcome = Err(String::new());
        for ca in authorities {
            content.ca = ca;
            outcome = self.try_out(&content, token).await;
            if !matches!(&outcome, Err(why) if is_of_certificate(why)) {
                break;
            }
        }
        match outcome {
            Ok(allowed) => {
                self.say("done\n")?;
                if !allowed {
                    let (account, namespace) = (&self.request.account, &self.request.namespace);
                    let (_, resource) = self.work();
                    self.note(format!(
                        "the account {account} may not create \"{resource}\" in namespace {namespace}: ClusterRole {} of this \
                         Harvester does not grant it",
                        plan::CLOUD_PROVIDER
                    ));
                }
                Ok(content)
            }
            Err(why) => {
                self.say("failed\n")?;
                Err(fault(format!(
                    "Harvester cannot be used at {} with this account: {why} (another address: --server URL; without this \
                     check: --no-check)",
                    content.server
                )))
            }
        }
    }

    /// Group and resource that the account makes.
    fn work(&self) -> (&'static str, &'static str) {
        match self.request.part {
            Part::CloudProvider => ("loadbalancer.harvesterhci.io", "loadbalancers"),
            Part::CsiDriver => ("", "persistentvolumeclaims"),
        }
    }

    async fn try_out(&self, content: &Content, token: &str) -> Result<bool, String> {
        let config =
            CloudConfig::parse(&content.kubeconfig(token), "that was made", &Environment::of_process());
        let config = config.map_err(|error| error.to_string())?;
        let client = Connection::open(&config, self.options).map_err(|error| error.to_string())?.client();
        let (group, resource) = self.work();
        let question = json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "metadata": {},
            "spec": {"resourceAttributes": {
                "namespace": content.namespace, "verb": "create", "group": group, "resource": resource}},
        });
        let mut attempt = 1;
        loop {
            let answer = object::create(&client, &question).await;
            let outcome = answer.map(|answer| answer["status"]["allowed"] == true);
            // rights and tokens take a moment to be known everywhere; nothing else changes by waiting
            let is_final = match &outcome {
                Ok(allowed) => *allowed,
                Err(kube::Error::Api(status)) => !matches!(status.code, 401 | 403),
                Err(_) => true,
            };
            let outcome = outcome.map_err(|error| sentence(&error));
            if is_final || attempt == TRIES_FOR_CHECK {
                return outcome;
            }
            attempt += 1;
            sleep(ASK_AGAIN).await;
        }
    }
}

/// Whether Harvester has put a token into a Secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Filled {
    Yes,
    NotYet,
    /// Nobody may change it, Harvester included.
    Never,
}

fn filled(secret: &Value) -> Filled {
    let has = |key: &str| secret["data"][key].as_str().is_some_and(|value| !value.is_empty());
    match (has("ca.crt") && has("token"), &secret["immutable"]) {
        (true, _) => Filled::Yes,
        (false, Value::Bool(true)) => Filled::Never,
        (false, _) => Filled::NotYet,
    }
}

/// Certificate authority and token of a Secret, in the form that the kubeconfig has.
fn token_in(secret: &Value) -> Result<(String, String), Error> {
    let token = STANDARD.decode(secret["data"]["token"].as_str().unwrap_or_default());
    let token = token.ok().and_then(|token| String::from_utf8(token).ok());
    let token = token.ok_or_else(|| fault("the token in the Secret is no text"))?;
    Ok((secret["data"]["ca.crt"].as_str().unwrap_or_default().to_owned(), token))
}

fn refused(wanted: &Value, why: &str) -> Error {
    let kind = wanted["kind"].as_str().unwrap_or_default();
    let name = wanted["metadata"]["name"].as_str().unwrap_or_default();
    let place = wanted["metadata"]["namespace"].as_str().map(|place| format!(" --namespace {place}"));
    Error::conflict(format!(
        "{kind} {name} is there and {}: if nothing needs it, delete it, then run this again: kubectl delete {} {name}{}",
        shown(why),
        kind.to_lowercase(),
        place.unwrap_or_default()
    ))
}

fn is_of_certificate(why: &str) -> bool {
    ["x509", "certificate", "tls"].iter().any(|word| why.to_lowercase().contains(word))
}

/// Whether only this machine reaches the address.
fn is_own(server: &str) -> bool {
    ["//127.", "//localhost", "//0.0.0.0", "//[::1]"].iter().any(|own| server.contains(own))
}

fn keep(request: &Request, kubeconfig: &str) -> Result<(), Error> {
    let folder = Path::new("tmp/kube");
    fs::create_dir_all(folder)?;
    let file = folder.join(format!("k8s-{}-{}-conf", request.account, request.namespace));
    // a file that is there keeps its mode, and a link that somebody puts there meanwhile would be followed
    match fs::remove_file(&file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    let mut kept = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&file)?;
    let own = kept.metadata()?.uid();
    for folder in [Path::new("tmp"), folder] {
        if fs::symlink_metadata(folder)?.uid() != own {
            fs::remove_file(&file)?;
            return Err(fault("./tmp/kube belongs to another user, who could take what is put there"));
        }
    }
    Ok(kept.write_all(kubeconfig.as_bytes())?)
}

/// Whether the steps are said on standard output; with the bare kubeconfig nothing else is.
pub(crate) fn is_said_on_stdout(format: Format) -> bool {
    format != Format::Kubeconfig
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::fresh(json!({"data": null}), Filled::NotYet)]
    #[case::half(json!({"data": {"ca.crt": "YQ==", "token": ""}}), Filled::NotYet)]
    #[case::filled(json!({"data": {"ca.crt": "YQ==", "token": "YQ=="}}), Filled::Yes)]
    #[case::filled_and_kept(json!({"immutable": true, "data": {"ca.crt": "YQ==", "token": "YQ=="}}), Filled::Yes)]
    #[case::nobody_can_fill_it(json!({"immutable": true, "data": {"token": ""}}), Filled::Never)]
    #[case::gone(Value::Null, Filled::NotYet)]
    fn a_secret_that_nobody_may_change_is_not_waited_for(#[case] secret: Value, #[case] expected: Filled) {
        assert_eq!(filled(&secret), expected);
    }

    #[rstest]
    #[case::binary(
        OWN_NAME,
        "harvester-cloud-provider cloud-config generate --for csi --format cloud-init demo vms"
    )]
    #[case::script(
        "generate_addon_csi.sh",
        "generate_addon_csi.sh <service_account_name> <namespace> rke2|k3s"
    )]
    fn the_note_about_rke2_can_be_typed_where_no_script_is_called(
        #[case] program: &str,
        #[case] expected: &str,
    ) {
        assert_eq!(for_rke2(program, "demo", "vms"), expected);
    }
}
