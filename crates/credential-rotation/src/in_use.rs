//! The cloud-config by which the parts work, for people's tools: the one that somebody gave, or the copy of it with a newer token
//! that a leader keeps in a Secret of the guest cluster.
//!
//! A copy counts as it does for the parts: it is the given text with another token of the same account, and Harvester takes that
//! token.

use std::collections::BTreeSet;

use cloud_config::{CloudConfig, places};
use controller_kit::error_message;
use jiff::SignedDuration;
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Secret, rbac::v1::ClusterRoleBinding};
use kube::{Api, Client, api::ListParams};

use crate::{Connect, SecretName, life::is_renewed_in_time, rotator::is_refused, token::Claims};

/// Where releases usually are, and where a release that is gone leaves its copy.
const NAMESPACE: &str = "kube-system";
const SECRETS: [&str; 2] = ["harvester-cloud-provider-rotated", "harvester-csi-driver-rotated"];
/// By this a leader is told where to keep its copy.
const ARGUMENT: &str = "--rotated-credential-secret=";

/// A cloud-config with the token that the parts use.
#[derive(Clone, Debug)]
pub struct InUse {
    pub config: CloudConfig,
    /// Which token that is, and why. `None` for a token that no part renews.
    pub note: Option<String>,
    /// `None`: no part is known to renew it.
    pub renewal: Option<Renewal>,
}

/// How a token is renewed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Renewal {
    /// Of the token in use.
    pub claims: Claims,
    /// The Secret in which its leader puts the next one.
    pub secret: SecretName,
}

impl Renewal {
    /// Whether the end need not be told while so much is left: the token is renewed before, and that is not late.
    pub fn is_in_time(&self, remaining: SignedDuration) -> bool {
        is_renewed_in_time(Some(&self.claims), remaining)
    }
}

/// What a Secret of the leaders holds, towards the given cloud-config.
#[derive(Debug, PartialEq)]
enum Held {
    /// A newer token.
    Copy(String),
    /// A newer token, which Harvester refuses.
    Refused,
    /// The very text that was given.
    Given,
    /// The copy of another cloud-config.
    Other,
    /// Nothing yet.
    Empty,
    /// There is no such Secret.
    Absent,
    /// Why nobody knows.
    Unread(String),
}

/// The token to use, why, and the Secret in which it is renewed.
#[derive(Debug, PartialEq)]
struct Choice<'a> {
    token: Option<&'a str>,
    note: String,
    renewed_in: Option<&'a SecretName>,
}

/// Chooses the copy that ends last: a release that is gone leaves its Secret behind.
fn choose(held: &[(SecretName, Held)]) -> Choice<'_> {
    let copies = held.iter().filter_map(|(secret, held)| match held {
        Held::Copy(token) => Some((Claims::of(token).and_then(|claims| claims.ends), secret, token)),
        _ => None,
    });
    if let Some((_, secret, token)) = copies.max_by_key(|(ends, ..)| *ends) {
        let note = format!("Secret {secret} has a newer token, which is used here as by the parts");
        return Choice { token: Some(token), note, renewed_in: Some(secret) };
    }
    let first = |is: fn(&Held) -> bool| held.iter().find(|(_, held)| is(held)).map(|(secret, _)| secret);
    let given = |note: String, renewed_in| Choice { token: None, note, renewed_in };
    if let Some(secret) = first(|held| matches!(held, Held::Given)) {
        return given(format!("it is the copy in Secret {secret}"), Some(secret));
    }
    if let Some(secret) = first(|held| matches!(held, Held::Refused)) {
        let note =
            format!("Harvester refuses the newer token in Secret {secret}, so the one given here is used");
        return given(note, Some(secret));
    }
    let unread = held.iter().find_map(|(secret, held)| match held {
        Held::Unread(why) => Some((secret, why)),
        _ => None,
    });
    if let Some((secret, why)) = unread {
        let note = format!(
            "Secret {secret} may have a newer token and cannot be read ({why}), so the one given here is used"
        );
        return given(note, None);
    }
    if let Some(secret) = first(|held| matches!(held, Held::Empty)) {
        return given(format!("Secret {secret} has no newer token yet"), Some(secret));
    }
    let names: Vec<_> = held.iter().map(|(secret, _)| secret.to_string()).collect();
    let note = match first(|held| matches!(held, Held::Other)) {
        Some(secret) => {
            format!("Secret {secret} has the copy of another cloud-config, so the token given here is used")
        }
        None => {
            format!("no part renews the token: the guest cluster has no Secret {}", names.join(" and no "))
        }
    };
    given(note, None)
}

/// Looks whether the parts use a newer token than the `given` one. Only of a token that its account may renew anything is asked.
/// `guest`: the guest cluster, or why it is not known.
pub async fn in_use(given: CloudConfig, guest: Result<&Client, String>, connect: &Connect) -> InUse {
    let renewable =
        |config: &CloudConfig| config.token().and_then(Claims::of).filter(Claims::is_made_to_rotate);
    if renewable(&given).is_none() {
        return InUse { config: given, note: None, renewal: None };
    }
    let guest = match guest {
        Ok(guest) => guest,
        Err(why) => {
            let note = format!(
                "whether the parts have a newer token is not known without the guest cluster ({why})"
            );
            return InUse { config: given, note: Some(note), renewal: None };
        }
    };
    let mut secrets =
        SECRETS.map(|name| SecretName { namespace: NAMESPACE.to_owned(), name: name.to_owned() }).to_vec();
    let releases = releases(guest).await;
    let elsewhere = releases.iter().flatten().filter(|secret| !secrets.contains(secret)).cloned();
    secrets.extend(elsewhere.collect::<Vec<_>>());
    let mut held = Vec::new();
    for secret in secrets {
        let found = look(&given, guest, &secret, connect).await;
        held.push((secret, found));
    }
    let Choice { token, mut note, renewed_in } = choose(&held);
    if let (Err(why), None) = (&releases, renewed_in) {
        note += &format!("; whether a release is outside of {NAMESPACE} is not known ({why})");
    }
    let config = token.map_or_else(|| given.clone(), |token| given.with_token(token));
    let renewal =
        renewed_in.and_then(|secret| Some(Renewal { claims: renewable(&config)?, secret: secret.clone() }));
    InUse { config, note: Some(note), renewal }
}

/// The Secrets that the leaders of this cluster are told to write, wherever their releases are.
async fn releases(guest: &Client) -> Result<BTreeSet<SecretName>, String> {
    let (deployments, bindings) =
        (Api::<Deployment>::all(guest.clone()), Api::<ClusterRoleBinding>::all(guest.clone()));
    let all = ListParams::default();
    let deployments = deployments.list(&all).await.map_err(|error| error_message(&error))?;
    let bindings = bindings.list(&all).await.map_err(|error| error_message(&error))?;
    Ok(told(&deployments.items, &bindings.items))
}

/// A Deployment counts in kube-system, or where its account has a ClusterRoleBinding, as the leaders' have: users of one namespace
/// decide nothing here.
fn told(deployments: &[Deployment], bindings: &[ClusterRoleBinding]) -> BTreeSet<SecretName> {
    let subjects = bindings.iter().flat_map(|binding| binding.subjects.iter().flatten());
    let accounts = subjects.filter(|subject| subject.kind == "ServiceAccount");
    let accounts: BTreeSet<_> =
        accounts.map(|subject| (subject.namespace.as_deref(), subject.name.as_str())).collect();
    let mut found = BTreeSet::new();
    for deployment in deployments {
        let namespace = deployment.metadata.namespace.as_deref();
        let Some(pod) = deployment.spec.as_ref().and_then(|spec| spec.template.spec.as_ref()) else {
            continue;
        };
        let account = pod.service_account_name.as_deref().unwrap_or("default");
        if namespace != Some(NAMESPACE) && !accounts.contains(&(namespace, account)) {
            continue;
        }
        let words = pod.containers.iter().flat_map(|container| container.args.iter().flatten());
        found.extend(words.filter_map(|word| SecretName::read(word.strip_prefix(ARGUMENT)?).ok()));
    }
    found
}

async fn look(given: &CloudConfig, guest: &Client, secret: &SecretName, connect: &Connect) -> Held {
    let secrets: Api<Secret> = Api::namespaced(guest.clone(), &secret.namespace);
    let found = match secrets.get_opt(&secret.name).await {
        Ok(Some(found)) => found,
        Ok(None) => return Held::Absent,
        Err(error) => return Held::Unread(error_message(&error)),
    };
    let text = found.data.as_ref().and_then(|data| data.get(places::COPY_KEY));
    let text = text.and_then(|bytes| std::str::from_utf8(&bytes.0).ok()).unwrap_or_default();
    if text.is_empty() {
        return Held::Empty;
    }
    if text == given.source() {
        return Held::Given;
    }
    match places::token_of_copy(text, given.source()) {
        None => Held::Other,
        Some(token) if is_refused(&given.with_token(token), connect).await => Held::Refused,
        Some(token) => Held::Copy(token.to_owned()),
    }
}

#[cfg(test)]
#[path = "in_use/tests.rs"]
mod tests;
