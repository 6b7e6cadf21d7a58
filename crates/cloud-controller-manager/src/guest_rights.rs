//! The rights of the program in both clusters as it asks for them, each with what is off without: in Harvester those of
//! [`rights`](crate::rights), in the guest cluster those of `deploy/rbac/ours.yaml`.

use cloud_provider::DELETE_NODES;
use controller_kit::{CREATE_EVENTS, EventReason, PATCH_EVENTS, PendingEvent};
use credential_rotation::SecretName;
use program::capabilities::{Capabilities, Need, Needs, Right, Wanted};

use crate::{
    Parts, Settings,
    metrics::OwnMetrics,
    networks,
    rights::{GRANTS, LOAD_BALANCERS, ROLE},
};

/// The role that the charts and `deploy/rbac` grant our rights in the guest cluster by.
pub(crate) const GUEST_ROLE: &str = "ClusterRole harvester-cloud-controller-manager";

pub(crate) const REASON: EventReason = EventReason::warning(
    "RightsMissing",
    &["Pod"],
    "a role does not grant what the program needs, and what is off without each right",
    "grant what the message names; it is asked for again by itself",
);

/// What the roles in both clusters grant, as far as is known.
#[derive(Clone)]
pub(crate) struct Granted {
    pub(crate) guest: Capabilities,
    pub(crate) harvester: Capabilities,
}

impl Granted {
    /// Begins to ask, until `tasks` ends. What is missing is a notice and a metric.
    pub(crate) fn ask(
        parts: &Parts,
        settings: &Settings,
        own: &OwnMetrics,
        tasks: &program::TaskGroup,
    ) -> Self {
        let rotated = parts.rotation.as_ref().map(|rotation| &rotation.secret);
        let ask = |client: &kube::Client, needs: Needs| {
            let wanted = Wanted { rights: needs.rights(), fields: Vec::new() };
            let capabilities = Capabilities::start(tasks, client.clone(), wanted);
            let notices = parts.notices.clone();
            capabilities.tell_missing(needs, own.rights.clone(), move |line| {
                notices.tell(&PendingEvent::warning(REASON.reason, line));
            });
            capabilities
        };
        Self {
            guest: ask(&parts.guest, in_guest(settings, rotated)),
            harvester: ask(&parts.harvester, in_harvester(settings)),
        }
    }
}

fn in_harvester(settings: &Settings) -> Needs {
    let namespace = &settings.rules.namespace;
    let is_asked_for = |verb: &str, group: &str, resource: &str| {
        let is_write = ["create", "update", "delete"].contains(&verb);
        (settings.services || group != LOAD_BALANCERS || !is_write)
            && (settings.host_names || !resource.ends_with("/guestosinfo"))
    };
    let asked = GRANTS.iter().filter(|grant| is_asked_for(grant.verb, grant.group, grant.resource));
    Needs {
        cluster: "harvester",
        role: format!(
            "ClusterRole {ROLE} of Harvester, bound in namespace {namespace} to the account of the cloud-config,"
        ),
        all: asked.map(|grant| Need::new(grant.right(namespace), grant.off)).collect(),
    }
}

fn in_guest(settings: &Settings, rotated: Option<&SecretName>) -> Needs {
    let core = |verb, resource, off| Need::new(Right::new(verb, "", resource), off);
    let mut all = vec![
        core("list", "services", "neither Services nor Nodes are looked after"),
        core("watch", "services", "new and changed Services are not noticed"),
        core("list", "nodes", "neither Services nor Nodes are looked after"),
        core("watch", "nodes", "new and changed Nodes are not noticed"),
        Need::new(CREATE_EVENTS, "what Events would say is in the log alone"),
        Need::new(PATCH_EVENTS, "Events that come again are not counted"),
    ];
    if settings.services {
        all.push(core("get", "services", "load balancers whose Service is gone are not reported"));
        all.push(core("patch", "services", "no Service gets a load balancer, and deleted ones stay"));
        let status = Right::new("patch", "", "services").on("status");
        all.push(Need::new(
            status,
            "Services on the data path host show no address, and deleted ones that show one stay",
        ));
        let off = [
            "the interfaces of networks come from the VMs alone",
            "the interfaces of networks come from the VMs alone",
            "Rancher offers no networks",
            "the networks that Rancher offers stay as they were",
        ];
        all.extend(networks::rights().into_iter().zip(off).map(|(right, off)| Need::new(right, off)));
    }
    if settings.nodes.initialise || settings.nodes.follow_topology || settings.node_lifecycle {
        all.push(core(
            "patch",
            "nodes",
            "Nodes get no provider ID, label or taint, and keep the taint of a new one",
        ));
    }
    if settings.nodes.initialise {
        let status = Right::new("patch", "", "nodes").on("status");
        all.push(Need::new(status, "Nodes get no addresses, and new ones keep their taint"));
    }
    if settings.node_lifecycle {
        all.push(Need::new(DELETE_NODES, "Nodes of deleted VMs stay"));
    }
    if let Some(election) = &settings.election {
        let lease = |verb, off| {
            let right = Right::new(verb, "coordination.k8s.io", "leases").within(election.namespace.clone());
            // no rule can name what is to be created
            let right = if verb == "create" { right } else { right.named(election.name.clone()) };
            Need::new(right, off)
        };
        all.push(lease("get", "nobody leads, and nothing is done"));
        all.push(lease("create", "nobody leads where there is no Lease yet"));
        all.push(lease("update", "nobody leads for long"));
        all.push(lease("watch", "another leader begins some seconds late"));
    }
    if let Some(SecretName { namespace, name }) = rotated {
        for verb in ["get", "update"] {
            let right = Right::new(verb, "", "secrets").within(namespace.clone()).named(name.clone());
            all.push(Need::new(right, "the token of the cloud-config is not renewed"));
        }
    }
    Needs {
        cluster: "guest",
        role: format!("{GUEST_ROLE} of the guest cluster, or the Role beside it,"),
        all,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        AddressRules, ElectionSettings, TopologyLabels,
        cluster::GuestCluster,
        datapath::{AllowedDatapaths, Policy},
        load_balancers::ServiceSettings,
        requested::Aliases,
    };

    /// Everything is on.
    fn settings() -> Settings {
        Settings {
            rules: ServiceSettings {
                cluster: GuestCluster::new("blue"),
                namespace: "team-a".to_owned(),
                management_network: None,
                policy: Policy::Annotation,
                allowed: AllowedDatapaths::default(),
                restrict_sharing: false,
                aliases: Aliases::default(),
            },
            addresses: AddressRules::default(),
            topology: TopologyLabels::new(),
            election: Some(ElectionSettings::usual("first")),
            services: true,
            nodes: cloud_provider::Duties { initialise: true, follow_topology: true },
            node_lifecycle: true,
            host_names: true,
            service_workers: None,
            node_workers: 1,
        }
    }

    #[test]
    fn the_documents_say_what_is_off_without_each_right_in_the_guest() {
        let rotated =
            SecretName { namespace: "kube-system".into(), name: "harvester-cloud-provider-rotated".into() };
        let needs = in_guest(&settings(), Some(&rotated)).all;
        let row = |need: &Need| (need.right.verb, need.right.kind(), need.off);
        test_cluster::grants::assert_documented(needs.iter().map(row));
    }

    #[test]
    fn who_has_a_duty_switched_off_asks_for_no_right_of_it() {
        let none = Settings {
            services: false,
            nodes: cloud_provider::Duties { initialise: false, follow_topology: false },
            node_lifecycle: false,
            host_names: false,
            election: None,
            ..settings()
        };
        let texts =
            |needs: Needs| needs.rights().iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let guest = "list services, watch services, list nodes, watch nodes, create events, patch events";
        assert_eq!(texts(in_guest(&none, None)), guest);
        let harvester = texts(in_harvester(&none));
        let is_there = |verb: &str| harvester.contains(&format!("{verb} loadbalancers."));
        assert!(is_there("list") && !is_there("create") && !harvester.contains("guestosinfo"), "{harvester}");
    }

    #[test]
    fn the_right_to_ask_guest_agents_is_in_the_table() {
        assert!(in_harvester(&settings()).rights().contains(&guest_vms::host_name_right("team-a")));
    }
}
