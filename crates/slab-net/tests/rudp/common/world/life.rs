//! What else happens to the sessions of a world: they end in every way, or lose their peer, their reader, their clock
//! or their path. What may become of them then is in `fate`.

use super::{Event, World};
use crate::common::Random;
use slab_net::Packet;
use slab_net::rudp::wire::{Command, segments};
use slab_net::rudp::{MemoryBudget, SessionConfig, Time};
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);
const NEVER: Time = Time::from_micros(u64::MAX);

/// Something that happens to one end.
#[derive(Debug, Clone, Copy)]
pub(super) enum Act {
    Close,
    Finish,
    Abort,
    /// The application reads nothing for this long, or nothing more.
    Pause(Option<Duration>),
    /// Nothing reaches this end, or neither end, for this long.
    Hole(Duration, bool),
    /// The clock of its host leaps forward, as after a sleep.
    Leap(Duration),
    /// It is gone without a word. A server begins anew after this long, if something comes that opens a session.
    Crash(Option<Duration>),
}

/// What was done to an end.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Did {
    pub(super) close: bool,
    pub(super) finish: bool,
    pub(super) abort: bool,
    pub(super) pause: bool,
    pub(super) leap: bool,
    pub(super) crash: bool,
    /// It stays down until then at least.
    down_until: Option<Time>,
    /// The most that was read before it crashed.
    pub(super) received_before: u32,
}

impl Did {
    pub(super) fn is_down(&self) -> bool {
        self.down_until.is_some()
    }
}

/// What is to happen, and in which limits.
pub(super) struct Life {
    pub(super) acts: Vec<(Duration, usize, Act)>,
    /// By the end of which everything has happened.
    pub(super) horizon: Duration,
    pub(super) keepalive: Duration,
    pub(super) idle_timeout: Duration,
    pub(super) unproved_timeout: Duration,
    pub(super) linger: Duration,
    pub(super) dead_link: u32,
    /// Of a server that begins anew.
    pub(super) budget: MemoryBudget,
}

impl Life {
    pub(super) fn new(random: &mut Random) -> Self {
        let seconds = |random: &mut Random, from: &[u64]| Duration::from_secs(random.pick(from));
        let mut acts = Vec::new();
        for _ in 0..1 + random.below(4) {
            // Amid the traffic, or long after it.
            let within = random.pick(&[50, 300, 3000, 30_000, 100_000]);
            let at = MS * random.below(within) as u32;
            let lasts = MS * random.pick(&[5, 200, 3000, 15_000, 90_000]);
            let lasts = lasts.mul_f64(random.below(1000) as f64 / 1000.0);
            let act = match random.below(12) {
                0..=2 => Act::Close,
                3 | 4 => Act::Finish,
                5 => Act::Abort,
                6 => Act::Pause(None),
                7 => Act::Pause(Some(lasts)),
                8 | 9 => Act::Hole(lasts, random.chance(700)),
                10 => Act::Leap(lasts * 10),
                _ if random.chance(300) => Act::Crash(None),
                _ => Act::Crash(Some(lasts)),
            };
            acts.push((at, random.below(2) as usize, act));
        }
        let idle_timeout = seconds(random, &[20, 60]);
        let last = acts.iter().map(|act| act.0).max().unwrap_or_default();
        Self {
            acts,
            horizon: last + Duration::from_secs(90) + idle_timeout * 2,
            keepalive: seconds(random, &[1, 5, 15]),
            idle_timeout,
            unproved_timeout: seconds(random, &[2, 10, 30]),
            linger: seconds(random, &[1, 10, 5000]),
            dead_link: random.pick(&[3, 20, 1000]),
            budget: MemoryBudget::new(8 << 20),
        }
    }

    pub(super) fn crashes(&self) -> bool {
        let crash = |act: &(Duration, usize, Act)| matches!(act.2, Act::Crash(_));
        self.acts.iter().any(crash)
    }

    pub(super) fn configure(&self, config: SessionConfig) -> SessionConfig {
        config
            .keepalive(self.keepalive)
            .idle_timeout(self.idle_timeout)
            .unproved_timeout(self.unproved_timeout)
            .linger(self.linger)
            .dead_link(self.dead_link)
    }
}

impl World {
    pub(super) fn schedule_life(&mut self) {
        let acts = self.life.as_ref().map(|life| life.acts.clone());
        for (after, end, act) in acts.into_iter().flatten() {
            self.push(self.now + after, Event::Act(end, act));
        }
    }

    pub(super) fn act(&mut self, end: usize, act: Act) {
        let now = self.clock(end);
        let me = &mut self.ends[end];
        if me.did.is_down() {
            return;
        }
        match act {
            Act::Close => {
                me.did.close |= me.session.ended().is_none();
                me.session.close(now);
            }
            Act::Finish => {
                me.plan.finishes = true;
                me.did.finish |= me.session.ended().is_none();
                me.session.finish(now);
            }
            Act::Abort => {
                me.did.abort |= me.session.ended().is_none();
                me.session.abort();
                let unread = me.session.has_bytes();
                assert!(unread || me.session.reserved_bytes() == 0);
            }
            Act::Pause(time) => {
                me.did.pause = true;
                me.next_read = time.map_or(NEVER, |time| self.now + time);
            }
            Act::Hole(time, both) => {
                let from = self.now.since(self.started);
                self.path.outage = (from, from + time);
                self.path.cut = [0, 1].map(|to| both || to == end);
            }
            Act::Leap(time) => {
                me.did.leap = true;
                self.skew[end] += time.as_micros() as i64;
            }
            Act::Crash(down) => {
                me.did.crash = true;
                me.did.received_before = me.received.max(me.did.received_before);
                let until = down.map(|down| self.now + down).filter(|_| end == 1);
                me.did.down_until = Some(until.unwrap_or(NEVER));
                self.begin_anew(end);
            }
        }
    }

    /// A session that knows nothing of the one before. Nobody calls it until it is up.
    fn begin_anew(&mut self, end: usize) {
        let now = self.clock(end);
        let Some(life) = &self.life else { return };
        let random = self.random.next();
        let session = self
            .opening
            .open(end, &self.pool, &life.budget, random, now);
        let me = &mut self.ends[end];
        me.session = session;
        (me.sent, me.received, me.armed, me.next_read) = (0, 0, None, self.now);
    }

    /// Is this end there to receive datagrams, or does it begin anew with these?
    pub(super) fn is_up(&mut self, end: usize, datagrams: &[Packet]) -> bool {
        let Some(until) = self.ends[end].did.down_until else {
            return true;
        };
        if self.now < until || !datagrams.first().is_some_and(|first| opens(first)) {
            return false;
        }
        self.ends[end].did.down_until = None;
        self.begin_anew(end);
        true
    }
}

/// Does an endpoint open a session for this datagram?
fn opens(datagram: &[u8]) -> bool {
    segments(datagram).all(|segment| {
        segment.is_ok_and(|(header, _)| {
            let begins = match header.cmd {
                Command::Push => header.sn < 32,
                Command::AskWindow => header.sn == 0,
                _ => false,
            };
            begins && header.una == 0
        })
    })
}
