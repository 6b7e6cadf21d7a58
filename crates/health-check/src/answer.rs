//! What a backend's answer to an HTTP request says. Pure: bytes go in, a result comes out.
//!
//! The bytes are foreign. Nothing here allocates, and nothing of them but the status code gets into a result.

use httparse::{EMPTY_HEADER, Error, ParserConfig, Response, Status};

use crate::DialError;

/// So much of an answer is read. What comes after it does not count.
pub(crate) const MOST_READ: usize = 1_024;

/// Headers that are parsed; an answer with more counts by its status.
const MOST_HEADERS: usize = 64;

/// What may follow the bytes that were read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rest {
    /// More, if the backend sends it.
    Open,
    /// Nothing: the backend closed the connection.
    Closed,
    /// Nothing that is read.
    Unread,
}

/// The result of the probe, or nothing while it takes more bytes. The head has to come to its end, or to the end of what
/// is read; then its status decides. Headers count for nothing, so a redirection (3xx) leads nowhere.
pub(crate) fn judge(mut read: &[u8], rest: Rest) -> Option<Result<(), DialError>> {
    loop {
        let mut headers = [EMPTY_HEADER; MOST_HEADERS];
        let mut response = Response::new(&mut headers);
        let parsed = ParserConfig::default()
            .ignore_invalid_headers_in_responses(true)
            .parse_response(&mut response, read);
        // the reason is known once the status line came to its end
        let status = response.code.filter(|_| response.reason.is_some());
        return match (parsed, status) {
            // another answer follows, as after `100 Continue`; after 101 it would not be HTTP
            (Ok(Status::Complete(length)), Some(100 | 102..=199)) => {
                read = &read[length..];
                continue;
            }
            (Ok(Status::Complete(_)) | Err(Error::TooManyHeaders), Some(status)) => Some(of_status(status)),
            (Ok(Status::Partial), status) => match (rest, status) {
                (Rest::Open, _) => None,
                (Rest::Closed, _) => Some(Err(DialError::Closed)),
                (Rest::Unread, Some(status)) => Some(of_status(status)),
                (Rest::Unread, None) => Some(Err(DialError::NotHttp)),
            },
            (Ok(Status::Complete(_)) | Err(_), _) => Some(Err(DialError::NotHttp)),
        };
    }
}

fn of_status(status: u16) -> Result<(), DialError> {
    if (200..400).contains(&status) { Ok(()) } else { Err(DialError::Status(status)) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::ok("HTTP/1.1 200 OK\r\nServer: x\r\n\r\nbody", Ok(()))]
    #[case::old("HTTP/1.0 200 OK\r\n\r\n", Ok(()))]
    #[case::without_reason("HTTP/1.1 204\r\n\r\n", Ok(()))]
    #[case::bare_line_feeds("HTTP/1.1 200 OK\n\n", Ok(()))]
    #[case::redirection("HTTP/1.1 302 Found\r\nLocation: http://elsewhere/\r\n\r\n", Ok(()))]
    #[case::the_last_good_one("HTTP/1.1 399 x\r\n\r\n", Ok(()))]
    #[case::the_first_bad_one("HTTP/1.1 400 Bad\r\n\r\n", Err(DialError::Status(400)))]
    #[case::unavailable("HTTP/1.1 503 Service Unavailable\r\n\r\n", Err(DialError::Status(503)))]
    #[case::upgrade(
        "HTTP/1.1 101 Switching Protocols\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
        Err(DialError::Status(101))
    )]
    #[case::no_status_of_http("HTTP/1.1 999 x\r\n\r\n", Err(DialError::Status(999)))]
    #[case::after_continue("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n\r\n", Ok(()))]
    #[case::after_hints(
        "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 500 x\r\n\r\n",
        Err(DialError::Status(500))
    )]
    #[case::header_of_no_sense("HTTP/1.1 200 OK\r\n\x01 x\r\nA: b\r\n\r\n", Ok(()))]
    #[case::no_http("SSH-2.0-OpenSSH_9.9\r\n", Err(DialError::NotHttp))]
    #[case::http_0_9("<html>hello</html>\r\n", Err(DialError::NotHttp))]
    #[case::http_2("HTTP/2.0 200 OK\r\n\r\n", Err(DialError::NotHttp))]
    #[case::no_number("HTTP/1.1 2OO OK\r\n\r\n", Err(DialError::NotHttp))]
    #[case::too_long_a_number("HTTP/1.1 2000 OK\r\n\r\n", Err(DialError::NotHttp))]
    #[case::tls_alert("\x15\x03\x01\0\x02\x02\x46", Err(DialError::NotHttp))]
    fn the_status_of_the_answer_decides(#[case] read: &str, #[case] expected: Result<(), DialError>) {
        assert_eq!(judge(read.as_bytes(), Rest::Open), Some(expected.clone()));
        assert_eq!(judge(read.as_bytes(), Rest::Closed), Some(expected));
    }

    #[rstest]
    #[case::nothing("", DialError::NotHttp)]
    #[case::endless_reason("HTTP/1.1 200 OOOOO", DialError::NotHttp)]
    #[case::continue_for_ever(
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n",
        DialError::NotHttp
    )]
    #[case::informational_for_ever("HTTP/1.1 103 x\r\nA: b\r\n", DialError::Status(103))]
    fn an_answer_without_its_end_is_waited_for_and_fails_when_nothing_more_comes(
        #[case] read: &str,
        #[case] when_unread: DialError,
    ) {
        assert_eq!(judge(read.as_bytes(), Rest::Open), None);
        assert_eq!(judge(read.as_bytes(), Rest::Closed), Some(Err(DialError::Closed)));
        assert_eq!(judge(read.as_bytes(), Rest::Unread), Some(Err(when_unread)));
    }

    #[rstest]
    #[case(200, Ok(()))]
    #[case(503, Err(DialError::Status(503)))]
    fn a_head_that_is_longer_than_what_is_read_counts_by_its_status(
        #[case] status: u16,
        #[case] expected: Result<(), DialError>,
    ) {
        let long = format!("HTTP/1.1 {status} x\r\nSet-Cookie: {}", "c".repeat(MOST_READ));
        let many = format!("HTTP/1.1 {status} x\r\n{}", "a:b\r\n".repeat(MOST_HEADERS + 1));
        assert_eq!(judge(&long.as_bytes()[..MOST_READ], Rest::Open), None);
        assert_eq!(judge(&long.as_bytes()[..MOST_READ], Rest::Unread), Some(expected.clone()));
        assert_eq!(judge(many.as_bytes(), Rest::Open), Some(expected));
    }

    proptest! {
        #[test]
        fn whatever_a_backend_sends_is_judged(bytes in proptest::collection::vec(any::<u8>(), 0..MOST_READ)) {
            prop_assert!(judge(&bytes, Rest::Closed).is_some());
            prop_assert!(judge(&bytes, Rest::Unread).is_some());
        }

        #[test]
        fn what_is_near_to_http_is_judged_alike_however_it_is_cut(
            parts in proptest::collection::vec(prop_oneof![
                Just("HTTP/1.1 "), Just("HTTP/1.0 "), Just("100 Continue"), Just("200 OK"), Just("503 x"), Just("\r\n"), Just("\n"),
                Just(" "), Just("A: b"), Just("\0"), Just(":"), Just("é"),
            ], 0..24),
        ) {
            let bytes = parts.concat().into_bytes();
            let whole = judge(&bytes, Rest::Closed);
            let piece = (0..=bytes.len()).find_map(|end| judge(&bytes[..end], Rest::Open));
            prop_assert_eq!(piece.or_else(|| judge(&bytes, Rest::Closed)), whole);
        }
    }
}
