//! Conditions, finalizers and status in the raw JSON that is written back.

use harvester_api::condition::READY;
use serde_json::{Map, Value, json};

use crate::controller::requested;

/// The longest message: what the server accepts in an Event, where it may be copied to.
pub(crate) const MESSAGE_MAX: usize = 1024;

/// Every reason of a condition that is false.
const REASONS: [&str; 33] = [
    "AddressInUse",
    "AddressNotInPool",
    "BackendsWithoutAddress",
    "ClaimUnderWay",
    "Deleting",
    "DualStackNotSupported",
    "FormerServiceGoing",
    "IPFamilyNotSupported",
    "InvalidIPFamilies",
    "InvalidRequestedAddress",
    "InvalidSourceRanges",
    "NameTaken",
    "NoBackends",
    "NoHealthyBackend",
    "NoMatchingPool",
    "NotListed",
    "PoolDraining",
    "PoolExhausted",
    "PoolInvalid",
    "PoolNotAllowed",
    "PoolNotFound",
    "PoolNotReady",
    "PoolNotWritten",
    "PoolWithoutFamily",
    "QuotaExceeded",
    "RecordFull",
    "ReleaseUnderWay",
    "ServiceGoing",
    "ServiceRefused",
    "SettingUp",
    "TooManyListeners",
    "WaitingForExternalIP",
    "WaitingForMachines",
];

/// The reason, if it is one of this program's.
pub(crate) fn known_reason(reason: &str) -> Option<&'static str> {
    REASONS.into_iter().find(|known| *known == reason)
}

/// The Ready condition to show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ready {
    pub(crate) ready: bool,
    /// CamelCase, for programs.
    pub(crate) reason: &'static str,
    /// For people; when ready, empty or a note.
    pub(crate) message: String,
}

impl Ready {
    pub(crate) fn yes(reason: &'static str) -> Self {
        Self { ready: true, reason, message: String::new() }
    }

    pub(crate) fn no(reason: &'static str, message: impl Into<String>) -> Self {
        debug_assert!(known_reason(reason).is_some(), "{reason} belongs into REASONS");
        Self { ready: false, reason, message: message.into().chars().take(MESSAGE_MAX).collect() }
    }

    /// With the note at its end.
    pub(crate) fn with_note(mut self, note: Option<&str>) -> Self {
        const JOINT: &str = "; ";
        let Some(note) = note else { return self };
        let note: String = shortened(note).chars().take(MESSAGE_MAX - JOINT.len()).collect();
        let room = MESSAGE_MAX - note.chars().count() - JOINT.len();
        if !self.message.is_empty() {
            self.message = self.message.chars().take(room).collect::<String>() + JOINT;
        }
        self.message += &note;
        self
    }
}

/// The note, cut to half of a message. The refused wishes that end it stay whole, because they are read from the condition:
/// an address would move to the one that was wished for when that comes free.
fn shortened(note: &str) -> String {
    const CUT: &str = "…; ";
    let length = |text: &str| text.chars().count();
    let (before, wishes) = note.split_at(requested::refused_wishes_at(note));
    let room = (MESSAGE_MAX / 2).saturating_sub(length(wishes));
    if length(before) <= room {
        return note.to_owned();
    }
    if wishes.is_empty() {
        return before.chars().take(room).collect();
    }
    before.chars().take(room.saturating_sub(length(CUT))).collect::<String>() + CUT + wishes
}

/// The `status` of an object, made if it is not there.
pub(crate) fn status_of(json: &mut Value) -> &mut Map<String, Value> {
    let root = json.as_object_mut().expect("an object that was read is a JSON object");
    let status = root.entry("status").or_insert_with(|| json!({}));
    if !status.is_object() {
        *status = json!({});
    }
    status.as_object_mut().expect("just made an object")
}

/// Writes the Ready condition; `now` is RFC 3339. Other conditions stay. One that says the same already stays as it
/// is, also one of the Go program, which gives no reason.
pub(crate) fn write_ready(status: &mut Map<String, Value>, ready: &Ready, now: &str) {
    let value = if ready.ready { "True" } else { "False" };
    let conditions = status.entry("conditions").or_insert_with(|| json!([]));
    if !conditions.is_array() {
        *conditions = json!([]);
    }
    let conditions = conditions.as_array_mut().expect("just made an array");
    let text = |condition: &Value, key: &str| condition[key].as_str().unwrap_or_default().to_owned();
    let Some(old) = conditions.iter_mut().find(|condition| condition["type"] == READY) else {
        conditions.push(json!({
            "type": READY, "status": value, "reason": ready.reason, "message": ready.message,
            "lastUpdateTime": now, "lastTransitionTime": now,
        }));
        return;
    };
    let turned = text(old, "status") != value;
    let reworded =
        text(old, "message") != ready.message || (!ready.ready && text(old, "reason") != ready.reason);
    if !turned && !reworded {
        return;
    }
    old["status"] = value.into();
    old["reason"] = ready.reason.into();
    old["message"] = ready.message.clone().into();
    old["lastUpdateTime"] = now.into();
    if turned {
        old["lastTransitionTime"] = now.into();
    }
}

/// Adds a finalizer, if it is not there.
pub(crate) fn add_finalizer(json: &mut Value, name: &str) {
    let Some(metadata) = json.pointer_mut("/metadata").and_then(Value::as_object_mut) else { return };
    let list = metadata.entry("finalizers").or_insert_with(|| json!([]));
    if let Some(list) = list.as_array_mut().filter(|list| !list.iter().any(|finalizer| finalizer == name)) {
        list.push(name.into());
    }
}

/// Removes a finalizer; the others stay.
pub(crate) fn remove_finalizer(json: &mut Value, name: &str) {
    let Some(metadata) = json.pointer_mut("/metadata").and_then(Value::as_object_mut) else { return };
    let Some(list) = metadata.get_mut("finalizers").and_then(Value::as_array_mut) else { return };
    list.retain(|finalizer| finalizer != name);
    if list.is_empty() {
        metadata.remove("finalizers");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(before: &Value, ready: &Ready) -> Value {
        let mut json = json!({"status": {"conditions": before}});
        write_ready(status_of(&mut json), ready, "now");
        json["status"]["conditions"].take()
    }

    #[test]
    fn a_condition_that_says_the_same_is_left_alone_whoever_wrote_it() {
        let go = json!([{"type": "Ready", "status": "True", "lastUpdateTime": "then"}]);
        assert_eq!(written(&go, &Ready::yes("AddressAllocated")), go);
    }

    #[test]
    fn a_new_message_keeps_the_time_of_the_last_turn() {
        let before = json!([{"type": "Other", "status": "True"}, {"type": "Ready", "status": "False",
            "reason": "PoolExhausted", "message": "a", "lastUpdateTime": "then", "lastTransitionTime": "then"}]);
        let after = json!([{"type": "Other", "status": "True"}, {"type": "Ready", "status": "False",
            "reason": "PoolExhausted", "message": "b", "lastUpdateTime": "now", "lastTransitionTime": "then"}]);
        assert_eq!(written(&before, &Ready::no("PoolExhausted", "b")), after);
        let turned = json!([{"type": "Other", "status": "True"}, {"type": "Ready", "status": "True", "reason": "Yes",
            "message": "", "lastUpdateTime": "now", "lastTransitionTime": "now"}]);
        assert_eq!(written(&before, &Ready::yes("Yes")), turned);
    }

    const WISH: &str = "requested address 10.0.1.9 is not used: it is in use";
    const OTHER_WISH: &str = "requested address fd00:6::9 is not used: it is in use";

    #[test]
    fn a_refused_wish_stays_whole_at_the_end_of_a_message_of_which_the_rest_is_cut() {
        let (wishes, waiting) = (format!("{WISH}; {OTHER_WISH}"), "m".repeat(3000));
        for before in [0, 300, 480, 520, 3000] {
            let before = "é".repeat(before);
            for message in ["", waiting.as_str()] {
                let note = format!("{before}; {wishes}");
                let told = Ready::no("NoBackends", message).with_note(Some(&note)).message;
                assert!(told.ends_with(&format!("; {wishes}")), "{told}");
                assert!(told.chars().count() <= MESSAGE_MAX, "{told}");
            }
        }
        let long = "w".repeat(5000);
        let told = Ready::yes("AddressAllocated").with_note(Some(&format!("{WISH}{long}"))).message;
        assert!(told.starts_with(WISH) && told.chars().count() <= MESSAGE_MAX, "{told}");
    }

    // else each would be written anew when a version that cuts otherwise starts
    #[test]
    fn a_message_of_which_nothing_was_cut_stays_as_it_is() {
        let before = "é".repeat(MESSAGE_MAX / 2 - WISH.len() - 2);
        for note in [WISH.to_owned(), format!("{before}; {WISH}"), "n".repeat(MESSAGE_MAX / 2)] {
            let told = Ready::no("NoBackends", "m".repeat(510)).with_note(Some(&note)).message;
            assert_eq!(told, format!("{}; {note}", "m".repeat(510)));
        }
        // one without a wish keeps its beginning
        let told = Ready::yes("AddressAllocated").with_note(Some(&"n".repeat(600))).message;
        assert_eq!(told, "n".repeat(MESSAGE_MAX / 2));
    }

    #[test]
    fn foreign_finalizers_stay() {
        let mut json = json!({"metadata": {"finalizers": ["a/b"]}});
        add_finalizer(&mut json, "c/d");
        add_finalizer(&mut json, "c/d");
        assert_eq!(json["metadata"]["finalizers"], json!(["a/b", "c/d"]));
        remove_finalizer(&mut json, "c/d");
        assert_eq!(json["metadata"]["finalizers"], json!(["a/b"]));
        remove_finalizer(&mut json, "a/b");
        assert_eq!(json["metadata"].get("finalizers"), None);
    }
}
