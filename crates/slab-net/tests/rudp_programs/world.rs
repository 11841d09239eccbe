//! A world in virtual time: two endpoints, the sessions between them, and the path.

use crate::common::{Random, sockets::any};
use crate::coverage::Coverage;
use crate::end::{End, Use};
use crate::path::{Conditions, Path};
use crate::rough;
use crate::task::{Role, Task};
use slab_net::rudp::crypto::AesGcm;
use slab_net::rudp::fec::FecShards;
use slab_net::rudp::{
    Congestion, Connection, Endpoint, EndpointConfig, EndpointMonitor, OpenError, SessionConfig,
};
use slab_net::{PacketBuf, PacketPool};
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::task::yield_now;
use tokio::time::Instant;

/// What was sent is given up after this long, once the handles are dropped.
pub(crate) const LINGER: Duration = Duration::from_secs(60);

/// Pools of so few slabs that a segment in each is nothing special.
const SMALL_POOL: usize = 2 << 20;

/// Nothing may happen for this long before what still waits is taken to wait for ever: longer than any time-out.
const QUIET: Duration = Duration::from_secs(130);

pub(crate) struct World {
    pub(crate) random: Random,
    start: Instant,
    pub(crate) path: Path,
    pub(crate) pools: [PacketPool; 2],
    pub(crate) server: Option<Endpoint>,
    /// Of both sides; those of clients with a socket of their own are not counted here.
    client: Option<Endpoint>,
    pub(crate) monitors: Vec<EndpointMonitor>,
    /// The client's end, and the server's once it is accepted.
    pub(crate) sessions: Vec<(u32, [Option<End>; 2])>,
    pub(crate) usage: Use,
    pub(crate) config: EndpointConfig,
    /// What somebody else takes of the pools.
    taken: Vec<PacketBuf>,
    /// Does it try to do harm, or only wait for the end?
    calm: bool,
    /// May the sessions have taken so much of the pools that nobody gets what he needs to go on? They may if each of
    /// its few slabs holds a segment.
    pub(crate) may_be_stuck: bool,
    /// Are sessions still accepted?
    accepts: bool,
    /// When something was last sent, read or finished.
    progress: Duration,
    pub(crate) coverage: Coverage,
}

impl World {
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let protected = random.below(4);
        let mtu = random.pick(&[64, 100, 576, 1400, 1400]) + if protected > 0 { 36 } else { 0 };
        let stream = random.chance(500);
        let windows = &[1, 2, 8, 32, 128, 1024];
        let (send, recv) = (random.pick(windows), random.pick(windows));
        let session = SessionConfig::default()
            .mtu(mtu)
            .window(send, recv)
            .stream(stream)
            .nodelay(random.chance(600))
            .interval(Duration::from_millis(random.pick(&[10, 40, 100])))
            .fast_resend(random.pick(&[0, 2]))
            .congestion(random.pick(&[Congestion::Off, Congestion::Reno, Congestion::Cubic]))
            .dead_link(1000)
            .keepalive(
                // Mostly never: a keepalive would repair what otherwise stands still for ever.
                Duration::from_secs(random.pick(&[15, 90_000, 90_000])),
            )
            .idle_timeout(Duration::from_secs(100_000))
            .unproved_timeout(Duration::from_secs(100_000))
            .linger(LINGER);
        let rough = random.chance(300);
        let session = match rough {
            true => rough::shorten(session, &mut random),
            false => session,
        };
        let mut config = EndpointConfig::new(session)
            .offload(random.chance(500))
            .require_cookie(random.chance(200));
        if protected & 1 > 0 {
            config = config.aes_gcm(AesGcm::new(b"sixteen secret b").unwrap());
        }
        if protected & 2 > 0 {
            config = config.fec(FecShards::new(3, 2).unwrap());
        }
        let memory = random.pick(&[1, 2, 8, 16]) << 20;
        let headroom = random.pick(&[0, 24, 64]);
        let pool = || {
            let builder = PacketPool::builder().max_memory(memory);
            builder.headroom(headroom).build().unwrap()
        };
        let first = pool();
        let second = if random.chance(500) {
            first.clone()
        } else {
            pool()
        };
        let pools = [first, second];
        // As little as lets a session begin, or more.
        let mut budget = random.pick(&[2_000, 20_000, 100_000, 300_000, memory / 4]);
        let server = loop {
            let bound = Endpoint::bind(any(), &pools[1], config.clone().max_memory(budget));
            match bound {
                Ok(server) => break server,
                Err(OpenError::NoMemory) => budget += budget / 2,
                Err(error) => panic!("{error}"),
            }
        };
        let config = config.max_memory(budget);
        let conditions = Conditions {
            lost: random.pick(&[0, 20, 100, 300]),
            duplicated: random.pick(&[0, 30]),
            reordered: random.pick(&[0, 20, 300]),
            delay: Duration::from_millis(random.pick(&[0, 1, 10, 80])),
        };
        let path = Path::new(server.local_addr(), conditions, random.next());
        let mss = (mtu - if protected > 0 { 36 } else { 0 } - 24) as u64;
        let segments = u64::from(recv.min(32));
        let client = random
            .chance(500)
            .then(|| Endpoint::bind(any(), &pools[0], config.clone()).unwrap());
        let monitors = [Some(&server), client.as_ref()].into_iter().flatten();
        Self {
            start: Instant::now(),
            path,
            monitors: monitors.map(Endpoint::monitor).collect(),
            pools,
            server: Some(server),
            client,
            sessions: Vec::new(),
            usage: Use {
                stream,
                longest: match stream {
                    true => random.pick(&[200, 3000, 50_000]),
                    false => mss * segments,
                },
                max_datagram: mss,
                rough,
            },
            config,
            taken: Vec::new(),
            calm: false,
            accepts: true,
            may_be_stuck: memory <= SMALL_POOL,
            progress: Duration::ZERO,
            coverage: Coverage::default(),
            random,
        }
    }

    pub(crate) fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// Opens a session, if there is memory for it.
    fn connect(&mut self) {
        let opened = match &self.client {
            Some(client) => client.connect(self.path.address),
            None => Connection::connect(self.path.address, &self.pools[0], self.config.clone()),
        };
        if let Ok(connection) = opened {
            self.coverage.sessions += 1;
            let conv = connection.conv();
            let end = End::new(connection, self.usage, &mut self.random);
            self.sessions.push((conv, [Some(end), None]));
        }
    }

    /// Takes what was opened, and drops what waits for more.
    fn accept(&mut self) {
        let Some(server) = &self.server else {
            return;
        };
        let mut cx = Context::from_waker(Waker::noop());
        while let Poll::Ready(accepted) = pin!(server.accept()).poll(&mut cx) {
            let accepted = accepted.expect("it is open");
            let mut end = End::new(accepted.clone(), self.usage, &mut self.random);
            if self.calm {
                end.late = true;
                end.calm_down();
            }
            let session = self.sessions.iter_mut().find(|s| s.0 == accepted.conv());
            let session = session.expect("a session that nobody opened");
            if let [Some(client), Some(before)] = &mut session.1 {
                assert!(before.is_broken(), "accepted twice");
                self.coverage.accepted_again += 1;
                end.succeed(before, client);
            }
            session.1[1] = Some(end);
            self.progress = self.start.elapsed();
        }
    }

    /// Somebody else takes what the pools have, or gives it back.
    fn disturb_pools(&mut self) {
        if self.taken.is_empty() {
            let pool = self.random.pick(&[0, 1]);
            let leaves = self.random.pick(&[0, 0, 1, 5]);
            // Sometimes what is left is enough for segments, but not for a message in one piece.
            let smallest = self.random.pick(&[0, 0, 2000]);
            let sizes = [60_000, 30_000, 16_000, 9000, 4000, 2000, 1400, 500, 40];
            for bytes in sizes.into_iter().filter(|&bytes| bytes >= smallest) {
                let pool = &self.pools[pool as usize];
                let mut rest: Vec<_> = std::iter::from_fn(|| pool.try_alloc(bytes).ok()).collect();
                rest.truncate(rest.len().saturating_sub(leaves));
                self.taken.append(&mut rest);
            }
        } else {
            let left = self.random.pick(&[0, 0, self.taken.len() / 2]);
            self.taken.truncate(left);
        }
    }

    /// One thing that goes wrong.
    fn disturb(&mut self) {
        if self.random.chance(40) {
            self.disturb_pools();
            // The mark of the end needs memory, too.
            if self.random.chance(50)
                && let Some((_, ends)) = self.sessions.last_mut()
                && let Some(end) = &mut ends[self.random.below(2) as usize]
            {
                end.finish(&mut self.random);
            }
        }
        if self.sessions.len() < 3 && self.random.chance(30) {
            self.connect();
        }
        if self.usage.rough {
            self.disturb_rough();
        }
        if self.random.chance(2) {
            // What was not accepted is closed.
            self.server = None;
        }
        let count = self.sessions.len() as u64;
        let (at, side) = (self.random.below(count), self.random.below(2));
        let Self {
            sessions,
            random,
            coverage,
            ..
        } = self;
        let session = sessions.get_mut(at as usize);
        let Some(Some(end)) = session.map(|session| &mut session.1[side as usize]) else {
            return;
        };
        match random.below(2000) {
            0..6 => end.finish(random),
            6..9 => {
                coverage.closed += 1;
                end.close();
            }
            9..11 => {
                coverage.aborted += 1;
                end.abort();
            }
            11..14 => {
                coverage.dropped += 1;
                end.drop_handles(random);
            }
            _ => {}
        }
    }

    /// Lets each task do something, or nothing; returns whether any did.
    fn run_tasks(&mut self) -> bool {
        let mut acted = false;
        for at in 0..self.sessions.len() {
            for side in 0..2 {
                let tasks = self.sessions[at].1[side].as_ref();
                for task in 0..tasks.map_or(0, |end| end.tasks.len()) {
                    acted |= self.run_task(at, side, task);
                }
            }
        }
        acted
    }

    fn run_task(&mut self, at: usize, side: usize, number: usize) -> bool {
        let [a, b] = &mut self.sessions[at].1;
        let (me, peer) = match side {
            0 => (a, b),
            _ => (b, a),
        };
        let Some(me) = me else {
            return false;
        };
        let (random, coverage) = (&mut self.random, &mut self.coverage);
        let mut task = std::mem::replace(&mut me.tasks[number], Task::new(Role::Waiter));
        let (waiting, woken) = (task.is_waiting(), task.is_woken());
        let outcome = if !waiting {
            let read_to_end = me.end_read.is_some() && task.role == Role::Reader;
            let call = match read_to_end && !random.chance(50) {
                true => None,
                false => {
                    let gone = match peer {
                        Some(peer) => peer.closed || peer.gave_up,
                        None => self.server.is_none(),
                    };
                    me.next_call(task.role, gone, random, &self.pools[side], coverage)
                }
            };
            call.and_then(|call| {
                let outcome = task.start(call);
                let waits = outcome.is_none() && task.role == Role::Writer;
                coverage.waited_to_write += u64::from(waits);
                outcome
            })
        } else if !self.calm && random.chance(if woken { 100 } else { 5 }) {
            coverage.cancelled += 1;
            // A waiter with another waker may be left in the session, and woken in vain.
            if task.role == Role::Writer {
                me.writes_left += 1;
            }
            task.cancel();
            None
        } else if woken {
            task.poll(random.chance(100))
        } else if !self.calm && (task.role != Role::Writer || me.finished) && random.chance(50) {
            // A writer may find a little room that nobody was woken for, but not that there will be none.
            coverage.moved += 1;
            let stats = self.pools[side].slab().stats();
            let waits_for_memory = stats.classes().iter().any(|class| class.waiting > 0);
            let outcome = task.poll(random.chance(500));
            // Who waits for a chunk of one class finds a larger one sooner than the timer that has it look for that.
            let may_find_larger = task.role == Role::Reader && waits_for_memory;
            assert!(
                outcome.is_none() || may_find_larger,
                "a {:?} was not woken",
                task.role
            );
            outcome
        } else {
            None
        };
        me.tasks[number] = task;
        let acted = outcome.is_some();
        if let Some(outcome) = outcome {
            let mut absent = End::absent(self.usage, self.server.is_none());
            if me.on_outcome(peer.as_mut().unwrap_or(&mut absent), outcome, coverage) {
                self.progress = self.start.elapsed();
            }
        }
        acted && waiting || woken
    }

    /// Lets the endpoints' tasks and the path run until nothing moves.
    async fn settle(&mut self) {
        let mut still = 0;
        for _ in 0..40 {
            let now = self.now();
            let moved = self.path.pump(now);
            yield_now().await;
            still = if moved { 0 } else { still + 1 };
            if still == 3 {
                return;
            }
        }
    }

    fn check_budget(&self) {
        for endpoint in [&self.server, &self.client].into_iter().flatten() {
            let stats = endpoint.stats();
            assert!(stats.reserved_bytes <= stats.reserve_limit_bytes);
        }
    }

    /// Runs for this long, or until nothing happens any more.
    async fn run_for(&mut self, most: Duration) {
        let until = self.now() + most;
        let mut pause = Duration::from_millis(1);
        self.progress = self.now();
        while self.now() < until && self.now() - self.progress < QUIET {
            if !self.calm {
                self.disturb();
            }
            if self.accepts && (self.calm || self.random.chance(300)) {
                self.accept();
            }
            let acted = self.run_tasks();
            self.settle().await;
            pause = match acted {
                true => Duration::from_millis(self.random.pick(&[0, 1, 1, 5])),
                false => (pause * 2).clamp(Duration::from_millis(1), Duration::from_secs(1)),
            };
            if !self.calm {
                pause = pause.min(Duration::from_millis(20));
            }
            let now = self.now();
            for end in self.sessions.iter_mut().flat_map(|s| &mut s.1).flatten() {
                end.before_time_moves(now, now + pause);
            }
            tokio::time::advance(pause).await;
            self.settle().await;
        }
        self.check_budget();
        assert!(self.now() < until || most < QUIET * 2, "goes on for ever");
    }

    pub(crate) async fn run(&mut self) {
        self.connect();
        let most = self.random.pick(&[300, 1000, 3000]);
        self.run_for(Duration::from_millis(most)).await;
        self.calm_down();
        self.run_for(Duration::from_secs(20_000)).await;
        self.check_all_is_read();
        // Some finish, some close, some just go.
        for side in self.random.pick(&[[0, 1], [1, 0]]) {
            for (_, ends) in &mut self.sessions {
                let Some(end) = &mut ends[side] else { continue };
                match self.random.below(4) {
                    0 => end.finish(&mut self.random),
                    1 => end.close(),
                    _ => {}
                }
            }
            if self.random.chance(500) {
                self.run_for(Duration::from_secs(20_000)).await;
                self.check_all_is_read();
            }
        }
        self.count();
        self.count_breaks();
        self.accepts = false;
        for session in 0..self.sessions.len() {
            for side in 0..2 {
                if let Some(end) = &mut self.sessions[session].1[side] {
                    end.drop_handles(&mut self.random);
                }
            }
        }
        if self.random.chance(500) {
            (self.server, self.client) = (None, None);
        }
        self.progress = self.now();
        self.run_for(LINGER * 3).await;
        (self.server, self.client) = (None, None);
        self.run_for(LINGER * 3).await;
        self.check_all_is_back();
    }

    /// Nothing goes wrong any more, and everybody reads.
    fn calm_down(&mut self) {
        self.calm = true;
        self.path.conditions = Conditions {
            lost: 0,
            duplicated: 0,
            reordered: 0,
            delay: Duration::from_millis(1),
        };
        self.taken.clear();
        for end in self.sessions.iter_mut().flat_map(|s| &mut s.1).flatten() {
            // In larger pools a reader that waits for memory must find it now.
            match self.pools[0].slab().max_memory() {
                0..=SMALL_POOL => end.calm_down(),
                _ => end.read_everything(),
            }
        }
    }
}

impl Drop for World {
    #[expect(clippy::print_stderr, reason = "what went wrong")]
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        let (at, conditions) = (self.now(), self.path.conditions);
        eprintln!(
            "at {at:?}: {:?} {:?} {conditions:?}",
            self.config, self.usage
        );
        for monitor in &self.monitors {
            eprintln!("{monitor:?}");
        }
        for pool in &self.pools {
            let in_use = pool.slab().stats().in_use_bytes();
            eprintln!("{in_use} of {} bytes", pool.slab().max_memory());
        }
        for (conv, [client, server]) in &self.sessions {
            eprintln!("session {conv}: {client:#?} {server:#?}");
        }
    }
}
