//! What is remembered of the VMs whose guest agents were asked.

use std::{collections::HashMap, time::Duration};

/// An agent that answers without a host name is asked again after this time: a host name has no watch. The pause doubles
/// with each such answer …
const ASK_AGAIN: Duration = Duration::from_secs(30);
/// … up to this.
const ASK_AGAIN_MAX: Duration = Duration::from_secs(600);
/// So many errors in a row are left to the queue, whose pauses grow from milliseconds to ten seconds by then.
const ERRORS: u32 = 12;

/// By the name of the VM.
#[derive(Debug, Default)]
pub(super) struct Asked(HashMap<String, Answer>);

#[derive(Debug)]
struct Answer {
    /// UID of the instance that was asked.
    uid: String,
    /// It said its host name.
    is_given: bool,
    silences: u32,
    errors: u32,
}

impl Asked {
    /// Whether this instance has said its host name.
    pub(super) fn is_answered(&self, vm: &str, uid: &str) -> bool {
        self.0.get(vm).is_some_and(|answer| answer.uid == uid && answer.is_given)
    }

    pub(super) fn given(&mut self, vm: &str, uid: &str) {
        let answer = self.of(vm, uid);
        (answer.is_given, answer.silences, answer.errors) = (true, 0, 0);
    }

    /// The agent reports no host name. When to ask again.
    pub(super) fn silent(&mut self, vm: &str, uid: &str) -> Duration {
        let answer = self.of(vm, uid);
        answer.errors = 0;
        answer.silences += 1;
        pause(answer.silences)
    }

    /// The question failed. When to ask again, if not by the queue's own back-off.
    pub(super) fn failed(&mut self, vm: &str, uid: &str) -> Option<Duration> {
        let answer = self.of(vm, uid);
        answer.errors += 1;
        (answer.errors > ERRORS).then(|| pause(answer.errors - ERRORS))
    }

    /// The VM is asked anew once its agent answers.
    pub(super) fn forget(&mut self, vm: &str) {
        self.0.remove(vm);
    }

    /// Forgets the VMs that are not there any more.
    pub(super) fn keep(&mut self, is_there: impl Fn(&str) -> bool) {
        self.0.retain(|vm, _| is_there(vm));
    }

    fn of(&mut self, vm: &str, uid: &str) -> &mut Answer {
        let fresh = || Answer { uid: uid.to_owned(), is_given: false, silences: 0, errors: 0 };
        let answer = self.0.entry(vm.to_owned()).or_insert_with(fresh);
        if answer.uid != uid {
            *answer = fresh();
        }
        answer
    }
}

/// The pause after so many answers in a row that were of no use.
fn pause(count: u32) -> Duration {
    ASK_AGAIN.saturating_mul(1 << (count - 1).min(16)).min(ASK_AGAIN_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_without_a_host_name_is_asked_less_and_less_often() {
        let mut asked = Asked::default();
        let seconds: Vec<_> = (0..7).map(|_| asked.silent("a", "1").as_secs()).collect();
        assert_eq!(seconds, [30, 60, 120, 240, 480, 600, 600]);
        assert_eq!(asked.silent("a", "2").as_secs(), 30, "another instance");
        asked.forget("a");
        assert_eq!(asked.silent("a", "2").as_secs(), 30, "its agent was away");
    }

    #[test]
    fn questions_that_fail_are_the_queues_at_first_and_get_a_growing_pause_then() {
        let mut asked = Asked::default();
        assert!((0..ERRORS).all(|_| asked.failed("a", "1").is_none()));
        let seconds: Vec<_> = (0..6).filter_map(|_| asked.failed("a", "1")).map(|it| it.as_secs()).collect();
        assert_eq!(seconds, [30, 60, 120, 240, 480, 600]);
        asked.given("a", "1");
        assert_eq!(asked.failed("a", "1"), None);
    }

    #[test]
    fn an_answer_is_remembered_for_its_instance_and_while_its_vm_is_there() {
        let mut asked = Asked::default();
        asked.given("a", "1");
        assert!(asked.is_answered("a", "1") && !asked.is_answered("a", "2") && !asked.is_answered("b", "1"));
        asked.keep(|vm| vm == "a");
        assert!(asked.is_answered("a", "1"));
        asked.keep(|_| false);
        assert!(!asked.is_answered("a", "1") && asked.0.is_empty());
    }
}
