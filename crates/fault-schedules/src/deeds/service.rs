//! The Services that users make.

use harvester_api::annotations::{
    HEALTH_CHECK_FAILURE_THRESHOLD, HEALTH_CHECK_PORT, HEALTH_CHECK_SUCCESS_THRESHOLD, IPAM,
};
use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt as _;
use serde_json::{Value, json};

/// Who carries a Service's traffic, and where its address comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kind {
    /// Harvester, not the guest.
    pub(crate) on_host: bool,
    /// From a DHCP server, not from a pool.
    pub(crate) leased: bool,
}

impl Kind {
    pub(crate) fn drawn(random: &mut fastrand::Rng) -> Self {
        Self { on_host: random.bool(), leased: random.u8(..4) == 0 }
    }

    /// What a Service asks for.
    pub(crate) fn asked_by(service: &Service) -> Self {
        let annotations = service.annotations();
        Self {
            on_host: annotations.contains_key(HEALTH_CHECK_PORT),
            leased: annotations.get(IPAM).is_some_and(|ipam| ipam == "dhcp"),
        }
    }

    fn annotations(self) -> Value {
        let mut annotations = json!({IPAM: if self.leased { "dhcp" } else { "pool" }});
        if self.on_host {
            annotations[HEALTH_CHECK_PORT] = "80".into();
            annotations[HEALTH_CHECK_SUCCESS_THRESHOLD] = "2".into();
            annotations[HEALTH_CHECK_FAILURE_THRESHOLD] = "2".into();
        }
        annotations
    }
}

pub(super) fn key(index: usize) -> String {
    format!("shop/web-{index}")
}

pub(super) fn of(index: usize, kind: Kind) -> Service {
    let service = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": format!("web-{index}"), "namespace": "shop", "annotations": kind.annotations()},
        "spec": {"type": "LoadBalancer", "selector": {"app": "web"}, "ports": [{"name": "http", "port": 80}]},
    });
    serde_json::from_value(service).expect("this is a Service")
}
