//! The endpoint's task: hands what the socket receives to the sessions, and runs their timers.

use super::super::core::Side;
use super::super::error::Rejection;
use super::super::time::Time;
use super::super::wire::HEADER_BYTES;
use super::link::{Link, NO_ROOM_PAUSE};
use super::protect::Inbound;
use super::shared::Shared;
use super::table::{Refusal, canonical};
use super::wakers::Woken;
use super::{cookie, is_any};
use crate::packet::Packet;
use crate::udp::{PacketBatch, Transmit, UdpReceiver};
use core::future::{Future, poll_fn};
use core::pin::{Pin, pin};
use core::slice;
use core::task::Poll;
use core::time::Duration;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

/// After this many datagrams in one turn the task yields. The tasks that it wakes are queued on its own thread.
/// Once it yields as well, that queue has more than one task, so tokio wakes another thread, and one thread
/// receives while the other reads. Fewer datagrams are not enough work for two threads: with a window of 128
/// segments it would be slower, for twice the CPU time.
const YIELD_AFTER_DATAGRAMS: usize = 256;

/// Timers run before the socket is looked at again.
const TIMERS_PER_TURN: usize = 256;

/// If the first timer is this late, the task was kept from running, as by a call that blocks its thread. What came
/// meanwhile waits in the socket: it is read before a session is given up for silence.
const LATE: Duration = Duration::from_millis(100);

/// The most datagrams that are read before late timers run, more than a socket's default buffer holds. A flood that
/// makes the task late must not stop the timers.
const MOST_BEFORE_TIMERS: usize = 16 * 1024;

pub(super) struct Driver {
    receiver: UdpReceiver,
    batches: Vec<PacketBatch>,
    /// Sessions that received something in this turn.
    touched: Vec<Arc<Link>>,
    inbound: Inbound,
    /// Datagrams read since the timers were last in time.
    read_while_late: usize,
    /// Dropped last: monitors are told that the endpoint is gone, and with it its socket.
    shared: Arc<Shared>,
}

impl Driver {
    pub(super) fn new(shared: Arc<Shared>, mut receiver: UdpReceiver) -> Self {
        // Acknowledgements free memory, so they must be received when there is none.
        receiver.enable_spare_buffers();
        Self {
            shared,
            receiver,
            batches: Vec::with_capacity(32),
            touched: Vec::new(),
            inbound: Inbound::default(),
            read_while_late: 0,
        }
    }

    /// Runs until the endpoint is closed and its last session is gone.
    pub(super) async fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        let mut sleep = pin!(tokio::time::sleep_until(tokio::time::Instant::now()));
        let mut sleeping_until = None;
        loop {
            let timer = shared.timers().next();
            let protection = shared.protection.as_ref();
            let fec_check = protection.and_then(|protection| protection.free_idle(shared.now()));
            let next = [timer, fec_check].into_iter().flatten().min();
            shared.set_asleep_until(next);
            // A timer that was armed before that call has woken nobody.
            if shared.timers().next() != timer {
                continue;
            }
            if let Some(at) = next
                && sleeping_until != next
            {
                sleep.as_mut().reset(shared.instant(at));
                sleeping_until = next;
            }
            if let Some(Err(error)) = self.wait(sleep.as_mut(), next.is_some()).await {
                if error.kind() == io::ErrorKind::ConnectionRefused {
                    self.refuse();
                }
                // An ICMP message, or a lack of memory; the receiver goes on.
                tracing::debug!(%error, "receiving failed");
                tokio::task::yield_now().await;
            }
            if sleep.is_elapsed() {
                sleeping_until = None;
            }
            shared.set_awake();
            let now = shared.now();
            let datagrams = self.dispatch_batches(now);
            let reads_on = self.reads_on(now, timer, datagrams);
            if !reads_on {
                self.run_timers(now);
            }
            self.flush_blocked(now);
            if self.is_over() {
                return;
            }
            if datagrams >= YIELD_AFTER_DATAGRAMS || (reads_on && datagrams == 0) {
                tokio::task::yield_now().await;
            }
        }
    }

    /// Nobody listens at the peer's port, as its host says to a client's socket, which has no other peer.
    #[cold]
    fn refuse(&self) {
        let links: Vec<_> = self.shared.table().links().cloned().collect();
        for link in links {
            link.update(self.shared.now(), |inner| inner.session.refused());
        }
    }

    /// Counts a turn, and logs why sending failed since the last one. Is the endpoint closed, and its last session gone?
    fn is_over(&self) -> bool {
        let mut table = self.shared.table();
        table.stats.wakeups += 1;
        let is_over = table.closed && table.len() == 0;
        let send_error = table.send_error.take();
        drop(table); // before a subscriber's code runs
        if let Some(error) = send_error {
            tracing::debug!(%error, "sending failed");
        }
        is_over
    }

    /// Waits for datagrams, the timer, room in the socket if that is lacking, or a notification; returns
    /// the result of receiving.
    async fn wait(
        &mut self,
        mut sleep: Pin<&mut tokio::time::Sleep>,
        timer: bool,
    ) -> Option<io::Result<usize>> {
        let mut received = pin!(self.receiver.recv_batches(&mut self.batches));
        let mut woken = pin!(self.shared.notified());
        let blocked = self.shared.is_blocked();
        let room = || self.shared.sender.clone().writable_or_after(NO_ROOM_PAUSE);
        let mut writable = pin!(blocked.then(room));
        poll_fn(|cx| {
            if let Poll::Ready(received) = received.as_mut().poll(cx) {
                return Poll::Ready(Some(received));
            }
            if timer && sleep.as_mut().poll(cx).is_ready() {
                return Poll::Ready(None);
            }
            if let Some(writable) = writable.as_mut().as_pin_mut()
                && writable.poll(cx).is_ready()
            {
                return Poll::Ready(None);
            }
            woken.as_mut().poll(cx).map(|()| None)
        })
        .await
    }

    /// Hands what was received to the sessions, and then lets them send; returns the number of datagrams.
    fn dispatch_batches(&mut self, now: Time) -> usize {
        let datagrams = self.batches.iter().map(PacketBatch::datagrams).sum();
        let transient = self.receiver.used_spare_buffers();
        // A socket bound to one address sends everything from that.
        let bound_to_any = is_any(self.receiver.local_addr());
        for batch in self.batches.drain(..) {
            let (shared, touched) = (&self.shared, &mut self.touched);
            let arrival = Arrival {
                peer: canonical(batch.source()),
                local: batch.reply_source().filter(|_| bound_to_any),
                now,
                transient,
            };
            match &shared.protection {
                None => dispatch_packets(shared, arrival, batch.into_packets(), touched),
                Some(protection) => {
                    self.inbound
                        .process_batch(protection, arrival.peer, batch, |datagrams| {
                            dispatch_packets(shared, arrival, datagrams, touched);
                        })
                }
            }
        }
        for link in self.touched.drain(..) {
            link.update(now, |_| {});
        }
        datagrams
    }

    /// Is the first timer late, and what has come meanwhile still to be read? If nothing was found at first, the runtime
    /// may not have looked at the socket yet.
    fn reads_on(&mut self, now: Time, timer: Option<Time>, datagrams: usize) -> bool {
        if timer.is_none_or(|at| now.since(at) < LATE) {
            self.read_while_late = 0;
            return false;
        }
        let is_first = self.read_while_late == 0;
        self.read_while_late += datagrams.max(1);
        (is_first || datagrams > 0) && self.read_while_late < MOST_BEFORE_TIMERS
    }

    fn run_timers(&self, now: Time) {
        for _ in 0..TIMERS_PER_TURN {
            let Some(place) = self.shared.timers().pop_due(now) else {
                return;
            };
            let link = self.shared.table().at(place).cloned();
            let Some(link) = link else { continue };
            link.update(now, |inner| {
                inner.armed = None;
                if inner.session.poll_timeout().is_some_and(|at| at <= now) {
                    inner.session.handle_timeout(now);
                }
            });
        }
    }

    /// Sends what the socket had no room for, as far as it has room now.
    fn flush_blocked(&self, now: Time) {
        while let Some(place) = self.shared.pop_blocked() {
            let link = self.shared.table().at(place).cloned();
            let Some(link) = link else { continue };
            if link.send_unsent() {
                link.update(now, |_| {});
            } else {
                return self.shared.requeue_blocked(place);
            }
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // The task is over, or its runtime is: no session can go on.
        let mut woken = Woken::default();
        let links: Vec<_> = {
            let mut table = self.shared.table();
            table.closed = true;
            table.backlog.clear();
            table.acceptors.wake(&mut woken);
            table.links().cloned().collect()
        };
        for link in links {
            link.end_without_driver();
        }
    }
}

/// The peer, our address and the time of datagrams, and whether their memory has to be released at once.
#[derive(Clone, Copy)]
struct Arrival {
    peer: SocketAddr,
    local: Option<SocketAddr>,
    now: Time,
    transient: bool,
}

fn dispatch_packets(
    shared: &Arc<Shared>,
    arrival: Arrival,
    datagrams: impl Iterator<Item = Packet>,
    touched: &mut Vec<Arc<Link>>,
) {
    let Arrival { now, transient, .. } = arrival;
    let mut datagrams = datagrams.peekable();
    while let Some(first) = datagrams.peek() {
        let Some(conv) = conversation(first) else {
            shared.table().ended_stats.rejected[Rejection::TooShort as usize] += 1;
            datagrams.next();
            continue;
        };
        let Some(link) = find_or_open(shared, arrival, conv, first) else {
            datagrams.next();
            continue;
        };
        let same_session = core::iter::from_fn(|| {
            datagrams.next_if(|datagram| conversation(datagram) == Some(conv))
        });
        link.receive(now, same_session, transient);
        if touched.last().is_none_or(|last| !Arc::ptr_eq(last, &link)) {
            touched.push(link);
        }
    }
}

/// The conversation number of a datagram, if it is long enough to have one.
fn conversation(datagram: &Packet) -> Option<u32> {
    if datagram.len() < HEADER_BYTES {
        return None;
    }
    datagram.first_chunk().map(|conv| u32::from_le_bytes(*conv))
}

fn find_or_open(
    shared: &Arc<Shared>,
    arrival: Arrival,
    conv: u32,
    datagram: &[u8],
) -> Option<Arc<Link>> {
    let Arrival {
        peer, local, now, ..
    } = arrival;
    let mut table = shared.table();
    if let Some(link) = table.get(peer, conv) {
        return Some(Arc::clone(link));
    }
    let proved = cookie::proves_address(&shared.secret, peer, datagram, now);
    if let Err(refusal) = table.may_open(&shared.config, peer, datagram, proved, now) {
        let cookie = match refusal {
            Refusal::HalfOpen | Refusal::Prefix | Refusal::NoCookie => {
                cookie::answer(&shared.secret, peer, datagram, now)
            }
            _ => None,
        };
        // Where everybody needs a cookie, to be sent one is to be let in.
        if refusal != Refusal::NoCookie || cookie.is_none() {
            table.count_refusal(refusal);
        }
        if let Some(cookie) = cookie {
            drop(table);
            if send_sessionless(shared, arrival, &cookie) {
                shared.table().stats.cookies_sent += 1;
            }
        } else if refusal == Refusal::NotOpening
            && let Some(notice) = table.reminder(peer, conv, datagram, now)
        {
            drop(table);
            // No longer than what it answers.
            let mut answer = [0; HEADER_BYTES];
            notice.encode(&mut answer);
            send_sessionless(shared, arrival, &answer);
        }
        return None;
    }
    let link = shared
        .open(&mut table, peer, local, conv, Side::Server, proved)
        .ok()?;
    table.stats.cookies_taken += u64::from(proved);
    table.backlog.push_back(Arc::clone(&link));
    let mut woken = Woken::default();
    table.acceptors.wake(&mut woken);
    drop(table); // before tasks are woken
    Some(link)
}

/// Answers a datagram for which there is no session; returns whether the socket took the answer. If it is lost, the peer
/// tries again.
fn send_sessionless(shared: &Shared, arrival: Arrival, answer: &[u8]) -> bool {
    let to = shared.to_socket_family(arrival.peer);
    let sent = match &shared.protection {
        Some(protection) => protection.send_sessionless(&shared.sender, to, arrival.local, answer),
        None => {
            let answer = Transmit::new(answer, to).source(arrival.local);
            shared.sender.try_send_many(slice::from_ref(&answer))
        }
    };
    let is_sent = matches!(sent, Ok(1));
    if !is_sent {
        shared.table().count_unsent_answer(sent.err());
    }
    is_sent
}

#[cfg(test)]
mod tests {
    use super::super::EndpointConfig;
    use super::*;
    use crate::packet::PacketPool;

    /// A flood that makes the task late would stop them otherwise.
    #[tokio::test]
    async fn late_timers_wait_for_a_limited_number_of_datagrams() {
        let pool = PacketPool::builder().max_memory(8 << 20).build().unwrap();
        let config = EndpointConfig::default();
        let receiver = config.receiver(&pool).bind("127.0.0.1:0".parse().unwrap());
        let receiver = receiver.unwrap();
        let shared = Shared::new(receiver.sender(), pool, config).unwrap();
        let mut driver = Driver::new(Arc::new(shared), receiver);
        let (at, late) = (Some(Time::ZERO), Time::ZERO + LATE);
        let mut read = |now, datagrams| driver.reads_on(now, at, datagrams);
        for _ in 0..2 {
            assert!(!read(Time::ZERO, 1), "in time");
            assert_eq!([(); 3].map(|()| read(late, 0)), [true, false, false]);
            assert!(read(late, 1));
            let flood = (0..10_000).filter(|_| read(late, 8)).count();
            assert!((1000..3000).contains(&flood), "{flood}");
        }
    }
}
