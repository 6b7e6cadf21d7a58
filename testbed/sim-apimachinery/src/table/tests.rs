use super::*;
use crate::builtin as kinds;

#[test]
fn tables_read_as_those_of_the_real_server() {
    let vectors: Value = serde_json::from_str(include_str!("../../tests/vectors/table.json")).unwrap();
    let now: Timestamp = vectors["now"].as_str().unwrap().parse().unwrap();
    let custom = Kind::of_crd(&vectors["crd"]).remove(0);
    for case in vectors["tables"].as_array().unwrap() {
        let kind = case["kind"].as_str().unwrap();
        let kind = kinds::find(case["apiVersion"].as_str().unwrap(), kind).unwrap_or(&custom);
        let objects = case["objects"].as_array().unwrap();
        let ours = table(kind, objects, objects.iter().map(partial).collect(), now);
        for (definition, theirs) in
            ours["columnDefinitions"].as_array().unwrap().iter().zip(case["columns"].as_array().unwrap())
        {
            for key in ["name", "type", "format", "priority"] {
                assert_eq!(definition[key], theirs[key], "{} {definition}", kind.kind);
            }
        }
        assert_eq!(
            ours["columnDefinitions"].as_array().unwrap().len(),
            case["columns"].as_array().unwrap().len()
        );
        let rows = ours["rows"].as_array().unwrap();
        for (row, theirs) in rows.iter().zip(case["cells"].as_array().unwrap()) {
            for (at, (ours, theirs)) in
                row["cells"].as_array().unwrap().iter().zip(theirs.as_array().unwrap()).enumerate()
            {
                // the recording took its seconds
                let is_age = ["Age", "Last Seen", "First Seen"]
                    .iter()
                    .any(|name| case["columns"][at]["name"] == *name);
                let seconds = |value: &Value| value.as_str().is_some_and(|age| age.ends_with('s'));
                if !(is_age && seconds(ours) && seconds(theirs)) {
                    assert_eq!(ours, theirs, "{} {row} {}", kind.kind, case["columns"][at]["name"]);
                }
            }
        }
        assert_eq!(rows.len(), case["cells"].as_array().unwrap().len());
    }
}
