//! The LoadBalancer object: the JSON of a new one, and the changes to one that was read. Both set only fields that are
//! ours.

use std::collections::BTreeSet;

use controller_kit::{Explanation, ObjectKey};
use harvester_api::{HealthCheck, Ipam, Listener, LoadBalancer, annotations, labels};
use k8s_openapi::api::core::v1::Service;
use kube::{Resource as _, ResourceExt};
use serde_json::{Map, Value, json};

use super::{decide::families::Families, requests, selector::Selector};
use crate::{
    cluster::GuestCluster,
    requested::Requested,
    service_config::{ServiceConfig, ports, protocol},
    source_ranges::SourceRanges,
};

/// The name of a secondary, in the names of its listeners.
const SECONDARY_NAME_MAX: usize = 40;

/// The guest cluster, towards Harvester.
#[derive(Clone, Debug, PartialEq)]
pub struct ClusterIdentity {
    pub cluster: GuestCluster,
    /// UID of the guest's Service `default/kubernetes`; `None` while it is not known.
    pub cluster_uid: Option<String>,
    /// `--management-network`, with namespace.
    pub management_network: Option<String>,
}

/// The Service that an object is made for, and its cluster.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ForService<'a> {
    pub(super) identity: &'a ClusterIdentity,
    pub(super) service: &'a Service,
}

/// An object as it should be.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Wanted<'a> {
    pub(super) made_for: ForService<'a>,
    pub(super) config: &'a ServiceConfig,
    /// With what the IPAM leaves of it.
    pub(super) requested: Requested,
    pub(super) datapath: DatapathFields,
}

/// The part of an object that the datapath decides.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum DatapathFields {
    Guest(StatusAddress),
    Host {
        listeners: Vec<Listener>,
        /// Empty while nobody may reach the Service.
        selector: Selector,
        health_check: Option<HealthCheck>,
        source_ranges: Option<SourceRanges>,
    },
}

/// The value for the object's `status.address`: the address that kube-vip wrote into the Service.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum StatusAddress {
    /// kube-vip has not written one.
    Keep,
    Set(String),
    /// Harvester took the address back: the field goes.
    Clear,
}

impl ForService<'_> {
    /// Writes the labels and annotations that name the Service and its cluster.
    pub(super) fn mark(&self, json: &mut Value) {
        let Self { identity, service } = self;
        let object_annotations = object(&mut json["metadata"], "annotations");
        object_annotations.insert(annotations::LB_CLUSTER.into(), json!(identity.cluster.name()));
        object_annotations.insert(annotations::SERVICE_UID.into(), json!(service.uid()));
        // a Service that came back with its UID, from a backup
        object_annotations.remove(annotations::WITHOUT_SERVICE);
        if let Some(uid) = &identity.cluster_uid {
            object_annotations.insert(annotations::CLUSTER_UID.into(), json!(uid));
        }
        let object_labels = object(&mut json["metadata"], "labels");
        object_labels.insert(labels::CLUSTER.into(), json!(identity.cluster.label_value()));
        object_labels.insert(labels::SERVICE_NAMESPACE.into(), json!(service.namespace()));
        object_labels.insert(labels::SERVICE_NAME.into(), json!(service.name_any()));
    }
}

impl Wanted<'_> {
    /// The body of a POST.
    pub(super) fn fresh(&self, namespace: &str, name: &str) -> Value {
        let mut json = json!({
            "apiVersion": LoadBalancer::api_version(&()),
            "kind": "LoadBalancer",
            "metadata": {"namespace": namespace, "name": name},
            "spec": {},
        });
        let guest = matches!(self.datapath, DatapathFields::Guest(_));
        json["spec"]["workloadType"] = json!(if guest { "cluster" } else { "vm" });
        json["spec"]["ipam"] = json!(self.config.ipam.unwrap_or(Ipam::Pool));
        if guest {
            // Harvester's webhook has the last word on these; never given for vm objects, where it has not
            let object_annotations = object(&mut json["metadata"], "annotations");
            object_annotations.insert(annotations::LB_NETWORK.into(), json!(self.config.network));
            object_annotations.insert(annotations::LB_PROJECT.into(), json!(self.config.project));
            object_annotations.insert(annotations::LB_NAMESPACE.into(), json!(self.config.namespace));
        }
        self.apply(&mut json);
        json
    }

    /// Changes an object that was read into the wanted one. Workload type, IPAM and network stay: they were decided
    /// when the object was made.
    pub(super) fn apply(&self, json: &mut Value) {
        let Self { made_for, config, requested, datapath } = self;
        made_for.mark(json);
        requests::write(requested, json);
        if matches!(datapath, DatapathFields::Guest(_)) {
            let object_annotations = object(&mut json["metadata"], "annotations");
            // missing on objects from before v0.2.7: taken over, not compared as empty
            // (docs/contract/cloud-controller-manager.md#L6)
            object_annotations
                .entry(annotations::LB_NETWORK_REQUEST)
                .or_insert_with(|| json!(config.network));
            match &made_for.identity.management_network {
                Some(network) => {
                    object_annotations.insert(annotations::MANAGEMENT_NETWORK.into(), json!(network));
                }
                None => {
                    object_annotations.remove(annotations::MANAGEMENT_NETWORK);
                }
            }
            Families::of(made_for.service).mark(object_annotations);
        }
        if json["spec"]["ipam"].as_str().is_none_or(str::is_empty) {
            // Harvester takes an absent value for pool when it allocates and not when it releases
            // (docs/contract/cloud-controller-manager.md#9.1)
            json["spec"]["ipam"] = json!(Ipam::Pool);
        }
        match datapath {
            DatapathFields::Guest(StatusAddress::Keep) => {}
            DatapathFields::Guest(StatusAddress::Clear) => {
                object(json, "status").remove("address");
            }
            DatapathFields::Guest(StatusAddress::Set(address)) => {
                object(json, "status").insert("address".into(), json!(address));
            }
            DatapathFields::Host { listeners, selector, health_check, source_ranges } => {
                let ranges = source_ranges.as_ref().map(|ranges| json!(ranges.to_string()));
                set(object(&mut json["metadata"], "annotations"), annotations::SOURCE_RANGES, ranges);
                let spec = object(json, "spec");
                set(spec, "description", (!config.description.is_empty()).then(|| json!(config.description)));
                set(spec, "listeners", Some(json!(listeners)));
                set(spec, "backendServerSelector", (!selector.is_empty()).then(|| json!(selector)));
                set(spec, "healthCheck", health_check.as_ref().map(|check| json!(check)));
            }
        }
    }
}

fn set(object: &mut Map<String, Value>, key: &str, value: Option<Value>) {
    match value {
        Some(value) => {
            object.insert(key.to_owned(), value);
        }
        None => {
            object.remove(key);
        }
    }
}

/// The object under `key`, made where it is absent or null.
pub(super) fn object<'a>(parent: &'a mut Value, key: &str) -> &'a mut Map<String, Value> {
    let value = &mut parent[key];
    if !value.is_object() {
        *value = json!({});
    }
    value.as_object_mut().expect("made an object above")
}

/// One listener for each port of the Service, to the node port behind it.
///
/// # Errors
/// Every port that cannot be carried this way.
pub(super) fn listeners(service: &Service) -> Result<Vec<Listener>, Vec<Explanation>> {
    let (mut listeners, mut faults) = (Vec::new(), Vec::new());
    for port in ports(service) {
        let (number, protocol) = (port.port, protocol(port));
        if !matches!(protocol, "TCP" | "UDP") {
            let sentence =
                format!("port {number} is {protocol}: the data path host carries TCP and UDP only");
            faults.push(Explanation::new("ProtocolNotSupported", sentence));
            continue;
        }
        let Some(node_port) = port.node_port.filter(|port| *port > 0) else {
            let sentence = format!(
                "port {number} has no node port, and the data path host leads to node ports: set allocateLoadBalancerNodePorts to true"
            );
            faults.push(Explanation::new("NodePortMissing", sentence));
            continue;
        };
        let generated = || format!("{}-{number}", protocol.to_ascii_lowercase());
        listeners.push(Listener {
            name: port.name.clone().filter(|name| !name.is_empty()).unwrap_or_else(generated),
            port: number,
            protocol: protocol.to_owned(),
            backend_port: node_port,
        });
    }
    if faults.is_empty() { Ok(listeners) } else { Err(faults) }
}

/// The listeners for the ports of a Service that shares the address of another one. A Service may name its ports as it
/// likes, so the names of the listeners are made up.
///
/// # Errors
/// As above.
pub(super) fn listeners_of_secondary(service: &Service) -> Result<Vec<Listener>, Vec<Explanation>> {
    let prefix = secondary_prefix(&ObjectKey::of(service));
    let renamed = |listener: Listener| {
        let name = format!("{prefix}{}-{}", listener.protocol.to_ascii_lowercase(), listener.port);
        Listener { name, ..listener }
    };
    Ok(listeners(service)?.into_iter().map(renamed).collect())
}

/// The names of a secondary's listeners begin with it. A listener's name has at most 63 characters.
pub(super) fn secondary_prefix(secondary: &ObjectKey) -> String {
    let digest = crc32fast::hash(secondary.to_string().as_bytes());
    let name = &secondary.name[..secondary.name.floor_char_boundary(SECONDARY_NAME_MAX)];
    format!("{name}-{digest:08x}-")
}

/// The prefix in the name of a listener that [`listeners_of_secondary`] made. A user may name a port like one.
pub(super) fn prefix_of_secondary(listener: &str) -> Option<&str> {
    let [port, protocol, digest, _name] = listener.rsplitn(4, '-').collect::<Vec<_>>()[..] else {
        return None;
    };
    let is_digest = digest.len() == 8 && digest.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    let is_one = is_digest && matches!(protocol, "tcp" | "udp") && port.parse::<u16>().is_ok();
    is_one.then(|| listener.strip_suffix(&format!("{protocol}-{port}")))?
}

/// The prefixes of the secondaries that the listeners of an object name.
pub(super) fn secondaries_in(object: &LoadBalancer) -> BTreeSet<String> {
    let names = object.spec.listeners.iter().map(|listener| &listener.name);
    names.filter_map(|name| prefix_of_secondary(name)).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn identity() -> ClusterIdentity {
        ClusterIdentity {
            cluster: GuestCluster::new("prod"),
            cluster_uid: Some("cluster-1".into()),
            management_network: None,
        }
    }

    fn service() -> Service {
        serde_json::from_value(json!({
            "metadata": {"name": "web", "namespace": "shop", "uid": "service-1",
                "annotations": {annotations::DESCRIPTION: "front door", annotations::SERVICE_PROJECT: "c/p"}},
            "spec": {"ports": [{"name": "http", "port": 80, "protocol": "TCP", "nodePort": 30080},
                {"port": 53, "protocol": "UDP", "nodePort": 30053}]},
        }))
        .unwrap()
    }

    fn check(datapath: DatapathFields, act: impl FnOnce(&Wanted<'_>)) {
        let (identity, service) = (identity(), service());
        let config = ServiceConfig::of(&service);
        let made_for = ForService { identity: &identity, service: &service };
        act(&Wanted { made_for, config: &config, requested: config.requested.clone(), datapath });
    }

    fn host() -> DatapathFields {
        DatapathFields::Host {
            listeners: listeners(&service()).unwrap(),
            selector: BTreeMap::from([("harvesterhci.io/vmName".to_owned(), vec!["a".to_owned()])]),
            health_check: None,
            source_ranges: None,
        }
    }

    #[test]
    fn a_guest_object_has_the_fields_of_the_go_program_and_who_it_is_for() {
        check(DatapathFields::Guest(StatusAddress::Keep), |wanted| {
            let expected = json!({
                "apiVersion": "loadbalancer.harvesterhci.io/v1beta1",
                "kind": "LoadBalancer",
                "metadata": {
                    "namespace": "tenant-a", "name": "prod-shop-web-1",
                    "annotations": {
                        "loadbalancer.harvesterhci.io/network": "",
                        "loadbalancer.harvesterhci.io/project": "c/p",
                        "loadbalancer.harvesterhci.io/namespace": "",
                        "loadbalancer.harvesterhci.io/cluster": "prod",
                        "cloudprovider.harvesterhci.io/lb-network": "",
                        "cloudprovider.harvesterhci.io/cluster-uid": "cluster-1",
                        "cloudprovider.harvesterhci.io/service-uid": "service-1",
                    },
                    "labels": {
                        "cloudprovider.harvesterhci.io/cluster": "prod",
                        "cloudprovider.harvesterhci.io/serviceNamespace": "shop",
                        "cloudprovider.harvesterhci.io/serviceName": "web",
                    },
                },
                "spec": {"workloadType": "cluster", "ipam": "pool"},
            });
            assert_eq!(wanted.fresh("tenant-a", "prod-shop-web-1"), expected);
        });
    }

    #[test]
    fn a_host_object_has_listeners_and_no_project_network_or_namespace() {
        check(host(), |wanted| {
            let json = wanted.fresh("tenant-a", "prod-shop-web-1");
            let expected = json!({
                "workloadType": "vm", "ipam": "pool", "description": "front door",
                "listeners": [{"name": "http", "port": 80, "protocol": "TCP", "backendPort": 30080},
                    {"name": "udp-53", "port": 53, "protocol": "UDP", "backendPort": 30053}],
                "backendServerSelector": {"harvesterhci.io/vmName": ["a"]},
            });
            assert_eq!(json["spec"], expected);
            let annotations: Vec<_> = json["metadata"]["annotations"].as_object().unwrap().keys().collect();
            assert_eq!(
                annotations,
                [
                    "cloudprovider.harvesterhci.io/cluster-uid",
                    "cloudprovider.harvesterhci.io/service-uid",
                    "loadbalancer.harvesterhci.io/cluster"
                ]
            );
            assert_eq!(json.get("status"), None);
        });
    }

    /// An object as Harvester has it after its webhook and its controller wrote.
    fn stored(wanted: &Wanted<'_>) -> Value {
        let mut json = wanted.fresh("tenant-a", "prod-shop-web-1");
        json["metadata"]["annotations"]["loadbalancer.harvesterhci.io/namespace"] = "tenant-a".into();
        json["metadata"]["annotations"]["loadbalancer.harvesterhci.io/network"] = "default/mgmt".into();
        json["metadata"]["finalizers"] = json!(["wrangler.cattle.io/harvester-lb-controller"]);
        json["spec"]["future"] = json!({"field": true});
        json["status"] = json!({"allocatedAddress": {"ip": "10.0.0.9"}, "conditions": []});
        json
    }

    // docs/contract/cloud-controller-manager.md#L8: the Go program writes on every sync, and blanks what the webhook
    // filled in
    #[test]
    fn an_object_in_step_is_not_changed_and_foreign_fields_survive() {
        for datapath in [DatapathFields::Guest(StatusAddress::Keep), host()] {
            check(datapath, |wanted| {
                let before = stored(wanted);
                let mut after = before.clone();
                wanted.apply(&mut after);
                assert_eq!(after, before);
            });
        }
    }

    #[test]
    fn the_announced_address_is_the_only_change() {
        check(DatapathFields::Guest(StatusAddress::Set("10.0.0.9".into())), |wanted| {
            let mut json = stored(wanted);
            json["status"].as_object_mut().unwrap().remove("address");
            let mut expected = json.clone();
            expected["status"]["address"] = "10.0.0.9".into();
            wanted.apply(&mut json);
            assert_eq!(json, expected);
        });
    }

    // docs/contract/cloud-controller-manager.md#L26
    #[test]
    fn an_address_that_was_taken_back_does_not_stay_in_the_object() {
        check(DatapathFields::Guest(StatusAddress::Clear), |wanted| {
            let mut json = stored(wanted);
            json["status"]["address"] = "10.0.0.9".into();
            wanted.apply(&mut json);
            assert_eq!(json["status"].get("address"), None);
        });
    }

    // docs/contract/cloud-controller-manager.md#L6 and #L34
    #[test]
    fn an_object_of_the_go_program_is_taken_over() {
        check(DatapathFields::Guest(StatusAddress::Keep), |wanted| {
            let mut json = stored(wanted);
            let annotations = json["metadata"]["annotations"].as_object_mut().unwrap();
            for key in [annotations::CLUSTER_UID, annotations::SERVICE_UID, annotations::LB_NETWORK_REQUEST] {
                annotations.remove(key);
            }
            wanted.apply(&mut json);
            assert_eq!(json, stored(wanted));
        });
    }

    #[test]
    fn what_was_decided_at_creation_stays() {
        check(DatapathFields::Guest(StatusAddress::Keep), |wanted| {
            let mut json = stored(wanted);
            json["spec"]["ipam"] = "dhcp".into();
            json["metadata"]["annotations"][annotations::LB_NETWORK_REQUEST] = "a/b".into();
            let before = json.clone();
            wanted.apply(&mut json);
            assert_eq!(json, before);
        });
    }

    #[test]
    fn a_listener_names_its_secondary() {
        let secondary = ObjectKey::new("shop", "api-tcp-80");
        let service = Service {
            metadata: kube::core::ObjectMeta {
                namespace: Some("shop".into()),
                name: Some("api-tcp-80".into()),
                ..Default::default()
            },
            ..service()
        };
        let prefix = secondary_prefix(&secondary);
        for listener in listeners_of_secondary(&service).unwrap() {
            assert_eq!(prefix_of_secondary(&listener.name), Some(&*prefix), "{}", listener.name);
        }
        let own = ["http", "tcp-80", "api-0123456z-tcp-80", "api-01234567-sctp-80", "api-01234567-tcp-http"];
        assert_eq!(own.map(prefix_of_secondary), [None; 5]);
    }

    #[test]
    fn ports_that_cannot_be_carried_are_all_named() {
        let mut service = service();
        let ports = service.spec.as_mut().unwrap().ports.as_mut().unwrap();
        ports[0].node_port = None;
        ports[1].protocol = Some("SCTP".into());
        let reasons: Vec<_> = listeners(&service).unwrap_err().iter().map(|fault| fault.reason).collect();
        assert_eq!(reasons, ["NodePortMissing", "ProtocolNotSupported"]);
    }
}
