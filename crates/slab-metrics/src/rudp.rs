//! Statistics of slab-net's RUDP endpoints as series.

use crate::json::Json;
use crate::names::*;
use crate::series::{Registrar, Series, Source, float};
use metrics::{Counter, Gauge, SharedString};
use slab_net::rudp::{Endpoint, EndpointStats, Rejection};
use std::sync::{Arc, Weak};

/// One series: its family, a label beside the endpoint's name, and where its value is.
struct Row(
    &'static Family,
    Option<(&'static str, &'static str)>,
    fn(&EndpointStats) -> u64,
);

const ROWS: &[Row] = &[
    Row(&RUDP_SESSIONS, None, |s| s.sessions as u64),
    Row(&RUDP_HALF_OPEN_SESSIONS, None, |s| s.half_open as u64),
    Row(&RUDP_BACKLOG_SESSIONS, None, |s| s.backlog as u64),
    Row(&RUDP_RESERVED_BYTES, None, |s| s.reserved_bytes as u64),
    Row(&RUDP_RESERVE_LIMIT_BYTES, None, |s| {
        s.reserve_limit_bytes as u64
    }),
    Row(&RUDP_OPENED_SESSIONS_TOTAL, None, |s| s.opened),
    Row(
        &RUDP_REFUSED_SESSIONS_TOTAL,
        Some(("reason", "table_full")),
        |s| s.refused_table_full,
    ),
    Row(
        &RUDP_REFUSED_SESSIONS_TOTAL,
        Some(("reason", "half_open")),
        |s| s.refused_half_open,
    ),
    Row(
        &RUDP_REFUSED_SESSIONS_TOTAL,
        Some(("reason", "prefix")),
        |s| s.refused_prefix,
    ),
    Row(
        &RUDP_REFUSED_SESSIONS_TOTAL,
        Some(("reason", "backlog")),
        |s| s.refused_backlog,
    ),
    Row(
        &RUDP_REFUSED_SESSIONS_TOTAL,
        Some(("reason", "memory")),
        |s| s.refused_memory,
    ),
    Row(&RUDP_UNKNOWN_SESSION_DATAGRAMS_TOTAL, None, |s| {
        s.unknown_session
    }),
    Row(&RUDP_SEND_ERRORS_TOTAL, None, |s| s.send_errors),
    Row(&RUDP_DATAGRAMS_TOTAL, Some(("direction", "sent")), |s| {
        s.total.sent_datagrams
    }),
    Row(
        &RUDP_DATAGRAMS_TOTAL,
        Some(("direction", "received")),
        |s| s.total.received_datagrams,
    ),
    Row(&RUDP_BYTES_TOTAL, Some(("direction", "sent")), |s| {
        s.total.sent_bytes
    }),
    Row(&RUDP_BYTES_TOTAL, Some(("direction", "received")), |s| {
        s.total.received_bytes
    }),
    Row(&RUDP_SEGMENTS_TOTAL, Some(("direction", "sent")), |s| {
        s.total.sent_segments
    }),
    Row(&RUDP_SEGMENTS_TOTAL, Some(("direction", "received")), |s| {
        s.total.received_segments
    }),
    Row(&RUDP_SENT_ACKS_TOTAL, None, |s| s.total.sent_acks),
    Row(&RUDP_RETRANSMITS_TOTAL, Some(("trigger", "timeout")), |s| {
        s.total.retransmits_timeout
    }),
    Row(&RUDP_RETRANSMITS_TOTAL, Some(("trigger", "fast")), |s| {
        s.total.retransmits_fast
    }),
    Row(&RUDP_SPURIOUS_RETRANSMITS_TOTAL, None, |s| {
        s.total.retransmits_spurious
    }),
    Row(&RUDP_DUPLICATE_SEGMENTS_TOTAL, None, |s| s.total.duplicates),
    Row(
        &RUDP_DROPPED_SEGMENTS_TOTAL,
        Some(("reason", "beyond_window")),
        |s| s.total.dropped_beyond_window,
    ),
    Row(
        &RUDP_DROPPED_SEGMENTS_TOTAL,
        Some(("reason", "no_memory")),
        |s| s.total.dropped_no_memory,
    ),
    Row(&RUDP_COPIED_SEGMENTS_TOTAL, None, |s| {
        s.total.copied_segments
    }),
    Row(&RUDP_WINDOW_REFUSED_TOTAL, None, |s| s.total.window_refused),
    Row(&RUDP_WINDOW_PROBES_TOTAL, None, |s| s.total.probes),
];

pub(crate) struct EndpointSource {
    pub(crate) name: String,
    pub(crate) endpoint: Endpoint,
}

impl Source for EndpointSource {
    fn register(self: Arc<Self>, to: &mut Registrar<'_>) -> Box<dyn Series> {
        let name: SharedString = self.name.clone().into();
        let rejected = Rejection::ALL.map(|reason| {
            let labels = [("endpoint", name.clone()), ("reason", reason.name().into())];
            to.counter(&RUDP_REJECTED_DATAGRAMS_TOTAL, &labels)
        });
        let rows = ROWS.iter().map(|Row(family, label, _)| {
            let endpoint = [("endpoint", name.clone())];
            let label = label.map(|(label, value)| (label, SharedString::from(value)));
            let labels: Vec<_> = endpoint.into_iter().chain(label).collect();
            match family.kind {
                Kind::Counter => Handle::Counter(to.counter(family, &labels)),
                Kind::Gauge => Handle::Gauge(to.gauge(family, &labels)),
            }
        });
        Box::new(EndpointSeries {
            rows: rows.collect(),
            rejected,
            source: Arc::downgrade(&self),
        })
    }

    fn write_json(&self, json: &mut Json) {
        let stats = self.endpoint.stats();
        json.number("sessions", stats.sessions);
        json.number("sent_segments", stats.total.sent_segments);
        json.number("received_segments", stats.total.received_segments);
        json.number("retransmits_timeout", stats.total.retransmits_timeout);
        json.number("retransmits_fast", stats.total.retransmits_fast);
        json.number("dropped_no_memory", stats.total.dropped_no_memory);
        json.number("rejected_datagrams", stats.total.rejected_datagrams());
    }
}

enum Handle {
    Counter(Counter),
    Gauge(Gauge),
}

struct EndpointSeries {
    source: Weak<EndpointSource>,
    /// As `ROWS`.
    rows: Box<[Handle]>,
    rejected: [Counter; Rejection::ALL.len()],
}

impl Series for EndpointSeries {
    fn update(&self) -> bool {
        let Some(source) = self.source.upgrade() else {
            return false;
        };
        let stats = source.endpoint.stats();
        for (handle, Row(_, _, read)) in self.rows.iter().zip(ROWS) {
            match handle {
                Handle::Counter(counter) => counter.absolute(read(&stats)),
                Handle::Gauge(gauge) => gauge.set(float(read(&stats))),
            }
        }
        for (series, reason) in self.rejected.iter().zip(Rejection::ALL) {
            series.absolute(stats.total.rejected_for(reason));
        }
        true
    }
}
