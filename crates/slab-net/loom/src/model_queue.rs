//! The two sides of a queue: where they wait for each other, who has a place in the lanes, and how either
//! side ends.

use super::event_count::EventCount;
use super::priority_lanes::{Priority, PriorityLanes, Pushed};
use super::queue::{Overflow, queue};
use crate::model::explore;
use crate::udp::PacketBatch;
use core::pin::pin;
use core::task::{Context, Waker};
use loom::sync::Notify;
use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use loom::thread;
use std::sync::Arc;
use std::task::Wake;

struct Task(Notify);

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        self.0.notify();
    }
}

/// One that is never woken is a deadlock, which loom reports.
fn block_on<F: Future>(future: F) -> F::Output {
    let task = Arc::new(Task(Notify::new()));
    let waker = Waker::from(Arc::clone(&task));
    let mut future = pin!(future);
    loop {
        let polled = future.as_mut().poll(&mut Context::from_waker(&waker));
        if let core::task::Poll::Ready(done) = polled {
            return done;
        }
        task.0.wait();
    }
}

/// What is waited for: so many things, put there by one side and taken by the other. No order
/// but that of the event count is between the two.
struct Things {
    events: EventCount,
    count: AtomicUsize,
}

impl Things {
    fn none() -> Arc<Self> {
        Arc::new(Self {
            events: EventCount::default(),
            count: AtomicUsize::new(0),
        })
    }

    fn put(&self, count: usize) {
        self.count.fetch_add(count, Ordering::Relaxed);
        self.events.notify(count);
    }

    fn take(&self) -> Option<()> {
        let mut now = self.count.load(Ordering::Relaxed);
        while now > 0 {
            let less =
                self.count
                    .compare_exchange(now, now - 1, Ordering::Relaxed, Ordering::Relaxed);
            match less {
                Ok(_) => return Some(()),
                Err(other) => now = other,
            }
        }
        None
    }

    fn wait(&self) {
        block_on(self.events.wait_for(|| self.take()));
    }
}

/// Trap: lost wake-up. One side changes something while the other begins to wait for it.
#[test]
fn who_waits_for_an_event_is_woken() {
    explore(None, || {
        let things = Things::none();
        let waits = {
            let things = Arc::clone(&things);
            thread::spawn(move || things.wait())
        };
        things.put(1);
        waits.join().unwrap();
    });
}

/// Two wait, and two things come, at once or one by one: each has one.
#[test]
fn as_many_are_woken_as_there_are_changes() {
    for turns in [&[2][..], &[1, 1]] {
        explore(Some(2), move || {
            let things = Things::none();
            let waiting = [(); 2].map(|()| {
                let things = Arc::clone(&things);
                thread::spawn(move || things.wait())
            });
            turns.iter().for_each(|&count| things.put(count));
            for one in waiting {
                one.join().unwrap();
            }
        });
    }
}

/// Trap: wake-up of a cancelled waiter. Two wait, one thing comes, and one of them gives up meanwhile.
#[test]
fn who_gives_up_hands_the_notification_on() {
    explore(Some(2), || {
        let things = Things::none();
        let gives_up = {
            let things = Arc::clone(&things);
            thread::spawn(move || {
                let mut waiting = pin!(things.events.wait_for(|| things.take()));
                let polled = waiting
                    .as_mut()
                    .poll(&mut Context::from_waker(Waker::noop()));
                polled.is_ready()
            })
        };
        let waits = {
            let things = Arc::clone(&things);
            thread::spawn(move || things.wait())
        };
        things.put(1);
        if gives_up.join().unwrap() {
            // It came just then.
            things.put(1);
        }
        waits.join().unwrap();
    });
}

/// A side ends while two others begin to wait for it.
#[test]
fn all_who_wait_for_the_end_are_woken() {
    explore(Some(3), || {
        let all = Arc::new((EventCount::default(), AtomicBool::new(false)));
        let waits = [(); 2].map(|()| {
            let all = Arc::clone(&all);
            thread::spawn(move || {
                let ended = || all.1.load(Ordering::Relaxed).then_some(());
                block_on(all.0.wait_for(ended));
            })
        });
        all.1.store(true, Ordering::Relaxed);
        all.0.notify_all();
        waits.map(|waits| waits.join().unwrap());
    });
}

/// Whoever has a place finds room for a batch: none is lost, and none comes out twice.
#[test]
fn a_lane_is_never_full_for_who_has_a_place() {
    explore(None, || {
        let lanes = Arc::new(PriorityLanes::new(
            1,
            Box::new(|_: &PacketBatch| Priority::Normal),
        ));
        let push = |lanes: &PriorityLanes, batch: u32| match lanes
            .push(Priority::Normal, PacketBatch(batch))
        {
            Pushed::Queued => None,
            Pushed::Replaced(batch) | Pushed::Refused(batch) => Some(batch.0),
        };
        assert_eq!(push(&lanes, 0), None);
        let consumer = {
            let lanes = Arc::clone(&lanes);
            thread::spawn(move || lanes.pop().map(|batch| batch.0))
        };
        let mut batches: Vec<u32> = push(&lanes, 1).into_iter().collect();
        batches.extend(consumer.join().unwrap());
        batches.extend(core::iter::from_fn(|| lanes.pop()).map(|batch| batch.0));
        batches.sort_unstable();
        assert_eq!(batches, [0, 1]);
    });
}

/// The same, and one takes over the place of a batch that matters less.
#[test]
fn a_place_that_was_taken_over_is_one() {
    explore(Some(3), || {
        let lanes = Arc::new(PriorityLanes::new(
            1,
            Box::new(|_: &PacketBatch| Priority::Normal),
        ));
        let push = |lanes: &PriorityLanes, priority, batch| match lanes
            .push(priority, PacketBatch(batch))
        {
            Pushed::Queued => None,
            Pushed::Replaced(batch) | Pushed::Refused(batch) => Some(batch.0),
        };
        assert_eq!(push(&lanes, Priority::Low, 0), None);
        let consumer = {
            let lanes = Arc::clone(&lanes);
            thread::spawn(move || {
                let batches = [lanes.pop(), lanes.pop()];
                batches.into_iter().flatten().map(|batch| batch.0).collect()
            })
        };
        let mut batches: Vec<u32> = Vec::new();
        batches.extend(push(&lanes, Priority::High, 1));
        batches.extend(push(&lanes, Priority::Low, 2));
        let consumed: Vec<u32> = consumer.join().unwrap();
        batches.extend(consumed);
        batches.extend(core::iter::from_fn(|| lanes.pop()).map(|batch| batch.0));
        batches.sort_unstable();
        assert_eq!(batches, [0, 1, 2]);
    });
}

/// The last sender goes behind its batch: consumers get the batch, and then the end.
#[test]
fn what_was_sent_comes_before_the_end() {
    explore(Some(2), || {
        let (sender, receiver) = queue(2.try_into().unwrap(), Overflow::DropNewest);
        let sends = thread::spawn(move || {
            block_on(sender.send(PacketBatch(7))).unwrap();
        });
        assert_eq!(block_on(receiver.recv()), Some(PacketBatch(7)));
        assert_eq!(block_on(receiver.recv()), None);
        sends.join().unwrap();
    });
}

/// The last receiver goes while a batch comes: it is taken, or dropped and counted, by one of the two.
#[test]
fn nothing_stays_in_a_queue_without_receivers() {
    explore(Some(3), || {
        let (sender, receiver) = queue(2.try_into().unwrap(), Overflow::DropNewest);
        let monitor = receiver.monitor();
        let goes = thread::spawn(move || drop(receiver));
        // An error counts its batch when it is dropped.
        let sent = format!("{:?}", block_on(sender.send(PacketBatch(7))));
        goes.join().unwrap();
        let stats = monitor.stats();
        assert_eq!((stats.datagrams, stats.dropped_closed), (0, 1), "{sent:?}");
    });
}

/// The last receiver goes and leaves a batch: whoever waited for that finds it counted.
#[test]
fn what_the_last_receiver_left_is_counted_when_the_queue_is_closed() {
    explore(Some(3), || {
        let (sender, receiver) = queue(1.try_into().unwrap(), Overflow::DropNewest);
        let monitor = receiver.monitor();
        block_on(sender.send(PacketBatch(7))).unwrap();
        let goes = thread::spawn(move || drop(receiver));
        block_on(sender.closed());
        // Loom does not see counters; of the queue it does.
        assert!(!sender.is_half_full(), "the batch is still queued");
        let stats = monitor.stats();
        assert_eq!((stats.datagrams, stats.dropped_closed), (0, 1));
        goes.join().unwrap();
    });
}

/// One waits for room, or for the end of the last receiver, who takes one batch first.
#[test]
fn who_waits_for_room_is_woken() {
    explore(Some(2), || {
        let (sender, receiver) = queue(1.try_into().unwrap(), Overflow::Wait);
        let monitor = receiver.monitor();
        block_on(sender.send(PacketBatch(0))).unwrap();
        let takes = thread::spawn(move || {
            assert_eq!(receiver.try_recv(), Some(PacketBatch(0)));
            drop(receiver);
        });
        let sent = format!("{:?}", block_on(sender.send(PacketBatch(1))));
        takes.join().unwrap();
        let stats = monitor.stats();
        assert_eq!((stats.datagrams, stats.delivered), (0, 1), "{sent:?}");
        assert_eq!(stats.dropped_closed, 1);
    });
}

/// Whatever the consumer is doing when a batch pushes another out: each comes once, or is counted, and the
/// last one sent comes.
#[test]
fn a_batch_pushes_out_what_is_not_taken() {
    explore(Some(3), || {
        let (sender, receiver) = queue(1.try_into().unwrap(), Overflow::DropOldest);
        let sends = thread::spawn(move || {
            for number in 0..2 {
                block_on(sender.send(PacketBatch(number))).unwrap();
            }
        });
        let receive = || block_on(receiver.recv()).map(|batch| batch.0);
        let got: Vec<u32> = core::iter::from_fn(receive).collect();
        sends.join().unwrap();
        assert!(got == [0, 1] || got == [1], "{got:?}");
        let stats = receiver.monitor().stats();
        assert_eq!(stats.delivered, got.len() as u64);
        assert_eq!(
            (stats.datagrams, stats.delivered + stats.dropped_policy),
            (0, 2)
        );
    });
}

/// Two batches push out at once: one of the three is left.
#[test]
fn two_batches_do_not_push_out_the_same() {
    explore(Some(3), || {
        let (sender, receiver) = queue(1.try_into().unwrap(), Overflow::DropOldest);
        block_on(sender.send(PacketBatch(0))).unwrap();
        let sends = {
            let sender = sender.clone();
            thread::spawn(move || block_on(sender.send(PacketBatch(1))).unwrap())
        };
        block_on(sender.send(PacketBatch(2))).unwrap();
        sends.join().unwrap();
        let left = receiver.try_recv().map(|batch| batch.0);
        assert!(left == Some(1) || left == Some(2), "{left:?}");
        assert_eq!(receiver.try_recv(), None);
        let stats = receiver.monitor().stats();
        assert_eq!((stats.delivered, stats.dropped_policy), (1, 2));
    });
}

/// The last receiver goes while a batch pushes out another: none stays.
#[test]
fn what_pushes_out_does_not_stay_without_receivers() {
    explore(Some(3), || {
        let (sender, receiver) = queue(1.try_into().unwrap(), Overflow::DropOldest);
        let monitor = receiver.monitor();
        block_on(sender.send(PacketBatch(0))).unwrap();
        let goes = thread::spawn(move || drop(receiver));
        let sent = format!("{:?}", block_on(sender.send(PacketBatch(1))));
        goes.join().unwrap();
        assert!(!sender.is_half_full(), "a batch is still queued");
        let stats = monitor.stats();
        assert_eq!(stats.datagrams, 0, "{sent:?}");
        assert_eq!(stats.dropped_closed + stats.dropped_policy, 2);
    });
}
