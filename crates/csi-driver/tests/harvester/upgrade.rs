//! A host that is upgraded from Harvester 1.7 to 1.8 under a process of the driver: its KubeVirt gets other gates, and its
//! role another right, in whatever order (docs/contract/csi-driver.md#ways).

use std::{sync::atomic::Ordering, time::Duration};

use kube::{
    Api,
    api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams},
};
use rstest::rstest;
use serde_json::json;
use tokio::time::sleep;

use super::{
    bed::{Bed, OLD},
    process::Process,
    replay::Replay,
    round::Deeds,
};

/// A part of the upgrade.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// KubeVirt has the gates of the new release: machines follow their templates. Its API is of the former one yet, which
    /// refuses every request then.
    Gates,
    /// The role grants to patch machines.
    Role,
    /// KubeVirt's API is of the new release: requests change the template.
    Api,
}

impl Bed {
    async fn takes(&self, step: Step) {
        match step {
            Step::Gates => {
                self.takes_requests.store(false, Ordering::Relaxed);
                self.is_of("v1.8.0").await;
            }
            Step::Role => self.may_patch.store(true, Ordering::Relaxed),
            Step::Api => self.takes_requests.store(true, Ordering::Relaxed),
        }
        // so that the simulation follows the Setting
        sleep(Duration::from_secs(1)).await;
    }

    async fn is_of(&self, version: &str) {
        let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("harvesterhci.io", "v1beta1", "Setting"));
        let settings: Api<DynamicObject> = Api::all_with(self.admin.clone(), &kind);
        let patch = Patch::Merge(json!({"value": version}));
        settings.patch("server-version", &PatchParams::default(), &patch).await.unwrap();
    }

    /// Whether disks can come and go at all.
    fn is_served(&self) -> bool {
        self.may_patch.load(Ordering::Relaxed) || self.takes_requests.load(Ordering::Relaxed)
    }

    fn was_never_in_two_machines(&self) {
        let replay = Replay::of(std::mem::take(&mut *self.states.lock().unwrap()));
        assert_eq!(replay.in_two_machines(), None);
    }
}

#[rstest]
#[case::role_before([Step::Role, Step::Gates, Step::Api])]
#[case::role_between([Step::Gates, Step::Role, Step::Api])]
#[case::role_after([Step::Gates, Step::Api, Step::Role])]
#[tokio::test(start_paused = true)]
async fn a_process_moves_its_volume_on_after_each_step_of_an_upgrade_of_its_host(#[case] steps: [Step; 3]) {
    let bed = Bed::new(OLD).await;
    let driver = Process::new(&bed, "first", 0, &Deeds::default());
    let (mut here, mut there) = ("a", "b");
    driver.call(true, here).await.unwrap();
    for step in steps {
        bed.takes(step).await;
        let left = driver.call(false, here).await;
        if !bed.is_served() {
            let refused = left.unwrap_err();
            assert!(refused.message().contains("cannot patch resource"), "{refused}");
            continue;
        }
        left.unwrap();
        driver.call(true, there).await.unwrap();
        assert_eq!(bed.with_volume().await, [there], "after {step:?}");
        (here, there) = (there, here);
    }
    driver.call(false, here).await.unwrap();
    assert_eq!((bed.with_volume().await, bed.annotation().await), (vec![], None));
    bed.was_never_in_two_machines();
    bed.tasks.end().await;
}

/// One process begins before the upgrade, and the other one takes the disk afterwards.
#[rstest]
#[tokio::test(start_paused = true)]
async fn a_disk_that_is_on_its_way_while_its_host_is_upgraded_arrives(
    #[values(true, false)] is_publish: bool,
) {
    let bed = Bed::new(OLD).await;
    let deeds = Deeds::default();
    let [driver, next] = ["first", "second"].map(|name| Process::new(&bed, name, 0, &deeds));
    if !is_publish {
        driver.call(true, "a").await.unwrap();
    }
    bed.plugs("a", "stuck").await;
    let upgrade = async {
        sleep(Duration::from_secs(3)).await;
        for step in [Step::Role, Step::Gates, Step::Api] {
            bed.takes(step).await;
        }
        bed.plugs("a", "ok").await;
    };
    let (answer, ()) = tokio::join!(driver.call(is_publish, "a"), upgrade);
    answer.unwrap();
    let expected: &[&str] = if is_publish { &["a"] } else { &[] };
    assert_eq!(bed.with_volume().await, expected);
    next.call(false, "a").await.unwrap();
    next.call(true, "b").await.unwrap();
    driver.call(false, "b").await.unwrap();
    bed.was_never_in_two_machines();
    bed.tasks.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_process_that_may_patch_machines_no_more_goes_on_by_requests() {
    let bed = Bed::new("v1.8.0").await;
    let driver = Process::new(&bed, "first", 0, &Deeds::default());
    driver.call(true, "a").await.unwrap();
    bed.may_patch.store(false, Ordering::Relaxed);
    driver.call(false, "a").await.unwrap();
    driver.call(true, "b").await.unwrap();
    assert_eq!(bed.with_volume().await, ["b"]);
    driver.call(false, "b").await.unwrap();
    bed.was_never_in_two_machines();
    bed.tasks.end().await;
}
