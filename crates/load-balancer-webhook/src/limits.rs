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

use harvester_api::annotations;
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
    /// The part of the count that the mutator adds: an object that stands over the limit does not grow by it.
    added: fn(&Size) -> usize,
    most: usize,
    advice: &'static str,
}

const LISTENERS: Limit = Limit {
    field: "spec.listeners",
    counted: "entries",
    count: |size| size.listeners,
    added: |_| 0,
    most: harvester_api::load_balancer::MAX_LISTENERS,
    advice: "spread them over several load balancers",
};
/// A LoadBalancer object has about ten for each listener and five for each backend.
const VALUES: Limit = Limit {
    field: "the object",
    counted: "fields and list entries",
    count: |size| size.values,
    added: |size| size.added_values,
    most: 20_000,
    advice: "remove some",
};
/// The controller keeps all objects in memory, where a short label takes twenty times its text. One of a hundred listeners and
/// a thousand values of a selector under a hundred keys has about 1,700.
const OWN_VALUES: Limit = Limit {
    field: "the object",
    counted: "fields and list entries beside status and metadata.managedFields",
    count: |size| size.own_values,
    added: |size| size.added_values,
    most: 3_000,
    advice: "remove annotations or labels",
};
/// One of a hundred listeners and five hundred source ranges has about 40 KiB.
const BYTES: Limit = Limit {
    field: "the object",
    counted: "bytes of text beside status and metadata.managedFields",
    count: |size| size.bytes,
    added: |size| size.added_bytes,
    most: 64 << 10,
    advice: "shorten spec.description, annotations or labels",
};
/// The ranges of a pool are compared with those of all other pools.
const RANGES: Limit = Limit {
    field: "spec.ranges",
    counted: "entries",
    count: |size| size.ranges,
    added: |_| 0,
    most: 1_000,
    advice: "spread them over several pools",
};
/// The scopes of a pool are compared with each other, and with those of other pools.
const SCOPES: Limit = Limit { field: "spec.selector.scope", count: |size| size.scopes, ..RANGES };
/// Every release of an address counts the quotas.
const QUOTA: Limit = Limit { field: "spec.quota", count: |size| size.quotas, ..RANGES };

/// Fields and list entries of a whole review, and of an object that is converted. The two objects of a review have about one
/// in 32 bytes, and at most 1.5 MiB each.
pub(crate) const VALUES_OF_REVIEW: usize = 200_000;
/// A review with more fields and list entries takes two turns, and so on.
const VALUES_OF_TURN: usize = 20_000;
/// Bytes of a text that every answer repeats whole. A UID of Kubernetes has 36.
pub(crate) const LONGEST_REPEATED: usize = 256;
/// Bytes of an annotation that count as the mutator's, which writes fewer: a user can write these annotations too.
const ADDED: usize = 512;

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
    quotas: usize,
    /// Fields and list entries, at any depth.
    values: usize,
    /// Those of them that are not of the status and of managedFields.
    own_values: usize,
    /// Bytes of texts and of the names of fields, but for those of the status and of managedFields.
    bytes: usize,
    /// Those of `own_values` that the mutator sets, and their part of `bytes`.
    added_values: usize,
    added_bytes: usize,
}

impl Weight {
    /// Of a review that has so much of what takes memory, of which each turn has its part.
    pub(crate) fn of(amount: usize, part: usize) -> Self {
        match u32::try_from(1 + amount / part) {
            Ok(turns @ ..=TURNS_OF_PEER) => Self::Turns(turns),
            _ => Self::Heavy,
        }
    }
}

impl Limit {
    /// The refusal of a write that turns an object of the `former` size into one of the `new` size.
    fn refusal(&self, new: &Size, former: &Size) -> Option<String> {
        let Self { field, counted, count, added, most, advice } = self;
        let is_grown = count(new) - added(new) > count(former) - added(former);
        let count = count(new);
        (count > *most && is_grown)
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
        Weight::of(self.values, VALUES_OF_TURN)
    }

    /// The answer to a review over the limits. The load balancer's controller may write a status of any size, since
    /// that follows from objects that were admitted.
    pub(crate) fn refusal(&self, policy: &Policy) -> Option<AdmissionResponse> {
        let RequestOutline { uid, kind, operation, namespace, name, user_info, object, old_object } =
            self.request.as_ref()?;
        let limits: &[Limit] = match kind.kind.as_ref() {
            _ if kind.group != GROUP => &[],
            "LoadBalancer" if user_info.username == policy.status_writer => &[LISTENERS],
            "LoadBalancer" => &[LISTENERS, VALUES, OWN_VALUES, BYTES],
            "IPPool" => &[RANGES, SCOPES, QUOTA],
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

/// The fields and list entries of a text of JSON, at any depth, without keeping any of it.
///
/// # Errors
/// It is no JSON.
pub(crate) fn values(json: &str) -> serde_json::Result<usize> {
    serde_json::from_str(json).map(|size: Size| size.values)
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
    Quotas,
    HealthCheck,
    Metadata,
    Annotations,
    /// A field that the mutator sets.
    Added,
    /// Status and managedFields.
    Unmeasured,
    Elsewhere,
}

impl At {
    fn field(self, name: &str) -> Self {
        match (self, name) {
            (Self::Object, "spec") => Self::Spec,
            (Self::Object, "metadata") => Self::Metadata,
            (Self::Object, "status") | (Self::Metadata, "managedFields") | (Self::Unmeasured, _) => {
                Self::Unmeasured
            }
            (Self::Metadata, "annotations") => Self::Annotations,
            (
                Self::Annotations,
                annotations::LB_NAMESPACE | annotations::LB_PROJECT | annotations::LB_NETWORK,
            ) => Self::Added,
            (Self::Spec, "healthCheck") => Self::HealthCheck,
            (
                Self::HealthCheck,
                "successThreshold" | "failureThreshold" | "periodSeconds" | "timeoutSeconds",
            ) => Self::Added,
            (Self::Spec, "listeners") => Self::Listeners,
            (Self::Spec, "ranges") => Self::Ranges,
            (Self::Spec, "quota") => Self::Quotas,
            (Self::Spec, "selector") => Self::Selector,
            (Self::Selector, "scope") => Self::Scopes,
            _ => Self::Elsewhere,
        }
    }

    fn entry(self) -> Self {
        if self == Self::Unmeasured { Self::Unmeasured } else { Self::Elsewhere }
    }

    /// What a field or list entry counts here.
    fn own_value(self) -> usize {
        usize::from(self != Self::Unmeasured)
    }

    /// What a field counts as the mutator's, which makes the map of annotations where there is none.
    fn added_value(self) -> usize {
        usize::from(matches!(self, Self::Annotations | Self::Added))
    }

    /// What a text counts as the mutator's.
    fn added_bytes(self, text: &str) -> usize {
        if self == Self::Added { text.len().min(ADDED) } else { 0 }
    }

    /// What a text counts here.
    fn bytes(self, text: &str) -> usize {
        if self == Self::Unmeasured { 0 } else { text.len() }
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

    fn visit_str<E: Error>(self, text: &str) -> Result<(), E> {
        self.size.bytes += self.at.bytes(text);
        self.size.added_bytes += self.at.added_bytes(text);
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        let Self { size, at } = self;
        while entries.next_element_seed(Measure { size, at: at.entry() })?.is_some() {
            size.values += 1;
            size.own_values += at.own_value();
            match at {
                At::Listeners => size.listeners += 1,
                At::Ranges => size.ranges += 1,
                At::Scopes => size.scopes += 1,
                At::Quotas => size.quotas += 1,
                At::Object
                | At::Spec
                | At::Selector
                | At::HealthCheck
                | At::Metadata
                | At::Annotations
                | At::Added
                | At::Unmeasured
                | At::Elsewhere => {}
            }
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<(), A::Error> {
        let Self { size, at } = self;
        while let Some((at, bytes)) = fields.next_key_seed(Field(at))? {
            size.values += 1;
            size.own_values += at.own_value();
            size.bytes += bytes;
            size.added_values += at.added_value();
            size.added_bytes += bytes * at.added_value();
            fields.next_value_seed(Measure { size, at })?;
        }
        Ok(())
    }
}

/// Reads the name of a field of the place that it holds.
struct Field(At);

impl<'de> DeserializeSeed<'de> for Field {
    /// The place of the field, and the bytes of its name.
    type Value = (At, usize);

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(At, usize), D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for Field {
    type Value = (At, usize);

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a field")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<(At, usize), E> {
        let at = self.0.field(name);
        Ok((at, at.bytes(name)))
    }
}

#[cfg(test)]
mod tests;
