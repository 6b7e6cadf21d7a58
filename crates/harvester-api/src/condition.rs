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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_odd_status_hides_no_object() {
        let odd: Condition = serde_json::from_str(r#"{"type": "Ready", "status": "maybe"}"#).unwrap();
        assert_eq!(odd.status, ConditionStatus::Unknown);
        assert_eq!(serde_json::to_value(ConditionStatus::True).unwrap(), "True");
    }
}
