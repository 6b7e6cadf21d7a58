//! What servers answer, for those who count it.

use std::{fmt, sync::Arc, time::Duration};

use http::{HeaderMap, Method};

/// One request and what became of it.
#[derive(Debug)]
pub struct Answered<'a> {
    pub method: &'a Method,
    /// Host and port of the server.
    pub host: &'a str,
    /// `None`: no answer came.
    pub code: Option<u16>,
    /// Headers of the answer.
    pub headers: Option<&'a HeaderMap>,
    /// From sending it to the head of the answer.
    pub took: Duration,
    /// What it waited for its turn before.
    pub queued: Duration,
}

type Told = dyn Fn(&Answered<'_>) + Send + Sync;

/// Hears of every request. `f` must be quick: each request waits for it.
#[derive(Clone, Default)]
pub struct Observer(Option<Arc<Told>>);

impl Observer {
    pub fn new(f: impl Fn(&Answered<'_>) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(f)))
    }

    pub(crate) fn tell(&self, answered: &Answered<'_>) {
        if let Some(told) = &self.0 {
            told(answered);
        }
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Observer").field(&self.0.is_some()).finish()
    }
}
