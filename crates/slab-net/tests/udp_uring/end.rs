//! The end of a receiver: nothing is lost uncounted, and all memory comes back.

use crate::udp_common::warnings::{field, on_warning};
use crate::udp_common::{assert_errors_let_others_run, exhaust, fail_syscall, runtime, skipped};
use crate::{LOOPBACK, OFF, bind, bound, builder, pool, receive};
use slab_net::pipeline::{Overflow, forward, queue};
use slab_net::udp::{Coalescing, Transmit, UdpSender};
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Context;

#[tokio::test]
async fn dropping_the_receiver_counts_unread_batches_and_frees_all_memory() {
    let pool = pool(16);
    for coalescing in [Coalescing::On, OFF] {
        let Some(mut receiver) = bind(&pool, coalescing) else {
            return;
        };
        let (sender, monitor) = (receiver.sender(), receiver.monitor());
        assert!(receiver.try_recv_batch().unwrap().is_none());
        // As many as it has buffers for: only the kernel would have the others.
        for n in 0..8_u8 {
            let one = [n; 100];
            let transmit = Transmit::new(&one, receiver.local_addr());
            sender.send(&transmit).await.unwrap();
        }
        let first = receiver.try_recv_batch().unwrap().unwrap();
        assert_eq!(first.contents(), [0; 100]);
        drop(receiver);
        let stats = monitor.stats();
        assert_eq!((stats.received_datagrams, stats.dropped_closed), (8, 7));
        let chunk_bytes = 8 * first.chunk_bytes() as u64;
        assert_eq!(
            (stats.receive_calls, stats.received_chunk_bytes),
            (1, chunk_bytes)
        );
    }
    assert_eq!(pool.slab().stats().in_use(), 0);
}

/// The first of the ring's buffers that is freed wakes somebody who waits for memory.
#[tokio::test]
async fn a_panicking_waker_leaves_unread_batches_counted() {
    struct Panics;
    impl std::task::Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("by a waker");
        }
    }
    let pool = pool(4);
    let Some(mut receiver) = bind(&pool, Coalescing::On) else {
        return;
    };
    let (sender, monitor) = (receiver.sender(), receiver.monitor());
    for n in 0..3_u8 {
        let one = [n; 100];
        let transmit = Transmit::new(&one, receiver.local_addr());
        sender.send(&transmit).await.unwrap();
    }
    drop(receiver.try_recv_batch().unwrap().unwrap());
    let held = exhaust(&pool);
    let mut waiting = Box::pin(pool.alloc(66 << 10));
    let waker = Arc::new(Panics).into();
    let polled = waiting.as_mut().poll(&mut Context::from_waker(&waker));
    assert!(polled.is_pending());
    let dropped = std::panic::catch_unwind(AssertUnwindSafe(|| drop(receiver)));
    assert!(dropped.is_err(), "the waker was called");
    let stats = monitor.stats();
    assert_eq!((stats.received_datagrams, stats.dropped_closed), (3, 2));
    drop((waiting, held));
    assert_eq!(pool.slab().stats().in_use(), 0);
}

/// The log comes last, when whatever the kernel has read is counted.
#[tokio::test]
async fn a_panicking_subscriber_leaves_unread_batches_counted() {
    let pool = pool(4);
    for stops in [false, true] {
        let panicked = AtomicBool::new(false);
        let _watching = on_warning(move |_| {
            let again = panicked.swap(true, Ordering::Relaxed);
            assert!(again, "a subscriber panics");
        });
        let Some(mut receiver) = bind(&pool, Coalescing::Off { max_datagram: 100 }) else {
            return;
        };
        let (sender, monitor) = (receiver.sender(), receiver.monitor());
        for len in [99, 101, 98] {
            let transmit = Transmit::new(&[1; 101][..len], receiver.local_addr());
            sender.send(&transmit).await.unwrap();
        }
        let end = move || {
            if stops {
                receiver.stop().unwrap();
            }
            drop(receiver);
        };
        let ended = std::panic::catch_unwind(AssertUnwindSafe(end));
        assert!(ended.is_err(), "a truncated datagram was logged");
        let stats = monitor.stats();
        assert_eq!((stats.received_datagrams, stats.dropped()), (3, 3));
        assert_eq!((stats.dropped_closed, stats.dropped_truncated), (2, 1));
    }
    assert_eq!(pool.slab().stats().in_use(), 0);
}

/// What reports the drops is in the ring, and nobody asks for it before the end.
#[tokio::test]
async fn drops_that_are_reported_at_the_end_are_logged() {
    let pool = pool(16);
    for stops in [false, true] {
        let builder = builder(&pool, Coalescing::On).receive_buffer_bytes(1 << 16);
        let Some(mut receiver) = bound(builder) else {
            return;
        };
        let (sender, to) = (UdpSender::bind(LOOPBACK).unwrap(), receiver.local_addr());
        let bytes = [1; 30_010];
        // Ten at once, for which the socket has no room; the one behind them reports the drops.
        let ten: Vec<_> = (0..10)
            .map(|n| Transmit::new(&bytes[..30_000 + n], to))
            .collect();
        sender.send_many(&ten).await.unwrap();
        sender.send(&ten[0]).await.unwrap();
        let logged = Arc::<Mutex<Vec<_>>>::default();
        let log = Arc::clone(&logged);
        let _watching = on_warning(move |event| {
            let of = |name| field(event, name).unwrap_or_default();
            let line = (of("reason"), of("datagrams"));
            log.lock().unwrap().push(line);
        });
        if stops {
            receiver.stop().unwrap();
        }
        let monitor = receiver.monitor();
        drop(receiver);
        let dropped = monitor.stats().kernel_dropped_datagrams;
        assert!(dropped > 0, "there was room for all");
        let of_kernel = |datagrams: &str| ("kernel".to_owned(), datagrams.to_owned());
        let logged = logged.lock().unwrap();
        assert_eq!(logged[..], [of_kernel(""), of_kernel(&dropped.to_string())]);
    }
    assert_eq!(pool.slab().stats().in_use(), 0);
}

/// Buffers that the kernel may still write to are lost then, but not those that it has filled.
#[tokio::test]
async fn stop_delivers_datagrams_in_the_ring_even_if_it_cannot_end_the_request() {
    let pool = pool(16);
    let Some(mut receiver) = bind(&pool, OFF) else {
        return;
    };
    let sender = receiver.sender();
    for n in 0..5_u8 {
        let one = [n; 100];
        let transmit = Transmit::new(&one, receiver.local_addr());
        sender.send(&transmit).await.unwrap();
    }
    let refused = std::thread::spawn(move || {
        if let Err(why) = fail_syscall(libc::SYS_io_uring_enter, libc::EBUSY) {
            return skipped("this thread's system cannot be changed", &why);
        }
        // A request is under way, and no other is made.
        let first = receiver.try_recv_batch().unwrap();
        assert_eq!(first.expect("it was filled").contents(), [0; 100]);
        let error = receiver.stop().unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EBUSY));
        for n in 1..5_u8 {
            let batch = receiver.try_recv_batch().unwrap();
            assert_eq!(batch.expect("it was filled").contents(), [n; 100]);
        }
        assert!(receiver.try_recv_batch().unwrap().is_none());
        drop(receiver);
        assert_eq!(pool.slab().stats().in_use(), 32);
    });
    refused.join().unwrap();
}

#[tokio::test]
async fn stop_delivers_datagrams_in_the_ring_and_in_the_socket() {
    let pool = pool(16);
    let Some(receiver) = bind(&pool, OFF) else {
        return;
    };
    let (sender, monitor) = (receiver.sender(), receiver.monitor());
    // More than the ring has buffers for.
    for n in 0..100_u8 {
        let one = [n; 100];
        let transmit = Transmit::new(&one, receiver.local_addr());
        sender.send(&transmit).await.unwrap();
    }
    let (to_consumer, batches) = queue(128.try_into().unwrap(), Overflow::DropNewest);
    let report = forward(receiver, to_consumer, std::future::ready(())).await;
    assert_eq!(report.socket.received_datagrams, 100);
    for n in 0..100_u8 {
        assert_eq!(batches.recv().await.unwrap().contents(), [n; 100]);
    }
    assert!(batches.recv().await.is_none());
    assert_eq!(monitor.stats().dropped(), 0);
    assert_eq!(pool.slab().stats().in_use(), 0);
}

/// Who goes on after errors keeps no thread from other tasks.
#[test]
fn a_receiver_whose_runtime_is_gone_fails_and_lets_other_tasks_run() {
    let pool = pool(16);
    let gone = runtime();
    let Some(mut receiver) = gone.block_on(async { bind(&pool, OFF) }) else {
        return;
    };
    drop(gone);
    runtime().block_on(async {
        let receive = async || drop(receiver.recv_batch().await.unwrap_err());
        assert_errors_let_others_run(receive).await;
    });
}

/// The kernel ends a request when the thread that made it ends.
#[test]
fn receiving_survives_the_end_of_the_thread_that_made_the_ring() {
    let pool = pool(16);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_io()
        .build()
        .unwrap();
    let handle = runtime.handle().clone();
    let of = pool.clone();
    let made = std::thread::spawn(move || {
        let _inside = handle.enter();
        bind(&of, Coalescing::On)
    });
    let Some(mut receiver) = made.join().unwrap() else {
        return;
    };
    runtime.block_on(async {
        let sender = receiver.sender();
        let to = receiver.local_addr();
        let arrived = Arc::<AtomicU32>::default();
        let arrives = Arc::clone(&arrived);
        let task = tokio::spawn(async move {
            let mut got = 0_u32;
            while got < 2000 {
                for one in receive(&mut receiver, 1).await {
                    assert_eq!(one, got.to_le_bytes());
                    got += 1;
                }
                arrives.store(got, Ordering::Relaxed);
                if got.is_multiple_of(50) {
                    tokio::task::yield_now().await;
                }
            }
        });
        for n in 0..2000_u32 {
            sender
                .send(&Transmit::new(&n.to_le_bytes(), to))
                .await
                .unwrap();
            // No more in flight than the socket's queue holds, however late the receiver runs.
            while n - arrived.load(Ordering::Relaxed).min(n) > 100 && !task.is_finished() {
                tokio::task::yield_now().await;
            }
        }
        task.await.unwrap();
    });
    assert_eq!(pool.slab().stats().in_use(), 0);
}
