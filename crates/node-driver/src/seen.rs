//! The objects that a wait has seen: the VM, its instance, and later the objects that may show why it takes long.

use harvester_api::{VirtualMachine, VirtualMachineInstance};
use jiff::Timestamp;
use kube::{Resource, ResourceExt, api::DynamicObject};

use crate::harvester::follow::Change;

/// Objects of one kind. `None` until the first list, and where the credential may not read them.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Objects<K>(Option<Vec<K>>);

impl<K> Default for Objects<K> {
    fn default() -> Self {
        Self(None)
    }
}

impl<K: Resource> Objects<K> {
    /// Exactly these.
    #[cfg(test)]
    pub(crate) fn these(objects: Vec<K>) -> Self {
        Self(Some(objects))
    }

    /// Whether all of them are known.
    pub(crate) fn known(&self) -> bool {
        self.0.is_some()
    }

    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = &K> {
        self.0.iter().flatten()
    }

    fn apply(&mut self, change: Change<K>) -> Option<String> {
        match change {
            Change::Replaced(objects) => self.0 = Some(objects),
            Change::Applied(object) => {
                let objects = self.0.get_or_insert_default();
                match objects.iter_mut().find(|known| known.name_any() == object.name_any()) {
                    Some(known) => *known = object,
                    None => objects.push(object),
                }
            }
            Change::Deleted(object) => {
                let objects = self.0.get_or_insert_default();
                objects.retain(|known| known.meta().uid != object.meta().uid);
            }
            Change::Forbidden => self.0 = None,
            Change::Failed(text) => return Some(text),
        }
        None
    }
}

/// Everything that a wait has seen so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// When the wait began. Older warnings are about an earlier VM of this name.
    pub since: Option<Timestamp>,
    pub vm: Objects<VirtualMachine>,
    pub instance: Objects<VirtualMachineInstance>,
    pub pods: Objects<DynamicObject>,
    pub claims: Objects<DynamicObject>,
    pub quotas: Objects<DynamicObject>,
    /// Warnings in the namespace.
    pub warnings: Objects<DynamicObject>,
    /// The error of the newest failed request, until the next change of the VM.
    pub error: Option<String>,
}

/// A change of one of the followed kinds.
#[derive(Clone, Debug)]
pub(crate) enum Update {
    Vm(Change<VirtualMachine>),
    Instance(Change<VirtualMachineInstance>),
    Pods(Change<DynamicObject>),
    Claim(Change<DynamicObject>),
    Quotas(Change<DynamicObject>),
    Warnings(Change<DynamicObject>),
}

impl Seen {
    /// Applies a change.
    pub(crate) fn apply(&mut self, update: Update) {
        let error = match update {
            Update::Vm(change) => {
                let error = self.vm.apply(change);
                self.error = None;
                error
            }
            Update::Instance(change) => self.instance.apply(change),
            Update::Pods(change) => return drop(self.pods.apply(change)),
            // each claim is followed by itself, so all of one are not all
            Update::Claim(Change::Replaced(claims)) => {
                for claim in claims {
                    self.claims.apply(Change::Applied(claim));
                }
                return;
            }
            Update::Claim(Change::Forbidden) => return,
            Update::Claim(change) => return drop(self.claims.apply(change)),
            Update::Quotas(change) => return drop(self.quotas.apply(change)),
            Update::Warnings(change) => return drop(self.warnings.apply(change)),
        };
        if error.is_some() {
            self.error = error;
        }
    }

    /// The VM, if there is one.
    pub(crate) fn vm(&self) -> Option<&VirtualMachine> {
        self.vm.iter().next()
    }

    /// Its instance, if there is one.
    pub(crate) fn instance(&self) -> Option<&VirtualMachineInstance> {
        self.instance.iter().next()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn vm(uid: &str) -> VirtualMachine {
        serde_json::from_value(json!({"metadata": {"name": "demo-1", "uid": uid}, "spec": {}})).unwrap()
    }

    #[test]
    fn news_change_what_is_known() {
        let mut seen = Seen::default();
        assert!(!seen.vm.known());
        seen.apply(Update::Vm(Change::Replaced(vec![])));
        assert!(seen.vm.known() && seen.vm().is_none());
        seen.apply(Update::Vm(Change::Applied(vm("a"))));
        seen.apply(Update::Vm(Change::Deleted(vm("older"))));
        assert_eq!(seen.vm().unwrap().uid().as_deref(), Some("a"), "the end of another one changes nothing");
        seen.apply(Update::Vm(Change::Deleted(vm("a"))));
        assert!(seen.vm().is_none() && seen.vm.known());
    }

    #[test]
    fn trouble_lasts_until_the_vm_is_heard_of_again() {
        let mut seen = Seen::default();
        seen.apply(Update::Vm(Change::Failed("no route".into())));
        assert_eq!(seen.error.as_deref(), Some("no route"));
        seen.apply(Update::Warnings(Change::Failed("x".into())));
        assert_eq!(seen.error.as_deref(), Some("no route"), "what may be refused makes no trouble");
        seen.apply(Update::Vm(Change::Applied(vm("a"))));
        assert_eq!(seen.error, None);
    }
}
