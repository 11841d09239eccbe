//! Statistics of slab-net's packet pools, sockets and queues as series.

use crate::json::Json;
use crate::names::*;
use crate::pool::PoolSource;
use crate::series::{Describe, Row, Source, describe_rows, read_rows, rows};
use slab_net::pipeline::{QueueMonitor, QueueStats};
use slab_net::udp::{SocketMonitor, SocketStats};
use slab_net::{PacketPool, PacketPoolStats};

/// A packet pool: the series of its slab pool, and those of the packets.
pub(crate) struct PacketPoolSource {
    slab: PoolSource,
    pool: PacketPool,
}

impl PacketPoolSource {
    pub(crate) fn new(pool: PacketPool) -> Self {
        let slab = PoolSource::new(pool.slab().clone());
        Self { slab, pool }
    }
}

const PACKETS: &[Row<PacketPoolStats>] = rows! { |s|
    NET_HEAP_FALLBACKS_TOTAL: s.heap_fallbacks;
    NET_HEAP_BYTES: s.heap_bytes;
    NET_HEAP_REFUSED_TOTAL: s.heap_refused;
    POOL_PINNED_BYTES: s.pinned_bytes;
    NET_HELD_PACKETS: s.held_packets;
    NET_HELD_BYTES: s.held_bytes;
    NET_COMPACTED_PACKETS_TOTAL: s.compacted;
    NET_COMPACTED_BYTES_TOTAL: s.compacted_bytes;
    NET_COMPACT_REFUSED_PACKETS_TOTAL: s.compact_refused;
    NET_COMPACT_REFUSED_BYTES_TOTAL: s.compact_refused_bytes;
};

impl Source for PacketPoolSource {
    fn describe(&self, to: &mut Describe<'_>) {
        self.slab.describe(to);
        let pool = ("pool", self.pool.slab().name().to_owned().into());
        describe_rows(PACKETS, &[pool], to);
    }

    fn read(&self, values: &mut Vec<u64>) {
        self.slab.read(values);
        read_rows(PACKETS, &self.pool.packet_stats(), values);
    }

    fn write_json(&self, json: &mut Json) {
        self.slab.write_json(json);
        write_packets(&self.pool.packet_stats(), json);
    }
}

fn write_packets(stats: &PacketPoolStats, json: &mut Json) {
    json.number("heap_fallbacks", stats.heap_fallbacks);
    json.number("heap_bytes", stats.heap_bytes);
    json.number("heap_refused", stats.heap_refused);
    json.number("held_packets", stats.held_packets);
    json.number("held_bytes", stats.held_bytes);
    json.number("pinned_bytes", stats.pinned_bytes);
    json.number("compacted", stats.compacted);
    json.number("compact_refused", stats.compact_refused);
}

pub(crate) struct SocketSource {
    pub(crate) name: String,
    pub(crate) monitor: SocketMonitor,
}

const SOCKET: &[Row<SocketStats>] = rows! { |s|
    NET_RECEIVED_DATAGRAMS_TOTAL: s.received_datagrams;
    NET_RECEIVED_BYTES_TOTAL: s.received_bytes;
    NET_RECEIVED_CHUNK_BYTES_TOTAL: s.received_chunk_bytes;
    NET_RECEIVE_CALLS_TOTAL: s.receive_calls;
    NET_SENT_DATAGRAMS_TOTAL: s.sent_datagrams;
    NET_SENT_BYTES_TOTAL: s.sent_bytes;
    NET_SEND_CALLS_TOTAL: s.send_calls;
    NET_SEND_LOST_DATAGRAMS_TOTAL: s.send_lost_datagrams;
    NET_DROPPED_DATAGRAMS_TOTAL reason="no_memory": s.dropped_no_memory;
    NET_DROPPED_DATAGRAMS_TOTAL reason="truncated": s.dropped_truncated;
    NET_DROPPED_DATAGRAMS_TOTAL reason="closed": s.dropped_closed;
    NET_DROPPED_BYTES_TOTAL reason="no_memory": s.dropped_no_memory_bytes;
    NET_DROPPED_BYTES_TOTAL reason="truncated": s.dropped_truncated_bytes;
    NET_DROPPED_BYTES_TOTAL reason="closed": s.dropped_closed_bytes;
    NET_TRUNCATED_DATAGRAMS_TOTAL: s.truncated_datagrams;
    NET_KERNEL_DROPPED_DATAGRAMS_TOTAL: s.kernel_dropped_datagrams;
};

impl Source for SocketSource {
    fn describe(&self, to: &mut Describe<'_>) {
        describe_rows(SOCKET, &[("socket", self.name.clone().into())], to);
    }

    fn read(&self, values: &mut Vec<u64>) {
        read_rows(SOCKET, &self.monitor.stats(), values);
    }

    fn write_json(&self, json: &mut Json) {
        write_socket(&self.monitor.stats(), json);
    }
}

fn write_socket(stats: &SocketStats, json: &mut Json) {
    json.number("received_datagrams", stats.received_datagrams);
    json.number("received_bytes", stats.received_bytes);
    json.number("receive_calls", stats.receive_calls);
    json.number("sent_datagrams", stats.sent_datagrams);
    json.number("sent_bytes", stats.sent_bytes);
    json.number("send_calls", stats.send_calls);
    json.number("send_lost", stats.send_lost_datagrams);
    json.number("dropped_no_memory", stats.dropped_no_memory);
    json.number("dropped_truncated", stats.dropped_truncated);
    json.number("dropped_closed", stats.dropped_closed);
    json.number("dropped_bytes", stats.dropped_bytes());
    json.number("received_chunk_bytes", stats.received_chunk_bytes);
    json.number("kernel_dropped", stats.kernel_dropped_datagrams);
}

pub(crate) struct QueueSource {
    pub(crate) name: String,
    pub(crate) monitor: QueueMonitor,
}

const QUEUE: &[Row<QueueStats>] = rows! { |s|
    NET_QUEUE_DATAGRAMS: s.datagrams;
    NET_QUEUE_BYTES: s.bytes;
    NET_QUEUE_BATCHES: s.batches;
    NET_QUEUE_CAPACITY_BATCHES: s.capacity_batches;
    NET_QUEUE_ENQUEUED_DATAGRAMS_TOTAL: s.enqueued;
    NET_QUEUE_ENQUEUED_BYTES_TOTAL: s.enqueued_bytes;
    NET_QUEUE_DELIVERED_DATAGRAMS_TOTAL: s.delivered;
    NET_QUEUE_DELIVERED_BYTES_TOTAL: s.delivered_bytes;
    NET_QUEUE_DROPPED_DATAGRAMS_TOTAL reason="queue_full": s.dropped_queue_full;
    NET_QUEUE_DROPPED_DATAGRAMS_TOTAL reason="policy": s.dropped_policy;
    NET_QUEUE_DROPPED_DATAGRAMS_TOTAL reason="closed": s.dropped_closed;
    NET_QUEUE_DROPPED_BYTES_TOTAL reason="queue_full": s.dropped_queue_full_bytes;
    NET_QUEUE_DROPPED_BYTES_TOTAL reason="policy": s.dropped_policy_bytes;
    NET_QUEUE_DROPPED_BYTES_TOTAL reason="closed": s.dropped_closed_bytes;
};

impl Source for QueueSource {
    fn describe(&self, to: &mut Describe<'_>) {
        describe_rows(QUEUE, &[("queue", self.name.clone().into())], to);
    }

    fn read(&self, values: &mut Vec<u64>) {
        read_rows(QUEUE, &self.monitor.stats(), values);
    }

    fn write_json(&self, json: &mut Json) {
        write_queue(&self.monitor.stats(), json);
    }
}

fn write_queue(stats: &QueueStats, json: &mut Json) {
    json.number("datagrams", stats.datagrams);
    json.number("bytes", stats.bytes);
    json.number("batches", stats.batches);
    json.number("capacity_batches", stats.capacity_batches);
    json.number("enqueued", stats.enqueued);
    json.number("delivered", stats.delivered);
    json.number("dropped_queue_full", stats.dropped_queue_full);
    json.number("dropped_policy", stats.dropped_policy);
    json.number("dropped_closed", stats.dropped_closed);
    json.number("dropped_bytes", stats.dropped_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::assert_each_field_has_its_members;
    use crate::series::assert_each_field_has_its_series;

    #[test]
    fn each_series_reads_its_own_field() {
        assert_each_field_has_its_series! {
            PACKETS, PacketPoolStats::default();
            heap_fallbacks = 1 => "slab_net_heap_fallbacks_total";
            heap_bytes = 1 => "slab_net_heap_bytes";
            heap_refused = 1 => "slab_net_heap_refused_total";
            compacted = 1 => "slab_net_compacted_packets_total";
            compacted_bytes = 1 => "slab_net_compacted_bytes_total";
            compact_refused = 1 => "slab_net_compact_refused_packets_total";
            compact_refused_bytes = 1 => "slab_net_compact_refused_bytes_total";
            held_packets = 1 => "slab_net_held_packets";
            held_bytes = 1 => "slab_net_held_bytes";
            pinned_bytes = 1 => "slab_pool_pinned_bytes";
        }
        assert_each_field_has_its_series! {
            SOCKET, SocketStats::default();
            received_datagrams = 1 => "slab_net_received_datagrams_total";
            received_bytes = 1 => "slab_net_received_bytes_total";
            received_chunk_bytes = 1 => "slab_net_received_chunk_bytes_total";
            receive_calls = 1 => "slab_net_receive_calls_total";
            sent_datagrams = 1 => "slab_net_sent_datagrams_total";
            sent_bytes = 1 => "slab_net_sent_bytes_total";
            send_calls = 1 => "slab_net_send_calls_total";
            send_lost_datagrams = 1 => "slab_net_send_lost_datagrams_total";
            dropped_no_memory = 1 => "slab_net_dropped_datagrams_total reason=no_memory";
            dropped_no_memory_bytes = 1 => "slab_net_dropped_bytes_total reason=no_memory";
            dropped_truncated = 1 => "slab_net_dropped_datagrams_total reason=truncated";
            dropped_truncated_bytes = 1 => "slab_net_dropped_bytes_total reason=truncated";
            dropped_closed = 1 => "slab_net_dropped_datagrams_total reason=closed";
            dropped_closed_bytes = 1 => "slab_net_dropped_bytes_total reason=closed";
            truncated_datagrams = 1 => "slab_net_truncated_datagrams_total";
            kernel_dropped_datagrams = 1 => "slab_net_kernel_dropped_datagrams_total";
        }
        assert_each_field_has_its_series! {
            QUEUE, QueueStats::default();
            datagrams = 1 => "slab_net_queue_datagrams";
            bytes = 1 => "slab_net_queue_bytes";
            batches = 1 => "slab_net_queue_batches";
            capacity_batches = 1 => "slab_net_queue_capacity_batches";
            enqueued = 1 => "slab_net_queue_enqueued_datagrams_total";
            enqueued_bytes = 1 => "slab_net_queue_enqueued_bytes_total";
            delivered = 1 => "slab_net_queue_delivered_datagrams_total";
            delivered_bytes = 1 => "slab_net_queue_delivered_bytes_total";
            dropped_queue_full = 1 => "slab_net_queue_dropped_datagrams_total reason=queue_full";
            dropped_queue_full_bytes = 1 => "slab_net_queue_dropped_bytes_total reason=queue_full";
            dropped_policy = 1 => "slab_net_queue_dropped_datagrams_total reason=policy";
            dropped_policy_bytes = 1 => "slab_net_queue_dropped_bytes_total reason=policy";
            dropped_closed = 1 => "slab_net_queue_dropped_datagrams_total reason=closed";
            dropped_closed_bytes = 1 => "slab_net_queue_dropped_bytes_total reason=closed";
        }
    }

    #[test]
    fn each_member_of_the_json_reads_its_own_field() {
        assert_each_field_has_its_members! {
            write_packets, PacketPoolStats::default(), others: [];
            heap_fallbacks = 1 => "heap_fallbacks";
            heap_bytes = 1 => "heap_bytes";
            heap_refused = 1 => "heap_refused";
            held_packets = 1 => "held_packets";
            held_bytes = 1 => "held_bytes";
            pinned_bytes = 1 => "pinned_bytes";
            compacted = 1 => "compacted";
            compact_refused = 1 => "compact_refused";
        }
        assert_each_field_has_its_members! {
            write_socket, SocketStats::default(), others: [];
            received_datagrams = 1 => "received_datagrams";
            received_bytes = 1 => "received_bytes";
            received_chunk_bytes = 1 => "received_chunk_bytes";
            receive_calls = 1 => "receive_calls";
            sent_datagrams = 1 => "sent_datagrams";
            sent_bytes = 1 => "sent_bytes";
            send_calls = 1 => "send_calls";
            send_lost_datagrams = 1 => "send_lost";
            dropped_no_memory = 1 => "dropped_no_memory";
            dropped_no_memory_bytes = 1 => "dropped_bytes";
            dropped_truncated = 1 => "dropped_truncated";
            dropped_truncated_bytes = 1 => "dropped_bytes";
            dropped_closed = 1 => "dropped_closed";
            dropped_closed_bytes = 1 => "dropped_bytes";
            kernel_dropped_datagrams = 1 => "kernel_dropped";
        }
        assert_each_field_has_its_members! {
            write_queue, QueueStats::default(), others: [];
            datagrams = 1 => "datagrams";
            bytes = 1 => "bytes";
            batches = 1 => "batches";
            capacity_batches = 1 => "capacity_batches";
            enqueued = 1 => "enqueued";
            delivered = 1 => "delivered";
            dropped_queue_full = 1 => "dropped_queue_full";
            dropped_queue_full_bytes = 1 => "dropped_bytes";
            dropped_policy = 1 => "dropped_policy";
            dropped_policy_bytes = 1 => "dropped_bytes";
            dropped_closed = 1 => "dropped_closed";
            dropped_closed_bytes = 1 => "dropped_bytes";
        }
    }
}
