use rstest::rstest;

use super::*;
use crate::attach::{
    hotplug::Progress,
    ownership::{Machine, Ownership},
};

/// `+a` wants a, `-a` leaves a, `+a!` has it by its status.
fn attachments(text: &str) -> Vec<Attachment> {
    let one = |(created, word): (usize, &str)| {
        let machine = word[1..].trim_end_matches('!');
        Attachment {
            name: format!("va-{machine}"),
            uid: format!("uid-va-{machine}"),
            node: format!("node-{machine}"),
            machine: (machine != "unknown").then(|| machine.to_owned()),
            is_attached: word.ends_with('!'),
            is_leaving: word.starts_with('-'),
            created: i64::try_from(created).unwrap(),
        }
    };
    text.split_whitespace().enumerate().map(one).collect()
}

/// `a:ready`, `a:adding`, `a:taken`, `a:mounted`, `a:removing`, `a:template`, `a:fixed`, `a:absent`, `a:gone`, `a:deleted`; with `?` no
/// node of this cluster.
fn places(text: &str) -> Vec<Place> {
    let one = |word: &str| {
        let (name, state) = word.split_once(':').unwrap();
        let disk = match state.trim_end_matches('?') {
            "ready" => Disk::Ready,
            "adding" | "taken" => Disk::Adding(Progress::default()),
            "mounted" => Disk::Adding(Progress { phase: "MountedToPod".to_owned(), ..Progress::default() }),
            "removing" => Disk::Removing(Progress::default()),
            "template" => Disk::InTemplate,
            "fixed" => Disk::Fixed("data".to_owned()),
            _ => Disk::Absent,
        };
        let machine = match state {
            "gone" => There::Missing,
            "deleted" => There::Leaving,
            _ => There::Yes,
        };
        Place {
            name: name.to_owned(),
            uid: format!("uid-{name}"),
            machine,
            disk,
            is_taken: matches!(state, "taken" | "mounted"),
            is_node: !state.ends_with('?'),
        }
    };
    text.split_whitespace().map(one).collect()
}

fn recorded(text: &str) -> Recorded {
    let (text, leaving) =
        text.split_once(", leaving ").map_or((text, None), |(text, name)| (text, Some(name)));
    let Some((machine, operation)) = text.split_once(' ') else { return Recorded::Nothing };
    let operation = if operation == "attach" { Operation::Attach } else { Operation::Detach };
    let machine = Machine { name: machine.to_owned(), uid: format!("uid-{machine}") };
    Recorded::Ownership(Ownership {
        leaving: leaving.map(str::to_owned),
        ..Ownership::new(machine, operation)
    })
}

fn seen(wanted: &str, has: &str, claim: &str, seconds: u64) -> Seen {
    Seen {
        attachments: attachments(wanted),
        places: places(has),
        claim: There::Yes,
        recorded: recorded(claim),
        unchanged_for: Duration::from_secs(seconds),
        is_ours: false,
    }
}

/// The steps in a word each, with the machine or VolumeAttachment.
fn words(steps: &[Step]) -> String {
    let word = |step: &Step| match step {
        Step::Look(rest) => format!("look {}", rest.as_secs()),
        Step::Await { machine, .. } => format!("await {machine}"),
        Step::Detach { machine, .. } => format!("detach {machine}"),
        Step::Attach { machine, .. } => format!("attach {machine}"),
        Step::Nudge { attachment } => format!("nudge {attachment}"),
        Step::Tell { attachments, why } => {
            let why = format!("{why:?}");
            let why: String = why.chars().take_while(char::is_ascii_alphanumeric).collect();
            format!("tell {} {why}", attachments.join("+"))
        }
    };
    steps.iter().map(word).collect::<Vec<_>>().join(", ")
}

#[rstest]
// nothing to be done
#[case::well("+a!", "a:ready", "a attach", 9, "")]
#[case::well_by_the_go_driver("+a!", "a:ready", "", 9, "")]
#[case::well_and_stopped("+a!", "a:template", "a attach", 9, "")]
#[case::nobody_wants_it("", "a:ready", "a attach", 99, "")]
// the attacher's own call comes first
#[case::just_wanted("+a", "a:absent", "", 1, "look 1")]
#[case::just_ready("+a", "a:ready", "a attach", 0, "look 2")]
#[case::just_leaving("-a", "a:ready", "a attach", 0, "look 2")]
// it keeps others out, unless it is in use when it comes
#[case::on_its_way("+a", "a:taken", "a attach", 29, "await a")]
#[case::not_brought("+a", "a:taken", "a attach", 30, "attach a")]
#[case::not_brought_again("+a!", "a:taken", "a attach", 30, "await a")]
#[case::about_to_be_ready("+a", "a:mounted", "a attach", 30, "await a")]
// into a machine
#[case::wanted("+a", "a:absent", "", 2, "attach a")]
#[case::vanished("+a!", "a:absent", "a attach", 2, "attach a")]
#[case::dead_holder("+a", "a:absent b:absent", "b attach", 2, "attach a")]
#[case::left_half_way("+a!", "a:ready", "a detach", 2, "attach a")]
#[case::annotation_of_another("+a!", "a:ready b:absent", "b attach", 2, "attach a")]
#[case::going_though_wanted("+a!", "a:removing", "a detach", 2, "attach a")]
#[case::template_alone("+a", "a:adding", "a attach", 4, "look 1")]
#[case::template_alone_for_long("+a", "a:adding", "a attach", 6, "attach a")]
#[case::on_its_way("+a", "a:taken", "a attach", 3, "look 5")]
#[case::late("+a", "a:taken", "a attach", 8, "await a")]
#[case::ready_unknown_to_the_guest("+a", "a:ready", "a attach", 2, "nudge va-a")]
#[case::stopped_unknown_to_the_guest("+a", "a:template", "a attach", 2, "nudge va-a")]
// out of a machine
#[case::leaves("-a", "a:ready", "a attach", 2, "detach a")]
#[case::leaves_in_template("-a", "a:template", "a attach", 2, "detach a")]
#[case::leaving("-a", "a:removing", "a detach", 9, "await a")]
#[case::leaving_for_long("-a", "a:removing", "a detach", 60, "detach a")]
#[case::has_left("-a", "a:absent", "", 2, "nudge va-a")]
#[case::machine_is_gone("-a", "a:gone", "a attach", 2, "nudge va-a")]
#[case::orphan("+a", "a:absent b:ready", "b attach", 2, "detach b")]
#[case::orphan_while_leaving("+a", "a:absent b:removing", "b detach", 9, "await b")]
#[case::orphan_of_no_node("+a", "a:absent b:ready?", "b attach", 9, "tell va-a Elsewhere")]
#[case::orphan_by_hand("+a", "a:absent b:fixed", "", 9, "tell va-a Fixed")]
#[case::two_and_one_is_wrong("+a!", "a:ready b:ready", "a attach", 2, "detach b")]
#[case::moves("-b! +a", "a:absent b:ready", "b attach", 2, "detach b")]
#[case::has_moved("-b! +a", "a:absent b:absent", "", 2, "nudge va-b, attach a")]
// a call was cut that gave way to another driver
#[case::given_way("+a +b!", "a:ready b:ready", "b attach, leaving a", 2, "detach a")]
#[case::given_way_and_both_say_so("+a! +b!", "a:ready b:ready", "b attach, leaving a", 2, "detach a")]
#[case::given_way_on_its_way("-a", "a:adding b:ready", "b attach, leaving a", 2, "detach a")]
#[case::given_way_and_gone("+a +b!", "a:absent b:ready", "b attach, leaving a", 8, "tell va-a InUse")]
// people have to do something
#[case::two_and_none_is_wrong("+a! +b!", "a:ready b:ready", "a attach", 8, "tell va-a+va-b InTwoMachines")]
#[case::in_use("+a! +b", "a:ready b:absent", "a attach", 8, "tell va-b InUse")]
#[case::in_use_and_both_say_so("+a! +b!", "a:ready b:absent", "a attach", 8, "tell va-b InUse")]
#[case::no_machine("+a!", "a:gone", "a attach", 8, "tell va-a NoMachine")]
#[case::machine_ends("+a", "a:deleted", "", 8, "tell va-a MachineLeaves")]
#[case::fixed("+a", "a:fixed", "", 8, "tell va-a Fixed")]
#[case::fixed_and_leaving("-a", "a:fixed", "", 8, "tell va-a Fixed")]
#[case::unknown_node("+unknown", "", "", 8, "tell va-unknown NoNodeId")]
// several want it, and it is nowhere
#[case::the_one_that_has_it_by_its_status("+a +b!", "a:absent b:absent", "", 8, "tell va-a InUse, attach b")]
#[case::the_one_of_the_annotation("+a +b", "a:absent b:absent", "b attach", 8, "tell va-a InUse, attach b")]
#[case::the_oldest("+b +a", "a:absent b:absent", "", 8, "tell va-a InUse, attach b")]
#[case::not_one_without_a_machine("+a! +b", "a:gone b:absent", "a attach", 8, "tell va-a InUse, attach b")]
fn each_state_has_its_steps(
    #[case] wanted: &str,
    #[case] has: &str,
    #[case] claim: &str,
    #[case] seconds: u64,
    #[case] expected: &str,
) {
    assert_eq!(words(&decide(&seen(wanted, has, claim, seconds))), expected);
}

#[rstest]
#[case(There::Missing, "tell va-a NoClaim")]
#[case(There::Leaving, "tell va-a ClaimLeaves")]
fn a_volume_that_is_no_more_comes_into_no_machine(#[case] claim: There, #[case] expected: &str) {
    let seen = Seen { claim, ..seen("+a", "a:absent", "", 8) };
    assert_eq!(words(&decide(&seen)), expected);
}

#[test]
fn what_the_reconciler_has_begun_waits_for_nobody() {
    let seen = Seen { is_ours: true, ..seen("+a", "a:ready", "a attach", 0) };
    assert_eq!(words(&decide(&seen)), "nudge va-a");
}

#[test]
fn a_disk_that_gives_way_leaves_though_its_machine_wants_it() {
    let seen = seen("+a +b!", "a:ready b:ready", "b attach, leaving a", 2);
    assert!(decide(&seen).iter().all(|step| !is_void(step, &seen)));
}

#[rstest]
#[case("+a", false, true)]
#[case("-a", true, false)]
#[case("", true, false)]
fn a_step_ends_when_its_reason_is_gone(#[case] wanted: &str, #[case] attach: bool, #[case] detach: bool) {
    let seen = seen(wanted, "a:absent", "", 0);
    let machine = "a".to_owned();
    let (in_, out) = (
        Step::Attach { attachment: "va-a".to_owned(), machine: machine.clone() },
        Step::Detach { attachments: vec![], machine },
    );
    assert_eq!((is_void(&in_, &seen), is_void(&out, &seen)), (attach, detach));
}
