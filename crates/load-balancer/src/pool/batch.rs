//! The content of one PUT of a pool: a pure function from the pool as it was read and the orders that wait.
//!
//! Every PUT also brings total, available, condition and finalizer up to date, and puts back the records of load
//! balancers that the pool has lost (somebody replaced it without its status): before anything is given out anew.

mod quotas;
mod refused;
mod rests;

use std::{
    collections::{HashMap, HashSet},
    net::IpAddr,
};

use controller_kit::{ObjectKey, RawObject};
use harvester_api::{Condition, ConditionStatus, IPPool, annotations, finalizers};
use ipam::{Claim, Family, LONGEST_REST, Record, Refusal, Request, Resting, Tenant, Turns};
use kube::{Resource, ResourceExt};
use serde_json::{Value, json};

use crate::{
    condition::{self, Ready},
    steps::step,
};
use ip_pools::CheckedPool;
use quotas::{Used, above_quota};
pub(crate) use refused::Refused;

/// An object larger than this is refused by etcd (1.5 MB) before long; claims stop here.
pub(crate) const RECORD_LIMIT: usize = 1_200_000;

const LONGEST_ADDRESS: &str = "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff";

/// A change that a controller wants of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// An address for a holder; `known` is the one that it believes to have, and without `family` any will do. The record
    /// is the answer.
    Claim { holder: String, known: Option<IpAddr>, family: Option<Family> },
    /// This address or none, beside whatever the holder has. The record is the answer.
    ClaimExactly { holder: String, address: IpAddr },
    /// Two claims of one holder, one of each family. A quota that has no room for both gives neither: who got one of two
    /// that it requires would keep it from others for nothing.
    ClaimBoth(Box<[Order; 2]>),
    /// Back with the address, if it is this holder's, and no load balancer that is there has it. Whoever ordered it may have
    /// looked long before it is carried out, and the holder may have been made again since.
    Release { holder: String, address: IpAddr },
    /// For the history: the holder had this address, and gets it when it asks. Nothing where the history names somebody
    /// already, or where the record is full.
    Remember { holder: String, address: IpAddr },
    /// As [`Order::Release`], or why not; the annotation that asked for it goes, and the refusal takes its place.
    Manual { annotation: String, release: Result<(IpAddr, String), String> },
    /// Only what every PUT does.
    Refresh,
}

impl Order {
    pub(crate) fn is_claim(&self) -> bool {
        matches!(self, Self::Claim { .. } | Self::ClaimExactly { .. } | Self::ClaimBoth(_))
    }

    /// The family of the address that it claims or gives back; none if any will do.
    pub(crate) fn family(&self) -> Option<Family> {
        match self {
            Self::Claim { family, .. } => *family,
            Self::ClaimExactly { address, .. }
            | Self::Release { address, .. }
            | Self::Remember { address, .. } => Some(Family::of(*address)),
            Self::ClaimBoth(_) | Self::Manual { .. } | Self::Refresh => None,
        }
    }

    /// What a claim of one address asks for.
    fn request(&self) -> Option<Request<'_>> {
        match self {
            Self::Claim { holder, known, family } => {
                Some(Request { known: *known, family: *family, ..Request::of(holder) })
            }
            Self::ClaimExactly { holder, address } => {
                Some(Request { exactly: Some(*address), ..Request::of(holder) })
            }
            _ => None,
        }
    }
}

/// How an order was carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// This address; the pool had no record for the holder of this claim before.
    RecordedAnew(IpAddr),
    Done,
    /// Not released: a load balancer that is there has the address.
    Kept,
}

/// The pool as it was read, and what bears on the decision.
#[derive(Clone, Copy)]
pub(crate) struct Seen<'a> {
    pub(crate) pool: &'a RawObject<IPPool>,
    pub(crate) checked: &'a CheckedPool,
    /// Address and holder of every live load balancer whose status names this pool.
    pub(crate) status_addresses: &'a [(IpAddr, String)],
    /// Services that keep addresses without load balancer.
    pub(crate) orphans: &'a [ObjectKey],
    pub(crate) others: &'a dyn Others,
    /// After the batch before this one.
    pub(crate) turns: Turns,
    /// RFC 3339, for conditions.
    pub(crate) now: &'a str,
    /// The same in seconds since 1970, for addresses that rest.
    pub(crate) at: i64,
    /// [`RECORD_LIMIT`].
    pub(crate) limit: usize,
}

/// The addresses that are in use, whatever this pool's record says.
pub(crate) trait Others {
    /// Whether a load balancer other than this holder uses the address, though this pool's record does not name it.
    fn have(&self, address: IpAddr, holder: &str) -> bool;

    /// Whether somebody else has a better right to an address that this pool's record gives to the holder.
    fn outrank(&self, address: IpAddr, holder: &str) -> bool;

    /// The addresses that this holder keeps from others.
    fn used_by(&self, holder: &str) -> Vec<IpAddr>;

    /// The guest cluster that the holder's object is of, where it is known.
    fn cluster_of(&self, holder: &str) -> Option<String>;

    /// The holders that are of a guest cluster by their own word, in whatever namespace, as far as they are known.
    fn members_of(&self, cluster: &str) -> Vec<String>;
}

/// The object to PUT, if it differs from what was read, and one answer for each order.
pub(crate) struct Decision {
    pub(crate) put: Option<Value>,
    /// The addresses that the PUT records anew.
    pub(crate) recorded: Vec<IpAddr>,
    pub(crate) turns: Turns,
    pub(crate) answers: Vec<Result<Answer, Refused>>,
}

/// Decides a batch. The answers are true once the PUT has succeeded.
pub(crate) fn decide(seen: Seen<'_>, orders: &[Order]) -> Decision {
    let Seen { pool, checked, status_addresses, orphans, others, turns, now, at, limit } = seen;
    let record = ip_pools::record(pool).resuming(turns);
    let mut draft = Draft {
        checked,
        record,
        status_addresses,
        shown: None,
        others,
        recorded: Vec::new(),
        exhausted: Vec::new(),
        used: HashMap::new(),
        resting: ip_pools::resting(pool, at),
        rest_until: Resting::end_of_new(at, pool.spec.quarantine_seconds),
        rests_for: pool.spec.quarantine_seconds.clamp(0, LONGEST_REST),
        size: 0,
        bytes_beside_record: 0,
        limit,
        forgets: 16,
        has_no_room: false,
    };
    for (address, holder) in status_addresses {
        if checked.pool.ranges.offers(*address)
            && draft.record.of(holder).all(|other| Family::of(other) != Family::of(*address))
            && draft.record.holder(*address).is_none()
            && !others.have(*address, holder)
        {
            draft.record.put(*address, holder);
            draft.recorded.push(*address);
        }
    }
    draft.measure(pool);
    // a claim that is refused is refused by the version that is written
    let (first, then): (Vec<_>, Vec<_>) = orders.iter().enumerate().partition(|(_, order)| !order.is_claim());
    let mut answers: Vec<_> =
        first.into_iter().chain(then).map(|(at, order)| (at, draft.carry_out(order))).collect();
    answers.sort_unstable_by_key(|(at, _)| *at);
    let answers: Vec<_> = answers.into_iter().map(|(_, answer)| answer).collect();
    let Draft { mut record, recorded, mut resting, size, has_no_room, .. } = draft;
    if has_ranges(checked) {
        let ranges = &checked.pool.ranges;
        record.prune(ranges);
        resting.retain(|address| ranges.offers(address) && record.holder(address).is_none());
    }
    let room = rests::room(pool);
    let is_cut = rests::bound(&mut resting, &record, room) || has_no_room;
    let cut =
        if is_cut || rests::stays_cut(pool, &resting, room, size, limit) { rests::CUT_SHORT } else { "" };

    let turns = record.turns();
    let put = pool.edited(|json| {
        for (order, answer) in orders.iter().zip(&answers) {
            if let Order::Manual { annotation, release } = order {
                let kept = matches!(answer, Ok(Answer::Kept))
                    .then(|| format!("{annotation:?}: that load balancer exists: delete it"));
                answer_by_hand(json, annotation, release.as_ref().err().or(kept.as_ref()));
            }
        }
        rests::write(json, &resting);
        write_finalizer(json, pool, &record);
        let above = above_quota(&checked.pool.quotas, &record, others);
        let notes = [
            ("ServiceOrphaned", announced_by(orphans, &record)),
            ("QuotaExceeded", above),
            ("NoRoomForRests", cut.to_owned()),
        ];
        write_status(json, pool, checked, (&record, &resting), notes, now);
    });
    // who claims in vain has no pool written, whatever somebody else writes on an object to change the sentence about quotas
    let is_look = |order: &Order| matches!(order, Order::Refresh | Order::Manual { .. });
    let put = put.filter(|json| orders.iter().any(is_look) || !is_note_alone(pool, json));
    Decision { put, recorded, turns, answers }
}

struct Draft<'a> {
    checked: &'a CheckedPool,
    record: Record,
    status_addresses: &'a [(IpAddr, String)],
    /// The same, once somebody looks one of them up: a batch may have thousands of releases.
    shown: Option<HashSet<(IpAddr, &'a str)>>,
    others: &'a dyn Others,
    recorded: Vec<IpAddr>,
    /// A walk over the ranges of the family found no address since the last release: the text of the ranges. Everybody who waits for a
    /// full pool comes at once when an address of it is free, and each walk looks at every address.
    exhausted: Vec<(Option<Family>, String)>,
    /// What the tenants with a quota hold, of those who have claimed, and how much of what they released rests.
    used: HashMap<Tenant, Used>,
    resting: Resting,
    /// The end of the rest of what is released now.
    rest_until: Option<i64>,
    /// The seconds that it rests.
    rests_for: i64,
    /// About how many bytes the object takes in the store, managedFields included.
    size: usize,
    /// How many of them are not the record.
    bytes_beside_record: usize,
    limit: usize,
    /// So many entries of the history are forgotten at once, and twice as many the next time: each time walks the whole
    /// record, and a batch may have a thousand claims.
    forgets: usize,
    /// What was released does not rest, because the object has no room for it.
    has_no_room: bool,
}

impl<'a> Draft<'a> {
    fn shown(&mut self) -> &HashSet<(IpAddr, &'a str)> {
        let all = self.status_addresses.iter();
        self.shown.get_or_insert_with(|| {
            let entry = |(address, holder): &'a (IpAddr, String)| {
                step();
                (*address, holder.as_str())
            };
            all.map(entry).collect()
        })
    }

    fn measure(&mut self, pool: &RawObject<IPPool>) {
        let status = pool.status.as_ref();
        let maps = |of: fn(&harvester_api::IPPoolStatus) -> &std::collections::BTreeMap<String, String>| {
            status
                .map(of)
                .into_iter()
                .flatten()
                .map(|(key, holder)| bytes_in_json(key, holder))
                .sum::<usize>()
        };
        let read = maps(|status| &status.allocated) + maps(|status| &status.allocated_history);
        self.bytes_beside_record = pool.size().saturating_sub(read);
        self.size = self.bytes_beside_record + self.size_of_record();
    }

    fn size_of_record(&self) -> usize {
        let entries = self.record.allocated().into_iter().chain(self.record.allocated_history());
        entries.map(|(key, holder)| bytes_in_store(&key, &holder)).sum()
    }

    fn carry_out(&mut self, order: &Order) -> Result<Answer, Refused> {
        match order {
            Order::Claim { .. } | Order::ClaimExactly { .. } => {
                return self.claim(order.request().as_slice());
            }
            Order::ClaimBoth(both) => {
                let requests: Vec<_> = both.iter().filter_map(Order::request).collect();
                return self.claim(&requests);
            }
            Order::Release { holder, address } | Order::Manual { release: Ok((address, holder)), .. } => {
                if self.shown().contains(&(*address, holder.as_str())) {
                    return Ok(Answer::Kept);
                }
                // what rests is its former holder's, and counts for its quota
                let Self { record, resting, .. } = self;
                if record.release(*address, holder, |past| resting.end_of(past).is_some()) {
                    self.exhausted.clear();
                    let rests = self.let_rest(*address);
                    self.note_quotas(holder, |used| {
                        used.held = used.held.saturating_sub(1);
                        used.resting += u64::from(rests);
                    });
                }
            }
            Order::Remember { holder, address } => self.remember(*address, holder),
            Order::Manual { release: Err(_), .. } | Order::Refresh => {}
        }
        Ok(Answer::Done)
    }

    /// Claims of one holder: a quota has room for all that it lacks, or gives none of them.
    fn claim(&mut self, requests: &[Request<'_>]) -> Result<Answer, Refused> {
        let CheckedPool { pool: definition, blocked, .. } = self.checked;
        let pool = || definition.name.clone();
        let mut lacking = Vec::new();
        for request in requests {
            if self.holds(*request) {
                continue;
            }
            if let Some(family) = request.family
                && has_ranges(self.checked)
                && !definition.ranges.has_family(family)
            {
                return Err(Refused::NoSuchFamily { pool: pool(), family });
            }
            if let Some(fault) = blocked {
                return Err(Refused::Unusable { pool: pool(), fault: fault.clone() });
            }
            lacking.push(*request);
        }
        let beyond = self.within_quota(&lacking)?;
        if let Some(first) = lacking.first()
            && !self.make_room(lacking.len() * bytes_in_store(LONGEST_ADDRESS, first.holder))
        {
            return Err(Refused::RecordFull { pool: pool(), records: self.record.count() });
        }
        let answers = lacking.into_iter().map(|request| self.take(request, beyond.as_ref()));
        let answers = answers.collect::<Result<Vec<_>, _>>()?;
        Ok(if let [answer] = answers[..] { answer } else { Answer::Done })
    }

    /// The records of the holder: those that somebody else has a better right to, and the others.
    fn own(&self, holder: &str) -> (Vec<IpAddr>, Vec<IpAddr>) {
        self.record.of(holder).partition(|address| self.others.outrank(*address, holder))
    }

    /// Whether a record answers the request.
    fn holds(&self, request: Request<'_>) -> bool {
        let Request { holder, exactly, family, .. } = request;
        self.own(holder).1.into_iter().any(|address| match exactly {
            Some(asked) => address == asked,
            None => family.is_none_or(|family| family == Family::of(address)),
        })
    }

    /// Records an address. `beyond`: a quota has room only for what rests for the holder.
    fn take(&mut self, request: Request<'_>, beyond: Option<&Refused>) -> Result<Answer, Refused> {
        let Request { holder, exactly, family, .. } = request;
        let CheckedPool { pool: definition, .. } = self.checked;
        let pool = || definition.name.clone();
        let (lost, own) = self.own(holder);
        let walked = |exhausted: &(Option<Family>, String)| exhausted.0.is_none() || exhausted.0 == family;
        let resting = Some(&self.resting);
        let only = beyond.and_then(|_| self.record.resting_for(Request { resting, ..request }));
        let exactly = only.or(exactly);
        let is_hopeless = exactly.is_none() && self.exhausted.iter().any(walked);
        let among = is_hopeless.then(|| self.others.used_by(holder));
        let request = Request { lost: &lost, among: among.as_deref(), exactly, resting, ..request };
        let others = self.others;
        let claim = self.record.claim(&definition.ranges, request, |address| others.have(address, holder));
        if let (Err(_), Some(_), Some(refused)) = (&claim, only, beyond) {
            return Err(refused.clone());
        }
        match claim {
            Ok(Claim::Adopted(_)) => Ok(Answer::Done),
            Ok(Claim::Recorded(address)) => {
                self.size += bytes_in_store(&address.to_string(), holder);
                self.recorded.push(address);
                let rested = self.resting.end_of(address).is_some();
                self.resting.end(address);
                self.note_quotas(holder, |used| {
                    used.held += 1;
                    used.resting = used.resting.saturating_sub(u64::from(rested));
                });
                let is_first = lost.is_empty() && own.is_empty();
                Ok(if is_first { Answer::RecordedAnew(address) } else { Answer::Done })
            }
            Err(Refusal::Held(address)) => Err(Refused::AddressInUse { pool: pool(), address }),
            Err(Refusal::NotOffered(address)) => Err(Refused::AddressNotInPool { pool: pool(), address }),
            Err(Refusal::Draining(address)) => Err(Refused::AddressDraining { pool: pool(), address }),
            Err(Refusal::Resting(address)) => {
                let until = ip_pools::time_text(self.resting.end_of(address).unwrap_or_default());
                Err(Refused::AddressResting { pool: pool(), address, until })
            }
            Err(Refusal::Exhausted) if definition.ranges.drains(family) => {
                Err(Refused::Draining { pool: pool(), family })
            }
            Err(Refusal::Exhausted) => {
                let known = self.exhausted.iter().find(|exhausted| walked(exhausted));
                let ranges = known.map(|(_, ranges)| ranges.clone());
                let ranges = ranges.unwrap_or_else(|| {
                    let ranges = shortened(&definition.ranges.to_string());
                    self.exhausted.push((family, ranges.clone()));
                    ranges
                });
                let drains = definition.ranges.iter().any(ipam::Range::drains);
                Err(Refused::Exhausted { pool: pool(), ranges, family, drains, rests_for: self.rests_for })
            }
        }
    }

    /// The history is a courtesy: what finds no room is not remembered, and nobody loses theirs.
    fn remember(&mut self, address: IpAddr, holder: &str) {
        let entry = bytes_in_store(&address.to_string(), holder);
        if self.record.last_holder(address).is_none() && self.size + entry <= self.limit {
            self.record.remember(address, holder);
            self.size += entry;
        }
    }

    /// The address was released. It does not rest where there is no room to write that down; answers whether it does.
    fn let_rest(&mut self, address: IpAddr) -> bool {
        let Some(end) = self.rest_until else { return false };
        let bytes = rests::bytes(address);
        // the history must go on naming who had it
        self.resting.begin(address, end);
        let has_room = self.make_room(bytes);
        if has_room {
            self.bytes_beside_record += bytes;
            self.size += bytes;
        } else {
            self.resting.end(address);
            self.has_no_room = true;
        }
        has_room
    }

    /// Whether so many bytes more fit; forgets history until they do, but for what rests.
    fn make_room(&mut self, needed: usize) -> bool {
        while self.size + needed > self.limit {
            let Self { record, resting, checked, forgets, .. } = self;
            let rests = |address: IpAddr| resting.end_of(address).is_some();
            if record.trim_history(&checked.pool.ranges, *forgets, rests) == 0 {
                return false;
            }
            self.forgets *= 2;
            step();
            self.size = self.bytes_beside_record + self.size_of_record();
        }
        true
    }
}

/// Without any, they are wrong, and say nothing about the record.
fn has_ranges(checked: &CheckedPool) -> bool {
    checked.pool.ranges.iter().next().is_some()
}

/// Bytes of an entry in JSON: two quoted texts, colon, comma.
fn bytes_in_json(key: &str, holder: &str) -> usize {
    key.len() + holder.len() + 6
}

/// Bytes of an entry in the store: also its `"f:<key>":{},` in managedFields.
pub(crate) fn bytes_in_store(key: &str, holder: &str) -> usize {
    bytes_in_json(key, holder) + key.len() + 8
}

fn shortened(text: &str) -> String {
    program::text::cut(text, 300)
}

/// The question goes; a refusal stays where an administrator looks, also without the right to write Events, until the
/// next question is answered.
fn answer_by_hand(json: &mut Value, question: &str, refusal: Option<&String>) {
    let Some(map) = json.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) else { return };
    if map.get(annotations::MANUALLY_RELEASE_IP).and_then(Value::as_str) != Some(question) {
        return;
    }
    map.remove(annotations::MANUALLY_RELEASE_IP);
    match refusal {
        Some(why) => map.insert(annotations::MANUAL_RELEASE_REFUSED.to_owned(), shortened(why).into()),
        None => map.remove(annotations::MANUAL_RELEASE_REFUSED),
    };
}

/// A pool that is being deleted stays until nobody holds an address of it.
fn write_finalizer(json: &mut Value, pool: &IPPool, record: &Record) {
    let has = pool.finalizers().iter().any(|name| name == finalizers::IP_POOL);
    let deleting = pool.meta().deletion_timestamp.is_some();
    match (has, deleting) {
        (false, false) => condition::add_finalizer(json, finalizers::IP_POOL),
        (true, true) if record.count() == 0 => condition::remove_finalizer(json, finalizers::IP_POOL),
        _ => {}
    }
}

/// The sentence about addresses of this pool that orphaned Services still announce; empty where there are none.
fn announced_by(orphans: &[ObjectKey], record: &Record) -> String {
    let held = |key: &ObjectKey| {
        let holder = key.to_string();
        let addresses: Vec<_> = record.of(&holder).map(|address| address.to_string()).collect();
        (!addresses.is_empty()).then(|| format!("{} by Service {key}", addresses.join(", ")))
    };
    let held: Vec<_> = orphans.iter().filter_map(held).collect();
    if held.is_empty() {
        return String::new();
    }
    shortened(&format!(
        "announced without load balancer: {}; delete the Service (one of the load balancer's own goes by itself where its \
         role may delete Services)",
        held.join("; ")
    ))
}

/// Whether nothing is new in `json` but what a pool that is ready says besides.
fn is_note_alone(pool: &RawObject<IPPool>, json: &Value) -> bool {
    let before = pool.json();
    let conditions = |of: &Value| of.pointer("/status/conditions").cloned().unwrap_or_default();
    let is_ready = |of: &Value| {
        let conditions: Vec<Condition> = serde_json::from_value(conditions(of)).unwrap_or_default();
        harvester_api::condition::ready(&conditions)
            .is_some_and(|ready| ready.status == ConditionStatus::True)
    };
    if !is_ready(&before) || !is_ready(json) {
        return false;
    }
    let mut json = json.clone();
    json["status"]["conditions"] = conditions(&before);
    json == before
}

fn write_status(
    json: &mut Value,
    pool: &IPPool,
    checked: &CheckedPool,
    (record, resting): (&Record, &Resting),
    notes: [(&'static str, String); 3],
    now: &str,
) {
    let (total, available) = if has_ranges(checked) {
        let ranges = &checked.pool.ranges;
        record.counts(ranges, resting.iter().filter(|(address, _)| ranges.gives(*address)).count())
    } else {
        let total = pool.status.as_ref().map_or(0, |status| status.total);
        (total, total - i64::try_from(record.count()).unwrap_or(i64::MAX))
    };
    let ready = if checked.faults.is_empty() {
        match &checked.blocked {
            None => {
                let notes: Vec<_> = notes.into_iter().filter(|(_, note)| !note.is_empty()).collect();
                let reason = notes.first().map_or("RangesValid", |(reason, _)| reason);
                let message: Vec<_> = notes.into_iter().map(|(_, note)| note).collect();
                Ready { message: message.join("; "), ..Ready::yes(reason) }
            }
            Some(why) => Ready::no("Deleting", format!("{why}: {} addresses are held", record.count())),
        }
    } else {
        Ready::no("PoolInvalid", checked.faults.join("; "))
    };
    let status = condition::status_of(json);
    status.insert("total".into(), total.into());
    status.insert("available".into(), available.into());
    status.insert("lastAllocated".into(), record.last_allocated().into());
    for (key, map) in [("allocated", record.allocated()), ("allocatedHistory", record.allocated_history())] {
        if map.is_empty() {
            if status.get(key).and_then(Value::as_object).is_some_and(|read| !read.is_empty()) {
                status.remove(key);
            }
        } else {
            status.insert(key.into(), json!(map));
        }
    }
    condition::write_ready(status, &ready, now);
}

#[cfg(test)]
mod tests;
