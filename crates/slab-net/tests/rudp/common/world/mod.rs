//! A seeded world in virtual time: two sessions and the path between them.
//!
//! | file | what |
//! |---|---|
//! | `scenario` | the choices that a seed makes |
//! | `path` | what happens to datagrams on the way |
//! | `correction` | error correction around that, if the feature is on |
//! | `foreign` | a path that makes each end look like one of another implementation |
//! | `traffic` | what the two sides send, and what they expect to read |
//! | `life` | what else happens to sessions: they end, or lose their peer, their reader or their clock |
//! | `fate` | what may become of them then |

#[cfg(feature = "fec")]
mod correction;
mod fate;
mod foreign;
mod life;
mod path;
mod scenario;
mod traffic;

use super::Random;
use path::Path;
use slab_net::rudp::{CloseReason, MemoryBudget, Session, Time};
use slab_net::{Packet, PacketBuf, PacketPool};
use std::collections::BTreeMap;
use std::time::Duration;
use traffic::Plan;

/// What awaited segments of a session may take beyond their slots while the pool has no chunk of their size.
const OVERSIZE: usize = 64 << 10;

pub(crate) struct End {
    pub(crate) session: Session,
    plan: Plan,
    sent: u32,
    pub(crate) received: u32,
    /// Unreliable datagrams.
    pub(crate) datagrams: u32,
    /// Bytes of the stream, if there are no messages.
    stream: Option<(u64, u64)>,
    next_read: Time,
    /// The earliest wake-up that is set.
    armed: Option<Time>,
    /// What the application, or somebody else, did to it.
    did: life::Did,
    /// When something last came, the bytes sent since, and the calls since that did nothing.
    heard: Time,
    bytes_unheard: usize,
    idle_calls: u32,
}

impl End {
    fn new(session: Session, plan: Plan, stream: bool, now: Time) -> Self {
        Self {
            session,
            plan,
            sent: 0,
            received: 0,
            datagrams: 0,
            stream: stream.then_some((0, 0)),
            next_read: now,
            armed: Some(now),
            did: life::Did::default(),
            heard: now,
            bytes_unheard: 0,
            idle_calls: 0,
        }
    }

    /// What was accepted of it, in messages or bytes.
    fn accepted(&self) -> u32 {
        self.stream.map_or(self.sent, |(sent, _)| sent as u32)
    }
}

enum Event {
    Datagrams {
        to: usize,
        datagrams: Vec<Packet>,
        chunk_bytes: usize,
    },
    Wake(usize),
    /// Something in the life of an end.
    Act(usize, life::Act),
    /// Somebody else takes all of the pool.
    ExhaustPool,
    /// There is memory again: those who wait for it are told.
    FreePool,
}

pub(crate) struct World {
    pub(crate) seed: u64,
    random: Random,
    pub(crate) pool: PacketPool,
    pub(crate) budget: MemoryBudget,
    pub(crate) ends: [End; 2],
    opening: scenario::Opening,
    life: Option<life::Life>,
    pub(crate) path: Path,
    mtu: usize,
    pub(crate) now: Time,
    started: Time,
    /// Calls that found the path cut.
    pub(crate) outage_drops: u64,
    /// Added to the time that each session is told.
    skew: [i64; 2],
    clock_jumps: bool,
    /// Do they send unreliable datagrams? Those tell the window even if the segments that should are lost.
    datagrams: bool,
    /// Does somebody else take all of the pool at times? Then awaited segments may lie in larger chunks.
    exhausts_pool: bool,
    /// What he takes.
    taken: Vec<PacketBuf>,
    /// Does each end take the other for one of another implementation?
    foreign: bool,
    /// By time, and in the order in which they were made.
    events: BTreeMap<(Time, u64), Event>,
    order: u64,
    /// Pool memory of datagrams on the way.
    in_transit_bytes: usize,
    pub(crate) trace: u64,
    pub(crate) steps: u64,
    scratch: Vec<u8>,
    #[cfg(feature = "fec")]
    correction: Option<correction::Correction>,
}

impl World {
    fn push(&mut self, time: Time, event: Event) {
        self.order += 1;
        self.events.insert((time, self.order), event);
    }

    fn clock(&self, end: usize) -> Time {
        let micros = self.now.as_micros() as i64 + self.skew[end];
        Time::from_micros(micros as u64)
    }

    fn note(&mut self, what: u64) {
        self.trace = (self.trace ^ what)
            .wrapping_mul(0x0100_0000_01b3)
            .rotate_left(5);
    }

    /// Handles one event; returns `false` if there is none left before `until`.
    pub(crate) fn step(&mut self, until: Time) -> bool {
        let next = self.events.first_entry();
        let Some(next) = next.filter(|next| next.key().0 <= until) else {
            return false;
        };
        let ((time, _), event) = next.remove_entry();
        self.steps += 1;
        self.now = self.now.max(time);
        self.note(self.now.as_micros());
        if self.clock_jumps && self.random.chance(5) {
            let end = self.random.below(2) as usize;
            let jump = self.random.below(2_000_000) as i64 - 500_000;
            self.skew[end] = (self.skew[end] + jump).max(-(1 << 30));
        }
        let end = match event {
            Event::Act(end, act) => {
                self.act(end, act);
                end
            }
            Event::ExhaustPool => {
                self.exhaust_pool();
                return true;
            }
            Event::FreePool => {
                self.taken.clear();
                let next = self.now + Duration::from_micros(self.random.below(10_000_000));
                self.push(next, Event::ExhaustPool);
                self.drive(0);
                1
            }
            Event::Wake(end) => {
                if self.ends[end].armed != Some(time) {
                    return true;
                }
                self.ends[end].armed = None;
                end
            }
            Event::Datagrams {
                to,
                datagrams,
                chunk_bytes,
            } => {
                let now = self.clock(to);
                self.in_transit_bytes -= chunk_bytes;
                self.note(datagrams.len() as u64);
                #[cfg(feature = "fec")]
                let datagrams = match &mut self.correction {
                    Some(correction) => correction.unwrap(to, datagrams, &self.pool),
                    None => datagrams,
                };
                if !self.is_up(to, &datagrams) {
                    return true;
                }
                self.ends[to].heard = self.now;
                self.ends[to].bytes_unheard = 0;
                self.ends[to].session.handle_batch(now, datagrams);
                to
            }
        };
        self.drive(end);
        if self.steps.is_multiple_of(8) {
            self.check_memory();
        }
        true
    }

    /// Somebody else takes what the pool has, large and small chunks, for up to a second.
    fn exhaust_pool(&mut self) {
        for bytes in [60_000, 4000, 1400, 500, 40] {
            let rest = std::iter::from_fn(|| self.pool.try_alloc(bytes).ok());
            self.taken.extend(rest);
        }
        let back = self.now + Duration::from_micros(self.random.below(1_000_000));
        self.push(back, Event::FreePool);
    }

    pub(crate) fn check_memory(&self) {
        let [a, b] = &self.ends;
        for end in &self.ends {
            assert!(end.session.held_bytes() <= end.session.reserved_bytes());
        }
        assert!(self.budget.reserved() <= self.budget.limit());
        let held = a.session.held_bytes() + b.session.held_bytes() + self.in_transit_bytes;
        let oversize = if self.exhausts_pool { 2 * OVERSIZE } else { 0 };
        let of_others = |buf: &PacketBuf| buf.headroom() + buf.capacity();
        let taken: usize = self.taken.iter().map(of_others).sum();
        let in_use = self.pool.slab().stats().in_use_bytes() - taken;
        assert!(
            in_use <= held + oversize,
            "{in_use} bytes in use, {held} accounted for"
        );
        // Nor is memory accounted for that is not in use: it would never come back.
        assert!(
            in_use > 0 || held == 0,
            "nothing in use, {held} accounted for"
        );
    }

    /// What a driver does after any event: read, write, transmit, set the timer.
    pub(crate) fn drive(&mut self, end: usize) {
        if self.ends[end].did.is_down() {
            return;
        }
        let now = self.clock(end);
        let before = (self.ends[end].received, self.ends[end].session.stats());
        let session = &mut self.ends[end].session;
        let due = session.poll_timeout().is_some_and(|at| at <= now);
        if due {
            session.handle_timeout(now);
        }
        self.read(end);
        self.write(end);
        self.transmit(end);
        let me = &mut self.ends[end];
        if before != (me.received, me.session.stats()) {
            me.idle_calls = 0;
        }
        me.idle_calls += u32::from(due);
        assert!(me.idle_calls < 50, "called in vain: {:?}", me.session);
        let mut next = None;
        if let Some(at) = self.ends[end].session.poll_timeout() {
            next = Some(self.now + at.since(now).max(Duration::from_micros(1)));
        }
        let session = &self.ends[end].session;
        let unread = session.has_message() || session.has_bytes() || session.has_datagram();
        if unread && self.ends[end].next_read > self.now {
            let read = self.ends[end].next_read;
            next = Some(next.map_or(read, |at| at.min(read)));
        }
        let armed = self.ends[end].armed;
        if let Some(at) = next.filter(|&at| armed.is_none_or(|armed| at < armed)) {
            self.ends[end].armed = Some(at);
            self.push(at, Event::Wake(end));
        }
    }

    fn transmit(&mut self, end: usize) {
        let now = self.clock(end);
        let room = self.path.scratch * 1400;
        let mut scratch = std::mem::take(&mut self.scratch);
        loop {
            let session = &mut self.ends[end].session;
            let Some(out) = session.poll_transmit(now, &mut scratch[..room], self.path.burst)
            else {
                break;
            };
            assert!(out.datagrams() <= self.path.burst && out.segment_size() <= self.mtu);
            let datagrams = out.contents().chunks(out.segment_size());
            let datagrams: Vec<_> = datagrams.map(<[u8]>::to_vec).collect();
            self.ends[end].bytes_unheard += datagrams.iter().map(Vec::len).sum::<usize>();
            self.check_sends_little_into_silence(end);
            let datagrams = match self.foreign {
                true => datagrams.iter().filter_map(|d| foreign::strip(d)).collect(),
                false => datagrams,
            };
            if datagrams.is_empty() {
                continue;
            }
            #[cfg(feature = "fec")]
            let datagrams = match &mut self.correction {
                Some(correction) => correction.wrap(end, now, &datagrams),
                None => datagrams,
            };
            self.transport(1 - end, datagrams);
        }
        self.scratch = scratch;
    }

    pub(crate) fn is_done(&self) -> bool {
        (0..2).all(|end| {
            let (me, from) = (&self.ends[end], &self.ends[1 - end]);
            let expected = match me.stream {
                Some(_) => from.plan.messages * 500,
                None => from.plan.messages,
            };
            let session = &me.session;
            let unread = session.has_message() || session.has_bytes();
            let at_end = session.is_read_closed() && session.ended().is_none() && !unread;
            assert!(
                me.received == expected || !at_end,
                "seed {}: the end before everything: {} of {expected}, {:?} {:?} {:?}",
                self.seed,
                me.received,
                me.plan,
                from.session,
                me.session
            );
            me.received == expected && (!from.plan.finishes || me.session.is_read_closed())
        })
    }

    /// Runs until everything is delivered and both ends are closed.
    pub(crate) fn run(&mut self) {
        let limit = self.now + Duration::from_secs(3000);
        while !self.is_done() {
            let context = |w: &Self| {
                format!(
                    "seed {}: {:?} received {} and {} after {} steps; {:?}; {:?} {:?}",
                    w.seed,
                    w.path,
                    w.ends[0].received,
                    w.ends[1].received,
                    w.steps,
                    w.ends.each_ref().map(|e| (e.plan, e.sent)),
                    w.ends[0].session,
                    w.ends[1].session,
                )
            };
            assert!(self.step(limit), "not done: {}", context(self));
            assert!(
                self.steps < 4_000_000,
                "goes on for ever: {}",
                context(self)
            );
        }
        let first = self.random.below(2) as usize;
        for end in [first, 1 - first] {
            let now = self.clock(end);
            self.ends[end].session.close(now);
            self.drive(end);
            if self.random.chance(500) {
                for _ in 0..self.random.below(30) {
                    self.step(limit);
                }
            }
        }
        let limit = self.now + Duration::from_secs(20_000);
        while self.ends.iter().any(|end| end.session.ended().is_none()) {
            assert!(self.step(limit), "seed {}: an end does not end", self.seed);
            assert!(
                self.steps < 4_000_000,
                "seed {}: goes on for ever: {:?} {:?} at {:?}",
                self.seed,
                self.ends[0].session,
                self.ends[1].session,
                self.now,
            );
        }
        for end in &self.ends {
            let reason = end.session.ended().unwrap();
            let fine = matches!(reason, CloseReason::Closed | CloseReason::ClosedByPeer)
                // The other end was gone before it learned that its last words were heard.
                || reason == CloseReason::LingerExpired;
            assert!(fine, "seed {}: ended because {reason}", self.seed);
        }
    }

    /// Closes one end now, and runs until the other has read all that was accepted before, and has said so.
    pub(crate) fn close_and_run(&mut self) {
        let end = self.random.below(2) as usize;
        let accepted = self.ends[end].accepted();
        let (now, limit) = (self.clock(end), self.now + Duration::from_secs(20_000));
        self.ends[end].session.close(now);
        self.drive(end);
        while !self.ends[end].session.is_sent() || self.ends[1 - end].received < accepted {
            let [closing, other] = [end, 1 - end].map(|end| &self.ends[end]);
            let received = other.received;
            let done = closing.session.ended();
            assert!(
                done.is_none_or(|why| why == CloseReason::Closed),
                "seed {}: {done:?}",
                self.seed
            );
            assert!(
                self.step(limit),
                "seed {}: {received} of {accepted}, {done:?}",
                self.seed
            );
        }
        assert_eq!(self.ends[1 - end].received, accepted, "seed {}", self.seed);
    }

    /// Drops everything, and checks that the pool and the budget have it back.
    pub(crate) fn finish(self) -> u64 {
        let Self {
            seed,
            pool,
            budget,
            ends,
            events,
            trace,
            taken,
            ..
        } = self;
        drop((ends, events, taken));
        assert_eq!(pool.slab().stats().in_use(), 0, "seed {seed}: buffers lost");
        assert_eq!(budget.reserved(), 0, "seed {seed}: budget lost");
        trace
    }
}
