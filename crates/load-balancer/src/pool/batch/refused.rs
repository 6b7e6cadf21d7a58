//! Why a claim was refused.

use std::net::IpAddr;

use harvester_api::annotations;
use ipam::{Family, Tenant};

/// Why a claim was refused. The texts begin as the Go program's do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refused {
    // the name is what somebody wrote, and no object bears it: signs that turn a terminal's text round are not shown
    #[error(
        "fail to get allocator {}: there is no such IPPool; create it or name another",
        pool.escape_debug()
    )]
    NoSuchPool { pool: String },
    #[error(
        "fail to get allocator {pool}: {fault}; name another pool, or wait until this one gives addresses again"
    )]
    Unusable { pool: String, fault: String },
    #[error(
        "fail to get ip from pool {pool}, error: no IP addresses available in range set: {ranges}{}; waiting for one \
         to be released {}",
        if *drains { " (nothing new is given out of a range that drains)" } else { "" },
        rest(*rests_for)
    )]
    Exhausted {
        pool: String,
        ranges: String,
        family: Option<Family>,
        drains: bool,
        /// Seconds that what is released from the pool rests; 0 where it does not.
        rests_for: i64,
    },
    #[error(
        "fail to reserve an address in pool {pool}: its record of {records} addresses is as large as an object may be; \
         add another pool"
    )]
    RecordFull { pool: String, records: usize },
    #[error(
        "fail to get ip from pool {pool}, error: it has no {family} addresses; name another pool or add a range"
    )]
    NoSuchFamily { pool: String, family: Family },
    #[error(
        "fail to get ip from pool {pool}, error: every range of it drains, so nothing new is given out; name another pool, or \
         have a range that does not drain"
    )]
    Draining { pool: String, family: Option<Family> },
    #[error(
        "fail to get ip from pool {pool}, error: its quota gives {tenant} {}",
        quota(*max, *asked, *is_more_held, *rests, *moves)
    )]
    QuotaExceeded {
        pool: String,
        tenant: Tenant,
        max: u64,
        /// How many addresses the claim was for.
        asked: u64,
        /// More is held, or rests, than the quota gives.
        is_more_held: bool,
        /// What is released from the pool rests.
        rests: bool,
        /// The holder has an address of the family that it asks for.
        moves: bool,
    },
    #[error("address {address} of pool {pool} is in use")]
    AddressInUse { pool: String, address: IpAddr },
    #[error("pool {pool} does not give {address} to anybody")]
    AddressNotInPool { pool: String, address: IpAddr },
    #[error("address {address} of pool {pool} rests until {until}: only its former holder gets it before")]
    AddressResting { pool: String, address: IpAddr, until: String },
    #[error("the range of {address} in pool {pool} drains, so nothing new is given out of it")]
    AddressDraining { pool: String, address: IpAddr },
}

/// What else may end the wait for a full pool. It says neither how many addresses rest nor until when: thousands who wait
/// would write their conditions with each release.
fn rest(seconds: i64) -> String {
    if seconds == 0 {
        return "or for another range".to_owned();
    }
    format!(
        "and to have rested for {seconds} s, or for another range (annotation {} of the pool says which rest, and until \
         when)",
        annotations::QUARANTINE
    )
}

/// What a quota gives, and what may end the wait. It says no number that changes with each release: thousands who wait
/// would write their conditions.
fn quota(max: u64, asked: u64, is_more_held: bool, rests: bool, moves: bool) -> String {
    let resting = if rests { " or rest after their release" } else { "" };
    match (max, asked) {
        (0, _) => "no addresses; waiting for a larger quota".to_owned(),
        (max, asked) if asked > max => {
            format!("at most {max} addresses, and {asked} are required; waiting for a larger quota")
        }
        (max, 1) => {
            let held = if is_more_held { "more".to_owned() } else { max.to_string() };
            let own = if moves {
                "; this load balancer needs the former and the new one until it has moved"
            } else {
                ""
            };
            format!(
                "at most {max} addresses, and {held} are held{resting}; waiting for one of them to be released or for a \
                 larger quota{own}"
            )
        }
        (max, asked) => format!(
            "at most {max} addresses, and of these fewer than the {asked} that are required are left: the others are \
             held{resting}; waiting for one of them to be released or for a larger quota"
        ),
    }
}

impl Refused {
    /// The address, if one was asked for exactly, and the pool did not give it.
    pub(crate) fn exact_address(&self) -> Option<IpAddr> {
        match self {
            Self::AddressInUse { address, .. }
            | Self::AddressNotInPool { address, .. }
            | Self::AddressResting { address, .. }
            | Self::AddressDraining { address, .. } => Some(*address),
            _ => None,
        }
    }

    /// Whether it says anything to who asks for this family.
    pub(crate) fn concerns(&self, asked: Family) -> bool {
        match self {
            Self::Exhausted { family, .. } | Self::Draining { family, .. } => {
                family.is_none_or(|family| family == asked)
            }
            Self::NoSuchFamily { family, .. } => *family == asked,
            Self::AddressInUse { address, .. }
            | Self::AddressNotInPool { address, .. }
            | Self::AddressResting { address, .. }
            | Self::AddressDraining { address, .. } => Family::of(*address) == asked,
            Self::NoSuchPool { .. }
            | Self::Unusable { .. }
            | Self::RecordFull { .. }
            | Self::QuotaExceeded { .. } => true,
        }
    }

    /// The reason code of the condition.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::NoSuchPool { .. } => "PoolNotFound",
            Self::Unusable { .. } => "PoolNotReady",
            Self::Exhausted { .. } => "PoolExhausted",
            Self::RecordFull { .. } => "RecordFull",
            Self::NoSuchFamily { .. } => "PoolWithoutFamily",
            Self::AddressInUse { .. } | Self::AddressResting { .. } => "AddressInUse",
            Self::Draining { .. } => "PoolDraining",
            Self::QuotaExceeded { .. } => "QuotaExceeded",
            Self::AddressNotInPool { .. } | Self::AddressDraining { .. } => "AddressNotInPool",
        }
    }
}
