//! Errors as people read them: in a condition, an Event, a line of the log.

use std::{error::Error, sync::Arc};

use kube::core::Status;

/// With this rustls leads from a connection that broke off to its manual for programmers.
const MANUAL: &str = ": https://docs.rs/rustls/";

/// An error and its causes on one line, without repetitions. Of an API server's answer only its own message is taken:
/// `kube::Error` prints the whole Status around it.
pub fn error_message(error: &(dyn Error + 'static)) -> String {
    let (mut text, mut next) = (String::new(), Some(error));
    while let Some(error) = next {
        let (words, cause) = match answer(error) {
            Some(status) => (status.message.clone(), None),
            None => (without_manual(error.to_string()), error.source()),
        };
        if text.is_empty() {
            text = words;
        } else if !text.contains(&words) {
            text = format!("{text}: {words}");
        }
        next = cause;
    }
    text
}

/// The words without the link, which says nothing of a cluster.
fn without_manual(mut words: String) -> String {
    if let Some(start) = words.find(MANUAL) {
        let link = start + ": ".len();
        let end = words[link..].find(": ").map_or(words.len(), |length| link + length);
        words.replace_range(start..end, "");
    }
    words
}

/// The answer of an API server, if it says something.
fn answer<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a Status> {
    status(error).filter(|status| !status.message.is_empty())
}

/// The `Status` that this error carries itself.
pub(crate) fn status<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a Status> {
    let shared = || error.downcast_ref::<Arc<kube::Error>>().map(|shared| &**shared);
    match error.downcast_ref::<kube::Error>().or_else(shared)? {
        kube::Error::Api(status) => Some(&**status),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("write pool lab")]
    struct Alone(#[source] kube::Error);

    #[derive(Debug, thiserror::Error)]
    #[error("write pool lab")]
    struct Shared(#[source] Arc<kube::Error>);

    fn refused() -> kube::Error {
        let status = Status { message: "ippools is forbidden".to_owned(), code: 403, ..Status::default() };
        kube::Error::Api(Box::new(status))
    }

    #[test]
    fn an_answer_is_the_servers_own_message_behind_what_was_tried() {
        assert_eq!(error_message(&refused()), "ippools is forbidden");
        assert_eq!(error_message(&Alone(refused())), "write pool lab: ippools is forbidden");
        assert_eq!(error_message(&Shared(Arc::new(refused()))), "write pool lab: ippools is forbidden");
    }

    #[test]
    fn a_connection_that_broke_off_is_told_without_the_manual_of_a_library() {
        let words = "peer closed connection without sending TLS close_notify: \
                     https://docs.rs/rustls/latest/rustls/manual/_03_howto/index.html#unexpected-eof";
        let error = kube::Error::Service(Box::new(io::Error::other(words)));
        assert_eq!(
            error_message(&error),
            "ServiceError: peer closed connection without sending TLS close_notify"
        );
        assert_eq!(
            without_manual(format!("{words}: call again")),
            "peer closed connection without sending TLS close_notify: call again"
        );
    }

    #[test]
    fn a_cause_that_was_told_is_not_told_again() {
        let error = kube::Error::Service(Box::new(io::Error::other("connection refused")));
        assert_eq!(error_message(&error).matches("connection refused").count(), 1);
    }
}
