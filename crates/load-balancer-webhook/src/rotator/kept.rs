//! The certificates that this process served with or stored last, and what to go by where another program writes its own into
//! the secrets.
//!
//! A program that reconciles a secret (an ExternalSecret, a GitOps agent) puts its pair back whenever the rotator replaces it, in
//! turn and for ever. So what comes back within [`LEFT_FOR`] after this process stored its own is left there for the rest of that
//! time, while the process serves and registers the pair that it has in memory. Afterwards it puts its authority back: a new one
//! would be three registrations, and other replicas would serve by the former until they see it. A secret that is deleted or
//! emptied is no keeper's, and is filled at once: people empty it to have a certificate made anew. An authority that a rotator
//! made is a replica's, and is followed, also an older one out of a backup; only those have come back that this process has
//! replaced, and the one just before its own. Pure.

use std::collections::{BTreeSet, VecDeque};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use tokio::time::Instant;

use super::contest::{LEFT_FOR, Told};
use crate::certificate::{Authority, Serving, State, state};
use crate::secret::{self, CA_SECRET, TLS_SECRET};

/// An authority lasts for years, and people empty the secret now and then.
const REPLACED_MAX: usize = 64;

#[derive(Debug, Default)]
pub(super) struct Kept {
    /// Both were good when they were seen or stored.
    pair: Option<(Authority, Serving)>,
    /// Certificates of the authorities before it, the latest last.
    replaced: VecDeque<String>,
    /// The authority that this process stored last, and when.
    ca: Option<(Authority, Instant)>,
    /// When this process stored a serving certificate last.
    tls: Option<Instant>,
    /// Somebody heard that a secret is left, since this process stored one.
    told: bool,
    /// How long a secret is left.
    until: Option<Instant>,
}

/// The certificates to go by.
#[derive(Debug, PartialEq)]
pub(super) struct Chosen {
    pub(super) authority: Option<Authority>,
    pub(super) serving: Option<Serving>,
    /// The authority is the one whose certificate this process served with: if the two do not fit, somebody wrote into the
    /// secret of the other.
    pub(super) is_known: bool,
    /// The secret of the authority holds another one, and gets this one back.
    pub(super) put_back: bool,
    /// The secret that is left as it is, and whether somebody heard of it.
    pub(super) left: Option<(&'static str, Told)>,
}

impl Kept {
    /// What the secrets hold, or the pair in memory while one of them is left.
    pub(super) fn chosen(
        &mut self,
        ca: Option<&Secret>,
        tls: Option<&Secret>,
        names: &BTreeSet<String>,
        now: Timestamp,
        at: Instant,
    ) -> Chosen {
        self.until = None;
        if !ca.is_some_and(secret::has_certificate) {
            self.ca = None;
        }
        if !tls.is_some_and(secret::has_certificate) {
            self.tls = None;
        }
        let (authority, serving) = (ca.and_then(secret::authority), tls.and_then(secret::serving));
        if let (Some(authority), Some(serving)) = (&authority, &serving)
            && is_good(authority, serving, names, now)
        {
            self.go_by(authority.clone(), serving.clone());
        }
        let good = self.pair.as_ref().filter(|(authority, serving)| is_good(authority, serving, names, now));
        let Some((own, own_serving)) = good else {
            return Chosen { authority, serving, is_known: false, put_back: false, left: None };
        };
        let is_known = authority.as_ref() == Some(own);
        // an authority that this process or another replica stored a moment ago has signed no serving certificate yet
        let is_successor_or_ours = authority.as_ref().is_some_and(|authority| {
            authority.former.as_ref() == Some(&own.certificate)
                || self.ca.as_ref().is_some_and(|(stored, _)| stored == authority)
                || self.is_of_replica(authority, own, names, now)
        });
        let is_taken = if is_known {
            serving.as_ref() == Some(own_serving)
        } else {
            is_successor_or_ours || !ca.is_some_and(secret::has_certificate)
        };
        if is_taken {
            return Chosen { authority, serving, is_known, put_back: false, left: None };
        }
        let (secret, stored) = if is_known {
            (TLS_SECRET, self.tls)
        } else {
            (CA_SECRET, self.ca.as_ref().map(|(_, stored)| *stored))
        };
        self.until = stored.map(|stored| stored + LEFT_FOR).filter(|until| *until > at);
        if is_known && self.until.is_none() {
            // the authority signs one again, for the names of all replicas
            return Chosen { authority, serving, is_known, put_back: false, left: None };
        }
        let (authority, serving) = (Some(own.clone()), Some(own_serving.clone()));
        if self.until.is_none() {
            return Chosen { authority, serving, is_known: true, put_back: true, left: None };
        }
        let told = if self.told { Told::Before } else { Told::Now };
        self.told = true;
        Chosen { authority, serving, is_known: true, put_back: false, left: Some((secret, told)) }
    }

    /// The certificate by which API servers trust what this process, and other replicas with it, serve now. A process that has no
    /// pair yet takes the one that signed what is stored: the other replicas serve that, whoever writes into the secret of the
    /// authority.
    pub(super) fn trusted_certificate(&self, tls: Option<&Secret>) -> Option<String> {
        let own = self.pair.as_ref().map(|(authority, _)| authority.certificate.clone());
        let stored = || tls.and_then(secret::serving).filter(Serving::is_signed);
        own.or_else(|| stored().map(|serving| serving.authority))
    }

    /// This process stored an authority.
    pub(super) fn stored_authority(&mut self, authority: Authority, at: Instant) {
        self.ca = Some((authority, at));
        self.told = false;
    }

    /// This process stored a serving certificate of this authority.
    pub(super) fn stored_serving(
        &mut self,
        authority: Authority,
        serving: Serving,
        names: &BTreeSet<String>,
        now: Timestamp,
        at: Instant,
    ) {
        self.tls = Some(at);
        self.told = false;
        if is_good(&authority, &serving, names, now) {
            self.go_by(authority, serving);
        } else {
            // an authority whose key is another one's signs what nobody trusts: a new one is made, of which nobody else is to blame
            (self.pair, self.tls) = (None, None);
        }
    }

    fn go_by(&mut self, authority: Authority, serving: Serving) {
        let certificate = authority.certificate.clone();
        self.replaced.retain(|replaced| *replaced != certificate);
        let former = self.pair.replace((authority, serving));
        if let Some((former, _)) = former.filter(|(former, _)| former.certificate != certificate) {
            if self.replaced.len() == REPLACED_MAX {
                self.replaced.pop_front();
            }
            self.replaced.push_back(former.certificate);
        }
    }

    /// Whether a replica may have made this authority, perhaps after one that this process has not seen: a watch need not bring
    /// each. One whose end is near would be made anew at once, and brought back by its keeper.
    fn is_of_replica(
        &self,
        authority: &Authority,
        own: &Authority,
        names: &BTreeSet<String>,
        now: Timestamp,
    ) -> bool {
        own.former.as_ref() != Some(&authority.certificate)
            && !self.replaced.contains(&authority.certificate)
            && state(Some(authority), None, names, now) == State::NeedsServing
            && authority.is_ours()
            && authority.has_its_key()
    }

    /// When a secret that is left will be stored again.
    pub(super) fn until(&self) -> Option<Instant> {
        self.until
    }
}

fn is_good(authority: &Authority, serving: &Serving, names: &BTreeSet<String>, now: Timestamp) -> bool {
    matches!(state(Some(authority), Some(serving), names, now), State::Good { .. })
}

#[cfg(test)]
mod tests {
    use k8s_openapi::ByteString;

    use super::*;
    use crate::certificate::{new_authority, new_serving};
    use crate::secret::{with_authority, with_serving};

    fn now() -> Timestamp {
        "2026-08-20T10:00:00Z".parse().unwrap()
    }

    fn names() -> BTreeSet<String> {
        BTreeSet::from(["a.svc".to_owned()])
    }

    fn pair() -> (Authority, Serving) {
        let authority = new_authority(None, now()).unwrap();
        let serving = new_serving(&authority, &names(), now()).unwrap();
        (authority, serving)
    }

    fn look(kept: &mut Kept, ca: Option<&Secret>, tls: Option<&Secret>, at: Instant) -> Chosen {
        kept.chosen(ca, tls, &names(), now(), at)
    }

    #[tokio::test(start_paused = true)]
    async fn what_this_process_signed_by_another_ones_key_is_no_other_programs() {
        let ((authority, serving), (foreign, _)) = (pair(), pair());
        let mixed = Authority { key: foreign.key, ..authority };
        let (ca, tls) = (with_authority(None, "lb", &mixed), with_serving(None, "lb", &serving));
        let (mut kept, begun) = (Kept::default(), Instant::now());
        look(&mut kept, Some(&ca), Some(&tls), begun);
        let made = new_serving(&mixed, &names(), now()).unwrap();
        kept.stored_serving(mixed, made.clone(), &names(), now(), begun);
        let chosen = look(&mut kept, Some(&ca), Some(&with_serving(Some(tls), "lb", &made)), begun);
        assert_eq!((chosen.is_known, chosen.left), (false, None), "a new authority is made");
    }

    #[tokio::test(start_paused = true)]
    async fn a_pair_that_comes_back_beside_our_authority_is_left_for_ten_minutes_while_ours_is_served() {
        let ((authority, serving), (_, other)) = (pair(), pair());
        let (ca, tls) = (with_authority(None, "lb", &authority), with_serving(None, "lb", &serving));
        let theirs = Serving { authority: serving.authority.clone(), ..other };
        let theirs = with_serving(Some(tls.clone()), "lb", &theirs);
        let (mut kept, begun) = (Kept::default(), Instant::now());
        // a process that has just started cannot tell whose secret is wrong
        let chosen = look(&mut kept, Some(&ca), Some(&theirs), begun);
        assert_eq!((chosen.is_known, chosen.left), (false, None));
        look(&mut kept, Some(&ca), Some(&tls), begun);
        // what this process has not stored itself is replaced
        let chosen = look(&mut kept, Some(&ca), Some(&theirs), begun);
        assert_eq!((chosen.is_known, chosen.left, kept.until()), (true, None, None));
        assert_eq!(chosen.serving, secret::serving(&theirs));

        kept.stored_serving(authority.clone(), serving.clone(), &names(), now(), begun);
        for told in [Told::Now, Told::Before] {
            let chosen = look(&mut kept, Some(&ca), Some(&theirs), begun);
            assert_eq!((chosen.authority, chosen.serving), (Some(authority.clone()), Some(serving.clone())));
            assert_eq!((chosen.left, kept.until()), (Some((TLS_SECRET, told)), Some(begun + LEFT_FOR)));
        }
        let chosen = look(&mut kept, Some(&ca), Some(&theirs), begun + LEFT_FOR);
        assert_eq!((chosen.is_known, chosen.left, kept.until()), (true, None, None));
    }

    #[tokio::test(start_paused = true)]
    async fn an_authority_that_comes_back_is_left_and_a_pair_of_another_replica_is_taken() {
        let ((former, its_serving), (other, serving_of_other)) = (pair(), pair());
        let authority = new_authority(Some(former.certificate.clone()), now()).unwrap();
        let serving = new_serving(&authority, &names(), now()).unwrap();
        let strange = rcgen::generate_simple_self_signed(vec!["other".to_owned()]).unwrap();
        let (certificate, key) = (strange.cert.pem(), strange.signing_key.serialize_pem());
        let strange = Authority { certificate, key, ..other.clone() };
        for theirs in [&former, &strange] {
            let (ca, tls) = (with_authority(None, "lb", &authority), with_serving(None, "lb", &serving));
            let (mut kept, begun) = (Kept::default(), Instant::now());
            let its_serving = with_serving(None, "lb", &its_serving);
            look(&mut kept, Some(&with_authority(None, "lb", &former)), Some(&its_serving), begun);
            kept.stored_authority(authority.clone(), begun);
            assert_eq!(look(&mut kept, Some(&ca), Some(&its_serving), begun).left, None, "it signs next");
            kept.stored_serving(authority.clone(), serving.clone(), &names(), now(), begun);
            let theirs = with_authority(Some(ca), "lb", theirs);
            let chosen = look(&mut kept, Some(&theirs), Some(&tls), begun);
            let left = Some((CA_SECRET, Told::Now));
            assert_eq!((chosen.authority, chosen.left), (Some(authority.clone()), left));

            // it is put back then: no new one, which the other replicas would have to follow
            let chosen = look(&mut kept, Some(&theirs), Some(&tls), begun + LEFT_FOR);
            assert_eq!((chosen.authority, chosen.put_back), (Some(authority.clone()), true));
            assert_eq!((chosen.left, kept.until()), (None, None));
            kept.stored_authority(authority.clone(), begun + LEFT_FOR);
            let chosen = look(&mut kept, Some(&theirs), Some(&tls), begun + LEFT_FOR);
            assert_eq!((chosen.put_back, chosen.left), (false, left));

            let ca = with_authority(None, "lb", &other);
            let tls = with_serving(None, "lb", &serving_of_other);
            let chosen = look(&mut kept, Some(&ca), Some(&tls), begun);
            assert_eq!(
                (chosen.authority, chosen.serving),
                (Some(other.clone()), Some(serving_of_other.clone()))
            );
            assert_eq!((chosen.left, kept.until()), (None, None));
        }
    }

    /// As long as the secret has it once, the next one names it as its former: whoever wants it out empties the secret twice.
    #[tokio::test(start_paused = true)]
    async fn an_authority_that_people_took_away_twice_does_not_come_back() {
        let (leaked, its_serving) = pair();
        let (mut kept, begun) = (Kept::default(), Instant::now());
        look(
            &mut kept,
            Some(&with_authority(None, "lb", &leaked)),
            Some(&with_serving(None, "lb", &its_serving)),
            begun,
        );
        let mut own = leaked.clone();
        let mut tls = None;
        for _ in 0..2 {
            own = new_authority(Some(own.certificate), now()).unwrap();
            let serving = new_serving(&own, &names(), now()).unwrap();
            tls = Some(with_serving(None, "lb", &serving));
            kept.stored_authority(own.clone(), begun);
            kept.stored_serving(own.clone(), serving, &names(), now(), begun);
        }
        let theirs = with_authority(Some(with_authority(None, "lb", &own)), "lb", &leaked);
        let chosen = look(&mut kept, Some(&theirs), tls.as_ref(), begun);
        assert_eq!((chosen.authority.as_ref(), chosen.left), (Some(&own), Some((CA_SECRET, Told::Now))));
        let chosen = look(&mut kept, Some(&theirs), tls.as_ref(), begun + LEFT_FOR);
        assert_eq!((chosen.authority.as_ref(), chosen.put_back), (Some(&own), true));
    }

    #[test]
    fn a_process_that_starts_goes_on_trusting_what_the_other_replicas_serve() {
        let ((authority, serving), (other, its_serving)) = (pair(), pair());
        let trusted = |kept: &Kept, serving: &Serving| {
            kept.trusted_certificate(Some(&with_serving(None, "lb", serving)))
        };
        assert_eq!(trusted(&Kept::default(), &serving), Some(authority.certificate.clone()));
        let mixed = Serving { authority: other.certificate, ..serving.clone() };
        assert_eq!(trusted(&Kept::default(), &mixed), None);
        assert_eq!(Kept::default().trusted_certificate(None), None);
        let kept = Kept { pair: Some((authority.clone(), serving)), ..Kept::default() };
        assert_eq!(trusted(&kept, &its_serving), Some(authority.certificate));
    }

    #[tokio::test(start_paused = true)]
    async fn an_authority_that_another_replica_has_just_made_is_followed() {
        let (authority, serving) = pair();
        let (ca, tls) = (with_authority(None, "lb", &authority), with_serving(None, "lb", &serving));
        let next = new_authority(Some(authority.certificate.clone()), now()).unwrap();
        // a watch that a proxy held may bring the second of two alone
        let last = new_authority(Some(next.certificate.clone()), now()).unwrap();
        let mixed = Authority { key: pair().0.key, ..last.clone() };
        let old = new_authority(None, "2017-01-01T10:00:00Z".parse().unwrap()).unwrap();
        for stored_here in [true, false] {
            let (mut kept, begun) = (Kept::default(), Instant::now());
            look(&mut kept, Some(&ca), Some(&tls), begun);
            if stored_here {
                kept.stored_authority(authority.clone(), begun);
            }
            for (made, is_followed) in [(&next, true), (&last, true), (&mixed, false), (&old, false)] {
                let ca = with_authority(Some(ca.clone()), "lb", made);
                let chosen = look(&mut kept, Some(&ca), Some(&tls), begun);
                let expected = if is_followed { made } else { &authority };
                assert_eq!(chosen.authority.as_ref(), Some(expected));
                assert_eq!(chosen.put_back, !is_followed && !stored_here);
                assert_eq!(chosen.left.is_some(), !is_followed && stored_here);
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_authority_is_made_anew_where_its_secret_is_emptied_or_deleted() {
        let (authority, serving) = pair();
        let (mut ca, tls) = (with_authority(None, "lb", &authority), with_serving(None, "lb", &serving));
        let (mut kept, begun) = (Kept::default(), Instant::now());
        look(&mut kept, Some(&ca), Some(&tls), begun);
        ca.data.get_or_insert_default().insert("tls.crt".to_owned(), ByteString(Vec::new()));
        for emptied in [Some(&ca), None] {
            let chosen = look(&mut kept, emptied, Some(&tls), begun);
            assert_eq!((chosen.authority, chosen.put_back, chosen.left), (None, false, None));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_secret_that_is_emptied_or_deleted_is_filled_at_once() {
        let (authority, serving) = pair();
        let (ca, mut tls) = (with_authority(None, "lb", &authority), with_serving(None, "lb", &serving));
        tls.data.get_or_insert_default().insert("tls.crt".to_owned(), ByteString(Vec::new()));
        for emptied in [Some(&tls), None] {
            let (mut kept, begun) = (Kept::default(), Instant::now());
            kept.stored_serving(authority.clone(), serving.clone(), &names(), now(), begun);
            let chosen = look(&mut kept, Some(&ca), emptied, begun);
            assert_eq!((chosen.is_known, chosen.serving, chosen.left), (true, None, None));
        }
    }
}
