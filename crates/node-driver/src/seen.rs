//! What a wait knows of the world: the VM, its instance, and, once it does not get on, what else might say why.

use harvester_api::{VirtualMachine, VirtualMachineInstance};
use jiff::Timestamp;
use kube::{Resource, ResourceExt, api::DynamicObject};

use crate::host::follow::News;

/// Objects of one kind. `None` until there was news of all of them, or where they may not be read.
#[derive(Clone, Debug, PartialEq)]
pub struct Objects<K>(Option<Vec<K>>);

impl<K> Default for Objects<K> {
    fn default() -> Self {
        Self(None)
    }
}

impl<K: Resource> Objects<K> {
    /// Exactly these.
    pub fn these(objects: Vec<K>) -> Self {
        Self(Some(objects))
    }

    /// Whether all of them are known.
    pub fn known(&self) -> bool {
        self.0.is_some()
    }

    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &K> {
        self.0.iter().flatten()
    }

    fn take(&mut self, news: News<K>) -> Option<String> {
        match news {
            News::All(objects) => self.0 = Some(objects),
            News::Present(object) => {
                let objects = self.0.get_or_insert_default();
                match objects.iter_mut().find(|known| known.name_any() == object.name_any()) {
                    Some(known) => *known = object,
                    None => objects.push(object),
                }
            }
            News::Gone(object) => {
                let objects = self.0.get_or_insert_default();
                objects.retain(|known| known.meta().uid != object.meta().uid);
            }
            News::Refused => self.0 = None,
            News::Trouble(text) => return Some(text),
        }
        None
    }
}

/// What a wait has seen so far.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// When the wait began: older warnings are of an earlier life of the machine.
    pub since: Option<Timestamp>,
    pub vm: Objects<VirtualMachine>,
    pub instance: Objects<VirtualMachineInstance>,
    pub pods: Objects<DynamicObject>,
    pub claims: Objects<DynamicObject>,
    pub quotas: Objects<DynamicObject>,
    /// Warnings in the namespace.
    pub warnings: Objects<DynamicObject>,
    /// The newest failure of a request, until the next news of the VM.
    pub trouble: Option<String>,
}

/// News of something.
#[derive(Clone, Debug)]
pub enum Heard {
    Vm(News<VirtualMachine>),
    Instance(News<VirtualMachineInstance>),
    Pods(News<DynamicObject>),
    Claim(News<DynamicObject>),
    Quotas(News<DynamicObject>),
    Warnings(News<DynamicObject>),
}

impl Seen {
    /// Takes news in.
    pub fn take(&mut self, heard: Heard) {
        let trouble = match heard {
            Heard::Vm(news) => {
                let trouble = self.vm.take(news);
                self.trouble = None;
                trouble
            }
            Heard::Instance(news) => self.instance.take(news),
            Heard::Pods(news) => return drop(self.pods.take(news)),
            // each claim is followed by itself, so all of one are not all
            Heard::Claim(News::All(claims)) => {
                for claim in claims {
                    self.claims.take(News::Present(claim));
                }
                return;
            }
            Heard::Claim(News::Refused) => return,
            Heard::Claim(news) => return drop(self.claims.take(news)),
            Heard::Quotas(news) => return drop(self.quotas.take(news)),
            Heard::Warnings(news) => return drop(self.warnings.take(news)),
        };
        if trouble.is_some() {
            self.trouble = trouble;
        }
    }

    /// The VM, if there is one.
    pub fn vm(&self) -> Option<&VirtualMachine> {
        self.vm.iter().next()
    }

    /// Its instance, if there is one.
    pub fn instance(&self) -> Option<&VirtualMachineInstance> {
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
        seen.take(Heard::Vm(News::All(vec![])));
        assert!(seen.vm.known() && seen.vm().is_none());
        seen.take(Heard::Vm(News::Present(vm("a"))));
        seen.take(Heard::Vm(News::Gone(vm("older"))));
        assert_eq!(seen.vm().unwrap().uid().as_deref(), Some("a"), "the end of another one changes nothing");
        seen.take(Heard::Vm(News::Gone(vm("a"))));
        assert!(seen.vm().is_none() && seen.vm.known());
    }

    #[test]
    fn trouble_lasts_until_the_vm_is_heard_of_again() {
        let mut seen = Seen::default();
        seen.take(Heard::Vm(News::Trouble("no route".into())));
        assert_eq!(seen.trouble.as_deref(), Some("no route"));
        seen.take(Heard::Warnings(News::Trouble("x".into())));
        assert_eq!(seen.trouble.as_deref(), Some("no route"), "what may be refused makes no trouble");
        seen.take(Heard::Vm(News::Present(vm("a"))));
        assert_eq!(seen.trouble, None);
    }
}
