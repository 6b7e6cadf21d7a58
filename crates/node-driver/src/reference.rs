//! Names of objects as users give them: `name`, or `namespace/name`.

use std::fmt;

use serde::Serialize;

/// An object in a namespace.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub(crate) struct Reference {
    pub namespace: String,
    pub name: String,
}

impl Reference {
    /// Reads `name` or `namespace/name`; without a namespace it is `default`.
    ///
    /// # Errors
    /// The name is empty, or there is more than one slash.
    pub(crate) fn parse(text: &str, default: &str) -> Result<Self, String> {
        let (namespace, name) = text.split_once('/').unwrap_or((default, text));
        if namespace.is_empty() || name.is_empty() || name.contains('/') {
            return Err(format!("{text} is not a name or namespace/name"));
        }
        Ok(Self { namespace: namespace.to_owned(), name: name.to_owned() })
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}/{}", self.namespace, self.name)
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::bare("leap", Some("shop/leap"))]
    #[case::full("images/leap", Some("images/leap"))]
    #[case::two_slashes("a/b/c", None)]
    #[case::no_name("images/", None)]
    #[case::no_namespace("/leap", None)]
    #[case::nothing("", None)]
    fn a_name_without_namespace_is_in_the_machines(#[case] text: &str, #[case] expected: Option<&str>) {
        let parsed = Reference::parse(text, "shop").ok().map(|reference| reference.to_string());
        assert_eq!(parsed.as_deref(), expected);
    }
}
