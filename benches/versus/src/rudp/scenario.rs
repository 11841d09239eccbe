//! What is run, and what is read off it.

use super::path::Conduct;
use crate::measure::Better;
use std::time::Duration;

/// One run of a peer, which may fill more than one row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scenario {
    /// Bytes in one direction as fast as they go, on loopback.
    Bulk,
    /// 1 KiB there and back, one after the other, on loopback.
    Echo,
    /// As `Bulk`, over a path of 10 ms each way that loses so many percent and reorders 2.
    Lossy(u8),
    /// 1 KiB each 5 ms, over the same path.
    Paced(u8),
    /// Many sessions with 20 messages a second each.
    Fanout,
    /// Sessions with nothing to do.
    Idle,
    /// As `Bulk`, to a sink of kcp-go in a process of its own.
    ToKcpGo,
}

/// A figure that a scenario gives: the name of the case and its unit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Figure {
    pub(super) case: &'static str,
    pub(super) unit: &'static str,
    pub(super) better: Better,
    /// Less than this cannot be told from nothing.
    pub(super) resolution: f64,
}

const fn figure(case: &'static str, unit: &'static str, better: Better) -> Figure {
    Figure {
        case,
        unit,
        better,
        resolution: 0.0,
    }
}

impl Scenario {
    pub(super) const ALL: [Self; 9] = [
        Self::Bulk,
        Self::Echo,
        Self::Lossy(1),
        Self::Lossy(5),
        Self::Paced(1),
        Self::Paced(5),
        Self::Fanout,
        Self::Idle,
        Self::ToKcpGo,
    ];

    /// In the order in which a run returns them.
    pub(super) fn figures(self) -> &'static [Figure] {
        use Better::{Less, More};
        match self {
            Self::Bulk => {
                &const {
                    [
                        figure("bulk", "MB/s", More),
                        figure("cpu-per-gb", "s/GB", Less),
                    ]
                }
            }
            Self::Echo => {
                &const {
                    [
                        figure("echo-p50", "us", Less),
                        figure("echo-p99", "us", Less),
                    ]
                }
            }
            Self::Lossy(1) => &const { [figure("loss1", "MB/s", More)] },
            Self::Lossy(_) => &const { [figure("loss5", "MB/s", More)] },
            Self::Paced(1) => &const { [figure("paced1-p99", "ms", Less)] },
            Self::Paced(_) => &const { [figure("paced5-p99", "ms", Less)] },
            Self::Fanout => &const { [figure("fanout-cpu", "us/message", Less)] },
            Self::ToKcpGo => &const { [figure("to-kcp-go", "s/GB", Less)] },
            Self::Idle => {
                &const {
                    [
                        figure("idle-heap", "bytes/end", Less),
                        Figure {
                            resolution: 0.1,
                            ..figure("idle-cpu", "us/session/s", Less)
                        },
                    ]
                }
            }
        }
    }

    pub(super) fn conduct(self) -> Option<Conduct> {
        match self {
            Self::Lossy(percent) | Self::Paced(percent) => Some(Conduct::lossy(percent)),
            _ => None,
        }
    }
}

/// How much of it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Size {
    pub(super) rounds: usize,
    /// How long `Bulk` and `Lossy` send.
    pub(super) window: Duration,
    pub(super) echoes: usize,
    /// `Paced`: sessions beside each other, so that a sample has enough messages for its p99.
    pub(super) paced_sessions: usize,
    pub(super) paced_messages: usize,
    pub(super) fanout_sessions: usize,
    pub(super) fanout_window: Duration,
    pub(super) idle_sessions: usize,
    pub(super) idle_window: Duration,
}

/// Between two messages of one paced session.
pub(super) const PACE: Duration = Duration::from_millis(5);
/// Bytes of an echo and of a paced message.
pub(super) const MESSAGE: usize = 1024;
/// Bytes of a message of `Fanout`.
pub(super) const FANOUT_MESSAGE: usize = 200;
/// Messages a second and session of `Fanout`.
pub(super) const FANOUT_RATE: usize = 20;

impl Size {
    pub(super) fn quick() -> Self {
        Self {
            rounds: 7,
            window: Duration::from_millis(200),
            echoes: 1500,
            paced_sessions: 16,
            paced_messages: 30,
            fanout_sessions: 500,
            fanout_window: Duration::from_millis(200),
            idle_sessions: 100,
            idle_window: Duration::from_millis(100),
        }
    }

    pub(super) fn full() -> Self {
        Self {
            rounds: 7,
            window: Duration::from_secs(1),
            echoes: 20_000,
            paced_sessions: 16,
            paced_messages: 200,
            fanout_sessions: 500,
            fanout_window: Duration::from_secs(1),
            idle_sessions: 200,
            idle_window: Duration::from_secs(1),
        }
    }

    /// Enough to see that something runs.
    #[cfg(test)]
    pub(super) fn smallest() -> Self {
        Self {
            rounds: 1,
            window: Duration::from_millis(30),
            echoes: 20,
            paced_sessions: 2,
            paced_messages: 4,
            fanout_sessions: 8,
            fanout_window: Duration::from_millis(60),
            idle_sessions: 4,
            idle_window: Duration::from_millis(20),
        }
    }
}
