//! Services that share one address: a primary, which has an object, and secondaries, which have none
//! (docs/contract/cloud-controller-manager.md#12.4). This part reads the caches and keeps nothing of its own that they do
//! not say; `decide/sharing` decides.

mod chain;
mod former;
mod group;
mod groups;
mod index;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use cloud_provider::LoadBalancers;
use controller_kit::{Change, Explanation, ObjectKey, RawObject};
use harvester_api::{LoadBalancer, annotations, names::DHCP_ADDRESS};
use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;

use self::{
    chain::{Chain, admits, follow},
    group::{Claim, Group, Member, admit},
};
pub(super) use self::{
    groups::Groups,
    index::{Index, is_marked, label, label_value, normal},
};
use super::{
    Found, HarvesterLoadBalancers,
    decide::{
        allocated,
        families::{listed, of_secondary, same, served},
        ingress, is_leased, is_taken_back, leased,
        requested::{is_met, is_withheld},
        settled,
        sharing::{Held, Primary, Secondaries, Sharing, given},
        status_address, {hinders_sharing, was_announced_in_guest},
    },
    lookup::{AddressInUse, labelled_service},
    object::{listeners_of_secondary, secondaries_in, secondary_prefix},
};
use crate::{
    datapath::{Datapath, choose},
    requested::Asked,
    service_config::{ServiceConfig, ports},
};

impl HarvesterLoadBalancers {
    /// The part in sharing of a Service that wants a load balancer.
    pub(super) fn sharing_of(&self, service: &Service) -> Sharing {
        let sharing = match self.chain(service) {
            Chain::Own => Sharing::Own,
            Chain::Waits(why) => Sharing::Waits(why),
            Chain::Refused(fault) => Sharing::Refused { fault, revoked: false },
            Chain::Ends(primary) => self.share(service, &primary),
        };
        match sharing {
            Sharing::Waits(_) | Sharing::Refused { revoked: false, .. } => {
                self.revoked(service).unwrap_or(sharing)
            }
            Sharing::Own | Sharing::With(_) | Sharing::Refused { revoked: true, .. } => sharing,
        }
    }

    /// For a Service that may no longer use the address that its label names, whatever it asks for now.
    fn revoked(&self, service: &Service) -> Option<Sharing> {
        let primary = self.shared.labelled(label(service)?).and_then(|key| self.services.get(&key))?;
        let found = self.load_balancer(&self.key(&primary));
        let group = self.group(&primary, found.object()?);
        let fault = group.refused.get(&ObjectKey::of(service))?.clone();
        Some(Sharing::Refused { fault: Some(fault), revoked: true })
    }

    fn chain(&self, service: &Service) -> Chain {
        let is_served = |service: &Service| {
            let class = service.spec.as_ref().and_then(|spec| spec.load_balancer_class.as_deref());
            class.is_none_or(|class| Some(class) == self.class())
        };
        follow(service, |key| self.services.get(key), is_served)
    }

    fn share(&self, service: &Service, primary: &Service) -> Sharing {
        let key = ObjectKey::of(primary);
        let missing = |what: &str| {
            Sharing::Waits(format!("service {key}, whose address it asks for, has no {what} yet"))
        };
        let found = self.load_balancer(&self.key(primary));
        let Some(object) = found.object().filter(|object| object.metadata.deletion_timestamp.is_none())
        else {
            return missing("load balancer");
        };
        let asking = ObjectKey::of(service);
        if let Some(fault) = self.group(primary, object).refused.get(&asking) {
            return Sharing::Refused { fault: Some(fault.clone()), revoked: uses(service, &key) };
        }
        let path = Datapath::of_object(&object.spec);
        let address = address_to_share(primary, object).filter(|_| !self.is_withheld(primary, object));
        // on the host datapath the label comes before the address, for a Service that has nothing to lose by it
        let has_it = || uses(service, &key) && !self.is_leaving(service) && !self.shows_own(service);
        let loses = !ingress(service).is_empty() && !has_it();
        let address = address.filter(|_| !loses || !is_taken_back(Some(object)));
        if (path == Datapath::Guest || loses) && address.is_none() {
            return missing("address");
        }
        let address = match address.map(|address| of_secondary(service, &address, uses(service, &key))) {
            None => None,
            Some(Ok(address)) => Some(address),
            Some(Err(families)) => return missing(&format!("{families} address")),
        };
        let carries = listeners_of_secondary(service)
            .is_ok_and(|wanted| wanted.iter().all(|listener| object.spec.listeners.contains(listener)));
        Sharing::With(Primary {
            path,
            address,
            network: object.annotations().get(annotations::LB_NETWORK_REQUEST).cloned(),
            carries,
            taken_back: is_taken_back(Some(object)),
            service: key,
        })
    }

    /// All that use the address of this primary or ask for it. `object`: the primary's.
    fn group(&self, primary: &Service, object: &LoadBalancer) -> Arc<Group> {
        self.groups.get(&ObjectKey::of(primary), || self.group_now(primary, object))
    }

    fn group_now(&self, primary: &Service, object: &LoadBalancer) -> Group {
        let key = ObjectKey::of(primary);
        let path = Datapath::of_object(&object.spec);
        let mut keys = self.shared.group(&key);
        keys.extend(self.shared.showing(&addresses_of(primary, Some(object))));
        keys.remove(&key);
        let members = keys.iter().filter_map(|key| self.services.get(key)).filter(|it| self.is_wanted(it));
        let members = members.filter_map(|service| {
            let claim = self.claim(&service, primary, object)?;
            let fault = self.unfit(primary, object, path, &service, claim);
            Some(Member { service, claim, fault })
        });
        admit(primary, members.collect(), path == Datapath::Host)
    }

    fn claim(&self, service: &Service, primary: &Service, object: &LoadBalancer) -> Option<Claim> {
        let key = ObjectKey::of(primary);
        let shows = shows_address_of(service, primary, Some(object));
        if uses(service, &key) {
            return Some(if shows { Claim::Shown } else { Claim::Labelled });
        }
        // an address that was another's before may be in a status: nobody gets listeners by that
        let has_place = || match Datapath::of_object(&object.spec) {
            Datapath::Guest => true,
            Datapath::Host => secondaries_in(object).contains(&secondary_prefix(&ObjectKey::of(service))),
        };
        if shows && is_marked(service) && has_place() {
            return Some(Claim::Leaving);
        }
        self.asks(service, &key).then_some(Claim::Asked)
    }

    /// The Services whose objects have the address that the status of this one shows. An object whose labels somebody took
    /// off, until they are back, is found by its annotation.
    pub(super) fn owners(&self, service: &Service) -> BTreeSet<ObjectKey> {
        self.index.owners(&ingress(service), |uid| self.shared.of_uid(uid))
    }

    /// Whether the object of a primary that the Service leaves, and whose address its status shows, carries it still.
    fn is_leaving(&self, service: &Service) -> bool {
        if !is_marked(service) {
            return false;
        }
        let asking = ObjectKey::of(service);
        self.owners(service).iter().filter_map(|key| self.services.get(key)).any(|primary| {
            let found = self.load_balancer(&self.key(&primary));
            found.object().filter(|object| !is_taken_back(Some(object))).is_some_and(|object| {
                Datapath::of_object(&object.spec) == Datapath::Host
                    && self.group(&primary, object).has(&asking, Claim::Leaving)
            })
        })
    }

    /// Whether the status of a Service on the host datapath shows an address that neither itself has nor the primary that
    /// its label names: it had that of its former primary, and where it is not carried there any more ([`Self::is_leaving`])
    /// it leads to somebody else.
    fn shows_anothers(&self, service: &Service) -> bool {
        let own = self.load_balancer(&self.key(service));
        let is_on_host = settled(service, own.object()) == Some(Datapath::Host);
        if !is_marked(service) || !is_on_host || matches!(own, Found::Unlisted | Found::Unreadable(_)) {
            return false;
        }
        let primary = label(service).and_then(|value| self.services.get(&self.shared.labelled(value)?));
        let found = primary.as_ref().map(|primary| (primary, self.load_balancer(&self.key(primary))));
        let of_primary = found.iter().flat_map(|(primary, found)| {
            let object = found.object().map(|object| &**object);
            addresses_of(primary, object)
        });
        let of_own_object = own.object().into_iter().flat_map(|own| addresses_in(own));
        let all: Vec<_> = of_own_object.chain(of_primary).collect();
        ingress(service).iter().any(|shown| !all.iter().any(|ip| same(ip, shown)))
            && !self.nobody_has_what_it_shows(service, &own)
    }

    /// Why the Service whose address the status shows has no place for this one any more.
    fn refusal_of_former(&self, service: &Service) -> Option<Explanation> {
        let asking = ObjectKey::of(service);
        self.owners(service).iter().filter_map(|key| self.services.get(key)).find_map(|primary| {
            let found = self.load_balancer(&self.key(&primary));
            self.group(&primary, found.object()?).refused.get(&asking).cloned()
        })
    }

    /// The addresses of the Service's own object, while that stays and nothing takes its address back.
    fn own_addresses(&self, service: &Service) -> Vec<String> {
        let own = self.load_balancer(&self.key(service));
        staying(&own).into_iter().flat_map(|own| addresses_in(own)).map(str::to_owned).collect()
    }

    /// Whether the status of the Service shows an address that its own object has.
    fn shows_own(&self, service: &Service) -> bool {
        let own = self.own_addresses(service);
        ingress(service).iter().any(|shown| own.iter().any(|ip| same(ip, shown)))
    }

    /// Why the Service may not share the address of this primary, whatever its ports.
    fn unfit(
        &self,
        primary: &Service,
        object: &LoadBalancer,
        path: Datapath,
        service: &Service,
        claim: Claim,
    ) -> Option<Explanation> {
        let (key, namespace) = (ObjectKey::of(primary), service.namespace().unwrap_or_default());
        if !admits(primary, &namespace, self.rules.restrict_sharing) {
            let sentence = format!(
                "service {key} shares its address only with its own namespace and those that its annotation {} lists: \
                 have {namespace} added there",
                annotations::ALLOW_SHARED_FROM
            );
            return Some(Explanation::new("SharingNotAllowed", sentence));
        }
        let config = ServiceConfig::with_aliases(service, self.rules.aliases);
        let hindered = if path == Datapath::Host { hinders_sharing(service, &config) } else { Vec::new() };
        if let Some(fault) = hindered.into_iter().next() {
            return Some(fault);
        }
        let own = self.load_balancer(&self.key(service));
        // the rest is settled for a Service that uses the address. But anybody may write the label: on another data path
        // an address of its own, or of its former primary, would be announced still when the object of that is gone
        let uses = claim != Claim::Asked;
        let is_live = |own: &&RawObject<LoadBalancer>| own.metadata.deletion_timestamp.is_none();
        let own_address = own.object().filter(is_live).map(|own| AddressInUse::of(own, service));
        let has_own = own_address.is_some_and(|own| own != AddressInUse::Not);
        let is_new = matches!(claim, Claim::Asked | Claim::Labelled);
        let announced = is_new && path == Datapath::Host && was_announced_in_guest(service);
        if uses && !announced && !(has_own && self.asks(service, &key)) {
            return None;
        }
        let choice = choose(self.rules.policy, self.rules.allowed, &config, settled(service, own.object()));
        if !uses && choice.refusal.is_some() {
            return choice.refusal;
        }
        if choice.path != path {
            let sentence = format!(
                "it is on the data path {}, and service {key}, whose address it asks for, on {}: create it anew with \
                 annotation {}: {}",
                choice.path.word(),
                path.word(),
                annotations::DATA_PATH,
                path.word()
            );
            return Some(Explanation::new("DataPathDiffers", sentence));
        }
        if announced {
            let sentence = "kube-vip in the guest has announced it and would announce the shared address too: create \
                it anew for the data path host";
            return Some(Explanation::new("AnnouncedInGuest", sentence));
        }
        if uses {
            return None;
        }
        let given = allocated(object);
        if let Asked::For(demand) = config.requested.demand
            && !given.is_empty()
            && !is_met(service, path, demand, &given)
        {
            let sentence = format!(
                "it demands {demand}, and service {key}, whose address it asks for, has another: remove annotation {} \
                 here",
                annotations::SERVICE_IP
            );
            return Some(Explanation::new("AddressDiffers", sentence));
        }
        let network = object.annotations().get(annotations::LB_NETWORK_REQUEST).map(String::as_str);
        let network = network.unwrap_or_default();
        (!config.network.is_empty() && config.network != network).then(|| {
            let sentence = format!(
                "the address of service {key} is on network {network:?}: remove annotation {} here",
                annotations::SERVICE_NETWORK
            );
            Explanation::new("NetworkDiffers", sentence)
        })
    }

    /// Whether the address of the object is another than the one that its Service demands.
    fn is_withheld(&self, service: &Service, object: &RawObject<LoadBalancer>) -> bool {
        let config = ServiceConfig::with_aliases(service, self.rules.aliases);
        is_withheld(service, &config, object)
    }

    /// The state of the address that the Service was given with its label.
    pub(super) fn held_by(&self, service: &Service) -> Held {
        if self.is_leaving(service) {
            return Held::Former;
        }
        if self.shows_anothers(service) {
            return match self.refusal_of_former(service) {
                Some(fault) => Held::Refused(fault),
                // one that cannot be read may be that of its former primary
                None if !self.objects.malformed().is_empty() => Held::Former,
                None => Held::Lost,
            };
        }
        let Some(value) = label(service) else { return Held::Nothing };
        let primary = self.shared.labelled(value).and_then(|key| self.services.get(&key));
        let Some(primary) = primary else { return Held::Lost };
        let namespace = service.namespace().unwrap_or_default();
        // anybody may write the label
        if !admits(&primary, &namespace, self.rules.restrict_sharing) {
            return Held::Lost;
        }
        let found = self.load_balancer(&self.key(&primary));
        let then = given(service);
        // its record alone says that the primary lost the address
        let asked = primary.annotations().get(annotations::KUBE_VIP_LOADBALANCER_IPS);
        // without an address now, the former one may be anybody's, unless the primary too goes on with it
        let goes_on = || {
            then.as_ref()
                .is_none_or(|then| asked.is_some_and(|asked| asked == DHCP_ADDRESS || is_within(then, asked)))
        };
        let asking = ObjectKey::of(service);
        let is_valid = match &found {
            Found::Absent => self.is_wanted(&primary) && goes_on(),
            Found::Unlisted | Found::Unreadable(_) => true,
            Found::Present(object) if is_taken_back(Some(object)) => false,
            Found::Present(object) if let Some(fault) = self.group(&primary, object).refused.get(&asking) => {
                return Held::Refused(fault.clone());
            }
            Found::Present(object) => match Datapath::of_object(&object.spec) {
                Datapath::Host => {
                    let shown = ingress(service);
                    shown.is_empty() || status_address(object).is_none_or(|now| shown.contains(&now))
                }
                Datapath::Guest => {
                    let now = guest_address(&primary, object).filter(|_| !self.is_withheld(&primary, object));
                    match (now, &then) {
                        (None, _) => goes_on(),
                        (Some(_), None) => true,
                        (Some(now), Some(then)) if is_within(then, &now) => return Held::Proven,
                        (Some(_), Some(_)) => false,
                    }
                }
            },
        };
        if is_valid { Held::Valid } else { Held::Lost }
    }

    /// The Services that use the address of this one. `found`: its object.
    pub(super) fn secondaries_of(&self, primary: &Service, found: &Found) -> Secondaries {
        let key = ObjectKey::of(primary);
        let users = self.shared.users(&key);
        let mut all: Vec<_> = users.iter().cloned().collect();
        // Services that go and use each other's addresses would wait for each other for ever
        let ring = if self.is_wanted(primary) { BTreeSet::new() } else { self.shared.ring(&key) };
        all.retain(|user| {
            let Some(service) = self.services.get(user) else { return false };
            let namespace = service.namespace().unwrap_or_default();
            let is_admitted = admits(primary, &namespace, self.rules.restrict_sharing);
            let is_wanted = self.is_wanted(&service);
            // anybody may write the label, and a Service that we do not serve keeps it
            is_wanted && is_admitted
                || (is_wanted || !ring.contains(user))
                    && has_address_of(&service, is_admitted, primary, found.object())
        });
        all.extend(found.object().into_iter().flat_map(|object| self.former_users(primary, object, &users)));
        let object = found.object().filter(|object| Datapath::of_object(&object.spec) == Datapath::Host);
        let carried = match object.filter(|_| !all.is_empty()) {
            None => Vec::new(),
            Some(object) => {
                let group = self.group(primary, object);
                // one that came too late to get the address, or asks for it no more, does not keep it for nothing
                let is_carried = |member: &&Member| match member.claim {
                    Claim::Shown | Claim::Leaving => true,
                    Claim::Labelled => self.asks(&member.service, &key),
                    Claim::Asked => false,
                };
                let carried = group.admitted.iter().filter(is_carried);
                let mut carried: Vec<_> = carried.map(|member| member.service.clone()).collect();
                carried.sort_by_cached_key(|service| ObjectKey::of(&**service));
                carried
            }
        };
        let shows = |service: &Service| {
            let object = found.object().map(|object| &**object);
            self.is_wanted(service) && shows_address_of(service, primary, object)
        };
        let shown = all.iter().filter_map(|user| self.services.get(user)).any(|user| shows(&user));
        Secondaries { all, carried, shown }
    }

    /// Whether the Service asks for the address of this primary, which may give it.
    fn asks(&self, service: &Service, primary: &ObjectKey) -> bool {
        matches!(self.chain(service), Chain::Ends(end) if ObjectKey::of(&*end) == *primary)
    }

    /// Whether the object of another Service has listeners for the ports of this one as for those of a secondary. That
    /// Service takes them away; from an object without Service nobody does.
    pub(super) fn is_carried(&self, service: &Service) -> bool {
        if !is_marked(service) {
            return false;
        }
        let prefix = secondary_prefix(&ObjectKey::of(service));
        let carriers = self.index.carriers(&prefix).into_iter().map(|name| self.key_of(&name));
        let by_primary = carriers.flat_map(|key| {
            let primaries = self.carrying(&key, &prefix);
            primaries.into_iter().map(move |primary| (primary, key.clone()))
        });
        is_any_own(by_primary, |primary| self.services.get(primary).map(|primary| self.key(&primary)))
    }

    /// The Services that the labels and the annotation of this object name, if the object has listeners of this prefix for
    /// another one.
    fn carrying(&self, object: &ObjectKey, prefix: &str) -> Vec<ObjectKey> {
        // on the guest datapath listeners are none of ours, and nobody takes them away
        let object = self.objects.get(object);
        let Some(object) = object.filter(|object| Datapath::of_object(&object.spec) == Datapath::Host) else {
            return Vec::new();
        };
        let carries = |key: &ObjectKey| {
            let Some(primary) = self.services.get(key) else { return false };
            // a user may name a port like the listener of a secondary
            let is_own =
                |listener: &str| ports(&primary).iter().any(|it| it.name.as_deref() == Some(listener));
            object.spec.listeners.iter().any(|it| it.name.starts_with(prefix) && !is_own(&it.name))
        };
        let annotated = object.annotations().get(annotations::SERVICE_UID);
        let annotated = annotated.and_then(|uid| self.shared.of_uid(uid));
        labelled_service(&object).into_iter().chain(annotated).filter(carries).collect()
    }
}

/// Whether one of the objects is the own one of the Service that it is paired with. `own` looks at all that say so:
/// a neighbour in the namespace may label any number of objects, so it is asked once for each Service.
fn is_any_own(
    objects: impl Iterator<Item = (ObjectKey, ObjectKey)>,
    own: impl Fn(&ObjectKey) -> Option<ObjectKey>,
) -> bool {
    let mut by_service: BTreeMap<ObjectKey, BTreeSet<ObjectKey>> = BTreeMap::new();
    for (service, object) in objects {
        by_service.entry(service).or_default().insert(object);
    }
    by_service.iter().any(|(service, objects)| own(service).is_some_and(|own| objects.contains(&own)))
}

/// Whether the Service has the label of a Service that was given the address of this one.
fn uses(service: &Service, primary: &ObjectKey) -> bool {
    label(service) == Some(&label_value(primary))
}

/// Whether the status of the Service, or the record of what it was given, names an address of the primary. `object`: the
/// primary's; while it is not known that may be any. Who writes the Service writes the record too, so that of one that is
/// not admitted proves nothing; its status does.
fn has_address_of(
    service: &Service,
    is_admitted: bool,
    primary: &Service,
    object: Option<&RawObject<LoadBalancer>>,
) -> bool {
    let shown = ingress(service);
    let Some(object) = object else { return is_admitted || !shown.is_empty() };
    let keys = [annotations::KUBE_VIP_LOADBALANCER_IPS, annotations::ALLOCATED_ADDRESS];
    let records = keys.into_iter().filter(|_| is_admitted).filter_map(|key| service.annotations().get(key));
    let mut of_service = records.flat_map(|ips| listed(ips)).chain(shown).filter(|ip| *ip != DHCP_ADDRESS);
    let of_primary = addresses_of(primary, Some(object));
    of_service.any(|ip| of_primary.iter().any(|of_primary| same(ip, of_primary)))
}

/// Whether the status of the Service shows an address of the primary. No author of a Service writes its status. `object`:
/// the primary's.
fn shows_address_of(service: &Service, primary: &Service, object: Option<&LoadBalancer>) -> bool {
    let of_primary = addresses_of(primary, object);
    ingress(service).iter().any(|ip| of_primary.iter().any(|of_primary| same(ip, of_primary)))
}

fn addresses_of<'a>(primary: &'a Service, object: Option<&'a LoadBalancer>) -> Vec<&'a str> {
    object.into_iter().flat_map(addresses_in).chain(ingress(primary)).collect()
}

fn addresses_in(object: &LoadBalancer) -> impl Iterator<Item = &str> {
    allocated(object).into_iter().chain(status_address(object))
}

/// The object, while it stays and nothing takes its address back.
fn staying(found: &Found) -> Option<&RawObject<LoadBalancer>> {
    found.object().filter(|it| it.metadata.deletion_timestamp.is_none() && !is_taken_back(Some(it)))
}

/// Whether all these addresses are still the primary's.
fn is_within(then: &str, now: &str) -> bool {
    listed(then).all(|then| listed(now).any(|now| same(then, now)))
}

/// The address by which those that share it are reached, once it is known.
fn address_to_share(primary: &Service, object: &LoadBalancer) -> Option<String> {
    match Datapath::of_object(&object.spec) {
        Datapath::Guest => guest_address(primary, object),
        Datapath::Host => status_address(object).map(str::to_owned),
    }
}

/// The address for kube-vip in the guest, once it is known. Of a lease only kube-vip knows the address: it writes it to
/// the status of the primary.
fn guest_address(primary: &Service, object: &LoadBalancer) -> Option<String> {
    // one that waits for the interface of its network is not announced
    let text = |of: &BTreeMap<String, String>, key: &str| of.get(key).is_some_and(|text| !text.is_empty());
    if text(object.annotations(), annotations::LB_NETWORK_REQUEST)
        && !text(primary.annotations(), annotations::KUBE_VIP_LOADBALANCER_IPS)
    {
        return None;
    }
    let address = match is_leased(object) {
        true => leased(primary).into_iter().next().map(str::to_owned),
        false => Some(served(primary, object).join(",")),
    };
    address.filter(|address| !address.is_empty())
}

/// Other Services whose decision reads the Service of this name, also when it is gone.
pub(super) fn related(index: &Index, key: &ObjectKey, service: Option<Arc<Service>>) -> BTreeSet<ObjectKey> {
    service.map_or_else(|| index.group(key), |service| index.related(&service))
}

/// The Services that use the address of an object that changed, or leave it: its own Service may have left it before them.
pub(super) fn showing(index: &Index, change: &Change<RawObject<LoadBalancer>>) -> BTreeSet<ObjectKey> {
    let versions = [&change.old, &change.new];
    let addresses: Vec<_> = versions.into_iter().flatten().flat_map(|object| addresses_in(object)).collect();
    index.showing(&addresses)
}

/// The Services whose listeners went from an object with this change.
pub(super) fn let_go(index: &Index, change: &Change<RawObject<LoadBalancer>>) -> Vec<ObjectKey> {
    let [old, new] = [&change.old, &change.new]
        .map(|object| object.as_ref().map(|object| secondaries_in(object)).unwrap_or_default());
    old.difference(&new).filter_map(|prefix| index.secondary(prefix)).collect()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// A neighbour in the namespace labels any number of objects for one Service.
    #[test]
    fn the_own_object_of_a_service_is_looked_for_once_among_all_that_are_labelled_for_it() {
        let object = |number: usize| ObjectKey::new("team-a", format!("object-{number:04}"));
        let (web, looks) = (ObjectKey::new("shop", "web"), Cell::new(0));
        let is_any_own = |count: usize, own: usize| {
            let labelled = (0..count).map(|number| (web.clone(), object(number)));
            is_any_own(labelled, |_| {
                looks.set(looks.get() + 1);
                Some(object(own))
            })
        };
        assert_eq!((is_any_own(2000, 1999), looks.take()), (true, 1));
        assert_eq!((is_any_own(2000, 2000), looks.take()), (false, 1));
        assert_eq!((is_any_own(0, 0), looks.take()), (false, 0));
    }
}
