//! The Services that used an address and show it still, so that it is not given to others yet.

use std::collections::BTreeSet;

use controller_kit::ObjectKey;
use harvester_api::LoadBalancer;
use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;

use super::{
    Found, HarvesterLoadBalancers, address_to_share, addresses_in, allocated, ingress, is_leased, is_marked,
    label, listed, same, status_address, staying,
};

impl HarvesterLoadBalancers {
    /// Remembers what the status of a Service that shared once shows, where its own object has all of that, or nobody has it
    /// before another own object is made: a former process may have seen the one that gave it.
    pub(in crate::load_balancers) fn remember_own_object(&self, service: &Service, own: &Found) {
        let uid = service.uid().unwrap_or_default();
        if !is_marked(service) || label(service).is_some() {
            return self.statuses.forget_own_object(&uid);
        }
        let shown = ingress(service);
        let has: Vec<_> = own.object().into_iter().flat_map(|own| addresses_in(own)).collect();
        let has_all = || shown.iter().all(|shown| has.iter().any(|ip| same(ip, shown)));
        let is_gone = || matches!(own, Found::Absent) && self.nobody_has_what_it_shows(service, own);
        if !shown.is_empty() && (has_all() || is_gone()) {
            self.statuses.note_of_own_object(&uid, &shown);
        }
    }

    /// Whether nobody has what the status of a Service that shared once shows, and somebody may have deleted the own object
    /// that gave it: that is not there, or gave it before. The address goes then as that of a Service that never shared. With
    /// an object that never had it, it is of a former primary.
    pub(super) fn nobody_has_what_it_shows(&self, service: &Service, own: &Found) -> bool {
        if label(service).is_some()
            || !self.objects.malformed().is_empty()
            || !self.owners(service).is_empty()
        {
            return false;
        }
        let uid = service.uid().unwrap_or_default();
        matches!(own, Found::Absent) || self.statuses.is_of_own_object(&uid, &ingress(service))
    }

    /// The Services that used the address of this one and show it still. Their label goes with the write that gives them
    /// another address, which comes into the status later: so long the former one may be announced. No author of a
    /// Service writes its status. `users`: those that use it now.
    pub(super) fn former_users(
        &self,
        primary: &Service,
        object: &LoadBalancer,
        users: &BTreeSet<ObjectKey>,
    ) -> BTreeSet<ObjectKey> {
        let own: Vec<_> = allocated(object).into_iter().chain(status_address(object)).collect();
        let is_own = |ip: &&str| own.iter().any(|own| same(own, ip));
        // of Services that go and show each other's addresses, or have the label of one and the status of another, none
        // would ever go: only one that neither uses nor shows a foreign address waits for others that go (`ring` sees to
        // those that all have labels)
        let holds_nobody = label(primary).is_none() && ingress(primary).iter().all(is_own);
        let may_wait = self.is_wanted(primary) || holds_nobody;
        let mut former = self.shared.showing(&own);
        former.remove(&ObjectKey::of(primary));
        former.retain(|user| {
            let service = self.services.get(user).filter(|_| !users.contains(user));
            service.is_some_and(|service| {
                (may_wait || self.is_wanted(&service))
                    && !self.has_by_another(&service, &own, is_leased(object))
            })
        });
        former
    }

    /// Whether the Service shows none of these addresses but by an object of its own or by that of the primary that its
    /// label names: a lease that ended may be given to who used it, or to anybody whose address it uses now.
    ///
    /// `by_lease`: whether these addresses are of a lease. No DHCP server gives one of a pool, so a Service whose object is
    /// leased and that shows one still waits for its lease, and kube-vip may announce what it had before.
    fn has_by_another(&self, service: &Service, addresses: &[&str], by_lease: bool) -> bool {
        let counts = |object: &LoadBalancer| by_lease || !is_leased(object);
        let own = self.load_balancer(&self.key(service));
        let own = staying(&own).filter(|own| counts(own));
        let own: Vec<_> = own.into_iter().flat_map(|own| addresses_in(own)).collect();
        let (shared, shown) = (self.labelled_addresses(service, counts), ingress(service));
        let mut of_these = shown.iter().filter(|shown| addresses.iter().any(|address| same(address, shown)));
        of_these.all(|shown| own.iter().any(|ip| same(ip, shown)) || shared.iter().any(|ip| same(ip, shown)))
    }

    /// The addresses of the primary that the label names, while its object counts and stays and nothing takes them back.
    /// They are by its status where they are leased: the object of a primary says a former lease until somebody looks at it.
    fn labelled_addresses(&self, service: &Service, counts: impl Fn(&LoadBalancer) -> bool) -> Vec<String> {
        let primary = label(service).and_then(|value| self.services.get(&self.shared.labelled(value)?));
        let Some(primary) = primary else { return Vec::new() };
        let found = self.load_balancer(&self.key(&primary));
        let object = staying(&found).filter(|object| counts(object));
        let address = object.and_then(|object| address_to_share(&primary, object));
        address.iter().flat_map(|address| listed(address)).map(str::to_owned).collect()
    }
}
