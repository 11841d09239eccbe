//! [`Link`]: a session shared by its endpoint's task and the application's tasks, behind one lock.

mod sending;

use super::super::core::Session;
use super::super::time::Time;
use super::addresses::Addresses;
use super::shared::Shared;
use super::wakers::{Wait, Wakers, Woken};
use crate::packet::Packet;
use core::ops::{Deref, DerefMut};
use core::task::Waker;
use core::time::Duration;
use slab_core::{HeldWakes, hold_wakes};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub(super) use sending::{MAX_BURST, MAX_BURST_BYTES, NO_ROOM_PAUSE, send_again_if_refused};

pub(super) struct Link {
    pub(super) shared: Arc<Shared>,
    addresses: Addresses,
    pub(super) conv: u32,
    /// Its place in the table.
    pub(super) place: u32,
    inner: Mutex<Inner>,
}

/// How long who waits for memory that others have sleeps at most before it looks again.
pub(super) const LONGEST_LOOK: Duration = Duration::from_millis(160);

/// Datagrams that the socket had no room for, and the length of each.
pub(super) type Unsent = Option<(Packet, usize)>;

pub(super) struct Inner {
    pub(super) session: Session,
    readers: Wakers,
    writers: Wakers,
    /// Who waits for the end alone is not woken for all that readers and writers wait for.
    watchers: Wakers,
    /// The last number of a [`Wait`].
    last_wait: u64,
    unsent: Unsent,
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

/// The lock on a [`Link`]. The tasks that are to be woken are woken once it is free: a waker is foreign code, which
/// may look at the same session, or panic. So are those that wait for memory that the session frees.
pub(super) struct LinkGuard<'a> {
    // Dropped in this order.
    inner: MutexGuard<'a, Inner>,
    _held: HeldWakes,
    woken: Woken,
}

impl LinkGuard<'_> {
    /// Wakes this task when there is something to read, or never will be.
    pub(super) fn wait_to_read(&mut self, wait: &mut Wait, waker: &Waker) {
        self.wait_among(|inner| &mut inner.readers, wait, waker);
    }

    /// Wakes this task when there is room to write, the session is ready, or it ends.
    pub(super) fn wait_to_write(&mut self, wait: &mut Wait, waker: &Waker) {
        self.wait_among(|inner| &mut inner.writers, wait, waker);
    }

    /// Wakes this task when the session ends.
    pub(super) fn wait_for_end(&mut self, wait: &mut Wait, waker: &Waker) {
        self.wait_among(|inner| &mut inner.watchers, wait, waker);
    }

    fn wait_among(&mut self, who: fn(&mut Inner) -> &mut Wakers, wait: &mut Wait, waker: &Waker) {
        wait.begin(&mut self.inner.last_wait);
        who(&mut self.inner).add(wait, waker, &mut self.woken);
    }

    /// What was waited for has come, so that the wait need not take the lock again to end.
    pub(super) fn end(&mut self, wait: &mut Wait) {
        if wait.has_begun() {
            self.woken.replaced = self.inner.remove(&core::mem::take(wait));
        }
    }
}

impl Deref for LinkGuard<'_> {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.inner
    }
}

impl DerefMut for LinkGuard<'_> {
    fn deref_mut(&mut self) -> &mut Inner {
        &mut self.inner
    }
}

impl Inner {
    fn remove(&mut self, wait: &Wait) -> [Option<Waker>; 3] {
        [&mut self.readers, &mut self.writers, &mut self.watchers]
            .map(|waiting| waiting.remove(wait))
    }
}

/// A future's wait for something of a session. It ends with the future, which may be cancelled.
pub(super) struct Waiting<'a> {
    link: &'a Link,
    pub(super) wait: Wait,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.link.end(&self.wait);
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
                watchers: Wakers::default(),
                last_wait: 0,
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
        self.addresses.peer()
    }

    /// The address that the peer sends to, if the socket has more than one. The peer would not recognise datagrams
    /// from another.
    pub(super) fn local(&self) -> Option<SocketAddr> {
        self.addresses.local()
    }

    pub(super) fn lock(&self) -> LinkGuard<'_> {
        LinkGuard {
            _held: hold_wakes(),
            // A panic in a session leaves it as it was between two calls, or is a bug that the next call shows again.
            inner: self.inner.lock().unwrap_or_else(PoisonError::into_inner),
            woken: Woken::default(),
        }
    }

    pub(super) fn waiting(&self) -> Waiting<'_> {
        let wait = Wait::default();
        Waiting { link: self, wait }
    }

    /// The wait is over, whatever it was for.
    pub(super) fn end(&self, wait: &Wait) {
        if wait.has_begun() {
            let removed = self.lock().remove(wait);
            drop(removed); // after the lock: a waker is foreign code
        }
    }

    /// Takes what was received for this session. If the session was removed after it was looked up, its counters are
    /// read no more, and this is counted as what comes a moment later.
    pub(super) fn receive(
        &self,
        now: Time,
        datagrams: impl Iterator<Item = Packet>,
        transient: bool,
    ) {
        let mut inner = self.lock();
        if inner.removed {
            let late = datagrams.count() as u64;
            self.shared.table().stats.unknown_session += late;
        } else {
            inner.session.handle_all(now, datagrams, transient);
        }
    }

    /// Locks the link, makes a change that others may have waited for, and [settles](Self::settle) it.
    pub(super) fn update(&self, now: Time, change: impl FnOnce(&mut Inner)) {
        let mut guard = self.lock();
        change(&mut guard);
        self.settle(&mut guard, now, true);
    }

    /// Completes whatever was done to the session: sends what is to be sent, sets the timer, removes the session
    /// from the table once it is over, and wakes tasks. Without `wake_all` these are only those that
    /// wait for an event that happens once: otherwise a task that sends or receives would wake others for nothing,
    /// and itself for ever if it waits for something else at the same time.
    pub(super) fn settle(&self, guard: &mut LinkGuard<'_>, now: Time, wake_all: bool) {
        let LinkGuard { inner, woken, .. } = guard;
        let inner = &mut **inner;
        self.transmit(inner, now);
        let Inner {
            session,
            readers,
            writers,
            watchers,
            awaited_bytes,
            writers_told_ready,
            ..
        } = inner;
        let over = session.ended().is_some();
        let readable = session.has_message() || session.has_bytes() || session.has_datagram();
        // This task may have taken the message that another waits to join. The next one may need no memory, and there
        // may be none.
        let awaited_gone =
            *awaited_bytes > 0 && session.next_message_bytes() != Some(*awaited_bytes as usize);
        if over || awaited_gone || wake_all && (readable || session.is_read_closed()) {
            *awaited_bytes = 0;
            readers.wake(woken);
        }
        // Happens once: whoever settles first afterwards wakes the writers, with `wake_all` or without.
        let first_answer = session.is_acquainted() && !core::mem::replace(writers_told_ready, true);
        let writable = session.has_room_to_wake_senders() || session.send_closed().is_some();
        if over || first_answer || wake_all && writable {
            writers.wake(woken);
        }
        if over {
            watchers.wake(woken);
        }
        if inner.half_open && (over || inner.session.is_validated()) {
            inner.half_open = false;
            self.shared.table().count_half_open_done(self.peer());
        }
        if over {
            if !inner.released && !readable {
                // Nobody needs to accept it any more; if it was accepted, it is not in the backlog. One with
                // something to read stays: its peer was told that this has arrived.
                inner.released = self.shared.table().remove_from_backlog(self.place);
            }
            // If the socket has no room for the notice of the end, that goes out once it has.
            let tells_peer = inner.unsent.is_some() && inner.session.last_notice().is_some();
            if inner.released && !tells_peer {
                self.remove(inner);
                return;
            }
        }
        self.arm(inner);
    }

    /// As [`settle`](Self::settle) without `wake_all`, after a reader has looked, or taken something. Mostly nothing
    /// follows from that, and what others did to the session they have settled.
    pub(super) fn settle_read(&self, guard: &mut LinkGuard<'_>) {
        let session = &guard.session;
        // The peer has not heard of a session that has sent nothing so far.
        let tells_peer = session.owes_window_segment();
        // The window may be empty now.
        let is_sooner = |at| guard.armed.is_none_or(|armed| at < armed);
        let looks = session.look_again_at().is_some_and(is_sooner);
        if tells_peer || looks || session.ended().is_some() || guard.awaited_bytes > 0 {
            self.settle(guard, self.shared.now(), false);
        }
    }

    /// Sets the timer. While the socket is full, only for the session's end: anything else due could not be sent,
    /// and is looked at again once it can.
    pub(super) fn arm(&self, inner: &mut Inner) {
        let session = &inner.session;
        let times = match inner.unsent {
            None => [session.poll_timeout(), session.look_again_at()],
            Some(_) => [session.poll_end(), None],
        };
        if let Some(at) = times.into_iter().flatten().min() {
            self.arm_at(inner, at);
        }
    }

    /// Has the endpoint's task settle it by then.
    pub(super) fn arm_at(&self, inner: &mut Inner, at: Time) {
        if inner.armed.is_none_or(|armed| at < armed) {
            inner.armed = Some(at);
            self.shared.arm(self.place, at);
        }
    }

    /// Has the endpoint's task wake who waits for memory that others have (a caller may be outside of any runtime): after as
    /// long as that has taken so far, within bounds.
    pub(super) fn look_again_for_memory(&self, inner: &mut Inner, since: Time) {
        const SOONEST: Duration = Duration::from_millis(10);
        let now = self.shared.now();
        self.arm_at(inner, now + now.since(since).clamp(SOONEST, LONGEST_LOOK));
    }

    /// Removes it from the table, once.
    pub(super) fn remove(&self, inner: &mut Inner) {
        if inner.removed {
            return;
        }
        inner.removed = true;
        self.shared.timers().clear(self.place);
        if inner.unsent.take().is_some() {
            self.shared.forget_blocked(self.place);
        }
        if let Some(protection) = &self.shared.protection {
            protection.leave(self.peer());
        }
        let mut table = self.shared.table();
        table.ended_stats += &inner.session.stats();
        let (proved, notice) = (inner.session.is_validated(), inner.session.last_notice());
        table.remove(self, proved, notice, self.shared.now(), &self.shared.config);
        let empty = table.len() == 0;
        drop(table);
        if empty {
            self.shared.wake_driver();
        }
    }

    /// The endpoint's task is gone, and with it the session.
    pub(super) fn end_without_driver(&self) {
        let LinkGuard { inner, woken, .. } = &mut self.lock();
        inner.session.abort();
        if core::mem::take(&mut inner.half_open) {
            self.shared.table().count_half_open_done(self.peer());
        }
        inner.readers.wake(woken);
        inner.writers.wake(woken);
        inner.watchers.wake(woken);
        self.remove(inner);
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
    use super::super::super::error::CloseReason;
    use super::super::tests::endpoint;
    use super::super::{Connection, Endpoint};
    use super::*;
    use core::future::Future;
    use core::pin::pin;
    use core::sync::atomic::{AtomicUsize, Ordering};
    use core::task::Context;
    use core::time::Duration;
    use std::task::Wake;

    /// An endpoint with a session, and its link.
    fn session() -> (Endpoint, Connection, Arc<Link>) {
        let endpoint = endpoint();
        let connection = endpoint.connect(endpoint.local_addr()).unwrap();
        let table = endpoint.handle.shared.table();
        let link = table.get(connection.peer_addr(), connection.conv());
        let link = Arc::clone(link.unwrap());
        drop(table);
        (endpoint, connection, link)
    }

    fn remove(connection: Connection) {
        connection.abort();
        drop(connection);
    }

    #[tokio::test]
    async fn what_comes_for_a_session_that_was_just_removed_is_counted() {
        let (endpoint, connection, link) = session();
        remove(connection);
        let datagrams = [Packet::from_static(b"one"), Packet::from_static(b"two")];
        link.receive(Time::ZERO, datagrams.into_iter(), false);
        assert_eq!(endpoint.stats().unknown_session, 2);
    }

    /// An end that loses patience has often filled its socket before.
    #[tokio::test]
    async fn a_peer_is_told_of_an_abort_although_the_socket_has_no_room() {
        let (server, endpoint) = (endpoint(), endpoint());
        let connection = endpoint.connect(server.local_addr()).unwrap();
        connection.send_slice(b"hello").await.unwrap();
        let accepted = server.accept().await.unwrap();
        assert_eq!(accepted.recv().await.unwrap().unwrap(), b"hello"[..]);
        accepted.send_slice(b"welcome").await.unwrap();
        assert_eq!(connection.recv().await.unwrap().unwrap(), b"welcome"[..]);
        let link = Arc::clone(endpoint.handle.shared.table().links().next().unwrap());
        while !link.lock().session.is_peer_ours() {
            tokio::task::yield_now().await;
        }
        link.lock().unsent = Some((Packet::from_static(b"waits"), 5));
        link.shared.push_blocked(link.place);
        remove(connection);
        let told = tokio::time::timeout(Duration::from_secs(5), accepted.recv()).await;
        assert_eq!(told.expect("nobody told it"), Err(CloseReason::Reset));
        assert!(!link.shared.is_blocked());
        assert_eq!(endpoint.stats().sessions, 0);
    }

    /// A reader has it looked at again soon, and something comes that is due later.
    #[tokio::test]
    async fn a_timer_moves_to_earlier_only() {
        let (_endpoint, _connection, link) = session();
        let (soon, later) = (Time::from_micros(1), Time::from_micros(2));
        for at in [later, soon, later] {
            link.arm_at(&mut link.lock(), at);
        }
        assert_eq!(link.shared.timers().next(), Some(soon));
    }

    /// Otherwise each reader would wake all others, and itself, whenever it looks.
    #[tokio::test]
    async fn readers_are_told_once_that_an_awaited_message_is_gone() {
        struct Task(AtomicUsize);

        impl Wake for Task {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }

        let (_endpoint, connection, link) = session();
        link.lock().awaited_bytes = 5000;
        let task = Arc::new(Task(AtomicUsize::new(0)));
        let waker = Waker::from(Arc::clone(&task));
        let mut receiving = pin!(connection.recv_datagram());
        for _ in 0..3 {
            let polled = receiving.as_mut().poll(&mut Context::from_waker(&waker));
            assert!(polled.is_pending());
        }
        assert_eq!(task.0.load(Ordering::Relaxed), 1);
    }

    /// While the socket has no room, sessions come and go.
    #[tokio::test]
    async fn sessions_that_are_gone_do_not_wait_for_room_in_the_socket() {
        let (endpoint, connection, link) = session();
        link.lock().unsent = Some((Packet::from_static(b"waits"), 5));
        link.shared.push_blocked(link.place);
        assert!(link.shared.is_blocked());
        remove(connection);
        assert!(!link.shared.is_blocked());
        assert_eq!(endpoint.stats().sessions, 0);
    }
}
