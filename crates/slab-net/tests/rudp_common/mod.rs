//! A seeded world in virtual time: two sessions and the path between them.

#![allow(dead_code, reason = "each test uses its part")]

pub(crate) mod arbitrary_peer;
#[cfg(feature = "fec")]
pub(crate) mod fec;
pub(crate) mod lossy;
pub(crate) mod pair;
pub(crate) mod proxy;
pub(crate) mod random;
pub(crate) mod sockets;

pub(crate) use random::Random;
use random::{byte, message};

use slab_net::rudp::{
    CloseReason, Congestion, MemoryBudget, SendError, Session, SessionConfig, Side, Time,
};
use slab_net::{Packet, PacketBuf, PacketPool};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

/// What happens to datagrams on the way.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Path {
    pub(crate) drop: u64,
    pub(crate) duplicate: u64,
    pub(crate) reorder: u64,
    pub(crate) corrupt: u64,
    pub(crate) delay: Duration,
    pub(crate) jitter: Duration,
    /// Nothing arrives in this interval.
    pub(crate) outage: (Duration, Duration),
    /// The most datagrams in a burst.
    pub(crate) burst: usize,
    /// Scratch memory for segments to be gathered in, in datagrams.
    pub(crate) scratch: usize,
}

/// What one side does.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) messages: u32,
    pub(crate) longest: u64,
    /// Calls `finish` once it has sent everything.
    pub(crate) finishes: bool,
    /// Reads only once in this many milliseconds.
    pub(crate) reads_every: u64,
}

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
}

enum Event {
    Datagrams {
        to: usize,
        datagrams: Vec<Packet>,
        chunk_bytes: usize,
    },
    Wake(usize),
    /// Somebody else takes all of the pool.
    ExhaustPool,
    /// There is memory again: those who wait for it are told.
    FreePool,
}

struct Scheduled {
    time: Time,
    order: u64,
    event: Event,
}

impl PartialEq for Scheduled {
    fn eq(&self, other: &Self) -> bool {
        (self.time, self.order) == (other.time, other.order)
    }
}

impl Eq for Scheduled {}

impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Scheduled {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.time, self.order).cmp(&(other.time, other.order))
    }
}

pub(crate) struct World {
    pub(crate) seed: u64,
    random: Random,
    pub(crate) pool: PacketPool,
    pub(crate) budget: MemoryBudget,
    pub(crate) ends: [End; 2],
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
    /// What somebody else takes of the pool, at times all of it.
    taken: Vec<PacketBuf>,
    events: BinaryHeap<Reverse<Scheduled>>,
    order: u64,
    /// Pool memory of datagrams on the way.
    in_transit_bytes: usize,
    pub(crate) trace: u64,
    pub(crate) steps: u64,
    scratch: Vec<u8>,
}

impl World {
    /// Creates a world in which every choice comes from the seed.
    pub(crate) fn new(seed: u64, corrupt: bool) -> Self {
        let mut random = Random::new(seed);
        let stream = random.chance(300);
        let window = random.pick(&[1, 8, 32, 100, 256]);
        let mtu = random.pick(&[100, 576, 1200, 1400]);
        let config = SessionConfig::default()
            .mtu(mtu)
            .window(random.pick(&[1, 4, 32, 256]), window)
            .stream(stream)
            .nodelay(random.chance(600))
            .interval(Duration::from_millis(random.pick(&[10, 40, 100])))
            .fast_resend(random.pick(&[0, 2, 5]))
            .congestion(random.pick(&[Congestion::Off, Congestion::Reno, Congestion::Cubic]))
            .dead_link(1000)
            .keepalive(
                // Mostly never: a keepalive would repair what otherwise stands still for ever.
                Duration::from_secs(random.pick(&[15, 90_000, 90_000])),
                Duration::from_secs(100_000),
            )
            .unproved_timeout(Duration::from_secs(100_000))
            .linger(Duration::from_secs(300));
        let outage = if random.chance(200) {
            let from = Duration::from_millis(random.below(300));
            (from, from + Duration::from_millis(random.below(5000)))
        } else {
            (Duration::ZERO, Duration::ZERO)
        };
        let path = Path {
            drop: random.pick(&[0, 0, 10, 50, 200, 350]),
            duplicate: random.pick(&[0, 0, 30, 300]),
            reorder: random.pick(&[0, 0, 20, 300]),
            corrupt: if corrupt {
                random.pick(&[10, 100, 500])
            } else {
                0
            },
            delay: Duration::from_micros(random.pick(&[5, 1000, 10_000, 150_000])),
            jitter: Duration::from_micros(random.pick(&[1, 1, 500, 30_000])),
            outage,
            burst: random.pick(&[1, 4, 64]),
            scratch: random.pick(&[1, 8]),
        };
        let pool = PacketPool::builder()
            .max_memory(16 << 20)
            .headroom(random.pick(&[0, 24, 64]))
            .build()
            .unwrap();
        // At times so little that not all windows can grow.
        let budget = MemoryBudget::new(random.pick(&[8 << 20, 600 << 10]));
        // The largest message fits into every window.
        let longest = ((mtu - 24) as u64 * u64::from(window.min(32))).min(20_000);
        let near_wrap = |random: &mut Random| match random.below(3) {
            0 => 0,
            1 => u32::MAX - random.below(20) as u32,
            _ => (i32::MAX as u32) - random.below(20) as u32,
        };
        let first = [near_wrap(&mut random), near_wrap(&mut random)];
        let start = if random.chance(500) {
            // `ts` wraps within seconds.
            u64::from(u32::MAX) - random.below(3_000_000)
        } else {
            0
        };
        let now = Time::from_micros(start + (1 << 40));
        let conv = random.pick(&[0, 1, 77, u32::MAX]);
        let mut end = |side, mine: usize| {
            let plan = Plan {
                messages: random.below(60) as u32,
                longest,
                finishes: random.chance(500),
                reads_every: random.pick(&[0, 0, 0, 7, 400]),
            };
            let session = Session::open_at(
                conv,
                &config,
                side,
                &pool,
                &budget,
                random.next(),
                now,
                (first[mine], first[1 - mine]),
            );
            End {
                session: session.expect("the budget has two windows"),
                plan,
                sent: 0,
                received: 0,
                datagrams: 0,
                stream: stream.then_some((0, 0)),
                next_read: now,
                armed: Some(now),
            }
        };
        let ends = [end(Side::Client, 0), end(Side::Server, 1)];
        let clock_jumps = random.chance(100);
        let datagrams = random.chance(500);
        let exhausts_pool = random.chance(200);
        let mut world = Self {
            seed,
            random,
            pool,
            budget,
            ends,
            path,
            mtu,
            now,
            started: now,
            outage_drops: 0,
            skew: [0, 0],
            clock_jumps,
            datagrams,
            taken: Vec::new(),
            events: BinaryHeap::new(),
            order: 0,
            in_transit_bytes: 0,
            trace: 0,
            steps: 0,
            scratch: vec![0; 8 * 1400],
        };
        if exhausts_pool {
            world.push(now, Event::ExhaustPool);
        }
        world.push(now, Event::Wake(0));
        world.push(now, Event::Wake(1));
        world
    }

    fn push(&mut self, time: Time, event: Event) {
        self.order += 1;
        let order = self.order;
        self.events.push(Reverse(Scheduled { time, order, event }));
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
        match self.events.peek() {
            Some(Reverse(at)) if at.time <= until => {}
            _ => return false,
        }
        let Some(Reverse(at)) = self.events.pop() else {
            return false;
        };
        self.steps += 1;
        self.now = self.now.max(at.time);
        self.note(self.now.as_micros());
        if self.clock_jumps && self.random.chance(5) {
            let end = self.random.below(2) as usize;
            let jump = self.random.below(2_000_000) as i64 - 500_000;
            self.skew[end] = (self.skew[end] + jump).max(-(1 << 30));
        }
        let end = match at.event {
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
                if self.ends[end].armed != Some(at.time) {
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
        let of_others = |buf: &PacketBuf| buf.headroom() + buf.capacity();
        let taken: usize = self.taken.iter().map(of_others).sum();
        let in_use = self.pool.slab().stats().in_use_bytes() as usize - taken;
        assert!(
            in_use <= held,
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
        let now = self.clock(end);
        if self.ends[end]
            .session
            .poll_timeout()
            .is_some_and(|at| at <= now)
        {
            self.ends[end].session.handle_timeout(now);
        }
        self.read(end);
        self.write(end);
        self.transmit(end);
        let mut next = None;
        if let Some(at) = self.ends[end].session.poll_timeout() {
            next = Some(self.now + at.since(now).max(Duration::from_micros(1)));
        }
        if self.ends[end].next_read > self.now {
            let read = self.ends[end].next_read;
            next = Some(next.map_or(read, |at| at.min(read)));
        }
        let armed = self.ends[end].armed;
        if let Some(at) = next.filter(|&at| armed.is_none_or(|armed| at < armed)) {
            self.ends[end].armed = Some(at);
            self.push(at, Event::Wake(end));
        }
    }

    fn read(&mut self, end: usize) {
        let (seed, now) = (self.seed, self.now);
        let me = &mut self.ends[end];
        if now < me.next_read {
            return;
        }
        if me.plan.reads_every > 0 {
            me.next_read = now + Duration::from_millis(me.plan.reads_every);
        }
        let (from, longest) = (1 - end, me.plan.longest);
        while let Some(datagram) = me.session.recv_datagram() {
            let whole = datagram.iter().all(|&b| b == from as u8);
            assert!(whole || self.path.corrupt > 0, "seed {seed}: a datagram");
            me.datagrams += 1;
        }
        if self.path.corrupt > 0 {
            while me.session.read().is_some() {}
        } else if let Some((_, received)) = &mut me.stream {
            while let Some(bytes) = me.session.read() {
                for &b in bytes.iter() {
                    assert_eq!(b, byte(from, 0, *received as usize), "seed {seed}");
                    *received += 1;
                }
                me.received = *received as u32;
            }
        } else {
            while let Some(got) = me.session.recv() {
                let expected = message(seed, from, me.received, longest);
                assert!(
                    got == expected[..],
                    "seed {seed}: message {} of {from}",
                    me.received
                );
                me.received += 1;
            }
        }
        self.note(u64::from(self.ends[end].received));
    }

    fn write(&mut self, end: usize) {
        self.write_rest(end);
        let now = self.clock(end);
        let me = &mut self.ends[end];
        let sent = match me.stream {
            Some((sent, _)) => sent == u64::from(me.plan.messages) * 500,
            None => me.sent == me.plan.messages,
        };
        if sent && me.plan.finishes {
            me.session.finish(now);
        }
    }

    fn write_rest(&mut self, end: usize) {
        let seed = self.seed;
        let pool = self.pool.clone();
        if self.datagrams
            && self.random.chance(100)
            && let Ok(datagram) = pool.try_copy_from_slice(&[end as u8; 50])
        {
            // The peer is known by now, or the datagram is given back.
            let _ = self.ends[end].session.send_datagram(datagram);
        }
        let me = &mut self.ends[end];
        if let Some((sent, _)) = &mut me.stream {
            let total = u64::from(me.plan.messages) * 500;
            while *sent < total {
                let len = (total - *sent).min(3000) as usize;
                let bytes: Vec<u8> = (0..len).map(|n| byte(end, 0, *sent as usize + n)).collect();
                match me.session.write(&bytes) {
                    Ok(taken) => *sent += taken as u64,
                    Err(SendError::Blocked | SendError::NoMemory | SendError::Closed(_)) => break,
                    Err(error) => panic!("seed {seed}: {error}"),
                }
            }
            return;
        }
        while me.sent < me.plan.messages {
            let bytes = message(seed, end, me.sent, me.plan.longest);
            let sent = if me.sent.is_multiple_of(2) {
                me.session.send_slice(&bytes)
            } else {
                match pool.try_copy_from_slice(&bytes) {
                    Ok(packet) => me.session.send(packet).map_err(|unsent| {
                        assert!(unsent.packet == bytes[..]);
                        unsent.error
                    }),
                    Err(_) => Err(SendError::NoMemory),
                }
            };
            match sent {
                Ok(()) => me.sent += 1,
                Err(SendError::Blocked | SendError::NoMemory | SendError::Closed(_)) => break,
                // The peer's window is not yet known to be large enough, or a corrupted one is.
                Err(SendError::TooLong { .. }) => break,
                Err(error) => panic!("seed {seed}: {error}"),
            }
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
            let (contents, size) = (out.contents().to_vec(), out.segment_size());
            self.transport(1 - end, &contents, size);
        }
        self.scratch = scratch;
    }

    /// Sends datagrams over the path, with all that happens to them there.
    fn transport(&mut self, to: usize, contents: &[u8], size: usize) {
        self.note(contents.len() as u64 ^ ((size as u64) << 20));
        let mut together: Vec<Vec<u8>> = Vec::new();
        let since = self.now.since(self.started);
        let in_outage = since >= self.path.outage.0 && since < self.path.outage.1;
        self.outage_drops += u64::from(in_outage);
        for datagram in contents.chunks(size) {
            let mut datagram = datagram.to_vec();
            if self.random.chance(self.path.drop) || in_outage {
                continue;
            }
            if self.random.chance(self.path.corrupt) {
                let at = self.random.below(datagram.len() as u64) as usize;
                datagram[at] ^= 1 << self.random.below(8);
            }
            if self.random.chance(self.path.duplicate) {
                let later = self.delay();
                self.deliver(to, &[datagram.clone()], later);
            }
            if self.random.chance(self.path.reorder) {
                let later = self.delay() + self.delay();
                self.deliver(to, &[datagram], later);
            } else {
                together.push(datagram);
            }
        }
        if !together.is_empty() {
            let delay = self.delay();
            self.deliver(to, &together, delay);
        }
    }

    fn delay(&mut self) -> Duration {
        let jitter = self.random.below(self.path.jitter.as_micros() as u64);
        self.path.delay + Duration::from_micros(jitter)
    }

    /// Puts datagrams into one buffer, as the kernel does when it coalesces them.
    fn deliver(&mut self, to: usize, datagrams: &[Vec<u8>], delay: Duration) {
        let total = datagrams.iter().map(Vec::len).sum();
        let Ok(mut buf) = self.pool.try_alloc(total) else {
            return;
        };
        for datagram in datagrams {
            buf.extend_from_slice(datagram);
        }
        let whole = buf.freeze();
        let chunk_bytes = whole.len() + whole.pinned_bytes();
        self.in_transit_bytes += chunk_bytes;
        let mut at = 0;
        let datagrams = datagrams
            .iter()
            .map(|d| {
                at += d.len();
                whole.slice(at - d.len()..at)
            })
            .collect();
        let time = self.now + delay;
        self.push(
            time,
            Event::Datagrams {
                to,
                datagrams,
                chunk_bytes,
            },
        );
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
