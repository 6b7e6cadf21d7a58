//! Faults on purpose.

use tokio::sync::watch;

/// What happens to the watches that are open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interruption {
    /// They end.
    Close,
    /// They get 410 in their stream, and end.
    Expire,
}

/// The faults of a server.
#[derive(Debug)]
pub(crate) struct Faults {
    interruptions: watch::Sender<(u64, Interruption)>,
}

impl Default for Faults {
    fn default() -> Self {
        Self { interruptions: watch::Sender::new((0, Interruption::Close)) }
    }
}

impl Faults {
    pub(crate) fn interruptions(&self) -> watch::Receiver<(u64, Interruption)> {
        self.interruptions.subscribe()
    }
}
