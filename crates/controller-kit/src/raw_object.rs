//! A typed object together with the JSON that it was read from.
//!
//! No existing role grants `patch` on LoadBalancer and IPPool objects, so they are written by PUT. A PUT made from
//! a typed struct would lose every field that the struct does not know; one made from the JSON that was read, with
//! only our fields changed, loses nothing.

use std::{borrow::Cow, ops::Deref};

use kube::{Client, Resource};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::DeserializeOwned, de::Error as _};
use serde_json::Value;

use crate::json_text::{DEEPEST, depth, without_managed_fields};

/// `K` as read, and the text that it was read from (without `managedFields`, which nobody writes back).
#[derive(Clone, Debug)]
pub struct RawObject<K> {
    object: K,
    json: Box<str>,
}

impl<K: DeserializeOwned> RawObject<K> {
    /// # Errors
    /// When `json` is not a `K`.
    pub fn from_json(json: Value) -> serde_json::Result<Self> {
        serde_json::from_value(json)
    }
}

impl<K> RawObject<K> {
    /// The object as it was read, every field of it.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.json).expect("this text was made from JSON")
    }

    /// How many bytes the JSON takes.
    pub fn size(&self) -> usize {
        self.json.len()
    }

    /// The JSON after `change`, or nothing when `change` changed nothing: the PUT that is not needed is not sent.
    pub fn edited(&self, change: impl FnOnce(&mut Value)) -> Option<Value> {
        let before = self.json();
        let mut after = before.clone();
        change(&mut after);
        (after != before).then_some(after)
    }
}

impl<K> Deref for RawObject<K> {
    type Target = K;

    fn deref(&self) -> &K {
        &self.object
    }
}

impl<'de, K: DeserializeOwned> Deserialize<'de> for RawObject<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let json = without_managed_fields(deserializer)?.into_boxed_str();
        if depth(&json) > DEEPEST {
            return Err(D::Error::custom(format!("it is nested deeper than {DEEPEST} levels")));
        }
        Ok(Self { object: serde_json::from_str(&json).map_err(D::Error::custom)?, json })
    }
}

impl<K> Serialize for RawObject<K> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.json().serialize(serializer)
    }
}

impl<K: Resource> Resource for RawObject<K> {
    type DynamicType = K::DynamicType;
    type Scope = K::Scope;

    fn kind(dt: &Self::DynamicType) -> Cow<'_, str> {
        K::kind(dt)
    }

    fn group(dt: &Self::DynamicType) -> Cow<'_, str> {
        K::group(dt)
    }

    fn version(dt: &Self::DynamicType) -> Cow<'_, str> {
        K::version(dt)
    }

    fn plural(dt: &Self::DynamicType) -> Cow<'_, str> {
        K::plural(dt)
    }

    fn meta(&self) -> &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
        self.object.meta()
    }

    fn meta_mut(&mut self) -> &mut k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
        self.object.meta_mut()
    }
}

/// PUTs `json` over the object that it names and answers what the server made of it.
///
/// # Errors
/// The server's, and a decoding error when `json` has no name or the answer is not a `K`.
pub async fn replace<K>(client: &Client, json: &Value) -> kube::Result<RawObject<K>>
where
    K: Resource<DynamicType = ()> + DeserializeOwned,
{
    let text = |pointer: &str| json.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let (namespace, name) = (text("/metadata/namespace"), text("/metadata/name"));
    let path = K::url_path(&(), (!namespace.is_empty()).then_some(namespace));
    let request = ::http::Request::put(format!("{path}/{name}"))
        .header("content-type", "application/json")
        .body(json.to_string().into_bytes())
        .map_err(kube::Error::HttpError)?;
    client.request(request).await
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use serde_json::json;

    use super::*;

    fn read() -> RawObject<ConfigMap> {
        let json = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "1"}, "future": {"field": true},
            "metadata": {"name": "web", "namespace": "shop", "managedFields": [{"manager": "kubectl"}]}});
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn fields_that_the_type_does_not_know_survive_a_change() {
        let after = read().edited(|json| json["data"]["a"] = "2".into()).unwrap();
        assert_eq!(after["future"]["field"], true);
        assert_eq!(after["data"]["a"], "2");
        assert_eq!(after["metadata"].get("managedFields"), None);
    }

    #[test]
    fn an_object_that_could_not_be_written_back_is_an_error_of_its_own() {
        let nested = |levels: usize| format!(r#"{{"future":{}{}}}"#, "[".repeat(levels), "]".repeat(levels));
        assert!(serde_json::from_str::<RawObject<ConfigMap>>(&nested(DEEPEST - 1)).is_ok());
        let error = serde_json::from_str::<RawObject<ConfigMap>>(&nested(DEEPEST)).unwrap_err().to_string();
        assert!(error.starts_with("it is nested deeper than 100 levels"), "{error}");
    }

    #[test]
    fn a_change_that_changes_nothing_asks_for_no_write() {
        assert_eq!(read().edited(|json| json["data"]["a"] = "1".into()), None);
    }
}
