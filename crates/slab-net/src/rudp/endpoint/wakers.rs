//! [`Wakers`]: the tasks that wait for one event.

use crate::finish::finish;
use arrayvec::ArrayVec;
use core::task::Waker;
use std::collections::VecDeque;

/// So many tasks may wait without an allocation each time.
const MAX_KEPT: usize = 64;

/// Tasks that wait for one event; seldom more than one.
#[derive(Debug, Default)]
pub(super) struct Wakers {
    first: Option<(u64, Waker)>,
    /// In the order of their numbers. No `Vec`: many that time out go in this order, each from the front.
    #[expect(clippy::box_collection, reason = "kept small: few sessions need it")]
    more: Option<Box<VecDeque<(u64, Waker)>>>,
}

/// Who waits: a future, or a stream, which may wait for two events. When it is over, take it back from
/// [each](Wakers::remove): an event may be long in coming.
#[derive(Debug, Default)]
pub(super) struct Wait {
    /// Nobody else's, among all that wait for the same events. 0 before it has begun.
    number: u64,
}

impl Wait {
    /// `last` is the last number that was given to one.
    pub(super) fn begin(&mut self, last: &mut u64) {
        if !self.has_begun() {
            *last += 1;
            self.number = *last;
        }
    }

    pub(super) fn has_begun(&self) -> bool {
        self.number != 0
    }
}

impl Wakers {
    /// Has the event wake this task, and not the one for which this wait, which has begun, was added before.
    pub(super) fn add(&mut self, wait: &Wait, waker: &Waker, woken: &mut Woken) {
        if let Some(known) = self.get_mut(wait) {
            if !known.will_wake(waker) {
                woken.replaced[0] = Some(core::mem::replace(known, waker.clone()));
            }
            return;
        }
        let new = (wait.number, waker.clone());
        match self.first {
            None => self.first = Some(new),
            Some(_) => {
                let more = self.more.get_or_insert_default();
                // At the end, but for a stream that has waited before.
                let at = more.partition_point(|&(number, _)| number < wait.number);
                more.insert(at, new);
            }
        }
    }

    /// The wait is over, whether the event has come or not. Drop the waker after all locks that are held: it is
    /// foreign code.
    pub(super) fn remove(&mut self, wait: &Wait) -> Option<Waker> {
        let first = self.first.take_if(|first| first.0 == wait.number);
        let (_, waker) = first.or_else(|| {
            let more = self.more.as_mut()?;
            let removed = more.remove(position(more, wait)?)?;
            if more.len() < more.capacity() / 4 {
                // All of many may be cancelled, and nobody woken for long.
                more.shrink_to(MAX_KEPT.max(2 * more.len()));
            }
            Some(removed)
        })?;
        Some(waker)
    }

    fn get_mut(&mut self, wait: &Wait) -> Option<&mut Waker> {
        let first = self.first.as_mut().filter(|first| first.0 == wait.number);
        let (_, waker) = first.or_else(|| {
            let more = self.more.as_mut()?;
            let at = position(more, wait)?;
            Some(&mut more[at])
        })?;
        Some(waker)
    }

    /// Moves all of them to `woken`.
    pub(super) fn wake(&mut self, woken: &mut Woken) {
        if let Some((_, first)) = self.first.take() {
            woken.push(first);
        }
        if let Some(more) = &mut self.more {
            more.drain(..).for_each(|(_, waker)| woken.push(waker));
            more.shrink_to(MAX_KEPT);
        }
    }
}

fn position(more: &VecDeque<(u64, Waker)>, wait: &Wait) -> Option<usize> {
    let found = more.binary_search_by_key(&wait.number, |&(number, _)| number);
    found.ok()
}

/// Tasks to wake; dropping it wakes them. A waker is foreign code, which may take any lock: drop this after those
/// that are held. If one panics, the others are woken all the same.
#[must_use]
#[derive(Default)]
pub(super) struct Woken {
    /// As many as usually wait, without an allocation.
    few: ArrayVec<Waker, 4>,
    /// Those for which there is no room.
    more: Vec<Waker>,
    /// Not to be woken, but dropped as late.
    pub(super) replaced: [Option<Waker>; 3],
}

impl Woken {
    fn push(&mut self, waker: Waker) {
        if let Err(full) = self.few.try_push(waker) {
            self.more.push(full.element());
        }
    }
}

impl Drop for Woken {
    #[inline]
    fn drop(&mut self) {
        // Mostly nobody is to be woken, and this is a part of each lock.
        if !self.few.is_empty() {
            let mut all = self.few.drain(..).chain(self.more.drain(..));
            finish(|| all.next().map(Waker::wake).is_some());
        }
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

    fn begun(count: usize) -> Vec<Wait> {
        let mut last = 0;
        let mut waits: Vec<_> = (0..count).map(|_| Wait::default()).collect();
        waits.iter_mut().for_each(|wait| wait.begin(&mut last));
        waits
    }

    #[test]
    fn waits_that_are_over_leave_nothing_and_all_others_are_woken_once() {
        const TASKS: usize = 1000;
        let mut wakers = Wakers::default();
        let tasks: Vec<_> = (0..TASKS).map(|_| Arc::new(Task::default())).collect();
        let waits = begun(TASKS);
        let is_over = |task: usize| (task % 7).is_multiple_of(3);
        for round in 1..=2 {
            // Also those that have waited before, in another order.
            let both = (0..TASKS).map(|at| at * [1, 7][round - 1] % TASKS);
            for at in both {
                let waker = Waker::from(Arc::clone(&tasks[at]));
                for _ in 0..2 {
                    wakers.add(&waits[at], &waker, &mut Woken::default());
                }
            }
            for (task, wait) in waits.iter().enumerate().filter(|&(task, _)| is_over(task)) {
                assert!(wakers.remove(wait).is_some());
                assert!(wakers.remove(wait).is_none());
                assert_eq!(Arc::strong_count(&tasks[task]), 1);
            }
            let mut woken = Woken::default();
            wakers.wake(&mut woken);
            drop(woken);
            for (at, task) in tasks.iter().enumerate() {
                let times = if is_over(at) { 0 } else { round };
                assert_eq!(task.woken.load(Ordering::Relaxed), times, "{at}");
                assert_eq!(Arc::strong_count(task), 1);
            }
        }
    }

    #[test]
    fn waits_that_were_cancelled_leave_no_memory_behind() {
        let mut wakers = Wakers::default();
        for newest_first in [false, true] {
            let mut waits = begun(1000);
            for wait in &waits {
                wakers.add(wait, Waker::noop(), &mut Woken::default());
            }
            if newest_first {
                waits.reverse();
            }
            assert!(waits.iter().all(|wait| wakers.remove(wait).is_some()));
            let kept = wakers.more.as_ref().map_or(0, |more| more.capacity());
            assert!(kept <= MAX_KEPT, "{kept}");
        }
    }

    /// A stream is polled by another task than before.
    #[test]
    fn a_wait_wakes_the_last_task_that_polled_for_it() {
        let mut wakers = Wakers::default();
        let tasks = [(); 3].map(|()| Arc::new(Task::default()));
        let waits = begun(2);
        for (wait, task) in [(0, 0), (1, 0), (1, 1), (0, 2)] {
            let waker = Waker::from(Arc::clone(&tasks[task]));
            wakers.add(&waits[wait], &waker, &mut Woken::default());
        }
        assert_eq!(Arc::strong_count(&tasks[0]), 1);
        let mut woken = Woken::default();
        wakers.wake(&mut woken);
        drop(woken);
        let times = tasks.map(|task| task.woken.load(Ordering::Relaxed));
        assert_eq!(times, [0, 1, 1]);
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
            for (at, wait) in begun(6).iter().enumerate() {
                let waker = match at == panics_at {
                    true => Waker::from(Arc::new(Panics)),
                    false => others.next().unwrap(),
                };
                wakers.add(wait, &waker, &mut Woken::default());
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
