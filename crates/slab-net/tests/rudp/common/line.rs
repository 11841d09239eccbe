//! Two ends and the way between them, which takes the same time for each datagram.

use super::pair::{bare_header, datagram};
use slab_net::rudp::wire::{Command, Header};
use slab_net::rudp::{MemoryBudget, Session, SessionConfig, Side, Time};
use slab_net::{Packet, PacketPool};
use std::collections::VecDeque;
use std::time::Duration;

pub(crate) const ONE_WAY: Duration = Duration::from_millis(10);
pub(crate) const STEP: Duration = Duration::from_millis(1);

/// Two ends, and what is on its way to each.
pub(crate) struct Line {
    pub(crate) now: Time,
    pub(crate) ends: [Session; 2],
    /// Of both ends.
    pub(crate) budget: MemoryBudget,
    pub(crate) in_transit: [VecDeque<(Time, Packet)>; 2],
}

impl Line {
    pub(crate) fn new() -> Self {
        Self::with_pool(&PacketPool::builder().max_memory(16 << 20).build().unwrap())
    }

    pub(crate) fn with_pool(pool: &PacketPool) -> Self {
        let mut line = Self::unused(pool);
        line.ends[0].send_slice(b"hello").unwrap();
        line.run(ONE_WAY * 10, |_| {});
        assert_eq!(line.ends[1].recv().unwrap(), b"hello"[..]);
        line
    }

    /// Both ends know each other, and have sent nothing.
    pub(crate) fn unused(pool: &PacketPool) -> Self {
        Self::with_config(pool, &SessionConfig::fast())
    }

    /// The same with another configuration.
    pub(crate) fn with_config(pool: &PacketPool, config: &SessionConfig) -> Self {
        let mut line = Self::opened(pool, config);
        line.run(ONE_WAY * 10, |_| {});
        assert!(line.ends.iter().all(Session::is_peer_ours));
        line
    }

    /// Neither end has said anything.
    pub(crate) fn opened(pool: &PacketPool, config: &SessionConfig) -> Self {
        let budget = MemoryBudget::new(16 << 20);
        let open = |side| {
            let random = 0x1234_5678_9abc_def0;
            Session::open(3, config, side, pool, &budget, random, Time::ZERO).unwrap()
        };
        Self {
            now: Time::ZERO,
            ends: [open(Side::Client), open(Side::Server)],
            budget: budget.clone(),
            in_transit: Default::default(),
        }
    }

    /// The server begins anew, and knows nothing of the session.
    pub(crate) fn restart_server(&mut self, pool: &PacketPool, config: SessionConfig) {
        let budget = MemoryBudget::new(16 << 20);
        let (side, random) = (Side::Server, 7 << 32);
        let anew = Session::open(3, &config, side, pool, &budget, random, self.now);
        self.ends[1] = anew.unwrap();
    }

    pub(crate) fn run(&mut self, time: Duration, mut each: impl FnMut(&mut [Session; 2])) {
        let until = self.now + time;
        while self.now < until {
            self.now = self.now + STEP;
            let now = self.now;
            each(&mut self.ends);
            for end in 0..2 {
                let arrived =
                    |way: &VecDeque<(Time, Packet)>| way.front().is_some_and(|w| w.0 <= now);
                while arrived(&self.in_transit[end]) {
                    let (_, datagram) = self.in_transit[end].pop_front().unwrap();
                    let _ = self.ends[end].handle_datagram(now, datagram);
                }
                let session = &mut self.ends[end];
                if session.poll_timeout().is_some_and(|at| at <= now) {
                    session.handle_timeout(now);
                }
                let mut scratch = [0; 4096];
                while let Some(out) = session.poll_transmit(now, &mut scratch, 1) {
                    let datagram = Packet::from(out.contents().to_vec());
                    self.in_transit[1 - end].push_back((now + ONE_WAY, datagram));
                }
            }
        }
    }
}

/// A segment as anybody could send it.
pub(crate) fn from_a_forged_address(cmd: Command, una: u32, ts: u32) -> Packet {
    let bare = bare_header(3, cmd);
    Packet::from(datagram(Header { ts, una, ..bare }, b""))
}
