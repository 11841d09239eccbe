//! Wakers are foreign code: one panics, another looks at the queue.

use crate::{Source, drain, make, number, poll_once};
use slab_net::pipeline::{Overflow, Priority, priority_queue};
use slab_net::slab_core::{Chunk, SlabPool};
use slab_net::udp::PacketBatch;
use slab_net::{AllocError, PacketPool, SizeClasses};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Waker};

/// Who waits for memory when a batch is dropped. Its waker is foreign code.
struct MemoryWaiter<'a> {
    /// All memory but that of the batches.
    _taken: Vec<Chunk>,
    _waiting: Pin<Box<dyn Future<Output = Result<Chunk, AllocError>> + 'a>>,
}

impl<'a> MemoryWaiter<'a> {
    /// `wake` is called once a batch is dropped. All chunks of the pool have one size.
    fn new(slab: &'a SlabPool, wake: impl Fn() + Send + Sync + 'static) -> Self {
        struct Calls<F>(F);
        impl<F: Fn() + Send + Sync> std::task::Wake for Calls<F> {
            fn wake(self: Arc<Self>) {
                (self.0)();
            }
        }
        let taken = std::iter::from_fn(|| slab.try_alloc(100).ok()).collect();
        let waker = Waker::from(Arc::new(Calls(wake)));
        let mut waiting = Box::pin(slab.alloc(100));
        let polled = waiting.as_mut().poll(&mut Context::from_waker(&waker));
        assert!(polled.is_pending());
        Self {
            _taken: taken,
            _waiting: waiting,
        }
    }
}

fn source_of_one_size() -> Source {
    let one_size = SizeClasses::explicit(&[2048]).unwrap();
    let pool = PacketPool::builder().size_classes(one_size);
    Source::of(pool.max_memory(1 << 20))
}

/// Calls what drops a batch, whose memory a waiter with a panicking waker waits for.
fn assert_waker_panics(call: impl FnOnce()) {
    let called = std::panic::catch_unwind(std::panic::AssertUnwindSafe(call));
    assert!(called.is_err(), "the waker was called");
}

#[tokio::test]
async fn a_panicking_waker_leaves_nothing_in_a_closed_queue() {
    let mut source = source_of_one_size();
    let (sender, receiver) = make(3, Overflow::Wait);
    let monitor = receiver.monitor();
    for n in 0..3 {
        sender.send(source.batch(n).await).await.unwrap();
    }
    let batch = source.batch(3).await;
    let mut blocked = Box::pin(sender.send(batch));
    assert!(poll_once(blocked.as_mut()).await.is_none());
    let slab = source.pool.slab().clone();
    let waiter = MemoryWaiter::new(&slab, || panic!("by a waker"));
    assert_waker_panics(|| drop(receiver));
    assert_eq!(monitor.stats().dropped_closed, 3);
    assert!(matches!(poll_once(blocked.as_mut()).await, Some(Err(_))));
    drop((blocked, waiter));
    let stats = monitor.stats();
    assert_eq!((stats.dropped_closed, stats.datagrams), (4, 0));
    assert_eq!(source.in_use(), 0);
}

#[tokio::test]
async fn a_panicking_waker_leaves_the_arriving_batch_counted() {
    let by_number = |batch: &PacketBatch| match number(batch) {
        0 => Priority::Low,
        _ => Priority::High,
    };
    for (sender, receiver) in [
        make(1, Overflow::DropOldest),
        priority_queue(1.try_into().unwrap(), by_number),
    ] {
        let mut source = source_of_one_size();
        sender.send(source.batch(0).await).await.unwrap();
        let arriving = source.batch(1).await;
        let slab = source.pool.slab().clone();
        let waiter = MemoryWaiter::new(&slab, || panic!("by a waker"));
        let mut sending = Box::pin(sender.send(arriving));
        assert_waker_panics(|| {
            let _ = sending
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop()));
        });
        drop((sending, waiter));
        let stats = receiver.monitor().stats();
        assert_eq!((stats.enqueued, stats.dropped_policy), (2, 1));
        assert_eq!(stats.datagrams, 1);
        assert_eq!(drain(&receiver), [1]);
        assert_eq!(receiver.monitor().stats().datagrams, 0);
        assert_eq!(source.in_use(), 0);
    }
}

/// Of the batches that are not sent any more, the first calls the waker when it is dropped.
#[tokio::test]
async fn a_panicking_waker_leaves_all_unsent_batches_counted() {
    let mut source = source_of_one_size();
    let (sender, receiver) = make(1, Overflow::Wait);
    let monitor = receiver.monitor();
    let mut unsent = Vec::new();
    for n in 0..3 {
        unsent.push(source.batch(n).await);
    }
    let slab = source.pool.slab().clone();
    let never_polled = sender.send_many(unsent);
    let waiter = MemoryWaiter::new(&slab, || panic!("by a waker"));
    assert_waker_panics(|| drop(never_polled));
    drop(waiter);
    assert_eq!(monitor.stats().dropped_closed, 3);
    assert!(receiver.try_recv().is_none());
    assert_eq!(source.in_use(), 0);
}

/// Of several tasks that are woken together, the first has a waker that panics. The others must not sleep on.
#[tokio::test]
async fn a_panicking_waker_keeps_nobody_asleep() {
    type Waiting<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

    /// Counts how often it is woken, and panics then if it is to.
    struct Woken {
        times: AtomicUsize,
        panics: bool,
    }
    impl std::task::Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.times.fetch_add(1, Ordering::Relaxed);
            assert!(!self.panics, "by a waker");
        }
    }
    /// Waits in turn, and checks that `call` wakes them all.
    fn assert_all_woken(waiting: &mut [Waiting<'_>], call: impl FnOnce()) {
        let woken: Vec<_> = (0..waiting.len())
            .map(|n| (AtomicUsize::new(0), n == 0))
            .map(|(times, panics)| Arc::new(Woken { times, panics }))
            .collect();
        for (future, woken) in waiting.iter_mut().zip(&woken) {
            let waker = Waker::from(Arc::clone(woken));
            let polled = future.as_mut().poll(&mut Context::from_waker(&waker));
            assert!(polled.is_pending());
        }
        assert_waker_panics(call);
        for (n, woken) in woken.iter().enumerate() {
            assert_eq!(woken.times.load(Ordering::Relaxed), 1, "number {n}");
        }
    }
    let mut source = Source::new();
    let mut batches = Vec::new();
    for n in 0..5 {
        batches.push(source.batch(n).await);
    }

    // Consumers, by several batches and by the end.
    let (sender, receiver) = make(3, Overflow::Wait);
    let consumer = || -> Waiting<'_> { Box::pin(async { drop(receiver.recv().await) }) };
    let mut sending = Box::pin(sender.send_many(batches.drain(..3)));
    assert_all_woken(&mut [consumer(), consumer(), consumer()], || {
        let _ = sending
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()));
    });
    drop(sending);
    assert_eq!(drain(&receiver), [0, 1, 2]);
    assert_all_woken(&mut [consumer(), consumer()], || drop(sender));

    // Producers, by the end; and who waits for nothing else.
    let (sender, receiver) = make(1, Overflow::Wait);
    sender.send(source.batch(5).await).await.unwrap();
    let producer = |batch| -> Waiting<'_> {
        let sending = sender.send(batch);
        Box::pin(async { _ = sending.await })
    };
    let (first, second) = (batches.remove(0), batches.remove(0));
    let closed = Box::pin(sender.closed());
    assert_all_woken(&mut [producer(first), producer(second), closed], || {
        drop(receiver)
    });
}

/// Dropping the first of two batches calls a waker, which looks.
#[tokio::test]
async fn closed_completes_only_when_everything_is_counted() {
    let mut source = source_of_one_size();
    let (sender, receiver) = make(2, Overflow::DropNewest);
    for n in 0..2 {
        sender.send(source.batch(n).await).await.unwrap();
    }
    let slab = source.pool.slab().clone();
    let monitor = receiver.monitor();
    let seen = Arc::new(std::sync::Mutex::new(None));
    let looks = Arc::clone(&seen);
    let waiter = MemoryWaiter::new(&slab, move || {
        let mut closed = std::pin::pin!(sender.closed());
        let polled = closed
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()));
        let mut seen = looks.lock().unwrap();
        seen.get_or_insert((polled.is_ready(), sender.is_closed()));
    });
    drop(receiver);
    assert_eq!(*seen.lock().unwrap(), Some((false, true)));
    assert_eq!(monitor.stats().dropped_closed, 2);
    drop(waiter);
    assert_eq!(source.in_use(), 0);
}
