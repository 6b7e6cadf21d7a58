//! A line for the person who waits.

use std::{
    future::Future,
    io::{self, IsTerminal as _, Write},
    pin::pin,
    time::Duration,
};

/// Who waits for less is told nothing.
const TOLD_AFTER: Duration = Duration::from_secs(1);

/// Does the work; on a terminal a line on the error output says from the first second on what it is and how long it takes,
/// and goes when it is done.
pub async fn progress<T>(what: &str, work: impl Future<Output = T>) -> T {
    if io::stderr().is_terminal() { told(what, work, &mut io::stderr()).await } else { work.await }
}

async fn told<T>(what: &str, work: impl Future<Output = T>, out: &mut impl Write) -> T {
    let mut work = pin!(work);
    for seconds in 1_u64.. {
        // nobody may read it
        match tokio::time::timeout(TOLD_AFTER, work.as_mut()).await {
            Ok(done) => {
                if seconds > 1 {
                    drop(write!(out, "\r\u{1b}[K").and_then(|()| out.flush()));
                }
                return done;
            }
            Err(_) => drop(write!(out, "\r\u{1b}[K{what}: {seconds} s").and_then(|()| out.flush())),
        }
    }
    work.await
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn said(seconds: u64) -> String {
        let mut out = Vec::new();
        told("reading", tokio::time::sleep(Duration::from_millis(seconds * 1000 - 500)), &mut out).await;
        String::from_utf8(out).expect("text")
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_for_more_than_a_second_is_told_for_what_and_the_line_goes_again() {
        assert_eq!(said(1).await, "");
        assert_eq!(said(3).await, "\r\u{1b}[Kreading: 1 s\r\u{1b}[Kreading: 2 s\r\u{1b}[K");
    }
}
