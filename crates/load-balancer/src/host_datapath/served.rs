//! The host datapath in the status of a load balancer.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use controller_kit::Explanation;
use harvester_api::{BackendStatus, HealthCheck, names};
use health_check::Verdict;
use ipam::Family;

use super::backends::{Backend, BackendId, Selected};
use super::{networks, probes};

/// `status.backends` has at most so many entries: as many as a slice takes.
pub(crate) const MOST_LISTED: usize = 1_000;
/// The reasons of a load balancer that selects no VM, and of one whose VMs have no usable address.
const NO_BACKENDS: &str = "NoBackends";
const WITHOUT_ADDRESS: &str = "BackendsWithoutAddress";
/// The beginning of what is told of VMs that are selected and not listed.
const NO_ROOM: &str = "status.backends has no room for";
/// The beginning of the `lastError` of a VM whose address is refused.
const NOT_USED: &str = "not used: ";

/// The host datapath's part of the status.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Served {
    /// `status.backendServers`: addresses of all selected backends, healthy or not.
    pub(crate) backend_servers: Vec<String>,
    /// `status.address`: the address that kube-vip announces; empty while it announces none. Never `0.0.0.0`.
    pub(crate) address: String,
    /// `status.backends`; left out of the write where the CRD does not know it.
    pub(crate) backends: Vec<BackendStatus>,
    /// The number of selected VMs that [`MOST_LISTED`] keeps out of `backends`.
    pub(crate) left_out: usize,
    /// Why the load balancer is not ready, and what it waits for; `None` when it is.
    pub(crate) waiting: Option<Explanation>,
    /// Told also of a load balancer that waits for nothing: on which networks its VMs are reached.
    pub(crate) note: Option<String>,
}

impl Served {
    /// Told with `status.backends` where it lacks some of the selected VMs.
    pub(crate) fn no_room(&self) -> Option<String> {
        (self.left_out > 0).then(|| format!("{NO_ROOM} {} more of the selected VMs", self.left_out))
    }
}

/// Whether an entry of `status.backends` is that of a VM with a usable address.
pub(crate) fn is_usable(address: &str, last_error: &str) -> bool {
    !address.is_empty() && !last_error.starts_with(NOT_USED)
}

/// Whether two Ready conditions, each a reason and a message, may differ by VMs alone that have no usable address or no room in the
/// list, or by the networks on which VMs are reached. A user who labels VMs, or whose guests report one address and another, changes
/// these without limit, and no traffic follows them.
pub(crate) fn may_differ_by_vms(before: [&str; 2], after: [&str; 2]) -> bool {
    let ([was, _], [is, _]) = (before, after);
    if was == is {
        let tells = |message: &str| message.contains(NO_ROOM) || message.contains(networks::REACHED);
        return is == WITHOUT_ADDRESS || [before, after].iter().any(|[_, message]| tells(message));
    }
    [was, is].iter().all(|reason| [NO_BACKENDS, WITHOUT_ADDRESS].contains(reason))
}

/// Everything that the status follows from.
pub(crate) struct Seen<'a> {
    pub(crate) selected: &'a Selected,
    /// Backends with their readiness, as in the slice.
    pub(crate) ready: &'a [(Backend, bool)],
    /// The prober's verdicts; none without a health check.
    pub(crate) verdicts: &'a BTreeMap<BackendId, Verdict>,
    pub(crate) check: Option<&'a HealthCheck>,
    /// The address that kube-vip announces.
    pub(crate) announced: Option<&'a str>,
    /// The family that the Service carries, and the backends are of.
    pub(crate) family: Family,
    /// The address that the Service asks for; `0.0.0.0`: whatever DHCP gives.
    pub(crate) asked: &'a str,
    /// `status.backends` as it is, for the times in it.
    pub(crate) before: &'a [BackendStatus],
    /// RFC 3339.
    pub(crate) now: &'a str,
}

/// The status. The messages are the Go program's: people and programs know them.
pub(crate) fn served(seen: &Seen<'_>) -> Served {
    let (backends, left_out) = backends(seen);
    Served {
        backend_servers: seen.ready.iter().map(|(backend, _)| backend.id.address.to_string()).collect(),
        address: seen.announced.unwrap_or_default().to_owned(),
        backends,
        left_out,
        waiting: waiting(seen),
        // of a VM that comes and goes it tells no oftener than the slice does
        note: seen.selected.note(seen.ready),
    }
}

fn waiting(seen: &Seen<'_>) -> Option<Explanation> {
    let Seen { selected, ready, .. } = seen;
    let wait = |reason, message: String| Some(Explanation::new(reason, message));
    let asked = seen.asked;
    let carried = seen.family;
    // kube-proxy passes over addresses of the other family
    if asked.parse().is_ok_and(|asked| Family::of(asked) != carried) {
        let why = format!("its Service is one of {carried}, which the API fixes when a Service is made");
        return Some(not_carried(asked, &why, carried));
    }
    let same = |announced: &str| {
        announced == asked || announced.parse().is_ok_and(|one: IpAddr| asked.parse() == Ok(one))
    };
    match seen.announced {
        None => return wait("WaitingForExternalIP", "service is waiting for external IP".to_owned()),
        Some(announced) if asked != names::DHCP_ADDRESS && !same(announced) => {
            let message = format!("service is waiting for external IP {asked}, still has {announced}");
            return wait("WaitingForExternalIP", message);
        }
        Some(_) => {}
    }
    if ready.is_empty() && selected.unusable.is_empty() {
        return wait(NO_BACKENDS, "no running backend servers".to_owned());
    }
    if ready.is_empty() {
        let message = format!("running backend servers have no IP{}", refusals(selected));
        return wait(WITHOUT_ADDRESS, message);
    }
    if ready.iter().all(|(_, ready)| !ready) {
        let message = format!(
            "running backend servers are not probed as healthy total:{}, healthy:0{}",
            ready.len(),
            probes::awaited(seen.check)
        );
        return wait("NoHealthyBackend", message);
    }
    None
}

/// The condition of an object whose Service does not carry its address.
pub(super) fn not_carried(address: &str, why: &str, carried: Family) -> Explanation {
    let message = format!(
        "nobody is reached at {address}: {why}; name a pool of {carried} in spec.ipPool, and the object moves to an \
         address of it"
    );
    Explanation::new("IPFamilyNotSupported", message)
}

/// The refused addresses; empty when none was, so that the message is then the Go program's to the letter.
fn refusals(selected: &Selected) -> String {
    selected
        .unusable
        .iter()
        .filter_map(|unusable| {
            let (address, why) = unusable.refused?;
            Some(format!("; {} of VM {} {why}", address, unusable.name))
        })
        .collect()
}

/// The list, in the order of names, and the number of VMs for which it has no room: backends that are ready come in first, then
/// other backends, and VMs without usable address last, each in the order of names.
fn backends(seen: &Seen<'_>) -> (Vec<BackendStatus>, usize) {
    let usable = seen.ready.iter().map(|(backend, ready)| {
        let error = seen.verdicts.get(&backend.id).and_then(|verdict| verdict.error.as_ref());
        let last_error = error.map(ToString::to_string).unwrap_or_default();
        (backend.name.clone(), backend.id.address.to_string(), *ready, last_error)
    });
    let unusable = seen.selected.unusable.iter().map(|unusable| {
        let (address, error) = match unusable.refused {
            Some((address, why)) => (address.to_string(), format!("{NOT_USED}{address} {why}")),
            None => (String::new(), format!("the VM reports no {} address", seen.family)),
        };
        (unusable.name.clone(), address, false, error)
    });
    let mut all: Vec<_> = usable.chain(unusable).collect();
    // stable: of two alike the first by name stays the first
    all.sort_by_key(|(_, _, ready, _)| !ready);
    let left_out = all.len().saturating_sub(MOST_LISTED);
    all.truncate(MOST_LISTED);
    let before: HashMap<_, _> = seen
        .before
        .iter()
        .map(|before| ((before.name.as_str(), before.address.as_str(), before.ready), before))
        .collect();
    let mut backends: Vec<BackendStatus> = all
        .into_iter()
        .map(|(name, address, ready, last_error)| {
            let before = before.get(&(name.as_str(), address.as_str(), ready));
            let since = before.map_or(seen.now, |before| &before.since).to_owned();
            // after a restart nothing is known of it until its probes have failed again: the error stands
            let stands = before
                .filter(|before| !ready && last_error.is_empty() && !before.last_error.starts_with(NOT_USED));
            let last_error = stands.map_or(last_error, |before| before.last_error.clone());
            BackendStatus { name, address, ready, last_error, since }
        })
        .collect();
    backends.sort_by(|one, other| one.name.cmp(&other.name));
    (backends, left_out)
}

#[cfg(test)]
mod tests {
    use health_check::DialError;
    use rstest::rstest;

    use super::super::backends::Unusable;
    use super::super::plausible::Implausible;
    use super::*;

    fn backend(name: &str, last: u8) -> Backend {
        let id = BackendId { uid: format!("uid-{name}"), address: IpAddr::from([192, 168, 7, last]) };
        Backend { id, name: name.to_owned() }
    }

    fn seen<'a>(
        selected: &'a Selected,
        ready: &'a [(Backend, bool)],
        verdicts: &'a BTreeMap<BackendId, Verdict>,
    ) -> Seen<'a> {
        Seen {
            selected,
            ready,
            verdicts,
            check: None,
            announced: Some("10.0.0.9"),
            family: Family::V4,
            asked: "10.0.0.9",
            before: &[],
            now: "2026-08-20T10:00:00Z",
        }
    }

    fn unusable(refused: Option<(IpAddr, Implausible)>) -> Selected {
        Selected { unusable: vec![Unusable { name: "web".to_owned(), refused }], ..Selected::default() }
    }

    #[rstest]
    #[case::serving(Selected::default(), vec![(backend("web", 11), true), (backend("db", 12), false)], Some("10.0.0.9"), None)]
    #[case::not_announced(Selected::default(), vec![(backend("web", 11), true)], None, Some("service is waiting for external IP"))]
    #[case::nobody(Selected::default(), vec![], Some("10.0.0.9"), Some("no running backend servers"))]
    #[case::no_address(unusable(None), vec![], Some("10.0.0.9"), Some("running backend servers have no IP"))]
    #[case::refused(
        unusable(Some((IpAddr::from([127, 0, 0, 1]), Implausible::Loopback))), vec![], Some("10.0.0.9"),
        Some("running backend servers have no IP; 127.0.0.1 of VM web is a loopback address"))]
    #[case::unhealthy(
        Selected::default(), vec![(backend("web", 11), false), (backend("db", 12), false)], Some("10.0.0.9"),
        Some("running backend servers are not probed as healthy total:2, healthy:0"))]
    fn the_condition_says_what_is_missing_in_the_words_of_the_go_program(
        #[case] selected: Selected,
        #[case] ready: Vec<(Backend, bool)>,
        #[case] announced: Option<&str>,
        #[case] expected: Option<&str>,
    ) {
        let verdicts = BTreeMap::new();
        let served = served(&Seen { announced, ..seen(&selected, &ready, &verdicts) });
        assert_eq!(served.waiting.as_ref().map(|waiting| waiting.message.as_str()), expected);
        assert_eq!(served.address, announced.unwrap_or_default());
        assert_eq!(served.backend_servers.len(), ready.len(), "healthy or not");
    }

    #[rstest]
    #[case::as_the_webhook_has_it(2, "")]
    #[case::many(1_000, "; each needs 1000 good probes in a row, one every 60 s")]
    fn who_waits_for_many_good_probes_is_told_so_whatever_they_have_answered_so_far(
        #[case] success_threshold: i64,
        #[case] expected: &str,
    ) {
        let check = HealthCheck {
            port: Some(80),
            success_threshold: Some(success_threshold),
            period_seconds: Some(60),
            ..HealthCheck::default()
        };
        let (selected, web) = (Selected::default(), backend("web", 11));
        let ready = [(web.clone(), false)];
        for error in [None, Some(DialError::Refused)] {
            let verdicts = BTreeMap::from([(web.id.clone(), Verdict { ready: false, error })]);
            let served = served(&Seen { check: Some(&check), ..seen(&selected, &ready, &verdicts) });
            let begin = "running backend servers are not probed as healthy total:1, healthy:0";
            assert_eq!(served.waiting.unwrap().message, format!("{begin}{expected}"));
        }
    }

    #[rstest]
    #[case::as_asked("10.0.0.9", None)]
    #[case::leased("0.0.0.0", None)]
    #[case::of_a_family_that_the_service_does_not_carry(
        "fd00::9",
        Some(
            "nobody is reached at fd00::9: its Service is one of IPv4, which the API fixes when a Service is made; name a \
              pool of IPv4 in spec.ipPool, and the object moves to an address of it"
        )
    )]
    #[case::not_yet_moved(
        "10.0.0.10",
        Some("service is waiting for external IP 10.0.0.10, still has 10.0.0.9")
    )]
    fn an_address_that_was_not_asked_for_is_told_but_not_taken_for_the_end(
        #[case] asked: &str,
        #[case] expected: Option<&str>,
    ) {
        let (selected, ready, verdicts) =
            (Selected::default(), [(backend("web", 11), true)], BTreeMap::new());
        let served = served(&Seen { asked, ..seen(&selected, &ready, &verdicts) });
        assert_eq!(served.waiting.as_ref().map(|waiting| waiting.message.as_str()), expected);
        assert_eq!(served.address, "10.0.0.9");
    }

    #[test]
    fn each_backend_is_named_with_its_error_and_since_when() {
        let selected = unusable(None);
        let (good, bad) = (backend("api", 11), backend("db", 12));
        let verdicts = BTreeMap::from([
            (good.id.clone(), Verdict { ready: true, error: None }),
            (bad.id.clone(), Verdict { ready: false, error: Some(DialError::Refused) }),
        ]);
        let status = |name: &str, address: &str, ready, last_error: &str, since: &str| BackendStatus {
            name: name.to_owned(),
            address: address.to_owned(),
            ready,
            last_error: last_error.to_owned(),
            since: since.to_owned(),
        };
        let before = [
            status("api", "192.168.7.11", true, "", "2026-08-20T09:00:00Z"),
            status("db", "192.168.7.12", true, "", "2026-08-20T09:00:00Z"),
        ];
        let ready = [(good, true), (bad, false)];
        let served = served(&Seen { before: &before, ..seen(&selected, &ready, &verdicts) });
        assert_eq!(
            served.backends,
            [
                status("api", "192.168.7.11", true, "", "2026-08-20T09:00:00Z"),
                status("db", "192.168.7.12", false, "connection refused", "2026-08-20T10:00:00Z"),
                status("web", "", false, "the VM reports no IPv4 address", "2026-08-20T10:00:00Z"),
            ]
        );
    }

    #[test]
    fn a_restart_takes_no_error_of_a_backend_away_before_it_is_probed() {
        let (selected, bad) = (Selected::default(), backend("db", 12));
        let down = BackendStatus {
            name: "db".to_owned(),
            address: "192.168.7.12".to_owned(),
            ready: false,
            last_error: "connection refused".to_owned(),
            since: "2026-08-20T09:00:00Z".to_owned(),
        };
        let told = |ready: bool, error: Option<DialError>| {
            let verdicts = BTreeMap::from([(bad.id.clone(), Verdict { ready, error })]);
            let (before, ready) = ([down.clone()], [(bad.clone(), ready)]);
            served(&Seen { before: &before, ..seen(&selected, &ready, &verdicts) }).backends
        };
        assert_eq!(told(false, None)[0], down);
        assert_eq!(told(false, Some(DialError::Closed))[0].last_error, DialError::Closed.to_string());
        assert_eq!(told(true, None)[0].last_error, "");
    }

    #[test]
    fn a_backend_whose_address_is_used_again_is_no_longer_said_to_have_a_refused_one() {
        let (selected, db, verdicts) = (Selected::default(), backend("db", 12), BTreeMap::new());
        let refused = BackendStatus {
            name: "db".to_owned(),
            address: "192.168.7.12".to_owned(),
            last_error: "not used: 192.168.7.12 is a loopback address".to_owned(),
            ..BackendStatus::default()
        };
        let (before, ready) = ([refused], [(db, false)]);
        let served = served(&Seen { before: &before, ..seen(&selected, &ready, &verdicts) });
        assert_eq!(served.backends[0].last_error, "");
    }

    #[test]
    fn of_ten_thousand_vms_a_thousand_are_listed_and_the_rest_is_counted() {
        let idle = |n| Unusable { name: format!("idle-{n:0>4}"), refused: None };
        let selected = Selected { unusable: (0..9_990).map(idle).collect(), ..Selected::default() };
        let ready: Vec<_> = (0..10).map(|n| (backend(&format!("web-{n}"), n), n == 9)).collect();
        let verdicts = BTreeMap::new();
        let first = served(&seen(&selected, &ready, &verdicts));
        let names: Vec<_> = first.backends.iter().map(|backend| backend.name.as_str()).collect();
        assert_eq!((names.len(), names[989]), (1_000, "idle-0989"));
        assert_eq!(names[990..], ready.iter().map(|(backend, _)| backend.name.as_str()).collect::<Vec<_>>());
        let told = "status.backends has no room for 9000 more of the selected VMs";
        assert_eq!(first.no_room().as_deref(), Some(told));
        let later = Seen { before: &first.backends, now: "later", ..seen(&selected, &ready, &verdicts) };
        assert_eq!(served(&later), first, "and stay listed");
    }

    #[test]
    fn of_more_backends_than_a_slice_takes_those_that_are_ready_are_listed() {
        let (selected, verdicts) = (Selected::default(), BTreeMap::new());
        let ready: Vec<_> = (0..1_001).map(|n| (backend(&format!("web-{n:0>4}"), 11), n >= 900)).collect();
        let served = served(&seen(&selected, &ready, &verdicts));
        let is_listed = |name: &str| served.backends.iter().any(|backend| backend.name == name);
        assert_eq!((served.backends.len(), served.left_out), (1_000, 1));
        assert_eq!(["web-0898", "web-0899", "web-1000"].map(is_listed), [true, false, true]);
    }
}
