//! Those who want to hear of changes.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard},
};

type Subscriber<T> = Arc<dyn Fn(&T) + Send + Sync>;

/// Functions that are called at each change `T`, in the order in which they came.
pub struct Subscribers<T: ?Sized = ()>(Mutex<Vec<Subscriber<T>>>);

impl<T: ?Sized> Subscribers<T> {
    /// Calls `subscriber` at each change from now on.
    pub fn add(&self, subscriber: impl Fn(&T) + Send + Sync + 'static) {
        self.all().push(Arc::new(subscriber));
    }

    /// Calls everybody. Nothing is locked meanwhile: a subscriber may add another, or cause the next change.
    pub fn tell(&self, change: &T) {
        let all = self.all().clone();
        for subscriber in all {
            subscriber(change);
        }
    }

    fn all(&self) -> MutexGuard<'_, Vec<Subscriber<T>>> {
        self.0.lock().expect("no panic while a subscriber is added")
    }
}

impl<T: ?Sized> Default for Subscribers<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: ?Sized> fmt::Debug for Subscribers<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} subscribers", self.all().len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subscribers_hear_of_a_change_in_their_order_and_may_bring_others() {
        let (subscribers, heard) =
            (Arc::new(Subscribers::<str>::default()), Arc::<Mutex<Vec<String>>>::default());
        let note = |name: &'static str| {
            let heard = heard.clone();
            move |change: &str| heard.lock().unwrap().push(format!("{name} {change}"))
        };
        let (all, third) = (subscribers.clone(), note("third"));
        subscribers.add(note("first"));
        subscribers.add(note("second"));
        subscribers.add(move |_| all.add(third.clone()));
        subscribers.tell("a");
        assert_eq!(*heard.lock().unwrap(), ["first a", "second a"]);
        subscribers.tell("b");
        assert_eq!(heard.lock().unwrap()[2..], ["first b", "second b", "third b"]);
    }
}
