//! Limits on what one write may make the webhook do, checked before anything is built of the review.
//!
//! Tenants may create LoadBalancer objects, and the validator's failure policy is Fail: a review that takes all of the
//! webhook's memory stops the writes of all tenants. So the body is measured while it is parsed, nothing of the
//! object is kept, and an object over a limit gets one refusal. Mutator and validator refuse alike, since the mutator
//! sees the object first. An object that stands over a limit can still be changed as long as the count does not rise.
//!
//! Everybody in the cluster's network can send a review with any user and any former object in it. So one limit holds
//! for the whole body, whoever writes.

use std::borrow::Cow;
use std::fmt;

use kube::core::admission::AdmissionResponse;
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use crate::Policy;
use crate::peers::TURNS_OF_PEER;
use crate::review::{GROUP, Reason, cut, deny};

/// A limit of one count of an object.
struct Limit {
    /// The beginning of the refusal, and what is counted.
    field: &'static str,
    counted: &'static str,
    count: fn(&Size) -> usize,
    most: usize,
    advice: &'static str,
}

const LISTENERS: Limit = Limit {
    field: "spec.listeners",
    counted: "entries",
    count: |size| size.listeners,
    most: harvester_api::load_balancer::MAX_LISTENERS,
    advice: "spread them over several load balancers",
};
/// A LoadBalancer object has about ten for each listener and five for each backend.
const VALUES: Limit = Limit {
    field: "the object",
    counted: "fields and list entries",
    count: |size| size.values,
    most: 20_000,
    advice: "remove some",
};
/// The ranges of a pool are compared with those of all other pools.
const RANGES: Limit = Limit {
    field: "spec.ranges",
    counted: "entries",
    count: |size| size.ranges,
    most: 1_000,
    advice: "spread them over several pools",
};
/// The scopes of a pool are compared with each other, and with those of other pools.
const SCOPES: Limit = Limit { field: "spec.selector.scope", count: |size| size.scopes, ..RANGES };

/// Fields and list entries of a whole review. Its two objects have about one in 32 bytes, and at most 1.5 MiB each.
const VALUES_OF_REVIEW: usize = 200_000;
/// A review with more fields and list entries takes two turns, and so on.
const VALUES_OF_TURN: usize = 20_000;
/// Bytes of a text that every answer repeats whole. A UID of Kubernetes has 36.
pub(crate) const LONGEST_REPEATED: usize = 256;

/// What a review counts for among those that are decided at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weight {
    /// So many of them, at most all that one peer has.
    Turns(u32),
    /// More than that.
    Heavy,
}

/// How large an object is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Size {
    listeners: usize,
    ranges: usize,
    scopes: usize,
    /// Fields and list entries, at any depth.
    values: usize,
}

impl Limit {
    /// The refusal of a write that turns an object of the `former` size into one of the `new` size.
    fn refusal(&self, new: &Size, former: &Size) -> Option<String> {
        let Self { field, counted, count, most, advice } = self;
        let (count, former) = (count(new), count(former));
        (count > *most && count > former)
            .then(|| format!("{field} has {count} {counted}, at most {most} are allowed: {advice}"))
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
    /// Fields and list entries of the whole review, at any depth.
    #[serde(skip)]
    values: usize,
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
        let mut review = Size::default();
        let mut json = serde_json::Deserializer::from_slice(body);
        Measure { size: &mut review, at: At::Elsewhere }.deserialize(&mut json)?;
        let outline: Self = serde_json::from_slice(body)?;
        Ok(Self { values: review.values, ..outline })
    }

    /// The user who writes.
    pub(crate) fn user(&self) -> &str {
        self.request.as_ref().map_or("", |request| &request.user_info.username)
    }

    /// The name of a text that an answer must repeat and that is longer than any API server sends.
    pub(crate) fn too_long(&self) -> Option<&'static str> {
        let uid = self.request.as_ref().map_or("", |request| &request.uid);
        let repeated = [("apiVersion", &*self.api_version), ("request.uid", uid)];
        repeated.into_iter().find_map(|(name, text)| (text.len() > LONGEST_REPEATED).then_some(name))
    }

    /// What the review counts for among those that are decided at once, by the memory that it takes.
    pub(crate) fn weight(&self) -> Weight {
        match u32::try_from(1 + self.values / VALUES_OF_TURN) {
            Ok(turns @ ..=TURNS_OF_PEER) => Weight::Turns(turns),
            _ => Weight::Heavy,
        }
    }

    /// The answer to a review over the limits. The load balancer's controller may write a status of any size, since
    /// that follows from objects that were admitted.
    pub(crate) fn refusal(&self, policy: &Policy) -> Option<AdmissionResponse> {
        let RequestOutline { uid, kind, operation, namespace, name, user_info, object, old_object } =
            self.request.as_ref()?;
        let limits: &[Limit] = match kind.kind.as_ref() {
            _ if kind.group != GROUP => &[],
            "LoadBalancer" if user_info.username == policy.status_writer => &[LISTENERS],
            "LoadBalancer" => &[LISTENERS, VALUES],
            "IPPool" => &[RANGES, SCOPES],
            _ => &[],
        };
        let of_object = limits.iter().find_map(|limit| limit.refusal(object, old_object));
        let of_review = || {
            let values = self.values;
            (values > VALUES_OF_REVIEW).then(|| {
                format!(
                    "the review has {values} fields and list entries, at most {VALUES_OF_REVIEW} are allowed"
                )
            })
        };
        let why = of_object.or_else(of_review)?;
        let verb = match operation.as_ref() {
            "CREATE" => "create",
            "DELETE" => "delete",
            _ => "update",
        };
        let name = cut(name);
        let message = match kind.kind.as_ref() {
            "IPPool" => format!("can't {verb} IP pool {name} because {why}"),
            _ => {
                format!(
                    "{verb} loadbalancer {}/{name} failed: {why}",
                    cut(namespace.as_deref().unwrap_or_default())
                )
            }
        };
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
    Ranges,
    Selector,
    Scopes,
    Elsewhere,
}

impl At {
    fn field(self, name: &str) -> Self {
        match (self, name) {
            (Self::Object, "spec") => Self::Spec,
            (Self::Spec, "listeners") => Self::Listeners,
            (Self::Spec, "ranges") => Self::Ranges,
            (Self::Spec, "selector") => Self::Selector,
            (Self::Selector, "scope") => Self::Scopes,
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
            match at {
                At::Listeners => size.listeners += 1,
                At::Ranges => size.ranges += 1,
                At::Scopes => size.scopes += 1,
                At::Object | At::Spec | At::Selector | At::Elsewhere => {}
            }
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
    #[case::scalars(json!([true, -1, 1.5, null, u64::MAX, "x"]), 0, 6)]
    #[case::no_list(json!({"spec": {"listeners": {"listeners": [1]}}}), 0, 4)]
    fn fields_list_entries_and_listeners_are_counted(
        #[case] object: Value,
        #[case] listeners: usize,
        #[case] values: usize,
    ) {
        assert_eq!(size(&object), Size { listeners, values, ..Size::default() });
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
        let size = |(listeners, values)| Size { listeners, values, ..Size::default() };
        let refusal = [LISTENERS, VALUES].iter().find_map(|limit| limit.refusal(&size(new), &size(former)));
        assert_eq!(refusal.is_some(), expected.is_some(), "{refusal:?}");
        assert!(refusal.unwrap_or_default().starts_with(expected.unwrap_or_default()));
    }

    #[test]
    fn ranges_and_scopes_of_a_pool_are_counted() {
        let spec = json!({"ranges": [{"subnet": "192.0.2.0/24"}, {}], "scope": [{}],
            "selector": {"ranges": [{}], "scope": [{}, {"scope": [{}]}, {}]}});
        assert_eq!(
            size(&json!({"spec": spec, "ranges": [{}]})),
            Size { listeners: 0, ranges: 2, scopes: 3, values: 18 }
        );
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
    #[case::controller("writer", "LoadBalancer", true)]
    #[case::another_kind("alice", "IPPool", false)]
    fn nobody_may_write_a_load_balancer_with_too_many_listeners(
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

    fn review_of(kind: &str, operation: &str, user: &str, object: &Value, old: &Value) -> String {
        json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
            "uid": "u1", "operation": operation, "kind": {"group": GROUP, "version": "v1beta1", "kind": kind},
            "name": "edge", "userInfo": {"username": user}, "object": object, "oldObject": old}})
        .to_string()
    }

    fn message(review: &str) -> Option<String> {
        let policy = Policy { status_writer: "writer".to_owned() };
        let refusal = Outline::read(review.as_bytes()).unwrap().refusal(&policy)?;
        assert_eq!((refusal.allowed, refusal.result.code), (false, 422));
        Some(refusal.result.message)
    }

    #[rstest]
    #[case::at_the_limit(1_000, 1_000, 0, None)]
    #[case::many_ranges(1_001, 0, 1_000, Some("spec.ranges has 1001 entries"))]
    #[case::many_scopes(0, 1_001, 1_000, Some("spec.selector.scope has 1001 entries"))]
    #[case::stands_above(5_000, 5_000, 5_000, None)]
    #[case::lowered(4_999, 4_999, 5_000, None)]
    fn a_pool_may_not_grow_beyond_its_limits(
        #[values("admin", "writer")] user: &str,
        #[case] ranges: usize,
        #[case] scopes: usize,
        #[case] former: usize,
        #[case] expected: Option<&str>,
    ) {
        let pool = |ranges: usize, scopes: usize| json!({"spec": {"ranges": vec![json!({}); ranges], "selector": {"scope": vec![json!({}); scopes]}}});
        let review = review_of("IPPool", "UPDATE", user, &pool(ranges, scopes), &pool(former, former));
        let expected = expected.map(|fault| {
            format!("can't update IP pool edge because {fault}, at most 1000 are allowed: spread them over several pools")
        });
        assert_eq!(message(&review), expected);
    }

    #[rstest]
    #[case::tenant("alice", true)]
    #[case::controller("writer", false)]
    fn a_status_may_grow_by_its_controller(#[case] user: &str, #[case] refused: bool) {
        let object = json!({"status": {"conditions": vec![0; 30_000]}});
        assert_eq!(
            message(&review_of("LoadBalancer", "UPDATE", user, &object, &json!({}))).is_some(),
            refused
        );
    }

    #[rstest]
    #[case::any_user("LoadBalancer", "UPDATE", "writer", "update loadbalancer /edge failed: ")]
    #[case::any_kind("Pod", "CREATE", "alice", "create loadbalancer /edge failed: ")]
    #[case::pool("IPPool", "DELETE", "alice", "can't delete IP pool edge because ")]
    fn no_review_may_have_more_values_than_real_objects_have(
        #[case] kind: &str,
        #[case] operation: &str,
        #[case] user: &str,
        #[case] prefix: &str,
    ) {
        // whoever writes a review can put a large former object into it
        let large = json!({"status": vec![0; 100_000]});
        let review = review_of(kind, operation, user, &large, &large);
        let values = "the review has 200016 fields and list entries, at most 200000 are allowed";
        assert_eq!(message(&review), Some(format!("{prefix}{values}")));
    }

    #[test]
    fn kinds_of_other_groups_have_no_limits_of_their_own() {
        let review = review("alice", "LoadBalancer", 4_000).replace(GROUP, "example.com");
        assert_eq!(message(&review), None);
    }

    #[rstest]
    #[case::ordinary(100, Weight::Turns(1))]
    #[case::large(40_000, Weight::Turns(3))]
    #[case::largest(79_998, Weight::Turns(4))]
    #[case::heavy(79_999, Weight::Heavy)]
    #[case::heaviest(200_000, Weight::Heavy)]
    fn a_large_review_counts_for_several(#[case] values: usize, #[case] weight: Weight) {
        let review = json!({"more": vec![0; values]}).to_string();
        assert_eq!(Outline::read(review.as_bytes()).unwrap().weight(), weight);
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
