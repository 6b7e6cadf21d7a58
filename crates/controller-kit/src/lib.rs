#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod cache;
pub mod election;
mod error_message;
mod event;
mod event_reason;
mod explanation;
mod json_text;
mod object_key;
mod queue;
mod raw_object;
pub mod refusal;
mod retry_after;

pub use cache::{Cache, Change, ServerAnswers, Watched};
pub use error_message::error_message;
pub use event::{CREATE_EVENTS, EventType, PATCH_EVENTS, PendingEvent, Recorder};
pub use event_reason::{EventReason, EventReasons};
pub use explanation::Explanation;
pub use object_key::ObjectKey;
pub use queue::{Action, Queue, QueueMetrics, WorkQueues, backoff, pending_within};
pub use raw_object::{RawObject, replace};
pub use retry_after::retry_after;
