//! The asymmetric guard: lets another thread take what lies in a thread's magazine, at the price
//! of one plain store for the owner.
//!
//! It is Dekker's mutual exclusion with the fences moved to one side (as in Dice, Huang and Yang,
//! "Asymmetric Dekker synchronization", 2001; the kernel's `membarrier(2)` names the same use).
//! The owner says what it is about to do, then looks at the gate; whoever takes shuts the gate,
//! then looks at what the owner says. At least one of them must see the other. That needs a
//! store-load barrier on both sides; the owner's is only a compiler fence, because the taker's
//! `membarrier` system call makes every running thread of the process execute a real one.
//!
//! What the guard keeps is one word, the `state`, and whatever the state describes. **Only the
//! owner ever writes it.** To say that it is inside, the owner copies the state that it is about to
//! replace to `intent`; storing the new state, which differs, is what ends it:
//!
//! `the owner is inside <=> intent = INSIDE or intent = state`
//!
//! So leaving costs no store of its own. A taker cannot empty what it takes, since it does not
//! write the state: it leaves [`TAKEN`] up, which says that the contents are gone, until the owner
//! comes by on its slow path and writes so. (If takers wrote the state, the owner could read it,
//! lose the processor while somebody takes and goes, and then act on what it had read.)
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
    AtomicU32, AtomicU64, Backoff, Ordering, barrier_is_asymmetric, fence, light_barrier,
};

/// Somebody is about to take the contents; temporary, under the registry's lock.
pub(crate) const SHUT: u32 = 1 << 8;
/// The contents are gone; the owner has not noticed yet.
pub(crate) const TAKEN: u32 = 1 << 9;
/// There is no asymmetric barrier: the owner has to fence.
pub(crate) const FENCED: u32 = 1 << 10;
/// The pool's last handle is gone; for ever.
pub(crate) const CLOSED: u32 = 1 << 11;
/// Somebody waits for memory (see `wait`): what is freed is not to be hoarded.
pub(crate) const PRESSURE: u32 = 1 << 12;
/// The pool has something to do with each chunk that is allocated or freed; for ever.
pub(crate) const SCRUB: u32 = 1 << 13;

/// Intents that no state equals: its lowest byte is a length, and no length is that large.
const OUTSIDE: u64 = u64::MAX;
const INSIDE: u64 = u64::MAX - 1;

#[derive(Debug)]
#[repr(C)]
pub(crate) struct Guard {
    state: AtomicU64,
    intent: AtomicU64,
    gate: AtomicU32,
    ceiling: AtomicU32,
    capacity: u32,
}

impl Guard {
    pub(crate) fn new(capacity: u32) -> Self {
        let gate = if barrier_is_asymmetric() { 0 } else { FENCED };
        Self {
            state: AtomicU64::new(0),
            intent: AtomicU64::new(OUTSIDE),
            gate: AtomicU32::new(gate),
            ceiling: AtomicU32::new(if gate == 0 { capacity } else { 0 }),
            capacity,
        }
    }

    /// What the owner wrote last.
    #[inline(always)]
    pub(crate) fn state(&self) -> u64 {
        self.state.load(Ordering::Relaxed)
    }

    /// How many chunks fit, whether the gate is open or not.
    #[inline(always)]
    pub(crate) fn capacity(&self) -> usize {
        self.capacity as usize
    }

    /// The owner's way in on the fast path: returns the state, which the owner may replace by
    /// [`leave`](Self::leave) if it then finds the gate open, by [`is_above_gate`] or
    /// [`is_below_ceiling`]. Otherwise it has to [`back_out`](Self::back_out).
    ///
    /// [`is_above_gate`]: Self::is_above_gate
    /// [`is_below_ceiling`]: Self::is_below_ceiling
    #[inline(always)]
    pub(crate) fn enter(&self) -> u64 {
        let state = self.state();
        // Release: a taker that sees this sees no state before this one.
        self.intent.store(state, Ordering::Release);
        light_barrier();
        state
    }

    /// Is the gate open and the length not zero?
    #[inline(always)]
    pub(crate) fn is_above_gate(&self, len: usize) -> bool {
        len > self.gate.load(Ordering::Relaxed) as usize
    }

    /// Is the gate open and the length below the capacity?
    #[inline(always)]
    pub(crate) fn is_below_ceiling(&self, len: usize) -> bool {
        len < self.ceiling.load(Ordering::Relaxed) as usize
    }

    /// The owner leaves by storing a state that differs from the one it entered with. Release: a
    /// taker that sees it sees all that the owner did inside.
    #[inline(always)]
    pub(crate) fn leave(&self, state: u64) {
        debug_assert_ne!(state, self.state());
        self.state.store(state, Ordering::Release);
    }

    /// The owner leaves without having changed anything.
    #[cold]
    pub(crate) fn back_out(&self) {
        self.intent.store(OUTSIDE, Ordering::Release);
    }

    /// The way in for as many changes as the owner likes; right on systems without `membarrier`
    /// too. `false` if the gate is shut; after `true` comes exactly one
    /// [`leave_slow`](Self::leave_slow), and nothing in between may wait for a taker.
    pub(crate) fn enter_slow(&self) -> bool {
        self.intent.store(INSIDE, Ordering::Relaxed);
        // Never changes.
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

    /// The owner replaces the state, after [`enter_slow`](Self::enter_slow) or where no taker can
    /// be.
    pub(crate) fn set_state(&self, state: u64) {
        self.state.store(state, Ordering::Relaxed);
    }

    /// Release: a taker that sees it sees all that the owner did inside.
    pub(crate) fn leave_slow(&self) {
        self.intent.store(OUTSIDE, Ordering::Release);
    }

    /// Shuts the gate for a reason. Under the registry's lock, as all changes of a gate.
    ///
    /// It keeps the owner out only after one `heavy_barrier`, for all guards shut before it, and
    /// [`wait_idle`](Self::wait_idle) on each.
    pub(crate) fn raise(&self, reason: u32) {
        self.set_gate(self.gate.load(Ordering::Relaxed) | reason);
    }

    /// Takes a reason back. Needs no order: the owner finds all as it left it, whatever happened.
    pub(crate) fn lower(&self, reason: u32) {
        self.set_gate(self.gate.load(Ordering::Relaxed) & !reason);
    }

    fn set_gate(&self, gate: u32) {
        let ceiling = if gate == 0 { self.capacity } else { 0 };
        self.gate.store(gate, Ordering::Relaxed);
        self.ceiling.store(ceiling, Ordering::Relaxed);
    }

    /// Is the owner inside by [`enter_slow`](Self::enter_slow)? A hint for whoever has not shut it.
    pub(crate) fn is_inside_slow(&self) -> bool {
        self.intent.load(Ordering::Acquire) == INSIDE
    }

    /// Is the gate shut for this reason?
    pub(crate) fn is_raised(&self, reason: u32) -> bool {
        self.gate.load(Ordering::Relaxed) & reason != 0
    }

    /// Waits until the owner is outside; it cannot come back in while the gate is shut. Then the
    /// state stays what it is.
    pub(crate) fn wait_idle(&self) {
        let mut backoff = Backoff::default();
        while !self.is_idle() {
            backoff.snooze();
        }
    }

    /// Does the owner stand outside?
    pub(crate) fn is_idle(&self) -> bool {
        // In this order: an intent that is seen brings the state it was made of.
        let intent = self.intent.load(Ordering::Acquire);
        intent != INSIDE && intent != self.state.load(Ordering::Acquire)
    }
}
