//! The datapath of a Service: kube-vip and kube-proxy in the guest carry its traffic, or Harvester does.
//!
//! It is chosen once, before the LoadBalancer object exists. From then on the object's workload type is the record, and
//! a later request for the other datapath changes nothing.

use controller_kit::{Explanation, PendingEvent};
use harvester_api::{LoadBalancerSpec, WorkloadType, annotations, names};

use crate::service_config::ServiceConfig;

/// A way for the traffic of a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Datapath {
    /// Announced by kube-vip in the guest, forwarded to pods by the guest's kube-proxy.
    Guest,
    /// Announced by Harvester, forwarded to node ports of the VMs, with health checks.
    Host,
}

impl Datapath {
    /// The Service annotation; empty means no preference.
    ///
    /// # Errors
    /// The text itself where it is no path.
    pub fn parse(text: &str) -> Result<Option<Self>, String> {
        match text.trim().to_ascii_lowercase().as_str() {
            "" => Ok(None),
            "guest" => Ok(Some(Self::Guest)),
            "host" => Ok(Some(Self::Host)),
            _ => Err(text.to_owned()),
        }
    }

    /// The datapath that an existing object records. An object of the Go program's first versions has no workload type.
    pub fn of_object(spec: &LoadBalancerSpec) -> Self {
        match spec.workload() {
            WorkloadType::Vm => Self::Host,
            WorkloadType::Cluster => Self::Guest,
        }
    }

    /// As flags and annotations name it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Guest => "guest",
            Self::Host => "host",
        }
    }
}

/// `--data-path`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// As the Go program since v0.2.0.
    #[default]
    Guest,
    /// Services with a health-check port take the host datapath.
    Annotation,
    Host,
}

/// `--allowed-data-paths`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllowedDatapaths {
    pub guest: bool,
    pub host: bool,
}

impl Default for AllowedDatapaths {
    fn default() -> Self {
        Self { guest: true, host: true }
    }
}

impl AllowedDatapaths {
    /// Whether the flag allows this datapath.
    pub fn admits(self, path: Datapath) -> bool {
        match path {
            Datapath::Guest => self.guest,
            Datapath::Host => self.host,
        }
    }
}

/// The rule that chose a datapath.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// It was chosen before, and is recorded.
    Recorded,
    /// `loadBalancerClass: harvesterhci.io/load-balancer`.
    Class,
    /// The annotation `data-path`.
    Annotation,
    /// `--data-path=annotation` and the annotation `healthcheck-port`.
    HealthCheckPort,
    /// `--data-path` alone.
    Flag,
}

/// The datapath of one Service, and the Events that explain it.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    pub path: Datapath,
    pub rule: Rule,
    pub refusal: Option<Explanation>,
    pub events: Vec<PendingEvent>,
}

/// Chooses a datapath, or keeps the `recorded` one.
pub fn choose(
    policy: Policy,
    allowed: AllowedDatapaths,
    config: &ServiceConfig,
    recorded: Option<Datapath>,
) -> Choice {
    let mut events = Vec::new();
    let mut refusal = None;
    let excluded = config.datapath.filter(|path| !allowed.admits(*path));
    let by_health = policy == Policy::Annotation && config.health_port && allowed.host;
    let (asked, rule) = match config.datapath {
        Some(path) if excluded.is_none() => (Some(path), Rule::Annotation),
        _ if by_health => (Some(Datapath::Host), Rule::HealthCheckPort),
        _ => (None, Rule::Flag),
    };
    let mut fixed = false;
    let (path, rule) = if let Some(recorded) = recorded {
        if let Some(other) = asked.filter(|asked| *asked != recorded && !config.class) {
            let sentence = format!(
                "the Service stays on the data path {}: the path {} can be had by creating the Service anew",
                recorded.word(),
                other.word()
            );
            events.push(PendingEvent::warning("DataPathFixed", sentence));
            fixed = true;
        }
        (recorded, Rule::Recorded)
    } else if config.class {
        if !allowed.host {
            let sentence = format!(
                "class {} needs the data path host, which --allowed-data-paths excludes: remove the class or allow the path",
                names::LOAD_BALANCER_CLASS
            );
            refusal = Some(Explanation::new("ClassNeedsHostPath", sentence));
        }
        (Datapath::Host, Rule::Class)
    } else {
        let by_flag = if policy == Policy::Host { Datapath::Host } else { Datapath::Guest };
        (asked.unwrap_or(by_flag), rule)
    };
    if let Some(excluded) = excluded {
        let sentence = format!(
            "annotation {} is {}, which --allowed-data-paths excludes: the Service takes the data path {}",
            annotations::DATA_PATH,
            excluded.word(),
            path.word()
        );
        events.push(PendingEvent::warning("DataPathNotAllowed", sentence));
    }
    if config.class && path == Datapath::Host && asked == Some(Datapath::Guest) {
        let sentence = format!(
            "annotation {} is guest, and class {} is for the data path host only: the Service takes the path host; \
             create it anew without the class for the path guest",
            annotations::DATA_PATH,
            names::LOAD_BALANCER_CLASS
        );
        events.push(PendingEvent::warning("ClassNeedsHostPath", sentence));
    }
    // the Event about a fixed path says it already
    if path == Datapath::Guest && config.health_port && !fixed {
        let way_out = if !allowed.host {
            "--allowed-data-paths of the cloud controller manager excludes that path".to_owned()
        } else if config.datapath == Some(Datapath::Guest) {
            format!("annotation {} says so: take it away on a new Service", annotations::DATA_PATH)
        } else {
            format!(
                "set the flag --data-path=annotation of the cloud controller manager, or annotation {}: host on a new \
                 Service",
                annotations::DATA_PATH
            )
        };
        let sentence = format!(
            "health-check annotations act only on the data path host, this Service is on guest: {way_out}"
        );
        events.push(PendingEvent::warning("HealthCheckNotEnforced", sentence));
    }
    Choice { path, rule, refusal, events }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Service;
    use rstest::rstest;

    use super::*;

    const HOST_ONLY: AllowedDatapaths = AllowedDatapaths { guest: false, host: true };
    const GUEST_ONLY: AllowedDatapaths = AllowedDatapaths { guest: true, host: false };
    const BOTH: AllowedDatapaths = AllowedDatapaths { guest: true, host: true };

    fn config(datapath: Option<Datapath>, health_port: bool) -> ServiceConfig {
        ServiceConfig { datapath, health_port, ..ServiceConfig::of(&Service::default()) }
    }

    use Datapath::{Guest, Host};

    #[rstest]
    #[case::default(Policy::Guest, BOTH, config(None, false), None, Guest, &[])]
    #[case::health_on_guest(Policy::Guest, BOTH, config(None, true), None, Guest, &["HealthCheckNotEnforced"])]
    #[case::by_health(Policy::Annotation, BOTH, config(None, true), None, Host, &[])]
    #[case::others(Policy::Annotation, BOTH, config(None, false), None, Guest, &[])]
    #[case::all(Policy::Host, BOTH, config(None, false), None, Host, &[])]
    #[case::own_annotation_wins(Policy::Host, BOTH, config(Some(Guest), false), None, Guest, &[])]
    #[case::own_annotation_beats_health(Policy::Annotation, BOTH, config(Some(Guest), true), None, Guest,
        &["HealthCheckNotEnforced"])]
    #[case::own_annotation_for_host(Policy::Guest, BOTH, config(Some(Host), false), None, Host, &[])]
    #[case::excluded_host(Policy::Guest, GUEST_ONLY, config(Some(Host), false), None, Guest, &["DataPathNotAllowed"])]
    #[case::excluded_guest(Policy::Host, HOST_ONLY, config(Some(Guest), false), None, Host, &["DataPathNotAllowed"])]
    #[case::health_where_host_is_excluded(Policy::Annotation, GUEST_ONLY, config(None, true), None, Guest,
        &["HealthCheckNotEnforced"])]
    #[case::recorded_guest(Policy::Annotation, BOTH, config(None, true), Some(Guest), Guest,
        &["DataPathFixed"])]
    #[case::recorded_host(Policy::Guest, BOTH, config(None, true), Some(Host), Host, &[])]
    #[case::recorded_host_other_request(Policy::Guest, BOTH, config(Some(Guest), false), Some(Host), Host,
        &["DataPathFixed"])]
    #[case::flag_changed_later(Policy::Host, BOTH, config(None, false), Some(Guest), Guest, &[])]
    #[case::class(Policy::Guest, BOTH, ServiceConfig { class: true, ..config(None, false) }, None, Host, &[])]
    #[case::class_and_another_request(Policy::Guest, BOTH, ServiceConfig { class: true, ..config(Some(Guest), false) }, None, Host,
        &["ClassNeedsHostPath"])]
    #[case::class_and_another_request_later(Policy::Guest, BOTH, ServiceConfig { class: true, ..config(Some(Guest), false) },
        Some(Host), Host, &["ClassNeedsHostPath"])]
    fn paths(
        #[case] policy: Policy,
        #[case] allowed: AllowedDatapaths,
        #[case] config: ServiceConfig,
        #[case] recorded: Option<Datapath>,
        #[case] path: Datapath,
        #[case] reasons: &[&str],
    ) {
        let choice = choose(policy, allowed, &config, recorded);
        let told: Vec<_> = choice.events.iter().map(|event| event.reason).collect();
        assert_eq!((choice.path, &told[..], choice.refusal), (path, reasons, None));
    }

    #[rstest]
    #[case::flag(Policy::Host, config(None, true), None, Rule::Flag)]
    #[case::health(Policy::Annotation, config(None, true), None, Rule::HealthCheckPort)]
    #[case::annotation(Policy::Annotation, config(Some(Guest), true), None, Rule::Annotation)]
    #[case::class(Policy::Guest, ServiceConfig { class: true, ..config(Some(Guest), true) }, None, Rule::Class)]
    #[case::record(Policy::Host, config(Some(Host), true), Some(Guest), Rule::Recorded)]
    fn the_choice_names_the_rule_that_made_it(
        #[case] policy: Policy,
        #[case] config: ServiceConfig,
        #[case] recorded: Option<Datapath>,
        #[case] rule: Rule,
    ) {
        assert_eq!(choose(policy, BOTH, &config, recorded).rule, rule);
    }

    #[rstest]
    #[case::by_default(Policy::Guest, BOTH, config(None, true), "--data-path=annotation")]
    #[case::by_annotation(Policy::Annotation, BOTH, config(Some(Guest), true), "data-path says so")]
    #[case::by_exclusion(Policy::Annotation, GUEST_ONLY, config(None, true), "--allowed-data-paths")]
    fn a_health_check_that_is_not_done_says_what_stands_in_its_way(
        #[case] policy: Policy,
        #[case] allowed: AllowedDatapaths,
        #[case] config: ServiceConfig,
        #[case] part: &str,
    ) {
        let events = choose(policy, allowed, &config, None).events;
        assert!(events.len() == 1 && events[0].message.contains(part), "{events:?}");
    }

    #[test]
    fn a_class_of_ours_is_refused_where_the_host_datapath_is_not_allowed() {
        let config = ServiceConfig { class: true, ..config(None, false) };
        let choice = choose(Policy::Guest, GUEST_ONLY, &config, None);
        assert_eq!(choice.refusal.map(|fault| fault.reason), Some("ClassNeedsHostPath"));
    }
}
