//! [`Wakers`]: the tasks that wait for one event.

use core::task::Waker;
use std::collections::VecDeque;

/// The most tasks that wait for one event of a session, or for the next session. A cancelled wait leaves its waker
/// here until something comes. If there are too many, a new one wakes a task that has waited for long, which waits
/// again if it still has to.
const MAX_WAKERS: usize = 256;

/// Tasks that wait for one event; seldom more than one.
#[derive(Debug, Default)]
pub(super) struct Wakers {
    first: Option<Waker>,
    more: Vec<Waker>,
}

impl Wakers {
    pub(super) fn add(&mut self, waker: &Waker, woken: &mut Woken) {
        match &self.first {
            None => self.first = Some(waker.clone()),
            Some(first) if first.will_wake(waker) => {}
            Some(_) if self.more.iter().any(|known| known.will_wake(waker)) => {}
            Some(_) => {
                if self.more.len() + 1 == MAX_WAKERS {
                    woken.push(self.more.remove(0));
                }
                self.more.push(waker.clone());
            }
        }
    }

    /// Moves all of them to `woken`.
    pub(super) fn wake(&mut self, woken: &mut Woken) {
        if let Some(first) = self.first.take() {
            woken.push(first);
        }
        self.more.drain(..).for_each(|waker| woken.push(waker));
    }
}

/// Tasks to wake; dropping it wakes them. A waker is foreign code, which may take any lock: drop this after those
/// that are held. If one panics, the others are woken all the same.
#[must_use]
#[derive(Default)]
pub(super) struct Woken {
    /// As many as usually wait, without an allocation.
    few: [Option<Waker>; 4],
    more: VecDeque<Waker>,
}

impl Woken {
    fn push(&mut self, waker: Waker) {
        match self.few.iter_mut().find(|place| place.is_none()) {
            Some(place) => *place = Some(waker),
            None => self.more.push_back(waker),
        }
    }

    fn wake_rest(&mut self) {
        let few = self.few.iter_mut().filter_map(Option::take);
        few.for_each(Waker::wake);
        while let Some(waker) = self.more.pop_front() {
            waker.wake();
        }
    }
}

impl Drop for Woken {
    fn drop(&mut self) {
        struct Rest<'a>(&'a mut Woken);

        impl Drop for Rest<'_> {
            fn drop(&mut self) {
                self.0.wake_rest();
            }
        }

        Rest(self).0.wake_rest();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    #[derive(Default)]
    struct Task {
        woken: AtomicUsize,
    }

    impl Wake for Task {
        fn wake(self: Arc<Self>) {
            self.woken.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn wakers_of_cancelled_waits_are_bounded_and_none_is_lost() {
        let mut wakers = Wakers::default();
        let tasks: Vec<_> = (0..10_000).map(|_| Arc::new(Task::default())).collect();
        let woken = || {
            let woken = tasks.iter().map(|task| task.woken.load(Ordering::Relaxed));
            woken.collect::<Vec<_>>()
        };
        for (added, task) in (1..).zip(&tasks) {
            for _ in 0..2 {
                wakers.add(&Waker::from(Arc::clone(task)), &mut Woken::default());
            }
            let held = tasks.iter().filter(|task| Arc::strong_count(task) > 1);
            if added % 100 == 0 {
                assert_eq!(held.count(), added.min(MAX_WAKERS));
                assert_eq!(woken().iter().sum::<usize>(), added - added.min(MAX_WAKERS));
            }
        }
        let mut last = Woken::default();
        wakers.wake(&mut last);
        assert_eq!(woken().iter().sum::<usize>(), tasks.len() - MAX_WAKERS);
        drop(last);
        assert!(woken().iter().all(|&times| times == 1));
        assert_eq!(Arc::strong_count(&tasks[0]), 1);
    }

    #[test]
    fn a_waker_that_panics_takes_no_wake_up_from_the_others() {
        struct Panics;

        impl Wake for Panics {
            fn wake(self: Arc<Self>) {
                panic!("a foreign waker");
            }
        }

        for panics_at in 0..6 {
            let mut wakers = Wakers::default();
            let tasks: Vec<_> = (0..5).map(|_| Arc::new(Task::default())).collect();
            let mut others = tasks.iter().map(|task| Waker::from(Arc::clone(task)));
            for at in 0..6 {
                let waker = match at == panics_at {
                    true => Waker::from(Arc::new(Panics)),
                    false => others.next().unwrap(),
                };
                wakers.add(&waker, &mut Woken::default());
            }
            let mut woken = Woken::default();
            wakers.wake(&mut woken);
            let waking = std::panic::AssertUnwindSafe(|| drop(woken));
            assert!(std::panic::catch_unwind(waking).is_err());
            let woken = |task: &Arc<Task>| task.woken.load(Ordering::Relaxed) == 1;
            assert!(tasks.iter().all(woken), "{panics_at}");
        }
    }
}
