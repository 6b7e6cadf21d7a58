use rstest::rstest;
use serde_json::json;

use super::*;
use crate::kind::{ALL_VERBS, Origin, Scope};

fn kind() -> Kind {
    Kind {
        group: String::new(),
        version: "v1".into(),
        kind: "ConfigMap".into(),
        list_kind: "ConfigMapList".into(),
        plural: "configmaps".into(),
        singular: "configmap".into(),
        short_names: vec![],
        categories: vec![],
        scope: Scope::Namespaced,
        subresources: vec![],
        verbs: ALL_VERBS.map(str::to_owned).to_vec(),
        columns: vec![],
        selectable: vec![],
        keeps_generation: false,
        unconditional_update: true,
        create_on_update: false,
        storage: true,
        origin: Origin::Builtin,
    }
}

#[test]
fn refusals_read_as_those_of_the_real_server() {
    let vectors: Value = serde_json::from_str(include_str!("../../tests/vectors/selectors.json")).unwrap();
    for vector in vectors.as_array().unwrap() {
        let text = |key: &str| vector[key].as_str().unwrap_or_default();
        let answer = Selection::parse(&kind(), text("labels"), text("fields"));
        let message = answer.err().map(|error| error.to_string());
        assert_eq!(message.as_deref(), vector["message"].as_str(), "{vector}");
    }
}

#[rstest]
#[case("", true)]
#[case("app=web", true)]
#[case("app==web,tier", true)]
#[case(" app = web , tier ", true)]
#[case("app!=web", false)]
#[case("absent!=web", true)]
#[case("app in (api, web)", true)]
#[case("app notin (api,web)", false)]
#[case("absent notin (web)", true)]
#[case("!absent", true)]
#[case("!app", false)]
#[case("weight>4,weight<6", true)]
#[case("weight>5", false)]
#[case("app>5", false)]
#[case("tier=", true)]
#[case("tier in ()", true)]
#[case("in in (in)", false)]
fn labels_select(#[case] selector: &str, #[case] expected: bool) {
    let object = json!({"metadata": {"labels": {"app": "web", "tier": "", "weight": "5"}}});
    assert_eq!(LabelSelector::parse(selector).unwrap().matches(&object), expected);
}

#[rstest]
#[case("", true)]
#[case("metadata.name=web", true)]
#[case("metadata.name==web,metadata.namespace!=kube-system", true)]
#[case("metadata.name!=web", false)]
#[case("status.phase=Running", false)]
#[case("spec.unschedulable=false", true)]
#[case("spec.host=", true)]
fn fields_select(#[case] selector: &str, #[case] expected: bool) {
    let mut kind = kind();
    kind.selectable = ["status.phase", "spec.unschedulable", "spec.host"].map(str::to_owned).to_vec();
    let object = json!({"metadata": {"name": "web", "namespace": "shop"}, "status": {"phase": "Pending"}});
    assert_eq!(FieldSelector::parse(&kind, selector).unwrap().matches(&object), expected);
}

#[rstest]
#[case::one("metadata.name=web", Some("web"))]
#[case::among_others("metadata.namespace=shop,metadata.name==web", Some("web"))]
#[case::of_a_field_that_the_kind_lacks("spec.host=a,metadata.name=web", Some("web"))]
#[case::all_but_one("metadata.name!=web", None)]
#[case::all("", None)]
#[case::no_selector("metadata.name=web,what", None)]
#[case::no_name_of_a_path("metadata.name=..", None)]
#[case::two_segments("metadata.name=a/b", None)]
fn the_one_name_that_is_asked_for_is_known(#[case] fields: &str, #[case] name: Option<&str>) {
    assert_eq!(asked_name(fields).as_deref(), name);
}

#[test]
fn an_object_selector_means_what_its_text_means() {
    let selector = LabelSelector::of_object(&json!({
        "matchLabels": {"app": "web"},
        "matchExpressions": [{"key": "old", "operator": "DoesNotExist"}],
    }));
    assert_eq!(selector, LabelSelector::parse("app=web,!old").unwrap());
}

proptest::proptest! {
    #[test]
    fn no_text_breaks_the_parser(text in "\\PC*", odd in "[a-z!=<>(), ]*") {
        drop(Selection::parse(&kind(), &text, &text));
        drop(Selection::parse(&kind(), &odd, &odd));
    }
}
