//! ConversionReviews of the API server: read, answered, refused.

use std::borrow::Cow;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};

use super::{KEPT, Known, VERSIONS, convert, take_kept};
use crate::review::cut;

const KIND: &str = "LoadBalancer";

/// A request to convert objects, which are read one after the other: a list may have ten thousand.
#[derive(Debug)]
pub(crate) struct Review<'a> {
    uid: Cow<'a, str>,
    to: &'static str,
    objects: Vec<&'a RawValue>,
}

/// What the conversion of some objects needs to know of the cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Needs {
    pub(crate) pools: bool,
    pub(crate) machines: bool,
}

#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow)]
    request: Request<'a>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Request<'a> {
    #[serde(borrow)]
    uid: Cow<'a, str>,
    #[serde(borrow, rename = "desiredAPIVersion")]
    desired: Cow<'a, str>,
    #[serde(borrow, default)]
    objects: Option<Vec<&'a RawValue>>,
}

impl<'a> Review<'a> {
    /// # Errors
    /// A sentence where the body is no ConversionReview, and with its UID where it asks for another version.
    pub(crate) fn read(body: &'a [u8]) -> Result<Self, (String, String)> {
        let envelope: Envelope<'a> = serde_json::from_slice(body)
            .map_err(|error| (String::new(), format!("the body is no ConversionReview: {error}")))?;
        let Request { uid, desired, objects } = envelope.request;
        let Some(to) = VERSIONS.into_iter().find(|version| *version == desired) else {
            let sentence =
                format!("objects are converted to {} and not to {}", VERSIONS.join(" and "), cut(&desired));
            return Err((uid.into_owned(), sentence));
        };
        Ok(Self { uid, to, objects: objects.unwrap_or_default() })
    }

    pub(crate) fn needs(&self) -> Needs {
        let mut needs = Needs::default();
        if self.to == VERSIONS[0] {
            for object in &self.objects {
                needs.add(object.get());
            }
        }
        needs
    }
}

impl Needs {
    /// An object of another form needs nothing: it is refused.
    fn add(&mut self, object: &str) {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Look {
            api_version: String,
            #[serde(default)]
            metadata: Metadata,
            #[serde(default)]
            spec: Spec,
            #[serde(default)]
            status: Status,
        }
        #[derive(Default, Deserialize)]
        struct Metadata {
            #[serde(default)]
            annotations: std::collections::HashMap<String, IgnoredAny>,
        }
        #[derive(Default, Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        struct Spec {
            ipam: String,
            backend_servers: Vec<IgnoredAny>,
        }
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Status {
            address: String,
        }
        let Ok(look) = serde_json::from_str::<Look>(object) else { return };
        if look.api_version != VERSIONS[1] {
            return;
        }
        // an annotation of another object, or of an earlier version, counts for nothing
        let was_kept = || {
            look.metadata.annotations.contains_key(KEPT)
                && serde_json::from_str(object).is_ok_and(|mut object| take_kept(&mut object).is_some())
        };
        self.pools |= look.spec.ipam != "dhcp" && !look.status.address.is_empty() && !was_kept();
        self.machines |= !look.spec.backend_servers.is_empty();
    }
}

/// The answer to a review: all objects converted in their order, or one sentence.
pub(crate) fn answer(review: &Review<'_>, known: &Known<'_>) -> String {
    let converted: Result<Vec<_>, String> =
        review.objects.iter().map(|object| converted(object, review.to, known)).collect();
    match converted {
        Ok(objects) => {
            let response = json!({"uid": review.uid, "result": {"status": "Success"}});
            with_objects(response, &objects)
        }
        Err(why) => refusal(&review.uid, &why),
    }
}

fn converted(object: &RawValue, to: &str, known: &Known<'_>) -> Result<Box<RawValue>, String> {
    let object: Value = serde_json::from_str(object.get())
        .map_err(|error| format!("an object is no JSON that can be read: {error}"))?;
    let text = |field: &str| cut(object[field].as_str().unwrap_or_default());
    let (version, kind) = (text("apiVersion"), text("kind"));
    if kind != KIND || !VERSIONS.contains(&version.as_str()) {
        return Err(format!(
            "kind {kind:?} of {version:?} is not converted here, but {KIND} of {}",
            VERSIONS.join(" and ")
        ));
    }
    to_raw_value(&convert(object, to, known)).map_err(|error| error.to_string())
}

/// The answer to a review that cannot be carried out; the API server shows the sentence to its client.
pub(crate) fn refusal(uid: &str, why: &str) -> String {
    let result = json!({"status": "Failure", "message": format!("LoadBalancer conversion: {why}")});
    with_objects(json!({"uid": uid, "result": result}), &[])
}

fn with_objects(response: Value, objects: &[Box<RawValue>]) -> String {
    #[derive(serde::Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Response<'a> {
        #[serde(flatten)]
        rest: Value,
        converted_objects: &'a [Box<RawValue>],
    }
    #[derive(serde::Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Answer<'a> {
        api_version: &'static str,
        kind: &'static str,
        response: Response<'a>,
    }
    let response = Response { rest: response, converted_objects: objects };
    let answer = Answer { api_version: "apiextensions.k8s.io/v1", kind: "ConversionReview", response };
    serde_json::to_string(&answer).expect("JSON always becomes text")
}
