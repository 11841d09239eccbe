//! A peer that knows everything and does anything, in datagrams that lie in one buffer as GRO makes them.

use super::Random;
use slab_net::rudp::wire::{Command, HEADER_BYTES, Header, segments};
use slab_net::rudp::{Congestion, MemoryBudget, Session, SessionConfig, Side, Time};
use slab_net::{Packet, PacketPool};
use std::time::Duration;

const CONV: u32 = 5;

pub(crate) struct ArbitraryPeer {
    random: Random,
    pool: PacketPool,
    budget: MemoryBudget,
    now: Time,
    session: Session,
    /// Messages that the application keeps.
    kept: Vec<Packet>,
    scratch: Vec<u8>,
    /// What the peer knows of the session: the `ts` of its questions, its `una`, and the `sn` and `ts` of what it
    /// sent.
    token: u32,
    una: u32,
    sent: Vec<(u32, u32)>,
    first: u32,
}

impl ArbitraryPeer {
    /// Returns `None` if this seed's budget has no memory for a session.
    pub(crate) fn new(seed: u64) -> Option<Self> {
        let mut random = Random::new(seed);
        let pool = PacketPool::builder()
            .max_memory(random.pick(&[1 << 20, 4 << 20, 16 << 20]))
            .headroom(random.pick(&[0, 24, 60]))
            .build()
            .unwrap();
        let budget = MemoryBudget::new(random.pick(&[70_000, 300_000, 2 << 20, 64 << 20]));
        let windows = [1, 3, 32, 200, 1024, 32_768];
        let config = SessionConfig::fast()
            .mtu(random.pick(&[64, 100, 576, 1400, 9000]))
            .window(random.pick(&[1, 2, 33, 256, 5000]), random.pick(&windows))
            .stream(random.chance(500))
            .congestion(random.pick(&[Congestion::Off, Congestion::Reno, Congestion::Cubic]))
            .dead_link(random.pick(&[2, 20, 1000]))
            .interval(Duration::from_millis(random.pick(&[10, 100, 5000])));
        let side = random.pick(&[Side::Client, Side::Server]);
        let wrap = u64::from(u32::MAX);
        let now = Time::from_micros(random.pick(&[0, wrap - 5000, wrap * 1000 - 9000]));
        let mut first = || random.pick(&[0, u32::MAX - 20, 0x7fff_fff0]);
        let first = (first(), first());
        let number = random.next();
        let session =
            Session::open_at(CONV, &config, side, &pool, &budget, number, now, first).ok()?;
        Some(Self {
            random,
            pool,
            budget,
            now,
            session,
            kept: Vec::new(),
            scratch: vec![0; 65_507],
            token: 0,
            una: first.1,
            sent: vec![(first.0, 0)],
            first: first.0,
        })
    }

    pub(crate) fn run(mut self) {
        for _ in 0..self.random.below(400) + 50 {
            self.step();
            self.transmit();
            self.settle();
            let (held, reserved) = (self.session.held_bytes(), self.session.reserved_bytes());
            assert!(held <= reserved);
            assert_eq!(self.budget.reserved(), reserved);
            assert!(reserved <= self.budget.limit());
        }
        drop((self.session, self.kept));
        assert_eq!(self.budget.reserved(), 0);
        assert_eq!(self.pool.slab().stats().in_use(), 0);
    }

    fn step(&mut self) {
        let session = &mut self.session;
        match self.random.below(20) {
            0..=9 => self.receive(),
            10 => drop(session.send_slice(&vec![9; 1 + self.random.below(5000) as usize])),
            11 => drop(session.write(&vec![9; 1 + self.random.below(5000) as usize])),
            12 => {
                if let Ok(datagram) = self.pool.try_copy_from_slice(&[3; 40]) {
                    let _ = session.send_datagram(datagram);
                }
                while self.random.chance(800) {
                    session.recv_datagram();
                }
            }
            13 | 14 => self.read(),
            15 => {
                let long = [1, 1000, 30_000, 700_000, 20_000_000, 4_000_000_000];
                self.now = self.now + Duration::from_micros(self.random.pick(&long));
                session.handle_timeout(self.now);
            }
            16 => {
                if let Some(at) = session.poll_timeout() {
                    self.now = self.now.max(at);
                    session.handle_timeout(self.now);
                }
            }
            17 => self.kept.clear(),
            18 => match self.random.below(60) {
                0 => session.abort(),
                1 => session.close(self.now),
                2 => session.finish(self.now),
                _ => {}
            },
            _ => self.now = self.now + Duration::from_micros(self.random.below(20_000)),
        }
    }

    fn read(&mut self) {
        for _ in 0..self.random.below(60) {
            match self.random.below(3) {
                0 => {
                    let message = self.session.recv();
                    if self.random.chance(50) {
                        self.kept.extend(message);
                    }
                }
                1 => drop(self.session.read()),
                _ => drop(self.session.recv_segments(&mut Vec::new())),
            }
        }
    }

    /// A buffer of datagrams of one length, but for the last.
    fn receive(&mut self) {
        let most = self.random.pick(&[1, 4, 40]);
        let payload = self.random.pick(&[0, 1, 8, 40, 500, 1300]);
        let (mut all, mut size) = (Vec::new(), 0);
        for n in 0..1 + self.random.below(most) {
            let mut datagram = Vec::new();
            for _ in 0..1 + self.random.below(3) {
                self.add_segment(&mut datagram, payload);
            }
            if n == 0 {
                size = datagram.len();
            }
            datagram.truncate(size);
            if datagram.len() == size && all.len() + size <= 60_000 {
                all.extend(datagram);
            }
        }
        if all.is_empty() {
            return;
        }
        let room = if self.random.chance(500) {
            60_000
        } else {
            all.len()
        };
        let Ok(mut buf) = self.pool.try_alloc(room) else {
            return;
        };
        buf.extend_from_slice(&all);
        let whole = buf.freeze();
        let parts = (0..all.len()).step_by(size);
        let parts: Vec<_> = parts
            .map(|at| whole.slice(at..(at + size).min(all.len())))
            .collect();
        drop(whole);
        self.session.handle_batch(self.now, parts);
    }

    fn add_segment(&mut self, to: &mut Vec<u8>, payload: usize) {
        use Command::{Ack, AskWindow, Close, Cookie, Datagram, Push, TellWindow};
        let random = &mut self.random;
        let cmd = random.pick(&[
            Push, Push, Push, Ack, AskWindow, TellWindow, Close, Datagram, Cookie,
        ]);
        if cmd == Close && random.chance(950) {
            return;
        }
        let (sent_sn, sent_ts) = random.pick(&self.sent);
        let payload = match cmd {
            Cookie => 8,
            Push | Datagram => payload,
            _ => 0,
        };
        let reach = random.pick(&[2, 40, 300]);
        let near = self.una.wrapping_add(random.below(reach) as u32);
        let near = near.wrapping_sub(u32::from(random.chance(300)));
        let frg = match cmd {
            // Of messages that count down, and of others.
            Push if random.chance(500) => 30_u32.wrapping_sub(near) as u8 & 31,
            Push => random.pick(&[0, 0, 0, 1, 2, 30, 200, 255]),
            Close => random.below(4) as u8,
            _ => random.below(2) as u8,
        };
        let header = Header {
            conv: CONV,
            cmd,
            frg,
            wnd: random.pick(&[0, 1, 32, 256, 65_535]),
            ts: match cmd {
                Ack => sent_ts,
                AskWindow => 77,
                _ => self.token,
            },
            sn: match cmd {
                Push => near,
                Ack => sent_sn,
                _ => random.pick(&[0, 1, 32, 5000, u32::MAX]),
            },
            una: match random.chance(700) {
                true => self.first,
                false => sent_sn.wrapping_add(random.below(2) as u32),
            },
            len: payload as u32,
        };
        let at = to.len();
        to.resize(at + HEADER_BYTES + payload, 7);
        header.encode(&mut to[at..]);
    }

    fn transmit(&mut self) {
        let mut calls = 0;
        let most = 1 + self.random.below(64) as usize;
        while let Some(out) = self
            .session
            .poll_transmit(self.now, &mut self.scratch, most)
        {
            calls += 1;
            assert!(calls < 100_000, "it sends for ever");
            for datagram in out.contents().chunks(out.segment_size()) {
                for segment in segments(datagram) {
                    let header = segment.unwrap().0;
                    self.una = header.una;
                    match header.cmd {
                        Command::AskWindow => self.token = header.ts,
                        Command::Push => self.sent.push((header.sn, header.ts)),
                        _ => {}
                    }
                }
            }
        }
        let old = self.sent.len().saturating_sub(200);
        self.sent.drain(..old);
    }

    /// Checks that no timer is due that would be due again at once, for ever.
    fn settle(&mut self) {
        let mut turns = 0;
        while self.session.poll_timeout().is_some_and(|at| at <= self.now) {
            self.session.handle_timeout(self.now);
            self.transmit();
            turns += 1;
            assert!(turns < 2000, "busy for ever: {:?}", self.session);
        }
    }
}
