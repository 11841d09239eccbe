//! A consumer that is too slow: memory stops at the cap, datagrams that find none are counted by reason, and
//! everything is back in the pool after the drain.

use packet_slab::slab_core::SizeClasses;
use packet_slab::slab_net::PacketPool;
use packet_slab::slab_net::pipeline::{Overflow, queue};
use packet_slab::slab_net::udp::{Coalescing, Transmit, UdpReceiver, UdpSender};
use std::time::Duration;

const CAP: usize = 1 << 20;
const PAYLOAD: usize = 1200;

/// Sends datagrams until so many have been dropped, with nobody consuming; then consumes.
async fn overload(queued_batches: usize) -> (Counts, PacketPool) {
    let pool = PacketPool::builder()
        .size_classes(SizeClasses::explicit(&[2048]).unwrap())
        .max_memory(CAP)
        .build()
        .unwrap();
    let mut socket = UdpReceiver::builder(&pool)
        .coalescing(Coalescing::Off { max_datagram: 1500 })
        .bind("127.0.0.1:0".parse().unwrap())
        .unwrap();
    let (server, monitor) = (socket.local_addr(), socket.monitor());
    let (to_consumer, batches) = queue(queued_batches.try_into().unwrap(), Overflow::DropNewest);
    let queued = batches.monitor();
    let (stop, mut stopped) = tokio::sync::oneshot::channel::<()>();
    let receiver = tokio::spawn(async move {
        let mut read = Vec::with_capacity(32);
        loop {
            tokio::select! {
                biased;
                _ = &mut stopped => return,
                result = socket.recv_batches(&mut read) => result.unwrap(),
            };
            for batch in read.drain(..) {
                to_consumer.send(batch).await.unwrap();
            }
        }
    });

    let sender = UdpSender::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let payload = vec![7; 50 * PAYLOAD];
    let mut most_committed = 0;
    let dropped = || monitor.stats().dropped() + queued.stats().dropped();
    let enough = async {
        while dropped() < 1_000 {
            let transmit = Transmit::new(&payload, server).segment_size(PAYLOAD);
            sender.send(&transmit).await.unwrap();
            tokio::task::yield_now().await;
            most_committed = most_committed.max(pool.slab().stats().committed_bytes);
        }
    };
    tokio::time::timeout(Duration::from_secs(20), enough)
        .await
        .expect("nothing was dropped");
    let in_use_bytes = pool.slab().stats().in_use_bytes();
    let _ = stop.send(());
    receiver.await.unwrap();

    let (mut consumed, mut consumed_bytes) = (0, 0);
    while let Some(batch) = batches.recv().await {
        for packet in batch.into_packets() {
            assert_eq!(packet.len(), PAYLOAD);
            consumed += 1;
            consumed_bytes += packet.len() as u64;
        }
    }
    let (socket, queue) = (monitor.stats(), queued.stats());
    let counts = Counts {
        most_committed,
        in_use_bytes,
        received: socket.received_datagrams,
        consumed,
        no_memory: socket.dropped_no_memory,
        queue_full: queue.dropped_queue_full,
        dropped: socket.dropped() + queue.dropped(),
        received_bytes: socket.received_bytes,
        consumed_bytes,
        dropped_bytes: socket.dropped_bytes() + queue.dropped_bytes(),
    };
    (counts, pool)
}

#[derive(Debug)]
struct Counts {
    most_committed: usize,
    in_use_bytes: usize,
    received: u64,
    consumed: u64,
    no_memory: u64,
    queue_full: u64,
    dropped: u64,
    received_bytes: u64,
    consumed_bytes: u64,
    dropped_bytes: u64,
}

impl Counts {
    fn check(&self, pool: &PacketPool) {
        assert!(self.most_committed <= CAP, "{self:?}");
        assert_eq!(self.received, self.consumed + self.dropped, "{self:?}");
        let somewhere = self.consumed_bytes + self.dropped_bytes;
        assert_eq!(self.received_bytes, somewhere, "{self:?}");
        assert_eq!(pool.slab().stats().in_use(), 0, "{self:?}");
        assert!(pool.slab().stats().committed_bytes <= CAP);
        assert_eq!(pool.packet_stats().heap_fallbacks, 0);
    }
}

#[tokio::test]
async fn memory_stops_at_the_cap() {
    // The queue has more room than the pool.
    let (counts, pool) = overload(4096).await;
    counts.check(&pool);
    assert!(counts.no_memory >= 1_000, "{counts:?}");
    assert_eq!(counts.queue_full, 0, "{counts:?}");
    // At the cap: every chunk of it is in use.
    assert_eq!(counts.in_use_bytes, CAP, "{counts:?}");
    assert_eq!(counts.consumed, (CAP / 2048) as u64, "{counts:?}");
}

#[tokio::test]
async fn a_full_queue_drops_before_the_pool_is_exhausted() {
    let (counts, pool) = overload(64).await;
    counts.check(&pool);
    assert!(counts.queue_full >= 1_000, "{counts:?}");
    assert_eq!(counts.no_memory, 0, "{counts:?}");
    assert_eq!(counts.consumed, 64, "{counts:?}");
}
