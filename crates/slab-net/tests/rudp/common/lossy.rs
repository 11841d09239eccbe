//! Two sessions and a path with a delay that loses and reorders, in virtual time, for figures.

use super::Random;
use slab_net::rudp::wire::{Command, segments};
use slab_net::rudp::{MemoryBudget, Session, SessionConfig, Side, Time};
use slab_net::{Packet, PacketPool};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

/// The resolution of tokio's timer, which a driver uses.
const TICK: Duration = Duration::from_millis(1);

/// What the path does to each datagram.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Conditions {
    pub(crate) delay: Duration,
    /// Per thousand.
    pub(crate) lost: u64,
    /// Per thousand: delayed by up to twice as much.
    pub(crate) reordered: u64,
    /// Bytes a second, and the bytes that the queue in front holds; unlimited if `None`.
    pub(crate) bottleneck: Option<(u64, u64)>,
}

pub(crate) struct Lossy {
    pub(crate) pool: PacketPool,
    pub(crate) ends: [Session; 2],
    pub(crate) now: Time,
    pub(crate) dropped_by_queue: u64,
    /// The most datagrams that each side sent at one time.
    pub(crate) longest_burst: [usize; 2],
    conditions: Conditions,
    /// How many of the next datagrams are lost, whoever sends them.
    lose_next: u32,
    /// A sequence number of the first end, and how many more of its transmissions are lost.
    lose_pushes: (u32, u32),
    random: Random,
    /// By time and order: the receiving end, and the datagram.
    wire: BTreeMap<(Time, u64), (usize, Packet)>,
    order: u64,
    /// When the bottleneck is free again, each way.
    busy_until: [Time; 2],
    timer: [Option<Time>; 2],
    scratch: Vec<u8>,
    #[cfg(feature = "fec")]
    correction: Option<[super::fec::Coder; 2]>,
}

impl Lossy {
    pub(crate) fn new(config: &SessionConfig, conditions: Conditions, seed: u64) -> Self {
        let pool = PacketPool::builder()
            .max_memory(64 << 20)
            .headroom(24)
            .build()
            .unwrap();
        let budget = MemoryBudget::new(32 << 20);
        let mut random = Random::new(seed);
        let ends = [Side::Client, Side::Server].map(|side| {
            Session::open(7, config, side, &pool, &budget, random.next(), Time::ZERO).unwrap()
        });
        Self {
            pool,
            ends,
            now: Time::ZERO,
            dropped_by_queue: 0,
            longest_burst: [0; 2],
            conditions,
            lose_next: 0,
            lose_pushes: (0, 0),
            random,
            wire: BTreeMap::new(),
            order: 0,
            busy_until: [Time::ZERO; 2],
            timer: [None; 2],
            scratch: vec![0; 64 << 10],
            #[cfg(feature = "fec")]
            correction: None,
        }
    }

    /// Adds error correction at both ends.
    #[cfg(feature = "fec")]
    pub(crate) fn with_correction(mut self, shards: slab_net::rudp::fec::FecShards) -> Self {
        let coder = || super::fec::Coder::new(shards, &self.pool);
        self.correction = Some([coder(), coder()]);
        self
    }

    /// Loses the next `datagrams` datagrams.
    pub(crate) fn lose_next(&mut self, datagrams: u32) {
        self.lose_next = datagrams;
    }

    /// Loses the first `transmissions` transmissions of a segment of the first end.
    pub(crate) fn lose_pushes_of(&mut self, sn: u32, transmissions: u32) {
        self.lose_pushes = (sn, transmissions);
    }

    fn is_lost(&mut self, to: usize, datagram: &[u8]) -> bool {
        if self.lose_next > 0 {
            self.lose_next -= 1;
            return true;
        }
        let (wanted, left) = self.lose_pushes;
        let carries = left > 0
            && to == 1
            && segments(datagram)
                .flatten()
                .any(|(header, _)| header.cmd == Command::Push && header.sn == wanted);
        self.lose_pushes.1 -= u32::from(carries);
        carries || self.random.chance(self.conditions.lost)
    }

    /// Sends what an end has to send, and sets its timer.
    pub(crate) fn settle(&mut self, end: usize) {
        let mut burst = 0;
        loop {
            let (now, session) = (self.now, &mut self.ends[end]);
            let Some(out) = session.poll_transmit(now, &mut self.scratch, 64) else {
                break;
            };
            let size = out.segment_size();
            let datagrams: Vec<Packet> = out
                .contents()
                .chunks(size)
                .map(|datagram| self.pool.try_copy_from_slice(datagram).unwrap())
                .collect();
            #[cfg(feature = "fec")]
            let datagrams = match &mut self.correction {
                Some(coders) => coders[end].shards(now, &datagrams, &self.pool),
                None => datagrams,
            };
            burst += datagrams.len();
            for datagram in datagrams {
                self.transport(1 - end, datagram);
            }
        }
        self.longest_burst[end] = self.longest_burst[end].max(burst);
        self.timer[end] = self.ends[end].poll_timeout().map(|at| {
            let ticks = at.as_micros().div_ceil(TICK.as_micros() as u64);
            Time::from_micros(ticks * TICK.as_micros() as u64).max(self.now)
        });
    }

    fn transport(&mut self, to: usize, datagram: Packet) {
        let Conditions {
            delay,
            reordered,
            bottleneck,
            ..
        } = self.conditions;
        if self.is_lost(to, &datagram) {
            return;
        }
        let mut leaves = self.now;
        if let Some((rate, queue)) = bottleneck {
            let busy = &mut self.busy_until[to];
            let waiting = busy.since(self.now).as_secs_f64() * rate as f64;
            if waiting as u64 > queue {
                self.dropped_by_queue += 1;
                return;
            }
            let takes = Duration::from_secs_f64(datagram.len() as f64 / rate as f64);
            *busy = (*busy).max(self.now) + takes;
            leaves = *busy;
        }
        let mut at = leaves + delay;
        if self.random.chance(reordered) {
            at = at + Duration::from_micros(self.random.below(delay.as_micros() as u64));
        }
        self.order += 1;
        self.wire.insert((at, self.order), (to, datagram));
    }

    /// Goes to the next event if that is before `until`, and returns the end that it concerns.
    pub(crate) fn step(&mut self, until: Time) -> Option<usize> {
        let arrival = self.wire.keys().next().map(|&(at, _)| at);
        let timers = [0, 1].map(|end| (Reverse(self.timer[end]), end));
        let due = timers.into_iter().filter(|(at, _)| at.0.is_some()).max();
        let timer = due.and_then(|(at, end)| at.0.map(|at| (at, end)));
        let (at, end) = match (arrival, timer) {
            (Some(arrival), Some((timer, end))) if timer < arrival => (timer, Some(end)),
            (Some(arrival), _) => (arrival, None),
            (None, Some((timer, end))) => (timer, Some(end)),
            (None, None) => return None,
        };
        if at > until {
            self.now = until;
            return None;
        }
        self.now = self.now.max(at);
        match end {
            Some(end) => {
                self.timer[end] = None;
                self.ends[end].handle_timeout(self.now);
                Some(end)
            }
            None => {
                let ((_, _), (to, datagram)) = self.wire.pop_first()?;
                #[cfg(feature = "fec")]
                if let Some(coders) = &mut self.correction {
                    for datagram in coders[to].datagrams(datagram) {
                        self.ends[to].handle_datagram(self.now, datagram).unwrap();
                    }
                    return Some(to);
                }
                self.ends[to].handle_datagram(self.now, datagram).unwrap();
                Some(to)
            }
        }
    }
}
