//! The options of requests: what a real server checks before it looks at an object.
//!
//! Each check answers everything that is wrong; [`refusal`] makes the answer of it.

use serde_json::json;

use crate::body::FieldValidation;
use crate::status::{Cause, Status};

/// The longest name of a field manager, in bytes.
const MANAGER: usize = 128;

/// The options of every write.
#[derive(Clone, Copy, Debug, Default)]
pub struct Write<'a> {
    /// Each `dryRun`.
    pub dry_run: &'a [String],
    /// `fieldManager`, empty where there is none.
    pub field_manager: &'a str,
    /// `fieldValidation`, empty where there is none.
    pub field_validation: &'a str,
}

/// The options of a patch.
#[derive(Clone, Copy, Debug, Default)]
pub struct Patch<'a> {
    /// The options of every write.
    pub write: Write<'a>,
    /// `force`, if it is given.
    pub force: Option<bool>,
    /// True for an apply patch.
    pub is_apply: bool,
}

/// The options of a delete.
#[derive(Clone, Copy, Debug, Default)]
pub struct Delete<'a> {
    /// Each `dryRun`.
    pub dry_run: &'a [String],
    /// `propagationPolicy`, if it is given.
    pub propagation_policy: Option<&'a str>,
    /// `orphanDependents`, if it is given.
    pub orphan_dependents: Option<bool>,
}

/// The options of a list, a watch and the deletion of a collection.
#[derive(Clone, Copy, Debug, Default)]
pub struct List<'a> {
    /// `resourceVersion`, empty where there is none.
    pub resource_version: &'a str,
    /// `resourceVersionMatch`, empty where there is none.
    pub version_match: &'a str,
    /// Whether the client continues a list.
    pub continues: bool,
    /// True for a watch.
    pub watch: bool,
    /// Whether `sendInitialEvents` is given, be it as true or as false.
    pub names_initial_events: bool,
}

/// The 422 for options with faults; `kind` is such as `PatchOptions`.
///
/// # Errors
/// If there are faults.
pub fn refusal(kind: &str, faults: &[Cause]) -> Result<(), Status> {
    if faults.is_empty() { Ok(()) } else { Err(Status::invalid_kind("meta.k8s.io", kind, "", faults)) }
}

impl Write<'_> {
    /// Returns the faults of the options.
    pub fn faults(&self) -> Vec<Cause> {
        let mut faults = Vec::new();
        if self.field_manager.len() > MANAGER {
            faults.push(Cause::too_long("fieldManager", MANAGER));
        }
        for (at, letter) in self.field_manager.chars().enumerate() {
            if letter.is_control() {
                let detail = format!("invalid character U+{:04X} (at position {at})", u32::from(letter));
                faults.push(Cause::invalid("fieldManager", &self.field_manager.into(), &detail));
            }
        }
        faults.extend(wrong_dry_run(self.dry_run));
        if FieldValidation::parse(self.field_validation).is_none() {
            let supported = ["", "Ignore", "Strict", "Warn"];
            faults.push(Cause::not_supported("fieldValidation", &self.field_validation.into(), &supported));
        }
        faults
    }
}

impl Patch<'_> {
    /// Returns the faults of the options.
    pub fn faults(&self) -> Vec<Cause> {
        let mut faults = Vec::new();
        if self.is_apply && self.write.field_manager.is_empty() {
            faults.push(Cause::required("fieldManager", "is required for apply patch"));
        }
        if !self.is_apply && self.force.is_some() {
            faults.push(Cause::forbidden("force", "may not be specified for non-apply patch"));
        }
        faults.extend(self.write.faults());
        faults
    }
}

impl Delete<'_> {
    /// Returns the faults of the options.
    pub fn faults(&self) -> Vec<Cause> {
        let mut faults = Vec::new();
        if let Some(policy) = self.propagation_policy {
            if self.orphan_dependents.is_some() {
                let detail = "orphanDependents and deletionPropagation cannot be both set";
                faults.push(Cause::invalid("propagationPolicy", &policy.into(), detail));
            }
            if !matches!(policy, "Foreground" | "Background" | "Orphan") {
                let supported = ["Foreground", "Background", "Orphan", "nil"];
                faults.push(Cause::not_supported("propagationPolicy", &policy.into(), &supported));
            }
        }
        faults.extend(wrong_dry_run(self.dry_run));
        faults
    }
}

impl List<'_> {
    /// Returns the faults of the options.
    pub fn faults(&self) -> Vec<Cause> {
        const FIELD: &str = "resourceVersionMatch";
        let mut faults = Vec::new();
        let mut forbid = |condition, field, detail| {
            if condition {
                faults.push(Cause::forbidden(field, detail));
            }
        };
        let asks = !self.version_match.is_empty();
        let supported: &[&str] = if self.watch { &["NotOlderThan"] } else { &["Exact", "NotOlderThan", ""] };
        let continues = "resourceVersionMatch is forbidden when continue is provided";
        if self.watch {
            let needs = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
            forbid(self.names_initial_events && self.version_match != "NotOlderThan", FIELD, needs);
            let alone = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided";
            forbid(asks && !self.names_initial_events, FIELD, alone);
        } else {
            let alone = "resourceVersionMatch is forbidden unless resourceVersion is provided";
            forbid(asks && self.resource_version.is_empty(), FIELD, alone);
        }
        forbid(asks && self.continues, FIELD, continues);
        if !self.watch {
            let zero = "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"";
            forbid(self.version_match == "Exact" && self.resource_version == "0", FIELD, zero);
            let initial = "sendInitialEvents is forbidden for list";
            forbid(self.names_initial_events, "sendInitialEvents", initial);
        }
        if asks && !supported.contains(&self.version_match) {
            faults.push(Cause::not_supported(FIELD, &self.version_match.into(), supported));
        }
        faults
    }
}

fn wrong_dry_run(given: &[String]) -> Option<Cause> {
    let wrong = given.iter().any(|run| run != "All");
    wrong.then(|| Cause::not_supported("dryRun", &json!(given), &["All"]))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn texts(faults: &[Cause]) -> Vec<String> {
        faults.iter().map(|fault| format!("{}: {}", fault.field, fault.message)).collect()
    }

    fn owned(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    const ALONE: &str = "resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided";
    const NOT_FOO: &str =
        r#"resourceVersionMatch: Unsupported value: "Foo": supported values: "Exact", "NotOlderThan", """#;
    const NEEDS: &str = "resourceVersionMatch: Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";

    #[rstest]
    #[case::nothing(&[], "", "", &[])]
    #[case::fine(&["All"], "kubectl", "Strict", &[])]
    #[case::dry(&["All", "Some"], "", "", &[r#"dryRun: Unsupported value: ["All","Some"]: supported values: "All""#])]
    #[case::empty_dry(&[""], "", "", &[r#"dryRun: Unsupported value: [""]: supported values: "All""#])]
    #[case::line_break(&[], "a\nb", "", &[r#"fieldManager: Invalid value: "a\nb": invalid character U+000A (at position 1)"#])]
    #[case::validation(&[], "", "Foo", &[r#"fieldValidation: Unsupported value: "Foo": supported values: "", "Ignore", "Strict", "Warn""#])]
    fn of_a_write(
        #[case] dry_run: &[&str],
        #[case] field_manager: &str,
        #[case] field_validation: &str,
        #[case] expected: &[&str],
    ) {
        let write = Write { dry_run: &owned(dry_run), field_manager, field_validation };
        assert_eq!(texts(&write.faults()), expected);
    }

    #[test]
    fn a_patch_is_told_everything_at_once() {
        let manager = "x".repeat(129);
        let write = Write { dry_run: &[], field_manager: &manager, field_validation: "x" };
        let patch = Patch { write, force: Some(false), is_apply: false };
        assert_eq!(
            texts(&patch.faults()),
            [
                "force: Forbidden: may not be specified for non-apply patch",
                "fieldManager: Too long: may not be more than 128 bytes",
                r#"fieldValidation: Unsupported value: "x": supported values: "", "Ignore", "Strict", "Warn""#,
            ]
        );
        let apply = Patch { is_apply: true, force: Some(true), ..Patch::default() };
        assert_eq!(texts(&apply.faults()), ["fieldManager: Required value: is required for apply patch"]);
    }

    #[rstest]
    #[case(Some("Orphan"), None, &[])]
    #[case(None, Some(true), &[])]
    #[case(Some("Orphan"), Some(true),
        &[r#"propagationPolicy: Invalid value: "Orphan": orphanDependents and deletionPropagation cannot be both set"#])]
    #[case(Some("Slowly"), None,
        &[r#"propagationPolicy: Unsupported value: "Slowly": supported values: "Foreground", "Background", "Orphan", "nil""#])]
    fn of_a_delete(
        #[case] propagation_policy: Option<&str>,
        #[case] orphan_dependents: Option<bool>,
        #[case] expected: &[&str],
    ) {
        let delete = Delete { dry_run: &[], propagation_policy, orphan_dependents };
        assert_eq!(texts(&delete.faults()), expected);
    }

    #[rstest]
    #[case("", "", &[])]
    #[case("5", "Exact", &[])]
    #[case("0", "NotOlderThan", &[])]
    #[case("", "Exact", &[ALONE])]
    #[case("", "Foo", &[ALONE, NOT_FOO])]
    #[case("1", "Foo", &[NOT_FOO])]
    #[case("0", "Exact", &[r#"resourceVersionMatch: Forbidden: resourceVersionMatch "exact" is forbidden for resourceVersion "0""#])]
    fn of_a_list(#[case] resource_version: &str, #[case] version_match: &str, #[case] expected: &[&str]) {
        let list = List { resource_version, version_match, ..List::default() };
        assert_eq!(texts(&list.faults()), expected);
    }

    #[rstest]
    #[case("", false, &[])]
    #[case("NotOlderThan", true, &[])]
    #[case("NotOlderThan", false,
        &["resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"])]
    #[case("", true, &[NEEDS])]
    #[case("Exact", true, &[NEEDS, r#"resourceVersionMatch: Unsupported value: "Exact": supported values: "NotOlderThan""#])]
    fn of_a_watch(#[case] version_match: &str, #[case] initial: bool, #[case] expected: &[&str]) {
        let watch = List { version_match, watch: true, names_initial_events: initial, ..List::default() };
        assert_eq!(texts(&watch.faults()), expected);
    }

    #[test]
    fn a_list_that_is_continued_names_no_match() {
        let list = List { resource_version: "5", version_match: "Exact", continues: true, ..List::default() };
        assert_eq!(list.faults().len(), 1);
        assert_eq!(refusal("ListOptions", &list.faults()).unwrap_err().code, 422);
        let initial = List { names_initial_events: true, ..List::default() };
        assert_eq!(
            texts(&initial.faults()),
            ["sendInitialEvents: Forbidden: sendInitialEvents is forbidden for list"]
        );
    }
}
