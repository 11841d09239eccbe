//! The task between a socket and a queue ends in every possible way, and nothing is lost uncounted.

#[path = "udp/common/mod.rs"]
mod udp_common;

use slab_net::PacketPool;
use slab_net::pipeline::{
    Ended, Overflow, Priority, QueueMonitor, QueueReceiver, flow_queues, forward, priority_queue,
    queue,
};
use slab_net::udp::{Coalescing, SocketStats, Transmit, UdpReceiver, UdpSender};
use std::future::{pending, ready};
#[cfg(target_os = "linux")]
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::time::Duration;
use udp_common::{HANG, LOOPBACK, runtime};

fn pool() -> PacketPool {
    PacketPool::builder().max_memory(2 << 20).build().unwrap()
}

/// A receiver of single datagrams, two per call at first, so that more are queued than it has read.
fn bind(pool: &PacketPool) -> UdpReceiver {
    UdpReceiver::builder(pool)
        .coalescing(Coalescing::Off { max_datagram: 100 })
        .bind(LOOPBACK)
        .unwrap()
}

async fn send_ten(to: SocketAddr) {
    let client = UdpSender::bind(LOOPBACK).unwrap();
    for n in 0..10_u8 {
        client.send(&Transmit::new(&[n], to)).await.unwrap();
    }
}

/// Each datagram sent is counted in exactly one place.
fn assert_all_accounted_for(sent: u64, socket: &SocketStats, queues: &[QueueMonitor]) {
    assert_eq!(
        socket.received_datagrams + socket.kernel_dropped_datagrams,
        sent,
        "{socket:?}"
    );
    let queues = queues.iter().map(QueueMonitor::stats);
    let found = queues.map(|queue| queue.delivered + queue.datagrams + queue.dropped());
    assert_eq!(
        found.sum::<u64>() + socket.dropped(),
        socket.received_datagrams
    );
}

#[tokio::test]
async fn forward_delivers_the_sockets_queue_when_stopped() {
    for overflow in [Overflow::DropNewest, Overflow::Wait] {
        let pool = pool();
        let receiver = UdpReceiver::bind(LOOPBACK, &pool).unwrap();
        let (sender, batches) = queue(16.try_into().unwrap(), overflow);
        let monitor = batches.monitor();
        send_ten(receiver.local_addr()).await;
        // Stopped before it has read anything.
        let report = forward(receiver, sender, ready(())).await;
        assert_eq!(report.ended, Ended::Stopped);
        assert_eq!(report.receive_errors, 0);
        assert_eq!(report.socket.received_datagrams, 10);
        for n in 0..10_u8 {
            assert_eq!(batches.recv().await.unwrap().contents(), [n]);
        }
        assert!(batches.recv().await.is_none());
        assert_all_accounted_for(10, &report.socket, &[monitor]);
    }
}

#[tokio::test]
async fn forward_without_consumers_ends_and_counts_unread_datagrams() {
    let pool = pool();
    let receiver = bind(&pool);
    let (sender, batches) = queue(16.try_into().unwrap(), Overflow::Wait);
    let monitor = batches.monitor();
    drop(batches);
    send_ten(receiver.local_addr()).await;
    let report = forward(receiver, sender, pending()).await;
    assert_eq!(report.ended, Ended::QueueClosed);
    assert_eq!(report.socket.received_datagrams, 10);
    assert_eq!(report.socket.dropped(), 0);
    assert_eq!(monitor.stats().dropped_closed, 10);
    assert_all_accounted_for(10, &report.socket, &[monitor]);
    assert_eq!(pool.slab().stats().in_use(), 0);
}

/// A flood that fits into the socket's buffer, but not into the queue, causes no drops in the queue, even if
/// one read brings more than the queue has room for.
#[tokio::test]
async fn forward_yields_to_consumers_before_the_queue_overflows() {
    for kind in [Kind::Plain, Kind::Priority, Kind::Flows] {
        for at_once in [false, true] {
            for capacity in [1, 2, 3, 16, 64] {
                flood(kind, at_once, capacity.try_into().unwrap()).await;
            }
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Plain,
    Priority,
    Flows,
}

async fn flood(kind: Kind, at_once: bool, capacity: NonZeroUsize) {
    let pool = pool();
    let receiver = bind(&pool);
    for _ in 0..20 {
        send_ten(receiver.local_addr()).await;
    }
    let consume = |batches: QueueReceiver| {
        tokio::spawn(async move {
            let mut got = 0;
            while batches.recv().await.is_some() {
                got += 1;
            }
            got
        })
    };
    let stop = async {
        if !at_once {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let (sender, batches) = if kind == Kind::Flows {
        let one = 1.try_into().unwrap();
        let (sender, mut batches) = flow_queues(one, capacity, Overflow::DropNewest);
        (sender, batches.remove(0))
    } else {
        match kind {
            Kind::Priority => priority_queue(capacity, |_| Priority::Normal),
            _ => queue(capacity, Overflow::DropNewest),
        }
    };
    let monitor = batches.monitor();
    let consumer = consume(batches);
    forward(receiver, sender, stop).await;
    assert_eq!(consumer.await.unwrap(), 200, "{kind:?} {capacity}");
    assert_eq!(monitor.stats().dropped(), 0);
}

#[tokio::test]
async fn an_idle_forward_notices_that_consumers_are_gone() {
    let pool = pool();
    let (sender, batches) = queue(16.try_into().unwrap(), Overflow::Wait);
    let one = tokio::spawn(forward(bind(&pool), sender, pending()));
    let (sender, mut by_flow) = flow_queues(
        3.try_into().unwrap(),
        16.try_into().unwrap(),
        Overflow::Wait,
    );
    let several = tokio::spawn(forward(bind(&pool), sender, pending()));
    let other = batches.clone();
    drop(batches);
    let last = by_flow.pop();
    drop(by_flow);
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    assert!(
        !one.is_finished() && !several.is_finished(),
        "a consumer is left"
    );
    drop((other, last));
    for task in [one, several] {
        let report = tokio::time::timeout(HANG, task).await.expect("hangs");
        assert_eq!(report.unwrap().ended, Ended::QueueClosed);
    }
}

#[tokio::test]
async fn forward_goes_on_while_any_flow_has_a_consumer() {
    let pool = pool();
    let receiver = bind(&pool);
    let sixty_four = 64.try_into().unwrap();
    let (sender, mut by_flow) = flow_queues(2.try_into().unwrap(), sixty_four, Overflow::Wait);
    let monitors: Vec<_> = by_flow.iter().map(QueueReceiver::monitor).collect();
    drop(by_flow.pop());
    // So many sources that both flows have some.
    for _ in 0..40 {
        let client = UdpSender::bind(LOOPBACK).unwrap();
        let one = Transmit::new(b"x", receiver.local_addr());
        client.send(&one).await.unwrap();
    }
    let offered = || -> u64 {
        let stats = monitors.iter().map(QueueMonitor::stats);
        stats.map(|queue| queue.enqueued + queue.dropped()).sum()
    };
    let stop = async {
        while offered() < 40 {
            tokio::task::yield_now().await;
        }
    };
    let report = forward(receiver, sender, stop).await;
    assert_eq!(report.ended, Ended::Stopped);
    assert!(monitors[1].stats().dropped_closed > 0);
    assert_all_accounted_for(40, &report.socket, &monitors);
}

/// A wake-up for a producer that waits for room must not go to one that waits for the end.
#[tokio::test]
async fn closed_takes_no_wake_up_from_waiting_producers() {
    let pool = pool();
    let mut source = bind(&pool);
    let (sender, batches) = queue(1.try_into().unwrap(), Overflow::Wait);
    let of = sender.clone();
    let closed = tokio::spawn(async move { of.closed().await });
    send_ten(source.local_addr()).await;
    let producer = tokio::spawn(async move {
        for _ in 0..10 {
            sender
                .send(source.recv_batch().await.unwrap())
                .await
                .unwrap();
        }
    });
    for n in 0..10_u8 {
        let batch = tokio::time::timeout(HANG, batches.recv()).await;
        assert_eq!(batch.expect("hangs").unwrap().contents(), [n]);
    }
    producer.await.unwrap();
    drop(batches);
    tokio::time::timeout(HANG, closed)
        .await
        .expect("hangs")
        .unwrap();
}

#[test]
fn a_lasting_receive_error_ends_forward() {
    let pool = pool();
    let sockets_own = runtime();
    let receiver = {
        let _inside = sockets_own.enter();
        bind(&pool)
    };
    drop(sockets_own);
    runtime().block_on(async {
        send_ten(receiver.local_addr()).await;
        let (sender, batches) = queue(16.try_into().unwrap(), Overflow::Wait);
        let monitor = batches.monitor();
        let all = tokio::time::timeout(HANG, forward(receiver, sender, pending()));
        let report = all.await.expect("hangs");
        assert!(matches!(report.ended, Ended::Failed(_)), "{report:?}");
        assert!(report.receive_errors >= 2, "{report:?}");
        // Datagrams that the kernel had queued are delivered nevertheless.
        for n in 0..10_u8 {
            assert_eq!(batches.recv().await.unwrap().contents(), [n]);
        }
        assert!(batches.recv().await.is_none());
        assert_all_accounted_for(10, &report.socket, &[monitor]);
    });
    assert_eq!(pool.slab().stats().in_use(), 0);
}

/// For reading: to tokio it is readable ever after.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_socket_that_was_shut_down_ends_forward() {
    let pool = pool();
    let receiver = bind(&pool);
    send_ten(receiver.local_addr()).await;
    let _ = socket2::SockRef::from(&receiver).shutdown(std::net::Shutdown::Read);
    let (sender, batches) = queue(16.try_into().unwrap(), Overflow::Wait);
    let monitor = batches.monitor();
    let all = tokio::time::timeout(HANG, forward(receiver, sender, pending()));
    let report = all.await.expect("tries for ever");
    assert_eq!(report.ended, Ended::Failed(ErrorKind::NotConnected));
    assert_eq!(report.receive_errors, 64);
    for n in 0..10_u8 {
        assert_eq!(batches.recv().await.unwrap().contents(), [n]);
    }
    assert!(batches.recv().await.is_none());
    assert_all_accounted_for(10, &report.socket, &[monitor]);
}

/// Every other read fails, and there is no pause between them.
#[cfg(target_os = "linux")]
#[test]
fn errors_with_datagrams_between_them_do_not_end_forward() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use udp_common::network::run_on_own_thread;

    async fn test() {
        let pool = pool();
        let receiver = bind(&pool);
        let warnings = Arc::new(AtomicUsize::new(0));
        let warned = Arc::clone(&warnings);
        let _watching = udp_common::warnings::on_warning(move |_| {
            warned.fetch_add(1, Ordering::Relaxed);
        });
        for _ in 0..20 {
            send_ten(receiver.local_addr()).await;
        }
        let (sender, batches) = queue(200.try_into().unwrap(), Overflow::DropNewest);
        let monitor = batches.monitor();
        let stop = async {
            while monitor.stats().enqueued < 200 {
                tokio::task::yield_now().await;
            }
        };
        let report = forward(receiver, sender, stop).await;
        assert_eq!(report.ended, Ended::Stopped);
        assert!(report.receive_errors > 64, "{report:?}");
        assert_eq!(warnings.load(Ordering::Relaxed), 1);
        assert_all_accounted_for(200, &report.socket, &[batches.monitor()]);
    }
    // A read that fills two buffers is followed by one with four.
    let refuse = || udp_common::fail_syscall_if(libc::SYS_recvmmsg, Some(4), libc::EIO);
    run_on_own_thread(refuse, test);
}

/// Where the socket cannot be stopped, so that datagrams go on coming, delivering them ends nevertheless. What was read
/// by then, and is not delivered, is counted when the socket is closed.
#[cfg(target_os = "linux")]
#[test]
fn the_report_counts_what_was_read_and_not_delivered() {
    use udp_common::network::run_on_own_thread;

    async fn test() {
        let receiver = bind(&pool());
        let to = receiver.local_addr();
        let (sender, batches) = queue(1.try_into().unwrap(), Overflow::Wait);
        let client = UdpSender::bind(LOOPBACK).unwrap();
        let one = Transmit::new(b"x", to);
        for _ in 0..100 {
            client.send(&one).await.unwrap();
        }
        let monitor = batches.monitor();
        // For each that is delivered another comes.
        let consume = tokio::spawn(async move {
            while batches.recv().await.is_some() {
                client.send(&one).await.unwrap();
            }
        });
        let report = forward(receiver, sender, async {}).await;
        consume.await.unwrap();
        let (socket, queue) = (report.socket, monitor.stats());
        assert!(queue.delivered >= 4096);
        assert!(socket.dropped_closed > 0, "{socket:?}");
        assert_eq!(
            socket.received_datagrams,
            queue.delivered + socket.dropped_closed
        );
    }
    // With a filter, the socket would be stopped.
    let refuse = || {
        let option = Some(libc::SO_ATTACH_FILTER as u32);
        udp_common::fail_syscall_if(libc::SYS_setsockopt, option, libc::EPERM)
    };
    run_on_own_thread(refuse, test);
}
