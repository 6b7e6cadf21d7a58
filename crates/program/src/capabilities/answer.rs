//! One right: the question, and what its answers make of it.

use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use kube::{Api, Client, api::PostParams};
use tokio::time::Instant;

use super::{GRANTED_PERIOD, REFUSED_PERIOD, Right};

/// The answer of an API server to a question about a right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Granted,
    Refused,
    /// 401: nobody knows who we are.
    Unauthorized(String),
    /// The server does not answer such questions for us (403, 404, …): only requests themselves tell.
    Unanswerable,
    /// No answer, or one that another try may change.
    Failed,
}

/// A right, as the answers so far show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tracked {
    /// No request is worth a try now.
    pub(super) refused: bool,
    /// Asked at least once, with any answer.
    pub(super) asked: bool,
    /// Granted once, and refused since. Where the server answers no questions, it stays so while a request is tried.
    pub(super) lost: bool,
    /// When to ask next.
    pub(super) due: Instant,
}

impl Tracked {
    pub(super) fn new(now: Instant) -> Self {
        Self { refused: false, asked: false, lost: false, due: now }
    }

    pub(super) fn answered(&mut self, answer: &Answer, now: Instant) {
        let was_granted = self.asked && !self.is_told();
        self.asked = true;
        match answer {
            Answer::Granted => {
                (self.refused, self.lost) = (false, false);
                self.due = now + GRANTED_PERIOD;
            }
            Answer::Refused => {
                (self.refused, self.lost) = (true, self.lost || was_granted);
                self.due = now + REFUSED_PERIOD;
            }
            Answer::Unanswerable if !self.is_told() => self.due = now + GRANTED_PERIOD,
            // only a request can tell: the next one is a try
            Answer::Unanswerable if self.lost => {
                self.refused = false;
                self.due = now + REFUSED_PERIOD;
            }
            Answer::Unanswerable | Answer::Unauthorized(_) | Answer::Failed => {
                self.due = now + REFUSED_PERIOD;
            }
        }
    }

    /// Callers know that the right is refused. A try takes that back only when it succeeds: to and fro, they would hear
    /// of it each time.
    pub(super) fn is_told(&self) -> bool {
        self.refused || self.lost
    }

    /// Only a request can tell whether the right is back.
    pub(super) fn is_to_try(&self) -> bool {
        self.lost && !self.refused
    }

    /// A request that needs the right succeeded. Returns whether that is news.
    pub(super) fn saw_success(&mut self, now: Instant) -> bool {
        let is_news = self.is_to_try();
        if is_news {
            self.lost = false;
            self.due = now + GRANTED_PERIOD;
        }
        is_news
    }

    /// A request that needs the right got 403.
    pub(super) fn saw_refusal(&mut self, now: Instant) {
        if self.refused {
            return;
        }
        (self.refused, self.lost, self.asked) = (true, true, true);
        self.due = now + REFUSED_PERIOD;
    }
}

pub(super) async fn ask(client: Client, right: &Right) -> Answer {
    let api: Api<SelfSubjectAccessReview> = Api::all(client);
    match api.create(&PostParams::default(), &question(right)).await {
        Ok(review) => match review.status {
            Some(status) if status.allowed => Answer::Granted,
            Some(_) => Answer::Refused,
            None => Answer::Failed,
        },
        Err(kube::Error::Api(status)) => match status.code {
            401 => Answer::Unauthorized(status.message.clone()),
            400 | 403..=405 | 422 => Answer::Unanswerable,
            _ => Answer::Failed,
        },
        Err(_) => Answer::Failed,
    }
}

fn question(right: &Right) -> SelfSubjectAccessReview {
    let Right { verb, group, resource, subresource, namespace, name } = right;
    let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let attributes = ResourceAttributes {
        namespace: namespace.clone(),
        verb: text(verb),
        group: text(group),
        resource: text(resource),
        subresource: text(subresource),
        name: name.as_deref().map(str::to_owned),
        ..ResourceAttributes::default()
    };
    let spec = SelfSubjectAccessReviewSpec { resource_attributes: Some(attributes), ..Default::default() };
    SelfSubjectAccessReview { spec, ..SelfSubjectAccessReview::default() }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const SOON: u64 = REFUSED_PERIOD.as_secs();
    const LATE: u64 = GRANTED_PERIOD.as_secs();

    fn unknown() -> Answer {
        Answer::Unauthorized("Unauthorized".into())
    }

    // refused, lost, seconds until the next question
    #[rstest]
    #[case::granted(&[Answer::Granted], (false, false, LATE))]
    #[case::refused_from_the_start(&[Answer::Refused], (true, false, SOON))]
    #[case::no_answer_counts_as_yes(&[Answer::Failed], (false, false, SOON))]
    #[case::lost(&[Answer::Granted, Answer::Refused], (true, true, SOON))]
    #[case::still_lost(&[Answer::Granted, Answer::Refused, Answer::Refused], (true, true, SOON))]
    #[case::back(&[Answer::Granted, Answer::Refused, Answer::Granted], (false, false, LATE))]
    #[case::a_failure_changes_nothing(&[Answer::Refused, Answer::Failed], (true, false, SOON))]
    #[case::nor_do_credentials(&[Answer::Refused, unknown()], (true, false, SOON))]
    #[case::a_server_that_does_not_say(&[Answer::Unanswerable], (false, false, LATE))]
    #[case::nor_does_it_after_a_refusal(&[Answer::Refused, Answer::Unanswerable], (true, false, SOON))]
    #[case::nor_after_a_grant(&[Answer::Granted, Answer::Unanswerable], (false, false, LATE))]
    fn a_right_is_asked_about_often_while_it_is_refused(
        #[case] answers: &[Answer],
        #[case] expected: (bool, bool, u64),
    ) {
        let now = Instant::now();
        let mut tracked = Tracked::new(now);
        answers.iter().for_each(|answer| tracked.answered(answer, now));
        assert_eq!((tracked.refused, tracked.lost, (tracked.due - now).as_secs()), expected);
    }

    #[test]
    fn where_nobody_answers_a_refusal_ends_for_a_try_and_is_told_until_one_succeeds() {
        let now = Instant::now();
        let mut tracked = Tracked::new(now);
        tracked.saw_refusal(now);
        assert!(tracked.refused && tracked.lost);
        assert!(!tracked.saw_success(now), "a request that was on its way when another was refused");
        for round in 1..3 {
            let now = now + round * REFUSED_PERIOD;
            assert_eq!(tracked.due, now);
            tracked.answered(&Answer::Unanswerable, now);
            assert!(!tracked.refused && tracked.lost);
            tracked.saw_refusal(now);
            assert!(tracked.refused && tracked.lost);
        }
        let now = now + 3 * REFUSED_PERIOD;
        tracked.answered(&Answer::Unanswerable, now);
        assert!(tracked.saw_success(now) && !tracked.is_told());
        assert_eq!(tracked.due, now + GRANTED_PERIOD);
    }

    #[test]
    fn many_refusals_do_not_put_the_question_off() {
        let now = Instant::now();
        let mut tracked = Tracked::new(now);
        tracked.saw_refusal(now);
        tracked.saw_refusal(now + REFUSED_PERIOD / 2);
        assert_eq!(tracked.due, now + REFUSED_PERIOD);
    }
}
