//! The targets that the prober probes for a load balancer.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use harvester_api::HealthCheck;
use health_check::{Check, Target};

use super::backends::{Backend, BackendId};

/// The port that is probed; nothing without a health check.
pub(crate) fn port(check: Option<&HealthCheck>) -> Option<u16> {
    u16::try_from(check?.port?).ok().filter(|port| *port > 0)
}

/// One target for each backend; none without a health check. A backend that the slice knows begins with the readiness
/// that it records, so that a restart takes nobody's traffic away; a new one begins as not ready.
pub(crate) fn targets(
    check: Option<&HealthCheck>,
    backends: &[Backend],
    recorded: &BTreeMap<BackendId, bool>,
) -> BTreeMap<BackendId, Target> {
    let (Some(check), Some(port)) = (check, port(check)) else { return BTreeMap::new() };
    let HealthCheck { success_threshold, failure_threshold, period_seconds, timeout_seconds, .. } = check;
    let check =
        Check::from_numbers(*success_threshold, *failure_threshold, *period_seconds, *timeout_seconds);
    let target = |backend: &Backend| Target {
        address: SocketAddr::from((backend.id.address, port)),
        check,
        ready: recorded.get(&backend.id).copied().unwrap_or(false),
    };
    backends.iter().map(|backend| (backend.id.clone(), target(backend))).collect()
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use rstest::rstest;

    use super::*;

    fn backend(name: &str, last: u8) -> Backend {
        let id = BackendId { uid: format!("uid-{name}"), address: IpAddr::from([192, 168, 7, last]) };
        Backend { id, name: name.to_owned() }
    }

    #[rstest]
    #[case::absent(None, None)]
    #[case::empty(Some(HealthCheck::default()), None)]
    #[case::zero(Some(HealthCheck { port: Some(0), ..HealthCheck::default() }), None)]
    #[case::no_port_number(Some(HealthCheck { port: Some(65_536), ..HealthCheck::default() }), None)]
    #[case::on(Some(HealthCheck { port: Some(8443), ..HealthCheck::default() }), Some(8443))]
    fn a_health_check_is_on_when_it_has_a_port(
        #[case] check: Option<HealthCheck>,
        #[case] expected: Option<u16>,
    ) {
        assert_eq!(port(check.as_ref()), expected);
        assert_eq!(
            targets(check.as_ref(), &[backend("web", 11)], &BTreeMap::new()).len(),
            expected.iter().len()
        );
    }

    #[test]
    fn known_backends_begin_with_the_readiness_of_the_slice_and_new_ones_as_not_ready() {
        // docs/contract/load-balancer.md#10.5: verdicts survive a restart, a changed check, and a health check that is
        // added
        let check = HealthCheck { port: Some(80), period_seconds: Some(2), ..HealthCheck::default() };
        let (old, new) = (backend("old", 11), backend("new", 12));
        let recorded = BTreeMap::from([(old.id.clone(), true)]);
        let targets = targets(Some(&check), &[old.clone(), new.clone()], &recorded);
        assert_eq!((targets[&old.id].ready, targets[&new.id].ready), (true, false));
        assert_eq!(targets[&old.id].address, "192.168.7.11:80".parse().unwrap());
        assert_eq!(
            targets[&old.id].check,
            Check { period: std::time::Duration::from_secs(2), ..Check::default() }
        );
    }
}
