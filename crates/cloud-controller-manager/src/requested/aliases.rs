//! Annotations of MetalLB and Cilium that ask for an address or a pool.

use controller_kit::PendingEvent;
use harvester_api::annotations;
use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;

use super::shown;

/// `--annotation-aliases`: the programs whose annotations are read like ours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Aliases {
    pub metallb: bool,
    pub cilium: bool,
}

/// The newer key of a program first.
const METALLB_ADDRESS: [&str; 2] = ["metallb.io/loadBalancerIPs", "metallb.universe.tf/loadBalancerIPs"];
const METALLB_POOL: [&str; 2] = ["metallb.io/address-pool", "metallb.universe.tf/address-pool"];
const METALLB_SHARING: [&str; 2] = ["metallb.io/allow-shared-ip", "metallb.universe.tf/allow-shared-ip"];
const CILIUM_ADDRESS: [&str; 2] = ["lbipam.cilium.io/ips", "io.cilium/lb-ipam-ips"];
const CILIUM_SHARING: [&str; 2] = ["lbipam.cilium.io/sharing-key", "io.cilium/lb-ipam-sharing-key"];

impl Aliases {
    fn chosen(self, metallb: [&'static str; 2], cilium: [&'static str; 2]) -> Vec<&'static str> {
        let metallb = metallb.into_iter().filter(|_| self.metallb);
        metallb.chain(cilium.into_iter().filter(|_| self.cilium)).collect()
    }

    /// Keys that demand an address. Those programs give a Service no other.
    pub(super) fn address_keys(self) -> Vec<&'static str> {
        self.chosen(METALLB_ADDRESS, CILIUM_ADDRESS)
    }

    /// Keys that name a pool. Cilium's pools choose Services, not the reverse.
    pub(super) fn pool_keys(self) -> Vec<&'static str> {
        METALLB_POOL.into_iter().filter(|_| self.metallb).collect()
    }

    /// Those programs share an address among all Services with one key; here a secondary names its primary.
    pub(super) fn without_effect(self, service: &Service) -> Option<PendingEvent> {
        let keys = self.chosen(METALLB_SHARING, CILIUM_SHARING);
        let there: Vec<_> = keys.into_iter().filter(|key| service.annotations().contains_key(*key)).collect();
        (!there.is_empty()).then(|| {
            let sentence = format!(
                "a key for sharing has no effect ({}): name the Service whose address this one shares in annotation {}",
                there.join(", "),
                annotations::PRIMARY_SERVICE
            );
            PendingEvent::warning("AnnotationHasNoEffect", sentence)
        })
    }
}

/// An annotation that counts.
pub(super) struct Given<'a> {
    pub(super) key: &'static str,
    pub(super) text: &'a str,
}

/// The first of these keys that has a value: ours wins. Tells of others that say something else.
pub(super) fn given<'a>(
    service: &'a Service,
    own: &'static str,
    aliases: Vec<&'static str>,
    events: &mut Vec<PendingEvent>,
) -> Option<Given<'a>> {
    let annotations = service.annotations();
    let found = |key: &'static str| {
        let text = annotations.get(key)?.trim();
        // an empty one is none (docs/contract/cloud-controller-manager.md#L18)
        (!text.is_empty()).then_some(Given { key, text })
    };
    let mut all = [own].into_iter().chain(aliases).filter_map(found);
    let first = all.next()?;
    for other in all.filter(|other| other.text != first.text) {
        let sentence = format!(
            "annotation {} is {:?}, and {} says otherwise and counts: remove one of the two",
            other.key,
            shown(other.text),
            first.key
        );
        events.push(PendingEvent::warning("AnnotationHasNoEffect", sentence));
    }
    Some(first)
}
