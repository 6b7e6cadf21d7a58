//! The orders of one load balancer. What becomes of them is decided without a clock of its own.

use std::{net::IpAddr, time::Duration};

use controller_kit::{error_message, refusal};
use ipam::Family;
use tokio::time::Instant;

use crate::{
    controller::UNWATCHED_AGAIN,
    pool::{Failure, Order, Refused, batch::Answer, writer},
};

/// So many rounds in a row may come to nothing because pools changed meanwhile: where they change all the time, no refusal
/// would be heard.
const PATIENCE: u32 = 3;

/// Pools that refused a claim, in the order in which they were asked.
pub(super) type Refusals = Vec<(String, Refused)>;

#[derive(Default)]
pub(super) struct Entry {
    pub(super) state: State,
    /// At most one claim and one release of each pool. Each has a pause of its own: an order to another pool ends none.
    failed: Vec<FailedOrder>,
    /// Pools changed before a refusal of this round was heard. A round begins with a claim from the first pool.
    is_overtaken: bool,
    /// The rounds in a row, before this one, that were overtaken.
    overtaken: u32,
}

#[derive(Default)]
pub(super) enum State {
    #[default]
    Idle,
    UnderWay {
        pool: String,
        order: Order,
        outdated: Outdated,
        /// The pool has refused the object in this round already, of two families the first: any change of it outdates that,
        /// also one that the answer for the second family rests on.
        has_refused: bool,
    },
    Recorded(String, IpAddr),
    Refused(Refusals),
    /// A decision rests on the refusals, and no pool has changed since.
    Taken,
}

/// The change of one pool.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Changed<'a> {
    pub(crate) pool: &'a str,
    /// The version that it has brought. `None`: what the pool has not answered yet it answers by the change.
    pub(crate) version: Option<&'a str>,
}

/// Whether a refusal counts for nothing.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Outdated {
    No,
    /// The pool itself has changed to this version since the order was submitted, also by the very write that the order was
    /// decided with: a refusal counts if it rests on that version, or a later one.
    ByItsPool(String),
    /// Another pool has, or one has since the refusals before the order.
    Yes,
}

struct FailedOrder {
    pool: String,
    order: Order,
    error: WriteError,
    /// In a row.
    failures: u32,
    again_at: Instant,
    /// The pools that had refused this claim before, and have not changed since.
    refused: Refusals,
    /// The failure, while nobody has reported it.
    unreported: Option<Failure>,
    /// The object needs it no more.
    is_over: bool,
}

impl FailedOrder {
    fn is_for(&self, pool: &str, order: &Order) -> bool {
        self.pool == pool && self.order.is_claim() == order.is_claim()
    }

    /// The pause that is left; `None`: the order may be sent again.
    fn retry_in(&self, now: Instant) -> Option<Duration> {
        Some(self.again_at.saturating_duration_since(now)).filter(|left| !left.is_zero())
    }
}

impl Entry {
    /// For an answer that rests on this version of its pool.
    fn is_outdated(&self, version: Option<&str>) -> bool {
        match &self.state {
            State::UnderWay { outdated: Outdated::ByItsPool(since), .. } => !is_since(version, since),
            State::UnderWay { outdated, .. } => *outdated == Outdated::Yes,
            _ => false,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        matches!(self.state, State::Idle)
            && self.failed.is_empty()
            && !self.is_overtaken
            && self.overtaken == 0
    }

    /// Notes that pools have changed before a refusal was heard. Returns whether it is heard all the same: the object is
    /// looked at again later.
    fn overtake(&mut self) -> bool {
        self.is_overtaken = true;
        self.overtaken >= PATIENCE
    }

    /// Whether pools have changed before a refusal that the outcome tells: the object has been woken by that already.
    pub(super) fn is_overtaken(&self, outcome: &Outcome) -> bool {
        self.is_overtaken && !outcome.refused.is_empty()
    }

    /// The failed claims that the object has given up if it sends this one: an object of two families goes on with one
    /// while it waits for the other.
    fn failed_claims_like(&mut self, claim: &Order) -> impl Iterator<Item = &mut FailedOrder> {
        let asked = claim.family();
        let is_like = move |other: Option<Family>| asked.is_none() || other.is_none() || other == asked;
        self.failed_claims().filter(move |failed| is_like(failed.order.family()))
    }

    fn failed_claims(&mut self) -> impl Iterator<Item = &mut FailedOrder> {
        self.failed.iter_mut().filter(|failed| failed.order.is_claim())
    }

    /// `refused` counts for a claim only: a release that fails says nothing about other pools, and its pause may be long.
    pub(super) fn fail(
        &mut self,
        pool: String,
        order: Order,
        failure: Failure,
        mut refused: Refusals,
        now: Instant,
    ) {
        if !order.is_claim() {
            refused.clear();
        }
        let before = self.failed.iter().position(|failed| failed.is_for(&pool, &order));
        let failures = before.map_or(0, |at| self.failed.swap_remove(at).failures) + 1;
        let error = WriteError::of(&order, &failure);
        let again_at = now + pause(&error, &failure, failures);
        let unreported = Some(failure);
        self.failed.push(FailedOrder {
            pool,
            order,
            error,
            failures,
            again_at,
            refused,
            unreported,
            is_over: false,
        });
    }

    /// Notes that the order goes to the pool. Returns those of the refusals that count beside its answer.
    pub(super) fn submit(
        &mut self,
        pool: &str,
        order: &Order,
        mut refused: Refusals,
        now: Instant,
    ) -> Refusals {
        let refused_before =
            |failed: &FailedOrder| failed.retry_in(now).is_some() && !failed.refused.is_empty();
        if order.is_claim() && self.failed_claims_like(order).any(|failed| refused_before(failed)) {
            // they refused a claim that the object has given up
            refused.clear();
            self.failed_claims_like(order).for_each(|failed| failed.refused.clear());
        }
        if order.is_claim() && refused.is_empty() {
            self.overtaken = if self.is_overtaken { self.overtaken.saturating_add(1) } else { 0 };
            self.is_overtaken = false;
        }
        let is_outdated = !refused.is_empty() && !matches!(self.state, State::Taken);
        let outdated = if is_outdated { Outdated::Yes } else { Outdated::No };
        let has_refused = refused.iter().any(|(by, _)| by == pool);
        self.state = State::UnderWay { pool: pool.to_owned(), order: order.clone(), outdated, has_refused };
        refused
    }

    /// Takes the pool's answer. `refused` is what [`Entry::submit`] returned; the answer rests on this version of the pool.
    pub(super) fn answer(
        &mut self,
        pool: String,
        order: Order,
        (result, version): (Result<Answer, Failure>, Option<&str>),
        mut refused: Refusals,
        now: Instant,
    ) {
        let outdated = self.is_outdated(version);
        self.state = State::Idle;
        let answer = match result {
            Ok(answer) => Ok(answer),
            Err(Failure::Refused(why)) => Err(why),
            Err(failure) => {
                if outdated {
                    refused.clear();
                }
                return self.fail(pool, order, failure, refused, now);
            }
        };
        // one address of a family is all that an object claims
        if order.is_claim() && answer.is_ok() {
            self.failed_claims_like(&order).for_each(|failed| failed.is_over = true);
            (self.is_overtaken, self.overtaken) = (false, 0);
        }
        self.failed.retain(|failed| !failed.is_over && !failed.is_for(&pool, &order));
        self.state = match answer {
            Ok(Answer::RecordedAnew(address)) => State::Recorded(pool, address),
            Err(why) if !outdated || self.overtake() => {
                refused.push((pool, why));
                State::Refused(refused)
            }
            Ok(Answer::Done | Answer::Kept) | Err(_) => State::Idle,
        };
    }

    /// A pool has changed: answers to claims from before count for nothing. `changed` is the one that may give what has come
    /// free; `None`: several may, or it may be another choice now.
    pub(super) fn outdate(&mut self, changed: Option<Changed<'_>>, now: Instant) {
        match &mut self.state {
            State::UnderWay { pool, outdated, has_refused, .. } => match changed {
                Some(Changed { pool: name, version })
                    if name == pool && !*has_refused && *outdated != Outdated::Yes =>
                {
                    // the writer may tell its own write after a later one that the watch brought
                    let is_known = |version| matches!(&*outdated, Outdated::ByItsPool(known) if is_since(Some(known.as_str()), version));
                    if let Some(version) = version.filter(|version| !is_known(version)) {
                        *outdated = Outdated::ByItsPool(version.to_owned());
                    }
                }
                _ => *outdated = Outdated::Yes,
            },
            State::Refused(_) => {
                if !self.overtake() {
                    self.state = State::Idle;
                }
            }
            State::Taken => self.state = State::Idle,
            State::Idle | State::Recorded(..) => {}
        }
        for failed in self.failed_claims() {
            failed.refused.clear();
            if failed.unreported.is_none() {
                failed.again_at = now;
            }
        }
    }

    pub(super) fn look(&mut self, now: Instant) -> Outcome {
        let mut outcome = Outcome::default();
        for failed in &mut self.failed {
            let retry_in = failed.retry_in(now);
            outcome.unreported.extend(failed.unreported.take().zip(Some(retry_in.unwrap_or_default())));
            // where the claim may be sent again, every pool is asked again: those that refuse write nothing
            if let Some(retry_in) = retry_in {
                outcome.refused.extend(failed.refused.iter().cloned());
                let FailedOrder { pool, order, error, .. } = &*failed;
                outcome.pending.failed.push(Failed {
                    pool: pool.clone(),
                    order: order.clone(),
                    error: error.clone(),
                    retry_in,
                });
            }
        }
        match &self.state {
            State::Idle | State::Taken => {}
            State::UnderWay { pool, order, .. } => {
                let before = self.failed.iter().find(|failed| failed.is_for(pool, order));
                let last_error = before.map(|failed| failed.error.clone());
                let (pool, order) = (pool.clone(), order.clone());
                outcome.pending.under_way = Some(UnderWay { pool, order, last_error });
            }
            State::Recorded(pool, address) => {
                outcome.recorded_anew = Some((pool.clone(), *address));
                self.state = State::Idle;
            }
            State::Refused(pools) => {
                outcome.refused.clone_from(pools);
                self.state = State::Taken;
            }
        }
        // those that a failed claim keeps are as new: a change of pools would have ended them
        if matches!(self.state, State::Idle) && !outcome.refused.is_empty() {
            self.state = State::Taken;
        }
        outcome
    }
}

/// Whether this version is the other one, or came after it.
fn is_since(version: Option<&str>, other: &str) -> bool {
    let number = |text: &str| text.parse::<u64>().ok();
    version.is_some_and(|version| {
        version == other || number(version).zip(number(other)).is_some_and(|(one, other)| one > other)
    })
}

/// The outcome of a load balancer's orders, as far as no record shows it.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// The pool recorded this address; it had none for the load balancer before.
    pub(crate) recorded_anew: Option<(String, IpAddr)>,
    /// The pools that refused the claim, in the order in which they were asked.
    pub(crate) refused: Refusals,
    pub(crate) pending: Pending,
    /// Failures that nobody has reported yet, each with the pause after which the order is sent again.
    pub(crate) unreported: Vec<(Failure, Duration)>,
}

/// The orders of a load balancer that no pool has carried out.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pending {
    pub(crate) under_way: Option<UnderWay>,
    /// They may not be sent again yet: at most one claim and one release of each pool.
    pub(crate) failed: Vec<Failed>,
}

impl Pending {
    pub(crate) fn is_empty(&self) -> bool {
        self.under_way.is_none() && self.failed.is_empty()
    }
}

/// The pool's writer has the order, and its answer will wake the object.
#[derive(Clone, Debug)]
pub(crate) struct UnderWay {
    pub(crate) pool: String,
    pub(crate) order: Order,
    /// Why the pool was not written the last time.
    pub(crate) last_error: Option<WriteError>,
}

/// The pool could not be written, and the order is sent again after a pause.
#[derive(Clone, Debug)]
pub(crate) struct Failed {
    pub(crate) pool: String,
    pub(crate) order: Order,
    pub(crate) error: WriteError,
    pub(crate) retry_in: Duration,
}

/// Why a pool was not written.
#[derive(Clone, Debug)]
pub(crate) struct WriteError {
    pub(crate) why: String,
    /// The server will answer the claim in the same way until somebody mends that.
    pub(crate) is_denied: bool,
}

impl WriteError {
    /// The most of the server's words that is told: whoever denies a write may say more than a condition has room for.
    const WHY_MAX: usize = 300;

    fn of(order: &Order, failure: &Failure) -> Self {
        let why = match failure {
            Failure::Write { source, .. } => error_message(&**source),
            other => error_message(other),
        };
        let is_denied = matches!(failure, Failure::Write { source, .. }
            if matches!(&**source, kube::Error::Api(status) if refusal::is_lasting(status)));
        Self { why: program::text::cut(&why, Self::WHY_MAX), is_denied: is_denied && order.is_claim() }
    }
}

/// The time until an order that could not be written may be sent again.
fn pause(error: &WriteError, failure: &Failure, failures: u32) -> Duration {
    if error.is_denied {
        return UNWATCHED_AGAIN;
    }
    let asked = writer::asked_to_wait(failure).unwrap_or_default();
    controller_kit::backoff(failures).max(asked)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const ADDRESS: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 1, 7));

    fn claim(family: Option<Family>) -> Order {
        Order::Claim { holder: "shop/web".to_owned(), known: None, family }
    }

    fn release() -> Order {
        Order::Release { holder: "shop/web".to_owned(), address: ADDRESS }
    }

    fn by(pools: &[&str]) -> Refusals {
        let refused = |pool: &str| Refused::NoSuchPool { pool: pool.to_owned() };
        pools.iter().map(|pool| ((*pool).to_owned(), refused(pool))).collect()
    }

    fn pools(refused: &[(String, Refused)]) -> Vec<&str> {
        refused.iter().map(|(pool, _)| pool.as_str()).collect()
    }

    // a condition has room for more than why a pool was not written
    #[test]
    fn the_words_of_a_server_that_denies_a_write_are_cut() {
        let failure = Failure::Contended { pool: "core".repeat(200) };
        let why = WriteError::of(&claim(V4), &failure).why;
        assert_eq!(why.chars().count(), WriteError::WHY_MAX + 1, "{why}");
        assert!(why.ends_with('…'), "{why}");
    }

    fn contended() -> Failure {
        Failure::Contended { pool: "core".to_owned() }
    }

    const V4: Option<Family> = Some(Family::V4);
    const V6: Option<Family> = Some(Family::V6);

    /// An order of which pool `core` could not be written, after pool `full` had refused it.
    fn after_failed(order: Order, state: State) -> Entry {
        let mut entry = Entry::default();
        entry.fail("core".to_owned(), order, contended(), by(&["full"]), Instant::now());
        Entry { state, ..entry }
    }

    #[rstest]
    #[case::the_first(Entry::default(), claim(None), &[], &[], false)]
    #[case::a_decision_rests_on_them(Entry { state: State::Taken, ..Entry::default() }, claim(None), &["one"], &["one"], false)]
    #[case::a_pool_has_changed_since(Entry::default(), claim(None), &["one"], &["one"], true)]
    #[case::of_a_claim_that_was_given_up(after_failed(claim(None), State::Taken), claim(None), &["full"], &[], false)]
    #[case::of_any_family(after_failed(claim(None), State::Taken), claim(V6), &["full"], &[], false)]
    #[case::of_the_other_family(after_failed(claim(V4), State::Taken), claim(V6), &["full"], &["full"], false)]
    #[case::of_a_release(after_failed(release(), State::Taken), claim(None), &["one"], &["one"], false)]
    #[case::a_release_gives_up_no_claim(after_failed(claim(None), State::Taken), release(), &["full"], &["full"], false)]
    #[tokio::test(start_paused = true)]
    async fn refusals_count_beside_the_answer_to_the_claim_that_they_refused(
        #[case] entry: Entry,
        #[case] order: Order,
        #[case] refused: &[&str],
        #[case] counts: &[&str],
        #[case] is_outdated: bool,
    ) {
        let mut entry = entry;
        let counted = entry.submit("edge", &order, by(refused), Instant::now());
        assert_eq!((pools(&counted), entry.is_outdated(None)), (counts.to_vec(), is_outdated));
    }

    /// What an answer leaves: the state, the pools that refused, and the pools that failed.
    fn left(entry: &Entry) -> (&'static str, Vec<&str>, Vec<&str>) {
        let (state, refused) = match &entry.state {
            State::Idle => ("idle", Vec::new()),
            State::UnderWay { .. } => ("under way", Vec::new()),
            State::Recorded(..) => ("recorded", Vec::new()),
            State::Refused(refused) => ("refused", pools(refused)),
            State::Taken => ("taken", Vec::new()),
        };
        (state, refused, entry.failed.iter().map(|failed| failed.pool.as_str()).collect())
    }

    fn no_pool() -> Result<Answer, Failure> {
        Err(Failure::Refused(Refused::NoSuchPool { pool: "edge".to_owned() }))
    }

    /// What changed while the order was under way, whose answer rests on version 8 of its pool.
    #[derive(Clone, Copy)]
    enum Change {
        None,
        /// The pool, to this version.
        InIt(Option<&'static str>),
        /// The pool, to these versions, in the order in which they are told.
        Told([&'static str; 2]),
        Elsewhere,
    }

    #[rstest]
    #[case::recorded(Entry::default(), claim(None), Ok(Answer::RecordedAnew(ADDRESS)), Change::None, "recorded", &[], &[])]
    #[case::had_before(Entry::default(), claim(None), Ok(Answer::Done), Change::None, "idle", &[], &[])]
    #[case::released(Entry::default(), release(), Ok(Answer::Done), Change::None, "idle", &[], &[])]
    #[case::refused(Entry::default(), claim(None), no_pool(), Change::None, "refused", &["one", "edge"], &[])]
    #[case::refused_beside_a_release(Entry::default(), claim(None), no_pool(), Change::InIt(Some("8")), "refused", &["one", "edge"], &[])]
    #[case::refused_after_a_release(Entry::default(), claim(None), no_pool(), Change::InIt(Some("7")), "refused", &["one", "edge"], &[])]
    #[case::refused_before_a_release(Entry::default(), claim(None), no_pool(), Change::InIt(Some("10")), "idle", &[], &[])]
    #[case::refused_before_the_later_of_two_releases(Entry::default(), claim(None), no_pool(), Change::Told(["7", "10"]), "idle", &[], &[])]
    #[case::refused_before_a_release_that_is_told_first(Entry::default(), claim(None), no_pool(), Change::Told(["10", "8"]), "idle", &[], &[])]
    #[case::refused_by_what_changed_beside_the_pool(Entry::default(), claim(None), no_pool(), Change::InIt(None), "refused", &["one", "edge"], &[])]
    #[case::refused_before_another_choice(Entry::default(), claim(None), no_pool(), Change::Elsewhere, "idle", &[], &[])]
    #[case::failed(Entry::default(), claim(None), Err(contended()), Change::None, "idle", &[], &["edge"])]
    #[case::the_claim_that_failed_is_over(after_failed(claim(None), State::Idle), claim(None), Ok(Answer::Done), Change::None, "idle", &[], &[])]
    #[case::not_that_of_the_other_family(after_failed(claim(V4), State::Idle), claim(V6), Ok(Answer::Done), Change::None, "idle", &[], &["core"])]
    #[case::a_refusal_ends_no_failed_claim(after_failed(claim(None), State::Idle), claim(None), no_pool(), Change::None, "refused", &["one", "edge"], &["core"])]
    #[case::a_release_ends_no_claim(after_failed(claim(None), State::Idle), release(), Ok(Answer::Done), Change::None, "idle", &[], &["core"])]
    #[tokio::test(start_paused = true)]
    async fn an_answer_ends_the_order_and_what_it_makes_needless(
        #[case] entry: Entry,
        #[case] order: Order,
        #[case] result: Result<Answer, Failure>,
        #[case] change: Change,
        #[case] state: &str,
        #[case] refused: &[&str],
        #[case] failed: &[&str],
    ) {
        let mut entry = Entry { state: State::Taken, ..entry };
        entry.submit("edge", &order, by(&["one"]), Instant::now());
        let in_it = |version| Some(Changed { pool: "edge", version });
        match change {
            Change::None => {}
            Change::InIt(version) => entry.outdate(in_it(version), Instant::now()),
            Change::Told(versions) => {
                versions.into_iter().for_each(|version| entry.outdate(in_it(Some(version)), Instant::now()));
            }
            Change::Elsewhere => {
                entry.outdate(None, Instant::now());
                entry.outdate(in_it(Some("7")), Instant::now());
            }
        }
        entry.answer("edge".to_owned(), order, (result, Some("8")), by(&["one"]), Instant::now());
        assert_eq!(left(&entry), (state, refused.to_vec(), failed.to_vec()));
    }

    // the answer for the second family may rest on the change; that for the first one is older
    #[rstest]
    #[case::it_was_written(Some("8"))]
    #[case::something_else_counts_for_its_quotas(None)]
    #[tokio::test(start_paused = true)]
    async fn a_change_of_a_pool_outdates_what_it_refused_before_of_the_other_family(
        #[case] version: Option<&str>,
    ) {
        let (mut entry, now) = (Entry::default(), Instant::now());
        let before = entry.submit("edge", &claim(V4), Vec::new(), now);
        entry.answer("edge".to_owned(), claim(V4), (no_pool(), Some("7")), before, now);
        let refused = entry.look(now).refused;
        let before = entry.submit("edge", &claim(V6), refused, now);
        entry.outdate(Some(Changed { pool: "edge", version }), now);
        entry.answer("edge".to_owned(), claim(V6), (no_pool(), Some("8")), before, now);
        assert_eq!(left(&entry), ("idle", Vec::new(), Vec::new()));
    }

    // a label that flips, or releases in two pools, can be news as often as a claim is answered
    #[rstest]
    #[case::once(1, "idle", &[])]
    #[case::again_and_again(5, "refused", &["one", "edge"])]
    #[tokio::test(start_paused = true)]
    async fn a_refusal_is_heard_in_the_end_although_pools_change_before_each_answer(
        #[case] rounds: u32,
        #[case] state: &str,
        #[case] refused: &[&str],
        #[values(true, false)] before_the_answer: bool,
    ) {
        let (mut entry, now) = (Entry::default(), Instant::now());
        for _ in 0..rounds {
            let mut before = Vec::new();
            for pool in ["one", "edge"] {
                let counts = entry.submit(pool, &claim(None), before, now);
                if before_the_answer {
                    entry.outdate(None, now);
                }
                entry.answer(pool.to_owned(), claim(None), (no_pool(), Some("8")), counts, now);
                if !before_the_answer {
                    entry.outdate(None, now);
                }
                // the last answer is left to be seen
                if pool == "edge" || matches!(entry.state, State::Idle) {
                    break;
                }
                before = entry.look(now).refused;
            }
        }
        assert_eq!(left(&entry), (state, refused.to_vec(), Vec::new()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_round_that_nothing_overtook_makes_a_change_of_pools_count_again() {
        let (mut entry, now) = (Entry::default(), Instant::now());
        let mut round = |is_overtaken: bool| {
            entry.submit("edge", &claim(None), Vec::new(), now);
            if is_overtaken {
                entry.outdate(None, now);
            }
            entry.answer("edge".to_owned(), claim(None), (no_pool(), Some("8")), Vec::new(), now);
            !entry.look(now).refused.is_empty()
        };
        let heard = [true, true, true, true, false, true].map(&mut round);
        assert_eq!(heard, [false, false, false, true, true, false]);
    }
}
