use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use rstest::rstest;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::*;

fn token(claims: &Value) -> Option<String> {
    Some(format!("e30.{}.c2lnbmF0dXJl", URL_SAFE_NO_PAD.encode(claims.to_string())))
}

fn bound(uid: &str) -> Option<String> {
    token(&json!({"sub": "system:serviceaccount:kube-system:part",
        "kubernetes.io": {"namespace": "kube-system", "pod": {"name": "part-0", "uid": uid}}}))
}

fn legacy() -> Option<String> {
    token(
        &json!({"iss": "kubernetes/serviceaccount", "kubernetes.io/serviceaccount/namespace": "kube-system"}),
    )
}

fn in_pod(host_name: &str, uid: &str, place: &str) -> Sources {
    Sources { host_name: host_name.into(), token: bound(uid), downward_uid: None, place: Some(place.into()) }
}

#[test]
fn a_place_is_the_boot_and_the_network_namespace_and_half_of_it_is_none() {
    let proc = env::temp_dir().join(format!("program-place-{}", unique()));
    let (boot, network) = (proc.join("sys/kernel/random/boot_id"), proc.join("self/ns/net"));
    assert_eq!(place(&proc), None);
    fs::create_dir_all(boot.parent().unwrap()).unwrap();
    fs::create_dir_all(network.parent().unwrap()).unwrap();
    std::os::unix::fs::symlink("net:[4026531840]", &network).unwrap();
    assert_eq!(place(&proc), None, "no boot");
    fs::write(&boot, "\n").unwrap();
    assert_eq!(place(&proc), None, "an empty one");
    fs::write(&boot, "5d4f\n").unwrap();
    assert_eq!(place(&proc).as_deref(), Some("5d4f net:[4026531840]"));
    fs::remove_file(&network).unwrap();
    assert_eq!(place(&proc), None, "no network namespace");
    fs::remove_dir_all(&proc).unwrap();
}

/// Of a Pod that no other test knows.
fn unique() -> String {
    format!("{:032x}", fastrand::u128(..))
}

#[rstest]
#[case::token(bound("a-1"), None, Some("a-1"))]
#[case::both(bound("a-1"), Some("a-1"), Some("a-1"))]
#[case::they_differ(bound("a-1"), Some("b-2"), None)]
#[case::legacy_token(legacy(), None, None)]
#[case::legacy_token_and_downward_api(legacy(), Some("a-1"), Some("a-1"))]
#[case::static_pod_has_no_token(None, Some("a-1"), Some("a-1"))]
#[case::neither(None, None, None)]
#[case::no_token_at_all(Some("nonsense".to_owned()), None, None)]
#[case::not_a_uid(None, Some("a_1"), None)]
#[case::unexpanded(None, Some("$(POD_UID)"), None)]
fn the_uid_is_the_tokens_claim_else_the_downward_apis_and_none_where_they_differ(
    #[case] token: Option<String>,
    #[case] given: Option<&str>,
    #[case] expected: Option<&str>,
) {
    let sources = Sources { token, downward_uid: given.map(str::to_owned), ..Sources::default() };
    assert_eq!(sources.uid().as_deref(), expected);
}

#[test]
fn an_identity_names_host_pod_and_something_random() {
    let identity = Identity::new(&in_pod("part-0", "a-1", "here"), 0xbeef);
    let text = identity.text(true);
    assert!(text.starts_with("part-0_a-1_") && text.ends_with("beef"), "{text}");
    assert_eq!(identity.text(false), "part-0_000000000000beef", "without the socket the UID is not named");
    assert!(identity.is(text) && identity.is("part-0_000000000000beef"));
    let outside = Identity::new(&Sources { host_name: "laptop".into(), ..Sources::default() }, 1);
    assert_eq!(outside.text(true), "laptop_0000000000000001");
}

#[rstest]
#[case::its_own_pod("part-0", "a-1", "here", true)]
// a Deployment with a constant in the place of the downward API
#[case::one_uid_on_two_hosts("part-1", "a-1", "here", false)]
#[case::one_uid_and_one_host_name_on_two_hosts("part-0", "a-1", "there", false)]
#[case::another_pod("part-0", "b-2", "here", false)]
fn a_predecessor_has_our_host_name_pod_and_place(
    #[case] host_name: &str,
    #[case] uid: &str,
    #[case] place: &str,
    #[case] expected: bool,
) {
    let me = Identity::new(&in_pod("part-0", "a-1", "here"), 1);
    let other = Identity::new(&in_pod(host_name, uid, place), 2);
    assert_eq!(me.is_predecessor(other.text(true)), expected);
    assert!(!me.is_predecessor(other.text(false)), "a holder without its socket may live");
    assert!(!me.is_predecessor(me.text(true)));
}

#[rstest]
#[case::of_go("part-0_7d0f6f0c-7c0b-4b57-9d6c-0c9a8b7a6d5e", false)]
#[case::nobody("", false)]
#[case::without_a_place("part-0_a-1_1234", true)]
#[case::host_name_with_underscores("other_part-0_a-1_1234", false)]
fn other_programs_are_no_predecessors(#[case] holder: &str, #[case] expected: bool) {
    let me = Identity::new(&in_pod("part-0", "a-1", "here"), 1);
    assert_eq!(me.is_predecessor(holder), expected);
}

// fault 16: two hosts whose boot and network namespace could not be read were one place
#[test]
fn a_process_that_cannot_read_its_place_takes_over_from_nobody_and_nobody_from_it() {
    let sources = Sources { place: None, ..in_pod("part-0", "a-1", "here") };
    let unread = |random| Identity::new(&sources, random);
    let (one, other, placed) = (unread(1), unread(2), Identity::new(&in_pod("part-0", "a-1", "here"), 3));
    assert!(!one.is_predecessor(other.text(true)));
    assert!(!one.is_predecessor(placed.text(true)) && !placed.is_predecessor(one.text(true)));
    assert!(!one.hold("kube-system", "unread"), "a socket would prove nothing");
}

#[test]
fn of_two_processes_in_a_pod_one_holds_the_socket_of_a_lease_until_its_end() {
    let uid = unique();
    let first = Identity::new(&in_pod("part-0", &uid, ""), 1);
    let second = Identity::new(&in_pod("part-0", &uid, ""), 2);
    assert!(first.hold("kube-system", "web") && first.hold("kube-system", "web"));
    assert!(!second.hold("kube-system", "web"));
    assert!(second.hold("kube-system", "other") && second.hold("shop", "web"), "each Lease has its own");
    drop(first);
    assert!(second.hold("kube-system", "web"));
}

#[test]
fn without_a_uid_there_is_no_socket() {
    assert!(!Identity::from("laptop_1").hold("kube-system", "web"));
}

#[test]
fn long_names_fit_and_stay_different() {
    let (namespace, uid) = ("n".repeat(63), unique());
    let name = |last: char| socket::name(&uid, &namespace, &format!("{}{last}", "l".repeat(200)));
    assert_eq!(name('a').len(), 107);
    assert_ne!(name('a'), name('b'));
    assert!(Socket::bind(name('a')).is_ok());
}

const CHILD: &str = "PROGRAM_TEST_POD_UID";

/// The predecessor of the next test; alone it does nothing.
#[test]
fn a_process_that_holds_a_socket() {
    let Ok(uid) = env::var(CHILD) else { return };
    let identity = Identity::new(&in_pod("part-0", &uid, ""), 1);
    assert!(identity.hold("kube-system", "web"));
    let mut ready = io::stderr();
    io::Write::write_all(&mut ready, b"held\n").unwrap();
    loop {
        std::thread::park();
    }
}

#[test]
fn a_stopped_predecessor_keeps_its_socket_and_a_dead_one_does_not() {
    use std::{
        io::{BufRead as _, BufReader},
        process::{Command, Stdio},
    };
    let uid = unique();
    let mut child = Command::new(env::current_exe().unwrap())
        .args(["--exact", "pod::tests::a_process_that_holds_a_socket", "--nocapture"])
        .env(CHILD, &uid)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stderr.take().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|line| line == "held"));
    let pid = Pid::from_child(&child);
    let me = Identity::new(&in_pod("part-0", &uid, ""), 2);
    kill_process(pid, Signal::STOP).unwrap();
    assert!(!me.hold("kube-system", "web"), "it may go on to write at any time");
    kill_process(pid, Signal::KILL).unwrap();
    child.wait().unwrap();
    assert!(me.hold("kube-system", "web"));
}
