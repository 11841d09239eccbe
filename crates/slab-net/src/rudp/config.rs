//! [`SessionConfig`]: what a session is allowed, and how eager it is.

use super::wire::HEADER_BYTES;
use core::fmt;
use core::time::Duration;

/// The window that a peer has until it tells: the smallest default of the known implementations.
pub(super) const DEFAULT_WINDOW: u32 = 32;
/// The longest payload of a segment that is taken from a peer, if its MTU is larger than ours: that
/// of an Ethernet frame.
const ETHERNET_SEGMENT: usize = 1500 - HEADER_BYTES;
const MIN_MTU: usize = 64;
/// What fits into an IPv4 datagram.
const MAX_MTU: usize = 65507;
pub(super) const MAX_WINDOW: u32 = 32768;

/// How a session sends when the network, rather than the peer's window, is the limit.
///
/// With any but [`Off`](Self::Off) it is paced as well: what the window allows is spread over the
/// round trip.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Congestion {
    /// It does not ask the network: only the windows limit it (KCP's `nc` = 1).
    #[default]
    Off,
    /// Slow start, then one segment more a round trip, half after a loss: KCP's own, which is
    /// Reno's (`nc` = 0).
    Reno,
    /// CUBIC (RFC 9438): seven tenths after a loss, then fast back to where it was.
    Cubic,
}

/// The configuration of a [`Session`](super::Session).
///
/// The names are those of KCP where it has one: `nodelay(1, 10, 2, 1)` is [`fast`](Self::fast).
///
/// ```
/// use slab_net::rudp::SessionConfig;
///
/// let config = SessionConfig::fast().window(1024, 1024).mtu(1200);
/// assert!(config.validate().is_ok());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct SessionConfig {
    pub(super) mtu: usize,
    pub(super) send_window: u32,
    pub(super) recv_window: u32,
    pub(super) stream: bool,
    pub(super) nodelay: bool,
    pub(super) interval: Duration,
    pub(super) fast_resend: u32,
    pub(super) congestion: Congestion,
    pub(super) dead_link: u32,
    pub(super) keepalive: Duration,
    pub(super) idle_timeout: Duration,
    pub(super) unproved_timeout: Duration,
    pub(super) linger: Duration,
}

impl Default for SessionConfig {
    fn default() -> Self {
        Self {
            mtu: 1400,
            send_window: 128,
            recv_window: 128,
            stream: false,
            nodelay: false,
            interval: Duration::from_millis(100),
            fast_resend: 0,
            congestion: Congestion::Reno,
            dead_link: 20,
            keepalive: Duration::from_secs(15),
            idle_timeout: Duration::from_secs(60),
            unproved_timeout: Duration::from_secs(10),
            linger: Duration::from_secs(10),
        }
    }
}

impl SessionConfig {
    /// What KCP's users mostly run: no delay, 10 ms, fast resend after 2, no congestion control,
    /// windows of 256.
    pub fn fast() -> Self {
        Self {
            send_window: 256,
            recv_window: 256,
            nodelay: true,
            interval: Duration::from_millis(10),
            fast_resend: 2,
            congestion: Congestion::Off,
            ..Self::default()
        }
    }

    /// The longest datagram to send, in bytes; both ends may differ. Default: 1400.
    pub fn mtu(mut self, bytes: usize) -> Self {
        self.mtu = bytes;
        self
    }

    /// Segments in flight at most, and segments received and not yet read at most. A session takes
    /// memory for its receive window as the traffic asks for it. Default: 128 each.
    pub fn window(mut self, send: u32, recv: u32) -> Self {
        self.send_window = send;
        self.recv_window = recv;
        self
    }

    /// Sends bytes rather than messages: segments are filled up, boundaries are not kept. Default:
    /// messages.
    pub fn stream(mut self, stream: bool) -> Self {
        self.stream = stream;
        self
    }

    /// Retransmits after 30 ms at the earliest instead of 100, and waits half as much longer each
    /// time instead of twice as long. Default: no.
    pub fn nodelay(mut self, nodelay: bool) -> Self {
        self.nodelay = nodelay;
        self
    }

    /// How often the peer is assumed to look after the session, 10 ms to 5 s: how long its
    /// acknowledgements may take, and ours, at most. Default: 100 ms.
    pub fn interval(mut self, interval: Duration) -> Self {
        self.interval = interval;
        self
    }

    /// Takes a segment for lost once this many sent after it have arrived; 0 goes by time alone.
    /// Raised by itself where a path turns out to reorder. Default: 0.
    pub fn fast_resend(mut self, segments: u32) -> Self {
        self.fast_resend = segments;
        self
    }

    /// The congestion control. Default: [`Congestion::Reno`].
    pub fn congestion(mut self, congestion: Congestion) -> Self {
        self.congestion = congestion;
        self
    }

    /// Gives the session up once a segment was sent this often in vain; transmissions after which the
    /// peer acknowledged something later count as one. 2 to 1000; a cookie that is asked for takes one of
    /// them. Default: 20.
    pub fn dead_link(mut self, transmissions: u32) -> Self {
        self.dead_link = transmissions;
        self
    }

    /// Asks for a sign of life after this long without one, and gives the session up after
    /// `idle_timeout`. Default: 15 s, 60 s.
    pub fn keepalive(mut self, keepalive: Duration, idle_timeout: Duration) -> Self {
        self.keepalive = keepalive;
        self.idle_timeout = idle_timeout;
        self
    }

    /// How long a peer may be silent that has not proved its address, if that is shorter than the
    /// idle timeout; and how long it may leave what is sent to it without an acknowledgement, whatever
    /// else comes from there. Default: 10 s.
    pub fn unproved_timeout(mut self, timeout: Duration) -> Self {
        self.unproved_timeout = timeout;
        self
    }

    /// How long a session that was closed goes on trying to deliver what was sent, and then to tell
    /// the peer that it is closed; and before that how long one that was
    /// [finished](super::Session::finish) goes on trying to know the peer. Default: 10 s.
    pub fn linger(mut self, linger: Duration) -> Self {
        self.linger = linger;
        self
    }

    /// Says what is wrong with it, if something is.
    ///
    /// # Errors
    /// The first value that is out of its range.
    pub fn validate(&self) -> Result<(), SessionConfigError> {
        let windows = 1..=MAX_WINDOW;
        let checks = [
            ("mtu", (MIN_MTU..=MAX_MTU).contains(&self.mtu)),
            ("send window", windows.contains(&self.send_window)),
            ("receive window", windows.contains(&self.recv_window)),
            (
                "interval",
                (Duration::from_millis(10)..=Duration::from_secs(5)).contains(&self.interval),
            ),
            ("dead link", (2..=1000).contains(&self.dead_link)),
            (
                "keepalive",
                !self.keepalive.is_zero() && self.keepalive < self.idle_timeout,
            ),
        ];
        match checks.iter().find(|(_, ok)| !ok) {
            Some(&(what, _)) => Err(SessionConfigError { what }),
            None => Ok(()),
        }
    }

    /// The longest payload of a segment that it sends.
    pub(super) fn mss(&self) -> usize {
        self.mtu - HEADER_BYTES
    }

    /// The longest payload of a segment that it takes.
    pub(super) fn max_segment(&self) -> usize {
        self.mss().max(ETHERNET_SEGMENT)
    }

    /// How long an acknowledgement may wait for company.
    pub(super) fn ack_delay(&self) -> Duration {
        (self.interval / 4).clamp(Duration::from_millis(1), Duration::from_millis(10))
    }
}

/// A [`SessionConfig`] value out of its range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionConfigError {
    what: &'static str,
}

impl fmt::Display for SessionConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let range = match self.what {
            "mtu" => "64 to 65507 bytes beside what error correction and encryption add",
            "interval" => "10 ms to 5 s",
            "dead link" => "2 to 1000 transmissions",
            "keepalive" => "more than nothing and less than the idle timeout",
            _ => "1 to 32768 segments",
        };
        write!(
            f,
            "the {} of a session is out of its range, {range}",
            self.what
        )
    }
}

impl core::error::Error for SessionConfigError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_range_is_checked() {
        let ok = SessionConfig::default();
        assert_eq!(ok.validate(), Ok(()));
        assert_eq!(SessionConfig::fast().validate(), Ok(()));
        let wrong = [
            ok.mtu(63),
            ok.mtu(65508),
            ok.window(0, 1),
            ok.window(1, 0),
            ok.window(1, 32769),
            ok.interval(Duration::from_millis(9)),
            ok.dead_link(1),
            ok.dead_link(1001),
            ok.keepalive(Duration::ZERO, Duration::from_secs(1)),
            ok.keepalive(Duration::from_secs(1), Duration::from_secs(1)),
        ];
        for config in wrong {
            assert!(config.validate().is_err(), "{config:?}");
        }
    }
}
