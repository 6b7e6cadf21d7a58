//! Questions whose answers decide for the life of the process.

use kube::runtime::watcher::DefaultBackoff;

/// Asks until the server has answered, be it with no: with what was asked for, or with the refusal (403, 404, …).
/// An answer that another try may change is none: a broken connection, 5xx, 429, 409, and 401, which a new token mends.
pub(crate) async fn insist<T, Answer>(what: &str, ask: impl Fn() -> Answer) -> kube::Result<T>
where
    Answer: Future<Output = kube::Result<T>>,
{
    let mut waits = DefaultBackoff::default();
    loop {
        let error = match ask().await {
            Err(error) if !is_refusal(&error) => error,
            answer => return answer,
        };
        let retry_in = waits.next().unwrap_or_default();
        tracing::warn!(error = &error as &dyn std::error::Error, ?retry_in, "cannot {what} yet");
        tokio::time::sleep(retry_in).await;
    }
}

/// Whether the server will say the same to the same request again, as far as it alone is asked.
pub(crate) fn is_refusal(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if matches!(status.code, 400..500) && !matches!(status.code, 401 | 408 | 409 | 429))
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use kube::core::Status;
    use rstest::rstest;

    use super::*;

    fn refused(code: u16) -> kube::Error {
        kube::Error::Api(Box::new(Status::failure("no", "No").with_code(code)))
    }

    #[rstest]
    #[case::had(vec![Ok(1)], Some(1))]
    #[case::forbidden(vec![Err(refused(403)), Ok(1)], None)]
    #[case::not_there(vec![Err(refused(404)), Ok(1)], None)]
    #[case::had_in_the_end(vec![Err(refused(500)), Err(refused(429)), Err(refused(409)), Ok(1)], Some(1))]
    #[case::forbidden_in_the_end(vec![Err(refused(503)), Err(refused(403)), Ok(1)], None)]
    #[tokio::test(start_paused = true)]
    async fn only_an_answer_that_lasts_is_one(
        #[case] answers: Vec<kube::Result<u32>>,
        #[case] expected: Option<u32>,
    ) {
        let answers = RefCell::new(answers.into_iter());
        let answer =
            insist("ask", || async { answers.borrow_mut().next().expect("not asked that often") }).await;
        assert_eq!(answer.ok(), expected);
    }
}
