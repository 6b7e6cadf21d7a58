//! Steps of a look, counted in tests: a walk over objects that a change does not concern is a fault which neither a result
//! nor a small cluster shows.

/// One object, record or pool is looked at.
#[inline]
pub(crate) fn step() {
    #[cfg(test)]
    tests::STEPS.set(tests::STEPS.get() + 1);
}

#[cfg(test)]
pub(crate) use tests::{steps_of, steps_so_far};

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    thread_local! {
        pub(super) static STEPS: Cell<usize> = const { Cell::new(0) };
    }

    /// The steps of this thread.
    pub(crate) fn steps_so_far() -> usize {
        STEPS.get()
    }

    /// The steps of `work`, which stays in this thread.
    pub(crate) fn steps_of<T>(work: impl FnOnce() -> T) -> usize {
        let before = STEPS.get();
        work();
        STEPS.get() - before
    }
}
