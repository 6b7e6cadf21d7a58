//! Users and their groups.

use std::ops::Deref;

use sim_apimachinery::rbac;

const AUTHENTICATED: &str = "system:authenticated";

/// An authenticated user, as RBAC and the audit log know it: a name, and groups with `system:authenticated` among them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User(rbac::User);

impl Deref for User {
    type Target = rbac::User;

    fn deref(&self) -> &rbac::User {
        &self.0
    }
}

impl User {
    /// A user with the groups that follow from the name: those of a service account have the two groups of their kind.
    #[must_use]
    pub fn named(name: impl Into<String>) -> Self {
        let mut user = rbac::User { name: name.into(), groups: vec![AUTHENTICATED.to_owned()] };
        if let Some((namespace, _)) = user.service_account() {
            let of_namespace = format!("system:serviceaccounts:{namespace}");
            user.groups.extend(["system:serviceaccounts".to_owned(), of_namespace]);
        }
        Self(user)
    }

    /// The account of a program that runs in a cluster.
    #[must_use]
    pub fn service_account(namespace: &str, name: &str) -> Self {
        Self::named(rbac::service_account(namespace, name))
    }

    /// May do everything: member of `system:masters`. Rules of faults never hit it unless they name it.
    #[must_use]
    pub fn admin() -> Self {
        Self::named("admin").with_group(rbac::MASTERS)
    }

    /// The same user as a member of one more group.
    #[must_use]
    pub fn with_group(mut self, group: impl Into<String>) -> Self {
        self.0.groups.push(group.into());
        self
    }
}

impl From<&str> for User {
    fn from(name: &str) -> Self {
        if name == "admin" { Self::admin() } else { Self::named(name) }
    }
}

impl From<String> for User {
    fn from(name: String) -> Self {
        Self::from(name.as_str())
    }
}
