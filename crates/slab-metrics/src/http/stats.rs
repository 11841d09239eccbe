//! What the server did so far, as series on its own page.

use crate::json::Json;
use crate::names::*;
use crate::series::{Registrar, Series, Source, float};
use hyper::StatusCode;
use metrics::{Counter, Gauge};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};

/// How a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// The client closed it, or the server is shutting down.
    Closed,
    /// Refused with 503: the server had as many as it may have.
    Limit,
    /// What arrived was not HTTP/1, or its header was too large.
    Malformed,
    /// A header did not arrive in time.
    Timeout,
    /// It lived as long as a connection may and did not finish after that.
    Lifetime,
    /// The socket failed, or the client left in the middle.
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
    fn register(self: Arc<Self>, to: &mut Registrar<'_>) -> Box<dyn Series> {
        Box::new(ServerSeries {
            open: to.gauge(&HTTP_CONNECTIONS, &[]),
            ended: End::ALL.map(|(_, reason)| {
                to.counter(&HTTP_ENDED_CONNECTIONS_TOTAL, &[("reason", reason.into())])
            }),
            requests: STATUSES
                .map(|(_, status)| to.counter(&HTTP_REQUESTS_TOTAL, &[("status", status.into())])),
            accept_errors: to.counter(&HTTP_ACCEPT_ERRORS_TOTAL, &[]),
            source: Arc::downgrade(&self),
        })
    }

    /// Not in the JSON: it is about the program's memory and traffic.
    fn write_json(&self, _json: &mut Json) {}
}

struct ServerSeries {
    source: Weak<ServerStats>,
    open: Gauge,
    ended: [Counter; End::ALL.len()],
    requests: [Counter; STATUSES.len()],
    accept_errors: Counter,
}

impl Series for ServerSeries {
    fn update(&self) -> bool {
        let Some(stats) = self.source.upgrade() else {
            return false;
        };
        self.open.set(float(stats.open.load(Relaxed)));
        for (series, count) in self.ended.iter().zip(&stats.ended) {
            series.absolute(count.load(Relaxed));
        }
        for (series, count) in self.requests.iter().zip(&stats.requests) {
            series.absolute(count.load(Relaxed));
        }
        self.accept_errors
            .absolute(stats.accept_errors.load(Relaxed));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_stand_at_their_index() {
        for (index, (end, _)) in End::ALL.into_iter().enumerate() {
            assert_eq!(end as usize, index);
        }
    }
}
