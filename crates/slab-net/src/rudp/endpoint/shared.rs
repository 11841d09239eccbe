//! What an endpoint's task and its connections share.

use super::super::budget::MemoryBudget;
use super::super::context::Context;
use super::super::core::{Session, Side};
use super::super::error::OpenError;
use super::super::time::Time;
use super::config::EndpointConfig;
use super::link::Link;
use super::protect::Protection;
use super::secret::Secret;
use super::stats::EndpointStats;
use super::table::Table;
use super::timers::Timers;
use crate::packet::PacketPool;
use crate::udp::UdpSender;
use core::sync::atomic::{AtomicU64, Ordering};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

/// Half-open sessions together get this part of the memory budget: a fourth.
const HALF_OPEN_DIVISOR: usize = 4;

pub(super) struct Shared {
    pub(super) sender: UdpSender,
    /// What the sessions share, too.
    pub(super) context: Arc<Context>,
    /// The most bytes of datagrams that a chunk holds while the socket has no room for them. No more are sent at once.
    pub(super) most_kept: usize,
    pub(super) config: EndpointConfig,
    /// What is between the sessions and the socket.
    pub(super) protection: Option<Protection>,
    /// On tokio's clock, which tests can pause.
    epoch: Instant,
    /// Locked after a link, never before.
    table: Mutex<Table>,
    /// Locked after a link, never with the table.
    timers: Mutex<Timers>,
    /// Links whose datagrams the socket had no room for; each is in it once.
    blocked: Mutex<VecDeque<u32>>,
    /// When the endpoint's task wakes up by itself, in microseconds; 0 while it is awake. Needs no order of its
    /// own, and so no model: `arm` takes the lock of the timers before it reads this, the task after it wrote this
    /// and before it sleeps. So whichever of the two has the lock second sees what the other did before.
    asleep_until: AtomicU64,
    driver_notify: Notify,
    /// Turns a counter into numbers that nobody can predict.
    pub(super) secret: Secret,
    random_counter: AtomicU64,
    /// Dropped last: tells monitors that all else is gone.
    pub(super) gone: watch::Sender<()>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics while these are held with the contents half changed.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub(super) fn new(
        sender: UdpSender,
        pool: PacketPool,
        mut config: EndpointConfig,
    ) -> Result<Self, OpenError> {
        let memory = config.budget_bytes(&pool);
        let budget = MemoryBudget::new(memory);
        // Forged addresses must not take the memory that other sessions need, nor all the places.
        let kept = config.protection.max_kept_bytes(&config.session, &pool);
        // Until its peer's address is proved, a session reserves what it opened with, and as much again for sending.
        let each = 2 * Session::opening_bytes(&config.session, &pool)? + kept;
        let room = memory / HALF_OPEN_DIVISOR / each;
        let places = config.max_sessions - config.max_sessions / 4;
        config.max_half_open = config.max_half_open.min(room.max(1)).min(places);
        let largest = pool.slab().size_classes().largest();
        Ok(Self {
            protection: Protection::new(&config, &pool, &budget)?,
            sender,
            most_kept: largest.saturating_sub(pool.room()),
            context: Arc::new(Context::new(config.session, pool, budget)),
            config,
            epoch: Instant::now(),
            table: Mutex::default(),
            timers: Mutex::default(),
            blocked: Mutex::default(),
            asleep_until: AtomicU64::new(0),
            driver_notify: Notify::new(),
            secret: Secret::new(),
            random_counter: AtomicU64::new(0),
            gone: watch::Sender::new(()),
        })
    }

    pub(super) fn table(&self) -> MutexGuard<'_, Table> {
        lock(&self.table)
    }

    pub(super) fn timers(&self) -> MutexGuard<'_, Timers> {
        lock(&self.timers)
    }

    pub(super) fn now(&self) -> Time {
        Time::ZERO + self.epoch.elapsed()
    }

    /// A peer's address in the form that the socket takes: an IPv6 socket takes IPv4 addresses mapped.
    pub(super) fn to_socket_family(&self, peer: SocketAddr) -> SocketAddr {
        match (self.sender.local_addr(), peer) {
            (SocketAddr::V6(_), SocketAddr::V4(v4)) => (v4.ip().to_ipv6_mapped(), v4.port()).into(),
            _ => peer,
        }
    }

    pub(super) fn instant(&self, time: Time) -> Instant {
        self.epoch + time.since(Time::ZERO)
    }

    pub(super) fn random(&self) -> u64 {
        self.secret
            .hash(self.random_counter.fetch_add(1, Ordering::Relaxed))
    }

    /// Has a session called at this time; wakes the task if it would sleep longer.
    pub(super) fn arm(&self, place: u32, at: Time) {
        self.timers().set(place, at);
        // Relaxed, as the stores below: either the task, which checks the timers once more after it has said
        // until when it sleeps, sees this timer then, or this load sees what it said, or something later.
        if at.as_micros() < self.asleep_until.load(Ordering::Relaxed) {
            self.driver_notify.notify_one();
        }
    }

    /// The task sleeps until then. Called before it checks the timers for the last time.
    pub(super) fn set_asleep_until(&self, at: Option<Time>) {
        let micros = at.map_or(u64::MAX, Time::as_micros);
        self.asleep_until.store(micros, Ordering::Relaxed);
    }

    /// The task is awake, and will check the timers before it sleeps.
    pub(super) fn set_awake(&self) {
        self.asleep_until.store(0, Ordering::Relaxed);
    }

    pub(super) fn push_blocked(&self, place: u32) {
        lock(&self.blocked).push_back(place);
        self.table().stats.send_blocked += 1;
        self.driver_notify.notify_one();
    }

    pub(super) fn pop_blocked(&self) -> Option<u32> {
        lock(&self.blocked).pop_front()
    }

    /// Not all of it could be sent: it comes first again.
    pub(super) fn requeue_blocked(&self, place: u32) {
        lock(&self.blocked).push_front(place);
    }

    /// Its session is gone. Otherwise the queue would grow for as long as the socket has no room and sessions come and
    /// go.
    pub(super) fn forget_blocked(&self, place: u32) {
        lock(&self.blocked).retain(|&blocked| blocked != place);
    }

    pub(super) fn is_blocked(&self) -> bool {
        !lock(&self.blocked).is_empty()
    }

    pub(super) fn wake_driver(&self) {
        self.driver_notify.notify_one();
    }

    pub(super) async fn notified(&self) {
        self.driver_notify.notified().await;
    }

    /// Opens a session and enters it into the table, which must have room for it.
    pub(super) fn open(
        self: &Arc<Self>,
        table: &mut Table,
        peer: SocketAddr,
        local: Option<SocketAddr>,
        conv: u32,
        side: Side,
        proved: bool,
    ) -> Result<Arc<Link>, OpenError> {
        let session = Session::open_in(
            Arc::clone(&self.context),
            conv,
            side,
            self.random(),
            self.now(),
            (0, 0),
        );
        // Everything but the memory was checked when the endpoint was bound.
        let mut session = session.inspect_err(|_| table.stats.refused_memory += 1)?;
        if proved {
            session.trust_address();
        }
        let half_open = side == Side::Server && !proved;
        if let Some(protection) = &self.protection {
            let (sent, received) = protection.overhead_bytes();
            session.set_overhead(sent, received);
            protection.join(peer);
        }
        let place = table.reserve_place();
        let link = Link::new(Arc::clone(self), peer, local, place, session, half_open);
        let link = Arc::new(link);
        table.insert(&link, half_open);
        Ok(link)
    }

    pub(super) fn stats(&self) -> EndpointStats {
        let (mut stats, links) = {
            let table = self.table();
            let stats = EndpointStats {
                sessions: table.len(),
                half_open: table.half_open(),
                backlog: table.backlog.len(),
                reserved_bytes: self.context.budget.reserved(),
                reserve_limit_bytes: self.context.budget.limit(),
                total: table.ended_stats,
                ..table.stats
            };
            (stats, table.links().cloned().collect::<Vec<_>>())
        };
        if let Some(protection) = &self.protection {
            protection.count(&mut stats);
        }
        for link in links {
            // Also of one that was removed meanwhile, which is not yet in `total`.
            stats.total += &link.lock().session.stats();
        }
        stats.round_trips = self.context.measures.round_trips();
        (stats.blocked_sending, stats.blocked_receiving) = self.context.measures.blocked();
        stats
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::endpoint;
    use super::*;
    use core::future::Future;
    use core::pin::pin;
    use core::task::{Context, Waker};
    use core::time::Duration;

    /// It may sleep for long, and waits for room only if it knows that there is none.
    #[tokio::test]
    async fn the_task_is_told_that_the_socket_is_full() {
        let endpoint = endpoint();
        let shared = &endpoint.handle.shared;
        let is_told = || {
            let told = pin!(shared.notified());
            told.poll(&mut Context::from_waker(Waker::noop()))
                .is_ready()
        };
        assert!(!is_told());
        shared.push_blocked(0);
        assert!(is_told() && !is_told());
    }

    #[tokio::test]
    async fn what_blocked_sessions_is_told_apart() {
        let endpoint = endpoint();
        let [sending, receiving] = [1, 2].map(Duration::from_secs);
        let measures = &endpoint.handle.shared.context.measures;
        measures.blocked_sending(sending);
        measures.blocked_receiving(receiving);
        let stats = endpoint.stats();
        let blocked = (stats.blocked_sending, stats.blocked_receiving);
        assert_eq!(blocked, (sending, receiving));
    }

    #[tokio::test]
    async fn a_session_that_a_cookie_opens_has_a_proved_address() {
        let endpoint = endpoint();
        let (shared, peer) = (&endpoint.handle.shared, "192.0.2.1:9".parse().unwrap());
        for (conv, proved) in [(1, true), (2, false)] {
            let mut table = shared.table();
            let opened = shared.open(&mut table, peer, None, conv, Side::Server, proved);
            assert_eq!(table.half_open(), usize::from(!proved));
            drop(table);
            assert_eq!(opened.unwrap().lock().session.is_validated(), proved);
        }
    }
}
