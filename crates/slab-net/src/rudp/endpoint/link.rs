//! [`Link`]: a session shared by its endpoint's task and the application's tasks, behind one lock.

use super::super::core::Session;
use super::super::error::CloseReason;
use super::super::time::Time;
use super::shared::Shared;
use crate::packet::Packet;
use crate::udp::{SendErrorKind, Transmit};
use bytes::Buf;
use core::cell::RefCell;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

/// The most datagrams in one call to the kernel.
pub(super) const MAX_BURST: usize = 64;
/// The most bytes that one call to the kernel takes.
const SCRATCH_BYTES: usize = 65507;

thread_local! {
    /// Where acknowledgements and small messages are put together: one for each thread that sends, allocated when
    /// it first does.
    static SCRATCH: RefCell<Box<[u8]>> = RefCell::new(vec![0; SCRATCH_BYTES].into_boxed_slice());
}

/// The addresses of both ends, kept small: there are many idle sessions.
struct Addresses {
    /// An IPv4 address is stored mapped into IPv6; no canonical address is.
    peer: Ipv6Addr,
    port: u16,
    /// The interface of link-local addresses; if both ends have one, it is the same.
    scope: u32,
    /// As `peer`; unspecified if the system may choose.
    local: Ipv6Addr,
}

const _: () = assert!(size_of::<Addresses>() == 40);

impl Addresses {
    fn new(peer: SocketAddr, local: Option<SocketAddr>) -> Self {
        let parts = |address: SocketAddr| match address {
            SocketAddr::V4(v4) => (v4.ip().to_ipv6_mapped(), 0),
            SocketAddr::V6(v6) => (*v6.ip(), v6.scope_id()),
        };
        let (ip, scope) = parts(peer);
        let (local, by) = local.map_or((Ipv6Addr::UNSPECIFIED, 0), parts);
        Self {
            peer: ip,
            port: peer.port(),
            scope: scope.max(by),
            local,
        }
    }

    fn address(&self, ip: Ipv6Addr, port: u16) -> SocketAddr {
        match ip.to_canonical() {
            IpAddr::V4(ip) => (ip, port).into(),
            IpAddr::V6(ip) => {
                let scope = if ip.is_unicast_link_local() {
                    self.scope
                } else {
                    0
                };
                SocketAddrV6::new(ip, port, 0, scope).into()
            }
        }
    }
}

pub(super) struct Link {
    pub(super) shared: Arc<Shared>,
    addresses: Addresses,
    pub(super) conv: u32,
    /// Its place in the table.
    pub(super) place: u32,
    inner: Mutex<Inner>,
}

pub(super) struct Inner {
    pub(super) session: Session,
    pub(super) readers: Wakers,
    pub(super) writers: Wakers,
    /// Datagrams that the socket had no room for, and the length of each.
    unsent: Option<(Packet, usize)>,
    /// When the endpoint's task will look at it, at the latest.
    pub(super) armed: Option<Time>,
    /// The length of the next message, if a reader waits for memory to join it in; otherwise 0.
    pub(super) awaited_bytes: u32,
    half_open: bool,
    /// Have the waiting writers been told that the peer has answered?
    writers_told_ready: bool,
    /// Have all of the application's handles been dropped?
    pub(super) released: bool,
    removed: bool,
}

/// The most tasks that wait for one event of a session, or for the next session. A cancelled wait leaves its waker
/// here until something comes. If there are too many, a new one wakes a task that has waited for long, which waits
/// again if it still has to.
const MAX_WAKERS: usize = 256;

/// Tasks that wait for one event; seldom more than one.
#[derive(Debug, Default)]
pub(super) struct Wakers {
    first: Option<Waker>,
    more: Vec<Waker>,
}

impl Wakers {
    pub(super) fn add(&mut self, waker: &Waker) {
        if let Some(evicted) = self.insert(waker) {
            evicted.wake();
        }
    }

    /// As `add`, but returns the task to wake.
    #[must_use]
    pub(super) fn insert(&mut self, waker: &Waker) -> Option<Waker> {
        let mut evicted = None;
        match &self.first {
            None => self.first = Some(waker.clone()),
            Some(first) if first.will_wake(waker) => {}
            Some(_) if self.more.iter().any(|known| known.will_wake(waker)) => {}
            Some(_) => {
                if self.more.len() + 1 == MAX_WAKERS {
                    evicted = Some(self.more.remove(0));
                }
                self.more.push(waker.clone());
            }
        }
        evicted
    }

    pub(super) fn wake(mut self) {
        if let Some(waker) = self.wake_all_but_one() {
            waker.wake();
        }
    }

    /// Wakes all but one, and returns that one, to be woken once the lock is free.
    fn wake_all_but_one(&mut self) -> Option<Waker> {
        for waker in self.more.drain(..) {
            waker.wake();
        }
        self.first.take()
    }
}

/// Tasks to be woken once the link's lock is free, because they take it first of all.
#[must_use]
#[derive(Default)]
pub(super) struct PendingWakes {
    reader: Option<Waker>,
    writer: Option<Waker>,
}

impl PendingWakes {
    pub(super) fn wake(self) {
        for waker in [self.reader, self.writer].into_iter().flatten() {
            waker.wake();
        }
    }
}

impl Link {
    pub(super) fn new(
        shared: Arc<Shared>,
        peer: SocketAddr,
        local: Option<SocketAddr>,
        place: u32,
        session: Session,
        half_open: bool,
    ) -> Self {
        Self {
            shared,
            addresses: Addresses::new(peer, local),
            conv: session.conv(),
            place,
            inner: Mutex::new(Inner {
                session,
                readers: Wakers::default(),
                writers: Wakers::default(),
                unsent: None,
                armed: None,
                awaited_bytes: 0,
                half_open,
                writers_told_ready: false,
                released: false,
                removed: false,
            }),
        }
    }

    /// The peer's canonical address.
    pub(super) fn peer(&self) -> SocketAddr {
        self.addresses
            .address(self.addresses.peer, self.addresses.port)
    }

    /// The address that the peer sends to, if the socket has more than one. The peer would not recognise datagrams
    /// from another.
    pub(super) fn local(&self) -> Option<SocketAddr> {
        let local = self.addresses.address(self.addresses.local, 0);
        Some(local).filter(|local| !local.ip().is_unspecified())
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic in a session leaves it as it was between two calls, or is a bug that the next call shows again.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the link, makes a change that others may have waited for, [settles](Self::settle) it, and wakes them.
    pub(super) fn update(&self, now: Time, change: impl FnOnce(&mut Inner)) {
        let mut inner = self.lock();
        change(&mut inner);
        let woken = self.settle(&mut inner, now, true);
        drop(inner);
        woken.wake();
    }

    /// Completes whatever was done to the session: sends what is to be sent, sets the timer, removes the session
    /// from the table once it is over, and returns the tasks to wake. Without `wake_all` these are only those that
    /// wait for an event that happens once: otherwise a task that sends or receives would wake others for nothing,
    /// and itself for ever if it waits for something else at the same time.
    pub(super) fn settle(&self, inner: &mut Inner, now: Time, wake_all: bool) -> PendingWakes {
        self.transmit(inner, now);
        let Inner {
            session,
            readers,
            writers,
            awaited_bytes,
            writers_told_ready,
            ..
        } = inner;
        let over = session.ended().is_some();
        let mut woken = PendingWakes::default();
        let readable = session.has_message() || session.has_bytes() || session.has_datagram();
        // One task may take the last message while another waits for memory for it.
        let at_end = session.is_read_closed() && (wake_all || !readable);
        // This task may have taken the message that another waits to join, and the next one may need no memory.
        let awaited_gone =
            *awaited_bytes > 0 && session.next_message_bytes() != Some(*awaited_bytes as usize);
        if over || at_end || awaited_gone || wake_all && readable {
            *awaited_bytes = 0;
            woken.reader = readers.wake_all_but_one();
        }
        // Happens once: whoever settles first afterwards wakes the writers, with `wake_all` or without.
        let first_answer =
            session.is_peer_window_known() && !core::mem::replace(writers_told_ready, true);
        let writable = session.has_room_to_wake_senders() || session.send_closed().is_some();
        if over || first_answer || wake_all && writable {
            woken.writer = writers.wake_all_but_one();
        }
        if inner.half_open && (over || inner.session.is_validated()) {
            inner.half_open = false;
            self.shared.table().count_half_open_done(self.peer());
        }
        if over {
            if !inner.released && !readable {
                // Nobody needs to accept it any more; if it was accepted, it is not in the backlog. One with
                // something to read stays: its peer was told that this has arrived.
                let mut table = self.shared.table();
                let waiting = table.backlog.iter();
                let place = waiting
                    .map(|link| link.place)
                    .position(|at| at == self.place);
                if let Some(place) = place {
                    table.backlog.remove(place);
                    inner.released = true;
                }
            }
            if inner.released {
                self.remove(inner);
                return woken;
            }
        }
        self.arm(inner);
        woken
    }

    /// Sets the timer. While the socket is full, only for the session's end: anything else due could not be sent,
    /// and is looked at again once it can.
    pub(super) fn arm(&self, inner: &mut Inner) {
        let next = match inner.unsent {
            None => inner.session.poll_timeout(),
            Some(_) => inner.session.poll_end(),
        };
        if let Some(at) = next
            && inner.armed.is_none_or(|armed| at < armed)
        {
            inner.armed = Some(at);
            self.shared.arm(self.place, at);
        }
    }

    /// Removes it from the table, once.
    pub(super) fn remove(&self, inner: &mut Inner) {
        if inner.removed {
            return;
        }
        inner.removed = true;
        self.shared.timers().clear(self.place);
        if let Some(protection) = &self.shared.protection {
            protection.leave(self.peer());
        }
        let mut table = self.shared.table();
        table.ended_stats += &inner.session.stats();
        table.remove(self, self.shared.now(), &self.shared.config);
        let empty = table.len() == 0;
        drop(table);
        if empty {
            self.shared.wake_driver();
        }
    }

    fn transmit(&self, inner: &mut Inner, now: Time) {
        if inner.unsent.is_some() {
            return;
        }
        let had_scratch = SCRATCH.try_with(|scratch| {
            let scratch = &mut *scratch.borrow_mut();
            match &self.shared.protection {
                Some(protection) => {
                    let Inner {
                        session, unsent, ..
                    } = inner;
                    let sent = protection.transmit(self, session, unsent, now, scratch);
                    if protection.take_unscheduled() {
                        self.shared.wake_driver();
                    }
                    sent
                }
                None => {
                    self.transmit_plain(inner, now, scratch);
                    true
                }
            }
        });
        if !had_scratch.unwrap_or(false) {
            // A thread that is exiting has lost its scratch memory; the endpoint's task has one.
            inner.armed = Some(now);
            self.shared.arm(self.place, now);
        }
    }

    fn transmit_plain(&self, inner: &mut Inner, now: Time, scratch: &mut [u8]) {
        let to = self.shared.to_socket_family(self.peer());
        while let Some(outgoing) = inner.session.poll_transmit(now, scratch, MAX_BURST) {
            let (contents, size) = (outgoing.contents(), outgoing.segment_size());
            let transmit = Transmit::new(contents, to).segment_size(size);
            let transmit = transmit.source(self.local());
            let sent = match self.shared.sender.try_send(&transmit) {
                Ok(sent) => sent,
                Err(error) => {
                    // Treated as lost on the way; the session will find them missing.
                    let lost = outgoing.datagrams() - error.sent();
                    self.shared.table().stats.send_errors += lost as u64;
                    if matches!(error.kind(), SendErrorKind::Refused) {
                        inner.session.refused();
                    }
                    return;
                }
            };
            if sent < outgoing.datagrams() {
                // The socket is full: the rest waits in memory of its own, or is lost if there is none.
                let (rest, left) = (&contents[sent * size..], outgoing.datagrams() - sent);
                match self.shared.pool.try_copy_from_slice(rest) {
                    Ok(rest) => {
                        inner.unsent = Some((rest, size));
                        self.shared.push_blocked(self.place);
                    }
                    Err(_) => self.shared.table().stats.send_errors += left as u64,
                }
                return;
            }
        }
    }

    /// Sends what the socket had no room for; returns `false` if some of it is left.
    pub(super) fn send_unsent(&self) -> bool {
        let mut inner = self.lock();
        let Some((mut contents, size)) = inner.unsent.take() else {
            return true;
        };
        let to = self.shared.to_socket_family(self.peer());
        let transmit = Transmit::new(&contents, to).segment_size(size);
        let transmit = transmit.source(self.local());
        match self.shared.sender.try_send(&transmit) {
            Ok(sent) if sent * size < contents.len() => {
                contents.advance(sent * size);
                inner.unsent = Some((contents, size));
                return false;
            }
            Ok(_) => {}
            Err(error) => {
                let lost = contents.len().div_ceil(size) - error.sent();
                self.shared.table().stats.send_errors += lost as u64;
                if matches!(error.kind(), SendErrorKind::Refused) {
                    inner.session.refused();
                }
            }
        }
        true
    }

    /// The endpoint's task is gone, and with it the session.
    pub(super) fn end_without_driver(&self) {
        let mut inner = self.lock();
        inner.session.abort();
        inner.unsent = None;
        if core::mem::take(&mut inner.half_open) {
            self.shared.table().count_half_open_done(self.peer());
        }
        let woken = PendingWakes {
            reader: inner.readers.wake_all_but_one(),
            writer: inner.writers.wake_all_but_one(),
        };
        self.remove(&mut inner);
        drop(inner);
        woken.wake();
    }

    /// Why the session has ended, if it has.
    pub(super) fn ended(&self) -> Option<CloseReason> {
        self.lock().session.ended()
    }
}

impl core::fmt::Debug for Link {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Link")
            .field("peer", &self.peer())
            .field("conv", &self.conv)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    #[derive(Default)]
    struct Task {
        woken: AtomicUsize,
    }

    impl Wake for Task {
        fn wake(self: Arc<Self>) {
            self.woken.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn wakers_of_cancelled_waits_are_bounded_and_none_is_lost() {
        let mut wakers = Wakers::default();
        let tasks: Vec<_> = (0..10_000).map(|_| Arc::new(Task::default())).collect();
        let woken = || {
            let woken = tasks.iter().map(|task| task.woken.load(Ordering::Relaxed));
            woken.collect::<Vec<_>>()
        };
        for (added, task) in (1..).zip(&tasks) {
            for _ in 0..2 {
                wakers.add(&Waker::from(Arc::clone(task)));
            }
            let held = tasks.iter().filter(|task| Arc::strong_count(task) > 1);
            if added % 100 == 0 {
                assert_eq!(held.count(), added.min(MAX_WAKERS));
                assert_eq!(woken().iter().sum::<usize>(), added - added.min(MAX_WAKERS));
            }
        }
        wakers.wake_all_but_one().unwrap().wake();
        assert!(woken().iter().all(|&times| times == 1));
        assert!(wakers.wake_all_but_one().is_none());
    }
}
