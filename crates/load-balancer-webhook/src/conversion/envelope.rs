//! ConversionReviews of the API server: read, answered, refused.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::{fmt, io};

use serde::de::{Deserializer, IgnoredAny, SeqAccess, Visitor};
use serde::ser::{Error as _, SerializeSeq as _, Serializer};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::{KEPT, Lookup, V1ALPHA1, V1BETA1, VERSIONS, convert, take_kept};
use crate::body::LARGEST_LIST;
use crate::dns;
use crate::limits::{LONGEST_REPEATED, VALUES_OF_REVIEW, values};
use crate::review::cut;

const KIND: &str = "LoadBalancer";
const NO_JSON: &str = "an object is no JSON that can be read";

/// Objects of one review. API servers ask for one at a time.
const OBJECTS: usize = 50_000;
/// Bytes of one object. An API server takes 3 MiB from a client, and etcd less.
const LONGEST_OBJECT: usize = 4 << 20;

/// A request to convert objects, which are read one after the other: a list may have ten thousand.
#[derive(Debug)]
pub(crate) struct Review<'a> {
    uid: Cow<'a, str>,
    to: &'static str,
    objects: Vec<&'a RawValue>,
}

/// What the conversion of some objects needs to know of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Needs {
    pub(crate) pools: bool,
    /// The namespaces whose VMs are looked up.
    pub(crate) machines: BTreeSet<String>,
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
    objects: Option<Objects<'a>>,
}

/// A list of objects: the first ones, and how many there are.
#[derive(Debug, Default)]
struct Objects<'a> {
    first: Vec<&'a RawValue>,
    count: usize,
}

impl<'a> Review<'a> {
    /// # Errors
    /// A sentence where the body is no ConversionReview, and with its UID where it asks for another version or for too
    /// many objects.
    pub(crate) fn read(body: &'a [u8]) -> Result<Self, (String, String)> {
        let envelope: Envelope<'a> = serde_json::from_slice(body)
            .map_err(|error| (String::new(), unreadable("the body is no ConversionReview", &error)))?;
        let Request { uid, desired, objects } = envelope.request;
        if uid.len() > LONGEST_REPEATED {
            let why =
                format!("the ConversionReview has more than {LONGEST_REPEATED} bytes in its request.uid");
            return Err((String::new(), why));
        }
        let Objects { first, count } = objects.unwrap_or_default();
        if count > OBJECTS {
            return Err((
                uid.into_owned(),
                format!("{count} objects are asked for, at most {OBJECTS} are converted at once"),
            ));
        }
        let Some(to) = VERSIONS.into_iter().find(|version| *version == desired) else {
            let sentence =
                format!("objects are converted to {} and not to {}", VERSIONS.join(" and "), cut(&desired));
            return Err((uid.into_owned(), sentence));
        };
        Ok(Self { uid, to, objects: first })
    }

    /// What its conversion needs to know. Measures each object before anything is built of it.
    ///
    /// # Errors
    /// The UID, and a sentence about an object that is larger than one that an API server stores.
    pub(crate) fn needs(&self) -> Result<Needs, (String, String)> {
        let mut needs = Needs::default();
        for object in &self.objects {
            if let Some(why) = unfit(object.get()) {
                return Err((self.uid.to_string(), why));
            }
            if self.to == V1BETA1 {
                needs.add(object.get());
            }
        }
        Ok(needs)
    }
}

/// Why nothing is built of an object: it would take more memory than any that was admitted.
fn unfit(object: &str) -> Option<String> {
    let over = |is: usize, most: usize, what: &str| {
        (is > most).then(|| format!("{} has {is} {what}, at most {most} are converted", named(object)))
    };
    over(object.len(), LONGEST_OBJECT, "bytes").or_else(|| match values(object) {
        Ok(values) => over(values, VALUES_OF_REVIEW, "fields and list entries"),
        Err(error) => Some(unreadable(NO_JSON, &error)),
    })
}

/// The error repeats what stands where something else was expected.
fn unreadable(what: &str, error: &serde_json::Error) -> String {
    format!("{what}: {}", cut(&error.to_string()))
}

/// What an object calls itself, for the administrator who has to find it.
fn named(object: &str) -> String {
    #[derive(Default, Deserialize)]
    struct Look<'a> {
        #[serde(borrow)]
        metadata: Names<'a>,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Names<'a> {
        #[serde(borrow)]
        namespace: Cow<'a, str>,
        #[serde(borrow)]
        name: Cow<'a, str>,
    }
    match serde_json::from_str(object) {
        Ok(Look { metadata: Names { namespace, name } }) => format!("{}/{}", cut(&namespace), cut(&name)),
        Err(_) => "an object".to_owned(),
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Objects<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct List;

        impl<'de> Visitor<'de> for List {
            type Value = Objects<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of objects")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<Objects<'de>, A::Error> {
                let mut first = Vec::new();
                while first.len() < OBJECTS {
                    let Some(object) = entries.next_element()? else {
                        return Ok(Objects { count: first.len(), first });
                    };
                    first.push(object);
                }
                let mut count = OBJECTS;
                while entries.next_element::<IgnoredAny>()?.is_some() {
                    count += 1;
                }
                Ok(Objects { first, count })
            }
        }

        deserializer.deserialize_seq(List)
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
            namespace: String,
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
        if look.api_version != V1ALPHA1 {
            return;
        }
        let needs_pools = look.spec.ipam != "dhcp" && !look.status.address.is_empty();
        let needs_machines = !look.spec.backend_servers.is_empty();
        if !needs_pools && !needs_machines {
            return;
        }
        // an annotation of another object, or of an earlier version, counts for nothing
        let kept = look.metadata.annotations.contains_key(KEPT).then(|| {
            let mut object: Value = serde_json::from_str(object).ok()?;
            let (_, status) = take_kept(&mut object)?;
            Some(status["backendServers"] == object["spec"]["backendServers"])
        });
        let kept = kept.flatten();
        self.pools |= needs_pools && kept.is_none();
        // another text is the name of no Namespace, so no VM is there
        if needs_machines && kept != Some(true) && dns::is_label(&look.metadata.namespace) {
            self.machines.insert(look.metadata.namespace);
        }
    }
}

/// The answer to a review: all objects converted in their order.
///
/// # Errors
/// The UID, and a sentence about an object that cannot be converted, or about all of them.
pub(crate) fn answer(review: &Review<'_>, lookup: &Lookup<'_>) -> Result<String, (String, String)> {
    let response = Response {
        rest: json!({"uid": review.uid, "result": {"status": "Success"}}),
        converted_objects: Converted { review, lookup },
    };
    text(response).map_err(|why| (review.uid.to_string(), why))
}

fn converted(object: &RawValue, to: &str, lookup: &Lookup<'_>) -> Result<Value, String> {
    let object: Value = serde_json::from_str(object.get()).map_err(|error| unreadable(NO_JSON, &error))?;
    let text = |field: &str| cut(object[field].as_str().unwrap_or_default());
    let (version, kind) = (text("apiVersion"), text("kind"));
    if kind != KIND || !VERSIONS.contains(&version.as_str()) {
        return Err(format!(
            "kind {kind:?} of {version:?} is not converted here, but {KIND} of {}",
            VERSIONS.join(" and ")
        ));
    }
    Ok(convert(object, to, lookup))
}

/// The answer to a review that cannot be carried out; the API server shows the sentence to its client.
pub(crate) fn refusal(uid: &str, why: &str) -> String {
    let result = json!({"status": "Failure", "message": format!("LoadBalancer conversion: {why}")});
    let none: [(); 0] = [];
    text(Response { rest: json!({"uid": uid, "result": result}), converted_objects: none })
        .expect("a sentence always becomes JSON")
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Response<T> {
    #[serde(flatten)]
    rest: Value,
    converted_objects: T,
}

/// The objects of a review, each of which is converted where it is written: never two of a list at once.
struct Converted<'a> {
    review: &'a Review<'a>,
    lookup: &'a Lookup<'a>,
}

impl Serialize for Converted<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Review { uid: _, to, objects } = self.review;
        let mut list = serializer.serialize_seq(Some(objects.len()))?;
        for object in objects {
            list.serialize_element(&converted(object, to, self.lookup).map_err(S::Error::custom)?)?;
        }
        list.end()
    }
}

/// The text of an answer, of no more bytes than the largest review has.
fn text(response: Response<impl Serialize>) -> Result<String, String> {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Answer<T> {
        api_version: &'static str,
        kind: &'static str,
        response: Response<T>,
    }
    let answer = Answer { api_version: "apiextensions.k8s.io/v1", kind: "ConversionReview", response };
    let mut bytes = Bounded(Vec::new());
    serde_json::to_writer(&mut bytes, &answer).map_err(|error| error.to_string())?;
    String::from_utf8(bytes.0).map_err(|error| error.to_string())
}

/// Takes as many bytes as a review may have.
struct Bounded(Vec<u8>);

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > LARGEST_LIST {
            return Err(io::Error::other("the objects become too large: ask for fewer at once"));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
