//! Statistics of slab-net's RUDP endpoints as series.

use crate::json::Json;
use crate::names::*;
use crate::series::{Describe, Label, Row, Source, describe_rows, nanos, read_rows, rows};
use slab_net::rudp::{EndpointMonitor, EndpointStats, Rejection};

const ROWS: &[Row<EndpointStats>] = rows! { |s|
    RUDP_SESSIONS: s.sessions as u64;
    RUDP_HALF_OPEN_SESSIONS: s.half_open as u64;
    RUDP_BACKLOG_SESSIONS: s.backlog as u64;
    RUDP_RESERVED_BYTES: s.reserved_bytes as u64;
    RUDP_RESERVE_LIMIT_BYTES: s.reserve_limit_bytes as u64;
    RUDP_MEMORY_BLOCKED_SECONDS_TOTAL direction="sent": nanos(s.blocked_sending);
    RUDP_MEMORY_BLOCKED_SECONDS_TOTAL direction="received": nanos(s.blocked_receiving);
    RUDP_WAKEUPS_TOTAL: s.wakeups;
    RUDP_OPENED_SESSIONS_TOTAL: s.opened;
    RUDP_REFUSED_SESSIONS_TOTAL reason="table_full": s.refused_table_full;
    RUDP_REFUSED_SESSIONS_TOTAL reason="half_open": s.refused_half_open;
    RUDP_REFUSED_SESSIONS_TOTAL reason="prefix": s.refused_prefix;
    RUDP_REFUSED_SESSIONS_TOTAL reason="backlog": s.refused_backlog;
    RUDP_REFUSED_SESSIONS_TOTAL reason="memory": s.refused_memory;
    RUDP_FORGOTTEN_SESSIONS_TOTAL: s.forgotten;
    RUDP_UNKNOWN_SESSION_DATAGRAMS_TOTAL: s.unknown_session;
    RUDP_SENT_COOKIES_TOTAL: s.cookies_sent;
    RUDP_TAKEN_COOKIES_TOTAL: s.cookies_taken;
    RUDP_UNOPENED_DATAGRAMS_TOTAL: s.unopened;
    RUDP_SEND_ERRORS_TOTAL: s.send_errors;
    RUDP_UNSENT_ANSWERS_TOTAL: s.unsent_answers;
    RUDP_SEND_BLOCKED_TOTAL: s.send_blocked;
    RUDP_DATAGRAMS_TOTAL direction="sent": s.total.sent_datagrams;
    RUDP_DATAGRAMS_TOTAL direction="received": s.total.received_datagrams;
    RUDP_BYTES_TOTAL direction="sent": s.total.sent_bytes;
    RUDP_BYTES_TOTAL direction="received": s.total.received_bytes;
    RUDP_SEGMENTS_TOTAL direction="sent": s.total.sent_segments;
    RUDP_SEGMENTS_TOTAL direction="received": s.total.received_segments;
    RUDP_SENT_ACKS_TOTAL: s.total.sent_acks;
    RUDP_RETRANSMITS_TOTAL trigger="timeout": s.total.retransmits_timeout;
    RUDP_RETRANSMITS_TOTAL trigger="fast": s.total.retransmits_fast;
    RUDP_RETRANSMITS_TOTAL trigger="tail": s.total.retransmits_tail;
    RUDP_SPURIOUS_RETRANSMITS_TOTAL: s.total.retransmits_spurious;
    RUDP_DUPLICATE_SEGMENTS_TOTAL: s.total.duplicates;
    RUDP_DROPPED_SEGMENTS_TOTAL reason="beyond_window": s.total.dropped_beyond_window;
    RUDP_DROPPED_SEGMENTS_TOTAL reason="no_memory": s.total.dropped_no_memory;
    RUDP_COPIED_SEGMENTS_TOTAL: s.total.copied_segments;
    RUDP_WINDOW_REFUSED_TOTAL: s.total.window_refused;
    RUDP_WINDOW_PROBES_TOTAL: s.total.probes;
    RUDP_UNRELIABLE_DATAGRAMS_TOTAL direction="sent": s.total.sent_unreliable;
    RUDP_UNRELIABLE_DATAGRAMS_TOTAL direction="received": s.total.received_unreliable;
    RUDP_DROPPED_UNRELIABLE_DATAGRAMS_TOTAL: s.total.dropped_unreliable;
};

/// The series of error correction.
#[cfg(feature = "fec")]
const FEC_ROWS: &[Row<EndpointStats>] = rows! { |s|
    RUDP_FEC_SHARDS_TOTAL direction="sent": s.fec.sent_parity;
    RUDP_FEC_SHARDS_TOTAL direction="received": s.fec.received_parity;
    RUDP_FEC_RECOVERED_DATAGRAMS_TOTAL: s.fec.recovered;
    RUDP_FEC_EXPIRED_GROUPS_TOTAL: s.fec.expired;
    RUDP_FEC_DROPPED_SHARDS_TOTAL reason="rejected": s.fec.rejected;
    RUDP_FEC_DROPPED_SHARDS_TOTAL reason="late": s.fec.late;
    RUDP_FEC_DROPPED_SHARDS_TOTAL reason="no_memory": s.fec.no_memory;
};

#[cfg(not(feature = "fec"))]
const FEC_ROWS: &[Row<EndpointStats>] = &[];

pub(crate) struct EndpointSource {
    pub(crate) name: String,
    pub(crate) monitor: EndpointMonitor,
}

impl EndpointSource {
    /// Of an endpoint that goes at this moment, nothing: the collector drops it at the next scrape.
    fn stats(&self) -> EndpointStats {
        self.monitor.stats().unwrap_or_default()
    }
}

impl Source for EndpointSource {
    fn describe(&self, to: &mut Describe<'_>) {
        let endpoint: Label = ("endpoint", self.name.clone().into());
        describe_rows(ROWS, std::slice::from_ref(&endpoint), to);
        describe_rows(FEC_ROWS, std::slice::from_ref(&endpoint), to);
        to(&RUDP_RTT_SECONDS, std::slice::from_ref(&endpoint));
        for reason in Rejection::ALL {
            let reason = ("reason", reason.name().into());
            to(&RUDP_REJECTED_DATAGRAMS_TOTAL, &[endpoint.clone(), reason]);
        }
    }

    fn read(&self, values: &mut Vec<u64>) {
        let stats = self.stats();
        read_rows(ROWS, &stats, values);
        read_rows(FEC_ROWS, &stats, values);
        values.extend(stats.round_trips.counts());
        values.push(nanos(stats.round_trips.sum()));
        let rejected = Rejection::ALL.iter();
        values.extend(rejected.map(|reason| stats.total.rejected_for(*reason)));
    }

    fn write_json(&self, json: &mut Json) {
        write_endpoint(&self.stats(), json);
    }

    fn is_gone(&self) -> bool {
        self.monitor.is_gone()
    }
}

fn write_endpoint(stats: &EndpointStats, json: &mut Json) {
    let total = &stats.total;
    json.number("sessions", stats.sessions);
    json.number("half_open", stats.half_open);
    json.number("reserved_bytes", stats.reserved_bytes);
    json.number("reserve_limit_bytes", stats.reserve_limit_bytes);
    let limits = stats.refused_table_full + stats.refused_backlog;
    json.number("refused_limits", limits);
    json.number(
        "refused_unproved",
        stats.refused_half_open + stats.refused_prefix,
    );
    json.number("refused_memory", stats.refused_memory);
    json.number("send_errors", stats.send_errors);
    json.number("sent_bytes", total.sent_bytes);
    json.number("received_bytes", total.received_bytes);
    json.number("sent_segments", total.sent_segments);
    json.number("received_segments", total.received_segments);
    json.number("retransmits_timeout", total.retransmits_timeout);
    json.number("retransmits_tail", total.retransmits_tail);
    json.number("retransmits_fast", total.retransmits_fast);
    json.number("round_trips", stats.round_trips.count());
    json.number("round_trips_nanos", nanos(stats.round_trips.sum()));
    let blocked = stats.blocked_sending + stats.blocked_receiving;
    json.number("memory_blocked_nanos", nanos(blocked));
    json.number("dropped_no_memory", total.dropped_no_memory);
    json.number("window_refused", total.window_refused);
    json.number("rejected_datagrams", total.rejected_datagrams());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::assert_each_field_has_its_members;
    use crate::series::assert_each_field_has_its_series;
    use std::time::Duration;

    #[test]
    fn each_series_reads_its_own_field() {
        const NANO: Duration = Duration::from_nanos(1);
        assert_each_field_has_its_series! {
            ROWS, EndpointStats::default();
            sessions = 1 => "slab_rudp_sessions";
            half_open = 1 => "slab_rudp_half_open_sessions";
            backlog = 1 => "slab_rudp_backlog_sessions";
            reserved_bytes = 1 => "slab_rudp_reserved_bytes";
            reserve_limit_bytes = 1 => "slab_rudp_reserve_limit_bytes";
            opened = 1 => "slab_rudp_opened_sessions_total";
            forgotten = 1 => "slab_rudp_forgotten_sessions_total";
            unknown_session = 1 => "slab_rudp_unknown_session_datagrams_total";
            refused_table_full = 1 => "slab_rudp_refused_sessions_total reason=table_full";
            refused_half_open = 1 => "slab_rudp_refused_sessions_total reason=half_open";
            refused_prefix = 1 => "slab_rudp_refused_sessions_total reason=prefix";
            refused_backlog = 1 => "slab_rudp_refused_sessions_total reason=backlog";
            refused_memory = 1 => "slab_rudp_refused_sessions_total reason=memory";
            cookies_sent = 1 => "slab_rudp_sent_cookies_total";
            cookies_taken = 1 => "slab_rudp_taken_cookies_total";
            wakeups = 1 => "slab_rudp_wakeups_total";
            send_errors = 1 => "slab_rudp_send_errors_total";
            unsent_answers = 1 => "slab_rudp_unsent_answers_total";
            send_blocked = 1 => "slab_rudp_send_blocked_total";
            unopened = 1 => "slab_rudp_unopened_datagrams_total";
            blocked_sending = NANO => "slab_rudp_memory_blocked_seconds_total direction=sent";
            blocked_receiving = NANO => "slab_rudp_memory_blocked_seconds_total direction=received";
            total.sent_datagrams = 1 => "slab_rudp_datagrams_total direction=sent";
            total.sent_bytes = 1 => "slab_rudp_bytes_total direction=sent";
            total.sent_segments = 1 => "slab_rudp_segments_total direction=sent";
            total.sent_acks = 1 => "slab_rudp_sent_acks_total";
            total.received_datagrams = 1 => "slab_rudp_datagrams_total direction=received";
            total.received_bytes = 1 => "slab_rudp_bytes_total direction=received";
            total.received_segments = 1 => "slab_rudp_segments_total direction=received";
            total.retransmits_timeout = 1 => "slab_rudp_retransmits_total trigger=timeout";
            total.retransmits_tail = 1 => "slab_rudp_retransmits_total trigger=tail";
            total.retransmits_fast = 1 => "slab_rudp_retransmits_total trigger=fast";
            total.retransmits_spurious = 1 => "slab_rudp_spurious_retransmits_total";
            total.duplicates = 1 => "slab_rudp_duplicate_segments_total";
            total.dropped_beyond_window = 1 => "slab_rudp_dropped_segments_total reason=beyond_window";
            total.dropped_no_memory = 1 => "slab_rudp_dropped_segments_total reason=no_memory";
            total.copied_segments = 1 => "slab_rudp_copied_segments_total";
            total.window_refused = 1 => "slab_rudp_window_refused_total";
            total.sent_unreliable = 1 => "slab_rudp_unreliable_datagrams_total direction=sent";
            total.received_unreliable = 1 => "slab_rudp_unreliable_datagrams_total direction=received";
            total.dropped_unreliable = 1 => "slab_rudp_dropped_unreliable_datagrams_total";
            total.probes = 1 => "slab_rudp_window_probes_total";
        }
        #[cfg(feature = "fec")]
        assert_each_field_has_its_series! {
            FEC_ROWS, EndpointStats::default();
            fec.sent_parity = 1 => "slab_rudp_fec_shards_total direction=sent";
            fec.received_parity = 1 => "slab_rudp_fec_shards_total direction=received";
            fec.recovered = 1 => "slab_rudp_fec_recovered_datagrams_total";
            fec.expired = 1 => "slab_rudp_fec_expired_groups_total";
            fec.rejected = 1 => "slab_rudp_fec_dropped_shards_total reason=rejected";
            fec.late = 1 => "slab_rudp_fec_dropped_shards_total reason=late";
            fec.no_memory = 1 => "slab_rudp_fec_dropped_shards_total reason=no_memory";
        }
    }

    /// The others are not to be set: `stats_json` has a test of them.
    #[test]
    fn each_member_of_the_json_reads_its_own_fields() {
        const NANO: Duration = Duration::from_nanos(1);
        assert_each_field_has_its_members! {
            write_endpoint, EndpointStats::default(),
            others: ["rejected_datagrams", "round_trips", "round_trips_nanos"];
            sessions = 1 => "sessions";
            half_open = 1 => "half_open";
            reserved_bytes = 1 => "reserved_bytes";
            reserve_limit_bytes = 1 => "reserve_limit_bytes";
            refused_table_full = 1 => "refused_limits";
            refused_backlog = 1 => "refused_limits";
            refused_half_open = 1 => "refused_unproved";
            refused_prefix = 1 => "refused_unproved";
            refused_memory = 1 => "refused_memory";
            send_errors = 1 => "send_errors";
            blocked_sending = NANO => "memory_blocked_nanos";
            blocked_receiving = NANO => "memory_blocked_nanos";
            total.sent_bytes = 1 => "sent_bytes";
            total.received_bytes = 1 => "received_bytes";
            total.sent_segments = 1 => "sent_segments";
            total.received_segments = 1 => "received_segments";
            total.retransmits_timeout = 1 => "retransmits_timeout";
            total.retransmits_tail = 1 => "retransmits_tail";
            total.retransmits_fast = 1 => "retransmits_fast";
            total.dropped_no_memory = 1 => "dropped_no_memory";
            total.window_refused = 1 => "window_refused";
        }
    }
}
