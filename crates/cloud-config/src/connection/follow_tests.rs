//! A kubeconfig that changes in the ways in which files change in containers.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use rstest::rstest;
use tokio::time::sleep;

use super::*;

fn kubeconfig(server: &str) -> String {
    format!(
        "{{current-context: a, clusters: [{{name: a, cluster: {{server: '{server}'}}}}],
           users: [{{name: a, user: {{token: abc}}}}],
           contexts: [{{name: a, context: {{cluster: a, user: a, namespace: team-a}}}}]}}"
    )
}

/// A mounted Secret: the file is a link through the folder `..data`, which is a link that is swapped.
fn mounted(folder: &Path, version: &str, server: &str) {
    let own = folder.join(version);
    fs::create_dir(&own).unwrap();
    fs::write(own.join("cloud-config"), kubeconfig(server)).unwrap();
    symlink(version, folder.join("..new")).unwrap();
    fs::rename(folder.join("..new"), folder.join("..data")).unwrap();
}

fn in_place(folder: &Path) -> PathBuf {
    let file = folder.join("cloud-config");
    fs::write(&file, kubeconfig("https://old")).unwrap();
    file
}

fn secret(folder: &Path) -> PathBuf {
    mounted(folder, "..1", "https://old");
    symlink("..data/cloud-config", folder.join("cloud-config")).unwrap();
    folder.join("cloud-config")
}

fn link(folder: &Path) -> PathBuf {
    fs::write(folder.join("first"), kubeconfig("https://old")).unwrap();
    symlink("first", folder.join("cloud-config")).unwrap();
    folder.join("cloud-config")
}

fn rewrite(folder: &Path) {
    fs::write(folder.join("cloud-config"), kubeconfig("https://new")).unwrap();
}

fn swap(folder: &Path) {
    mounted(folder, "..2", "https://new");
}

fn rename(folder: &Path) {
    fs::write(folder.join("next"), kubeconfig("https://new")).unwrap();
    fs::rename(folder.join("next"), folder.join("cloud-config")).unwrap();
}

fn retarget(folder: &Path) {
    fs::write(folder.join("second"), kubeconfig("https://new")).unwrap();
    fs::remove_file(folder.join("cloud-config")).unwrap();
    symlink("second", folder.join("cloud-config")).unwrap();
}

fn another_name(folder: &Path) {
    fs::remove_file(folder.join("cloud-config")).unwrap();
    fs::write(folder.join("value"), kubeconfig("https://new")).unwrap();
}

type Made = fn(&Path) -> PathBuf;
type Changed = fn(&Path);

const DIRECTORY: [Made; 2] = [
    |folder| in_place(folder).parent().map(Path::to_owned).unwrap(),
    |folder| secret(folder).parent().map(Path::to_owned).unwrap(),
];

// docs/contract/cloud-controller-manager.md#S4
#[rstest]
#[case::rewritten(in_place, rewrite)]
#[case::renamed_over(in_place, rename)]
#[case::swapped_secret(secret, swap)]
#[case::link_to_another_file(link, retarget)]
#[case::directory(DIRECTORY[0], rewrite)]
#[case::directory_of_a_secret(DIRECTORY[1], swap)]
#[case::directory_with_another_file(DIRECTORY[0], another_name)]
#[tokio::test(start_paused = true)]
async fn a_changed_kubeconfig_is_taken_over_once_within_five_seconds(
    #[case] made: Made,
    #[case] changed: Changed,
) {
    let folder = tempfile::tempdir().unwrap();
    let given = made(folder.path());
    let config = CloudConfig::read(&find(Some(&given)).unwrap()).unwrap();
    let connection = Connection::open(&config, &Options::named("part/1")).unwrap();
    let (mut followed, stop) = (connection.followed(), CancellationToken::new());
    tokio::spawn(connection.follow(Some(given), stop.clone()));
    sleep(Duration::from_secs(3600)).await;
    assert!(!followed.has_changed().unwrap(), "nothing happened");
    changed(folder.path());
    sleep(Duration::from_secs(5)).await;
    assert!(followed.has_changed().unwrap());
    let now = followed.borrow_and_update().clone();
    assert_eq!((now.config.server().as_str(), now.fault), ("https://new/", None));
    sleep(Duration::from_secs(3600)).await;
    assert!(!followed.has_changed().unwrap(), "once");
    stop.cancel();
}

// a file may be seen half written, or gone for a moment
#[tokio::test(start_paused = true)]
async fn a_bad_kubeconfig_changes_nothing_and_is_named_until_it_is_good() {
    let folder = tempfile::tempdir().unwrap();
    let given = in_place(folder.path());
    let connection =
        Connection::open(&CloudConfig::read(&given).unwrap(), &Options::named("part/1")).unwrap();
    let (mut followed, stop) = (connection.followed(), CancellationToken::new());
    tokio::spawn(connection.follow(Some(given.clone()), stop.clone()));
    let wrong_context = kubeconfig("https://new").replace("current-context: a", "current-context: b");
    let wrapped = kubeconfig("https://new").replace("token: abc", "token: \"ab\\nc\"");
    for (content, why) in [
        (Some("{current-context: a, clus".to_owned()), "cannot be parsed"),
        (Some(wrong_context), "has no context \"b\""),
        (Some(wrapped), "token: has a line break"),
        (None, "no cloud-config found"),
    ] {
        match content {
            Some(content) => fs::write(&given, content).unwrap(),
            None => fs::remove_file(&given).unwrap(),
        }
        sleep(Duration::from_secs(5)).await;
        let now = followed.borrow_and_update().clone();
        assert_eq!(now.config.server(), "https://old/");
        assert!(now.fault.as_ref().is_some_and(|fault| fault.contains(why)), "{:?}", now.fault);
        sleep(Duration::from_secs(3600)).await;
        assert!(!followed.has_changed().unwrap(), "told once");
    }
    rewrite(folder.path());
    sleep(Duration::from_secs(5)).await;
    let now = followed.borrow_and_update().clone();
    assert_eq!((now.config.server().as_str(), now.fault), ("https://new/", None));
    stop.cancel();
}

fn certificate(name: &str) -> String {
    // text before the first certificate is a comment
    format!("{name}\n{}", sim_apiserver::ApiServer::builder().build().ca_pem())
}

// a certificate authority may be renewed beside the kubeconfig
#[tokio::test(start_paused = true)]
async fn a_file_that_the_kubeconfig_refers_to_is_followed_too() {
    let folder = tempfile::tempdir().unwrap();
    let (given, authority) = (in_place(folder.path()), folder.path().join("ca.crt"));
    let cluster = format!("{{certificate-authority: '{}', server:", authority.display());
    fs::write(&given, kubeconfig("https://old").replace("{server:", &cluster)).unwrap();
    fs::write(&authority, certificate("one")).unwrap();
    let connection =
        Connection::open(&CloudConfig::read(&given).unwrap(), &Options::named("part/1")).unwrap();
    let (followed, stop) = (connection.followed(), CancellationToken::new());
    tokio::spawn(connection.follow(Some(given), stop.clone()));
    sleep(Duration::from_secs(60)).await;
    assert!(!followed.has_changed().unwrap());
    fs::write(&authority, certificate("another")).unwrap();
    sleep(Duration::from_secs(5)).await;
    assert!(followed.has_changed().unwrap());
    stop.cancel();
}
