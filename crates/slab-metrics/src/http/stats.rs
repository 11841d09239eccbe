//! The server's own statistics, as series on its page.

use crate::names::*;
use crate::series::{Describe, Source};
use hyper::StatusCode;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// How a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// The client closed it or sent no further request in time, or the server is shutting down.
    Closed,
    /// Refused with 503: the server was at its limit.
    Limit,
    /// The request was not HTTP/1, or its header was too large.
    Malformed,
    /// The header of its first request did not arrive in time.
    Timeout,
    /// Its lifetime was over, and the answer under way did not finish in time.
    Lifetime,
    /// The socket failed, or the client left in the middle of a message.
    Error,
}

impl End {
    const ALL: [(Self, &str); 6] = [
        (Self::Closed, "closed"),
        (Self::Limit, "limit"),
        (Self::Malformed, "malformed"),
        (Self::Timeout, "timeout"),
        (Self::Lifetime, "lifetime"),
        (Self::Error, "error"),
    ];
}

/// The statuses that the service itself answers with.
const STATUSES: [(StatusCode, &str); 3] = [
    (StatusCode::OK, "200"),
    (StatusCode::NOT_FOUND, "404"),
    (StatusCode::METHOD_NOT_ALLOWED, "405"),
];

#[derive(Debug, Default)]
pub(crate) struct ServerStats {
    open: AtomicU64,
    ended: [AtomicU64; End::ALL.len()],
    requests: [AtomicU64; STATUSES.len()],
    accept_errors: AtomicU64,
}

impl ServerStats {
    pub(crate) fn opened(&self) {
        self.open.fetch_add(1, Relaxed);
    }

    /// An open connection ended.
    pub(crate) fn ended(&self, end: End) {
        self.open.fetch_sub(1, Relaxed);
        self.ended[end as usize].fetch_add(1, Relaxed);
    }

    /// A connection was refused before it counted as open.
    pub(crate) fn refused(&self) {
        self.ended[End::Limit as usize].fetch_add(1, Relaxed);
    }

    pub(crate) fn answered(&self, status: StatusCode) {
        if let Some(index) = STATUSES.iter().position(|&(s, _)| s == status) {
            self.requests[index].fetch_add(1, Relaxed);
        }
    }

    pub(crate) fn accept_failed(&self) {
        self.accept_errors.fetch_add(1, Relaxed);
    }

    #[cfg(test)]
    pub(crate) fn count(&self, end: End) -> u64 {
        self.ended[end as usize].load(Relaxed)
    }

    #[cfg(test)]
    pub(crate) fn open(&self) -> u64 {
        self.open.load(Relaxed)
    }
}

impl Source for ServerStats {
    fn describe(&self, to: &mut Describe<'_>) {
        to(&HTTP_CONNECTIONS, &[]);
        to(&HTTP_ACCEPT_ERRORS_TOTAL, &[]);
        for (_, reason) in End::ALL {
            to(&HTTP_ENDED_CONNECTIONS_TOTAL, &[("reason", reason.into())]);
        }
        for (_, status) in STATUSES {
            to(&HTTP_REQUESTS_TOTAL, &[("status", status.into())]);
        }
    }

    fn read(&self, values: &mut Vec<u64>) {
        let all = [&self.open, &self.accept_errors].into_iter();
        let all = all.chain(&self.ended).chain(&self.requests);
        values.extend(all.map(|count| count.load(Relaxed)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn end_reasons_are_in_the_order_of_their_index() {
        for (index, (end, _)) in End::ALL.into_iter().enumerate() {
            assert_eq!(end as usize, index);
        }
    }
    #[test]
    fn each_count_has_its_series() {
        let stats = std::sync::Arc::<ServerStats>::default();
        let collector = crate::Collector::new();
        collector
            .register(crate::SourceKind::Server, "", stats.clone())
            .unwrap();
        stats.opened();
        stats.accept_failed();
        let ends = [
            End::Closed,
            End::Limit,
            End::Malformed,
            End::Timeout,
            End::Lifetime,
            End::Error,
        ];
        for (end, count) in ends.into_iter().zip(2..) {
            for _ in 0..count {
                stats.opened();
                stats.ended(end);
            }
        }
        let statuses = [
            StatusCode::OK,
            StatusCode::NOT_FOUND,
            StatusCode::METHOD_NOT_ALLOWED,
        ];
        for (status, count) in statuses.into_iter().zip(2..) {
            (0..count).for_each(|_| stats.answered(status));
        }
        let page = crate::Exporter::new(collector).scrape();
        for line in [
            "connections 1",
            "accept_errors_total 1",
            "ended_connections_total{reason=\"closed\"} 2",
            "ended_connections_total{reason=\"limit\"} 3",
            "ended_connections_total{reason=\"malformed\"} 4",
            "ended_connections_total{reason=\"timeout\"} 5",
            "ended_connections_total{reason=\"lifetime\"} 6",
            "ended_connections_total{reason=\"error\"} 7",
            "requests_total{status=\"200\"} 2",
            "requests_total{status=\"404\"} 3",
            "requests_total{status=\"405\"} 4",
        ] {
            assert!(page.contains(&format!("\nslab_metrics_{line}\n")), "{page}");
        }
    }
}
