//! The configuration of a Service: its annotations and its spec as checked types, read once.
//!
//! Loose forms that documents have shown are accepted here (`ippool`, any letter case, blanks around numbers).
//! A wrong value is a fault; one Event names all faults of a Service.

use cloud_provider::FINALIZER;
use controller_kit::{Explanation, ObjectKey};
use harvester_api::{
    HealthCheck, Ipam,
    annotations::{self, SERVICE_PREFIX},
};
use k8s_openapi::api::core::v1::{Service, ServicePort};
use kube::ResourceExt;

use crate::{
    datapath::Datapath,
    requested::{Aliases, Requested},
    source_ranges::SourceRanges,
};

/// The settings of a Service for its load balancer.
#[derive(Clone, Debug, PartialEq)]
pub struct ServiceConfig {
    /// `None` where the value is a fault.
    pub ipam: Option<Ipam>,
    pub datapath: Option<Datapath>,
    /// `harvesterhci.io/load-balancer`.
    pub class: bool,
    /// The annotation `healthcheck-port` is there and not empty: in mode `annotation` it asks for the host datapath.
    pub health_port: bool,
    pub network: String,
    pub project: String,
    pub namespace: String,
    pub description: String,
    pub(crate) requested: Requested,
    /// Faults that forbid a load balancer on either datapath.
    pub faults: Vec<Explanation>,
    /// kube-vip's own annotation is there, and not because of us: an address that nobody acts on.
    pub asks_kube_vip: bool,
    /// A fault of a Service on the host datapath alone.
    pub(crate) source_ranges: Option<Result<SourceRanges, Explanation>>,
    /// Keys of Harvester's own objects, which mean nothing on a Service.
    pub misplaced: Vec<String>,
    /// Keys with our prefix that nobody knows: misspelt, or of a later version.
    pub unknown: Vec<String>,
    /// Values of a health check that has no port, and so is none.
    pub without_port: Vec<&'static str>,
}

/// Fields of the Service's spec, named like keys.
pub const SOURCE_RANGES: &str = "spec.loadBalancerSourceRanges";
/// Of a health check, besides its port.
const HEALTH_VALUES: [&str; 4] = [
    annotations::HEALTH_CHECK_SUCCESS_THRESHOLD,
    annotations::HEALTH_CHECK_FAILURE_THRESHOLD,
    annotations::HEALTH_CHECK_PERIOD_SECONDS,
    annotations::HEALTH_CHECK_TIMEOUT_SECONDS,
];
/// Other keys with our prefix that a Service may carry.
const KNOWN: [&str; 13] = [
    annotations::SERVICE_IP,
    annotations::SERVICE_IP_POOL,
    annotations::PRIMARY_SERVICE,
    annotations::ALLOW_SHARED_FROM,
    annotations::IPAM,
    annotations::DATA_PATH,
    annotations::HEALTH_CHECK_PORT,
    annotations::DESCRIPTION,
    annotations::SERVICE_NETWORK,
    annotations::SERVICE_PROJECT,
    annotations::SERVICE_NAMESPACE,
    annotations::ALLOCATED_ADDRESS,
    annotations::RECORDED_DATA_PATH,
];

/// Longest name of a namespace or a Service.
const NAME_MAX: usize = 63;

impl ServiceConfig {
    /// Without annotations of other programs.
    pub fn of(service: &Service) -> Self {
        Self::with_aliases(service, Aliases::default())
    }

    pub fn with_aliases(service: &Service, aliases: Aliases) -> Self {
        let text =
            |key: &str| service.annotations().get(key).map(|text| text.trim().to_owned()).unwrap_or_default();
        let spec = service.spec.as_ref();
        let mut faults = Vec::new();
        let ipam = Ipam::parse(&text(annotations::IPAM)).map_err(|value| {
            let sentence = format!("annotation {} is {value:?}: use pool or dhcp", annotations::IPAM);
            faults.push(Explanation::new("InvalidIPAM", sentence));
        });
        let datapath = Datapath::parse(&text(annotations::DATA_PATH)).unwrap_or_else(|value| {
            let sentence = format!("annotation {} is {value:?}: use guest or host", annotations::DATA_PATH);
            faults.push(Explanation::new("InvalidDataPath", sentence));
            None
        });
        // once a Service is ours, kube-vip's annotation is ours too; before, an address there has no effect, and is told
        let handed_over = service.finalizers().iter().any(|name| name == FINALIZER);
        faults.extend(primary(service).err());
        let requested = Requested::of(service, aliases, &mut faults);
        let misplaced = |key: &&String| key.starts_with(annotations::LB_PREFIX);
        let unknown = |key: &&String| {
            let mut known = HEALTH_VALUES.iter().chain(&KNOWN);
            key.starts_with(SERVICE_PREFIX) && !known.any(|known| known == key)
        };
        let health_port = !text(annotations::HEALTH_CHECK_PORT).is_empty();
        let given = |key: &&str| !health_port && !text(key).is_empty();
        Self {
            ipam: ipam.ok(),
            datapath,
            class: spec.is_some_and(|spec| spec.load_balancer_class.is_some()),
            health_port,
            network: text(annotations::SERVICE_NETWORK),
            project: text(annotations::SERVICE_PROJECT),
            namespace: text(annotations::SERVICE_NAMESPACE),
            description: text(annotations::DESCRIPTION),
            requested,
            faults,
            asks_kube_vip: !handed_over && !text(annotations::KUBE_VIP_LOADBALANCER_IPS).is_empty(),
            source_ranges: SourceRanges::of(service),
            misplaced: service.annotations().keys().filter(misplaced).cloned().collect(),
            unknown: service.annotations().keys().filter(unknown).cloned().collect(),
            without_port: HEALTH_VALUES.into_iter().filter(given).collect(),
        }
    }
}

/// The Service whose address `service` asks for, by the annotation `primary-service`: `<namespace>/<name>`, or the bare
/// name of one in its own namespace (docs/contract/user-docs.md#17b).
///
/// # Errors
/// The value is no name of a Service.
pub(crate) fn primary(service: &Service) -> Result<Option<ObjectKey>, Explanation> {
    let text = service.annotations().get(annotations::PRIMARY_SERVICE).map(|text| text.trim());
    // an empty one is none (docs/contract/cloud-controller-manager.md#L18)
    let Some(text) = text.filter(|text| !text.is_empty()) else { return Ok(None) };
    let own = service.namespace().unwrap_or_default();
    let (namespace, name) = text.split_once('/').unwrap_or((&own, text));
    if is_name(namespace) && is_name(name) {
        return Ok(Some(ObjectKey::new(namespace, name)));
    }
    let shown: String = text.chars().take(NAME_MAX).collect();
    let sentence = format!(
        "annotation {} must be a Service as namespace/name, or as a name in its own namespace, and is {shown:?}",
        annotations::PRIMARY_SERVICE
    );
    Err(Explanation::new("InvalidPrimaryService", sentence))
}

/// Whether a namespace or a Service may have this name.
fn is_name(text: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'.');
    !text.is_empty() && text.len() <= NAME_MAX && text.bytes().all(allowed)
}

/// The Service's ports.
pub(crate) fn ports(service: &Service) -> &[ServicePort] {
    service.spec.as_ref().and_then(|spec| spec.ports.as_deref()).unwrap_or_default()
}

/// TCP unless the port says otherwise.
pub(crate) fn protocol(port: &ServicePort) -> &str {
    port.protocol.as_deref().unwrap_or("TCP")
}

/// The health check that the annotations ask for, on the node port behind the named Service port. All five values
/// are given, so that no webhook fills in others.
///
/// # Errors
/// Every wrong value.
pub(crate) fn health_check(service: &Service) -> Result<Option<HealthCheck>, Vec<Explanation>> {
    let text = |key: &str| service.annotations().get(key).map(|text| text.trim()).unwrap_or_default();
    let wanted = text(annotations::HEALTH_CHECK_PORT);
    if wanted.is_empty() {
        return Ok(None);
    }
    let mut faults = Vec::new();
    let port = wanted
        .parse::<i32>()
        .ok()
        .and_then(|number| ports(service).iter().find(|port| port.port == number && protocol(port) == "TCP"));
    if port.is_none() {
        let sentence = format!(
            "annotation {} is {wanted:?}, which is no TCP port of this Service: use the number of one of its ports",
            annotations::HEALTH_CHECK_PORT
        );
        faults.push(Explanation::new("InvalidHealthCheck", sentence));
    }
    // more than Harvester's webhook takes would keep every other change of the Service from the object too
    let mut number = |key: &str, default: i64, most: i64| {
        let value = text(key);
        if value.is_empty() {
            return Some(default);
        }
        let number = value.parse::<i64>().ok().filter(|number| (1..=most).contains(number));
        if number.is_none() {
            let sentence = format!("annotation {key} is {value:?}: use a positive integer, at most {most}");
            faults.push(Explanation::new("InvalidHealthCheck", sentence));
        }
        number
    };
    let (in_a_row, seconds) = (HealthCheck::MOST_IN_A_ROW, HealthCheck::LONGEST_SECONDS);
    let check = HealthCheck {
        port: port.and_then(|port| port.node_port).map(i64::from),
        success_threshold: number(annotations::HEALTH_CHECK_SUCCESS_THRESHOLD, 1, in_a_row),
        failure_threshold: number(annotations::HEALTH_CHECK_FAILURE_THRESHOLD, 3, in_a_row),
        period_seconds: number(annotations::HEALTH_CHECK_PERIOD_SECONDS, 5, seconds),
        timeout_seconds: number(annotations::HEALTH_CHECK_TIMEOUT_SECONDS, 3, seconds),
        ..HealthCheck::default()
    };
    if faults.is_empty() { Ok(Some(check)) } else { Err(faults) }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    fn service(pairs: &[(&str, &str)]) -> Service {
        let annotations: serde_json::Map<String, Value> =
            pairs.iter().map(|(key, value)| (format!("{SERVICE_PREFIX}{key}"), json!(value))).collect();
        serde_json::from_value(json!({
            "metadata": {"name": "web", "namespace": "shop", "annotations": annotations},
            "spec": {"type": "LoadBalancer", "ports": [
                {"name": "http", "port": 80, "nodePort": 30080}, {"port": 53, "protocol": "UDP", "nodePort": 30053}]},
        }))
        .unwrap()
    }

    // docs/contract/user-docs.md#17a, docs/contract/cloud-controller-manager.md#L21 and #C9
    #[rstest]
    #[case::absent(&[], Some(Ipam::Pool))]
    #[case::empty(&[("ipam", "")], Some(Ipam::Pool))]
    #[case::pool(&[("ipam", "pool")], Some(Ipam::Pool))]
    #[case::documented(&[("ipam", "ippool")], Some(Ipam::Pool))]
    #[case::any_letter_case(&[("ipam", "IPPool")], Some(Ipam::Pool))]
    #[case::dhcp(&[("ipam", " DHCP ")], Some(Ipam::Dhcp))]
    #[case::wrong(&[("ipam", "static")], None)]
    fn ipam_is_read_in_every_form_that_was_documented(
        #[case] pairs: &[(&str, &str)],
        #[case] expected: Option<Ipam>,
    ) {
        assert_eq!(ServiceConfig::of(&service(pairs)).ipam, expected);
    }

    // docs/contract/cloud-controller-manager.md#L22
    #[test]
    fn every_fault_is_told_at_once() {
        let config = ServiceConfig::of(&service(&[
            ("ipam", "static"),
            ("data-path", "left"),
            ("primary-service", "shop/a/b"),
        ]));
        let reasons: Vec<_> = config.faults.iter().map(|fault| fault.reason).collect();
        assert_eq!(reasons, ["InvalidIPAM", "InvalidDataPath", "InvalidPrimaryService"]);
        assert!(
            config.faults[0].message.contains("\"static\"")
                && config.faults[0].message.contains("pool or dhcp")
        );
    }

    // docs/contract/cloud-controller-manager.md#L18
    #[rstest]
    #[case::none(&[])]
    #[case::empty_means_absent(&[("primary-service", ""), ("network", " ")])]
    #[case::some(&[("network", "a/b"), ("ip", "10.0.0.1")])]
    fn every_key_of_ours_is_known(#[case] pairs: &[(&str, &str)]) {
        let config = ServiceConfig::of(&service(pairs));
        assert_eq!((config.asks_kube_vip, &config.unknown[..]), (false, &[][..]));
    }

    // the guest's kube-proxy reads them
    #[rstest]
    #[case::right("10.0.0.0/8")]
    #[case::wrong("office")]
    fn source_ranges_are_no_fault_on_every_datapath(#[case] range: &str) {
        let mut service = service(&[]);
        service.spec.as_mut().unwrap().load_balancer_source_ranges = Some(vec![range.into()]);
        let config = ServiceConfig::of(&service);
        let is_right = config.source_ranges.is_some_and(|ranges| ranges.is_ok());
        assert_eq!((is_right, config.faults), (range != "office", vec![]));
    }

    // docs/contract/cloud-controller-manager.md#12.4 and #L18, docs/contract/user-docs.md#17b
    #[rstest]
    #[case::none(&[], Ok(None))]
    #[case::empty(&[("primary-service", " ")], Ok(None))]
    #[case::with_namespace(&[("primary-service", " lab/web.v2 ")], Ok(Some("lab/web.v2")))]
    #[case::bare_name(&[("primary-service", "web")], Ok(Some("shop/web")))]
    #[case::too_many_parts(&[("primary-service", "lab/shop/web")], Err("InvalidPrimaryService"))]
    #[case::part_missing(&[("primary-service", "lab/")], Err("InvalidPrimaryService"))]
    #[case::no_name(&[("primary-service", "{\"name\": \"Web\"}")], Err("InvalidPrimaryService"))]
    fn a_secondary_names_its_primary(
        #[case] pairs: &[(&str, &str)],
        #[case] expected: Result<Option<&str>, &str>,
    ) {
        let named = primary(&service(pairs)).map_err(|fault| fault.reason);
        let named = named.map(|key| key.map(|key| key.to_string()));
        assert_eq!(named.as_ref().map(Option::as_deref).map_err(|reason| *reason), expected);
    }

    #[test]
    fn a_primary_of_ten_thousand_characters_is_named_in_part() {
        let fault = primary(&service(&[("primary-service", &"w".repeat(10_000))])).unwrap_err();
        assert!(fault.message.len() < 300 && fault.message.contains("namespace/name"), "{}", fault.message);
    }

    // docs/contract/user-docs.md#17i
    #[test]
    fn keys_of_other_objects_are_named() {
        let mut service = service(&[]);
        service.annotations_mut().insert("loadbalancer.harvesterhci.io/network".into(), "a/b".into());
        assert_eq!(ServiceConfig::of(&service).misplaced, ["loadbalancer.harvesterhci.io/network"]);
    }

    // docs/contract/cloud-controller-manager.md#9.1: kube-vip's own annotation is no way to ask for an address
    #[test]
    fn an_address_in_kube_vips_annotation_has_no_effect_and_is_told_until_the_annotation_is_ours() {
        let mut service = service(&[]);
        service.annotations_mut().insert(annotations::KUBE_VIP_LOADBALANCER_IPS.into(), "10.0.0.7".into());
        assert!(ServiceConfig::of(&service).asks_kube_vip);
        service.metadata.finalizers = Some(vec![FINALIZER.to_owned()]);
        assert!(!ServiceConfig::of(&service).asks_kube_vip);
    }

    #[rstest]
    #[case::misspelt(&[("iapm", "dhcp"), ("healthcheck-timeout", "3")], &["healthcheck-timeout", "iapm"])]
    #[case::all_known(&[("ipam", "pool"), ("healthcheck-port", "80"), ("healthcheck-periodseconds", "1"),
        ("description", "x"), ("project", "a/b"), ("namespace", "c"), ("ip", "10.0.0.7"), ("network", "a/b"),
        ("data-path", "host"), ("primary-service", "a/b"), ("allow-shared-from", "*"), ("ip-pool", "edge"), ("allocated-address", "10.0.0.7"),
        ("recorded-data-path", "host")], &[])]
    fn a_key_that_nobody_knows_is_named(#[case] pairs: &[(&str, &str)], #[case] keys: &[&str]) {
        let expected: Vec<_> = keys.iter().map(|key| format!("{SERVICE_PREFIX}{key}")).collect();
        assert_eq!(ServiceConfig::of(&service(pairs)).unknown, expected);
    }

    #[rstest]
    #[case::alone(&[("healthcheck-timeoutseconds", "x")], 1)]
    #[case::empty(&[("healthcheck-timeoutseconds", "")], 0)]
    #[case::with_a_port(&[("healthcheck-port", "80"), ("healthcheck-timeoutseconds", "3")], 0)]
    fn values_of_a_health_check_without_a_port_are_named(
        #[case] pairs: &[(&str, &str)],
        #[case] count: usize,
    ) {
        assert_eq!(ServiceConfig::of(&service(pairs)).without_port.len(), count);
    }

    #[test]
    fn a_health_check_is_complete_and_goes_to_the_node_port() {
        let expected = |port, success, failure, period, timeout| HealthCheck {
            port: Some(port),
            success_threshold: Some(success),
            failure_threshold: Some(failure),
            period_seconds: Some(period),
            timeout_seconds: Some(timeout),
            ..HealthCheck::default()
        };
        assert_eq!(health_check(&service(&[])), Ok(None));
        assert_eq!(health_check(&service(&[("healthcheck-port", "")])), Ok(None));
        let check = health_check(&service(&[("healthcheck-port", " 80 ")])).unwrap();
        assert_eq!(check, Some(expected(30080, 1, 3, 5, 3)));
        let pairs = [
            ("healthcheck-port", "80"),
            ("healthcheck-success-threshold", "2"),
            ("healthcheck-failure-threshold", "4"),
            ("healthcheck-periodseconds", "1"),
            ("healthcheck-timeoutseconds", "6"),
        ];
        assert_eq!(health_check(&service(&pairs)).unwrap(), Some(expected(30080, 2, 4, 1, 6)));
    }

    #[rstest]
    #[case::name(&[("healthcheck-port", "http")], 1)]
    #[case::udp(&[("healthcheck-port", "53")], 1)]
    #[case::node_port(&[("healthcheck-port", "30080")], 1)]
    #[case::zero(&[("healthcheck-port", "80"), ("healthcheck-periodseconds", "0")], 1)]
    #[case::more_than_harvester_takes(&[("healthcheck-port", "80"), ("healthcheck-periodseconds", "86401"),
        ("healthcheck-timeoutseconds", "100000"), ("healthcheck-failure-threshold", "1001")], 3)]
    #[case::all(&[("healthcheck-port", "x"), ("healthcheck-periodseconds", "-1"), ("healthcheck-timeoutseconds", "3s"),
        ("healthcheck-success-threshold", "1.5"), ("healthcheck-failure-threshold", "99999999999")], 5)]
    fn wrong_values_are_faults(#[case] pairs: &[(&str, &str)], #[case] count: usize) {
        let faults = health_check(&service(pairs)).unwrap_err();
        assert_eq!(faults.len(), count, "{faults:?}");
        assert!(faults.iter().all(|fault| fault.reason == "InvalidHealthCheck"));
    }

    proptest::proptest! {
        #[test]
        fn whatever_people_write_is_read_without_a_panic(
            pairs in proptest::collection::vec((proptest::sample::select(&["ipam", "data-path", "healthcheck-port",
                "healthcheck-periodseconds", "network", "ip", "description", "primary-service"][..]), ".{0,12}"), 0..6),
        ) {
            let pairs: Vec<_> = pairs.iter().map(|(key, value)| (*key, value.as_str())).collect();
            let service = service(&pairs);
            let config = ServiceConfig::of(&service);
            proptest::prop_assert_eq!(config.ipam.is_none(), config.faults.iter().any(|it| it.reason == "InvalidIPAM"));
            if let Ok(Some(check)) = health_check(&service) {
                proptest::prop_assert!(check.port == Some(30080) && check.period_seconds > Some(0));
            }
        }
    }
}
