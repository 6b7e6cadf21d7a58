//! Kinds of Harvester that cannot be listed, and why.
//!
//! While one cannot be listed, Services and Nodes that need it wait. They get the reason as an Event: a cloud-config
//! with the wrong namespace, an expired token, a right that was taken away or a server that is not there would
//! otherwise show in the log only, where the owner of a Service does not look. An outage may begin and end at any time.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use cloud_config::Followed;
use controller_kit::{Cache, Watched};
use guest_vms::GuestVms;
use program::{
    Subscribers, TaskGroup,
    health::{Check, Health},
};
use tokio::{sync::watch, time::timeout};

/// A watch breaks now and then, and works again at the next try. An error that stays longer is an outage.
const OUTAGE_AFTER: Duration = Duration::from_secs(10);

/// The role of Harvester that guest clusters get.
pub(crate) const HARVESTER_ROLE: &str = "harvesterhci.io:cloudprovider";
/// The kinds, as people know them.
pub(crate) const LOAD_BALANCERS: &str = "LoadBalancers";

/// The outages of this moment. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Outage(Arc<Shared>);

struct Shared {
    /// Of the cloud-config.
    namespace: String,
    state: Mutex<State>,
    subscribers: Subscribers,
    /// Of [`Outage::on_move`].
    movers: Subscribers,
    health: Health,
    checks: Checks,
}

#[derive(Debug, Default)]
struct State {
    listed: BTreeMap<&'static str, bool>,
    /// Errors that have lasted, by kind.
    errors: BTreeMap<&'static str, String>,
    /// VMs that cannot be listed are read by name.
    read_by_name: bool,
}

impl State {
    fn set_error(&mut self, kind: &'static str, error: Option<String>) {
        match error {
            Some(error) => drop(self.errors.insert(kind, error)),
            None => drop(self.errors.remove(kind)),
        }
    }

    fn why_not(&self, namespace: &str, wanted: impl Fn(&str) -> bool) -> Option<String> {
        sentence(namespace, self.errors.iter().filter(|(kind, _)| wanted(kind)))
    }

    fn not_listed(&self, wanted: impl Fn(&str) -> bool) -> Option<String> {
        let waits = self.listed.iter().any(|(kind, listed)| wanted(kind) && !listed);
        waits.then(|| "what is in Harvester is not listed yet".to_owned())
    }

    /// Why the Services, and why Nodes and the host datapath have to wait: for readiness.
    fn decide(&self, namespace: &str) -> (Option<String>, Option<String>) {
        let is_vm = |kind: &str| !is_load_balancer(kind);
        let services =
            self.why_not(namespace, is_load_balancer).or_else(|| self.not_listed(is_load_balancer));
        let vms = self.why_not(namespace, is_vm).or_else(|| self.not_listed(is_vm));
        (services, vms.filter(|_| !self.read_by_name))
    }
}

fn is_load_balancer(kind: &str) -> bool {
    kind == LOAD_BALANCERS
}

/// The duties that need a list, as readiness checks. A duty that is switched off has none.
#[derive(Clone, Debug, Default)]
pub(crate) struct Checks {
    pub(crate) services: bool,
    pub(crate) nodes: bool,
}

impl Outage {
    pub(crate) fn new(namespace: &str, health: &Health, checks: Checks) -> Self {
        let this = Self(Arc::new(Shared {
            namespace: namespace.to_owned(),
            state: Mutex::default(),
            subscribers: Subscribers::default(),
            movers: Subscribers::default(),
            health: health.clone(),
            checks,
        }));
        this.report();
        this
    }

    /// Follows the list of `kind`: `listed` ends when the list was complete once, `errors` says why it fails now.
    pub(crate) fn follow(
        &self,
        tasks: &TaskGroup,
        kind: &'static str,
        listed: impl Future<Output = ()> + Send + 'static,
        errors: watch::Receiver<Option<String>>,
    ) {
        self.state().listed.insert(kind, false);
        self.report();
        let this = self.clone();
        tasks.spawn_until_stop(async move {
            listed.await;
            this.change(|state| {
                state.listed.insert(kind, true);
            });
        });
        let this = self.clone();
        tasks.spawn_until_stop(lasting(errors, move |error| {
            this.change(|state| state.set_error(kind, error));
        }));
    }

    /// Has Services and Nodes looked at again when another cloud-config is in use: what Harvester refused to the former one
    /// may succeed, and would wait for its back-off. A file that is refused leaves the one that is in use.
    ///
    /// Where it leads to another server, everything is listed there first. The watches stay with the former one, each until
    /// its own end: an object that is not in the list of one Harvester would be missed beside the VMs of the other.
    pub(crate) fn follow_cloud_config<K: Watched>(
        &self,
        tasks: &TaskGroup,
        mut followed: watch::Receiver<Followed>,
        objects: &Cache<K>,
        vms: &GuestVms,
    ) {
        let (this, own, objects, vms) = (self.clone(), tasks.clone(), objects.clone(), vms.clone());
        let mut in_use = followed.borrow_and_update().config.clone();
        tasks.spawn_until_stop(async move {
            while followed.changed().await.is_ok() {
                let config = followed.borrow_and_update().config.clone();
                if !config.is_other_than(&in_use) {
                    continue;
                }
                let is_elsewhere = config.is_elsewhere_than(&in_use);
                in_use = config;
                if !is_elsewhere {
                    this.0.subscribers.tell(&());
                    continue;
                }
                objects.relist_elsewhere();
                vms.relist_elsewhere(&own);
                this.moved();
                // the file may change again before that list comes
                let (this, objects) = (this.clone(), objects.clone());
                own.spawn_until_stop(async move {
                    objects.ready().await;
                    this.0.subscribers.tell(&());
                });
            }
        });
    }

    /// Calls `subscriber` when an answer changes.
    pub(crate) fn on_change(&self, subscriber: impl Fn() + Send + Sync + 'static) {
        self.0.subscribers.add(move |()| subscriber());
    }

    pub(crate) fn moved(&self) {
        self.0.movers.tell(&());
    }

    /// Calls `subscriber` when another server answers: what the former one said does not hold there.
    pub(crate) fn on_move(&self, subscriber: impl Fn() + Send + Sync + 'static) {
        self.0.movers.add(move |()| subscriber());
    }

    /// Why LoadBalancer objects cannot be listed.
    pub(crate) fn of_load_balancers(&self) -> Option<String> {
        self.state().why_not(&self.0.namespace, is_load_balancer)
    }

    /// Why VMs cannot be listed.
    pub(crate) fn of_vms(&self) -> Option<String> {
        self.state().why_not(&self.0.namespace, |kind| !is_load_balancer(kind))
    }

    /// VMs that cannot be listed are read by name, or are not.
    pub(crate) fn set_read_by_name(&self, read_by_name: bool) {
        if self.state().read_by_name != read_by_name {
            self.change(|state| state.read_by_name = read_by_name);
        }
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state());
        self.report();
        self.0.subscribers.tell(&());
    }

    /// Readiness: a duty is ready when its lists were complete and no outage keeps it from them.
    fn report(&self) {
        let Shared { namespace, health, checks, .. } = &*self.0;
        let (services, vms) = self.state().decide(namespace);
        let duties = [
            ("harvester", checks.services, services),
            ("services on the data path host", checks.services, vms.clone()),
            ("nodes", checks.nodes, vms),
        ];
        for (name, _, why) in duties.into_iter().filter(|(_, wanted, _)| *wanted) {
            let check = health.readiness(name);
            match why {
                Some(why) => check.fail(why),
                None => check.pass(),
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().expect("no panic while outages are locked")
    }
}

/// Tells why a list fails once it has failed for a while, each change of the reason, and the end (`None`).
async fn lasting(mut errors: watch::Receiver<Option<String>>, tell: impl Fn(Option<String>)) {
    while errors.wait_for(Option::is_some).await.is_ok() {
        if timeout(OUTAGE_AFTER, errors.wait_for(Option::is_none)).await.is_ok() {
            continue;
        }
        loop {
            let error = errors.borrow_and_update().clone();
            let over = error.is_none();
            tell(error);
            if over {
                break;
            }
            if errors.changed().await.is_err() {
                return;
            }
        }
    }
}

/// Keeps the readiness check of a list of the guest cluster true: it fails until the list is complete, and while the
/// list cannot be read, because the controllers decide from what was true once.
pub(crate) fn follow_guest<K: Watched>(tasks: &TaskGroup, list: &Cache<K>, kind: &'static str, check: Check) {
    let (list, not_listed) = (list.clone(), format!("{kind} are not listed yet"));
    check.fail(not_listed.clone());
    tasks.spawn_until_stop(async move {
        let complete = async {
            list.ready().await;
            check.pass();
        };
        let errors = lasting(list.watch_errors(), |error| match error {
            Some(why) => check.fail(format!("the rights list and watch on {kind} do not work: {why}")),
            None if list.is_ready() => check.pass(),
            None => check.fail(not_listed.clone()),
        });
        tokio::join!(complete, errors);
    });
}

/// Where the server says that a right is missing: what grants it.
pub(crate) fn who_grants(why: &str, namespace: &str) -> Option<String> {
    (why.contains(" cannot ") && why.contains(" resource \"")).then(|| {
        format!(
            "ClusterRole {HARVESTER_ROLE} of Harvester grants this right: bind it to the account of the cloud-config in \
             namespace {namespace}"
        )
    })
}

/// Every kind that cannot be listed, and the next step.
fn sentence<'a>(
    namespace: &str,
    errors: impl Iterator<Item = (&'a &'static str, &'a String)>,
) -> Option<String> {
    let each = |(kind, why)| format!("{kind} in namespace {namespace} of Harvester cannot be listed: {why}");
    let all: Vec<_> = errors.map(each).collect();
    let usual = || {
        "correct the cloud-config of the cloud controller manager, or what it may do in Harvester".to_owned()
    };
    (!all.is_empty()).then(|| {
        let all = all.join("; ");
        let either = |who| format!("{who}, or correct the cloud-config where another namespace is meant");
        let next = who_grants(&all, namespace).map_or_else(usual, either);
        format!("{all}; {next}")
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const VMS: &str = "VirtualMachines";

    fn state(listed: &[(&'static str, bool)], errors: &[(&'static str, &str)]) -> State {
        State {
            listed: listed.iter().copied().collect(),
            errors: errors.iter().map(|(kind, why)| (*kind, (*why).to_owned())).collect(),
            read_by_name: false,
        }
    }

    #[rstest]
    #[case::complete(state(&[(LOAD_BALANCERS, true), (VMS, true)], &[]), [None, None])]
    #[case::starting(state(&[(LOAD_BALANCERS, false), (VMS, false)], &[]), [Some("not listed yet"); 2])]
    #[case::vms_late(state(&[(LOAD_BALANCERS, true), (VMS, false)], &[]), [None, Some("not listed yet")])]
    #[case::refused(state(&[(LOAD_BALANCERS, false), (VMS, true)], &[(LOAD_BALANCERS, "no rights")]),
        [Some("no rights"), None])]
    // an outage may begin at any time
    #[case::lost_while_running(state(&[(LOAD_BALANCERS, true), (VMS, true)], &[(VMS, "down")]), [None, Some("down")])]
    #[case::read_by_name(State { read_by_name: true, ..state(&[(LOAD_BALANCERS, true), (VMS, false)], &[(VMS, "get only")]) },
        [None, None])]
    fn a_duty_waits_for_the_lists_that_it_needs(#[case] state: State, #[case] waits: [Option<&str>; 2]) {
        let (services, vms) = state.decide("team-a");
        for (why, part) in [services, vms].into_iter().zip(waits) {
            assert!(
                part.map_or(why.is_none(), |part| why.as_ref().is_some_and(|it| it.contains(part))),
                "{why:?}"
            );
        }
    }

    #[test]
    fn a_sentence_names_every_kind_and_what_to_do() {
        let errors = [(VMS, "no rights"), ("VirtualMachineInstances", "gone"), (LOAD_BALANCERS, "x")];
        let told = state(&[], &errors).why_not("team-a", |kind| !is_load_balancer(kind));
        assert_eq!(
            told.unwrap(),
            "VirtualMachineInstances in namespace team-a of Harvester cannot be listed: gone; VirtualMachines in namespace \
             team-a of Harvester cannot be listed: no rights; correct the cloud-config of the cloud controller manager, or \
             what it may do in Harvester"
        );
        assert_eq!(state(&[], &[]).why_not("team-a", |_| true), None);
    }

    #[tokio::test(start_paused = true)]
    async fn an_outage_is_one_that_lasts_and_it_may_come_back() {
        let (tasks, health) = (TaskGroup::new(), Health::default());
        let outage = Outage::new("team-a", &health, Checks { services: true, nodes: false });
        let (broken, errors) = watch::channel(None);
        outage.follow(&tasks, LOAD_BALANCERS, async {}, errors);
        let after = async |seconds: u64| {
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            outage.of_load_balancers().is_some()
        };
        assert!(!after(60).await && health.readiness_report().is_empty());
        for _ in 0..2 {
            broken.send_replace(Some("connection refused".to_owned()));
            assert!(!after(9).await);
            assert!(after(2).await);
            assert!(health.readiness_report().contains("connection refused"));
            broken.send_replace(Some("forbidden".to_owned()));
            assert!(after(1).await && health.readiness_report().contains("forbidden"));
            broken.send_replace(None);
            assert!(!after(1).await && health.readiness_report().is_empty());
        }
        assert_eq!(health.liveness_report(), "");
        tasks.end().await;
    }
}
