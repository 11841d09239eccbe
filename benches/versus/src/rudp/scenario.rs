//! The scenarios, and the figures that they give.

use super::path::PathConditions;
use crate::measure::Better;
use std::time::Duration;

/// One run of a peer, which may fill more than one row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scenario {
    /// Bytes in one direction as fast as possible, on loopback.
    Bulk,
    /// 1 KiB there and back, one after the other, on loopback.
    Echo,
    /// As `Bulk`, over a path of 10 ms each way that loses this percentage and reorders 2 %.
    Lossy(u8),
    /// 1 KiB every 5 ms in each of many sessions, half of them over a path that loses 1 %, half over one
    /// that loses 5 %.
    Paced,
    /// Many sessions with 20 messages per second each.
    Fanout,
    /// Idle sessions.
    Idle,
    /// Many more idle sessions, in a process of its own: resident memory.
    Resident,
    /// `Bulk`, encrypted by AES-256-GCM.
    Encrypted,
    /// `Paced` with two parity shards for two data shards.
    WithFec,
    /// `Lossy`, or `Bulk` at 0 %, in a process that counts allocations.
    Counted(u8),
    /// As `Bulk`, to a sink of kcp-go in another process.
    ToKcpGo,
}

/// A figure of a scenario: the name of the case, and its unit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Figure {
    pub(super) case: &'static str,
    pub(super) unit: &'static str,
    pub(super) better: Better,
    /// Less than this cannot be told from zero.
    pub(super) resolution: f64,
}

impl Figure {
    fn cost(case: &'static str, unit: &'static str) -> Self {
        Self {
            case,
            unit,
            better: Better::Less,
            resolution: 0.0,
        }
    }

    fn count(case: &'static str) -> Self {
        Self {
            resolution: 0.001,
            ..Self::cost(case, "allocs/packet")
        }
    }

    fn rate(case: &'static str) -> Self {
        Self {
            case,
            unit: "MB/s",
            better: Better::More,
            // A peer may get nothing through.
            resolution: 0.01,
        }
    }
}

impl Scenario {
    pub(super) const ALL: [Self; 13] = [
        Self::Bulk,
        Self::Echo,
        Self::Lossy(1),
        Self::Lossy(5),
        Self::Paced,
        Self::Fanout,
        Self::Idle,
        Self::Resident,
        Self::Encrypted,
        Self::WithFec,
        Self::Counted(0),
        Self::Counted(5),
        Self::ToKcpGo,
    ];

    /// In the order in which a run returns them.
    pub(super) fn figures(self) -> Vec<Figure> {
        match self {
            Self::Bulk => vec![Figure::rate("bulk"), Figure::cost("cpu-per-gb", "s/GB")],
            Self::Echo => vec![
                Figure::cost("echo-p50", "us"),
                Figure::cost("echo-p99", "us"),
            ],
            Self::Lossy(1) => vec![Figure::rate("loss1")],
            Self::Lossy(_) => vec![Figure::rate("loss5")],
            Self::Paced => vec![
                Figure::cost("paced1-p99", "ms"),
                Figure::cost("paced5-p99", "ms"),
            ],
            Self::Fanout => vec![Figure::cost("fanout-cpu", "us/message")],
            Self::Idle => vec![
                Figure::cost("idle-heap", "bytes/end"),
                Figure {
                    resolution: 0.1,
                    ..Figure::cost("idle-cpu", "us/session/s")
                },
            ],
            Self::Resident => vec![Figure::cost("many-resident", "bytes/end")],
            Self::Encrypted => vec![
                Figure::rate("aes-bulk"),
                Figure::cost("aes-cpu-per-gb", "s/GB"),
            ],
            Self::WithFec => vec![
                Figure::cost("paced1-fec-p99", "ms"),
                Figure::cost("paced5-fec-p99", "ms"),
            ],
            Self::Counted(0) => vec![Figure::count("allocs")],
            Self::Counted(_) => vec![Figure::count("allocs-loss5")],
            Self::ToKcpGo => vec![Figure::cost("to-kcp-go", "s/GB")],
        }
    }

    /// Returns the path of a single session.
    pub(super) fn path_conditions(self) -> Option<PathConditions> {
        match self {
            Self::Lossy(percent) | Self::Counted(percent @ 1..) => {
                Some(PathConditions::lossy(percent))
            }
            _ => None,
        }
    }

    /// Returns the figures of a transfer that this scenario shows.
    pub(super) fn of_transfer(self, transfer: &Transfer) -> Vec<f64> {
        let Transfer {
            bytes,
            seconds,
            cpu_ns,
            allocations,
        } = *transfer;
        let rate = bytes / 1e6 / seconds;
        // On a lossy path a window may pass without any bytes, which is a valid figure, but then there is
        // no cost per byte.
        let costs = !matches!(self, Self::Lossy(_));
        assert!(bytes > 0.0 || !costs, "nothing came through");
        let cpu = cpu_ns / bytes;
        match self {
            Self::Bulk | Self::Encrypted => vec![rate, cpu],
            Self::Counted(_) => vec![allocations / (bytes / SEGMENT)],
            _ => vec![rate],
        }
    }
}

/// The bytes received in the measured window of a transfer, and their cost at both ends.
#[derive(Debug, Clone, Copy)]
pub(super) struct Transfer {
    pub(super) bytes: f64,
    pub(super) seconds: f64,
    pub(super) cpu_ns: f64,
    /// Heap allocations, if they are counted.
    pub(super) allocations: f64,
}

/// The bytes of a full KCP segment, which count as one packet, whatever the library sends.
const SEGMENT: f64 = 1376.0;

/// The size of a run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Size {
    pub(super) rounds: usize,
    /// Rounds of `Idle` and `Resident`, whose memory is nearly the same each time.
    pub(super) idle_rounds: usize,
    /// How long `Bulk` sends.
    pub(super) window: Duration,
    /// How long `Lossy` sends before it is measured: windows have to open first.
    pub(super) lossy_start: Duration,
    pub(super) lossy_window: Duration,
    pub(super) echoes: usize,
    /// Concurrent sessions on a path of each kind, so that a sample has enough messages for its p99.
    pub(super) paced_sessions: usize,
    pub(super) paced_messages: usize,
    pub(super) fanout_sessions: usize,
    pub(super) fanout_window: Duration,
    pub(super) idle_sessions: usize,
    /// How long sessions take to come to rest.
    pub(super) idle_settle: Duration,
    pub(super) idle_window: Duration,
    /// Ends of sessions of `Resident`, half of them clients.
    pub(super) resident_sessions: usize,
}

/// The time between two messages of one paced session.
pub(super) const PACE: Duration = Duration::from_millis(5);
/// Bytes of an echo and of a paced message.
pub(super) const MESSAGE: usize = 1024;
/// Bytes of a message of `Fanout`.
pub(super) const FANOUT_MESSAGE: usize = 200;
/// Messages per second and session of `Fanout`.
pub(super) const FANOUT_RATE: usize = 20;

/// The kinds of path of `Paced`, by percentage of loss.
pub(super) const PACED_LOSS: [u8; 2] = [1, 5];

impl Size {
    pub(super) fn quick() -> Self {
        Self {
            rounds: 3,
            idle_rounds: 1,
            window: Duration::from_millis(80),
            lossy_start: Duration::from_millis(50),
            lossy_window: Duration::from_millis(100),
            echoes: 1500,
            paced_sessions: 16,
            paced_messages: 8,
            fanout_sessions: 200,
            fanout_window: Duration::from_millis(100),
            idle_sessions: 100,
            // Longer than 500 ms, after which a session first asks for a window: the timer for that belongs
            // to opening.
            idle_settle: Duration::from_millis(550),
            idle_window: Duration::from_millis(100),
            resident_sessions: 4000,
        }
    }

    pub(super) fn full() -> Self {
        Self {
            rounds: 7,
            idle_rounds: 7,
            window: Duration::from_secs(1),
            lossy_start: Duration::from_millis(500),
            lossy_window: Duration::from_secs(1),
            echoes: 20_000,
            paced_messages: 200,
            idle_sessions: 200,
            fanout_sessions: 500,
            fanout_window: Duration::from_secs(1),
            idle_settle: Duration::from_millis(500),
            idle_window: Duration::from_secs(1),
            resident_sessions: 100_000,
            ..Self::quick()
        }
    }

    pub(super) fn rounds(&self, scenario: Scenario) -> usize {
        match scenario {
            Scenario::Idle | Scenario::Resident => self.idle_rounds,
            _ => self.rounds,
        }
    }

    /// Returns the time before the measured window of a scenario, and the window.
    pub(super) fn windows(&self, scenario: Scenario) -> (Duration, Duration) {
        match scenario {
            Scenario::Lossy(_) => (self.lossy_start, self.lossy_window),
            // Rings grow at first.
            Scenario::Counted(_) => (4 * self.lossy_start, self.lossy_window),
            Scenario::Fanout => (Duration::ZERO, self.fanout_window),
            Scenario::Idle => (self.idle_settle, self.idle_window),
            _ => (Duration::ZERO, self.window),
        }
    }

    /// Just enough to see that something runs.
    #[cfg(test)]
    pub(super) fn smallest() -> Self {
        Self {
            rounds: 1,
            idle_rounds: 1,
            window: Duration::from_millis(30),
            lossy_start: Duration::ZERO,
            lossy_window: Duration::from_millis(50),
            echoes: 20,
            paced_sessions: 2,
            paced_messages: 4,
            fanout_sessions: 8,
            fanout_window: Duration::from_millis(60),
            idle_sessions: 4,
            idle_settle: Duration::from_millis(10),
            idle_window: Duration::from_millis(20),
            resident_sessions: 4,
        }
    }
}
