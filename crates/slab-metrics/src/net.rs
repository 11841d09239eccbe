//! Statistics of slab-net's packet pools, sockets and queues as series.

use crate::json::Json;
use crate::names::*;
use crate::pool::PoolSource;
use crate::series::{Registrar, Series, Source, float};
use metrics::{Counter, Gauge, SharedString};
use slab_net::PacketPool;
use slab_net::pipeline::QueueMonitor;
use slab_net::udp::SocketMonitor;
use std::sync::{Arc, Weak};

/// A packet pool: its slab pool's series, and what the packets add.
pub(crate) struct PacketPoolSource {
    slab: Arc<PoolSource>,
    pool: PacketPool,
}

impl PacketPoolSource {
    pub(crate) fn new(pool: PacketPool) -> Self {
        let slab = Arc::new(PoolSource::new(pool.slab().clone()));
        Self { slab, pool }
    }
}

impl Source for PacketPoolSource {
    fn register(self: Arc<Self>, to: &mut Registrar<'_>) -> Box<dyn Series> {
        let pool = [("pool", self.pool.slab().name().to_owned().into())];
        Box::new(PacketPoolSeries {
            slab: Arc::clone(&self.slab).register(to),
            heap_fallbacks: to.counter(&NET_HEAP_FALLBACKS_TOTAL, &pool),
            heap_bytes: to.gauge(&NET_HEAP_BYTES, &pool),
            compacted: to.counter(&NET_COMPACTED_PACKETS_TOTAL, &pool),
            pinned_bytes: to.gauge(&POOL_PINNED_BYTES, &pool),
            held_packets: to.gauge(&NET_HELD_PACKETS, &pool),
            held_bytes: to.gauge(&NET_HELD_BYTES, &pool),
            heap_refused: to.counter(&NET_HEAP_REFUSED_TOTAL, &pool),
            compacted_bytes: to.counter(&NET_COMPACTED_BYTES_TOTAL, &pool),
            compact_refused_bytes: to.counter(&NET_COMPACT_REFUSED_BYTES_TOTAL, &pool),
            compact_refused: to.counter(&NET_COMPACT_REFUSED_PACKETS_TOTAL, &pool),
            source: Arc::downgrade(&self),
        })
    }

    fn write_json(&self, json: &mut Json) {
        self.slab.write_json(json);
        let stats = self.pool.packet_stats();
        json.number("heap_fallbacks", stats.heap_fallbacks);
        json.number("heap_bytes", stats.heap_bytes);
        json.number("heap_refused", stats.heap_refused);
        json.number("held_bytes", stats.held_bytes);
        json.number("pinned_bytes", stats.pinned_bytes);
        json.number("compacted", stats.compacted);
        json.number("compact_refused", stats.compact_refused);
    }
}

struct PacketPoolSeries {
    source: Weak<PacketPoolSource>,
    slab: Box<dyn Series>,
    heap_fallbacks: Counter,
    heap_bytes: Gauge,
    compacted: Counter,
    pinned_bytes: Gauge,
    held_packets: Gauge,
    held_bytes: Gauge,
    heap_refused: Counter,
    compacted_bytes: Counter,
    compact_refused_bytes: Counter,
    compact_refused: Counter,
}

impl Series for PacketPoolSeries {
    fn update(&self) -> bool {
        let Some(source) = self.source.upgrade() else {
            return false;
        };
        let stats = source.pool.packet_stats();
        self.heap_fallbacks.absolute(stats.heap_fallbacks);
        self.heap_bytes.set(float(stats.heap_bytes));
        self.compacted.absolute(stats.compacted);
        self.pinned_bytes.set(float(stats.pinned_bytes));
        self.held_packets.set(float(stats.held_packets));
        self.held_bytes.set(float(stats.held_bytes));
        self.heap_refused.absolute(stats.heap_refused);
        self.compacted_bytes.absolute(stats.compacted_bytes);
        self.compact_refused_bytes
            .absolute(stats.compact_refused_bytes);
        self.compact_refused.absolute(stats.compact_refused);
        self.slab.update()
    }
}

pub(crate) struct SocketSource {
    pub(crate) name: String,
    pub(crate) monitor: SocketMonitor,
}

impl Source for SocketSource {
    fn register(self: Arc<Self>, to: &mut Registrar<'_>) -> Box<dyn Series> {
        let name: SharedString = self.name.clone().into();
        let socket = [("socket", name.clone())];
        let dropped = |reason: &'static str| [("socket", name.clone()), ("reason", reason.into())];
        Box::new(SocketSeries {
            received_datagrams: to.counter(&NET_RECEIVED_DATAGRAMS_TOTAL, &socket),
            received_bytes: to.counter(&NET_RECEIVED_BYTES_TOTAL, &socket),
            receive_calls: to.counter(&NET_RECEIVE_CALLS_TOTAL, &socket),
            sent_datagrams: to.counter(&NET_SENT_DATAGRAMS_TOTAL, &socket),
            sent_bytes: to.counter(&NET_SENT_BYTES_TOTAL, &socket),
            send_calls: to.counter(&NET_SEND_CALLS_TOTAL, &socket),
            dropped_no_memory: to.counter(&NET_DROPPED_DATAGRAMS_TOTAL, &dropped("no_memory")),
            dropped_truncated: to.counter(&NET_DROPPED_DATAGRAMS_TOTAL, &dropped("truncated")),
            dropped_closed: to.counter(&NET_DROPPED_DATAGRAMS_TOTAL, &dropped("closed")),
            truncated: to.counter(&NET_TRUNCATED_DATAGRAMS_TOTAL, &socket),
            kernel_dropped: to.counter(&NET_KERNEL_DROPPED_DATAGRAMS_TOTAL, &socket),
            source: Arc::downgrade(&self),
        })
    }

    fn write_json(&self, json: &mut Json) {
        let stats = self.monitor.stats();
        json.number("received_datagrams", stats.received_datagrams);
        json.number("received_bytes", stats.received_bytes);
        json.number("receive_calls", stats.receive_calls);
        json.number("sent_datagrams", stats.sent_datagrams);
        json.number("sent_bytes", stats.sent_bytes);
        json.number("send_calls", stats.send_calls);
        json.number("dropped_no_memory", stats.dropped_no_memory);
        json.number("dropped_truncated", stats.dropped_truncated);
        json.number("dropped_closed", stats.dropped_closed);
        json.number("kernel_dropped", stats.kernel_dropped_datagrams);
    }
}

struct SocketSeries {
    source: Weak<SocketSource>,
    received_datagrams: Counter,
    received_bytes: Counter,
    receive_calls: Counter,
    sent_datagrams: Counter,
    sent_bytes: Counter,
    send_calls: Counter,
    dropped_no_memory: Counter,
    dropped_truncated: Counter,
    dropped_closed: Counter,
    truncated: Counter,
    kernel_dropped: Counter,
}

impl Series for SocketSeries {
    fn update(&self) -> bool {
        let Some(source) = self.source.upgrade() else {
            return false;
        };
        let stats = source.monitor.stats();
        self.received_datagrams.absolute(stats.received_datagrams);
        self.received_bytes.absolute(stats.received_bytes);
        self.receive_calls.absolute(stats.receive_calls);
        self.sent_datagrams.absolute(stats.sent_datagrams);
        self.sent_bytes.absolute(stats.sent_bytes);
        self.send_calls.absolute(stats.send_calls);
        self.dropped_no_memory.absolute(stats.dropped_no_memory);
        self.dropped_truncated.absolute(stats.dropped_truncated);
        self.dropped_closed.absolute(stats.dropped_closed);
        self.truncated.absolute(stats.truncated_datagrams);
        self.kernel_dropped.absolute(stats.kernel_dropped_datagrams);
        true
    }
}

pub(crate) struct QueueSource {
    pub(crate) name: String,
    pub(crate) monitor: QueueMonitor,
}

impl Source for QueueSource {
    fn register(self: Arc<Self>, to: &mut Registrar<'_>) -> Box<dyn Series> {
        let name: SharedString = self.name.clone().into();
        let queue = [("queue", name.clone())];
        let dropped = |reason: &'static str| [("queue", name.clone()), ("reason", reason.into())];
        Box::new(QueueSeries {
            datagrams: to.gauge(&NET_QUEUE_DATAGRAMS, &queue),
            capacity_batches: to.gauge(&NET_QUEUE_CAPACITY_BATCHES, &queue),
            enqueued: to.counter(&NET_QUEUE_ENQUEUED_DATAGRAMS_TOTAL, &queue),
            delivered: to.counter(&NET_QUEUE_DELIVERED_DATAGRAMS_TOTAL, &queue),
            dropped_full: to.counter(&NET_QUEUE_DROPPED_DATAGRAMS_TOTAL, &dropped("queue_full")),
            dropped_policy: to.counter(&NET_QUEUE_DROPPED_DATAGRAMS_TOTAL, &dropped("policy")),
            dropped_closed: to.counter(&NET_QUEUE_DROPPED_DATAGRAMS_TOTAL, &dropped("closed")),
            source: Arc::downgrade(&self),
        })
    }

    fn write_json(&self, json: &mut Json) {
        let stats = self.monitor.stats();
        json.number("datagrams", stats.datagrams);
        json.number("capacity_batches", stats.capacity_batches);
        json.number("enqueued", stats.enqueued);
        json.number("delivered", stats.delivered);
        json.number("dropped_queue_full", stats.dropped_queue_full);
        json.number("dropped_policy", stats.dropped_policy);
        json.number("dropped_closed", stats.dropped_closed);
    }
}

struct QueueSeries {
    source: Weak<QueueSource>,
    datagrams: Gauge,
    capacity_batches: Gauge,
    enqueued: Counter,
    delivered: Counter,
    dropped_full: Counter,
    dropped_policy: Counter,
    dropped_closed: Counter,
}

impl Series for QueueSeries {
    fn update(&self) -> bool {
        let Some(source) = self.source.upgrade() else {
            return false;
        };
        let stats = source.monitor.stats();
        self.datagrams.set(float(stats.datagrams));
        self.capacity_batches.set(float(stats.capacity_batches));
        self.enqueued.absolute(stats.enqueued);
        self.delivered.absolute(stats.delivered);
        self.dropped_full.absolute(stats.dropped_queue_full);
        self.dropped_policy.absolute(stats.dropped_policy);
        self.dropped_closed.absolute(stats.dropped_closed);
        true
    }
}
