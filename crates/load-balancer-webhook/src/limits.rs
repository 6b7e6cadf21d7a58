//! Limits on what one write may make the webhook do, checked before anything is built of the review.
//!
//! Tenants may create LoadBalancer objects, and the validator's failure policy is Fail: a review that takes all of the
//! webhook's memory stops the writes of all tenants. So the body is measured while it is parsed, nothing of the
//! object is kept, and an object over a limit gets one refusal. Mutator and validator refuse alike, since the mutator
//! sees the object first. An object that stands over a limit can still be changed as long as the count does not rise.
//!
//! IPPools have no limit but that of the body: administrators write them, and their records are many.

use std::borrow::Cow;
use std::fmt;

use kube::core::admission::AdmissionResponse;
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use crate::Policy;
use crate::review::{GROUP, Reason, deny};

/// Listeners of a load balancer. All its ports become node ports of Harvester, of which there are 2,768.
const LISTENERS: usize = 100;
/// Fields and list entries of a LoadBalancer object: it has about ten for each listener and five for each backend.
const VALUES: usize = 20_000;

/// How large an object is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Size {
    listeners: usize,
    /// Fields and list entries, at any depth.
    values: usize,
}

impl Size {
    /// The refusal of a write that turns an object of the `former` size into one of this size.
    fn refusal(self, former: Self) -> Option<String> {
        let Self { listeners, values } = self;
        if listeners > LISTENERS && listeners > former.listeners {
            return Some(format!(
                "spec.listeners has {listeners} entries, at most {LISTENERS} are allowed: spread them over several load balancers"
            ));
        }
        if values > VALUES && values > former.values {
            return Some(format!(
                "the object has {values} fields and list entries, at most {VALUES} are allowed: remove some"
            ));
        }
        None
    }
}

/// The part of a review that the limits need.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Outline<'a> {
    #[serde(borrow, default)]
    api_version: Cow<'a, str>,
    #[serde(borrow, default)]
    request: Option<RequestOutline<'a>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RequestOutline<'a> {
    #[serde(borrow, default)]
    uid: Cow<'a, str>,
    #[serde(borrow, default)]
    kind: KindOutline<'a>,
    #[serde(borrow, default)]
    operation: Cow<'a, str>,
    #[serde(borrow, default)]
    namespace: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    name: Cow<'a, str>,
    #[serde(borrow, default)]
    user_info: UserOutline<'a>,
    #[serde(default)]
    object: Size,
    #[serde(default)]
    old_object: Size,
}

#[derive(Debug, Default, Deserialize)]
struct KindOutline<'a> {
    #[serde(borrow, default)]
    group: Cow<'a, str>,
    #[serde(borrow, default)]
    kind: Cow<'a, str>,
}

#[derive(Debug, Default, Deserialize)]
struct UserOutline<'a> {
    #[serde(borrow, default)]
    username: Cow<'a, str>,
}

impl<'a> Outline<'a> {
    /// Measures a review without keeping any of it.
    ///
    /// # Errors
    /// The body is not a review as JSON.
    pub(crate) fn read(body: &'a [u8]) -> serde_json::Result<Self> {
        serde_json::from_slice(body)
    }

    /// The user who writes.
    pub(crate) fn user(&self) -> &str {
        self.request.as_ref().map_or("", |request| &request.user_info.username)
    }

    /// The answer to a review over the limits. They do not bind the load balancer's controller: its
    /// writes follow from objects that were admitted.
    pub(crate) fn refusal(&self, policy: &Policy) -> Option<AdmissionResponse> {
        let RequestOutline { uid, kind, operation, namespace, name, user_info, object, old_object } =
            self.request.as_ref()?;
        if kind.group != GROUP || kind.kind != "LoadBalancer" || user_info.username == policy.status_writer {
            return None;
        }
        let why = object.refusal(*old_object)?;
        let namespace = namespace.as_deref().unwrap_or_default();
        let verb = if operation == "CREATE" { "create" } else { "update" };
        let message = format!("{verb} loadbalancer {namespace}/{name} failed: {why}");
        let mut response = AdmissionResponse::invalid("");
        response.types.api_version = self.api_version.clone().into_owned();
        response.uid = uid.clone().into_owned();
        Some(deny(response, Reason::Invalid, message))
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut size = Self::default();
        Measure { size: &mut size, at: At::Object }.deserialize(deserializer)?;
        Ok(size)
    }
}

/// A place in an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Object,
    Spec,
    Listeners,
    Elsewhere,
}

impl At {
    fn field(self, name: &str) -> Self {
        match (self, name) {
            (Self::Object, "spec") => Self::Spec,
            (Self::Spec, "listeners") => Self::Listeners,
            _ => Self::Elsewhere,
        }
    }
}

/// Counts a value and everything in it, and throws it away.
struct Measure<'a> {
    size: &'a mut Size,
    at: At,
}

impl<'de> DeserializeSeed<'de> for Measure<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Measure<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        let Self { size, at } = self;
        while entries.next_element_seed(Measure { size, at: At::Elsewhere })?.is_some() {
            size.values += 1;
            size.listeners += usize::from(at == At::Listeners);
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<(), A::Error> {
        let Self { size, at } = self;
        while let Some(at) = fields.next_key_seed(Field(at))? {
            size.values += 1;
            fields.next_value_seed(Measure { size, at })?;
        }
        Ok(())
    }
}

/// Reads the name of a field of the place that it holds.
struct Field(At);

impl<'de> DeserializeSeed<'de> for Field {
    type Value = At;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<At, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for Field {
    type Value = At;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a field")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<At, E> {
        Ok(self.0.field(name))
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    fn size(object: &Value) -> Size {
        serde_json::from_str(&object.to_string()).unwrap()
    }

    #[rstest]
    #[case::null(json!(null), 0, 0)]
    #[case::text(json!("spec"), 0, 0)]
    #[case::empty(json!({}), 0, 0)]
    #[case::listeners(json!({"spec": {"listeners": [{"port": 80}, {}, 7]}}), 3, 6)]
    #[case::elsewhere(json!({"listeners": [1], "status": {"listeners": [1]}, "spec": {"other": {"listeners": [1]}}}), 0, 9)]
    #[case::within_a_listener(json!({"spec": {"listeners": [{"listeners": [1, 2]}]}}), 1, 6)]
    #[case::no_list(json!({"spec": {"listeners": {"listeners": [1]}}}), 0, 4)]
    fn fields_list_entries_and_listeners_are_counted(
        #[case] object: Value,
        #[case] listeners: usize,
        #[case] values: usize,
    ) {
        assert_eq!(size(&object), Size { listeners, values });
    }

    #[rstest]
    #[case::at_the_limit((100, 0), (0, 0), None)]
    #[case::created_above((101, 0), (0, 0), Some("spec.listeners has 101 entries"))]
    #[case::raised_above((101, 0), (100, 0), Some("spec.listeners has 101 entries"))]
    #[case::stands_above((4_000, 0), (4_000, 0), None)]
    #[case::lowered((3_999, 0), (4_000, 0), None)]
    #[case::raised_from_above((4_001, 0), (4_000, 0), Some("spec.listeners has 4001 entries"))]
    #[case::values_at_the_limit((0, 20_000), (0, 0), None)]
    #[case::too_many_values((0, 20_001), (0, 20_000), Some("the object has 20001 fields"))]
    #[case::as_many_values_as_before((0, 20_001), (0, 20_001), None)]
    #[case::both((101, 20_001), (0, 0), Some("spec.listeners"))]
    fn only_a_write_that_raises_a_count_above_its_limit_is_refused(
        #[case] new: (usize, usize),
        #[case] former: (usize, usize),
        #[case] expected: Option<&str>,
    ) {
        let size = |(listeners, values)| Size { listeners, values };
        let refusal = size(new).refusal(size(former));
        assert_eq!(refusal.is_some(), expected.is_some(), "{refusal:?}");
        assert!(refusal.unwrap_or_default().starts_with(expected.unwrap_or_default()));
    }

    fn review(user: &str, kind: &str, listeners: usize) -> String {
        let listeners: Vec<Value> = vec![json!({}); listeners];
        json!({"apiVersion": "admission.k8s.io/v1beta1", "kind": "AdmissionReview", "request": {
            "uid": "u1", "operation": "CREATE", "kind": {"group": GROUP, "version": "v1beta1", "kind": kind},
            "namespace": "team-a", "name": "web", "userInfo": {"username": user},
            "object": {"spec": {"listeners": listeners}}, "oldObject": null}})
        .to_string()
    }

    #[rstest]
    #[case::tenant("alice", "LoadBalancer", true)]
    #[case::controller("writer", "LoadBalancer", false)]
    #[case::another_kind("alice", "IPPool", false)]
    fn the_limits_bind_tenants_and_their_load_balancers(
        #[case] user: &str,
        #[case] kind: &str,
        #[case] refused: bool,
    ) {
        let policy = Policy { status_writer: "writer".to_owned() };
        let review = review(user, kind, 4_000);
        let refusal = Outline::read(review.as_bytes()).unwrap().refusal(&policy);
        assert_eq!(refusal.is_some(), refused);
        if let Some(response) = refusal {
            assert!(!response.allowed);
            assert_eq!((response.uid.as_str(), response.result.code), ("u1", 422));
            assert_eq!(response.types.api_version, "admission.k8s.io/v1beta1");
            let message = "create loadbalancer team-a/web failed: spec.listeners has 4000 entries, at most 100 are \
                           allowed: spread them over several load balancers";
            assert_eq!(response.result.message, message);
        }
    }

    #[rstest]
    #[case::nothing("")]
    #[case::half("{\"request\": {\"object\": {\"spec\":")]
    #[case::deep(&"[".repeat(100_000))]
    fn a_body_that_is_no_review_is_an_error(#[case] body: &str) {
        assert!(Outline::read(body.as_bytes()).is_err());
    }

    #[test]
    fn a_deep_object_is_an_error_and_no_stack_overflow() {
        let body = format!("{{\"request\": {{\"object\": {}", "{\"a\":".repeat(1_000_000));
        assert!(Outline::read(body.as_bytes()).is_err());
    }

    #[rstest]
    #[case::null("{\"request\": null}")]
    #[case::none("{}")]
    #[case::unknown_fields("{\"more\": [[]], \"request\": {\"uid\": \"\\u00e4\", \"options\": {}}}")]
    fn a_review_without_object_is_within_the_limits(#[case] body: &str) {
        let policy = Policy { status_writer: String::new() };
        assert!(Outline::read(body.as_bytes()).unwrap().refusal(&policy).is_none());
    }
}
