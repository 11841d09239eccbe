//! The queue between real sockets and consumers.
//!
//! | file | what |
//! |---|---|
//! | `main` | overflow, the two ends, several consumers |
//! | `log` | what is logged of what a queue drops |
//! | `wakers` | wakers, which are foreign code: they panic, or look at the queue |

mod log;
#[path = "../udp/common/mod.rs"]
mod udp_common;
mod wakers;

use slab_net::pipeline::{Overflow, QueueReceiver, QueueSender, flow_queues, queue};
use slab_net::udp::{Coalescing, PacketBatch, Transmit, UdpReceiver};
use slab_net::{PacketPool, PacketPoolBuilder};
use udp_common::{HANG, LOOPBACK};

/// A socket that sends to itself, to make batches of any number of datagrams.
struct Source {
    pool: PacketPool,
    socket: UdpReceiver,
}

impl Source {
    fn new() -> Self {
        Self::of(PacketPool::builder().max_memory(16 << 20))
    }

    fn of(pool: PacketPoolBuilder) -> Self {
        let pool = pool.build().unwrap();
        // One batch per datagram, so that the test controls what a queue holds on every system.
        let socket = UdpReceiver::builder(&pool)
            .coalescing(Coalescing::Off { max_datagram: 100 })
            .bind(LOOPBACK)
            .unwrap();
        Self { pool, socket }
    }

    async fn batch(&mut self, n: u64) -> PacketBatch {
        let to = self.socket.local_addr();
        let bytes = n.to_le_bytes();
        let sender = self.socket.sender();
        sender.send(&Transmit::new(&bytes, to)).await.unwrap();
        self.socket.recv_batch().await.unwrap()
    }

    /// The chunks in use, except those that the socket reads into.
    fn in_use(&mut self) -> u64 {
        // A socket that has nothing more to read holds no buffer.
        assert!(self.socket.try_recv_batch().unwrap().is_none());
        self.pool.slab().stats().in_use()
    }
}

fn number(batch: &PacketBatch) -> u64 {
    u64::from_le_bytes(batch.contents().try_into().unwrap())
}

fn make(capacity: usize, overflow: Overflow) -> (QueueSender, QueueReceiver) {
    queue(capacity.try_into().unwrap(), overflow)
}

fn drain(receiver: &QueueReceiver) -> Vec<u64> {
    std::iter::from_fn(|| receiver.try_recv())
        .map(|batch| number(&batch))
        .collect()
}

#[tokio::test]
async fn drop_newest_keeps_what_is_queued() {
    let mut source = Source::new();
    let (sender, receiver) = make(4, Overflow::DropNewest);
    let monitor = receiver.monitor();
    for n in 0..10 {
        sender.send(source.batch(n).await).await.unwrap();
    }
    let stats = monitor.stats();
    assert_eq!((stats.datagrams, stats.capacity_batches), (4, 4));
    assert_eq!(stats.batches, 4);
    assert_eq!((stats.enqueued, stats.dropped_queue_full), (4, 6));
    // Each datagram is a number of eight bytes.
    assert_eq!((stats.bytes, stats.enqueued_bytes), (4 * 8, 4 * 8));
    assert_eq!(stats.dropped_queue_full_bytes, 6 * 8);
    assert_eq!(source.in_use(), 4, "what is dropped is free at once");
    assert_eq!(drain(&receiver), [0, 1, 2, 3]);
    let stats = monitor.stats();
    assert_eq!((stats.delivered, stats.datagrams, stats.batches), (4, 0, 0));
    assert_eq!(stats.delivered + stats.dropped(), 10);
    assert_eq!((stats.delivered_bytes, stats.bytes), (4 * 8, 0));
    assert_eq!(stats.delivered_bytes + stats.dropped_bytes(), 10 * 8);
    assert_eq!(source.in_use(), 0);
    // What is still queued when both ends go is not counted as waiting.
    sender.send(source.batch(10).await).await.unwrap();
    assert_eq!(monitor.stats().batches, 1);
    drop((sender, receiver));
    let stats = monitor.stats();
    assert_eq!((stats.batches, stats.dropped_closed), (0, 1));
}

#[tokio::test]
async fn drop_oldest_keeps_what_is_recent() {
    let mut source = Source::new();
    let (sender, receiver) = make(4, Overflow::DropOldest);
    let monitor = receiver.monitor();
    for n in 0..10 {
        sender.send(source.batch(n).await).await.unwrap();
    }
    let stats = monitor.stats();
    assert_eq!((stats.datagrams, stats.enqueued), (4, 10));
    assert_eq!((stats.dropped_policy, stats.dropped_queue_full), (6, 0));
    assert_eq!((stats.dropped_policy_bytes, stats.bytes), (6 * 8, 4 * 8));
    assert_eq!(source.in_use(), 4);
    assert_eq!(drain(&receiver), [6, 7, 8, 9]);
    let stats = monitor.stats();
    assert_eq!(stats.delivered + stats.dropped(), 10);
}

#[tokio::test]
async fn the_wait_policy_waits_for_room_and_drops_nothing() {
    let mut source = Source::new();
    let (sender, receiver) = make(2, Overflow::Wait);
    let monitor = receiver.monitor();
    sender.send(source.batch(0).await).await.unwrap();
    sender.send(source.batch(1).await).await.unwrap();
    let third = source.batch(2).await;
    let mut waiting = Box::pin(sender.send(third));
    assert!(
        poll_once(waiting.as_mut()).await.is_none(),
        "the queue is full"
    );
    assert_eq!(number(&receiver.recv().await.unwrap()), 0);
    assert!(matches!(poll_once(waiting.as_mut()).await, Some(Ok(()))));
    drop(waiting);
    assert_eq!(drain(&receiver), [1, 2]);

    // A send that is dropped while it waits is counted.
    sender.send(source.batch(3).await).await.unwrap();
    sender.send(source.batch(4).await).await.unwrap();
    let fifth = source.batch(5).await;
    let mut waiting = Box::pin(sender.send(fifth));
    assert!(poll_once(waiting.as_mut()).await.is_none());
    drop(waiting);
    let stats = monitor.stats();
    assert_eq!((stats.dropped_closed, stats.dropped()), (1, 1));
    assert_eq!((stats.dropped_closed_bytes, stats.dropped_bytes()), (8, 8));
    assert_eq!((stats.delivered, stats.datagrams), (3, 2));
    assert_eq!(source.in_use(), 2);
}

#[tokio::test]
async fn try_send_applies_the_policy_and_gives_back_what_would_wait() {
    let mut source = Source::new();
    let (sender, receiver) = make(1, Overflow::Wait);
    let monitor = receiver.monitor();
    sender.try_send(source.batch(0).await).unwrap();
    for n in 1..4 {
        let full = sender.try_send(source.batch(n).await).unwrap_err();
        assert!(!full.is_closed());
        assert_eq!(full.to_string(), "the queue is full");
        let stats = monitor.stats();
        assert_eq!((stats.enqueued, stats.dropped()), (n, 0), "not lost yet");
        let batch = full.into_batch();
        assert_eq!(number(&batch), n);
        assert_eq!(drain(&receiver), [n - 1]);
        sender.try_send(batch).unwrap();
    }
    // An error that nobody looks at is a loss.
    drop(sender.try_send(source.batch(4).await));
    let stats = monitor.stats();
    assert_eq!((stats.dropped_queue_full, stats.dropped()), (1, 1));
    assert_eq!((stats.dropped_queue_full_bytes, stats.bytes), (8, 8));
    assert_eq!(source.in_use(), 1, "what is dropped is free at once");

    drop(receiver);
    let closed = sender.try_send(source.batch(5).await).unwrap_err();
    assert!(closed.is_closed());
    assert_eq!(closed.to_string(), "the queue has no receiver left");
    assert_eq!(number(&closed.into_batch()), 5);
    assert_eq!(monitor.stats().dropped_closed, 1, "what was queued");
    drop(sender.try_send(source.batch(6).await));
    let stats = monitor.stats();
    assert_eq!((stats.dropped_closed, stats.dropped()), (2, 3));
    assert_eq!(source.in_use(), 0);

    let (sender, receiver) = make(1, Overflow::DropNewest);
    let monitor = receiver.monitor();
    sender.try_send(source.batch(0).await).unwrap();
    sender.try_send(source.batch(1).await).unwrap();
    assert_eq!(monitor.stats().dropped_queue_full, 1);
    assert_eq!(drain(&receiver), [0]);

    let (sender, receiver) = make(1, Overflow::DropOldest);
    let monitor = receiver.monitor();
    sender.try_send(source.batch(0).await).unwrap();
    sender.try_send(source.batch(1).await).unwrap();
    assert_eq!(monitor.stats().dropped_policy, 1);
    assert_eq!(drain(&receiver), [1]);
}

#[tokio::test]
async fn try_send_wakes_a_consumer() {
    let mut source = Source::new();
    let (sender, receiver) = make(1, Overflow::Wait);
    let consumer = tokio::spawn(async move { receiver.recv().await.map(|batch| number(&batch)) });
    tokio::task::yield_now().await;
    sender.try_send(source.batch(7).await).unwrap();
    let got = tokio::time::timeout(HANG, consumer).await;
    assert_eq!(got.expect("hangs").unwrap(), Some(7));
}

/// Like the loser of a `select!`.
#[tokio::test]
async fn a_send_that_is_never_polled_is_counted() {
    fn require_send<T: Send>(future: T) -> T {
        future
    }
    let mut source = Source::new();
    let (sender, receiver) = make(4, Overflow::DropNewest);
    let one = source.batch(0).await;
    drop(require_send(sender.send(one)));
    let many = [source.batch(1).await, source.batch(2).await];
    drop(require_send(sender.send_many(many)));
    let stats = receiver.monitor().stats();
    assert_eq!((stats.dropped_closed, stats.dropped()), (3, 3));
    assert_eq!((stats.datagrams, source.in_use()), (0, 0));
}

#[tokio::test]
async fn consumers_drain_the_queue_after_the_last_sender() {
    let mut source = Source::new();
    let (sender, receiver) = make(8, Overflow::DropNewest);
    let other = sender.clone();
    sender.send(source.batch(1).await).await.unwrap();
    drop(sender);
    assert!(!receiver.is_closed());
    other.send(source.batch(2).await).await.unwrap();
    // A second consumer is already waiting when the end comes.
    let (one, two) = (receiver.clone(), receiver);
    assert_eq!(one.recv().await.map(|batch| number(&batch)), Some(1));
    assert_eq!(one.recv().await.map(|batch| number(&batch)), Some(2));
    let mut waiting = Box::pin(two.recv());
    assert!(poll_once(waiting.as_mut()).await.is_none());
    drop(other);
    assert!(one.is_closed());
    assert!(matches!(poll_once(waiting.as_mut()).await, Some(None)));
    assert!(one.recv().await.is_none());
    assert!(one.recv().await.is_none(), "and it stays so");
    assert_eq!(one.recv_many(&mut Vec::new(), 4).await, 0);
}

#[tokio::test]
async fn dropping_the_last_consumer_frees_the_queued_batches() {
    for overflow in [Overflow::Wait, Overflow::DropNewest, Overflow::DropOldest] {
        let mut source = Source::new();
        let (sender, receiver) = make(2, overflow);
        let monitor = receiver.monitor();
        let second = receiver.clone();
        sender.send(source.batch(0).await).await.unwrap();
        sender.send(source.batch(1).await).await.unwrap();
        drop(receiver);
        assert_eq!(monitor.stats().datagrams, 2, "a consumer is left");
        let mut sent = 2;
        if overflow == Overflow::Wait {
            let batch = source.batch(2).await;
            let mut waiting = Box::pin(sender.send(batch));
            assert!(poll_once(waiting.as_mut()).await.is_none());
            drop(second);
            let error = poll_once(waiting.as_mut()).await.unwrap().unwrap_err();
            assert!(error.is_closed());
            assert_eq!(monitor.stats().dropped_closed, sent, "the error has it");
            // As if it went to another queue: it is not counted here.
            assert_eq!(number(&error.into_batch()), 2);
        } else {
            drop(second);
        }
        assert!(sender.send(source.batch(3).await).await.is_err());
        sent += 1;
        let stats = monitor.stats();
        assert_eq!((stats.datagrams, stats.delivered), (0, 0));
        assert_eq!(stats.dropped_closed, sent);
        assert_eq!(source.in_use(), 0);
    }
}

/// A lost wake-up would leave a consumer or a producer waiting for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_producers_and_consumers_lose_no_batch_and_no_wake_up() {
    const PRODUCERS: u64 = 3;
    const EACH: u64 = 2000;
    for (capacity, overflow) in [
        (1, Overflow::Wait),
        (3, Overflow::Wait),
        (2, Overflow::DropNewest),
        (2, Overflow::DropOldest),
    ] {
        let (sender, receiver) = make(capacity, overflow);
        let monitor = receiver.monitor();
        let producers: Vec<_> = (0..PRODUCERS)
            .map(|producer| {
                let sender = sender.clone();
                tokio::spawn(async move {
                    let mut source = Source::new();
                    for n in 0..EACH {
                        let batch = source.batch(producer * EACH + n).await;
                        sender.send(batch).await.unwrap();
                    }
                    source.pool
                })
            })
            .collect();
        drop(sender);
        let consumers: Vec<_> = (0..4)
            .map(|consumer| {
                let receiver = receiver.clone();
                tokio::spawn(async move {
                    let mut numbers = Vec::new();
                    let mut many = Vec::new();
                    loop {
                        match consumer {
                            // Cancels its wait again and again.
                            0 => tokio::select! {
                                biased;
                                batch = receiver.recv() => match batch {
                                    Some(batch) => numbers.push(number(&batch)),
                                    None => break,
                                },
                                () = tokio::task::yield_now() => {}
                            },
                            1 => {
                                if receiver.recv_many(&mut many, 3).await == 0 {
                                    break;
                                }
                                numbers.extend(many.drain(..).map(|batch| number(&batch)));
                            }
                            _ => match receiver.recv().await {
                                Some(batch) => numbers.push(number(&batch)),
                                None => break,
                            },
                        }
                    }
                    numbers
                })
            })
            .collect();
        let all = async {
            let mut pools = Vec::new();
            for producer in producers {
                pools.push(producer.await.unwrap());
            }
            let mut numbers = Vec::new();
            for consumer in consumers {
                numbers.extend(consumer.await.unwrap());
            }
            (pools, numbers)
        };
        let (pools, mut numbers) = tokio::time::timeout(HANG, all)
            .await
            .unwrap_or_else(|_| panic!("hangs: {overflow:?} {:?}", monitor.stats()));
        let got = numbers.len() as u64;
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len() as u64, got, "no batch came twice");
        let stats = monitor.stats();
        assert_eq!(stats.delivered, got);
        assert_eq!(stats.delivered + stats.dropped(), PRODUCERS * EACH);
        assert_eq!(stats.datagrams, 0);
        if overflow == Overflow::Wait {
            assert_eq!(got, PRODUCERS * EACH);
        }
        for pool in pools {
            assert_eq!(pool.slab().stats().in_use(), 0);
        }
    }
}

/// Nothing follows that would wake the others.
#[tokio::test]
async fn send_many_and_recv_many_wake_one_waiter_per_batch() {
    let mut source = Source::new();
    let (sender, receiver) = make(3, Overflow::Wait);
    let consumers = [(); 3].map(|()| {
        let receiver = receiver.clone();
        tokio::spawn(async move { receiver.recv().await.map(|batch| number(&batch)) })
    });
    let mut three = Vec::new();
    for n in 0..3 {
        three.push(source.batch(n).await);
    }
    tokio::task::yield_now().await;
    sender.send_many(three).await.unwrap();
    for consumer in consumers {
        let got = tokio::time::timeout(HANG, consumer).await;
        assert!(got.expect("hangs").unwrap().is_some());
    }

    for n in 3..6 {
        sender.send(source.batch(n).await).await.unwrap();
    }
    let mut producers = Vec::new();
    for n in 6..9 {
        let (sender, batch) = (sender.clone(), source.batch(n).await);
        producers.push(tokio::spawn(async move { sender.send(batch).await }));
    }
    tokio::task::yield_now().await;
    let mut many = Vec::new();
    assert_eq!(receiver.recv_many(&mut many, 3).await, 3);
    for producer in producers {
        let sent = tokio::time::timeout(HANG, producer).await;
        sent.expect("hangs").unwrap().unwrap();
    }
    assert_eq!(receiver.recv_many(&mut many, 2).await, 2, "the limit");
    assert_eq!(many.len(), 3 + 2);
}

/// The queue is never empty, so only receiving itself can yield the thread.
#[tokio::test]
async fn send_many_wakes_a_consumer_before_it_waits_for_room() {
    let mut source = Source::new();
    let (sender, receiver) = make(1, Overflow::Wait);
    let consumer = tokio::spawn(async move {
        let mut got = Vec::new();
        while let Some(batch) = receiver.recv().await {
            got.push(number(&batch));
        }
        got
    });
    let batches = [0, 1, 2].map(|n: u64| {
        let bytes = n.to_le_bytes();
        PacketBatch::try_copy_from_slice(&source.pool, &bytes, 0, LOOPBACK).unwrap()
    });
    tokio::task::yield_now().await;
    let sent = tokio::time::timeout(HANG, sender.send_many(batches)).await;
    sent.expect("hangs").unwrap();
    drop(sender);
    assert_eq!(consumer.await.unwrap(), [0, 1, 2]);
    assert_eq!(source.in_use(), 0);
}

#[tokio::test]
async fn a_busy_consumer_yields_its_thread() {
    let mut source = Source::new();
    let (sender, receiver) = make(500, Overflow::DropNewest);
    for n in 0..500 {
        sender.send(source.batch(n).await).await.unwrap();
    }
    let other = tokio::spawn(async {});
    for _ in 0..500 {
        receiver.recv().await.unwrap();
    }
    assert!(other.is_finished(), "no other task got to run");
}

/// The queue never makes it wait, so only sending itself can yield the thread.
#[tokio::test]
async fn a_busy_producer_yields_its_thread() {
    let source = Source::new();
    let batch =
        || PacketBatch::try_copy_from_slice(&source.pool, &0_u64.to_le_bytes(), 0, LOOPBACK);
    for many in [false, true] {
        let (sender, _receiver) = make(1, Overflow::DropOldest);
        let other = tokio::spawn(async {});
        for _ in 0..500 {
            match many {
                false => sender.send(batch().unwrap()).await.unwrap(),
                true => sender.send_many([batch().unwrap()]).await.unwrap(),
            }
        }
        assert!(other.is_finished(), "no other task got to run");
    }
    let one = 1.try_into().unwrap();
    let (sender, _receivers) = flow_queues(one, one, Overflow::DropOldest);
    let other = tokio::spawn(async {});
    for _ in 0..500 {
        sender.send_many([batch().unwrap()]).await.unwrap();
    }
    assert!(other.is_finished(), "no other task got to run");
}

#[tokio::test]
async fn dropping_the_consumer_during_send_many_empties_the_queue() {
    for overflow in [Overflow::Wait, Overflow::DropNewest, Overflow::DropOldest] {
        let mut source = Source::new();
        let (sender, receiver) = make(8, overflow);
        let monitor = receiver.monitor();
        let mut three = Vec::new();
        for n in 0..3 {
            three.push(source.batch(n).await);
        }
        let mut receiver = Some(receiver);
        let batches = three.into_iter().inspect(|batch| {
            if number(batch) == 1 {
                receiver = None;
            }
        });
        assert!(sender.send_many(batches).await.is_err());
        let stats = monitor.stats();
        assert_eq!((stats.datagrams, stats.dropped_closed), (0, 3));
        assert_eq!(source.in_use(), 0);
    }
}

#[tokio::test]
async fn a_consumer_that_panics_does_not_stop_the_others() {
    let mut source = Source::new();
    let (sender, receiver) = make(8, Overflow::DropNewest);
    let unlucky = receiver.clone();
    sender.send(source.batch(1).await).await.unwrap();
    let panicked = tokio::spawn(async move {
        let _batch = unlucky.recv().await;
        std::panic::resume_unwind(Box::new("on purpose"));
    });
    assert!(panicked.await.unwrap_err().is_panic());
    sender.send(source.batch(2).await).await.unwrap();
    assert_eq!(number(&receiver.recv().await.unwrap()), 2);
    let stats = receiver.monitor().stats();
    assert_eq!((stats.delivered, stats.dropped()), (2, 0));
    assert_eq!(source.in_use(), 0);
}

async fn poll_once<F: Future>(mut future: std::pin::Pin<&mut F>) -> Option<F::Output> {
    std::future::poll_fn(|cx| match future.as_mut().poll(cx) {
        std::task::Poll::Ready(output) => std::task::Poll::Ready(Some(output)),
        std::task::Poll::Pending => std::task::Poll::Ready(None),
    })
    .await
}
