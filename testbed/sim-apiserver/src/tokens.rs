//! Bearer tokens: whose they are, until when, and what revokes them. Those of service accounts have the form of JSON web tokens,
//! by which clients know their end; no signature is checked, because the server knows its tokens.

use std::collections::HashMap;
use std::sync::{Arc, RwLock};

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::server::ApiServer;
use crate::store::{Key, Stored};
use crate::user::User;

/// The type of a Secret that gets a token of a service account.
const OF_ACCOUNT: &str = "kubernetes.io/service-account-token";

#[derive(Clone, Debug)]
struct Grant {
    user: User,
    /// The token is good while the object with this UID is there.
    bound: Option<String>,
    until: Option<Timestamp>,
}

/// All tokens of a server.
#[derive(Debug, Default)]
pub(crate) struct Tokens(RwLock<HashMap<String, Grant>>);

impl Tokens {
    pub(crate) fn add(&self, token: impl Into<String>, user: User) {
        self.grant(token.into(), Grant { user, bound: None, until: None });
    }

    fn grant(&self, token: String, grant: Grant) {
        self.0.write().expect("no panic while a token is added").insert(token, grant);
    }

    /// The lasting token by which a user is already known.
    pub(crate) fn of(&self, user: &User) -> Option<String> {
        let tokens = self.0.read().expect("no panic while a token is added");
        let lasts = |grant: &Grant| grant.bound.is_none() && grant.until.is_none();
        tokens.iter().find(|(_, grant)| grant.user == *user && lasts(grant)).map(|(token, _)| token.clone())
    }
}

impl ApiServer {
    /// The user whom a token makes known.
    pub(crate) fn user_of(&self, token: &str) -> Option<User> {
        let grant = self.0.tokens.0.read().expect("no panic while a token is added").get(token).cloned()?;
        let is_over = grant.until.is_some_and(|end| end <= self.0.clock.now());
        let is_revoked = grant.bound.is_some_and(|uid| self.0.store.place(&uid).is_none());
        (!is_over && !is_revoked).then_some(grant.user)
    }

    /// A new token for a service account; `bound`: name and UID of the Secret with which it ends.
    pub(crate) fn issue_token(
        &self,
        namespace: &str,
        account: &str,
        bound: Option<(String, String)>,
        until: Option<Timestamp>,
    ) -> String {
        let user = User::service_account(namespace, account);
        let mut claims = json!({"iat": self.0.clock.now().as_second(), "sub": user.name});
        if let Some(end) = until {
            claims["exp"] = end.as_second().into();
        }
        let bound = bound.map(|(name, uid)| {
            if until.is_some() {
                claims["kubernetes.io"] = json!({"namespace": namespace, "serviceaccount": {"name": account},
                    "secret": {"name": name, "uid": uid}});
            }
            uid
        });
        let signature = self.random(|random| random.u128(..)).to_be_bytes();
        let part = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        let head = part(br#"{"alg":"none"}"#);
        let token = format!("{head}.{}.{}", part(claims.to_string().as_bytes()), part(&signature));
        self.0.tokens.grant(token.clone(), Grant { user, bound, until });
        token
    }
}

/// Whether a Secret waits for the token of its account.
pub(crate) fn is_wanted(secret: &Value) -> bool {
    secret["type"] == OF_ACCOUNT && secret["data"]["token"].is_null()
}

/// What the controller of tokens does for a Secret: the account's token, or an end with the account.
pub(crate) fn fill(server: &ApiServer, secret: &Stored) -> Option<impl FnOnce(&mut Value) + use<>> {
    let metadata = &secret.value["metadata"];
    let namespace = metadata["namespace"].as_str().unwrap_or_default().to_owned();
    let account = metadata["annotations"]["kubernetes.io/service-account.name"].as_str()?.to_owned();
    let found: Arc<Stored> = server.0.store.get("serviceaccounts", &Key::new(&namespace, &account))?;
    let wanted = metadata["annotations"]["kubernetes.io/service-account.uid"].as_str();
    if wanted.is_some_and(|uid| uid != found.uid()) {
        return None;
    }
    let uid = found.uid().to_owned();
    let token =
        server.issue_token(&namespace, &account, Some((String::new(), secret.uid().to_owned())), None);
    let ca = STANDARD.encode(server.ca_pem());
    Some(move |secret: &mut Value| {
        secret["metadata"]["annotations"]["kubernetes.io/service-account.uid"] = uid.into();
        secret["data"]["token"] = STANDARD.encode(token).into();
        secret["data"]["namespace"] = STANDARD.encode(namespace).into();
        secret["data"]["ca.crt"] = ca.into();
    })
}
