//! [`Session`]: one end of a session, without socket or clock.
//!
//! | module | what |
//! |---|---|
//! | `application` | sending and receiving, as the application does |
//! | `input` | what a datagram does: checked as a whole, then applied |
//! | `output` | what is to be sent, laid out for as few calls to the kernel as it takes |
//! | `close` | how it ends |
//! | `timers` | when it wants to be looked after, and what happens then |
//! | `receive` | what was received and not yet read, and the memory promised for it |
//! | `train` | how fast it comes, which says how large a window is of use |
//! | `send`, `blocks` | what is to be sent or on its way, and the memory it lies in |
//! | `recovery`, `congestion` | what is lost, and how much may be on its way |
//! | `datagrams` | what is sent once and in no order |
//! | `ack` | acknowledgements that are owed |
//! | `counts` | what happened so far |
//! | `sn` | sequence numbers, and the rings they index |

mod ack;
mod application;
mod blocks;
mod close;
mod congestion;
mod counts;
mod datagrams;
mod input;
mod output;
mod receive;
mod recovery;
mod send;
mod sn;
mod timers;
mod train;

pub use output::Outgoing;

use super::budget::MemoryBudget;
use super::config::{DEFAULT_WINDOW, SessionConfig};
use super::measures::Measures;
use super::stats::RudpStats;
use super::time::Time;
use crate::packet::PacketPool;
use ack::Acks;
use blocks::Blocks;
use close::{Finish, Phase};
use congestion::{Control, Pacer};
use core::fmt;
use core::num::{NonZeroU32, NonZeroU64};
use core::time::Duration;
use counts::Counts;
use datagrams::Datagrams;
use receive::ReceiveQueue;
use recovery::Recovery;
use send::SendQueue;
use std::sync::Arc;

/// A message has at most so many segments, whatever the windows: some implementations take the
/// number 255 for -1.
pub(super) const MAX_FRAGMENTS: u32 = 255;

/// One end of a session: the protocol without socket or clock.
///
/// It is told what arrived ([`handle_datagram`](Self::handle_datagram)), what to send
/// ([`send`](Self::send), [`write`](Self::write)) and the time; it says what goes out
/// ([`poll_transmit`](Self::poll_transmit)), what arrived in order ([`recv`](Self::recv)) and when
/// it wants to be called next ([`poll_timeout`](Self::poll_timeout),
/// [`handle_timeout`](Self::handle_timeout)). The same calls give the same answers.
///
/// Segments are packets of a pool. After warm-up it makes no heap allocation: its rings grow to the
/// windows that the traffic uses, and stay until it is idle. One that is dropped gives all its memory
/// back.
///
/// # What it adds to KCP on the wire
///
/// Nothing that another implementation would notice. A WASK carries a random `ts` here, and a WINS
/// the `ts` of the WASK that it answers; the `frg` of both is 1, that of a WINS to an address that is not
/// proved 2. A WASK to one who has nothing on its way may tell a smaller window than before: an idle session
/// asks its memory back. So two ends recognise each other, prove their addresses and may tell each other of a close (a segment of command 85, never
/// sent to others; one whose `frg` is 1 resets the session), and of the [end](Self::finish) of what they
/// send (a PUSH whose `frg` is 255). The `sn` of a WINS, which means nothing elsewhere, says how large the
/// window can become.
/// Unreliable [datagrams](Self::send_datagram) are segments of command 86. A server short of room for
/// peers that have not proved their address answers a WASK by a cookie, command 87, which the client
/// sends along with its next attempt; others pass it over.
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
    /// Shared by the sessions of an endpoint.
    config: Arc<SessionConfig>,
    pool: PacketPool,
    now: Time,
    send: SendQueue,
    receive: ReceiveQueue,
    recovery: Recovery,
    control: Control,
    pacer: Pacer,
    /// Segments a microsecond, if they are paced.
    rate: Option<f64>,
    acks: Acks,
    peer: Peer,
    path: Path,
    /// Added to the time to make a `ts`.
    ts_offset: u32,
    /// The `ts` of our WASKs.
    token: u32,
    /// A WASK is to be sent.
    ask: bool,
    /// A WINS is to be sent.
    tell: bool,
    /// A close notice is to be sent.
    notify: bool,
    /// The peer is to be told that we take nothing any more.
    deaf: bool,
    /// When it ended there was something that the peer had not acknowledged.
    undelivered: bool,
    /// The last transmission that a reduction of the congestion window answered for.
    reduced_at: u64,
    /// When a segment is found lost unless something arrives.
    loss_at: Option<Time>,
    /// The tail was sent again, and nothing was acknowledged since.
    tail_probed: bool,
    /// When to ask for the peer's window again, and how many milliseconds after that once more.
    probe: Option<(Time, NonZeroU32)>,
    /// Since when a message fills the window, and when that is to grow once more. Few sessions ever are.
    stuck: Option<Box<(Time, Time)>>,
    keepalive_at: Time,
    last_received: Time,
    phase: Phase,
    finish: Finish,
    datagrams: Option<Box<Datagrams>>,
    /// Was the last thing that was paced a datagram?
    datagram_went: bool,
    /// What the server wants to see before it opens a session, and has it to be sent?
    cookie: Option<NonZeroU64>,
    stats: Counts,
    /// Was there no memory for what was to be sent last, while some of it is on its way?
    starved: bool,
    /// Shared by the sessions of an endpoint.
    measures: Option<Arc<Measures>>,
}

/// Who opened the session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// This end did: whatever arrives comes from an address that it chose.
    Client,
    /// The peer did, from an address that may be forged: until it has proved that it receives
    /// there, at most three times the bytes received are sent to it, no more is taken for sending than
    /// has room in as much memory as its window, and the receive window does not grow beyond 32 segments.
    /// It is asked for the proof with the first answer, in a way that every
    /// implementation gives it, and a longer message waits for that.
    Server,
}

#[derive(Debug)]
struct Peer {
    /// It has told to have every segment before this one.
    has: u32,
    /// The first segment beyond its window.
    edge: u32,
    /// The first beyond ours, as it was last told.
    told_edge: u32,
    /// The most segments of a message that it takes, as far as is known: the largest window it has
    /// told, or what an end of this library says of itself.
    largest_window: u32,
    /// Has it told its window? Any segment does.
    told: bool,
    /// Has it told its window by a WINS?
    answered: bool,
    /// When the last WASK was sent, and how many microseconds its answer took; 0 if none came.
    asked_at: Option<Time>,
    answered_micros: u32,
    /// Has nothing come yet that can be the answer to that WASK?
    owes_answer: bool,
    /// Has it asked for our window, and sent nothing since?
    quiet: bool,
    /// The `ts` of its last WASK: what our WINS and our close notice carry.
    token: u32,
    has_token: bool,
    /// Has it answered a WASK as only this library does?
    is_ours: bool,
    /// Was its last answer like this library's, proved or not?
    seems_ours: bool,
    /// Has it yet to see that our address is ours? It can say little until then, and has to be asked.
    doubts: bool,
}

impl Peer {
    /// Is it settled whether the peer is ours? An answer that is not like ours settles it, too; one that is
    /// does not before it proves it.
    fn is_known(&self) -> bool {
        self.is_ours || self.is_foreign()
    }

    /// Would it understand that this end closes or has finished, and believe it?
    fn can_be_told(&self) -> bool {
        self.is_ours && self.has_token
    }

    fn is_foreign(&self) -> bool {
        self.answered && !self.is_ours && !self.seems_ours
    }
}

/// How far the peer's address can be trusted.
#[derive(Debug)]
struct Path {
    validated: bool,
    /// Since when there is something to be sent to an address that is not proved, or sent and not
    /// acknowledged: in milliseconds, which may wrap. 0 if there is nothing.
    unanswered_since: u32,
    /// Bytes that may be sent to an address that is not proved: three times what came, less what went.
    allowance: i32,
}

impl Path {
    fn earn(&mut self, received: usize) {
        let earned = received.saturating_mul(3).try_into();
        self.allowance = self.allowance.saturating_add(earned.unwrap_or(i32::MAX));
    }

    fn spend(&mut self, sent: usize) {
        let spent = sent.try_into().unwrap_or(i32::MAX);
        self.allowance = self.allowance.saturating_sub(spent);
    }
}

impl Session {
    /// Opens one end. Both ends use the same `conv`. `random` has to be unpredictable: an attacker
    /// who knows it can pretend to receive at an address that he does not have.
    ///
    /// `None` if the budget has nothing left for the smallest window.
    ///
    /// # Panics
    /// If the configuration is not [valid](SessionConfig::validate), or the pool has no size class
    /// for a segment.
    #[must_use]
    pub fn open(
        conv: u32,
        config: &SessionConfig,
        side: Side,
        pool: &PacketPool,
        budget: &MemoryBudget,
        random: u64,
        now: Time,
    ) -> Option<Self> {
        let config = Arc::new(*config);
        Self::open_shared(conv, config, side, pool, budget, random, now, (0, 0), None)
    }

    /// As [`open`](Self::open), with other first sequence numbers than KCP's 0: for tests of what
    /// happens when they wrap.
    #[doc(hidden)]
    #[must_use]
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
    ) -> Option<Self> {
        let config = Arc::new(*config);
        Self::open_shared(conv, config, side, pool, budget, random, now, first, None)
    }

    #[expect(clippy::too_many_arguments, reason = "as above")]
    pub(super) fn open_shared(
        conv: u32,
        config: Arc<SessionConfig>,
        side: Side,
        pool: &PacketPool,
        budget: &MemoryBudget,
        random: u64,
        now: Time,
        (first_sent, first_received): (u32, u32),
        measures: Option<Arc<Measures>>,
    ) -> Option<Self> {
        if let Err(error) = config.validate() {
            panic!("{error}");
        }
        let mut receive = ReceiveQueue::new(
            first_received,
            (DEFAULT_WINDOW, config.recv_window),
            slot_bytes(&config, pool),
            budget.account(),
        )?;
        receive.set_grows(side == Side::Client);
        let first_window = DEFAULT_WINDOW.min(receive.window());
        let mut blocks = Blocks::new(budget.account());
        if side == Side::Server {
            blocks.set_most(receive.reserved() as u32);
        }
        // What is not yet in flight waits here, but not so much that it leaves the processor's cache
        // before it is sent.
        let limit = (config.send_window + config.send_window / 2).max(MAX_FRAGMENTS + 1);
        Some(Self {
            conv,
            pool: pool.clone(),
            now,
            send: SendQueue::new(first_sent, limit, blocks),
            receive,
            recovery: Recovery::new(&config),
            control: Control::new(config.congestion),
            pacer: Pacer::new(now),
            rate: None,
            acks: Acks::new(config.ack_delay(), config.recv_window),
            peer: Peer {
                has: first_sent,
                edge: first_sent.wrapping_add(DEFAULT_WINDOW),
                told_edge: first_received.wrapping_add(first_window),
                largest_window: DEFAULT_WINDOW,
                told: false,
                answered: false,
                asked_at: None,
                answered_micros: 0,
                owes_answer: false,
                quiet: false,
                token: 0,
                has_token: false,
                is_ours: false,
                seems_ours: false,
                doubts: false,
            },
            path: Path {
                validated: side == Side::Client,
                unanswered_since: 0,
                allowance: 0,
            },
            ts_offset: random as u32,
            // Not what others answer with.
            token: ((random >> 32) as u32).max(1),
            ask: true,
            tell: false,
            notify: false,
            deaf: false,
            undelivered: false,
            reduced_at: 0,
            loss_at: None,
            tail_probed: false,
            probe: None,
            stuck: None,
            keepalive_at: now + config.keepalive,
            last_received: now,
            phase: Phase::Open,
            finish: Finish::No,
            config,
            datagrams: None,
            datagram_went: false,
            cookie: None,
            stats: Counts::default(),
            starved: false,
            measures,
        })
    }

    /// What a session reserves at most as long as its peer's address is not proved: its smallest window, and
    /// as much for what is sent; and what `more` segments would take.
    pub(in super::super) fn half_open_bytes(
        config: &SessionConfig,
        pool: &PacketPool,
        more: usize,
    ) -> usize {
        let window = DEFAULT_WINDOW.min(config.recv_window);
        let slot = slot_bytes(config, pool);
        2 * receive::reservation(window, slot) + more * slot
    }

    /// The conversation.
    #[must_use]
    pub fn conv(&self) -> u32 {
        self.conv
    }

    /// Has the peer to be told that there is room again? If half of the window is, or all that it
    /// may send is here and read as far as it can be.
    fn consider_telling(&mut self) {
        let edge = self.edge();
        let gained = sn::diff(edge, self.peer.told_edge);
        let left = sn::diff(self.peer.told_edge, self.receive.next());
        let half = (self.receive.window() / 2).max(1) as i32;
        if gained >= half || (gained > 0 && left <= 0 && self.receive.complete() == 0) {
            self.tell = true;
        }
    }

    /// The first segment beyond our window.
    fn edge(&self) -> u32 {
        self.receive.next().wrapping_add(self.window())
    }

    /// The window to tell: what is free, of what the wire can say.
    fn window(&self) -> u32 {
        self.receive.advertised().min(u16::MAX.into())
    }

    /// Has the peer proved that it receives at its address?
    #[must_use]
    pub fn is_validated(&self) -> bool {
        self.path.validated
    }

    /// Has anything come from the peer?
    #[must_use]
    pub fn has_heard(&self) -> bool {
        self.peer.told
    }

    /// Has the peer answered the question for its window? Until it has, messages of 32 segments are
    /// the longest, or of what it has told by the way.
    #[must_use]
    pub fn is_peer_window_known(&self) -> bool {
        self.peer.answered
    }

    /// The peer has proved its address otherwise: a [`Side::Server`] does without the proof.
    pub(in super::super) fn trust_address(&mut self) {
        self.path.validated = true;
        self.receive.set_grows(true);
        self.send.blocks.set_most(u32::MAX);
        self.ask |= self.peer.asked_at.is_none();
        self.unstick();
    }

    /// So many bytes will go to the peer that are not the session's.
    pub(in super::super) fn will_send(&mut self, bytes: usize) {
        self.path.spend(bytes);
    }

    /// Is the peer of this library? Known after a round trip.
    #[must_use]
    pub fn is_peer_ours(&self) -> bool {
        self.peer.is_ours
    }

    /// The smoothed round-trip time, once there is one.
    #[must_use]
    pub fn rtt(&self) -> Option<Duration> {
        self.recovery.srtt()
    }

    /// Bytes of pool memory that are reserved for it: what it holds, and what its window promises.
    #[must_use]
    pub fn reserved_bytes(&self) -> usize {
        self.receive.reserved() + self.send.blocks.reserved() + self.datagram_bytes()
    }

    /// Bytes of pool memory that it keeps in use, at most.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.receive.charged() + self.send.blocks.reserved() + self.datagram_bytes()
    }

    fn datagram_bytes(&self) -> usize {
        self.datagrams.as_deref().map_or(0, Datagrams::bytes)
    }

    /// What it did so far.
    #[must_use]
    pub fn stats(&self) -> RudpStats {
        self.stats
            .snapshot(&self.receive, self.datagrams.as_deref())
    }

    /// The clock never goes back.
    fn advance(&mut self, now: Time) {
        let before = self.now;
        self.now = before.max(now);
        // Who has nothing on its way waits for nothing of it.
        self.starved &= !self.send.is_empty();
        if self.starved {
            self.measure(|measures| measures.blocked_sending(now.since(before)));
        }
    }

    fn measure(&self, measure: impl FnOnce(&Measures)) {
        if let Some(measures) = &self.measures {
            measure(measures);
        }
    }

    /// Milliseconds, which wrap, and are never 0.
    fn millis(&self) -> u32 {
        ((self.now.as_micros() / 1000) as u32).max(1)
    }

    /// The `ts` of now.
    fn ts(&self) -> u32 {
        (self.now.as_micros() as u32).wrapping_add(self.ts_offset)
    }
}

/// The chunk that the longest segment takes, in bytes.
fn slot_bytes(config: &SessionConfig, pool: &PacketPool) -> usize {
    let classes = pool.slab().size_classes();
    let needed = config.max_segment() + pool.headroom() + pool.tailroom();
    match classes.class_for(needed) {
        Some(class) => classes.sizes()[class],
        None => panic!("no size class of the pool holds a segment of {needed} bytes"),
    }
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
