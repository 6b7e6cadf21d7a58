//! TCP health checks: which backends deserve traffic.
//!
//! ```text
//!           watch(group, targets)                       changed(group)
//! caller ───────────────────────► Prober ───────────────────────────────► caller asks verdicts(group)
//!                                 │    ▲
//!                    Command::Dial│    │Event::Answered
//!                                 ▼    │
//!                                 Dial (an argument)
//! ```
//!
//! * [`Counter`] counts answers against [`Thresholds`]; between two thresholds the previous verdict stands.
//! * [`Schedule`] is the time wheel: events and the time go in, commands come out. It has no clock and no socket.
//! * [`Prober`] is the one task that carries the commands out, for all targets of the process.
//!
//! What always holds: probes of one backend never overlap; at most a fixed number of dials is under way; a
//! backend that nobody has vouched for is not ready (fail closed) until it answered often enough; that our own side
//! cannot dial changes no verdict; nobody who reads verdicts can hold up probing. Groups (load balancers) share
//! nothing, also when they probe the same address: their thresholds, periods and time-outs are their own, and one
//! tenant's must not tell on another's.
//!
//! Nothing here knows Kubernetes.

#![forbid(unsafe_code)]

mod check;
mod counter;
mod dial;
mod prober;
mod schedule;

pub use check::Check;
pub use counter::{Counter, Thresholds};
pub use dial::{Dial, DialError, tcp};
pub use prober::{DIALS_AT_ONCE, Prober};
pub use schedule::{Command, Event, Key, ProbeId, Schedule, Target, Verdict};
