//! The targets that the prober probes for a load balancer.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use harvester_api::HealthCheck;
use health_check::{Check, HttpGet, Target};

use super::backends::{Backend, BackendId};

/// The port that is probed; nothing without a health check.
pub(crate) fn port(check: Option<&HealthCheck>) -> Option<u16> {
    u16::try_from(check?.port?).ok().filter(|port| *port > 0)
}

/// Why path and scheme of the health check are not followed: it is a TCP connect then. Admission refuses them, but the
/// webhook of another program lets them in, and a backend that serves must not lose its traffic for a typing error.
pub(crate) fn fault(check: Option<&HealthCheck>) -> Option<String> {
    let check = check?;
    let faults = match HttpGet::parse(&check.path, &check.scheme) {
        Ok(None) => return None,
        Ok(Some(_)) if port(Some(check)).is_some() => return None,
        Ok(Some(_)) => {
            return Some("healthCheck: path has no effect without a port: nothing is probed".to_owned());
        }
        Err(faults) => faults,
    };
    let faults: Vec<_> = faults.iter().map(ToString::to_string).collect();
    let meanwhile = if port(Some(check)).is_some() { "probed by TCP alone" } else { "nothing is probed" };
    Some(format!("healthCheck: {}; {meanwhile}", faults.join("; ")))
}

/// More good probes in a row than these are told: it is what the webhook writes where nothing is said.
const USUAL: u32 = 2;

/// What backends need that are not ready, where it may last long: of one whose probes are good no error tells why. It follows from
/// the check alone, so no probe has the status written.
pub(crate) fn awaited(check: Option<&HealthCheck>) -> String {
    let check = check.map(numbers).filter(|check| check.thresholds.success > USUAL);
    check.map_or_else(String::new, |Check { thresholds, period, .. }| {
        format!("; each needs {} good probes in a row, one every {} s", thresholds.success, period.as_secs())
    })
}

/// The check without its request.
fn numbers(check: &HealthCheck) -> Check {
    let HealthCheck { success_threshold, failure_threshold, period_seconds, timeout_seconds, .. } = check;
    Check::from_numbers(*success_threshold, *failure_threshold, *period_seconds, *timeout_seconds)
}

/// One target for each backend; none without a health check. A backend that the slice knows begins with the readiness
/// that it records, so that a restart takes nobody's traffic away; a new one begins as not ready, and is probed at once.
pub(crate) fn targets(
    check: Option<&HealthCheck>,
    backends: &[Backend],
    recorded: &BTreeMap<BackendId, bool>,
) -> BTreeMap<BackendId, Target> {
    let (Some(check), Some(port)) = (check, port(check)) else { return BTreeMap::new() };
    let check = Check {
        // never a byte of a path that does not hold: see `fault`
        http: HttpGet::parse(&check.path, &check.scheme).unwrap_or_default(),
        ..numbers(check)
    };
    let target = |backend: &Backend| Target {
        address: SocketAddr::from((backend.id.address, port)),
        check: check.clone(),
        recorded: recorded.get(&backend.id).copied(),
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

    fn http(port: i64, path: &str, scheme: &str) -> HealthCheck {
        HealthCheck {
            port: Some(port),
            path: path.to_owned(),
            scheme: scheme.to_owned(),
            ..HealthCheck::default()
        }
    }

    #[rstest]
    #[case::tcp(http(80, "", ""), false, None)]
    #[case::http(http(80, "/healthz", ""), true, None)]
    #[case::https(http(80, "/healthz", "HTTPS"), true, None)]
    #[case::another_line_of_the_request(
        http(80, "/ HTTP/1.1\r\nX: y", ""),
        false,
        Some(
            "healthCheck: path has a blank, a control character or one outside of ASCII at byte 1: write it as percent \
              and two hex digits; probed by TCP alone"
        )
    )]
    #[case::several_faults(
        http(80, "healthz", "FTP"),
        false,
        Some(
            "healthCheck: path does not begin with a slash; scheme is neither HTTP nor HTTPS; probed by TCP alone"
        )
    )]
    #[case::scheme_alone(
        http(80, "", "HTTPS"),
        false,
        Some(
            "healthCheck: scheme has no effect without a path: give a path, or leave the scheme out; probed by TCP alone"
        )
    )]
    #[case::no_port(
        http(0, "/healthz", ""),
        false,
        Some("healthCheck: path has no effect without a port: nothing is probed")
    )]
    #[case::no_port_and_no_path(
        http(0, "healthz", ""),
        false,
        Some("healthCheck: path does not begin with a slash; nothing is probed")
    )]
    fn a_path_that_does_not_hold_is_told_and_the_check_is_a_tcp_connect(
        #[case] check: HealthCheck,
        #[case] is_http: bool,
        #[case] expected: Option<&str>,
    ) {
        let web = backend("web", 11);
        let targets = targets(Some(&check), std::slice::from_ref(&web), &BTreeMap::new());
        assert_eq!(targets.get(&web.id).is_some_and(|target| target.check.http.is_some()), is_http);
        assert_eq!(fault(Some(&check)).as_deref(), expected);
    }

    #[test]
    fn known_backends_begin_with_the_readiness_of_the_slice_and_new_ones_as_not_ready() {
        // docs/contract/load-balancer.md#10.5, #PR-9: verdicts survive a restart, a changed check, and a health check that is
        // added
        let check = HealthCheck { port: Some(80), period_seconds: Some(2), ..HealthCheck::default() };
        let (old, new) = (backend("old", 11), backend("new", 12));
        let recorded = BTreeMap::from([(old.id.clone(), true)]);
        let targets = targets(Some(&check), &[old.clone(), new.clone()], &recorded);
        assert_eq!((targets[&old.id].recorded, targets[&new.id].recorded), (Some(true), None));
        assert_eq!(targets[&old.id].address, "192.168.7.11:80".parse().unwrap());
        assert_eq!(
            targets[&old.id].check,
            Check { period: std::time::Duration::from_secs(2), ..Check::default() }
        );
    }
}
