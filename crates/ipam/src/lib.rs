#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod admission;
mod candidates;
mod coverage;
mod family;
mod holdings;
pub mod legacy;
mod pool;
mod quota;
mod range;
mod ranges;
mod record;
mod resting;
mod scopes;
mod selection;

pub use admission::admits;
pub use candidates::Candidates;
pub use coverage::Coverage;
pub use family::Family;
pub use pool::{Pool, PoolFault, Scope, Selector, added};
pub use quota::{QuotaFault, QuotaSpec, Quotas, Tenant};
pub use range::{Range, RangeError, RangeSpec};
pub use ranges::{RangeFault, Ranges};
pub use record::{Claim, Record, Refusal, Request, Turns, is_same_service};
pub use resting::{LONGEST_REST, Resting};
pub use selection::{Choice, Mode, Rejection, Requirement, Rules, select};
