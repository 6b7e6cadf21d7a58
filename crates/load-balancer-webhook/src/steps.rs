//! Steps of a review, counted in tests: a walk over objects that a review does not concern is a fault which neither an answer
//! nor a small cluster shows.

/// One object is looked at, or one name looked up.
#[inline]
pub(crate) fn step() {
    #[cfg(test)]
    tests::STEPS.set(tests::STEPS.get() + 1);
}

#[cfg(test)]
pub(crate) use tests::steps_of;

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    thread_local! {
        pub(super) static STEPS: Cell<usize> = const { Cell::new(0) };
    }

    /// The steps of `work`, which stays in this thread.
    pub(crate) fn steps_of<T>(work: impl FnOnce() -> T) -> usize {
        let before = STEPS.get();
        work();
        STEPS.get() - before
    }
}
