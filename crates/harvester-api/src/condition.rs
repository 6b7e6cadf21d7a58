//! Conditions of LoadBalancer and IPPool objects.

use serde::{Deserialize, Serialize};

/// The only condition type of both kinds.
pub const READY: &str = "Ready";

/// Whether a condition holds. The schema admits any text; what is neither `True` nor `False` is `Unknown`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String")]
pub enum ConditionStatus {
    True,
    False,
    Unknown,
}

impl From<String> for ConditionStatus {
    fn from(text: String) -> Self {
        match text.as_str() {
            "True" => Self::True,
            "False" => Self::False,
            _ => Self::Unknown,
        }
    }
}

/// One condition. Times are RFC 3339 text in UTC with whole seconds, as the Go program writes them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// [`READY`].
    pub r#type: String,
    pub status: ConditionStatus,
    /// When status, reason or message last changed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub last_update_time: String,
    /// When the status last changed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub last_transition_time: String,
    /// A CamelCase word for programs.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// A sentence for people; empty when the condition is true.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// The Ready condition among `conditions`.
pub fn ready(conditions: &[Condition]) -> Option<&Condition> {
    conditions.iter().find(|condition| condition.r#type == READY)
}

/// `conditions` with the Ready condition as given, other types kept. The times move only with what they are about,
/// so equal input gives equal output and no write.
pub fn with_ready(
    conditions: &[Condition],
    status: ConditionStatus,
    reason: &str,
    message: &str,
    now: &str,
) -> Vec<Condition> {
    let mut next = conditions.to_vec();
    let at = next.iter().position(|condition| condition.r#type == READY).unwrap_or_else(|| {
        next.push(Condition {
            r#type: READY.to_owned(),
            status,
            last_update_time: now.to_owned(),
            last_transition_time: now.to_owned(),
            reason: String::new(),
            message: String::new(),
        });
        next.len() - 1
    });
    let ready = &mut next[at];
    if ready.status != status {
        ready.last_transition_time = now.to_owned();
    }
    if (ready.status, &*ready.reason, &*ready.message) != (status, reason, message) {
        ready.last_update_time = now.to_owned();
    }
    (ready.status, ready.reason, ready.message) = (status, reason.to_owned(), message.to_owned());
    next
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_odd_status_hides_no_object() {
        let odd: Condition = serde_json::from_str(r#"{"type": "Ready", "status": "maybe"}"#).unwrap();
        assert_eq!(odd.status, ConditionStatus::Unknown);
        assert_eq!(serde_json::to_value(ConditionStatus::True).unwrap(), "True");
    }

    #[test]
    fn saying_the_same_again_changes_nothing_and_a_new_message_keeps_the_transition() {
        let first = with_ready(&[], ConditionStatus::False, "NoPool", "no pool", "t1");
        assert_eq!(with_ready(&first, ConditionStatus::False, "NoPool", "no pool", "t2"), first);
        let second = with_ready(&first, ConditionStatus::False, "NoPool", "no pool at all", "t2");
        assert_eq!((&*second[0].last_update_time, &*second[0].last_transition_time), ("t2", "t1"));
        let third = with_ready(&second, ConditionStatus::True, "", "", "t3");
        assert_eq!((&*third[0].last_update_time, &*third[0].last_transition_time), ("t3", "t3"));
    }
}
