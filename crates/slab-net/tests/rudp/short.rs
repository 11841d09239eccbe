//! A sender whose peer is short of memory, and takes no segment but the one that it waits for.

use slab_net::PacketPool;
use slab_net::rudp::wire::{Command, segments};
use slab_net::rudp::{Congestion, MemoryBudget, Session, SessionConfig, Side, Time};
use std::time::Duration;

/// A sender whose peer has memory only for the segment that it waits for, and not always for that.
struct Short {
    pool: PacketPool,
    ends: [Session; 2],
    now: Time,
    /// Messages of a segment each that have arrived.
    received: u32,
    /// Transmissions of the awaited segment.
    offered: u32,
}

impl Short {
    /// With a window full of segments in flight, none of which has arrived.
    fn new(config: &SessionConfig) -> Self {
        let pool = PacketPool::builder().max_memory(8 << 20).build().unwrap();
        let budget = MemoryBudget::new(8 << 20);
        let now = Time::ZERO;
        let ends = [Side::Client, Side::Server]
            .map(|side| Session::open(1, config, side, &pool, &budget, 5, now).unwrap());
        let mut short = Self {
            pool,
            ends,
            now,
            received: 0,
            offered: 0,
        };
        // Until the window has grown.
        while short.received < 3000 {
            short.fill_queue();
            short.turn(|_| true);
        }
        short.fill_queue();
        short
    }

    fn fill_queue(&mut self) {
        while self.ends[0].send_slice(&[7; 1000]).is_ok() {}
    }

    /// A millisecond in which `takes` says of each segment, by its distance from the awaited one, whether it arrives.
    fn turn(&mut self, mut takes: impl FnMut(u32) -> bool) {
        self.now = self.now + Duration::from_millis(1);
        let mut scratch = [0; 2048];
        for end in 0..2 {
            if self.ends[end]
                .poll_timeout()
                .is_some_and(|at| at <= self.now)
            {
                self.ends[end].handle_timeout(self.now);
            }
            while let Some(out) = self.ends[end].poll_transmit(self.now, &mut scratch, 1) {
                let pushes = segments(out.contents()).flatten().map(|(header, _)| header);
                let data = pushes.filter(|header| header.cmd == Command::Push && header.len > 0);
                let ahead = data.last().map(|push| push.sn.wrapping_sub(self.received));
                let ahead = ahead.filter(|&ahead| end == 0 && ahead < 1 << 31);
                self.offered += u32::from(ahead == Some(0));
                if ahead.is_none_or(&mut takes) {
                    let datagram = self.pool.try_copy_from_slice(out.contents()).unwrap();
                    self.ends[1 - end]
                        .handle_datagram(self.now, datagram)
                        .unwrap();
                    self.received += u32::from(ahead == Some(0));
                }
            }
        }
        while self.ends[1].recv().is_some() {}
    }
}

/// After an outage, and however many segments are in flight behind it.
#[test]
fn each_time_out_repeats_the_segment_that_a_peer_short_of_memory_waits_for() {
    let fast = SessionConfig::fast();
    let default = SessionConfig::default().congestion(Congestion::Off);
    for config in [fast, default, fast.congestion(Congestion::Reno)] {
        let mut short = Short::new(&config);
        for _ in 0..100 {
            short.turn(|_| false);
        }
        let (first, mut turns) = (short.received, 0);
        while !short.ends[0].is_sent() {
            short.turn(|ahead| ahead == 0);
            turns += 1;
            assert!(turns < 1000, "{} have arrived", short.received - first);
        }
    }
}

/// It may have no memory for the others for long.
#[test]
fn a_peer_that_takes_one_segment_now_and_then_is_no_dead_link() {
    let config = SessionConfig::fast().dead_link(5).window(128, 128);
    let mut short = Short::new(&config);
    let mut pause = 0;
    while !short.ends[0].is_sent() {
        short.turn(|ahead| {
            let takes = ahead == 0 && pause == 0;
            pause = if takes { 20 } else { pause };
            takes
        });
        pause = u32::saturating_sub(pause, 1);
        assert_eq!(short.ends[0].ended(), None, "at {}", short.received);
    }
}

/// It answers, and may have memory later. What it waits for is repeated with a backoff, and that does not count.
#[test]
fn a_peer_that_lacks_memory_for_a_window_of_segments_is_no_dead_link() {
    let config = SessionConfig::fast().keepalive(Duration::from_secs(5));
    let mut short = Short::new(&config.dead_link(8));
    let before = short.offered;
    for _ in 0..50_000 {
        short.turn(|_| false);
    }
    assert_eq!(short.ends[0].ended(), None);
    let offered = short.offered - before;
    assert!((12..=25).contains(&offered), "{offered} times");
}

/// As after a stall of its process: many time-outs are due at once.
#[test]
fn a_segment_is_not_repeated_before_an_acknowledgement_may_come() {
    let mut short = Short::new(&SessionConfig::fast());
    short.turn(|_| false);
    let before = short.offered;
    short.now = short.now + Duration::from_secs(10);
    for _ in 0..20 {
        short.turn(|_| false);
    }
    assert_eq!(short.offered - before, 1);
}
