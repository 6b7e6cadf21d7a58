//! A token of a service account, as a kubeconfig holds it: what it says of itself, and the question for a newer one.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
pub use cloud_config::places::token_of as of_kubeconfig;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

/// What a token of a service account says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claims {
    pub namespace: String,
    pub account: String,
    pub issued: Timestamp,
    /// None for one that does not end.
    pub ends: Option<Timestamp>,
    /// Name of the Secret whose deletion ends it.
    pub bound_to: Option<String>,
}

impl Claims {
    /// `None`: it is no token of a service account, or no JSON web token.
    pub fn of(token: &str) -> Option<Self> {
        let mut parts = token.split('.');
        let payload = parts.nth(1).filter(|_| parts.count() == 1)?;
        let payload: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(payload).ok()?).ok()?;
        let (namespace, account) =
            payload["sub"].as_str()?.strip_prefix("system:serviceaccount:")?.split_once(':')?;
        let time = |field: &str| Timestamp::from_second(payload[field].as_i64()?).ok();
        Some(Self {
            namespace: namespace.to_owned(),
            account: account.to_owned(),
            issued: time("iat").unwrap_or(Timestamp::UNIX_EPOCH),
            ends: time("exp"),
            bound_to: payload["kubernetes.io"]["secret"]["name"].as_str().map(str::to_owned),
        })
    }

    /// The life that it was given, and when two thirds of it are over.
    pub fn life(&self) -> Option<(SignedDuration, Timestamp)> {
        let life = self.ends?.duration_since(self.issued);
        Some((life, self.issued.checked_add(life * 2 / 3).ok()?))
    }

    /// Whether it was made to be renewed by its account (`cloud-config generate --rotate`).
    pub fn is_made_to_rotate(&self) -> bool {
        self.ends.is_some() && self.bound_to.as_deref() == Some(anchor_name(&self.account).as_str())
    }
}

/// Name of the Secret that tokens which end are bound to: its deletion revokes all of them.
pub fn anchor_name(account: &str) -> String {
    format!("{account}-credentials")
}

/// The question for a token that ends.
pub fn request(account: &str, life: SignedDuration) -> Value {
    json!({
        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
        "spec": {"expirationSeconds": life.as_secs(),
                 "boundObjectRef": {"apiVersion": "v1", "kind": "Secret", "name": anchor_name(account)}},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn jwt(payload: &Value) -> String {
        format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(payload.to_string()))
    }

    #[test]
    fn a_token_is_due_at_two_thirds_of_its_life() {
        let claims = json!({"sub": "system:serviceaccount:vms:demo", "iat": 1000, "exp": 4000});
        let claims = Claims::of(&jwt(&claims)).unwrap();
        assert_eq!((claims.namespace.as_str(), claims.account.as_str()), ("vms", "demo"));
        let (life, due) = claims.life().unwrap();
        assert_eq!((life.as_secs(), due.as_second()), (3000, 3000));
        let lasting = json!({"sub": "system:serviceaccount:vms:demo"});
        assert_eq!(Claims::of(&jwt(&lasting)).unwrap().life(), None);
        for odd in ["", "a.b", "kubeconfig-user:secret", "a.!.c", "e30.e30.e30", "a.e30.b.c"] {
            assert_eq!(Claims::of(odd), None, "{odd}");
        }
    }

    // a token that a person bound to a Pod, or to nothing, is not ours to renew
    #[test]
    fn only_a_token_that_is_bound_to_the_accounts_own_secret_was_made_to_rotate() {
        let claims = |more: Value| {
            let mut claims = json!({"sub": "system:serviceaccount:vms:demo", "iat": 1, "exp": 4});
            claims["kubernetes.io"] = more;
            Claims::of(&jwt(&claims)).unwrap().is_made_to_rotate()
        };
        assert!(claims(json!({"secret": {"name": "demo-credentials"}})));
        assert!(!claims(json!({"secret": {"name": "other-credentials"}})));
        assert!(!claims(json!({"pod": {"name": "demo-credentials"}})));
        assert!(!claims(Value::Null));
        let lasting = json!({"sub": "system:serviceaccount:vms:demo",
            "kubernetes.io": {"secret": {"name": "demo-credentials"}}});
        assert!(!Claims::of(&jwt(&lasting)).unwrap().is_made_to_rotate());
    }
}
