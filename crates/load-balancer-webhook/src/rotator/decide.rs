//! The decision of the rotator: which certificates to make, to serve with, and to register. Pure.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;
use kube::api::DynamicObject;

use crate::certificate::{Authority, Serving, State, state};
use crate::registration::{Registration, Write};

/// The secrets and registrations as they are.
#[derive(Clone, Debug)]
pub(super) struct Seen<'a> {
    pub(super) authority: Option<Authority>,
    pub(super) serving: Option<Serving>,
    /// This process served with a certificate of the authority: a serving certificate of another one is made anew alone.
    pub(super) is_known: bool,
    /// The secret of the authority holds another one, and gets this one back.
    pub(super) put_back: bool,
    /// Names that the serving certificate must be good for.
    pub(super) names: &'a BTreeSet<String>,
    /// Each registration with its object; those of which nothing is known yet are left out.
    pub(super) registered: Vec<(&'a Registration, Option<Arc<DynamicObject>>)>,
    pub(super) now: Timestamp,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Step {
    MakeAuthority,
    /// Stores an authority again that another program replaced.
    PutBack(Authority),
    MakeServing {
        authority: Authority,
        names: BTreeSet<String>,
    },
    Serve(Serving),
    Register(Write),
}

/// The steps to take now, in order.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RotationPlan {
    pub(super) steps: Vec<Step>,
    /// When a certificate has to be renewed. Nothing while one is made or put back: then the rotator looks again at once.
    pub(super) again: Option<Timestamp>,
}

/// Certificates first: no registration names an authority that has signed no serving certificate yet. An authority is put back
/// last: what is served and registered is good without it, and the API server may refuse it for as long as another program keeps
/// its own there.
pub(super) fn decide(seen: Seen<'_>) -> RotationPlan {
    let Seen { authority, serving, is_known, put_back, names, registered, now } = seen;
    let at_once = |step| RotationPlan { steps: vec![step], again: None };
    let state = match state(authority.as_ref(), serving.as_ref(), names, now) {
        State::NeedsAuthority if is_known => State::NeedsServing,
        state => state,
    };
    match (state, authority, serving) {
        (State::Good { until }, Some(authority), Some(serving)) => {
            let bundle = authority.bundle();
            let writes =
                registered.into_iter().filter_map(|(one, found)| one.write(found.as_deref(), &bundle));
            let last = put_back.then_some(Step::PutBack(authority));
            let steps = std::iter::once(Step::Serve(serving)).chain(writes.map(Step::Register)).chain(last);
            RotationPlan { steps: steps.collect(), again: (!put_back).then_some(until) }
        }
        (State::NeedsServing, Some(authority), serving) if authority.is_ours() => {
            // names of the other replicas stay good: the API server may reach them by addresses of their own
            let names = names.iter().cloned().chain(serving.into_iter().flat_map(|serving| serving.names));
            at_once(Step::MakeServing { authority, names: names.collect() })
        }
        _ => at_once(Step::MakeAuthority),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::certificate::{new_authority, new_serving};
    use crate::registration::{Address, webhooks};

    fn names(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn certificates_are_made_one_after_the_other_then_served_and_registered() {
        let now = "2026-08-20T10:00:00Z".parse().unwrap();
        let names = names(&["a.svc"]);
        let webhooks = webhooks("harvester-system", &Address::Service);
        let unregistered = || webhooks.iter().map(|one| (one, None)).collect::<Vec<_>>();
        let mut seen = Seen {
            authority: None,
            serving: None,
            is_known: false,
            put_back: false,
            names: &names,
            registered: unregistered(),
            now,
        };
        assert_eq!(decide(seen.clone()), RotationPlan { steps: vec![Step::MakeAuthority], again: None });

        let authority = new_authority(None, now).unwrap();
        seen.authority = Some(authority.clone());
        let make = Step::MakeServing { authority: authority.clone(), names: names.clone() };
        assert_eq!(decide(seen.clone()), RotationPlan { steps: vec![make], again: None });

        let serving = new_serving(&authority, &names, now).unwrap();
        seen.serving = Some(serving.clone());
        let plan = decide(seen.clone());
        assert_eq!(plan.again, Some("2027-05-22T00:00:00Z".parse().unwrap()));
        let [Step::Serve(served), Step::Register(Write::Create(one)), Step::Register(Write::Create(other))] =
            &plan.steps[..]
        else {
            panic!("{plan:?}")
        };
        assert_eq!(*served, serving);

        let stored = |object: &DynamicObject| Some(Arc::new(object.clone()));
        // one of them is as it should be, of the other nothing is known yet
        seen.registered = vec![(&webhooks[0], stored(one))];
        assert_eq!(decide(seen.clone()).steps, [Step::Serve(serving.clone())]);
        seen.registered = vec![(&webhooks[0], stored(one)), (&webhooks[1], stored(other))];
        assert_eq!(decide(seen.clone()).steps, [Step::Serve(serving)]);

        // a new authority is registered everywhere, but only after it has signed
        let renewed = new_authority(Some(authority.certificate), now).unwrap();
        seen.authority = Some(renewed.clone());
        assert!(matches!(&decide(seen.clone()).steps[..], [Step::MakeServing { .. }]));
        seen.serving = Some(new_serving(&renewed, &names, now).unwrap());
        let steps = decide(seen).steps;
        assert!(
            matches!(
                &steps[..],
                [Step::Serve(_), Step::Register(Write::Replace(_)), Step::Register(Write::Replace(_))]
            ),
            "{steps:?}"
        );
    }

    #[test]
    fn a_replica_with_another_name_keeps_the_names_of_the_others() {
        let now = "2026-08-20T10:00:00Z".parse().unwrap();
        let authority = new_authority(None, now).unwrap();
        let serving = new_serving(&authority, &names(&["a.svc"]), now).unwrap();
        let mine = names(&["b.svc"]);
        let seen = Seen {
            authority: Some(authority.clone()),
            serving: Some(serving),
            is_known: false,
            put_back: false,
            names: &mine,
            registered: vec![],
            now,
        };
        let expected = Step::MakeServing { authority, names: names(&["a.svc", "b.svc"]) };
        assert_eq!(decide(seen).steps, [expected]);
    }

    #[test]
    fn a_pair_that_somebody_put_beside_an_authority_that_is_known_costs_no_new_authority() {
        let now = "2026-08-20T10:00:00Z".parse().unwrap();
        let [authority, foreign] = [(), ()].map(|()| new_authority(None, now).unwrap());
        let names = names(&["a.svc"]);
        let other = new_serving(&foreign, &names, now).unwrap();
        let mut seen = Seen {
            authority: Some(authority.clone()),
            serving: Some(Serving { authority: authority.certificate.clone(), ..other }),
            is_known: false,
            put_back: false,
            names: &names,
            registered: vec![],
            now,
        };
        assert_eq!(decide(seen.clone()).steps, [Step::MakeAuthority]);
        seen.is_known = true;
        let made = Step::MakeServing { authority: authority.clone(), names: names.clone() };
        assert_eq!(decide(seen.clone()).steps, [made]);

        // of an authority that somebody replaced the pair is good that this process has
        let webhooks = webhooks("harvester-system", &Address::Service);
        let serving = new_serving(&authority, &names, now).unwrap();
        seen.serving = Some(serving.clone());
        seen.registered = webhooks.iter().map(|one| (one, None)).collect();
        seen.put_back = true;
        let RotationPlan { steps, again } = decide(seen);
        let [Step::Serve(served), Step::Register(_), Step::Register(_), Step::PutBack(stored)] = &steps[..]
        else {
            panic!("{steps:?}")
        };
        assert_eq!((served, stored, again), (&serving, &authority, None));
    }

    #[test]
    fn the_authority_of_another_program_signs_nothing() {
        let now = "2026-08-20T10:00:00Z".parse().unwrap();
        let ours = new_authority(None, now).unwrap();
        let theirs = rcgen::generate_simple_self_signed(vec!["other".to_owned()]).unwrap();
        let (certificate, key) = (theirs.cert.pem(), theirs.signing_key.serialize_pem());
        let foreign = Authority { certificate, former: None, key, ends: ours.ends };
        assert_eq!((ours.is_ours(), foreign.is_ours()), (true, false));
        let names = names(&["a.svc"]);
        for serving in [Some(new_serving(&ours, &names, now).unwrap()), None] {
            let seen = Seen {
                authority: Some(foreign.clone()),
                serving,
                is_known: false,
                put_back: false,
                names: &names,
                registered: vec![],
                now,
            };
            assert_eq!(decide(seen).steps, [Step::MakeAuthority]);
        }
    }
}
