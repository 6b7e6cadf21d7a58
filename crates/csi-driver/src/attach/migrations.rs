//! For how long this process believes an instance that it migrates. KubeVirt may leave the state of a migration open for good,
//! and no volume would come into the machine or leave it before it is restarted or migrates again.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use harvester_api::{VirtualMachineInstance, kubevirt::MigrationState};
use serde_json::Value;
use tokio::time::Instant;

use super::hotplug;

/// Longer than a migration takes that gets on.
pub const BELIEVED_FOR: Duration = Duration::from_secs(60 * 60);
/// More machines than one namespace has.
const MOST: usize = 4096;

/// The last migration of each machine that this process has seen under way.
#[derive(Default)]
pub(super) struct Migrations(Mutex<HashMap<String, Known>>);

struct Known {
    /// Its UID and its beginning.
    migration: [String; 2],
    /// By the clock of this process.
    since: Instant,
    is_told: bool,
}

impl Migrations {
    /// The instance, without the state of a migration that has been under way for too long.
    pub(super) fn believed(&self, mut vmi: Arc<VirtualMachineInstance>) -> Arc<VirtualMachineInstance> {
        let Some(migration) = hotplug::migration(&vmi).map(identity) else { return vmi };
        let name = vmi.metadata.name.clone().unwrap_or_default();
        let Some(is_first) = self.is_doubted(&name, &migration) else { return vmi };
        if is_first {
            tracing::warn!(
                "VirtualMachineInstance {}/{name} on the host has said for {} min that it migrates: its volumes come and go \
                 again",
                vmi.metadata.namespace.as_deref().unwrap_or_default(),
                BELIEVED_FOR.as_secs() / 60
            );
        }
        if let Some(status) = &mut Arc::make_mut(&mut vmi).status {
            status.migration_state = None;
        }
        vmi
    }

    /// Whether the migration is believed no more, and whether nobody was told of that yet.
    fn is_doubted(&self, name: &str, migration: &[String; 2]) -> Option<bool> {
        let mut all = self.0.lock().expect("no panic while the migrations are changed");
        if all.len() >= MOST && !all.contains_key(name) {
            // they count anew
            all.clear();
        }
        let new = || Known { migration: migration.clone(), since: Instant::now(), is_told: false };
        let known = all.entry(name.to_owned()).or_insert_with(new);
        if known.migration != *migration {
            *known = new();
        }
        (known.since.elapsed() >= BELIEVED_FOR).then(|| !std::mem::replace(&mut known.is_told, true))
    }
}

fn identity(state: &MigrationState) -> [String; 2] {
    ["migrationUid", "startTimestamp"]
        .map(|key| state.rest.get(key).and_then(Value::as_str).unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tokio::time::advance;

    use super::*;

    fn instance(name: &str, state: &Value) -> Arc<VirtualMachineInstance> {
        let json = json!({"metadata": {"name": name}, "spec": {},
            "status": {"phase": "Running", "migrationState": state}});
        Arc::new(serde_json::from_value(json).unwrap())
    }

    fn open(uid: &str, start: &str) -> Value {
        json!({"migrationUid": uid, "startTimestamp": start})
    }

    #[tokio::test(start_paused = true)]
    async fn a_migration_that_does_not_end_is_believed_for_an_hour() {
        let all = Migrations::default();
        let migrates = |state: Value| hotplug::migrates(&all.believed(instance("a", &state)));
        assert!(migrates(open("m1", "9:00")));
        advance(BELIEVED_FOR - Duration::from_secs(1)).await;
        assert!(migrates(open("m1", "9:00")));
        advance(Duration::from_secs(1)).await;
        assert!(!migrates(open("m1", "9:00")));
        assert!(migrates(open("m2", "9:00")), "another one");
        advance(BELIEVED_FOR).await;
        assert!(migrates(open("m2", "10:00")), "begun anew");
        assert!(!migrates(json!({"migrationUid": "m2"})));
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_is_doubted_is_told_once_and_of_many_machines_all_are_forgotten() {
        let all = Migrations::default();
        let doubted = |name: &str| all.is_doubted(name, &["m1".to_owned(), "9:00".to_owned()]);
        assert_eq!(doubted("a"), None);
        advance(BELIEVED_FOR).await;
        assert_eq!((doubted("a"), doubted("a")), (Some(true), Some(false)));
        for number in 0..MOST {
            assert_eq!(doubted(&format!("other-{number}")), None);
        }
        assert!(all.0.lock().unwrap().len() <= MOST);
        assert_eq!(doubted("a"), None, "it counts anew");
    }
}
