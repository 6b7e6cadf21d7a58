//! Each right that the roles grant, refused in turn.

use std::time::Duration;

use csi_driver::controller::ControllerService;
use program::TaskGroup;
use test_cluster::{TestCluster, User};
use tonic::{Code, Status};

use super::{
    bed::{Bed, Call, codes, process},
    roles::{grant, pieces},
};

/// Within so long after a grant everything works again.
const BACK_WITHIN: Duration = Duration::from_secs(60);

/// A call that has left something behind on the host says that it is under way.
const UNDER_WAY: [(&str, &str, Call); 2] = [
    ("create", "networkfilesystems", Call::CreateExport),
    ("patch", "persistentvolumeclaims", Call::RestoreBackup),
];
/// The first list of a watch may be enough.
const NOT_ASKED: [(&str, &str); 1] = [("watch", "networkfilesystems")];

/// The calls that are refused without a right. The rest goes on.
fn calls(verb: &str, resource: &str) -> &'static [Call] {
    match (verb, resource) {
        ("get", "persistentvolumeclaims") => &[
            Call::Create,
            Call::CreateOnDefault,
            Call::CreateExport,
            Call::Restore,
            Call::RestoreBackup,
            Call::Clone,
            Call::Delete,
            Call::DeleteExport,
            Call::DeleteRestored,
            Call::Publish,
            Call::PublishExport,
            Call::UnpublishExport,
            Call::Expand,
            Call::Get,
            Call::Snapshot,
            Call::Backup,
            Call::DeleteSnapshot,
            Call::DeleteBackup,
        ],
        ("list", "persistentvolumeclaims") => {
            &[Call::Delete, Call::DeleteExport, Call::DeleteRestored, Call::List, Call::DeleteSnapshot]
        }
        ("create", "persistentvolumeclaims") => {
            &[Call::Create, Call::CreateOnDefault, Call::CreateExport, Call::Restore, Call::Clone]
        }
        ("patch", "persistentvolumeclaims") => {
            &[Call::RestoreBackup, Call::Publish, Call::Unpublish, Call::Expand]
        }
        ("delete", "persistentvolumeclaims") => &[Call::Delete, Call::DeleteExport, Call::DeleteRestored],
        ("get", "virtualmachines" | "virtualmachineinstances") => &[Call::UnpublishExport],
        ("list", "virtualmachines") => {
            &[Call::DeleteRestored, Call::Publish, Call::Expand, Call::Get, Call::List]
        }
        ("list", "virtualmachineinstances") => &[Call::DeleteRestored, Call::Publish],
        // one that is not seen may be on
        ("get", "networkfilesystems") => &[Call::DeleteExport, Call::PublishExport],
        ("list" | "create", "networkfilesystems") => &[Call::CreateExport],
        ("patch", "networkfilesystems") => &[Call::PublishExport, Call::UnpublishExport],
        ("delete", "networkfilesystems") => &[Call::DeleteExport],
        ("get", "volumeremotebackups") => {
            &[Call::RestoreBackup, Call::Backup, Call::DeleteBackup, Call::GetBackup]
        }
        ("create", "volumeremotebackups") => &[Call::Backup],
        ("delete", "volumeremotebackups") => &[Call::DeleteBackup],
        ("get", "volumeremoterestores") => &[Call::RestoreBackup, Call::DeleteRestored],
        ("create", "volumeremoterestores") => &[Call::RestoreBackup],
        ("delete", "volumeremoterestores") => &[Call::DeleteRestored],
        ("get", "settings") | ("create", "volumesnapshots") => &[Call::Snapshot],
        ("get", "volumesnapshots") => {
            &[Call::Restore, Call::Snapshot, Call::DeleteSnapshot, Call::GetSnapshot]
        }
        ("delete", "volumesnapshots") => &[Call::DeleteSnapshot],
        _ => &[],
    }
}

fn expected(verb: &str, resource: &str) -> Vec<(Call, Code)> {
    let code = |call: &Call| match UNDER_WAY.contains(&(verb, resource, *call)) {
        true => Code::Unavailable,
        false => Code::PermissionDenied,
    };
    calls(verb, resource).iter().map(|call| (*call, code(call))).collect()
}

async fn check(cluster: &TestCluster, resources: &[&str]) {
    let bed = Bed::start(cluster, "v1.9.0").await;
    let all = pieces(cluster);
    let asked = all.iter().filter_map(|piece| Some((piece, piece.is_asked_for()?)));
    let mut wrong = vec![];
    for (piece, right) in asked.filter(|(piece, _)| resources.contains(&piece.resource.as_str())) {
        let (tasks, name) = (TaskGroup::new(), format!("{} {}", piece.verb, piece.resource));
        let service = process(cluster, cluster.harvester.client(User::CsiDriver), &tasks);
        let without: Vec<_> = all.iter().filter(|other| *other != piece).cloned().collect();
        grant(cluster, &without).await;
        let refused = bed.refused(&service).await;
        let (codes, expected) = (codes(&refused), expected(&piece.verb, &piece.resource));
        if codes != expected {
            wrong.push(format!("{name}: {codes:?}"));
        }
        let refusal = format!("cannot {} resource \"{}\"", piece.verb, piece.resource);
        for (call, status) in &refused {
            let text = status.message();
            let is_clear =
                text.contains(&refusal) && text.contains(right.role.name()) && !text.contains('\n');
            if !is_clear {
                wrong.push(format!("{name}: {call:?} says {text}"));
            }
        }
        cluster.advance(Duration::from_secs(5)).await;
        let told = bed.told().await;
        let is_told = match &*told {
            [only] => only.contains(&right.next_step()) && only.contains(&right.right("team-a").to_string()),
            none => none.is_empty() && NOT_ASKED.contains(&(&*piece.verb, &*piece.resource)),
        };
        if !is_told {
            wrong.push(format!("{name}: told {told:?}"));
        }
        bed.forget_told().await;
        grant(cluster, &all).await;
        cluster.advance(BACK_WITHIN).await;
        for (call, _) in refused {
            if let Err(status) = bed.call(&service, call).await {
                wrong.push(format!("{name}: {call:?} is not back: {status}"));
            }
        }
        tasks.end().await;
    }
    bed.tasks.end().await;
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The answer to a call when it is as awaited: a real API server hears of a changed role a moment later.
async fn awaited(bed: &Bed<'_>, service: &ControllerService, code: Code) -> Option<Status> {
    let mut answer = None;
    let is_so = async || {
        answer = bed.call(service, Call::Create).await.err();
        answer.as_ref().map_or(Code::Ok, Status::code) == code
    };
    bed.until(&format!("the answer is {code:?}"), is_so).await;
    answer
}

test_cluster::component_tests! {
    // docs/contract/csi-driver.md#rights
    #[each_role]
    async fn a_right_that_is_taken_away_is_named_and_back_after_the_grant(cluster: TestCluster) {
        let bed = Bed::empty(&cluster, "v1.9.0").await;
        let service = process(&cluster, cluster.harvester.client(User::CsiDriver), &bed.tasks);
        let all = pieces(&cluster);
        let without = all.iter().filter(|one| (&*one.verb, &*one.resource) != ("create", "persistentvolumeclaims"));
        grant(&cluster, &without.cloned().collect::<Vec<_>>()).await;
        let refused = awaited(&bed, &service, Code::PermissionDenied).await.unwrap();
        let named = "cannot create resource \"persistentvolumeclaims\"";
        assert!(refused.message().contains(named), "{refused}");
        assert!(refused.message().contains("ClusterRole harvesterhci.io:cloudprovider"), "{refused}");
        bed.until("it is told", async || bed.told().await.len() == 1).await;
        grant(&cluster, &all).await;
        awaited(&bed, &service, Code::Ok).await;
        bed.tasks.end().await;
    }

    /// What else the roles grant, nothing of the controller service asks for.
    #[simulated_only("the table of rights is walked by time")]
    async fn the_driver_asks_for_the_rights_of_its_table_and_no_others(cluster: TestCluster) {
        let bed = Bed::start(&cluster, "v1.9.0").await;
        let all = pieces(&cluster);
        let ours: Vec<_> = all.into_iter().filter(|piece| piece.is_asked_for().is_some()).collect();
        grant(&cluster, &ours).await;
        let service = process(&cluster, cluster.harvester.client(User::CsiDriver), &bed.tasks);
        let refused = bed.refused(&service).await;
        assert!(refused.is_empty(), "{refused:?}");
        assert_eq!(bed.told().await, Vec::<String>::new());
        bed.tasks.end().await;
    }

    #[simulated_only("the table of rights is walked by time")]
    async fn without_a_right_on_claims_the_calls_that_need_it_are_refused_and_told(cluster: TestCluster) {
        check(&cluster, &["persistentvolumeclaims"]).await;
    }

    #[simulated_only("the table of rights is walked by time")]
    async fn without_a_right_on_machines_the_calls_that_need_it_are_refused_and_told(cluster: TestCluster) {
        check(&cluster, &["virtualmachines", "virtualmachineinstances"]).await;
    }

    #[simulated_only("the table of rights is walked by time")]
    async fn without_a_right_on_snapshots_the_calls_that_need_it_are_refused_and_told(cluster: TestCluster) {
        check(&cluster, &["volumesnapshots", "volumesnapshotclasses", "settings", "volumes"]).await;
    }

    #[simulated_only("the table of rights is walked by time")]
    async fn without_a_right_on_backups_the_calls_that_need_it_are_refused_and_told(cluster: TestCluster) {
        check(&cluster, &["volumeremotebackups", "volumeremoterestores"]).await;
    }

    #[simulated_only("the table of rights is walked by time")]
    async fn without_a_right_on_classes_and_exports_the_calls_that_need_it_are_refused_and_told(cluster: TestCluster) {
        check(&cluster, &["storageclasses", "networkfilesystems"]).await;
    }
}
