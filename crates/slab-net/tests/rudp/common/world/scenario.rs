//! The choices that a seed makes.

#[cfg(feature = "fec")]
use super::correction::Correction;
use super::life::Life;
use super::{End, Event, Path, Plan, Random, World};
use slab_net::PacketPool;
use slab_net::rudp::{Congestion, MemoryBudget, Session, SessionConfig, Side, Time};
use std::collections::BTreeMap;
use std::time::Duration;

/// What sessions are opened with; windows and first sequence numbers by end.
pub(super) struct Opening {
    conv: u32,
    config: SessionConfig,
    send_window: u32,
    windows: [u32; 2],
    first: [u32; 2],
}

impl Opening {
    pub(super) fn send_window(&self) -> usize {
        self.send_window as usize
    }

    pub(super) fn open(
        &self,
        end: usize,
        pool: &PacketPool,
        budget: &MemoryBudget,
        random: u64,
        now: Time,
    ) -> Session {
        let session = Session::open_at(
            self.conv,
            &self.config.window(self.send_window, self.windows[end]),
            [Side::Client, Side::Server][end],
            pool,
            budget,
            random,
            now,
            (self.first[end], self.first[1 - end]),
        );
        session.expect("the budget has two windows")
    }
}

impl World {
    /// Creates a world in which every choice comes from the seed.
    pub(crate) fn new(seed: u64, corrupt: bool) -> Self {
        Self::create(seed, corrupt, false, None)
    }

    /// As [`new`](Self::new); there is more in the [life](super::life) of its sessions than their traffic.
    pub(crate) fn eventful(seed: u64) -> Self {
        let mut random = Random::new(!seed);
        let life = Life::new(&mut random);
        let mut world = Self::create(seed, false, false, Some(life));
        world.schedule_life();
        world
    }

    pub(super) fn create(seed: u64, corrupt: bool, foreign: bool, life: Option<Life>) -> Self {
        let mut random = Random::new(seed);
        // What a server that begins anew sends again has to be cut into the same segments.
        let begins_anew = life.as_ref().is_some_and(Life::crashes);
        let stream = random.chance(300) && !begins_anew;
        let windows = [(); 2].map(|()| random.pick(&[1, 8, 32, 100, 256]));
        let mtu = random.pick(&[100, 576, 1200, 1400]);
        let send_window = random.pick(&[1, 4, 32, 256]);
        let config = SessionConfig::default()
            .mtu(mtu)
            .stream(stream)
            .nodelay(random.chance(600))
            .interval(Duration::from_millis(random.pick(&[10, 40, 100])))
            .fast_resend(random.pick(&[0, 2, 5]))
            .congestion(random.pick(&[Congestion::Off, Congestion::Reno, Congestion::Cubic]))
            .dead_link(1000)
            .keepalive(Duration::from_secs(
                match (random.pick(&[15, 90_000, 90_000]), foreign) {
                    // Mostly never: a keepalive would repair what otherwise stands still for ever.
                    (seconds, false) => seconds,
                    // But a server that has used up what it may send to an unproved address hears of a client of another
                    // implementation, whose answer was lost, only when that has something to say. Not so often that
                    // 50 calls which send nothing fit into the time that a session lingers.
                    (_, true) => 120,
                },
            ))
            .idle_timeout(Duration::from_secs(100_000))
            .unproved_timeout(Duration::from_secs(100_000))
            .linger(Duration::from_secs(5000));
        let config = match &life {
            Some(life) => life.configure(config),
            None => config,
        };
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
            cut: [true; 2],
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
        let longest =
            ((mtu - 24) as u64 * u64::from(windows[0].min(windows[1]).min(32))).min(20_000);
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
        let opening = Opening {
            conv,
            config,
            send_window,
            windows,
            first: if begins_anew { [0, 0] } else { first },
        };
        let mut end = |mine: usize| {
            // A client that has received something is not taken for a new one.
            let silent = mine == 1 && begins_anew && random.chance(700);
            let plan = Plan {
                messages: if silent { 0 } else { random.below(60) as u32 },
                longest,
                finishes: random.chance(500),
                reads_every: random.pick(&[0, 0, 0, 7, 400]),
            };
            let session = opening.open(mine, &pool, &budget, random.next(), now);
            End::new(session, plan, stream, now)
        };
        let ends = [end(0), end(1)];
        let clock_jumps = random.chance(100);
        let datagrams = random.chance(500);
        let exhausts_pool = random.chance(200);
        #[cfg(feature = "fec")]
        let correction = random.chance(250).then(|| Correction::new(&mut random));
        let mut world = Self {
            seed,
            random,
            pool,
            budget,
            ends,
            opening,
            life,
            path,
            mtu,
            now,
            started: now,
            outage_drops: 0,
            skew: [0, 0],
            clock_jumps,
            datagrams,
            exhausts_pool,
            taken: Vec::new(),
            foreign,
            events: BTreeMap::new(),
            order: 0,
            in_transit_bytes: 0,
            trace: 0,
            steps: 0,
            scratch: vec![0; 8 * 1400],
            #[cfg(feature = "fec")]
            correction,
        };
        if exhausts_pool {
            world.push(now, Event::ExhaustPool);
        }
        world.push(now, Event::Wake(0));
        world.push(now, Event::Wake(1));
        world
    }
}
