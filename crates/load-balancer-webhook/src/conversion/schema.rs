//! What v1beta1 can say, as the CRD says it. The API server checks what a client sends by the schema of the client's version, and
//! nobody checks what a conversion makes of it: an object that no schema allows would break each reader of its kind, in every
//! namespace.

use serde_json::Value;

/// What a value may be.
#[derive(Debug)]
pub(super) enum Shape {
    Text,
    OneOf(&'static [&'static str]),
    Integer,
    Flag,
    List(&'static Shape),
    /// An object with values of one shape under any key.
    Map(&'static Shape),
    /// The fields that an object may have, and those that it must have. The API server drops all others.
    Object(&'static [(&'static str, Shape)], &'static [&'static str]),
}

use Shape::{Flag, Integer, List, Map, Object, OneOf, Text};

pub(super) const SPEC: Shape = Object(
    &[
        ("description", Text),
        ("workloadType", OneOf(&["vm", "cluster"])),
        ("ipam", OneOf(&["pool", "dhcp"])),
        ("ipPool", Text),
        ("ipv6Pool", Text),
        ("ipFamilyPolicy", OneOf(&["SingleStack", "PreferDualStack", "RequireDualStack"])),
        (
            "listeners",
            List(&Object(
                &[("name", Text), ("port", Integer), ("protocol", Text), ("backendPort", Integer)],
                &["backendPort", "port", "protocol"],
            )),
        ),
        ("backendServerSelector", Map(&List(&Text))),
        (
            "healthCheck",
            Object(
                &[
                    ("port", Integer),
                    ("successThreshold", Integer),
                    ("failureThreshold", Integer),
                    ("periodSeconds", Integer),
                    ("timeoutSeconds", Integer),
                    ("path", Text),
                    ("scheme", OneOf(&["HTTP", "HTTPS"])),
                ],
                &[],
            ),
        ),
    ],
    &[],
);

pub(super) const STATUS: Shape = Object(
    &[
        ("backendServers", List(&Text)),
        (
            "backends",
            List(&Object(
                &[("name", Text), ("address", Text), ("ready", Flag), ("lastError", Text), ("since", Text)],
                &[],
            )),
        ),
        (
            "allocatedAddress",
            Object(
                &[
                    ("ipPool", Text),
                    ("ip", Text),
                    ("mask", Text),
                    ("gateway", Text),
                    ("ipv6Pool", Text),
                    ("ipv6IP", Text),
                    ("ipv6Mask", Text),
                    ("ipv6Gateway", Text),
                ],
                &[],
            ),
        ),
        ("addresses", List(&Text)),
        ("address", Text),
        (
            "conditions",
            List(&Object(
                &[
                    ("type", Text),
                    ("status", Text),
                    ("lastUpdateTime", Text),
                    ("lastTransitionTime", Text),
                    ("reason", Text),
                    ("message", Text),
                ],
                &["status", "type"],
            )),
        ),
    ],
    &[],
);

/// Whether the API server would store it.
pub(super) fn allows(shape: &Shape, value: &Value) -> bool {
    match shape {
        Text => value.is_string(),
        OneOf(words) => value.as_str().is_some_and(|text| words.contains(&text)),
        Integer => value.is_i64(),
        Flag => value.is_boolean(),
        List(of) => value.as_array().is_some_and(|all| all.iter().all(|one| allows(of, one))),
        Map(of) => value.as_object().is_some_and(|all| all.values().all(|one| allows(of, one))),
        Object(fields, required) => {
            let there = |(field, shape): &(&str, Shape)| value.get(field).is_none_or(|it| allows(shape, it));
            value.is_object()
                && fields.iter().all(there)
                && required.iter().all(|field| value.get(field).is_some())
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;
    use test_cluster::{Side, manifests};

    use super::*;

    /// The shape as a CRD writes it.
    fn written(shape: &Shape) -> Value {
        match shape {
            Text => json!({"type": "string"}),
            OneOf(words) => json!({"type": "string", "enum": words}),
            Integer => json!({"type": "integer"}),
            Flag => json!({"type": "boolean"}),
            List(of) => json!({"type": "array", "items": written(of)}),
            Map(of) => json!({"type": "object", "additionalProperties": written(of)}),
            Object(fields, required) => {
                let properties: serde_json::Map<_, _> =
                    fields.iter().map(|(field, shape)| ((*field).to_owned(), written(shape))).collect();
                let mut schema = json!({"type": "object", "properties": properties});
                if !required.is_empty() {
                    schema["required"] = json!(required);
                }
                schema
            }
        }
    }

    /// The schema of a CRD, of which each word that says what is allowed is one that a [`Shape`] has.
    fn read(schema: &Value) -> Value {
        let mut read = json!({});
        for (word, value) in schema.as_object().unwrap() {
            match word.as_str() {
                "type" | "enum" | "required" => read[word] = value.clone(),
                "items" | "additionalProperties" => read[word] = self::read(value),
                "properties" => {
                    let fields = value.as_object().unwrap().iter();
                    read[word] = fields.map(|(field, schema)| (field.clone(), self::read(schema))).collect();
                }
                // `int32` bounds nothing in a CRD
                "description" | "default" | "format" => {}
                _ => panic!("a Shape does not know {word}"),
            }
        }
        read
    }

    #[test]
    fn the_shapes_are_those_of_the_crd() {
        let mut kinds = manifests::kinds(Side::Harvester).iter();
        let crd = kinds
            .find(|crd| crd["metadata"]["name"] == "loadbalancers.loadbalancer.harvesterhci.io")
            .unwrap();
        let mut versions = crd["spec"]["versions"].as_array().unwrap().iter();
        let beta = versions.find(|version| version["name"] == "v1beta1").unwrap();
        let properties = &beta["schema"]["openAPIV3Schema"]["properties"];
        assert_eq!(written(&SPEC), read(&properties["spec"]));
        assert_eq!(written(&STATUS), read(&properties["status"]));
    }

    #[rstest]
    #[case(json!({"listeners": [{"port": 80, "protocol": "TCP", "backendPort": 80}], "unknown": 1}), true)]
    #[case(json!({"listeners": [{}]}), false)]
    #[case(json!({"listeners": {}}), false)]
    #[case(json!({"healthCheck": {"periodSeconds": "7"}}), false)]
    #[case(json!({"healthCheck": {"periodSeconds": 1e30}}), false)]
    #[case(json!({"healthCheck": {"scheme": "https"}}), false)]
    #[case(json!({"healthCheck": null}), false)]
    #[case(json!({"workloadType": {"x": 1}}), false)]
    #[case(json!({"backendServerSelector": {"app": ["a", 1]}}), false)]
    #[case(json!([]), false)]
    fn what_the_crd_refuses_is_not_allowed(#[case] spec: Value, #[case] allowed: bool) {
        assert_eq!(allows(&SPEC, &spec), allowed, "{spec}");
    }
}
