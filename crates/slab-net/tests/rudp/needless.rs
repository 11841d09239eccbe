//! Nothing is lost on these paths, or little: what only looks like a loss must not slow a session down. In virtual time.

use crate::common::lossy::{Conditions, Lossy};
use slab_net::rudp::{Congestion, SessionConfig, Time};
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);
const MEGABIT: u64 = 1_000_000 / 8;

/// Sends as much as it takes for ten seconds; returns how much of the bottleneck that used, in percent.
fn utilisation(config: &SessionConfig, conditions: Conditions) -> u64 {
    const SECONDS: u64 = 10;
    let mut path = Lossy::new(config, conditions, 5);
    let end = Time::from_micros(SECONDS * 1_000_000);
    let mut received = 0;
    path.settle(1);
    loop {
        while path.ends[0].send_slice(&[7; 1376]).is_ok() {}
        path.settle(0);
        let Some(called) = path.step(end) else { break };
        while let Some(message) = path.ends[1].recv() {
            received += message.len() as u64;
        }
        path.settle(called);
    }
    assert!(path.ends.iter().all(|end| end.ended().is_none()));
    assert_eq!(path.dropped_by_queue, 0);
    let (bytes_per_second, _) = conditions.bottleneck.unwrap();
    received * 100 / (bytes_per_second * SECONDS)
}

/// The default, and what suits short answers.
fn configs(window: u32) -> impl Iterator<Item = SessionConfig> {
    [SessionConfig::default(), SessionConfig::fast()]
        .into_iter()
        .flat_map(move |config| {
            let config = config.window(window, window);
            [Congestion::Reno, Congestion::Cubic].map(|kind| config.congestion(kind))
        })
}

/// The first flight is overdue, because nobody knows the round trip yet.
#[test]
fn a_round_trip_longer_than_the_first_time_out_costs_no_throughput() {
    let conditions = Conditions {
        delay: 150 * MS,
        lost: 0,
        reordered: 0,
        bottleneck: Some((4 * MEGABIT, 10_000_000)),
    };
    for config in configs(200) {
        let used = utilisation(&config, conditions);
        assert!(used > 70, "{used} % of {config:?}");
    }
}

/// A flight waits in the queue of a slow path longer than a round trip varied so far.
#[test]
fn no_time_out_strikes_while_acknowledgements_come() {
    let conditions = Conditions {
        delay: 100 * MS,
        lost: 0,
        reordered: 0,
        bottleneck: Some((MEGABIT, 10_000_000)),
    };
    for config in configs(40) {
        let used = utilisation(&config, conditions);
        assert!(used > 80, "{used} % of {config:?}");
    }
}

/// One datagram in two hundred comes late.
#[test]
fn reordering_costs_no_throughput_and_losses_do() {
    let conditions = Conditions {
        delay: 30 * MS,
        lost: 0,
        reordered: 5,
        bottleneck: Some((10 * MEGABIT, 10_000_000)),
    };
    for config in configs(200) {
        let used = utilisation(&config, conditions);
        assert!(used > 85, "{used} % of {config:?}");
        let (lost, reordered) = (conditions.reordered, 0);
        let with_losses = Conditions {
            lost,
            reordered,
            ..conditions
        };
        let used = utilisation(&config, with_losses);
        assert!(used < 60, "{used} % of {config:?}, with losses");
    }
}
