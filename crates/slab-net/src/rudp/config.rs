//! [`SessionConfig`]: the limits and timers of a session.

use super::wire::HEADER_BYTES;
use core::fmt;
use core::time::Duration;

/// The window assumed of a peer that has not told one: the smallest default of the known implementations.
pub(super) const DEFAULT_WINDOW: u32 = 32;
/// The longest payload that a segment of a peer may have where the peer's MTU may be larger than ours: that of an
/// Ethernet frame.
const ETHERNET_SEGMENT: usize = 1500 - HEADER_BYTES;
const MIN_MTU: usize = 64;
/// The payload of the largest IPv4 datagram.
const MAX_MTU: usize = 65507;
pub(super) const MAX_WINDOW: u32 = 32768;
/// Below the resolution of a session's clock, 1 us, it would ask all the time.
pub(super) const MIN_TIMEOUT: Duration = Duration::from_millis(1);

/// How a session sends when the network, rather than the peer's window, is the limit.
///
/// With any variant but [`Off`](Self::Off), sending is paced as well: a window is spread over the round trip.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Congestion {
    /// No congestion control: only the windows limit the session (KCP's `nc` = 1).
    Off,
    /// Reno, which is KCP's own (`nc` = 0): slow start, then one segment more a round trip; half the window after a
    /// loss.
    #[default]
    Reno,
    /// CUBIC (RFC 9438): seven tenths of the window after a loss, then fast back to where it was.
    Cubic,
}

/// The configuration of a [`Session`](super::Session).
///
/// Options that KCP has too bear its names: `nodelay(1, 10, 2, 1)` is [`fast`](Self::fast).
///
/// ```
/// use slab_net::rudp::SessionConfig;
///
/// let config = SessionConfig::fast().window(1024, 1024).mtu(1200);
/// assert!(config.validate().is_ok());
/// ```
///
/// For a game, for a transfer of files, and what `fast` stands for:
///
/// ```
/// use slab_net::rudp::{Congestion, SessionConfig};
/// use std::time::Duration;
///
/// // Little to send, and soon; who is gone is missed after five seconds.
/// let game = SessionConfig::fast().keepalive(Duration::from_secs(1)).idle_timeout(Duration::from_secs(5));
/// // Bytes, as many as the path carries beside other traffic; an outage of some minutes does not end it.
/// let files = SessionConfig::default().stream(true).congestion(Congestion::Cubic).window(4096, 4096);
/// let files = files.idle_timeout(Duration::from_secs(300)).linger(Duration::from_secs(60));
/// assert!(game.validate().is_ok() && files.validate().is_ok());
///
/// let fast = SessionConfig::default().nodelay(true).interval(Duration::from_millis(10));
/// let fast = fast.fast_resend(2).congestion(Congestion::Off).window(256, 256);
/// assert_eq!(fast, SessionConfig::fast());
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
            congestion: Congestion::default(),
            dead_link: 20,
            keepalive: Duration::from_secs(15),
            idle_timeout: Duration::from_secs(60),
            unproved_timeout: Duration::from_secs(10),
            linger: Duration::from_secs(10),
        }
    }
}

impl SessionConfig {
    /// What most users of KCP run: no delay, an interval of 10 ms, fast resend after 2 segments, no congestion
    /// control, windows of 256.
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

    /// Sets the longest datagram to send, in bytes. The two ends may differ, but an end refuses segments of more than
    /// 1500 bytes, header included, that are also longer than its own; without
    /// [offload](super::EndpointConfig::offload), datagrams of that length. 64 to 65 507; default: 1400. What is longer
    /// than the path takes arrives in fragments on Linux, as routers report it, which costs more than a shorter MTU.
    pub fn mtu(mut self, bytes: usize) -> Self {
        self.mtu = bytes;
        self
    }

    /// Sets the most segments in flight, and the most segments received and not yet read. A session reserves memory
    /// for its receive window only as the traffic needs it. 1 to 32 768; default: 128 each. What a peer sends beyond the
    /// window that it was told is taken, too, as other implementations do, if its address is proved and there is memory to
    /// spare: up to as much again.
    ///
    /// On paths with a round trip of less than an interval, a send window below 16 is slow: the peer acknowledges at
    /// every 16th segment, or after a quarter of an [`interval`](Self::interval), 10 ms at most.
    ///
    /// A peer assumes a receive window of 32 until it is told another (C's ikcp and the crate `kcp`: of 128). If it is
    /// smaller, and the peer's first message is longer, that is refused however often it is sent, and nothing behind it
    /// can be read. A first burst of these two that does not fit comes again ever later: for them, 128 or more is best.
    pub fn window(mut self, send: u32, recv: u32) -> Self {
        self.send_window = send;
        self.recv_window = recv;
        self
    }

    /// Sends bytes rather than messages: boundaries are not kept, and what is [sent](super::Session::send) at once may be
    /// as long as the send queue. What is [written](super::Session::write) fills segments up, in this mode or not; what is
    /// sent begins a segment of its own each time. Default: messages.
    pub fn stream(mut self, stream: bool) -> Self {
        self.stream = stream;
        self
    }

    /// Lowers the minimum time-out from 100 ms to 30 ms, and multiplies it by 1.5 instead of 2 after each time-out.
    /// Default: off.
    pub fn nodelay(mut self, nodelay: bool) -> Self {
        self.nodelay = nodelay;
        self
    }

    /// Sets the interval at which the peer is assumed to update the session (KCP's `interval`), 10 ms to 5 s: the
    /// longest that a peer of another implementation holds an acknowledgement back. So a time-out comes that much
    /// after the round trip at the earliest: with a longer interval, the loss of what nothing follows is found later.
    /// This end holds none back for more than 10 ms. Default: 100 ms.
    pub fn interval(mut self, interval: Duration) -> Self {
        self.interval = interval;
        self
    }

    /// Takes a segment for lost once one has arrived that was sent more than this many transmissions after it; 0
    /// goes by time alone. Counting stops while the path is found to reorder. Default: 0.
    pub fn fast_resend(mut self, segments: u32) -> Self {
        self.fast_resend = segments;
        self
    }

    /// Sets the congestion control. Default: [`Congestion::Reno`].
    pub fn congestion(mut self, congestion: Congestion) -> Self {
        self.congestion = congestion;
        self
    }

    /// Ends the session once a segment was sent this often without being acknowledged, 2 to 1000 times. Retransmissions
    /// that follow an acknowledgement of something else count once at most, and so do those ahead of their turn, since the
    /// peer waits for that segment; what was sent before a server's first cookie came does not count. Default: 20.
    pub fn dead_link(mut self, transmissions: u32) -> Self {
        self.dead_link = transmissions;
        self
    }

    /// Sets after how long without a sign of life the peer is asked for one: a millisecond at least, and less than the
    /// [idle timeout](Self::idle_timeout). Until it answers it is asked again after each fourth of that. Default: 15 s.
    pub fn keepalive(mut self, interval: Duration) -> Self {
        self.keepalive = interval;
        self
    }

    /// Sets after how long without a sign of life the session ends; longer than the [keepalive](Self::keepalive). If the
    /// peer is asked for one too late by half of the difference or more, as in a process that was stopped, the delay does not
    /// count while the session is open and once the peer has proved its address. Default: 60 s.
    pub fn idle_timeout(mut self, timeout: Duration) -> Self {
        self.idle_timeout = timeout;
        self
    }

    /// Sets how long a peer that has not proved its address may be silent, if that is shorter than the idle
    /// timeout; and how long it may leave unacknowledged what is sent to it, whatever else comes from its address. To
    /// prove it takes a round trip. A millisecond at least. Default: 10 s.
    pub fn unproved_timeout(mut self, timeout: Duration) -> Self {
        self.unproved_timeout = timeout;
        self
    }

    /// Sets how long a closed session keeps trying to deliver what was sent, and then to tell the peer that it is
    /// closed, for which it has three time-outs in any case; and how long a [finished](super::Session::finish) session
    /// waits to learn whether the peer runs this library. Default: 10 s.
    pub fn linger(mut self, linger: Duration) -> Self {
        self.linger = linger;
        self
    }

    /// Checks every value against its range.
    ///
    /// # Errors
    /// Names the first value that is out of its range.
    pub fn validate(&self) -> Result<(), SessionConfigError> {
        let check = |what, range, is_within| match is_within {
            true => Ok(()),
            false => Err(SessionConfigError { what, range }),
        };
        let mtu = "64 to 65507 bytes, of which error correction and encryption must leave 64";
        check("mtu", mtu, (MIN_MTU..=MAX_MTU).contains(&self.mtu))?;
        let (segments, windows) = ("1 to 32768 segments", 1..=MAX_WINDOW);
        check("send window", segments, windows.contains(&self.send_window))?;
        check(
            "receive window",
            segments,
            windows.contains(&self.recv_window),
        )?;
        let intervals = Duration::from_millis(10)..=Duration::from_secs(5);
        check(
            "interval",
            "10 ms to 5 s",
            intervals.contains(&self.interval),
        )?;
        let transmissions = (2..=1000).contains(&self.dead_link);
        check("dead link", "2 to 1000 transmissions", transmissions)?;
        let keepalive = "1 ms or more, and less than the idle timeout";
        let keepalives = MIN_TIMEOUT..self.idle_timeout;
        check("keepalive", keepalive, keepalives.contains(&self.keepalive))?;
        let is_long = self.unproved_timeout >= MIN_TIMEOUT;
        check("unproved timeout", "1 ms or more", is_long)
    }

    /// The longest payload of a segment sent.
    pub(super) fn mss(&self) -> usize {
        self.mtu - HEADER_BYTES
    }

    /// The longest payload of a segment received.
    pub(super) fn max_segment(&self) -> usize {
        self.mss().max(ETHERNET_SEGMENT)
    }

    /// How long an acknowledgement may wait for others to go with it.
    pub(super) fn ack_delay(&self) -> Duration {
        (self.interval / 4).clamp(Duration::from_millis(1), Duration::from_millis(10))
    }
}

/// A value of a [`SessionConfig`] is out of its range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionConfigError {
    what: &'static str,
    range: &'static str,
}

impl fmt::Display for SessionConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, range } = self;
        write!(f, "the {what} of a session is out of its range, {range}")
    }
}

impl core::error::Error for SessionConfigError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_range_includes_its_ends() {
        let config = SessionConfig::default();
        let [micros, millis] = [Duration::from_micros, Duration::from_millis];
        let secs = Duration::from_secs;
        for end in [
            SessionConfig::fast(),
            config.mtu(64),
            config.mtu(65507),
            config.window(1, 1),
            config.window(32768, 32768),
            config.interval(millis(10)),
            config.interval(secs(5)),
            config.dead_link(2),
            config.dead_link(1000),
            config.keepalive(millis(1)),
            config.unproved_timeout(millis(1)),
            config.idle_timeout(secs(7)).keepalive(millis(6999)),
        ] {
            assert_eq!(end.validate(), Ok(()), "{end:?}");
        }
        for (beyond, what) in [
            (config.mtu(63), "mtu"),
            (config.mtu(65508), "mtu"),
            (config.window(0, 1), "send window"),
            (config.window(32769, 1), "send window"),
            (config.window(1, 0), "receive window"),
            (config.window(1, 32769), "receive window"),
            (config.interval(millis(9)), "interval"),
            (config.interval(millis(5001)), "interval"),
            (config.dead_link(1), "dead link"),
            (config.dead_link(1001), "dead link"),
            (config.keepalive(micros(999)), "keepalive"),
            (config.unproved_timeout(micros(999)), "unproved timeout"),
            (config.idle_timeout(secs(7)).keepalive(secs(7)), "keepalive"),
        ] {
            assert_eq!(beyond.validate().unwrap_err().what, what, "{beyond:?}");
        }
    }

    #[test]
    fn each_setter_sets_what_it_says() {
        let by_hand = SessionConfig::default()
            .nodelay(true)
            .interval(Duration::from_millis(10))
            .fast_resend(2)
            .congestion(Congestion::Off)
            .window(256, 256);
        assert_eq!(by_hand, SessionConfig::fast());
        let default = SessionConfig::default();
        assert_eq!(default, default.congestion(Congestion::default()));
        assert_eq!(default, default.congestion(Congestion::Reno));
        let [a, b, c, d] = [1, 2, 3, 4].map(Duration::from_secs);
        let ok = SessionConfig::default();
        let ok = ok.mtu(1200).window(5, 6).stream(true).dead_link(7);
        let ok = ok
            .keepalive(a)
            .idle_timeout(b)
            .unproved_timeout(c)
            .linger(d);
        assert_eq!((ok.mtu, ok.send_window, ok.recv_window), (1200, 5, 6));
        assert_eq!((ok.stream, ok.dead_link), (true, 7));
        assert_eq!([ok.keepalive, ok.idle_timeout], [a, b]);
        assert_eq!([ok.unproved_timeout, ok.linger], [c, d]);
    }
}
