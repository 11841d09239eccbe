//! One end of a session: the tasks that use it, and what they may find.

use crate::common::Random;
use crate::coverage::Coverage;
use crate::task::{self, Call, Halves, Outcome, Role, Task};
use crate::world::LINGER;
use slab_net::PacketPool;
use slab_net::rudp::{CloseReason, Connection, SendError};
use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::time::Duration;

/// What one end has sent, as the other has to find it.
#[derive(Default)]
pub(crate) struct Sent {
    /// All that was accepted, for a peer that begins anew.
    pub(crate) all: (Vec<Vec<u8>>, Vec<u8>),
    /// Accepted and not yet read by the other end.
    pub(crate) messages: VecDeque<Vec<u8>>,
    pub(crate) bytes: VecDeque<u8>,
    written: u64,
    /// Unreliable datagrams.
    datagrams: HashSet<Vec<u8>>,
}

impl Sent {
    fn push(&mut self, message: Vec<u8>, stream: bool) {
        if stream {
            self.written += message.len() as u64;
            self.all.1.extend(&message);
            self.bytes.extend(message);
        } else {
            self.all.0.push(message.clone());
            self.messages.push_back(message);
        }
    }

    pub(crate) fn is_read(&self) -> bool {
        self.messages.is_empty() && self.bytes.is_empty()
    }
}

/// How a session is used, alike at both ends.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Use {
    pub(crate) stream: bool,
    /// The longest message, or the most bytes of one call.
    pub(crate) longest: u64,
    pub(crate) max_datagram: u64,
    /// Is the world [rough](crate::rough)? Any session may break then.
    pub(crate) rough: bool,
}

pub(crate) struct End {
    pub(crate) connection: Option<Connection>,
    halves: Option<Halves>,
    pub(crate) sent: Sent,
    pub(crate) tasks: Vec<Task>,
    pub(crate) usage: Use,
    /// Calls to write that it still makes.
    pub(crate) writes_left: u64,
    /// How often it reads, in thousandths.
    pub(crate) reads: u64,
    /// It knows nothing of the one before, or its server is gone: what that had sent last, nobody sends again.
    pub(crate) anew: bool,
    /// It was accepted only once there was memory for it.
    pub(crate) late: bool,
    /// How often it wants messages in one piece.
    pub(crate) joins: u64,
    /// It said that it sends nothing more, or closed.
    pub(crate) finished: bool,
    /// When it did that.
    finished_at: Option<Duration>,
    /// The peer had answered nothing for the linger time after that: a finish towards it has become a close.
    pub(crate) gave_up: bool,
    /// It closed both directions, or dropped all handles.
    pub(crate) closed: bool,
    pub(crate) aborted: bool,
    /// What the first reader that came to the end found.
    pub(crate) end_read: Option<Result<(), CloseReason>>,
}

impl End {
    pub(crate) fn new(connection: Connection, usage: Use, random: &mut Random) -> Self {
        let halves = usage
            .stream
            .then(|| Halves::new(connection.clone().into_stream(), random.chance(200)));
        let (writers, readers) = match usage.stream {
            true => (1, 1),
            false => (1 + random.below(2), 1 + random.below(2)),
        };
        let roles = [
            (Role::Writer, writers),
            (Role::Reader, readers),
            (Role::Datagrams, random.below(3)),
            (Role::Waiter, random.below(3)),
        ];
        let tasks = roles
            .into_iter()
            .flat_map(|(role, n)| (0..n).map(move |_| Task::new(role)));
        Self {
            connection: Some(connection),
            halves,
            sent: Sent::default(),
            tasks: tasks.collect(),
            usage,
            writes_left: random.pick(&[0, 3, 20, 60]),
            reads: random.pick(&[1000, 1000, 100, 10]),
            anew: false,
            late: false,
            joins: 800,
            finished: false,
            finished_at: None,
            gave_up: false,
            closed: false,
            aborted: false,
            end_read: None,
        }
    }

    /// The server's end of a session that was not accepted; `gone` if it never will be.
    pub(crate) fn absent(usage: Use, gone: bool) -> Self {
        Self {
            connection: None,
            halves: None,
            sent: Sent::default(),
            tasks: Vec::new(),
            usage,
            writes_left: 0,
            reads: 0,
            anew: false,
            late: false,
            joins: 0,
            finished: gone,
            finished_at: None,
            gave_up: false,
            closed: gone,
            aborted: false,
            end_read: None,
        }
    }

    /// The next call of a task, if it makes one. `gone`: the peer has closed.
    pub(crate) fn next_call(
        &mut self,
        role: Role,
        gone: bool,
        random: &mut Random,
        pool: &PacketPool,
        coverage: &mut Coverage,
    ) -> Option<Call> {
        let connection = self.connection.clone()?;
        match role {
            Role::Writer => self.next_write(connection, gone, random, pool, coverage),
            Role::Reader if !random.chance(self.reads) => None,
            Role::Reader => match self.halves.clone() {
                Some(halves) => {
                    let most = random.pick(&[1, 7, 100, 1500, 20_000]);
                    Some(halves.read(random.below(4), most))
                }
                None => Some(task::recv(connection, random.chance(self.joins))),
            },
            Role::Datagrams => random.chance(300).then(|| task::recv_datagram(connection)),
            Role::Waiter if self.finished || self.closed => random.chance(100).then(|| {
                if self.closed {
                    task::close(connection)
                } else {
                    task::finish(connection)
                }
            }),
            Role::Waiter => random.chance(50).then(|| task::ready(connection)),
        }
    }

    fn next_write(
        &mut self,
        connection: Connection,
        gone: bool,
        random: &mut Random,
        pool: &PacketPool,
        coverage: &mut Coverage,
    ) -> Option<Call> {
        if self.writes_left == 0 || self.finished {
            return None;
        }
        if random.chance(200) {
            self.send_datagram(&connection, random, pool, coverage);
        }
        self.writes_left -= 1;
        let longest = random.pick(&[1, 40, self.usage.longest, self.usage.longest]);
        let len = 1 + random.below(longest) as usize;
        if let Some(halves) = self.halves.clone()
            && !random.chance(100)
        {
            if random.chance(50) {
                return Some(halves.flush());
            }
            let from = self.sent.written;
            let bytes = (from..from + len as u64).map(stream_byte).collect();
            let cuts = random.pick(&[0, 0, 1, 5, 30]);
            let mut cuts: Vec<_> = (0..cuts)
                .map(|_| random.below(len as u64 + 1) as usize)
                .collect();
            cuts.sort_unstable();
            return Some(halves.write(bytes, cuts));
        }
        // No more than fits the shortest queue.
        let len = len.min(200 * self.usage.max_datagram as usize);
        let message: Vec<u8> = match self.usage.stream {
            true => (0..len as u64)
                .map(|n| stream_byte(self.sent.written + n))
                .collect(),
            false => (0..len).map(|_| random.next() as u8).collect(),
        };
        match random.below(3) {
            0 => {
                let packet = pool.try_copy_from_slice(&message).ok()?;
                Some(task::send(connection, packet))
            }
            1 => {
                let packet = pool.try_copy_from_slice(&message).ok()?;
                let sent = connection.try_send(packet).map_err(|unsent| {
                    assert!(unsent.packet == message[..], "not given back as it was");
                    unsent.error
                });
                match sent {
                    Err(SendError::Blocked) => coverage.blocked += 1,
                    Err(SendError::NoMemory) => coverage.no_memory += 1,
                    // It is not yet known whether the peer's window is large enough.
                    Err(SendError::TooLong { .. }) => {}
                    sent => {
                        let gone = gone || connection.ended().is_some();
                        self.on_sent(message, sent, gone, coverage);
                    }
                }
                None
            }
            _ => Some(task::send_slice(connection, message)),
        }
    }

    fn send_datagram(
        &mut self,
        connection: &Connection,
        random: &mut Random,
        pool: &PacketPool,
        coverage: &mut Coverage,
    ) {
        let len = random.below(self.usage.max_datagram + 1);
        let datagram: Vec<u8> = (0..len).map(|_| random.next() as u8).collect();
        if let Ok(packet) = pool.try_copy_from_slice(&datagram)
            && connection.send_datagram(packet).is_ok()
        {
            coverage.datagrams += 1;
            self.sent.datagrams.insert(datagram);
        }
    }

    /// `gone`: the peer closed, or either end gave up.
    fn on_sent(
        &mut self,
        message: Vec<u8>,
        sent: Result<(), SendError>,
        gone: bool,
        coverage: &mut Coverage,
    ) {
        match sent {
            Ok(()) => self.sent.push(message, self.usage.stream),
            Err(SendError::NoMemory) => {
                coverage.no_memory += 1;
                self.check_nothing_in_flight();
            }
            Err(SendError::Closed(reason)) => {
                assert!(gone || self.finished, "cannot send: {reason}");
            }
            // A peer may have memory for less than the window that its messages are made for.
            Err(SendError::TooLong { max, .. }) if max < 32 => {}
            Err(error) => panic!("cannot send: {error}"),
        }
    }

    /// Time is about to move to `next`. A peer that could not answer is not known then, even if it answers later.
    pub(crate) fn before_time_moves(&mut self, now: Duration, next: Duration) {
        if self.finished {
            let until = *self.finished_at.get_or_insert(now) + LINGER;
            let unknown = self.connection.as_ref().is_some_and(|c| c.rtt().is_none());
            self.gave_up |= unknown && next >= until;
        }
    }

    /// An error for lack of memory means that no acknowledgement can free any.
    fn check_nothing_in_flight(&self) {
        if let Some(connection) = &self.connection {
            assert!(connection.is_sent(), "would have had memory later");
        }
    }

    /// Checks what a call returned against what the peer has sent; returns whether anything was sent or read.
    pub(crate) fn on_outcome(
        &mut self,
        peer: &mut Self,
        outcome: Outcome,
        coverage: &mut Coverage,
    ) -> bool {
        let gave_up = self.gave_up || peer.gave_up;
        let rough = self.usage.rough;
        let gone = peer.closed || peer.aborted || self.aborted || gave_up || rough;
        // A peer that nobody accepts in time is taken for one that cannot be told of the end.
        let is_absent = (peer.connection.is_none() || peer.late) && self.finished;
        let moves = match &outcome {
            Outcome::Sent(_, sent) => sent.is_ok(),
            Outcome::Written(_, written) => written.is_ok(),
            Outcome::Message(message) => matches!(message, Ok(Some(_))),
            Outcome::Bytes(bytes) => bytes.as_ref().is_ok_and(|bytes| !bytes.is_empty()),
            _ => false,
        };
        match outcome {
            Outcome::Sent(message, sent) => self.on_sent(message, sent, gone, coverage),
            Outcome::Written(mut bytes, Ok(written)) => {
                assert!((1..=bytes.len()).contains(&written), "wrote {written}");
                coverage.short_writes += u64::from(written < bytes.len());
                bytes.truncate(written);
                self.sent.push(bytes, true);
            }
            Outcome::Written(_, Err(error)) => {
                let reason = error.get_ref().map(ToString::to_string);
                // One that has no room for a segment even alone.
                if error.kind() == std::io::ErrorKind::OutOfMemory {
                    coverage.no_memory += 1;
                    self.check_nothing_in_flight();
                } else {
                    assert!(gone || self.finished, "cannot write: {reason:?}");
                }
            }
            Outcome::Message(Ok(Some(message))) => {
                coverage.messages += 1;
                let expected = peer.sent.messages.pop_front();
                let expected = expected.expect("a message that nobody sent");
                assert!(message == expected, "another message");
            }
            Outcome::Bytes(Ok(bytes)) if !bytes.is_empty() => {
                for byte in bytes {
                    assert_eq!(Some(byte), peer.sent.bytes.pop_front(), "another byte");
                }
            }
            Outcome::Message(Ok(None)) | Outcome::Bytes(Ok(_)) => {
                coverage.ends += 1;
                self.end_read.get_or_insert(Ok(()));
                // If the peer has given up, a finish here may have become a close.
                let left = self.closed || self.aborted || rough && self.finished;
                if !left && !peer.aborted {
                    assert!(peer.finished || is_absent, "the end of what goes on");
                    let all = peer.sent.is_read() || peer.anew;
                    assert!(all || gave_up, "the end before everything");
                }
            }
            Outcome::Message(Err(reason)) => self.on_error(reason, gone || is_absent),
            Outcome::Bytes(Err(error)) => {
                let reason = error
                    .get_ref()
                    .and_then(|e| e.downcast_ref::<CloseReason>());
                self.on_error(*reason.expect("a reason"), gone || is_absent);
            }
            Outcome::Datagram(Ok(Some(datagram))) => {
                let sent = peer.sent.datagrams.contains(&datagram[..]);
                assert!(sent, "a datagram that nobody sent");
            }
            Outcome::Datagram(Ok(None)) => {
                let left = self.closed || self.aborted || rough && self.finished;
                let ended = left || peer.finished || is_absent;
                assert!(ended, "the end of what goes on");
            }
            Outcome::Datagram(Err(reason)) => {
                assert!(
                    self.closed || gone || is_absent,
                    "cannot read datagrams: {reason}"
                );
            }
            Outcome::Ready(ready) => {
                assert!(
                    ready.is_ok() || gone || is_absent || self.closed,
                    "{ready:?}"
                );
            }
            Outcome::Finished(finished) | Outcome::Closed(finished) => {
                // A peer without memory for the rest of a message cannot take it within the linger time.
                let starved = finished == Err(CloseReason::LingerExpired)
                    && peer
                        .connection
                        .as_ref()
                        .is_some_and(|c| c.stats().dropped_no_memory > 0);
                let gone = gone || is_absent || starved;
                assert!(finished.is_ok() || gone, "not delivered: {finished:?}");
                coverage.delivered += u64::from(finished.is_ok());
            }
            Outcome::Flushed => {}
        }
        moves
    }

    fn on_error(&mut self, reason: CloseReason, gone: bool) {
        self.end_read.get_or_insert(Err(reason));
        assert!(self.closed || gone, "cannot read: {reason}");
    }

    /// Reads whatever comes, but for datagrams if no task does: those may keep the last of the budget, and yet what
    /// was accepted arrives, and the end of it.
    pub(crate) fn read_everything(&mut self) {
        self.reads = 1000;
    }

    /// [Reads everything](Self::read_everything). The buffers that messages are joined in may be missing for ever if
    /// every slab of a small pool holds one of their own segments, so these are not asked for.
    pub(crate) fn calm_down(&mut self) {
        self.read_everything();
        self.joins = 0;
        for task in &mut self.tasks {
            if task.role == Role::Reader && !self.usage.stream {
                task.cancel();
            }
        }
    }

    /// Ends sending, one way or another.
    pub(crate) fn finish(&mut self, random: &mut Random) {
        let Some(connection) = &self.connection else {
            return;
        };
        self.finished = true;
        // What waits to be written would find the end.
        match &self.halves {
            Some(halves) if random.chance(500) => {
                let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
                let shut = halves.with_writer(|writer| writer.poll_shutdown(&mut cx));
                assert!(matches!(shut, std::task::Poll::Ready(Ok(()))));
            }
            _ => {
                let mut finish = Task::new(Role::Waiter);
                let outcome = finish.start(task::finish(connection.clone()));
                drop(outcome);
            }
        }
    }

    pub(crate) fn close(&mut self) {
        if let Some(connection) = &self.connection {
            self.finished = true;
            self.closed = true;
            let mut close = Task::new(Role::Waiter);
            drop(close.start(task::close(connection.clone())));
        }
    }

    pub(crate) fn abort(&mut self) {
        if let Some(connection) = &self.connection {
            self.aborted = true;
            self.finished = true;
            connection.abort();
        }
    }

    /// Drops all handles, in any order.
    pub(crate) fn drop_handles(&mut self, random: &mut Random) {
        self.finished = true;
        self.closed = true;
        if random.chance(500) {
            self.connection = None;
            self.tasks.clear();
            self.halves = None;
        } else {
            self.halves = None;
            self.tasks.reverse();
            self.tasks.clear();
            self.connection = None;
        }
    }
}

fn stream_byte(at: u64) -> u8 {
    (at ^ (at >> 8) ^ (at >> 13)) as u8
}

impl fmt::Debug for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tasks = self.tasks.iter();
        let waiting = tasks.filter(|task| task.is_waiting());
        f.debug_struct("End")
            .field("connection", &self.connection)
            .field("stats", &self.connection.as_ref().map(Connection::stats))
            .field("messages", &self.sent.messages.len())
            .field("bytes", &self.sent.bytes.len())
            .field(
                "waiting",
                &waiting.map(|task| task.role).collect::<Vec<_>>(),
            )
            .field("finished", &self.finished)
            .field("gave_up", &self.gave_up)
            .field("closed", &self.closed)
            .field("aborted", &self.aborted)
            .field("end_read", &self.end_read)
            .finish_non_exhaustive()
    }
}
