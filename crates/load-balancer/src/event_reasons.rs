//! The reasons of the Events of the load balancer. Those of conditions that are no Events are in docs/messages.md.

use controller_kit::{EventReason, EventReasons};
use harvester_api::names;

use crate::{metrics::NOT_WRITTEN, status_reverted};

const BALANCER: &[&str] = &["LoadBalancer"];
const POOL: &[&str] = &["IPPool"];
const CONFIG_MAP: &[&str] = &["ConfigMap"];

/// The reasons that this crate gives.
pub const EVENT_REASONS: &[EventReasons] = &[EventReasons {
    component: names::LOAD_BALANCER_LEASE,
    reasons: &[
        EventReason::warning(
            "AddressLost",
            BALANCER,
            "a pool gives the address of the object to somebody else, so the object lets go of it",
            "none: the object asks for another one",
        ),
        EventReason::warning(
            "EditHasNoEffect",
            CONFIG_MAP,
            "a pool was edited in ConfigMap `kube-system/kubevip`, which was imported before",
            "edit the IPPool that the message names",
        ),
        EventReason::warning(
            "FormerVersionStored",
            &["CustomResourceDefinition"],
            "LoadBalancers may be stored as v1alpha1, which a later Harvester does not serve",
            "write each of them once, as the log of the webhook says",
        ),
        EventReason::warning(
            "ImportIncomplete",
            CONFIG_MAP,
            "entries of ConfigMap `kube-system/kubevip` were not imported",
            "make IPPools of them by hand",
        ),
        EventReason::warning(
            "ManualReleaseRefused",
            POOL,
            "the annotation `loadbalancer.harvesterhci.io/manuallyReleaseIP` released nothing",
            "correct it as the message says",
        ),
        EventReason::warning(
            NOT_WRITTEN,
            BALANCER,
            "the server refuses a write of the object, or a read without which the load balancer decides nothing about it",
            "change the rule, or grant the right, that the message names",
        ),
        EventReason::warning(
            "ServiceRefused",
            BALANCER,
            "the server refuses the write by which kube-vip hears that a Service ends",
            "change the Service as the message says",
        ),
        EventReason::warning(
            status_reverted::REASON,
            &["LoadBalancer", "IPPool"],
            "admission took an address or a record back that this program had written",
            "start the webhook with `--status-writer=<user of the load balancer>`",
        ),
        EventReason::warning(
            "TooManyListeners",
            BALANCER,
            "the object has more than 100 listeners; the Service that stands goes on serving",
            "spread the ports over several objects",
        ),
    ],
}];
