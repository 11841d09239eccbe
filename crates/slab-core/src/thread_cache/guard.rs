//! The asymmetric guard: lets another thread take what lies in a thread's magazine, at the price
//! of one plain store for the owner.
//!
//! It is Dekker's mutual exclusion with the fences moved to one side (as in Dice, Huang and Yang,
//! "Asymmetric Dekker synchronization", 2001; the kernel's `membarrier(2)` names the same use).
//! The owner says what it is about to do, then looks at the gate; a taker shuts the gate, then looks
//! at what the owner says. At least one of them must see the other. That needs a
//! store-load barrier on both sides; the owner's is only a compiler fence, because the taker's
//! `membarrier` system call makes every running thread of the process execute a real one.
//!
//! What the guard keeps is the length of a stack, as two words: `puts` counts up with each thing put
//! on it, `takes` counts *down* with each taken off, so that `length = puts + takes`, modulo 2^64.
//! There are two because a load soon after a store to the same word has to wait for it (but see
//! `ARCHITECTURE.md`): with one word for the length, each operation waits for the one before it; with two a
//! put does not wait for a take.
//!
//! **Only the owner ever writes them.** To announce that it is inside, the owner copies the word that it
//! is about to replace to `intent`; storing the new word, which differs, ends that:
//!
//! `the owner is inside <=> intent = INSIDE or intent = puts or intent = takes`
//!
//! As one counts up from near zero and the other down from near 2^64, neither is ever taken for the
//! other.
//!
//! So leaving costs no store of its own. A taker does not write the words, and so cannot set the length
//! to zero: it leaves [`TAKEN`] up, which says that the contents are gone, until the owner comes by on its
//! slow path and sets it. (If takers wrote the words, the owner could read them, be preempted while
//! somebody takes and leaves, and then act on what it had read.)
//!
//! The gate costs no branch of its own either: it is compared with what the owner has to compare
//! anyway. `gate` is zero while open and above every length otherwise, so that a length *above the
//! gate* means both "not empty" and "open"; `ceiling` is the capacity while open and zero otherwise.
//!
//! Each magazine has its own guard, in the cache line that its owner writes anyway, and a taker
//! disturbs only the classes that it takes from.
//!
//! Where the system call is missing, the gate of every guard carries [`FENCED`] for ever: the
//! owner never passes on the fast path and goes through [`enter_slow`](Guard::enter_slow), which
//! has a real fence. Slower, never wrong.

use crate::sync::{
    AtomicU8, AtomicU16, AtomicU32, AtomicU64, Backoff, Ordering, barrier_is_asymmetric, fence,
    light_barrier,
};

/// Somebody is about to take the contents; temporary, under the lock of the gates.
pub(crate) const SHUT: u32 = 1 << 8;
/// The contents are gone; the owner has not noticed yet.
pub(crate) const TAKEN: u32 = 1 << 9;
/// There is no asymmetric barrier: the owner has to fence.
pub(crate) const FENCED: u32 = 1 << 10;
/// The pool's last handle is gone; for ever.
pub(crate) const CLOSED: u32 = 1 << 11;
/// Somebody waits for memory (see `wait`): magazines must not keep what is freed.
pub(crate) const PRESSURE: u32 = 1 << 12;
/// The pool has to look after each chunk that is allocated or freed; for ever.
pub(crate) const SCRUB: u32 = 1 << 13;

/// Values of `intent` that neither word ever has: `takes` begins lower.
const OUTSIDE: u64 = u64::MAX;
const INSIDE: u64 = u64::MAX - 1;
/// The first value of `puts`, and the negative of that of `takes`. It is above any length, so that `takes`
/// stays below [`INSIDE`] even if a whole stack comes in by [`set_len`](Guard::set_len), which counts no
/// puts.
pub(crate) const FIRST_PUT: u64 = 1 << 8;

/// All zero it lets nobody pass on the fast paths, and is nobody's: see [`open`](Self::open).
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Guard {
    puts: AtomicU64,
    takes: AtomicU64,
    intent: AtomicU64,
    gate: AtomicU32,
    ceiling: AtomicU16,
    /// Written by the owner alone, when it [opens](Guard::open).
    capacity: AtomicU8,
    /// Where the owner exchanges batches. Here because here is room. As the capacity.
    lane: AtomicU8,
}

/// The owner has announced that it will put or take: the word that says so, and the length.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entered {
    word: u64,
    len: usize,
}

impl Entered {
    #[inline(always)]
    pub(crate) fn len(self) -> usize {
        self.len
    }
}

/// Modulo 2^64.
#[inline(always)]
fn length(puts: u64, takes: u64) -> usize {
    puts.wrapping_add(takes) as usize
}

impl Guard {
    /// Begins anew: empty, with nobody inside, and shut for these reasons. For the owner, while nobody else has the
    /// guard: relaxed, because others get it from the owner.
    pub(crate) fn open(&self, capacity: u8, lane: u8, reasons: u32) {
        self.puts.store(FIRST_PUT, Ordering::Relaxed);
        self.takes
            .store(FIRST_PUT.wrapping_neg(), Ordering::Relaxed);
        self.intent.store(OUTSIDE, Ordering::Relaxed);
        self.capacity.store(capacity, Ordering::Relaxed);
        self.lane.store(lane, Ordering::Relaxed);
        let fenced = if barrier_is_asymmetric() { 0 } else { FENCED };
        self.set_gate(fenced | reasons);
    }

    /// The puts so far (without what came by [`set_len`](Self::set_len)), and the length. Read by others
    /// while the owner goes on, the length is never less than at some moment of the call, and never above
    /// the capacity.
    #[inline(always)]
    pub(crate) fn puts_and_len(&self) -> (u64, usize) {
        // In this order: puts in between make the length larger, where takes would make it negative.
        let takes = self.takes.load(Ordering::Acquire);
        let puts = self.puts.load(Ordering::Relaxed);
        (puts - FIRST_PUT, length(puts, takes).min(self.capacity()))
    }

    /// How many chunks fit, whether the gate is open or not.
    #[inline(always)]
    pub(crate) fn capacity(&self) -> usize {
        self.capacity.load(Ordering::Relaxed).into()
    }

    /// The lane of the depot in which the owner exchanges batches.
    pub(crate) fn lane(&self) -> u8 {
        self.lane.load(Ordering::Relaxed)
    }

    /// The owner's way in on the fast path, to take something off: it may [`take`](Self::take) if it then
    /// finds the gate open, by [`is_above_gate`](Self::is_above_gate). Otherwise it has to
    /// [`back_out`](Self::back_out).
    #[inline(always)]
    pub(crate) fn enter_to_take(&self) -> Entered {
        let (puts, takes) = self.own_words();
        self.announce(takes);
        Entered {
            word: takes,
            len: length(puts, takes),
        }
    }

    /// As [`enter_to_take`](Self::enter_to_take), to [`put`](Self::put) something on, if
    /// [`is_below_ceiling`](Self::is_below_ceiling).
    #[inline(always)]
    pub(crate) fn enter_to_put(&self) -> Entered {
        let (puts, takes) = self.own_words();
        self.announce(puts);
        Entered {
            word: puts,
            len: length(puts, takes),
        }
    }

    /// For the owner, which alone writes them.
    #[inline(always)]
    fn own_words(&self) -> (u64, u64) {
        let (puts, takes) = (&self.puts, &self.takes);
        (puts.load(Ordering::Relaxed), takes.load(Ordering::Relaxed))
    }

    #[inline(always)]
    fn announce(&self, word: u64) {
        // Release: a taker that sees this sees these words or later ones.
        self.intent.store(word, Ordering::Release);
        light_barrier();
    }

    /// Is the gate open and the length not zero?
    #[inline(always)]
    pub(crate) fn is_above_gate(&self, entered: Entered) -> bool {
        // No length has more bits.
        entered.len as u32 > self.gate.load(Ordering::Relaxed)
    }

    /// Is the gate open, and a place below the capacity?
    #[inline(always)]
    pub(crate) fn is_below_ceiling(&self, place: u16) -> bool {
        place < self.ceiling.load(Ordering::Relaxed)
    }

    /// The owner has taken `count`, at least one, and leaves: this store ends what it announced. Release: for
    /// [`puts_and_len`](Self::puts_and_len). Takers need none, for the owner has only read inside.
    #[inline(always)]
    pub(crate) fn take(&self, entered: Entered, count: usize) {
        debug_assert!(count > 0 && self.takes.load(Ordering::Relaxed) == entered.word);
        self.takes
            .store(entered.word.wrapping_sub(count as u64), Ordering::Release);
    }

    /// As [`take`](Self::take), when the owner has put `count`. Release: a taker that sees it sees the slots that
    /// the owner wrote.
    #[inline(always)]
    pub(crate) fn put(&self, entered: Entered, count: usize) {
        debug_assert!(count > 0 && self.puts.load(Ordering::Relaxed) == entered.word);
        self.puts
            .store(entered.word + count as u64, Ordering::Release);
    }

    /// The owner leaves without having changed anything. Release: this store also ends, for a taker, what the owner
    /// did before on its fast path, which that taker may have waited for.
    #[cold]
    pub(crate) fn back_out(&self) {
        self.intent.store(OUTSIDE, Ordering::Release);
    }

    /// The owner's way in for any number of changes; correct on systems without `membarrier`, too.
    /// `false` if the gate is shut. After `true` the owner calls [`leave_slow`](Self::leave_slow) exactly
    /// once, and must not wait for a taker in between.
    pub(crate) fn enter_slow(&self) -> bool {
        self.intent.store(INSIDE, Ordering::Relaxed);
        // This bit never changes.
        if self.is_raised(FENCED) {
            fence(Ordering::SeqCst);
        } else {
            light_barrier();
        }
        if self.gate.load(Ordering::Relaxed) & !(FENCED | SCRUB) == 0 {
            return true;
        }
        self.back_out();
        false
    }

    /// The owner counts one put, after [`enter_slow`](Self::enter_slow). Relaxed: a taker waits for
    /// [`leave_slow`](Self::leave_slow), which brings it.
    pub(crate) fn put_slow(&self) {
        let puts = self.puts.load(Ordering::Relaxed);
        self.puts.store(puts + 1, Ordering::Relaxed);
    }

    /// The owner sets the length without counting puts; after [`enter_slow`](Self::enter_slow) or where
    /// there can be no taker. Release: for [`puts_and_len`](Self::puts_and_len).
    pub(crate) fn set_len(&self, len: usize) {
        debug_assert!(len <= self.capacity());
        let puts = self.puts.load(Ordering::Relaxed);
        self.takes
            .store((len as u64).wrapping_sub(puts), Ordering::Release);
    }

    /// Release: a taker that sees it sees all that the owner did inside.
    pub(crate) fn leave_slow(&self) {
        self.intent.store(OUTSIDE, Ordering::Release);
    }

    /// Shuts the gate for a reason. Under the lock of the gates, as all changes of one.
    ///
    /// The owner is kept out only after a `heavy_barrier` (one for all guards shut before it) and then
    /// [`wait_idle`](Self::wait_idle) on each guard.
    pub(crate) fn raise(&self, reason: u32) {
        self.set_gate(self.gate.load(Ordering::Relaxed) | reason);
    }

    /// Takes a reason back. The owner needs no order for that: it finds everything as it left it, whatever happened.
    pub(crate) fn lower(&self, reason: u32) {
        self.set_gate(self.gate.load(Ordering::Relaxed) & !reason);
    }

    fn set_gate(&self, gate: u32) {
        let ceiling = if gate == 0 { self.capacity() } else { 0 };
        // Release: who no longer finds it `TAKEN` sees the length that the owner set before.
        self.gate.store(gate, Ordering::Release);
        self.ceiling.store(ceiling as u16, Ordering::Relaxed);
    }

    /// Is the owner inside by [`enter_slow`](Self::enter_slow)? A hint for a thread that has not shut it.
    pub(crate) fn is_inside_slow(&self) -> bool {
        // Acquire: the length that is read next is not of a moment before the owner left. No model shows it:
        // nothing depends on a hint, and one that is too low makes a reclaimer miss a batch, as without this.
        self.intent.load(Ordering::Acquire) == INSIDE
    }

    /// Is the gate shut for this reason?
    pub(crate) fn is_raised(&self, reason: u32) -> bool {
        self.gate.load(Ordering::Acquire) & reason != 0
    }

    /// Waits until the owner is outside; it cannot come back in while the gate is shut, so from then on
    /// the words do not change.
    pub(crate) fn wait_idle(&self) {
        let mut backoff = Backoff::default();
        while !self.is_idle() {
            backoff.snooze();
        }
    }

    /// Is the owner outside?
    pub(crate) fn is_idle(&self) -> bool {
        // In this order: a thread that sees an intent also sees the words that it was made of. A later
        // value of `puts` brings the slots that were written before it; `takes` follows no write of a slot.
        let intent = self.intent.load(Ordering::Acquire);
        intent != INSIDE
            && intent != self.takes.load(Ordering::Relaxed)
            && intent != self.puts.load(Ordering::Acquire)
    }
}
