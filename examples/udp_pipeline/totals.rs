//! What happened to the packets so far: the counters that every mode keeps and the report shows.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The counters of every mode, in datagrams unless the name says otherwise.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Totals {
    /// Read from the kernel.
    pub(crate) received: u64,
    pub(crate) received_bytes: u64,
    /// System errors while receiving, in the mode that counts them.
    pub(crate) receive_errors: u64,
    /// Handed to a consumer as packets.
    pub(crate) delivered: u64,
    /// Echoed: the kernel took them for sending.
    pub(crate) echoed: u64,
    /// Echoes that the kernel refused to send.
    pub(crate) echo_failed: u64,
    pub(crate) drops: Drops,
}

/// Received but not delivered, by cause.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Drops {
    pub(crate) queue_full: u64,
    pub(crate) no_memory: u64,
    pub(crate) truncated: u64,
    /// Read but not asked for when the receivers ended: where the system cannot refuse what arrives then.
    pub(crate) closed: u64,
}

impl Drops {
    pub(crate) fn sum(&self) -> u64 {
        self.queue_full + self.no_memory + self.truncated + self.closed
    }
}

/// What one consumer did. Apart from the others, so that no two threads write to one cache line.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Consumed {
    pub(crate) delivered: AtomicU64,
    pub(crate) echoed: AtomicU64,
    pub(crate) echo_failed: AtomicU64,
}

/// What one shard did, in the modes whose library counts nothing.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Received {
    pub(crate) datagrams: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) queue_full: AtomicU64,
}

pub(crate) fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

pub(crate) fn read(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

/// Adds up the totals of a mode whose shards and consumers use these counters.
pub(crate) fn sum(received: &[Arc<Received>], consumed: &[Arc<Consumed>]) -> Totals {
    let mut totals = Totals::default();
    for consumer in consumed {
        totals.delivered += read(&consumer.delivered);
        totals.echoed += read(&consumer.echoed);
        totals.echo_failed += read(&consumer.echo_failed);
    }
    for shard in received {
        totals.received += read(&shard.datagrams);
        totals.received_bytes += read(&shard.bytes);
        totals.drops.queue_full += read(&shard.queue_full);
    }
    totals
}
