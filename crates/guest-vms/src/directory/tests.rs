use rstest::rstest;

use super::*;

fn directory() -> Directory {
    let mut directory = Directory::new(Some("prod".into()));
    for (name, uid, cluster) in
        [("vm-a", "1", Some("prod")), ("vm-b", "2", None), ("vm-x", "9", Some("test"))]
    {
        directory.set_vm(name, Some((uid.into(), cluster.map(str::to_owned))));
    }
    directory
}

fn check(directory: &Directory, node: &str, provider_id: &str, expected: Option<&str>) {
    assert_eq!(directory.find(node, provider_id).as_deref(), expected, "{node} {provider_id}");
}

// docs/contract/cloud-controller-manager.md#N1
#[test]
fn a_node_is_found_by_provider_id_then_name_then_host_name() {
    let mut directory = directory();
    check(&directory, "vm-a", "", Some("vm-a"));
    check(&directory, "worker", "", None);
    check(&directory, "worker", "harvester://2", Some("vm-b"));
    check(&directory, "worker", "harvester://vm-b", Some("vm-b"));
    check(&directory, "vm-a", "harvester://2", Some("vm-b"));
    check(&directory, "vm-a", "k3s://2", Some("vm-a"));
    assert!(directory.set_host_name("vm-b", "worker"));
    assert!(!directory.set_host_name("vm-b", "worker"));
    check(&directory, "worker", "", Some("vm-b"));
    let sign = |node, provider_id| directory.find_by(node, provider_id).map(|(_, sign)| sign);
    let signs = [sign("vm-b", "harvester://1"), sign("vm-a", ""), sign("worker", "")];
    assert_eq!(signs, [FoundBy::ProviderId, FoundBy::Name, FoundBy::HostName].map(Some));
    directory.set_host_name("vm-b", "vm-a");
    check(&directory, "vm-a", "", Some("vm-a"));
}

// docs/contract/cloud-controller-manager.md#V1
#[test]
fn a_host_name_that_can_name_no_node_tells_nothing_and_is_not_kept() {
    let mut directory = reporting(&[("vm-a", None)]);
    assert!(directory.set_host_name("vm-a", "Worker-1"), "kubelet writes it in small letters");
    check(&directory, "worker-1", "", Some("vm-a"));
    assert!(directory.set_host_name("vm-a", &"x".repeat(1_000_000)), "the former one counts no more");
    for name in ["", "a b", "worker_1", &"x".repeat(1_000_000)] {
        assert!(!directory.set_host_name("vm-a", name), "nothing is news in {:.9}", name);
    }
    check(&directory, "worker-1", "", None);
}

/// The VMs of a namespace by name and label, all of which report the host name `worker`.
fn reporting(vms: &[(&str, Option<&str>)]) -> Directory {
    let mut directory = Directory::new(Some("prod".into()));
    for (name, cluster) in vms {
        directory.set_vm(name, Some((format!("uid-of-{name}"), cluster.map(str::to_owned))));
        directory.set_host_name(name, "worker");
    }
    directory
}

#[rstest]
#[case::one_of_ours(&[("vm-a", Some("prod"))], Some("vm-a"))]
#[case::ours_before_others(&[("vm-a", None), ("vm-b", Some("prod")), ("vm-c", None), ("vm-x", Some("test"))], Some("vm-b"))]
#[case::two_of_ours(&[("vm-a", Some("prod")), ("vm-b", Some("prod"))], None)]
#[case::one_without_label(&[("vm-a", None), ("vm-x", Some("test"))], Some("vm-a"))]
#[case::two_without_label(&[("vm-a", None), ("vm-b", None)], None)]
#[case::of_another_cluster(&[("vm-x", Some("test"))], None)]
#[case::another_cluster_has_the_name(&[("vm-a", None), ("worker", Some("test"))], None)]
#[case::ours_whoever_has_the_name(&[("vm-a", Some("prod")), ("worker", Some("test"))], Some("vm-a"))]
#[case::the_name_before_a_host_name(&[("vm-a", None), ("worker", None)], Some("worker"))]
#[case::ours_by_host_name_before_anybodys_by_name(&[("vm-a", Some("prod")), ("worker", None)], Some("vm-a"))]
#[case::ours_by_name_before_ours_by_host_name(&[("vm-a", Some("prod")), ("worker", Some("prod"))], Some("worker"))]
#[case::two_of_ours_and_one_of_that_name(&[("vm-a", Some("prod")), ("vm-b", Some("prod")), ("worker", None)], Some("worker"))]
fn a_host_name_tells_of_a_labelled_vm_first_and_of_no_other_clusters(
    #[case] vms: &[(&str, Option<&str>)],
    #[case] expected: Option<&str>,
) {
    check(&reporting(vms), "worker", "", expected);
}

#[test]
fn a_vm_of_another_cluster_is_not_ours_by_name() {
    check(&directory(), "vm-x", "", None);
    check(&directory(), "worker", "harvester://vm-x", None);
    check(&directory(), "worker", "harvester://9", Some("vm-x"));
    let mut anonymous = Directory::new(None);
    anonymous.set_vm("vm-x", Some(("9".into(), Some("test".into()))));
    check(&anonymous, "vm-x", "", Some("vm-x"));
}

// docs/contract/cloud-controller-manager.md#N2
#[test]
fn host_names_of_former_vms_are_forgotten_and_doubtful_ones_tell_nothing() {
    let mut directory = directory();
    directory.set_vm("vm-b", Some(("2".into(), Some("prod".into()))));
    directory.set_host_name("vm-a", "worker");
    directory.set_host_name("vm-b", "worker");
    check(&directory, "worker", "", None);
    directory.set_vm("vm-b", None);
    check(&directory, "worker", "", Some("vm-a"));
    directory.set_vm("vm-a", Some(("new-uid".into(), None)));
    check(&directory, "worker", "", None);
    directory.set_host_name("vm-a", "worker");
    directory.set_host_name("vm-a", "other");
    check(&directory, "worker", "", None);
    check(&directory, "other", "", Some("vm-a"));
}

const UID_A: &str = "00000000-0000-4000-8000-00000000000a";
const UID_B: &str = "00000000-0000-4000-8000-00000000000b";
const UID_C: &str = "00000000-0000-4000-8000-00000000000c";
const UID_D: &str = "00000000-0000-4000-8000-00000000000d";
const UID_X: &str = "00000000-0000-4000-8000-000000000009";

/// VMs `a` and `b` of ours, and `x` of another cluster.
fn with_uids() -> Directory {
    let mut directory = Directory::new(Some("prod".into()));
    for (name, uid, cluster) in [("a", UID_A, Some("prod")), ("b", UID_B, None), ("x", UID_X, Some("test"))] {
        directory.set_vm(name, Some((uid.into(), cluster.map(str::to_owned))));
    }
    directory
}

/// `id` while `others` are the VMs of the other Nodes.
fn absence(directory: &Directory, id: &str, others: &[&str]) -> Absence {
    directory.absence(id, true, others.iter().copied())
}

// docs/contract/cloud-controller-manager.md#N18
#[test]
fn a_vm_is_gone_when_its_deletion_was_watched_or_when_one_list_names_vms_of_other_nodes_without_it() {
    let mut directory = with_uids();
    directory.left("a", UID_A);
    directory.set_vm("a", None);
    assert_eq!(absence(&directory, UID_A, &[]), Absence::Deleted);
    assert_eq!(absence(&directory, "a", &[]), Absence::Deleted);
    // a new list does not name it: it may be the list of another Harvester, which the other watches do not see yet
    directory.set_vm("c", Some((UID_C.into(), None)));
    directory.set_vm("b", None);
    assert_eq!(absence(&directory, UID_B, &[UID_C]), Absence::Unsearched);
    assert_eq!(absence(&directory, "b", &[UID_C]), Absence::Doubtful);
    let searched = |answer| HashMap::from([(UID_B.to_owned(), answer)]);
    directory.set_searched(searched(Searched::Doubtful));
    assert_eq!(absence(&directory, UID_B, &[UID_C]), Absence::Doubtful);
    directory.set_searched(searched(Searched::Missing));
    assert_eq!(absence(&directory, UID_B, &[UID_C]), Absence::Missing);
    // what was said before it was here again says nothing of where it went
    directory.set_vm("b", Some((UID_B.into(), None)));
    directory.set_vm("b", None);
    assert_eq!(absence(&directory, UID_B, &[UID_C]), Absence::Unsearched);
}

#[rstest]
#[case::of_a_node_that_is_there(UID_C, Some(Searched::Missing), &[UID_A], Absence::Missing)]
#[case::not_searched_for_yet(UID_C, None, &[UID_A], Absence::Unsearched)]
#[case::the_list_named_no_other(UID_C, Some(Searched::Doubtful), &[UID_A], Absence::Doubtful)]
#[case::under_a_name_that_is_not_watched_yet(UID_C, Some(Searched::Named("c".into())), &[UID_A], Absence::Doubtful)]
#[case::nothing_else_is_there(UID_C, Some(Searched::Missing), &[], Absence::Doubtful)]
#[case::all_are_missing(UID_C, Some(Searched::Missing), &[UID_D], Absence::Doubtful)]
#[case::another_clusters_vm_is_no_witness(UID_C, Some(Searched::Missing), &[UID_X], Absence::Doubtful)]
#[case::a_name_is_no_witness(UID_C, Some(Searched::Missing), &["a"], Absence::Doubtful)]
#[case::a_name_that_was_never_here("lost", None, &[UID_A], Absence::Doubtful)]
fn after_a_restart_a_vm_is_gone_only_where_a_list_of_all_names_vms_of_other_nodes(
    #[case] id: &str,
    #[case] searched: Option<Searched>,
    #[case] others: &[&str],
    #[case] expected: Absence,
) {
    let mut directory = with_uids();
    directory.set_searched(searched.into_iter().map(|it| (id.to_owned(), it)).collect());
    assert_eq!(absence(&directory, id, others), expected);
}

// docs/contract/cloud-controller-manager.md#N18
#[test]
fn a_vm_that_is_missing_is_gone_only_where_it_was_seen_in_this_namespace() {
    let mut directory = with_uids();
    let missing = || HashMap::from([UID_B, UID_C].map(|uid| (uid.to_owned(), Searched::Missing)));
    directory.set_searched(missing());
    let absence = |directory: &Directory, id, was_here| directory.absence(id, was_here, [UID_A].into_iter());
    assert_eq!(absence(&directory, UID_C, false), Absence::NeverSeen);
    assert_eq!(absence(&directory, UID_C, true), Absence::Missing);
    // a Node that the Go program initialised says nothing, but this process has seen its VM
    directory.set_vm("b", None);
    directory.set_searched(missing());
    assert_eq!(absence(&directory, UID_B, false), Absence::Missing);
}

/// Its label went, which the watch of the label tells as a deletion.
#[test]
fn a_vm_that_left_a_watch_and_is_seen_by_name_is_not_deleted() {
    let mut directory = with_uids();
    directory.left("a", UID_A);
    directory.set_vm("a", None);
    assert_eq!(directory.candidates("worker", &format!("harvester://{UID_A}")), names(&["a", "worker"]));
    directory.set_vm("a", Some((UID_A.into(), None)));
    check(&directory, "worker", &format!("harvester://{UID_A}"), Some("a"));
    // a later list that does not name it may be another Harvester's
    directory.set_vm("a", None);
    assert_eq!(absence(&directory, UID_A, &[]), Absence::Unsearched);
}

#[test]
fn a_vm_that_gets_another_clusters_label_is_nobodys_here_and_deletes_no_node() {
    let mut directory = with_uids();
    directory.left("a", UID_A);
    directory.set_vm("a", None);
    directory.set_vm("a", Some((UID_A.into(), Some("test".into()))));
    assert!(!directory.is_ours("a"));
    check(&directory, "a", "", None);
    directory.left("a", UID_A);
    directory.set_vm("a", None);
    assert_eq!(absence(&directory, UID_A, &[UID_B]), Absence::Foreign);
}

fn names(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[rstest]
#[case::known_by_uid("worker", UID_A, &["a"])]
#[case::unknown_uid("worker", UID_C, &["worker"])]
#[case::found_by_a_search("worker", UID_D, &["d", "worker"])]
#[case::named("worker", "vm-7", &["vm-7", "worker"])]
#[case::no_id("worker", "", &["worker"])]
#[case::reported_as_host_name("host-b", "", &["b", "host-b"])]
#[case::reported_by_a_stranger("host-s", "", &["host-s", "s"])]
#[case::what_can_be_no_name("worker", "a,b=c", &["worker"])]
fn a_node_may_be_the_vms_of_these_names(#[case] node: &str, #[case] id: &str, #[case] expected: &[&str]) {
    let mut directory = with_uids();
    directory.set_host_name("b", "host-b");
    directory.set_strangers(BTreeMap::from([("s".to_owned(), "1".to_owned())]));
    directory.set_host_name("s", "host-s");
    directory.set_searched(HashMap::from([(UID_D.to_owned(), Searched::Named("d".into()))]));
    assert_eq!(directory.candidates(node, &format!("harvester://{id}")), names(expected));
    // nothing but a watch makes a VM a Node's
    assert_eq!(directory.find("host-s", ""), None);
}

#[test]
fn what_a_search_learned_of_an_instance_does_not_hold_for_the_next_one() {
    let mut directory = with_uids();
    let strangers = |uid: &str| BTreeMap::from([("s".to_owned(), uid.to_owned())]);
    let reported = |directory: &Directory| directory.candidates("host-s", "").contains("s");
    for uid in ["1", "2"] {
        directory.set_strangers(strangers(uid));
        assert!(!reported(&directory));
        directory.set_host_name("s", "host-s");
        directory.set_strangers(strangers(uid));
        assert!(reported(&directory));
    }
    directory.set_vm("s", Some(("7".into(), None)));
    directory.set_instance("s", Some(("2".into(), None)));
    check(&directory, "host-s", "", Some("s"));
    directory.set_instance("s", Some(("3".into(), None)));
    check(&directory, "host-s", "", None);
    directory.set_strangers(BTreeMap::new());
    directory.set_vm("s", None);
    directory.set_instance("s", None);
    assert!(directory.host_names.is_empty() && directory.by_host_name.is_empty());
}

#[test]
fn what_a_search_found_is_forgotten_but_for_the_vm_that_a_watch_knows() {
    let mut directory = with_uids();
    assert!(!directory.forget_strangers());
    directory
        .set_strangers(BTreeMap::from([("s", "1"), ("t", "2")].map(|(name, uid)| (name.into(), uid.into()))));
    directory.set_host_name("s", "host-s");
    directory.set_host_name("t", "host-t");
    directory.set_vm("s", Some(("7".into(), None)));
    assert!(directory.forget_strangers());
    check(&directory, "host-s", "", Some("s"));
    assert!(directory.is_known("s") && !directory.is_known("t"));
    assert_eq!(directory.candidates("host-t", ""), names(&["host-t"]));
}

#[test]
fn a_vm_that_was_another_clusters_is_nobodys_here() {
    let mut directory = with_uids();
    directory.left("x", UID_X);
    directory.set_vm("x", None);
    assert_eq!(absence(&directory, UID_X, &[UID_A]), Absence::Foreign);
}

#[test]
fn a_deletion_that_is_learned_twice_counts_and_former_vms_are_bounded() {
    let mut directory = with_uids();
    directory.set_vm("a", None);
    directory.left("a", UID_A);
    assert_eq!(absence(&directory, UID_A, &[]), Absence::Deleted);
    for n in 0..DEPARTED_MAX {
        directory.set_vm("foreign", Some((n.to_string(), Some("test".into()))));
    }
    directory.set_vm("foreign", None);
    assert_eq!(directory.departed.len(), DEPARTED_MAX);
    assert_eq!(absence(&directory, UID_A, &[UID_B]), Absence::Unsearched);
}

#[test]
fn only_a_vm_that_no_node_is_known_to_be_is_asked() {
    let directory = directory();
    let nodes = [("vm-a", ""), ("worker", "")];
    let worth = |name| directory.is_worth_asking(name, nodes.into_iter());
    assert_eq!([worth("vm-a"), worth("vm-b"), worth("vm-x"), worth("gone")], [false, true, false, false]);
}
