//! Whether a record goes back to its pool. The server is asked afresh, because caches may be behind, and only for what can
//! still keep the record.

use std::net::IpAddr;

use controller_kit::{ObjectKey, RawObject};
use k8s_openapi::api::core::v1::Service;
use kube::Resource as _;

use super::decide::Because;
use crate::{
    ownership::{Owner, Ownership, is_labelled},
    reuse::{self, Holder, InUse},
};

/// The server's answers; `None`: it was not asked.
#[derive(Debug, Default)]
pub(super) struct Answers {
    pub(super) is_object_there: Option<bool>,
    /// The Service of the object's name, if there is one.
    pub(super) service: Option<Option<RawObject<Service>>>,
    pub(super) is_of_other_program: Option<bool>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    ReadObject,
    ReadService,
    ReadPool,
    GiveBack,
    Keep(Kept),
}

/// Why a record stays, and who looks at it again.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Kept {
    /// A Service is in the way.
    pub(super) by_service: Option<InUse>,
    /// That Service is somebody else's.
    pub(super) by_stranger: bool,
    /// No watch tells when the record may go: the object is looked at again.
    pub(super) unwatched: bool,
    /// The record garbage collector looks after it from now on, with growing pauses.
    pub(super) left_to_collector: bool,
}

/// The next step on the way to give back the record of `address` for `key`.
pub(super) fn next(key: &ObjectKey, address: IpAddr, because: &Because, answers: &Answers) -> Next {
    let is_gone = *because == Because::Gone;
    if is_gone {
        match answers.is_object_there {
            None => return Next::ReadObject,
            Some(true) => return Next::Keep(Kept::default()),
            Some(false) => {}
        }
    }
    let Some(service) = &answers.service else { return Next::ReadService };
    let found = service.as_deref();
    if let Err(why) = reuse::may_be_given_away(key, because.holder(), address, found) {
        let uid = match because.holder() {
            Holder::Gone => String::new(),
            Holder::Moved(uid) => uid.to_owned(),
        };
        let owner = Owner { key: key.clone(), uid };
        return Next::Keep(Kept {
            by_service: Some(why),
            by_stranger: found.is_some_and(|service| owner.ownership(service.meta()) == Ownership::Foreign),
            unwatched: !is_gone && found.is_none_or(|service| !is_labelled(service.meta())),
            left_to_collector: is_gone,
        });
    }
    // an object that ends takes all its records along, also one that an administrator wrote back with kubectl
    if *because != Because::Ending {
        match answers.is_of_other_program {
            None => return Next::ReadPool,
            Some(true) => {
                return Next::Keep(Kept {
                    unwatched: !is_gone,
                    left_to_collector: is_gone,
                    ..Kept::default()
                });
            }
            Some(false) => {}
        }
    }
    Next::GiveBack
}

#[cfg(test)]
mod tests {
    use harvester_api::labels;
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    const GONE: Because = Because::Gone;
    const ENDING: Because = Because::Ending;

    fn moved() -> Because {
        Because::Moved { uid: "u1".to_owned() }
    }

    /// A Service `web` of the load balancer with this UID, or of nobody, that names and shows this address.
    fn service(owner: &str, address: &str) -> RawObject<Service> {
        let mut meta = json!({"namespace": "shop", "name": "web"});
        if !owner.is_empty() {
            meta["labels"] = json!({(labels::SERVICE_LB): "true"});
            meta["ownerReferences"] = json!([{"apiVersion": "loadbalancer.harvesterhci.io/v1beta1",
                "kind": "LoadBalancer", "name": "web", "uid": owner}]);
        }
        let ingress: Value = json!([{"ip": address}]);
        RawObject::from_json(json!({"apiVersion": "v1", "kind": "Service", "metadata": meta,
            "spec": {"loadBalancerIP": address}, "status": {"loadBalancer": {"ingress": ingress}}}))
        .unwrap()
    }

    fn after(
        object: Option<bool>,
        service: Option<Option<RawObject<Service>>>,
        pool: Option<bool>,
    ) -> Answers {
        Answers { is_object_there: object, service, is_of_other_program: pool }
    }

    fn in_use(why: InUse, by_stranger: bool, unwatched: bool, left_to_collector: bool) -> Next {
        Next::Keep(Kept { by_service: Some(why), by_stranger, unwatched, left_to_collector })
    }

    fn of_other_program(unwatched: bool, left_to_collector: bool) -> Next {
        Next::Keep(Kept { unwatched, left_to_collector, ..Kept::default() })
    }

    #[rstest]
    #[case::gone(GONE, Answers::default(), Next::ReadObject)]
    #[case::gone_and_made_again(GONE, after(Some(true), None, None), Next::Keep(Kept::default()))]
    #[case::gone_for_sure(GONE, after(Some(false), None, None), Next::ReadService)]
    #[case::gone_without_service(GONE, after(Some(false), Some(None), None), Next::ReadPool)]
    #[case::gone_of_another_program(
        GONE,
        after(Some(false), Some(None), Some(true)),
        of_other_program(false, true)
    )]
    #[case::gone_for_good(GONE, after(Some(false), Some(None), Some(false)), Next::GiveBack)]
    #[case::gone_before_its_service(
        GONE,
        after(Some(false), Some(Some(service("u1", "10.0.1.9"))), None),
        in_use(InUse::ServiceLeft, false, false, true)
    )]
    #[case::gone_beside_a_strangers_service(
        GONE,
        after(Some(false), Some(Some(service("", "10.0.1.7"))), None),
        in_use(InUse::ByService, true, false, true)
    )]
    #[case::ending(ENDING, Answers::default(), Next::ReadService)]
    #[case::ending_without_service(ENDING, after(None, Some(None), None), Next::GiveBack)]
    #[case::ending_before_its_service(
        ENDING,
        after(None, Some(Some(service("u1", "10.0.1.7"))), None),
        in_use(InUse::ByService, false, false, false)
    )]
    #[case::ending_beside_a_strangers_service(
        ENDING,
        after(None, Some(Some(service("", "10.0.1.7"))), None),
        in_use(InUse::ByService, true, true, false)
    )]
    #[case::moved(moved(), Answers::default(), Next::ReadService)]
    #[case::moved_with_its_service(
        moved(),
        after(None, Some(Some(service("u1", "10.0.1.9"))), None),
        Next::ReadPool
    )]
    #[case::moved_before_its_service(
        moved(),
        after(None, Some(Some(service("u1", "10.0.1.7"))), None),
        in_use(InUse::ByService, false, false, false)
    )]
    #[case::moved_of_another_program(
        moved(),
        after(None, Some(None), Some(true)),
        of_other_program(true, false)
    )]
    #[case::moved_for_good(moved(), after(None, Some(None), Some(false)), Next::GiveBack)]
    fn a_record_goes_back_when_the_server_shows_nobody_who_needs_it(
        #[case] because: Because,
        #[case] answers: Answers,
        #[case] expected: Next,
    ) {
        let key = ObjectKey::new("shop", "web");
        assert_eq!(next(&key, [10, 0, 1, 7].into(), &because, &answers), expected);
    }
}
