//! TCP and HTTP health checks: which backends deserve traffic.
//!
//! ```text
//!        set_targets(object, targets)                    changed object
//! caller ───────────────────────► Prober ───────────────────────────────► caller reads verdicts(object)
//!                                 │    ▲
//!                    Command::Dial│    │Input::Answered
//!                                 ▼    │
//!                                 Dial (an argument)
//! ```
//!
//! * `Counter` counts answers against [`Thresholds`]; between two thresholds the previous verdict stands.
//! * `Schedule` decides: inputs and the time go in, commands come out. It has no clock and no socket.
//! * [`Prober`] is the one task that carries the commands out, for all targets of the process.
//!
//! An *object* (a load balancer, say) has backends; objects belong to *groups* (namespaces, tenants). Invariants:
//!
//! * Probes of one backend never overlap, and at most a fixed number of dials is under way.
//! * No group keeps another from its probes: free slots go round between groups, then between objects, and dials
//!   over one second of one group hold at most a quarter of the slots. A group begins at most 2,000 dials a second.
//! * A backend decides how its answer is read as little as it can: one time limit for all of a probe, 1 KiB of an answer,
//!   24 KiB of a TLS handshake with 16 certificates, 20 KiB after it, no redirection followed, and none of its words in a
//!   verdict.
//! * A backend is not ready until it has answered often enough (fail closed).
//! * A failure on our own side, such as a lack of file descriptors or of time for an answer, changes no verdict.
//! * A reader of verdicts cannot hold up probing.
//! * Objects share no result, also when they probe the same address: each has thresholds, periods and time-outs of
//!   its own, and one tenant's settings must not leak into another's verdicts.
//!
//! Nothing here knows Kubernetes.
//!
//! # Example
//!
//! ```
#![doc = include_str!("../examples/verdicts.rs")]
//! ```

#![forbid(unsafe_code)]

mod answer;
mod check;
mod counter;
mod dial;
mod http_get;
mod prober;
mod schedule;
mod tls;

pub use check::Check;
pub use counter::Thresholds;
pub use dial::{Dial, DialError, Probe, network, network_by};
pub use http_get::{HttpGet, LONGEST_PATH, RequestFault};
pub use prober::{DIALS_AT_ONCE, News, Prober};
pub use schedule::{Key, Target, Verdict};
