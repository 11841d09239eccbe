//! [`Session`]: one end of a session, without socket or clock.
//!
//! | module | what |
//! |---|---|
//! | `application` | what the application does: send and receive |
//! | `check`, `input` | whether a datagram can be the peer's, and then what it does |
//! | `output` | what is to be sent, laid out for as few calls to the kernel as possible |
//! | `close` | how a session ends |
//! | `restart` | how a peer is recognised that has begun anew, and lacks what the one before had |
//! | `timers` | when a session has to be called, and what it does then |
//! | `receive` | what was received and not yet read, and the memory promised for it |
//! | `train` | how fast segments arrive, which says how large a window is useful |
//! | `send`, `blocks` | segments queued or in flight, and their memory |
//! | `recovery`, `losses`, `congestion` | what is lost, and how much may be in flight |
//! | `peer_window` | how much the peer has room for |
//! | `undo` | when it turns out that nothing was lost |
//! | `datagrams` | unreliable datagrams |
//! | `ack` | acknowledgements that are owed |
//! | `counts` | the session's counters |
//! | `sn` | sequence numbers, and the rings they index |

mod ack;
mod application;
mod blocks;
mod check;
mod close;
mod congestion;
mod counts;
mod datagrams;
mod input;
mod losses;
mod output;
mod peer_window;
mod receive;
mod recovery;
mod restart;
mod send;
mod sn;
mod timers;
mod train;
mod undo;

pub(super) use close::{REMINDER_INTERVAL, needs_reminder, not_known};
pub use output::Outgoing;

use super::budget::MemoryBudget;
use super::config::{DEFAULT_WINDOW, SessionConfig};
use super::context::Context;
use super::error::OpenError;
use super::stats::SessionStats;
use super::time::Time;
use crate::packet::PacketPool;
use ack::Acks;
use blocks::Blocks;
use close::{Finish, Phase};
use congestion::{Control, Pacer};
use core::fmt;
use core::num::NonZeroU64;
use core::time::Duration;
use counts::Counts;
use datagrams::Datagrams;
use receive::ReceiveQueue;
use recovery::Recovery;
use send::SendQueue;
use std::sync::Arc;
use undo::Undo;

/// The most segments of a message, whatever the windows: some implementations take the number 255 for -1.
pub(super) const MAX_FRAGMENTS: u32 = 255;

/// One end of a session: the protocol without socket or clock.
///
/// The caller passes in what arrived ([`handle_datagram`](Self::handle_datagram)), what to send
/// ([`send`](Self::send), [`write`](Self::write)) and the time. The session returns what to put on the wire
/// ([`poll_transmit`](Self::poll_transmit)), what arrived in order ([`recv`](Self::recv)) and when it has to be
/// called next ([`poll_timeout`](Self::poll_timeout), which has an example of the loop, and
/// [`handle_timeout`](Self::handle_timeout)). It is deterministic: the same calls give the same answers.
///
/// Segments are packets of a pool. After warm-up a session makes no heap allocation: its rings grow to the windows
/// that the traffic uses, and stay until the session is idle. Dropping it gives all its memory back.
///
/// # What it adds to KCP on the wire
///
/// Nothing that another implementation would notice:
///
/// - A WASK carries a random `ts`, the token, and a WINS echoes it. The `frg` of both is 1; that of a server's
///   WINS is 2 until the address is proved, and 3 then. In this way two ends recognise each other, prove their
///   addresses, and notice if both are servers.
/// - The `sn` of a WINS, which means nothing in KCP, says how large the window can become; that of a WASK, from where
///   on the peer has acknowledged nothing. So a question of an old session does not begin a new one.
/// - An empty PUSH numbered before the first, with the token as its `ts`, asks for the proof of an address: every KCP
///   acknowledges it as a duplicate.
/// - A WASK may tell a peer with nothing in flight a smaller window than before: an idle session asks for its
///   memory back.
/// - Only between two ends of this library: a segment of command 85 closes the session, or resets it if its `frg`
///   is 1. That is also how an endpoint answers a WASK of a session that it does not know. A PUSH whose `frg` is
///   255 marks the [end](Self::finish) of what is sent. Unreliable [datagrams](Self::send_datagram) are segments
///   of command 86.
/// - A server short of room for peers that have not proved their address answers a WASK by a cookie, command 87,
///   which the client sends along with its next attempt. Other implementations ignore it.
///
/// ```
/// use slab_net::PacketPool;
/// use slab_net::rudp::{MemoryBudget, Session, SessionConfig, Side, Time};
///
/// let pool = PacketPool::builder().max_memory(8 << 20).build()?;
/// let budget = MemoryBudget::new(8 << 20);
/// let config = SessionConfig::fast();
/// let now = Time::ZERO;
/// let mut here = Session::open(7, &config, Side::Client, &pool, &budget, 1, now).unwrap();
/// let mut there = Session::open(7, &config, Side::Server, &pool, &budget, 2, now).unwrap();
///
/// here.send(pool.try_copy_from_slice(b"hello")?)?;
/// let mut scratch = [0; 2048];
/// while let Some(outgoing) = here.poll_transmit(now, &mut scratch, 1) {
///     let datagram = pool.try_copy_from_slice(outgoing.contents())?;
///     there.handle_datagram(now, datagram)?;
/// }
/// assert_eq!(there.recv().unwrap(), b"hello"[..]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Session {
    conv: u32,
    side: Side,
    context: Arc<Context>,
    now: Time,
    send: SendQueue,
    receive: ReceiveQueue,
    recovery: Recovery,
    control: Control,
    pacer: Pacer,
    /// Segments a microsecond, if sending is paced. Short, as there are many sessions.
    rate: Option<f32>,
    acks: Acks,
    peer: Peer,
    path: Path,
    /// Added to the clock to make a `ts`.
    ts_offset: u32,
    /// The `ts` of our WASKs, which proves that the peer has received one.
    token: u32,
    /// A WASK has to be sent.
    send_wask: bool,
    /// A WINS has to be sent.
    send_wins: bool,
    /// A close notice has to be sent.
    send_close_notice: bool,
    /// The peer has to be told that we take nothing any more.
    send_not_receiving: bool,
    /// The peer had not acknowledged everything when the session ended.
    undelivered: bool,
    /// The last transmission whose loss the last reduction of the congestion window already covers.
    reduced_at: u64,
    undo: Undo,
    /// When something new was last acknowledged.
    progress_at: Time,
    /// When the next segment is taken for lost unless something arrives.
    loss_at: Option<Time>,
    /// A tail-loss probe was made, and nothing was acknowledged since.
    tail_probed: bool,
    /// When to ask for the peer's window again, and how many milliseconds to wait after that.
    probe: Option<(Time, u32)>,
    /// Set while a message fills the window. Boxed, as few sessions need it.
    message_wait: Option<Box<MessageWait>>,
    keepalive_at: Time,
    last_received: Time,
    phase: Phase,
    finish: Finish,
    /// Has the peer closed the session, and only delivers what is left? Here, where it takes no more memory.
    peer_takes_nothing: bool,
    datagrams: Option<Box<Datagrams>>,
    /// Was the last thing paced a datagram?
    last_paced_was_datagram: bool,
    /// The cookie that the server wants to see before it opens a session.
    cookie: Option<NonZeroU64>,
    stats: Counts,
    /// Was there no memory for what was last to be sent, while something is still in flight?
    lacks_send_memory: bool,
}

/// Which end opened the session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    /// This end did: whatever arrives comes from an address that it chose.
    Client,
    /// The peer did, from an address that may be forged. Until the peer has proved that it receives there, this end
    /// sends at most three times the bytes received, queues for sending no more memory than its window reserves,
    /// and keeps the receive window at 32 segments at most. It asks for the proof with its first answer, in a way
    /// that every implementation answers; a longer message waits for the proof.
    Server,
}

#[derive(Debug, Default)]
struct Peer {
    /// The peer has said that it has every segment before this one.
    latest_una: u32,
    /// Since when it says that it has something: in milliseconds, which may wrap. 0 if it never has.
    has_some_since: u32,
    /// It had no window when everything before this one had been sent. Its `una` may be behind what it has of that until
    /// its reader goes on. One that has begun anew never comes as far: it lacks what had filled the window.
    held_back_until: u32,
    /// The first segment beyond its window.
    window_edge: u32,
    /// The first segment beyond our window, as the peer was last told.
    advertised_edge: u32,
    /// The most segments of a message that it accepts, as far as is known: the largest window it has told, or the one
    /// assumed before that, if the first was so much less as may be unread; or what a peer that runs this library says
    /// in a WINS.
    largest_window: u32,
    /// Has it told its window? Every segment does.
    has_told_window: bool,
    /// Has it told its window by a WINS?
    has_sent_wins: bool,
    /// When the last WASK was sent, and after how many microseconds it was answered; 0 if it never was.
    wask_sent_at: Option<Time>,
    wask_rtt_micros: u32,
    /// Has nothing come yet that can be the answer to that WASK?
    wask_unanswered: bool,
    /// Has it asked for our window, and sent no PUSH or datagram since?
    asked_since_data: bool,
    /// The `ts` of its last WASK, which our WINS and close notices carry.
    token: u32,
    /// Has it sent a WASK as this library does? Then it understands close notices, and believes those with its token.
    has_token: bool,
    /// Has it answered a WASK as only this library does?
    is_ours: bool,
    /// Did its last WINS look like this library's, proved or not?
    seems_ours: bool,
    /// Has it still to see the proof that our address is ours? Until then it may send little, and has to be asked.
    doubts_our_address: bool,
}

impl Peer {
    /// Is it settled whether the peer runs this library? A WINS unlike this library's settles that it does not; one
    /// that looks like this library's settles nothing until it carries our token.
    fn is_known(&self) -> bool {
        self.is_ours || self.is_foreign()
    }

    /// Would it understand what KCP does not have, a close for example, and believe that it comes from this end?
    fn believes_us(&self) -> bool {
        self.is_ours && self.has_token
    }

    fn is_foreign(&self) -> bool {
        self.has_sent_wins && !self.is_ours && !self.seems_ours
    }
}

/// A message fills the window, and cannot be read before there is room for the rest of it.
#[derive(Debug, Clone, Copy)]
struct MessageWait {
    since: Time,
    /// When to try again to grow the window.
    retry_at: Time,
}

/// How far the peer's address can be trusted.
#[derive(Debug, Default)]
struct Path {
    validated: bool,
    /// Since when something waits for an unproved address, to be sent or to be acknowledged: in milliseconds, which
    /// may wrap. 0 if nothing does.
    unanswered_since: u32,
    /// Bytes that may be sent to an unproved address: three times those received, less those sent.
    allowance: i32,
    /// Bytes on the wire around each datagram sent.
    sent_overhead: u8,
    /// Bytes on the wire around each datagram received.
    received_overhead: u8,
}

impl Path {
    fn earn(&mut self, received: usize) {
        let received = received.saturating_add(self.received_overhead.into());
        let earned = received.saturating_mul(3).try_into();
        self.allowance = self.allowance.saturating_add(earned.unwrap_or(i32::MAX));
    }

    fn spend(&mut self, sent: usize, datagrams: usize) {
        let spent = sent.saturating_add(datagrams.saturating_mul(self.sent_overhead.into()));
        let spent = spent.try_into().unwrap_or(i32::MAX);
        self.allowance = self.allowance.saturating_sub(spent);
    }
}

impl Session {
    /// Opens one end of a session. Both ends use the same `conv`. `random` has to be unpredictable: an attacker who
    /// knows it can pretend to receive at an address that he does not have.
    ///
    /// # Errors
    /// The configuration is not [valid](SessionConfig::validate), the pool has no size class for a segment, or the
    /// budget has not enough left for the smallest window.
    pub fn open(
        conv: u32,
        config: &SessionConfig,
        side: Side,
        pool: &PacketPool,
        budget: &MemoryBudget,
        random: u64,
        now: Time,
    ) -> Result<Self, OpenError> {
        Self::open_at(conv, config, side, pool, budget, random, now, (0, 0))
    }

    /// As [`open`](Self::open), with other first sequence numbers than KCP's 0: for tests of their wrapping.
    #[doc(hidden)]
    #[expect(clippy::too_many_arguments, reason = "a test's way in")]
    pub fn open_at(
        conv: u32,
        config: &SessionConfig,
        side: Side,
        pool: &PacketPool,
        budget: &MemoryBudget,
        random: u64,
        now: Time,
        first: (u32, u32),
    ) -> Result<Self, OpenError> {
        let context = Context::new(*config, pool.clone(), budget.clone());
        Self::open_in(Arc::new(context), conv, side, random, now, first)
    }

    pub(super) fn open_in(
        context: Arc<Context>,
        conv: u32,
        side: Side,
        random: u64,
        now: Time,
        (first_sent, first_received): (u32, u32),
    ) -> Result<Self, OpenError> {
        let Context {
            config,
            pool,
            budget,
            ..
        } = &*context;
        config.validate()?;
        let mut receive = ReceiveQueue::new(
            first_received,
            (DEFAULT_WINDOW, config.recv_window),
            slot_bytes(config, pool)?,
            budget.account(),
        )
        .ok_or(OpenError::NoMemory)?;
        receive.set_may_grow(side == Side::Client);
        let first_window = receive.window();
        let mut blocks = Blocks::new(budget.account_to_send());
        if side == Side::Server {
            blocks.set_limit(receive.reserved() as u32);
        }
        // Segments not yet sent wait here, but few enough to stay in the processor's cache until they are.
        let limit = (config.send_window + config.send_window / 2).max(MAX_FRAGMENTS + 1);
        Ok(Self {
            conv,
            side,
            now,
            send: SendQueue::new(first_sent, limit, blocks),
            receive,
            recovery: Recovery::new(config),
            control: Control::new(config.congestion),
            pacer: Pacer::new(now),
            rate: None,
            acks: Acks::new(config.ack_delay(), config.recv_window),
            peer: Peer {
                latest_una: first_sent,
                held_back_until: first_sent,
                window_edge: first_sent.wrapping_add(DEFAULT_WINDOW),
                advertised_edge: first_received.wrapping_add(first_window),
                largest_window: DEFAULT_WINDOW,
                ..Peer::default()
            },
            path: Path {
                validated: side == Side::Client,
                ..Path::default()
            },
            ts_offset: random as u32,
            // Never 0: that is what other implementations answer with.
            token: ((random >> 32) as u32).max(1),
            send_wask: true,
            send_wins: false,
            send_close_notice: false,
            send_not_receiving: false,
            undelivered: false,
            reduced_at: 0,
            undo: Undo::Never,
            progress_at: now,
            loss_at: None,
            tail_probed: false,
            probe: None,
            message_wait: None,
            keepalive_at: now + config.keepalive,
            last_received: now,
            phase: Phase::Open,
            finish: Finish::No,
            peer_takes_nothing: false,
            context,
            datagrams: None,
            last_paced_was_datagram: false,
            cookie: None,
            stats: Counts::default(),
            lacks_send_memory: false,
        })
    }

    /// What a session reserves when it opens: its smallest window.
    pub(in super::super) fn opening_bytes(
        config: &SessionConfig,
        pool: &PacketPool,
    ) -> Result<usize, OpenError> {
        config.validate()?;
        let window = DEFAULT_WINDOW.min(config.recv_window);
        Ok(receive::reservation(window, slot_bytes(config, pool)?))
    }

    /// Returns the conversation number.
    #[must_use]
    pub fn conv(&self) -> u32 {
        self.conv
    }

    /// Has the peer told our window again if half of it has become free, or if the peer may send nothing more and
    /// everything that can be read has been read.
    fn schedule_window_update(&mut self) {
        let edge = self.edge();
        let gained = sn::diff(edge, self.peer.advertised_edge);
        let left = sn::diff(self.peer.advertised_edge, self.receive.next());
        let half = (self.receive.window() / 2).max(1) as i32;
        if gained >= half || (gained > 0 && left <= 0 && self.receive.complete() == 0) {
            self.send_wins = true;
        }
    }

    /// The first segment beyond our window.
    fn edge(&self) -> u32 {
        self.receive.next().wrapping_add(self.window())
    }

    /// The window to tell the peer: what is free, as far as the wire can express it.
    fn window(&self) -> u32 {
        self.receive.advertised().min(u16::MAX.into())
    }

    /// Returns `true` if the peer has proved that it receives at its address. A [`Side::Client`] chose that
    /// address, and needs no proof.
    ///
    /// ```
    /// # use slab_net::PacketPool;
    /// # use slab_net::rudp::{MemoryBudget, Session, SessionConfig, Side, Time};
    /// # let pool = PacketPool::builder().max_memory(8 << 20).build()?;
    /// # let budget = MemoryBudget::new(8 << 20);
    /// # let open = |side| Session::open(7, &SessionConfig::fast(), side, &pool, &budget, 1 << 32, Time::ZERO);
    /// # let [mut here, mut there] = [open(Side::Client).unwrap(), open(Side::Server).unwrap()];
    /// # let talk = |from: &mut Session, to: &mut Session| {
    /// #     let mut scratch = [0; 2048];
    /// #     while let Some(outgoing) = from.poll_transmit(Time::ZERO, &mut scratch, 1) {
    /// #         to.handle_datagram(Time::ZERO, pool.copy_from_slice(outgoing.contents())).unwrap();
    /// #     }
    /// # };
    /// here.send_slice(b"hello")?;
    /// talk(&mut here, &mut there);
    /// assert!(!there.is_validated(), "the address may be forged");
    /// talk(&mut there, &mut here);
    /// talk(&mut here, &mut there);
    /// assert!(there.is_validated() && there.is_peer_ours() && there.is_peer_window_known());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn is_validated(&self) -> bool {
        self.path.validated
    }

    /// Returns `true` if the peer has answered a question for its window. Until then a message has at most 32
    /// segments, or as many as the window that its other segments tell.
    #[must_use]
    pub fn is_peer_window_known(&self) -> bool {
        self.peer.is_known()
    }

    /// Is it settled what the peer runs and, if that is this library, can it be sent what only this library sends?
    pub(in super::super) fn is_acquainted(&self) -> bool {
        self.peer.is_foreign() || self.peer.believes_us()
    }

    /// Treats the peer's address as proved, which lifts the limits of a [`Side::Server`].
    pub(in super::super) fn trust_address(&mut self) {
        self.path.validated = true;
        self.receive.set_may_grow(true);
        self.send.blocks.set_limit(u32::MAX);
        self.send_wask |= self.peer.wask_sent_at.is_none();
        self.grow_for_message();
    }

    /// Counts what the endpoint adds to each datagram that it sends, and what it takes off each that it receives, in
    /// bytes, in what may be sent to an unproved address.
    pub(in super::super) fn set_overhead(&mut self, sent: u8, received: u8) {
        self.path.sent_overhead = sent;
        self.path.received_overhead = received;
    }

    /// Returns `true` if the peer runs this library. Known after a round trip.
    #[must_use]
    pub fn is_peer_ours(&self) -> bool {
        self.peer.is_ours
    }

    /// Returns the smoothed round-trip time, or `None` before the first sample.
    #[must_use]
    pub fn rtt(&self) -> Option<Duration> {
        self.recovery.srtt()
    }

    /// Returns the bytes of pool memory reserved for the session: what it holds, and what its window promises.
    #[must_use]
    pub fn reserved_bytes(&self) -> usize {
        self.receive.reserved() + self.send.blocks.reserved() + self.datagram_bytes()
    }

    /// Returns the bytes of pool memory that the session keeps in use at most. Where the pool has no chunk for the
    /// segment that a reader waits for, a larger one takes it: up to 64 KiB of that do not count.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.receive.charged() + self.send.blocks.reserved() + self.datagram_bytes()
    }

    fn datagram_bytes(&self) -> usize {
        self.datagrams.as_deref().map_or(0, Datagrams::bytes)
    }

    /// Returns the session's counters so far.
    #[must_use]
    pub fn stats(&self) -> SessionStats {
        self.stats
            .snapshot(&self.receive, self.datagrams.as_deref())
    }

    /// Advances the clock, which never goes back.
    fn advance(&mut self, now: Time) {
        let before = self.now;
        self.now = before.max(now);
        // With nothing in flight there is no memory to wait for.
        self.lacks_send_memory &= !self.send.is_empty();
        if self.lacks_send_memory {
            let waited = now.since(before);
            self.context.measures.blocked_sending(waited);
        }
    }

    /// The time in milliseconds, which wrap and are never 0.
    fn millis(&self) -> u32 {
        ((self.now.as_micros() / 1000) as u32).max(1)
    }

    /// The `ts` of a segment sent now.
    fn ts(&self) -> u32 {
        (self.now.as_micros() as u32).wrapping_add(self.ts_offset)
    }
}

/// The size of the chunk that the longest segment received takes, in bytes.
fn slot_bytes(config: &SessionConfig, pool: &PacketPool) -> Result<usize, OpenError> {
    let classes = pool.slab().size_classes();
    let room = pool.room();
    let slot = config.max_segment() + room;
    // A segment to be sent lies in a chunk with its header.
    let (needed, largest) = (slot.max(config.mtu + room), classes.largest());
    let bytes = classes.round_up(slot).filter(|_| needed <= largest);
    bytes.ok_or(OpenError::NoSegmentClass { needed, largest })
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("conv", &self.conv)
            .field("phase", &self.phase)
            .field("outstanding", &self.send.outstanding())
            .field("queued", &self.send.queued())
            .field("unread", &self.receive.readable())
            .field("rtt", &self.rtt())
            .finish_non_exhaustive()
    }
}
