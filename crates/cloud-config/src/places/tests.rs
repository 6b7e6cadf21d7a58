use std::{fs, os::unix::fs::symlink, time::Duration};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use rstest::rstest;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::{Connection, Options, connection::OF_COPY, expiry::Expiry};

fn token(account: &str, end: i64) -> String {
    let claims = format!("{{\"sub\":\"system:serviceaccount:vms:{account}\",\"exp\":{end}}}");
    format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(claims))
}

/// A kubeconfig whose token ends then.
fn kubeconfig(end: i64) -> String {
    with_token(&token("demo", end))
}

fn with_token(token: &str) -> String {
    format!(
        "{{current-context: a, clusters: [{{name: a, cluster: {{server: 'https://h'}}}}],
           users: [{{name: a, user: {{token: {token}}}}}],
           contexts: [{{name: a, context: {{cluster: a, user: a, namespace: team-a}}}}]}}"
    )
}

/// Puts a file, or nothing, into a folder as kubelet mounts a Secret.
fn mount(folder: &Path, version: &str, content: Option<&str>) {
    let own = folder.join(version);
    fs::create_dir_all(&own).unwrap();
    if let Some(content) = content {
        fs::write(own.join(COPY_KEY), content).unwrap();
    }
    symlink(version, folder.join("..new")).unwrap();
    fs::rename(folder.join("..new"), folder.join("..data")).unwrap();
    let link = folder.join(COPY_KEY);
    drop(fs::remove_file(&link));
    if content.is_some() {
        symlink("..data/cloud-config", link).unwrap();
    }
}

struct Folders {
    _root: tempfile::TempDir,
    places: Places,
}

impl Folders {
    fn new(source: &str) -> Self {
        let root = tempfile::tempdir().unwrap();
        let (given, rotated) = (root.path().join("source"), root.path().join("rotated"));
        fs::create_dir(&rotated).unwrap();
        fs::write(&given, source).unwrap();
        Self { _root: root, places: Places { given: Some(given), rotated: Some(rotated) } }
    }

    fn source(&self, text: &str) {
        fs::write(self.places.given.as_ref().unwrap(), text).unwrap();
    }

    fn copy(&self, version: &str, content: Option<&str>) {
        mount(self.places.rotated.as_ref().unwrap(), version, content);
    }
}

fn end(config: &CloudConfig) -> i64 {
    match crate::expiry::of_user(&config.config.auth_info) {
        Some(Expiry::At(end)) => end.as_second(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_copy_counts_while_it_was_made_from_the_source_as_it_is() {
    let source = kubeconfig(1000);
    let folders = Folders::new(&source);
    let read = || folders.places.read().unwrap();
    assert_eq!((end(&read()), read().is_copy()), (1000, false), "the Secret is empty at first");
    folders.copy("..1", Some(&copy(&source, &kubeconfig(2000))));
    assert_eq!((end(&read()), read().is_copy()), (2000, true));
    assert_eq!(read().source(), source);
    // a person gives another one
    folders.source(&kubeconfig(1500));
    assert_eq!((end(&read()), read().is_copy()), (1500, false), "a source that was changed since wins");
    folders.source(&source);
    for useless in ["", "{", &kubeconfig(2000), &copy(&source, "]"), &copy("other", &kubeconfig(2000))] {
        folders.copy("..2", Some(useless));
        assert_eq!((end(&read()), read().is_copy()), (1000, false), "{useless}");
    }
}

#[test]
fn a_source_that_has_its_token_in_a_block_of_yaml_has_copies_too() {
    let block = |end| {
        let token = token("demo", end);
        format!(
            "users:\n- name: a\n  user:\n    token: |\n      {token}\ncurrent-context: a
clusters: [{{name: a, cluster: {{server: 'https://h'}}}}]
contexts: [{{name: a, context: {{cluster: a, user: a, namespace: team-a}}}}]\n"
        )
    };
    let folders = Folders::new(&block(1000));
    folders.copy("..1", Some(&copy(&block(1000), &block(2000))));
    let read = folders.places.read().unwrap();
    assert_eq!((end(&read), read.is_copy()), (2000, true));
}

// who may write the Secret of the copy is not who gave the cloud-config
#[rstest]
#[case::namespace("team-a", "team-b")]
#[case::server("https://h", "https://thief.example")]
#[case::authority("{server:", "{certificate-authority-data: 'AAAA', server:")]
#[case::any_certificate("{server:", "{insecure-skip-tls-verify: true, server:")]
#[case::proxy("{server:", "{proxy-url: 'http://thief.example', server:")]
#[case::program("{token:", "{exec: {command: rm, apiVersion: client.authentication.k8s.io/v1}, token:")]
#[case::provider("{token:", "{auth-provider: {name: gcp, config: {cmd-path: /bin/rm}}, token:")]
#[case::after_the_token("c2ln}", "c2ln, username: thief}")]
#[case::a_line_in_the_token("c2ln}", "c2ln\n  x}")]
#[case::more("team-a}}]}", "team-a}}]}\n---\ncurrent-context: b")]
#[case::token_file("{token:", "{tokenFile: /etc/shadow, token:")]
fn a_copy_is_its_source_with_another_token_and_nothing_else(#[case] old: &str, #[case] new: &str) {
    let source = kubeconfig(1000);
    let folders = Folders::new(&source);
    let text = kubeconfig(2000);
    assert!(text.contains(old));
    folders.copy("..1", Some(&copy(&source, &text.replace(old, new))));
    let read = folders.places.read().unwrap();
    assert_eq!((end(&read), read.is_copy()), (1000, false));
}

#[test]
fn a_token_of_another_account_or_of_no_account_makes_no_copy() {
    let source = kubeconfig(1000);
    assert_eq!(
        token_of_copy(&copy(&source, &kubeconfig(2000)), &source),
        Some(token("demo", 2000)).as_deref()
    );
    for other in [&*token("other", 2000), "", "thief", "kubeconfig-u:secret", "a.b.c"] {
        assert!(!is_copy_of(&copy(&source, &with_token(other)), &source), "{other}");
    }
    assert!(!is_copy_of(&copy("", ""), "") && !is_copy_of(&copy("{", "{"), "{"));
}

#[tokio::test(start_paused = true)]
async fn a_new_copy_and_a_new_source_are_taken_over_within_five_seconds() {
    let source = kubeconfig(1000);
    let folders = Folders::new(&source);
    let connection = Connection::open(&folders.places.read().unwrap(), &Options::named("part/1")).unwrap();
    let (followed, stop) = (connection.followed(), CancellationToken::new());
    tokio::spawn(connection.follow(folders.places.clone(), stop.clone()));
    let changes: [(&dyn Fn(), i64); 4] = [
        (&|| folders.copy("..1", Some(&copy(&source, &kubeconfig(2000)))), 2000),
        (&|| folders.copy("..2", Some(&copy(&source, &kubeconfig(3000)))), 3000),
        (&|| folders.source(&kubeconfig(1500)), 1500),
        (&|| folders.copy("..3", Some(&copy(&kubeconfig(1500), &kubeconfig(4000)))), 4000),
    ];
    for (change, expected) in changes {
        change();
        sleep(Duration::from_secs(5)).await;
        assert_eq!(end(&followed.borrow().config), expected);
    }
    stop.cancel();
}

/// A kubeconfig whose token was issued then, and ends 1000 s later.
fn issued(at: i64) -> String {
    let claims = format!("{{\"sub\":\"system:serviceaccount:vms:demo\",\"iat\":{at},\"exp\":{}}}", at + 1000);
    with_token(&format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(claims)))
}

// a backup of the guest cluster has the Secret as it was
#[tokio::test(start_paused = true)]
async fn an_older_copy_does_not_take_the_newer_token_from_who_runs() {
    let source = issued(0);
    let folders = Folders::new(&source);
    folders.copy("..1", Some(&copy(&source, &issued(2000))));
    let connection = Connection::open(&folders.places.read().unwrap(), &Options::named("part/1")).unwrap();
    let (followed, stop) = (connection.followed(), CancellationToken::new());
    tokio::spawn(connection.follow(folders.places.clone(), stop.clone()));
    for (version, at, expected) in [("..2", 1000, 3000), ("..3", 2500, 3500)] {
        folders.copy(version, Some(&copy(&source, &issued(at))));
        sleep(Duration::from_secs(5)).await;
        assert_eq!(end(&followed.borrow().config), expected);
    }
    folders.source(&issued(100));
    sleep(Duration::from_secs(5)).await;
    assert_eq!(end(&followed.borrow().config), 1100, "a source that a person changes wins");
    stop.cancel();
}

// what stands in a token proves nothing: anybody may write any time into one
#[rstest]
#[case::before_a_better_one_is_there(true)]
#[case::only_afterwards(false)]
#[tokio::test(start_paused = true)]
async fn a_copy_that_the_server_refuses_does_not_stay_for_being_the_newest(#[case] is_refused_at_once: bool) {
    let source = issued(0);
    let folders = Folders::new(&source);
    folders.copy("..1", Some(&copy(&source, &issued(1000))));
    let connection = Connection::open(&folders.places.read().unwrap(), &Options::named("part/1")).unwrap();
    let (followed, stop) = (connection.followed(), CancellationToken::new());
    tokio::spawn({
        let (connection, places, stop) = (connection.clone(), folders.places.clone(), stop.clone());
        async move { connection.follow(places, stop).await }
    });
    let now = jiff::Timestamp::from_second(1500).ok();
    let refuse = || connection.now().refused(OF_COPY, now);
    folders.copy("..2", Some(&copy(&source, &issued(4_000_000_000))));
    sleep(Duration::from_secs(5)).await;
    if is_refused_at_once {
        refuse();
    }
    folders.copy("..3", Some(&copy(&source, &issued(1500))));
    sleep(Duration::from_secs(5)).await;
    if !is_refused_at_once {
        assert_eq!(end(&followed.borrow().config), 4_000_001_000);
        refuse();
        sleep(Duration::from_secs(5)).await;
    }
    assert_eq!(end(&followed.borrow().config), 2500);
    stop.cancel();
}

// who runs on would else fall back to a token that may have ended long ago
#[tokio::test(start_paused = true)]
async fn a_copy_that_a_person_takes_away_does_not_take_the_newer_token_from_who_runs() {
    let source = kubeconfig(1000);
    let folders = Folders::new(&source);
    folders.copy("..1", Some(&copy(&source, &kubeconfig(2000))));
    let connection = Connection::open(&folders.places.read().unwrap(), &Options::named("part/1")).unwrap();
    let (mut followed, stop) = (connection.followed(), CancellationToken::new());
    tokio::spawn(connection.follow(folders.places.clone(), stop.clone()));
    folders.copy("..2", None);
    sleep(Duration::from_secs(5)).await;
    assert!(followed.has_changed().unwrap(), "whoever rotates looks again");
    let now = followed.borrow_and_update().clone();
    assert_eq!((end(&now.config), now.fault), (2000, None));
    sleep(Duration::from_secs(60)).await;
    assert!(!followed.has_changed().unwrap(), "once");
    folders.source(&kubeconfig(1500));
    sleep(Duration::from_secs(5)).await;
    assert_eq!(end(&followed.borrow().config), 1500, "a source that a person changes wins");
    stop.cancel();
}
