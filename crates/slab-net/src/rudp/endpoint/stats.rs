//! The counters of an endpoint.

use super::super::measures::RoundTripTimes;
use super::super::stats::SessionStats;
use super::shared::Shared;
use core::fmt;
use core::time::Duration;
use std::sync::{Arc, Weak};
use tokio::sync::watch;

/// A handle to the counters of an [`Endpoint`](super::Endpoint), from
/// [`Endpoint::monitor`](super::Endpoint::monitor). It keeps nothing open: an endpoint is gone once its
/// handles are dropped and its sessions have ended.
///
/// ```
/// use slab_net::PacketPool;
/// use slab_net::rudp::{Endpoint, EndpointConfig};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let pool = PacketPool::builder().max_memory(8 << 20).build()?;
/// let endpoint = Endpoint::bind("127.0.0.1:0".parse()?, &pool, EndpointConfig::default())?;
/// let monitor = endpoint.monitor();
/// assert_eq!(monitor.stats().map(|stats| stats.sessions), Some(0));
///
/// assert!(!monitor.is_gone());
/// drop(endpoint);
/// monitor.gone().await;
/// assert!(monitor.is_gone() && monitor.stats().is_none());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct EndpointMonitor {
    shared: Weak<Shared>,
    gone: watch::Receiver<()>,
}

impl EndpointMonitor {
    pub(super) fn new(shared: &Arc<Shared>) -> Self {
        Self {
            shared: Arc::downgrade(shared),
            gone: shared.gone.subscribe(),
        }
    }

    /// Returns the counters as [`Endpoint::stats`](super::Endpoint::stats) does, or `None` once the endpoint is gone.
    #[must_use]
    pub fn stats(&self) -> Option<EndpointStats> {
        Some(self.shared.upgrade()?.stats())
    }

    /// Waits until the endpoint is gone: all handles to it and its connections are dropped, its sessions have delivered
    /// what was sent, or given up, and its socket is closed. A program that ends waits for this, or what is under way is
    /// lost. It takes up to the [linger time](super::super::SessionConfig::linger), and then up to three time-outs of a
    /// session; a limit of the program's own is [`timeout`](tokio::time::timeout).
    ///
    /// Cancel-safe.
    pub async fn gone(&self) {
        // Nothing is ever sent: it ends with the endpoint.
        let mut gone = self.gone.clone();
        while gone.changed().await.is_ok() {}
    }

    /// Returns `true` once the endpoint is gone. Its socket may be closed a moment later; [`gone`](Self::gone) waits for
    /// that.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.shared.strong_count() == 0
    }
}

impl fmt::Debug for EndpointMonitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EndpointMonitor")
            .field("stats", &self.stats())
            .finish()
    }
}

/// A snapshot of an endpoint: how many sessions there are, and what was counted since it was bound.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct EndpointStats {
    /// Sessions now.
    pub sessions: usize,
    /// Sessions now whose peer has not proved its address.
    pub half_open: usize,
    /// Sessions now that wait to be accepted.
    pub backlog: usize,
    /// Bytes of pool memory reserved now, by all sessions.
    pub reserved_bytes: usize,
    /// Bytes of pool memory that may be reserved.
    pub reserve_limit_bytes: usize,
    /// Sessions opened so far, by either side.
    pub opened: u64,
    /// Datagrams that belonged to no session and opened none, but for those counted as refused below, and those that are
    /// answered by a cookie where [all need one](super::EndpointConfig::require_cookie). What else peers send there before
    /// they have theirs is among them.
    pub unknown_session: u64,
    /// Refusals of a session because there were too many. Of these and of the next four, each datagram that would have
    /// opened a session counts, which a peer repeats until it gives up; and each call of
    /// [`connect`](super::Endpoint::connect) that was refused for that reason.
    pub refused_table_full: u64,
    /// Refusals because too many had not proved their address.
    pub refused_half_open: u64,
    /// Refusals because too many of one prefix had not proved their address.
    pub refused_prefix: u64,
    /// Refusals because too many waited to be accepted.
    pub refused_backlog: u64,
    /// Refusals because the memory budget was used up.
    pub refused_memory: u64,
    /// Cookies sent to peers whose address is not proved, for lack of room or by configuration.
    pub cookies_sent: u64,
    /// Sessions opened because their peer sent a valid cookie.
    pub cookies_taken: u64,
    /// Sessions that ended and were forgotten before [the idle timeout](crate::rudp::SessionConfig::idle_timeout),
    /// because more than [`max_sessions`](super::EndpointConfig::max_sessions) ended after them. A late datagram may open
    /// one again.
    pub forgotten: u64,
    /// Times that the endpoint's task woke up, for datagrams or for a timer.
    pub wakeups: u64,
    /// Datagrams that the system refused to send, or that neither the socket nor the pool had room for. Their
    /// sessions treat them as lost.
    pub send_errors: u64,
    /// Answers to datagrams without a session (cookies, and notices that there is none) that the system refused to send, or
    /// that the socket had no room for. If they are missed, they are asked for again.
    pub unsent_answers: u64,
    /// Times that the socket had no room for a session's datagrams. They wait until it has; each session waits with
    /// those of one call to the kernel at most.
    pub send_blocked: u64,
    /// Datagrams that could not be opened with the key, because they are somebody else's or damaged; and those that
    /// this endpoint has sealed itself.
    pub unopened: u64,
    /// The round-trip times that sessions have measured.
    pub round_trips: RoundTripTimes,
    /// How long sessions had something to send and no memory to keep it in, until acknowledgements freed some, or, with
    /// a [`Stream`](super::Stream), others did: the sum over all sessions.
    pub blocked_sending: Duration,
    /// How long peers filled a whole window that could not grow for want of memory in the budget: the sum over all
    /// sessions.
    pub blocked_receiving: Duration,
    /// The counters of error correction, for all peers together.
    #[cfg(feature = "fec")]
    pub fec: crate::rudp::fec::FecStats,
    /// The counters of all sessions together, including those that have ended.
    pub total: SessionStats,
}

#[cfg(test)]
mod tests {
    use super::super::tests::endpoint;

    #[tokio::test]
    async fn what_is_printed_of_a_monitor_are_the_counters_while_there_are_any() {
        let endpoint = endpoint();
        let monitor = endpoint.monitor();
        let stats = format!("{:?}", endpoint.stats());
        assert_eq!(
            format!("{monitor:?}"),
            format!("EndpointMonitor {{ stats: Some({stats}) }}")
        );
        drop(endpoint);
        monitor.gone().await;
        assert_eq!(format!("{monitor:?}"), "EndpointMonitor { stats: None }");
    }
}
