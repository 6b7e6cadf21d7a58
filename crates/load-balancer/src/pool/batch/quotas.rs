//! What tenants with a quota hold of a pool, and how much of what they released rests: counted once for a batch.

use ipam::{Pool, Quotas, Record, Request, Tenant};

use super::{Draft, Others, Refused, shortened};

#[derive(Clone, Copy)]
pub(super) struct Used {
    pub(super) held: u64,
    pub(super) resting: u64,
}

impl Draft<'_> {
    /// Refuses where these claims of one holder, each for one address more, would go past a quota. Each claim of a batch
    /// counts for the next. What rests counts too, or a tenant would lay a whole pool to rest, one address at a time. Where
    /// that is what fills the quota, the holder may have nothing but what rests for itself: the answer is then the refusal
    /// of everything else.
    pub(super) fn within_quota(&mut self, requests: &[Request<'_>]) -> Result<Option<Refused>, Refused> {
        let (Some(Request { holder, .. }), asked) = (requests.first(), requests.len() as u64) else {
            return Ok(None);
        };
        let Pool { name, quotas, ranges, .. } = &self.checked.pool;
        let mut only = None;
        for (tenant, max) in limits(quotas, self.others, holder) {
            let Self { record, others, used, resting: rests, .. } = self;
            let members = |cluster: &str| others.members_of(cluster);
            let Used { held, resting } = *used.entry(tenant.clone()).or_insert_with(|| Used {
                held: record.held_by(&tenant, members),
                resting: record.resting_by(&tenant, rests, members),
            });
            let all = held.saturating_add(resting);
            if all.saturating_add(asked) <= max {
                continue;
            }
            let refused = Refused::QuotaExceeded {
                pool: name.clone(),
                tenant,
                max,
                asked,
                is_more_held: all > max,
                rests: self.rest_until.is_some(),
                moves: requests.iter().any(|request| record.of(holder).any(|has| request.is_like(has))),
            };
            // only what can be given now comes back
            let rests_for = |request: &&Request<'_>| {
                let rests = record.resting_for(Request { resting: Some(rests), ..**request });
                rests.is_some_and(|address| ranges.gives(address) && !others.have(address, holder))
            };
            let back = requests.iter().filter(rests_for).count() as u64;
            // what comes out of its rest adds nothing
            let fits = back == asked || back > 0 && all.saturating_add(asked - back) <= max;
            if !fits || held.saturating_add(asked) > max {
                return Err(refused);
            }
            only = Some(refused);
        }
        Ok(only)
    }

    pub(super) fn note_quotas(&mut self, holder: &str, change: impl Fn(&mut Used)) {
        for (tenant, _) in limits(&self.checked.pool.quotas, self.others, holder) {
            if let Some(used) = self.used.get_mut(&tenant) {
                change(used);
            }
        }
    }
}

/// The quotas that count for a holder.
pub(super) fn limits(quotas: &Quotas, others: &dyn Others, holder: &str) -> Vec<(Tenant, u64)> {
    if quotas.is_empty() {
        return Vec::new();
    }
    quotas.of(holder, others.cluster_of(holder).as_deref())
}

/// The sentence about tenants who hold more than their quota, which takes nothing from them; empty where there are none.
/// Without numbers, so that few claims and releases change the condition.
pub(super) fn above_quota(quotas: &Quotas, record: &Record, others: &dyn Others) -> String {
    let above = quotas.exceeded(record, |cluster| others.members_of(cluster));
    let above: Vec<_> = above.iter().map(ToString::to_string).collect();
    if above.is_empty() {
        return String::new();
    }
    shortened(&format!("more than the quota gives is held, and stays: by {}", above.join(", ")))
}
