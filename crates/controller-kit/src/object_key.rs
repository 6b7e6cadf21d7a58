//! Names of objects within one kind.

use std::fmt;

use kube::{Resource, ResourceExt};

/// Namespace and name; the namespace is empty for cluster-scoped kinds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectKey {
    pub namespace: String,
    pub name: String,
}

impl ObjectKey {
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }

    /// The key of `object`.
    pub fn of(object: &impl Resource) -> Self {
        Self::new(object.meta().namespace.clone().unwrap_or_default(), object.name_any())
    }

    /// Reads `namespace/name`, or a bare name of a cluster-scoped object.
    pub fn parse(text: &str) -> Option<Self> {
        let (namespace, name) = text.split_once('/').unwrap_or(("", text));
        (!name.is_empty() && !name.contains('/')).then(|| Self::new(namespace, name))
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.namespace.as_str() {
            "" => out.write_str(&self.name),
            namespace => write!(out, "{namespace}/{}", self.name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_reads_back_what_it_prints() {
        for key in [ObjectKey::new("shop", "web"), ObjectKey::new("", "edge")] {
            assert_eq!(ObjectKey::parse(&key.to_string()), Some(key));
        }
        assert_eq!(ObjectKey::parse("a/b/c"), None);
        assert_eq!(ObjectKey::parse("a/"), None);
    }
}
