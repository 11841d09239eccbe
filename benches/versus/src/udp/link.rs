//! Channels between a task that receives and one that consumes.

use super::payload::Payload;
use slab_net::pipeline::{Overflow, QueueReceiver, QueueSender, queue};
use slab_net::udp::PacketBatch;
use std::marker::PhantomData;
use tokio::sync::mpsc::{self, Receiver, Sender};

/// Places in a channel.
const CAPACITY: usize = 4096;
/// Items taken at once by the links that do so.
const RECV_LIMIT: usize = 64;

pub(super) trait Link {
    type To: Send + Sync + 'static;
    type From: Send + 'static;

    fn open() -> (Self::To, Self::From);
    /// Waits for something, consumes everything there is, and returns how many datagrams it was; 0 when the
    /// other end is gone.
    fn consume(from: &mut Self::From) -> impl Future<Output = usize> + Send;
}

/// tokio's channel, `recv` for each item.
pub(super) struct OneByOne<T>(PhantomData<T>);

impl<T: Payload> Link for OneByOne<T> {
    type To = Sender<T>;
    type From = Receiver<T>;

    fn open() -> (Sender<T>, Receiver<T>) {
        mpsc::channel(CAPACITY)
    }

    async fn consume(from: &mut Receiver<T>) -> usize {
        from.recv().await.map_or(0, Payload::consume)
    }
}

/// tokio's channel, `recv_many`.
pub(super) struct RecvMany<T>(PhantomData<T>);

impl<T: Payload> Link for RecvMany<T> {
    type To = Sender<T>;
    type From = (Receiver<T>, Vec<T>);

    fn open() -> (Self::To, Self::From) {
        let (to, from) = mpsc::channel(CAPACITY);
        (to, (from, Vec::with_capacity(RECV_LIMIT)))
    }

    async fn consume((from, many): &mut Self::From) -> usize {
        from.recv_many(many, RECV_LIMIT).await;
        many.drain(..).map(Payload::consume).sum()
    }
}

/// Our own queue of batches; the consumer makes packets of them.
pub(super) struct Queue;

impl Link for Queue {
    type To = QueueSender;
    type From = (QueueReceiver, Vec<PacketBatch>);

    fn open() -> (Self::To, Self::From) {
        let capacity = CAPACITY.try_into().expect("not zero");
        let (to, from) = queue(capacity, Overflow::Wait);
        (to, (from, Vec::with_capacity(RECV_LIMIT)))
    }

    async fn consume((from, many): &mut Self::From) -> usize {
        from.recv_many(many, RECV_LIMIT).await;
        let packets = many.drain(..).flat_map(PacketBatch::into_packets);
        packets.map(Payload::consume).sum()
    }
}

/// The same; the consumer makes `Bytes` of them.
pub(super) struct QueueOfBytes;

impl Link for QueueOfBytes {
    type To = QueueSender;
    type From = (QueueReceiver, Vec<PacketBatch>);

    fn open() -> (Self::To, Self::From) {
        Queue::open()
    }

    async fn consume((from, many): &mut Self::From) -> usize {
        from.recv_many(many, RECV_LIMIT).await;
        let payloads = many.drain(..).flat_map(PacketBatch::into_bytes);
        payloads.map(Payload::consume).sum()
    }
}
